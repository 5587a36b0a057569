//! The attacker of the benchmark of fairness: a user that takes all it can of one resource, and
//! goes on asking for more.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::arguments::Taken;
use crate::environment;

/// Names that fill the tables, and ranges of locks.
const MANY: u64 = 20_000;
/// Threads that wait for something that does not come.
const WAITING: usize = 200;
/// Where a refusal is the answer, the next question comes after so long.
const PAUSE: Duration = Duration::from_micros(100);
/// Time in which what can be had is taken, before the others are looked at.
const TAKING: Duration = Duration::from_secs(1);

/// Takes until the standard input ends; prints a line once most of it is taken. The directory is
/// on the mount, `pfs` is the same one below; both belong to the user.
pub fn run(what: Taken, directory: &Path, pfs: &Path, socket: &Path) -> Result<()> {
    let (directory, pfs, socket) = (directory.to_owned(), pfs.to_owned(), socket.to_owned());
    std::thread::spawn(move || {
        let outcome = match what {
            Taken::Descriptors => opens(&directory.join("file-0")),
            Taken::Loans => loans(&directory),
            Taken::Requests => requests(&directory.join("leased"), &pfs.join("leased")),
            Taken::Pins => pins(&directory.join("large"), &socket),
            Taken::Connections => connections(&socket),
            Taken::Locks => locks(&directory.join("locked")),
            Taken::Names => names(&directory, &pfs),
            Taken::Memory => memory(&directory.join("large")),
        };
        if let Err(error) = outcome {
            eprintln!("x: nothing more is taken of {what:?}: {error}");
        }
    });
    std::thread::sleep(TAKING);
    println!("taken");
    std::io::stdout().flush()?;
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}

/// Opens until it is refused; then one is closed, and asked for again.
fn opens(path: &Path) -> Result<()> {
    let mut held = Vec::new();
    loop {
        match File::open(path) {
            Ok(file) => held.push(file),
            Err(_) => {
                held.pop();
                std::thread::sleep(PAUSE);
            }
        }
    }
}

/// Opens of files of which the kernel reads the memory itself.
fn loans(directory: &Path) -> Result<()> {
    let mut held = Vec::new();
    let mut number = 0;
    loop {
        let path = directory.join(format!("file-{}", number % 64));
        number += 1;
        match File::open(path) {
            Ok(file) => {
                let _ = file.read_at(&mut [0; 4_096], 0);
                held.push(file);
            }
            Err(_) => {
                held.pop();
                std::thread::sleep(PAUSE);
            }
        }
    }
}

/// Opens of a file of which somebody below holds a lease: each waits as long as the kernel lets it.
fn requests(directory: &Path, pfs: &Path) -> Result<()> {
    // SAFETY: a number and a constant; a process that is asked for its lease hears of it by this
    // signal.
    unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
    let leased = File::options().read(true).write(true).open(pfs)?;
    // SAFETY: a descriptor of ours and two numbers.
    let lease = unsafe { libc::fcntl(leased.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) };
    anyhow::ensure!(lease == 0, "a lease: {}", std::io::Error::last_os_error());
    std::thread::scope(|scope| {
        for _ in 0..WAITING {
            scope.spawn(|| {
                loop {
                    let opened = File::open(directory);
                    std::thread::sleep(if opened.is_ok() { TAKING } else { PAUSE });
                }
            });
        }
    });
    Ok(())
}

/// Pins a file again and again, and gives it back.
fn pins(path: &Path, socket: &Path) -> Result<()> {
    let binary = environment::binary()?;
    loop {
        for command in ["pin", "unpin"] {
            let words = [OsStr::new(command), path.as_os_str()];
            let mut tidepool = Command::new(&binary);
            tidepool.args(words).arg("--socket").arg(socket);
            crate::process::capture(&mut tidepool)?;
        }
    }
}

/// Connections until they are refused, then on.
fn connections(socket: &Path) -> Result<()> {
    let mut held = Vec::new();
    loop {
        match UnixStream::connect(socket) {
            Ok(stream) if held.len() < MANY as usize / 2 => held.push(stream),
            _ => {
                held.pop();
                std::thread::sleep(PAUSE);
            }
        }
    }
}

/// Many locked ranges of one file, and many threads that wait for one of them.
fn locks(path: &Path) -> Result<()> {
    let holder = File::options().read(true).write(true).open(path)?;
    lock(&holder, libc::F_OFD_SETLK, 0)?;
    std::thread::scope(|scope| {
        for _ in 0..WAITING {
            scope.spawn(|| -> Result<()> {
                let file = File::options().read(true).write(true).open(path)?;
                lock(&file, libc::F_OFD_SETLKW, 0)
            });
        }
        let mut number = 0;
        loop {
            number += 1;
            if lock(&holder, libc::F_OFD_SETLK, number % MANY * 2).is_err() {
                std::thread::sleep(PAUSE);
            }
        }
    })
}

fn lock(file: &File, command: libc::c_int, start: u64) -> Result<()> {
    // SAFETY: numbers only; zeros are a valid value of each.
    let mut range: libc::flock = unsafe { std::mem::zeroed() };
    range.l_type = libc::F_WRLCK as _;
    range.l_start = i64::try_from(start)?;
    range.l_len = 1;
    // SAFETY: a descriptor of ours and a structure that outlives the call.
    let done = unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const range) };
    anyhow::ensure!(done == 0, std::io::Error::last_os_error());
    Ok(())
}

/// Looks at many names, so that the kernel and the node know all of them.
fn names(directory: &Path, pfs: &Path) -> Result<()> {
    for number in 0..MANY {
        File::create(pfs.join(format!("name-{number}")))?;
    }
    loop {
        for number in 0..MANY {
            fs::metadata(directory.join(format!("name-{number}")))?;
        }
    }
}

/// Reads a file that is larger than the store, past the kernel's memory, from two places.
fn memory(path: &Path) -> Result<()> {
    let length = fs::metadata(path)?.len();
    let read = |first: u64| -> Result<()> {
        let file = File::options().read(true).custom_flags(libc::O_DIRECT).open(path)?;
        let layout = std::alloc::Layout::from_size_align(1 << 20, 4_096)?;
        // SAFETY: a layout with a size; kept until the process ends.
        let start = unsafe { std::alloc::alloc_zeroed(layout) };
        anyhow::ensure!(!start.is_null(), "no memory");
        // SAFETY: allocated just now with this length, and nobody else's.
        let buffer = unsafe { std::slice::from_raw_parts_mut(start, 1 << 20) };
        let started = Instant::now();
        let mut at = first;
        loop {
            let place = (at << 20) % length;
            file.read_at(buffer, place)
                .with_context(|| format!("after {:?}", started.elapsed()))?;
            at += 1;
        }
    };
    std::thread::scope(|scope| {
        let other = scope.spawn(|| read(length >> 21));
        read(0)?;
        other.join().unwrap_or(Ok(()))
    })
}
