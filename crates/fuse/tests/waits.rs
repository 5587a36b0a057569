//! Requests that wait for the PFS, or for the holder of a lease there, hold up no others.

mod support;

use std::fs::{self, File};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, chown};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use support::{STRANGER, as_user, mounted, mounted_with};
use tidepool_fake_node::{FakeNode, FakeService, Gate, Hooks, Keeps};
use tidepool_pfs::asked;
use tidepool_proto::Version;

/// Long enough on any machine; what goes on ends much earlier.
const PATIENCE: Duration = Duration::from_secs(60);
/// Opens of files of this length wait until the gate is open.
const SLOW: u64 = 7;
/// More than the mount has threads.
const MANY: usize = 200;
const OTHER: u32 = 4_711;

/// A node whose PFS does not answer for some files.
fn gated(without_pins: bool) -> Arc<FakeService> {
    let opened = |node: &FakeNode, version: &Version| {
        if version.size == SLOW {
            node.gate.pass();
        }
        Ok(())
    };
    FakeService::of(FakeNode {
        keeps: Keeps::Files,
        without_pins,
        hooks: Hooks { opened, ..Hooks::default() },
        gate: Gate::closed(),
        ..FakeNode::default()
    })
}

/// A node that waits for another one, which does not answer, for some files.
fn waiting_for_another_node() -> Arc<FakeService> {
    let opened = |node: &FakeNode, version: &Version| match version.size {
        SLOW => asked::while_another_node_works(|| node.gate.pass_unless(asked::check)),
        _ => Ok(()),
    };
    FakeService::of(FakeNode {
        keeps: Keeps::Files,
        hooks: Hooks { opened, ..Hooks::default() },
        gate: Gate::closed(),
        ..FakeNode::default()
    })
}

/// Runs `condition` until it holds; whether it did in time.
fn comes_true(mut condition: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        if Instant::now() > end {
            return false;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    true
}

/// Whether `work`, in a thread of `scope`, ends in time.
fn ends<'scope, 'env>(
    scope: &'scope std::thread::Scope<'scope, 'env>,
    work: impl FnOnce() + Send + 'scope,
) -> bool {
    let (sender, receiver) = mpsc::channel();
    scope.spawn(move || {
        work();
        let _ = sender.send(());
    });
    receiver.recv_timeout(PATIENCE).is_ok()
}

#[test]
fn resident_reads_and_other_users_go_on_however_many_wait() {
    let service = gated(true);
    let Some(mount) = mounted(service.clone()) else { return };
    let (slow_below, slow) = mount.both("slow");
    fs::write(slow_below, [1; SLOW as usize]).unwrap();
    let (below, resident) = mount.both("resident");
    fs::write(below, b"resident bytes").unwrap();
    let file = File::open(&resident).unwrap();
    std::thread::scope(|scope| {
        let mut readers = Vec::new();
        for _ in 0..MANY {
            readers.push(scope.spawn(|| fs::read(&slow).unwrap().len()));
        }
        let all_wait = comes_true(|| service.gate.waiting() >= 64);
        let reads_go_on = ends(scope, || {
            for _ in 0..50 {
                let mut bytes = [0; 8];
                file.read_exact_at(&mut bytes, 0).unwrap();
                assert_eq!(&bytes, b"resident");
            }
        });
        let others_go_on = ends(scope, || {
            as_user(STRANGER, STRANGER, &[], || {
                assert_eq!(fs::read(&resident).unwrap(), b"resident bytes");
                assert_eq!(fs::read_dir(&mount.upper).unwrap().count(), 2);
            });
        });
        service.gate.set(false);
        assert_eq!((all_wait, reads_go_on, others_go_on), (true, true, true));
        for reader in readers {
            assert_eq!(reader.join().unwrap(), SLOW as usize);
        }
    });
}

/// Whether the program is inside the system call `number`.
fn is_in(program: &Child, number: libc::c_long) -> bool {
    fs::read_to_string(format!("/proc/{}/syscall", program.id()))
        .is_ok_and(|call| call.split(' ').next() == Some(number.to_string().as_str()))
}

/// Starts a program that opens `path`, kills it while it does, and tells whether it ends.
fn ends_when_killed(path: &Path) -> bool {
    let mut program =
        Command::new("cat").arg(path).stdout(std::process::Stdio::null()).spawn().unwrap();
    let waits = || {
        is_in(&program, libc::SYS_openat) && {
            let argument = fs::read(format!("/proc/{}/cmdline", program.id())).unwrap_or_default();
            argument.starts_with(b"cat\0")
        }
    };
    // Its libraries are opened in no time; the file is not.
    let mut seen = 0;
    comes_true(|| {
        seen = if waits() { seen + 1 } else { 0 };
        seen > 50
    });
    program.kill().unwrap();
    let ended = comes_true(|| program.try_wait().unwrap().is_some());
    if !ended {
        // Ends once the test lets everybody go.
        std::mem::forget(program);
    }
    ended
}

#[test]
fn a_program_that_waits_for_its_turn_can_be_killed() {
    let service = gated(false);
    let Some(mount) = mounted_with(service.clone(), |config| config.turns_max = 4) else { return };
    let (slow_below, slow) = mount.both("slow");
    fs::write(slow_below, [1; SLOW as usize]).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| fs::read(&slow).unwrap());
        }
        // Half of the turns: what root asks from now on has to wait.
        let taken = comes_true(|| service.gate.waiting() == 2);
        let ended = ends_when_killed(&slow);
        service.gate.set(false);
        assert!(taken && ended, "{taken} {ended}");
    });
    assert_eq!(fs::read(&slow).unwrap().len(), SLOW as usize, "turns came back");
}

/// Files on which this process holds leases that it does not give up when asked.
struct Leased(Vec<File>);

impl Leased {
    fn take(lower: &Path, count: usize) -> Option<Leased> {
        // SAFETY: sets how this process treats one signal; nothing else here uses it.
        unsafe { libc::signal(libc::SIGIO, libc::SIG_IGN) };
        let mut files = Vec::new();
        for index in 0..count {
            let path = lower.join(format!("leased{index}"));
            fs::write(&path, b"leased").unwrap();
            chown(&path, Some(STRANGER), Some(STRANGER)).unwrap();
            let file = File::options().read(true).write(true).open(path).unwrap();
            // SAFETY: the command takes a number.
            if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_WRLCK) } != 0 {
                println!("SKIPPED: no leases: {}", std::io::Error::last_os_error());
                return None;
            }
            files.push(file);
        }
        Some(Leased(files))
    }

    /// How many of them somebody waits for.
    fn asked_for(&self) -> usize {
        // SAFETY: the command takes no argument.
        let kind = |file: &File| unsafe { libc::fcntl(file.as_raw_fd(), libc::F_GETLEASE) };
        self.0.iter().filter(|file| kind(file) != libc::F_WRLCK).count()
    }

    fn give_up(&self) {
        for file in &self.0 {
            // SAFETY: the command takes a number.
            unsafe { libc::fcntl(file.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
        }
    }
}

#[test]
fn opens_of_leased_files_hold_up_nobody_else() {
    let Some(mount) = mounted(FakeService::memory()) else { return };
    let Some(leased) = Leased::take(&mount.lower, MANY) else { return };
    let (below, other) = mount.both("other");
    fs::write(below, b"other").unwrap();
    let work = || {
        assert_eq!(fs::read(&other).unwrap(), b"other");
        assert_eq!(fs::read_dir(&mount.upper).unwrap().count(), MANY + 1);
        assert_eq!(fs::metadata(mount.upper.join("leased0")).unwrap().len(), 6);
    };
    std::thread::scope(|scope| {
        let mut openers = Vec::new();
        for index in 0..MANY {
            let path = mount.upper.join(format!("leased{index}"));
            let open = move || as_user(STRANGER, STRANGER, &[], || fs::read(path).unwrap());
            openers.push(scope.spawn(open));
        }
        // The kernel takes leases away in the end: those count as asked for as well.
        let all_wait = comes_true(|| leased.asked_for() == MANY);
        let root_goes_on = ends(scope, work);
        let others_go_on = ends(scope, || as_user(OTHER, OTHER, &[], work));
        let the_same_user_goes_on = ends(scope, || as_user(STRANGER, STRANGER, &[], work));
        leased.give_up();
        assert_eq!((all_wait, root_goes_on, others_go_on), (true, true, true));
        assert!(the_same_user_goes_on, "who waits for a lease has no turn");
        for opener in openers {
            assert_eq!(opener.join().unwrap(), b"leased");
        }
    });
}

#[test]
fn an_open_that_waits_for_a_lease_can_be_killed_or_refused() {
    let Some(mount) = mounted(FakeService::memory()) else { return };
    let Some(leased) = Leased::take(&mount.lower, 1) else { return };
    let path = mount.upper.join("leased0");
    let ended = ends_when_killed(&path);
    let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::NONBLOCK;
    let at_once = rustix::fs::open(&path, flags, rustix::fs::Mode::empty()).map(|_| ());
    leased.give_up();
    assert!(ended);
    assert_eq!(at_once, Err(rustix::io::Errno::WOULDBLOCK));
    assert_eq!(fs::read(&path).unwrap(), b"leased");
}

#[test]
fn opens_that_wait_for_another_node_hold_up_nobody() {
    let service = waiting_for_another_node();
    let Some(mount) = mounted(service.clone()) else { return };
    let (slow_below, slow) = mount.both("slow");
    fs::write(slow_below, [1; SLOW as usize]).unwrap();
    let (below, other) = mount.both("other");
    fs::write(below, b"other bytes").unwrap();
    std::thread::scope(|scope| {
        let mut openers = Vec::new();
        for _ in 0..MANY {
            openers.push(scope.spawn(|| fs::read(&slow).unwrap().len()));
        }
        let all_wait = comes_true(|| service.gate.waiting() == MANY);
        let the_same_user_goes_on = ends(scope, || {
            assert_eq!(fs::read(&other).unwrap(), b"other bytes");
            assert_eq!(fs::read_dir(&mount.upper).unwrap().count(), 2);
        });
        service.gate.set(false);
        assert_eq!((all_wait, the_same_user_goes_on), (true, true));
        for opener in openers {
            assert_eq!(opener.join().unwrap(), SLOW as usize);
        }
    });
}

#[test]
fn an_open_that_waits_for_another_node_can_be_killed() {
    let service = waiting_for_another_node();
    let Some(mount) = mounted(service.clone()) else { return };
    let (slow_below, slow) = mount.both("slow");
    fs::write(slow_below, [1; SLOW as usize]).unwrap();
    let ended = ends_when_killed(&slow);
    let is_over = comes_true(|| service.gate.waiting() == 0);
    service.gate.set(false);
    assert!(ended && is_over, "{ended} {is_over}");
    assert_eq!(fs::read(&slow).unwrap().len(), SLOW as usize);
}
