//! Other users through the mount: exactly the rights that the PFS gives them, groups included.

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::sync::Arc;

use support::bypass::BypassService;
use support::{STRANGER, as_user, errno, mounted, mounted_with};

const USER: u32 = 4_321;
const GROUP: u32 = 5_432;

fn place(path: &Path, content: &[u8], mode: u32, uid: u32, gid: u32) {
    fs::write(path, content).unwrap();
    chown(path, Some(uid), Some(gid)).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn files_of_others_stay_closed() {
    let Some(mount) = mounted(Arc::new(BypassService)) else { return };
    let (lower, upper) = mount.both("secret");
    place(&lower, b"secret", 0o600, USER, GROUP);
    assert_eq!(fs::read(&upper).unwrap(), b"secret", "root reads it");
    as_user(USER, GROUP, &[], || {
        assert_eq!(fs::read(&upper).unwrap(), b"secret", "its owner reads it");
        fs::write(&upper, b"changed").unwrap();
    });
    as_user(STRANGER, STRANGER, &[], || {
        assert_eq!(errno(fs::read(&upper)), Some(libc::EACCES));
        assert_eq!(errno(fs::write(&upper, b"")), Some(libc::EACCES));
        assert_eq!(errno(fs::write(mount.upper.join("new"), b"")), Some(libc::EACCES));
        assert_eq!(errno(fs::remove_file(&upper)), Some(libc::EACCES));
        let chmod = fs::set_permissions(&upper, Permissions::from_mode(0o777));
        assert_eq!(errno(chmod), Some(libc::EPERM));
        let truncate = rustix::fs::open(
            &upper,
            rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::TRUNC,
            rustix::fs::Mode::empty(),
        );
        assert_eq!(truncate.map(|_| ()), Err(rustix::io::Errno::ACCESS));
    });
    assert_eq!(fs::read(&lower).unwrap(), b"changed");
}

#[test]
fn a_closed_directory_hides_what_another_user_just_opened() {
    let Some(mount) = mounted(Arc::new(BypassService)) else { return };
    let (lower, upper) = mount.both("private");
    fs::create_dir(&lower).unwrap();
    place(&lower.join("file"), b"readable in itself", 0o644, USER, GROUP);
    chown(&lower, Some(USER), Some(GROUP)).unwrap();
    fs::set_permissions(&lower, Permissions::from_mode(0o700)).unwrap();
    as_user(USER, GROUP, &[], || fs::read(upper.join("file")).unwrap());
    as_user(STRANGER, STRANGER, &[], || {
        assert_eq!(errno(fs::read(upper.join("file"))), Some(libc::EACCES));
        assert_eq!(errno(fs::metadata(upper.join("file"))), Some(libc::EACCES));
        assert_eq!(errno(fs::read_dir(&upper)), Some(libc::EACCES));
        assert_eq!(errno(std::env::set_current_dir(&upper)), Some(libc::EACCES));
    });
}

#[test]
fn a_directory_may_be_readable_without_being_searchable() {
    let Some(mount) = mounted(Arc::new(BypassService)) else { return };
    let (lower, upper) = mount.both("listed");
    fs::create_dir(&lower).unwrap();
    fs::write(lower.join("file"), b"").unwrap();
    fs::set_permissions(&lower, Permissions::from_mode(0o744)).unwrap();
    as_user(STRANGER, STRANGER, &[], || {
        assert_eq!(fs::read_dir(&upper).unwrap().count(), 1);
        assert_eq!(errno(fs::metadata(upper.join("file"))), Some(libc::EACCES));
    });
}

#[test]
fn supplementary_groups_open_and_close_doors() {
    let Some(mount) = mounted(Arc::new(BypassService)) else { return };
    let (lower, upper) = mount.both("shared");
    place(&lower, b"for the group", 0o640, USER, GROUP);
    let (lower_denied, upper_denied) = mount.both("denied");
    place(&lower_denied, b"for all but the group", 0o604, USER, GROUP);
    let many: Vec<u32> = (10_000..10_200).chain([GROUP]).collect();
    as_user(STRANGER, STRANGER, &many, || {
        assert_eq!(fs::read(&upper).unwrap(), b"for the group");
        assert_eq!(errno(fs::read(&upper_denied)), Some(libc::EACCES), "its group is shut out");
    });
    as_user(STRANGER, STRANGER, &[], || {
        assert_eq!(errno(fs::read(&upper)), Some(libc::EACCES));
        assert_eq!(fs::read(&upper_denied).unwrap(), b"for all but the group");
    });
}

#[test]
fn what_users_create_belongs_to_them() {
    let Some(mount) = mounted(Arc::new(BypassService)) else { return };
    fs::set_permissions(&mount.lower, Permissions::from_mode(0o1777)).unwrap();
    let (lower, upper) = mount.both("theirs");
    as_user(USER, GROUP, &[], || {
        fs::create_dir(&upper).unwrap();
        fs::write(upper.join("file"), b"x").unwrap();
    });
    for path in [lower.clone(), lower.join("file")] {
        let metadata = fs::metadata(path).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (USER, GROUP));
    }
    let refused =
        as_user(STRANGER, STRANGER, &[], || fs::rename(&upper, mount.upper.join("stolen")));
    assert_eq!(errno(refused), Some(libc::EPERM), "the sticky bit");
    // A directory that hands its group down, and a mask that the process chose.
    fs::set_permissions(&lower, Permissions::from_mode(0o2777)).unwrap();
    chown(&lower, Some(0), Some(GROUP + 1)).unwrap();
    fs::set_permissions(&lower, Permissions::from_mode(0o2777)).unwrap();
    let status = std::process::Command::new("sh")
        .args(["-c", "umask 027; echo x > handed; mkdir down"])
        .current_dir(&upper)
        .status()
        .unwrap();
    assert!(status.success());
    let (file, directory) =
        (fs::metadata(lower.join("handed")).unwrap(), fs::metadata(lower.join("down")).unwrap());
    assert_eq!((file.gid(), file.mode() & 0o7777), (GROUP + 1, 0o640));
    assert_eq!((directory.gid(), directory.mode() & 0o7777), (GROUP + 1, 0o2750));
}

#[test]
fn set_id_bits_go_when_a_user_writes() {
    let Some(mount) = mounted(Arc::new(BypassService)) else { return };
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    let changes: [fn(&Path); 3] = [
        |path| {
            let file = fs::File::options().write(true).open(path).unwrap();
            std::io::Write::write_all(&mut &file, b"x").unwrap();
        },
        |path| fs::write(path, b"truncated").unwrap(),
        |path| fs::File::options().write(true).open(path).unwrap().set_len(1).unwrap(),
    ];
    for (index, change) in changes.into_iter().enumerate() {
        let (lower, upper) = mount.both(format!("program{index}"));
        place(&lower, b"program", 0o6777, USER, GROUP);
        as_user(STRANGER, STRANGER, &[], || change(&upper));
        assert_eq!(mode(&lower), 0o777, "after change {index}");
        fs::set_permissions(&lower, Permissions::from_mode(0o6777)).unwrap();
        change(&upper);
        assert_eq!(mode(&lower), 0o6777, "root keeps them");
    }
}

#[test]
fn threads_started_for_one_user_serve_others_with_the_right_identity() {
    let one = |config: &mut tidepool_fuse::MountConfig| config.threads = 1;
    for _ in 0..5 {
        let Some(mount) = mounted_with(Arc::new(BypassService), one) else { return };
        let (lower, upper) = mount.both("roots");
        place(&lower, b"root's", 0o600, 0, 0);
        let (lower_user, upper_user) = mount.both("users");
        place(&lower_user, b"user's", 0o600, USER, GROUP);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    as_user(USER, GROUP, &[], || {
                        for _ in 0..100 {
                            assert_eq!(fs::read(&upper_user).unwrap(), b"user's");
                            assert_eq!(errno(fs::read(&upper)), Some(libc::EACCES));
                        }
                    });
                });
                scope.spawn(|| {
                    for _ in 0..100 {
                        assert_eq!(fs::read(&upper).unwrap(), b"root's");
                    }
                });
            }
        });
    }
}
