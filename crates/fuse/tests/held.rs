//! Descriptors that look-ups leave behind: what is reached by them, and that few are kept.

mod support;

use std::fs::{self, File, Permissions};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use support::{STRANGER, as_user, errno, mounted, mounted_with};
use tidepool_fake_node::FakeService;

const FILES: usize = 100;

/// What a program holds that looked a name up and opened nothing.
fn path_descriptor(path: &Path) -> OwnedFd {
    rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap()
}

fn by_descriptor(held: &OwnedFd) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", held.as_raw_fd()))
}

/// Descriptors of this process, that of the mount, on what lies below a directory.
fn held_below(lower: &Path) -> usize {
    let links = fs::read_dir("/proc/self/fd").unwrap();
    let targets = links.filter_map(|entry| fs::read_link(entry.ok()?.path()).ok());
    targets.filter(|target| target.starts_with(lower) && target != lower).count()
}

#[test]
fn few_descriptors_are_kept_and_files_without_names_stay_reachable() {
    let Some(mount) = mounted_with(FakeService::bypass(), |config| {
        config.inode_descriptors_max = Some(16);
    }) else {
        return;
    };
    for number in 0..FILES {
        fs::write(mount.lower.join(number.to_string()), number.to_string()).unwrap();
    }
    let mut nameless = Vec::new();
    for name in ["by the mount", "on the PFS"] {
        fs::write(mount.lower.join(name), name).unwrap();
        nameless.push((name, path_descriptor(&mount.upper.join(name))));
    }
    fs::remove_file(mount.upper.join("by the mount")).unwrap();
    fs::remove_file(mount.lower.join("on the PFS")).unwrap();
    for _ in 0..3 {
        for number in 0..FILES {
            let upper = mount.upper.join(number.to_string());
            assert_eq!(fs::metadata(&upper).unwrap().len(), number.to_string().len() as u64);
            assert!(held_below(&mount.lower) <= 17, "{}", held_below(&mount.lower));
        }
    }
    for number in 0..FILES {
        let upper = mount.upper.join(number.to_string());
        assert_eq!(fs::read_to_string(upper).unwrap(), number.to_string());
    }
    for (name, held) in &nameless {
        assert_eq!(rustix::fs::fstat(held).unwrap().st_nlink, 0);
        assert_eq!(fs::read_to_string(by_descriptor(held)).unwrap(), *name);
    }
}

#[test]
fn what_was_looked_up_is_reached_after_its_name_leads_elsewhere() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, upper) = mount.both("file");
    fs::write(&lower, b"old").unwrap();
    let held = path_descriptor(&upper);
    fs::write(mount.lower.join("new"), b"the new one").unwrap();
    fs::rename(mount.lower.join("new"), &lower).unwrap();
    assert_eq!(fs::read(by_descriptor(&held)).unwrap(), b"old");
    assert_eq!(rustix::fs::fstat(&held).unwrap().st_size, 3);
    assert_eq!(fs::read(&upper).unwrap(), b"the new one");
    assert_eq!(fs::metadata(&upper).unwrap().len(), 11);
}

#[test]
fn an_open_finds_what_was_put_in_place_before_it_began() {
    const ROUNDS: u64 = 2_000;
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, upper) = mount.both("file");
    fs::write(&lower, b"0").unwrap();
    let (done, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for round in 1..=ROUNDS {
                fs::write(mount.lower.join("next"), round.to_string()).unwrap();
                fs::rename(mount.lower.join("next"), &lower).unwrap();
                done.store(round, Ordering::SeqCst);
            }
            ended.store(true, Ordering::SeqCst);
        });
        while !ended.load(Ordering::SeqCst) {
            let before = done.load(Ordering::SeqCst);
            match fs::read_to_string(&upper) {
                Ok(text) => assert!(text.parse::<u64>().unwrap() >= before, "{text}: {before}"),
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::ESTALE)),
            }
        }
    });
    assert_eq!(fs::read_to_string(&upper).unwrap(), ROUNDS.to_string());
}

#[test]
fn rights_taken_away_after_a_look_up_hold_at_the_next_open() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, upper) = mount.both("directory");
    let mode = |path: &Path, mode| fs::set_permissions(path, Permissions::from_mode(mode));
    fs::create_dir(&lower).unwrap();
    fs::write(lower.join("file"), b"bytes").unwrap();
    chown(lower.join("file"), Some(1), Some(1)).unwrap();
    mode(&lower, 0o755).unwrap();
    mode(&lower.join("file"), 0o644).unwrap();
    let read = || as_user(STRANGER, STRANGER, &[], || errno(File::open(upper.join("file"))));
    let stat = || as_user(STRANGER, STRANGER, &[], || errno(fs::metadata(upper.join("file"))));
    assert_eq!((read(), stat()), (None, None));
    mode(&lower, 0o700).unwrap();
    fs::metadata(upper.join("file")).unwrap();
    assert_eq!((read(), stat()), (Some(libc::EACCES), Some(libc::EACCES)));
    mode(&lower, 0o755).unwrap();
    mode(&lower.join("file"), 0o600).unwrap();
    assert_eq!((read(), stat()), (Some(libc::EACCES), None));
}

#[test]
fn a_name_is_taken_away_whatever_came_to_have_it() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, upper) = mount.both("file");
    fs::write(&lower, b"first").unwrap();
    assert_eq!(fs::metadata(&upper).unwrap().len(), 5);
    fs::rename(&lower, mount.lower.join("kept")).unwrap();
    fs::hard_link(mount.lower.join("kept"), mount.lower.join("linked")).unwrap();
    fs::write(&lower, b"second").unwrap();
    fs::remove_file(&upper).unwrap();
    assert!(!lower.exists());
    assert_eq!(fs::read(mount.upper.join("kept")).unwrap(), b"first");
    fs::remove_file(mount.upper.join("linked")).unwrap();
    assert_eq!(fs::metadata(mount.upper.join("kept")).unwrap().nlink(), 1);
    assert_eq!(fs::read(mount.upper.join("kept")).unwrap(), b"first");
}

#[test]
fn what_was_looked_up_under_a_name_before_is_not_what_goes_with_it() {
    let service = FakeService::memory();
    let Some(mount) = mounted(service.clone()) else { return };
    let (lower, upper) = mount.both("name");
    fs::write(&lower, b"bytes").unwrap();
    let held = path_descriptor(&upper);
    fs::rename(&lower, mount.lower.join("kept")).unwrap();
    rustix::fs::mknodat(rustix::fs::CWD, &lower, rustix::fs::FileType::Fifo, Mode::RUSR, 0)
        .unwrap();
    fs::remove_file(&upper).unwrap();
    assert!(!lower.exists());
    assert_eq!(
        service.carried.load(Ordering::SeqCst),
        0,
        "the file that had the name is none of it"
    );
    assert_eq!(fs::read(by_descriptor(&held)).unwrap(), b"bytes");
}
