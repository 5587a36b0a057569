//! Mounts whose daemon died: nothing hangs, and the next start clears them away.

mod support;

use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use support::bypass::BypassService;
use support::memory::MemoryService;
use support::{can_mount, errno, mounted, open_directory};
use tidepool_fuse::{MountConfig, recover_stale};
use tidepool_proto::ErrorKind;

const LOWER: &str = "TIDEPOOL_TEST_LOWER";
const UPPER: &str = "TIDEPOOL_TEST_UPPER";
/// Kills of a daemon that is mounting.
const ROUNDS: u64 = 40;

fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let escaped = path.to_str().unwrap().replace(' ', "\\040");
    table.lines().any(|line| line.split(' ').nth(4) == Some(&escaped))
}

/// Not a test of its own: the daemon that the others kill.
#[test]
fn daemon_for_the_other_tests() {
    let (Some(lower), Some(upper)) = (std::env::var_os(LOWER), std::env::var_os(UPPER)) else {
        return;
    };
    let root = open_directory(lower.as_ref());
    let config = MountConfig::new(root, lower.into(), upper.into());
    let mount = tidepool_fuse::mount(Arc::new(MemoryService::default()), config).unwrap();
    println!("mounted");
    mount.wait().unwrap();
}

fn spawn_daemon(lower: &Path, upper: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "daemon_for_the_other_tests", "--nocapture"])
        .env(LOWER, lower)
        .env(UPPER, upper)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

fn start_daemon(lower: &Path, upper: &Path) -> Child {
    let mut daemon = spawn_daemon(lower, upper);
    while !is_mounted(upper) || fs::metadata(upper.join("file")).is_err() {
        assert!(daemon.try_wait().unwrap().is_none(), "the daemon runs");
        std::thread::yield_now();
    }
    daemon
}

#[test]
fn a_killed_daemon_leaves_errors_and_no_hang_and_is_recovered() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (lower, upper) = (directory.path().join("pfs"), directory.path().join("a mount"));
    fs::create_dir(&lower).unwrap();
    fs::create_dir(&upper).unwrap();
    fs::write(lower.join("file"), b"safe").unwrap();
    let mut daemon = start_daemon(&lower, &upper);
    let open = fs::File::open(upper.join("file")).unwrap();
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    assert_eq!(errno(fs::read(upper.join("file"))), Some(libc::ENOTCONN));
    assert_eq!(errno(fs::File::create(upper.join("new"))), Some(libc::ENOTCONN));
    assert!(recover_stale(&upper).unwrap(), "there was a dead mount");
    assert!(!is_mounted(&upper));
    assert!(!recover_stale(&upper).unwrap(), "and now there is none");
    drop(open);
    // Starting again needs no call of its own.
    let mut daemon = start_daemon(&lower, &upper);
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    let config = MountConfig::new(open_directory(&lower), lower, upper.clone());
    let mount = tidepool_fuse::mount(Arc::new(BypassService), config).unwrap();
    assert!(mount.notes().iter().any(|note| note.contains("died")));
    assert_eq!(fs::read(upper.join("file")).unwrap(), b"safe");
    mount.unmount().unwrap();
    assert!(!is_mounted(&upper));
}

/// A process that asks its own mount waits for itself, and no signal ends that.
#[test]
fn a_daemon_killed_while_it_mounts_is_gone() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (lower, upper) = (directory.path().join("pfs"), directory.path().join("mount"));
    fs::create_dir(&lower).unwrap();
    fs::create_dir(&upper).unwrap();
    for round in 0..ROUNDS {
        let mut daemon = spawn_daemon(&lower, &upper);
        while !is_mounted(&upper) {
            assert!(daemon.try_wait().unwrap().is_none(), "the daemon runs");
            std::thread::yield_now();
        }
        // Every moment of the next two milliseconds.
        std::thread::sleep(Duration::from_micros(round * 50));
        daemon.kill().unwrap();
        let deadline = Instant::now() + Duration::from_secs(60);
        while daemon.try_wait().unwrap().is_none() {
            if Instant::now() > deadline {
                let _ = rustix::mount::unmount(&upper, rustix::mount::UnmountFlags::FORCE);
                panic!("round {round}: the daemon is still there a minute after it was killed");
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(recover_stale(&upper).unwrap(), "there was a dead mount");
    }
}

#[test]
fn a_mount_point_in_use_is_refused_and_its_user_named() {
    let Some(mount) = mounted(Arc::new(BypassService)) else { return };
    let error = recover_stale(&mount.upper).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains(mount.lower.to_str().unwrap()), "{error}");
    let config =
        MountConfig::new(open_directory(&mount.lower), mount.lower.clone(), mount.upper.clone());
    let error = tidepool_fuse::mount(Arc::new(BypassService), config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert_eq!(recover_stale(Path::new("/proc")).unwrap_err().kind(), ErrorKind::InUse);
    let absent = mount.lower.join("absent");
    assert_eq!(recover_stale(&absent).unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn a_mount_inside_of_its_own_directory_is_refused() {
    if !can_mount() {
        return;
    }
    let lower = tempfile::tempdir().unwrap();
    let upper = lower.path().join("mount");
    fs::create_dir(&upper).unwrap();
    let config = MountConfig::new(open_directory(lower.path()), lower.path().into(), upper);
    let error = tidepool_fuse::mount(Arc::new(BypassService), config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn unmounting_ends_even_while_files_are_open() {
    let Some(mount) = mounted(Arc::new(BypassService)) else { return };
    let (lower, upper) = mount.both("file");
    let open = fs::File::create(&upper).unwrap();
    std::io::Write::write_all(&mut &open, b"before").unwrap();
    mount.mount().unmount().unwrap();
    assert!(!is_mounted(&mount.upper));
    let after = std::io::Write::write_all(&mut &open, b"after");
    assert!(matches!(errno(after), Some(libc::ENOTCONN | libc::ECONNABORTED)));
    assert_eq!(fs::read(&lower).unwrap(), b"before");
}

/// As for a plain user whose helper cannot unmount.
#[test]
fn a_mount_that_cannot_be_unmounted_is_not_waited_for() {
    if !can_mount() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (lower, parent) = (directory.path().join("pfs"), directory.path().join("parent"));
    let (upper, moved) = (parent.join("mount"), directory.path().join("moved"));
    fs::create_dir(&lower).unwrap();
    fs::create_dir_all(&upper).unwrap();
    let config = MountConfig::new(open_directory(&lower), lower, upper);
    let mount = tidepool_fuse::mount(Arc::new(BypassService), config).unwrap();
    // Its path leads through what is no directory any more.
    fs::rename(&parent, &moved).unwrap();
    fs::write(&parent, b"").unwrap();
    let (ended, end) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let first = mount.unmount().map_err(|error| error.kind());
        drop(mount);
        let _ = ended.send(first);
    });
    let outcome = end.recv_timeout(Duration::from_secs(60));
    rustix::mount::unmount(moved.join("mount"), rustix::mount::UnmountFlags::DETACH).unwrap();
    assert_eq!(outcome.expect("it ends"), Err(ErrorKind::InUse));
}

#[test]
fn unmounted_by_somebody_else_the_mount_ends() {
    let Some(mount) = mounted(Arc::new(BypassService)) else { return };
    rustix::mount::unmount(&mount.upper, rustix::mount::UnmountFlags::empty()).unwrap();
    mount.mount().wait().unwrap();
}
