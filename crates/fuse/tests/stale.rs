//! Mounts whose daemon died: nothing hangs, and the next start clears them away.

mod support;

use std::fs;
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use support::{can_mount, errno, kernel_version, mounted, open_directory};
use tidepool_fake_node::FakeService;
use tidepool_fuse::{MountConfig, recover_stale};
use tidepool_proto::ErrorKind;
use tidepool_proto::mounts::MountTable;

const LOWER: &str = "TIDEPOOL_TEST_LOWER";
const UPPER: &str = "TIDEPOOL_TEST_UPPER";
/// Kills of a daemon that is started again at once.
const RESTARTS: usize = 30;
/// Kills of a daemon that is mounting.
const ROUNDS: u64 = 40;

fn is_mounted(path: &Path) -> bool {
    MountTable::read().unwrap().at(path).is_some()
}

/// Not a test of its own: the daemon that the others kill.
#[test]
fn daemon_for_the_other_tests() {
    let (Some(lower), Some(upper)) = (std::env::var_os(LOWER), std::env::var_os(UPPER)) else {
        return;
    };
    let root = open_directory(lower.as_ref());
    let config = MountConfig::new(root, lower.into(), upper.into());
    let mount = tidepool_fuse::mount(FakeService::memory(), config).unwrap();
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
    let mount = tidepool_fuse::mount(FakeService::bypass(), config).unwrap();
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
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let error = recover_stale(&mount.upper).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains(mount.lower.to_str().unwrap()), "{error}");
    let config =
        MountConfig::new(open_directory(&mount.lower), mount.lower.clone(), mount.upper.clone());
    let error = tidepool_fuse::mount(FakeService::bypass(), config).unwrap_err();
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
    let error = tidepool_fuse::mount(FakeService::bypass(), config).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
}

#[test]
fn unmounting_ends_even_while_files_are_open() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, upper) = mount.both("file");
    let open = fs::File::create(&upper).unwrap();
    std::io::Write::write_all(&mut &open, b"before").unwrap();
    mount.mount().unmount().unwrap();
    assert!(!is_mounted(&mount.upper));
    let after = std::io::Write::write_all(&mut &open, b"after");
    assert!(matches!(errno(after), Some(libc::ENOTCONN | libc::ECONNABORTED)));
    assert_eq!(fs::read(&lower).unwrap(), b"before");
}

#[test]
fn a_mount_goes_from_where_it_is_now() {
    if !can_mount() {
        return;
    }
    for replaced in [false, true] {
        let directory = tempfile::tempdir().unwrap();
        let (lower, parent) = (directory.path().join("pfs"), directory.path().join("parent"));
        let (upper, moved) = (parent.join("mount"), directory.path().join("moved to"));
        fs::create_dir(&lower).unwrap();
        fs::create_dir_all(&upper).unwrap();
        let config = MountConfig::new(open_directory(&lower), lower, upper);
        let mount = tidepool_fuse::mount(FakeService::bypass(), config).unwrap();
        fs::rename(&parent, &moved).unwrap();
        if replaced {
            // Its path leads through what is no directory any more.
            fs::write(&parent, b"").unwrap();
        }
        let (ended, end) = std::sync::mpsc::channel();
        std::thread::spawn(move || {
            let outcome = mount.unmount().map_err(|error| error.kind());
            drop(mount);
            let _ = ended.send(outcome);
        });
        let outcome = end.recv_timeout(Duration::from_secs(60));
        let was_mounted = is_mounted(&moved.join("mount"));
        if was_mounted {
            let flags = rustix::mount::UnmountFlags::DETACH;
            rustix::mount::unmount(moved.join("mount"), flags).unwrap();
        }
        assert_eq!(outcome.expect("it ends"), Ok(()), "replaced: {replaced}");
        assert!(!was_mounted);
    }
}

/// Programs go on writing by the path of the mount point while its daemon dies and comes back.
#[test]
fn no_file_comes_to_the_directory_below_the_mount() {
    if !can_mount() {
        return;
    }
    let version = kernel_version();
    if version < (6, 5) {
        println!(
            "SKIPPED: Linux {version:?} takes the dead mount away before the new one is there"
        );
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let (lower, upper) = (directory.path().join("pfs"), directory.path().join("mount"));
    fs::create_dir(&lower).unwrap();
    fs::create_dir(&upper).unwrap();
    fs::write(lower.join("file"), b"safe").unwrap();
    // The directory itself, whatever is mounted on it.
    let below = open_directory(&upper);
    let mut daemon = start_daemon(&lower, &upper);
    let end = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for writer in 0..2 {
            let (upper, end) = (&upper, &end);
            scope.spawn(move || {
                for number in 0.. {
                    if end.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                    let path = upper.join(format!("{writer}-{number}"));
                    if fs::File::create(&path).is_ok() {
                        let _ = fs::remove_file(&path);
                    }
                }
            });
        }
        for _ in 0..RESTARTS {
            daemon.kill().unwrap();
            daemon.wait().unwrap();
            daemon = start_daemon(&lower, &upper);
        }
        end.store(true, std::sync::atomic::Ordering::Relaxed);
    });
    daemon.kill().unwrap();
    daemon.wait().unwrap();
    recover_stale(&upper).unwrap();
    let path = format!("/proc/self/fd/{}", below.as_raw_fd());
    let names: Vec<_> = fs::read_dir(path).unwrap().map(|name| name.unwrap().file_name()).collect();
    assert!(names.is_empty(), "{names:?}");
}

#[test]
fn unmounted_by_somebody_else_the_mount_ends() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let unmount = || rustix::mount::unmount(&mount.upper, rustix::mount::UnmountFlags::empty());
    // A process that another test starts at this moment has our descriptors until it runs.
    while unmount() == Err(rustix::io::Errno::BUSY) {
        std::thread::yield_now();
    }
    mount.mount().wait().unwrap();
}
