//! Locks taken through the mount hold on the PFS, and the other way round.

mod support;

use std::fs::{self, File, OpenOptions};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use rustix::fs::FlockOperation;
use support::{Mounted, errno, mounted};
use tidepool_fake_node::FakeService;

fn both(mount: &Mounted) -> (File, File) {
    let (lower, upper) = mount.both("file");
    fs::write(&lower, vec![0; 1000]).unwrap();
    let open = |path: &Path| OpenOptions::new().read(true).write(true).open(path).unwrap();
    (open(&lower), open(&upper))
}

fn record(kind: i32, start: i64, length: i64) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: length,
        l_pid: 0,
    }
}

fn control(file: &File, command: i32, mut lock: libc::flock) -> std::io::Result<libc::flock> {
    // SAFETY: lock commands read and write the one `flock` that is passed.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw mut lock) } {
        0 => Ok(lock),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// A process that takes a lock on `path`, says so, and keeps it until it is killed.
struct Holder(Child);

impl Holder {
    fn new(path: &Path, program: &str) -> Self {
        let script = format!(
            "import fcntl,sys,time\nf=open(sys.argv[1],'r+')\n{program}\n\
             print('held',flush=True)\ntime.sleep(1000)"
        );
        let mut child = Command::new("python3")
            .args(["-c", &script])
            .arg(path)
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .expect("python3 runs");
        let mut line = String::new();
        let output = child.stdout.as_mut().expect("piped");
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
        assert_eq!(line, "held\n");
        Holder(child)
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn whole_file_locks_hold_on_both_sides() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, upper) = both(&mount);
    let exclusive = FlockOperation::NonBlockingLockExclusive;
    let would_block = Err(rustix::io::Errno::AGAIN);
    rustix::fs::flock(&upper, exclusive).unwrap();
    assert_eq!(rustix::fs::flock(&lower, exclusive), would_block);
    rustix::fs::flock(&upper, FlockOperation::Unlock).unwrap();
    rustix::fs::flock(&lower, exclusive).unwrap();
    assert_eq!(rustix::fs::flock(&upper, exclusive), would_block);
    drop(lower);
    rustix::fs::flock(&upper, exclusive).unwrap();
    let lower = File::open(mount.lower.join("file")).unwrap();
    drop(upper);
    rustix::fs::flock(&lower, FlockOperation::LockExclusive).unwrap();
}

#[test]
fn record_locks_hold_on_both_sides() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, upper) = both(&mount);
    control(&upper, libc::F_SETLK, record(libc::F_WRLCK, 10, 20)).unwrap();
    // Locks of this process on the PFS would not conflict with its own; those of an open file do.
    let theirs = |start| control(&lower, libc::F_OFD_SETLK, record(libc::F_WRLCK, start, 1));
    assert_eq!(errno(theirs(15)), Some(libc::EAGAIN));
    theirs(50).unwrap();
    let ours = control(&upper, libc::F_SETLK, record(libc::F_RDLCK, 0, 0));
    assert_eq!(errno(ours), Some(libc::EAGAIN));
    control(&upper, libc::F_SETLK, record(libc::F_UNLCK, 12, 5)).unwrap();
    theirs(15).unwrap();
    assert_eq!(errno(theirs(11)), Some(libc::EAGAIN), "unlocked in the middle only");
}

#[test]
fn whoever_stands_in_the_way_is_named() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (_, upper) = both(&mount);
    let path = mount.upper.join("file");
    let holder = Holder::new(&path, "fcntl.lockf(f,fcntl.LOCK_EX|fcntl.LOCK_NB,7,3)");
    let found = control(&upper, libc::F_GETLK, record(libc::F_WRLCK, 0, 0)).unwrap();
    assert_eq!(found.l_type, libc::F_WRLCK as libc::c_short);
    assert_eq!((found.l_start, found.l_len), (3, 7));
    assert_eq!(found.l_pid, holder.0.id() as i32);
    let free = control(&upper, libc::F_GETLK, record(libc::F_WRLCK, 100, 1)).unwrap();
    assert_eq!(free.l_type, libc::F_UNLCK as libc::c_short);
}

#[test]
fn a_killed_owner_leaves_no_lock() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, upper) = both(&mount);
    let path = mount.upper.join("file");
    drop(upper);
    let exclusive = record(libc::F_WRLCK, 0, 0);
    let holder = Holder::new(&path, "fcntl.lockf(f,fcntl.LOCK_EX)");
    assert_eq!(errno(control(&lower, libc::F_OFD_SETLK, exclusive)), Some(libc::EAGAIN));
    drop(holder);
    control(&lower, libc::F_OFD_SETLKW, exclusive).unwrap();
    let holder = Holder::new(&path, "fcntl.flock(f,fcntl.LOCK_EX)");
    let attempt = rustix::fs::flock(&lower, FlockOperation::NonBlockingLockExclusive);
    assert_eq!(attempt, Err(rustix::io::Errno::AGAIN));
    drop(holder);
    rustix::fs::flock(&lower, FlockOperation::LockExclusive).unwrap();
}

#[test]
fn closing_drops_the_record_locks_of_the_process() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, upper) = both(&mount);
    control(&upper, libc::F_SETLK, record(libc::F_WRLCK, 0, 0)).unwrap();
    let theirs = || control(&lower, libc::F_OFD_SETLK, record(libc::F_WRLCK, 0, 0));
    assert_eq!(errno(theirs()), Some(libc::EAGAIN));
    drop(upper);
    theirs().unwrap();
}

/// Tries for a lock until it is had: the kernel tells of the end of an open file a moment later.
fn lock_soon(file: &File, command: i32, lock: libc::flock) {
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while let Err(error) = control(file, command, lock) {
        assert_eq!(error.raw_os_error(), Some(libc::EAGAIN));
        assert!(std::time::Instant::now() < deadline, "the lock is never let go");
        std::thread::yield_now();
    }
}

#[test]
fn a_lock_of_an_open_file_ends_with_its_last_descriptor() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, upper) = both(&mount);
    let exclusive = record(libc::F_WRLCK, 0, 10);
    let theirs = || control(&lower, libc::F_OFD_SETLK, exclusive);
    control(&upper, libc::F_OFD_SETLK, exclusive).unwrap();
    let duplicate = upper.try_clone().unwrap();
    drop(upper);
    assert_eq!(errno(theirs()), Some(libc::EAGAIN), "a duplicate keeps it");
    drop(duplicate);
    lock_soon(&lower, libc::F_OFD_SETLK, exclusive);
}

/// Asserts for a while that `file` does not get a lock: long enough that the mount hears of closes
/// and looks for owners that are gone.
fn stays_locked(file: &File, lock: libc::flock) {
    let until = std::time::Instant::now() + std::time::Duration::from_millis(600);
    while std::time::Instant::now() < until {
        assert_eq!(errno(control(file, libc::F_OFD_SETLK, lock)), Some(libc::EAGAIN));
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[test]
fn a_lock_of_a_process_outlives_another_open_that_it_closed_before() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, upper) = both(&mount);
    let path = mount.upper.join("file");
    let exclusive = record(libc::F_WRLCK, 0, 10);
    let first = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    control(&first, libc::F_SETLK, exclusive).unwrap();
    // The open goes on in a child; for this process it is closed, and its locks are gone.
    let heir = Command::new("sleep").arg("1000").stdin(Stdio::from(first)).spawn().unwrap();
    lock_soon(&lower, libc::F_OFD_SETLK, exclusive);
    control(&lower, libc::F_OFD_SETLK, record(libc::F_UNLCK, 0, 10)).unwrap();
    control(&upper, libc::F_SETLK, exclusive).unwrap();
    drop(Holder(heir));
    stays_locked(&lower, exclusive);
}

#[test]
fn an_heir_keeps_the_lock_of_an_open_file() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, upper) = both(&mount);
    drop(upper);
    // Who takes the lock ends; a child lives on until it is told.
    let script = "import fcntl,os,struct,sys,time\n\
        f=os.open(sys.argv[1],os.O_RDONLY)\n\
        fcntl.fcntl(f,37,struct.pack('hhqqi4x',fcntl.F_RDLCK,0,0,10,0))\n\
        parent=os.getpid()\n\
        if os.fork(): os._exit(0)\n\
        while os.getppid()==parent: time.sleep(0.01)\n\
        print('heir',flush=True)\nsys.stdin.read()";
    let mut first = Command::new("python3")
        .args(["-c", script])
        .arg(mount.upper.join("file"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let keeps_it_alive = first.stdin.take();
    assert!(first.wait().unwrap().success());
    let mut line = String::new();
    let output = first.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
    assert_eq!(line, "heir\n");
    let exclusive = record(libc::F_WRLCK, 0, 10);
    stays_locked(&lower, exclusive);
    drop(keeps_it_alive);
    lock_soon(&lower, libc::F_OFD_SETLK, exclusive);
}

#[test]
fn a_reader_that_only_reads_locks_and_lets_go_as_well() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, upper) = both(&mount);
    drop(upper);
    let path = mount.upper.join("file");
    let script = "g=open(sys.argv[1]); fcntl.lockf(g,fcntl.LOCK_SH)";
    let holder = Holder::new(&path, script);
    let exclusive = record(libc::F_WRLCK, 0, 0);
    assert_eq!(errno(control(&lower, libc::F_OFD_SETLK, exclusive)), Some(libc::EAGAIN));
    drop(holder);
    control(&lower, libc::F_OFD_SETLKW, exclusive).unwrap();
}

#[test]
fn waiting_for_a_lock_blocks_nobody_else_and_ends_when_it_is_free() {
    const WAITERS: usize = 20;
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, _) = both(&mount);
    rustix::fs::flock(&lower, FlockOperation::LockExclusive).unwrap();
    let path = mount.upper.join("file");
    std::thread::scope(|scope| {
        for _ in 0..WAITERS {
            scope.spawn(|| {
                let file = File::open(&path).unwrap();
                rustix::fs::flock(&file, FlockOperation::LockShared).unwrap();
            });
        }
        for index in 0..100 {
            fs::write(mount.upper.join(format!("other{index}")), b"still served").unwrap();
        }
        rustix::fs::flock(&lower, FlockOperation::Unlock).unwrap();
    });
}

#[test]
fn a_process_killed_while_it_waits_goes_away() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, _) = both(&mount);
    rustix::fs::flock(&lower, FlockOperation::LockExclusive).unwrap();
    control(&lower, libc::F_OFD_SETLK, record(libc::F_WRLCK, 0, 0)).unwrap();
    for how in ["flock(f,fcntl.LOCK_EX)", "lockf(f,fcntl.LOCK_EX)"] {
        let script = format!(
            "import fcntl,sys\nf=open(sys.argv[1],'r+')\nprint('asking',flush=True)\nfcntl.{how}"
        );
        let mut waiter = Command::new("python3")
            .args(["-c", &script])
            .arg(mount.upper.join("file"))
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let output = waiter.stdout.as_mut().unwrap();
        std::io::BufRead::read_line(&mut std::io::BufReader::new(output), &mut line).unwrap();
        waiter.kill().unwrap();
        assert!(!waiter.wait().unwrap().success());
    }
}
