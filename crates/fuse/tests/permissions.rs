//! Other users through the mount: exactly the rights that the PFS gives them, groups included.

mod support;

use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

use support::{STRANGER, as_user, errno, mounted, mounted_with};
use tidepool_fake_node::{FakeNode, FakeService, Keeps};

const USER: u32 = 4_321;
const GROUP: u32 = 5_432;

fn place(path: &Path, content: &[u8], mode: u32, uid: u32, gid: u32) {
    fs::write(path, content).unwrap();
    chown(path, Some(uid), Some(gid)).unwrap();
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

#[test]
fn files_of_others_stay_closed() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
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
    let Some(mount) = mounted(FakeService::bypass()) else { return };
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
    let Some(mount) = mounted(FakeService::bypass()) else { return };
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
    let Some(mount) = mounted(FakeService::bypass()) else { return };
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
    let Some(mount) = mounted(FakeService::bypass()) else { return };
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

/// Who writes what a user writes: the user, or the node, which may keep the bits.
fn writers() -> [Arc<FakeService>; 2] {
    let writer =
        |writes_as_node| FakeNode { keeps: Keeps::Nothing, writes_as_node, ..FakeNode::default() };
    [false, true].map(|as_node| FakeService::of(writer(as_node)))
}

#[test]
fn set_id_bits_go_when_a_user_writes() {
    for service in writers() {
        let Some(mount) = mounted(service) else { return };
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
}

#[test]
fn the_set_group_bit_goes_also_where_the_group_may_not_run_the_file() {
    for service in writers() {
        let Some(mount) = mounted(service) else { return };
        let (lower, upper) = mount.both("file");
        let mode = || fs::metadata(&lower).unwrap().mode() & 0o7777;
        let write = |gid, groups: &[u32]| {
            place(&lower, b"bytes", 0o2766, USER, GROUP);
            let open = || fs::File::options().write(true).open(&upper).unwrap();
            let file = as_user(STRANGER, gid, groups, open);
            as_user(STRANGER, gid, groups, || (&file).write_all(b"changed").unwrap());
            mode()
        };
        assert_eq!(write(STRANGER, &[]), 0o766, "not of the group");
        assert_eq!(write(GROUP, &[]), 0o2766, "of the group");
        assert_eq!(write(STRANGER, &[GROUP]), 0o2766, "of the group");
    }
}

#[test]
fn set_id_bits_given_on_the_pfs_meanwhile_go_at_the_next_write() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, upper) = mount.both("file");
    place(&lower, b"program", 0o777, USER, GROUP);
    let open =
        as_user(STRANGER, STRANGER, &[], || fs::File::options().write(true).open(&upper).unwrap());
    for _ in 0..3 {
        as_user(STRANGER, STRANGER, &[], || (&open).write_all(b"x").unwrap());
        assert_eq!(fs::metadata(&lower).unwrap().mode() & 0o7777, 0o777);
        fs::set_permissions(&lower, Permissions::from_mode(0o6777)).unwrap();
    }
}

#[test]
fn threads_started_for_one_user_serve_others_with_the_right_identity() {
    let one = |config: &mut tidepool_fuse::MountConfig| config.threads = 1;
    for _ in 0..5 {
        let Some(mount) = mounted_with(FakeService::bypass(), one) else { return };
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

fn make_fifo(path: &Path, mode: u32) {
    let mode = rustix::fs::Mode::from_raw_mode(mode);
    rustix::fs::mknodat(rustix::fs::CWD, path, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    chown(path, Some(USER), Some(GROUP)).unwrap();
}

/// Opens both ends of a FIFO, so that neither open waits for the other.
fn both_ends(path: &Path) -> std::io::Result<fs::File> {
    let flags = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    fs::File::options().read(true).write(true).custom_flags(flags).open(path)
}

#[test]
fn what_passes_through_a_fifo_stays_among_those_who_may_use_it() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, upper) = mount.both("fifo");
    // The stranger may read the second one, but not write to it.
    for mode in [0o600, 0o644] {
        make_fifo(&lower, mode);
        let as_owner = |work: &(dyn Fn() -> fs::File + Sync)| as_user(USER, GROUP, &[], work);
        let mut first = as_owner(&|| both_ends(&upper).unwrap());
        let stranger = as_user(STRANGER, STRANGER, &[], || both_ends(&upper));
        let mut second = as_owner(&|| both_ends(&upper).unwrap());
        let mut buffer = [0; 16];
        first.write_all(b"secret").unwrap();
        if let Ok(mut stranger) = stranger {
            assert_eq!(errno(stranger.read(&mut buffer)), Some(libc::EAGAIN), "{mode:o}");
            stranger.write_all(b"forged").unwrap();
        }
        assert_eq!(second.read(&mut buffer).unwrap(), 6, "{mode:o}");
        assert_eq!(&buffer[..6], b"secret");
        let facts = as_user(STRANGER, STRANGER, &[], || fs::metadata(&upper).unwrap());
        assert_eq!(facts.ino(), fs::metadata(&lower).unwrap().ino(), "it is seen by all");
        assert!(facts.file_type().is_fifo());
        fs::remove_file(&upper).unwrap();
        assert!(!lower.exists());
    }
}

#[test]
fn a_socket_is_reached_by_those_who_may_write_to_it() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (_, upper) = mount.both("socket");
    let _listener = UnixListener::bind(&upper).unwrap();
    chown(&upper, Some(USER), Some(GROUP)).unwrap();
    let connect = |uid| as_user(uid, uid, &[], || UnixStream::connect(&upper).map(drop));
    for (mode, may) in [(0o600, false), (0o602, true), (0o644, false), (0o666, true)] {
        fs::set_permissions(&upper, Permissions::from_mode(mode)).unwrap();
        connect(USER).unwrap();
        assert_eq!(connect(STRANGER).is_ok(), may, "{mode:o}");
        assert!(fs::metadata(&upper).unwrap().file_type().is_socket());
    }
}

#[test]
fn a_program_is_run_by_those_who_may() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, upper) = mount.both("program");
    fs::copy("/bin/true", &lower).unwrap();
    chown(&lower, Some(USER), Some(GROUP)).unwrap();
    let run = |uid| as_user(uid, uid, &[], || Command::new(&upper).status());
    for (mode, may) in
        [(0o744, false), (0o755, true), (0o700, false), (0o754, false), (0o711, true)]
    {
        fs::set_permissions(&lower, Permissions::from_mode(mode)).unwrap();
        assert!(run(USER).unwrap().success(), "{mode:o}");
        assert_eq!(run(STRANGER).is_ok(), may, "{mode:o}");
    }
}

/// Takes every capability from this thread.
fn give_up_capabilities() {
    let header = [0x2008_0522_u32, 0];
    let sets = [0_u32; 6];
    // SAFETY: both point to live values of the layout of version 3; the call concerns this thread.
    let outcome = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), sets.as_ptr()) };
    assert_eq!(outcome, 0);
}

#[test]
fn root_without_capabilities_is_no_root() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, upper) = mount.both("secret");
    place(&lower, b"secret", 0o600, USER, GROUP);
    place(&mount.lower.join("own"), b"own", 0o600, 0, 0);
    place(&mount.lower.join("shut"), b"shut", 0o604, USER, GROUP);
    let work_without = || {
        as_user(0, 0, &[GROUP], || {
            give_up_capabilities();
            for path in [&upper, &mount.upper.join("shut")] {
                assert_eq!(errno(fs::read(path)), Some(libc::EACCES), "{}", path.display());
                let append = fs::File::options().append(true).open(path);
                assert_eq!(errno(append), Some(libc::EACCES));
            }
            assert_eq!(errno(chown(&upper, Some(0), Some(0))), Some(libc::EPERM));
            assert_eq!(fs::read(mount.upper.join("own")).unwrap(), b"own");
        });
    };
    std::thread::scope(|scope| {
        // Many at once, so that threads of the mount start others while they act for them.
        let without: Vec<_> = (0..12).map(|_| scope.spawn(work_without)).collect();
        // Beside them, on the same threads of the mount, root is root.
        while without.iter().any(|thread| !thread.is_finished()) {
            assert_eq!(fs::read(&upper).unwrap(), b"secret");
        }
        without.into_iter().for_each(|thread| thread.join().unwrap());
    });
    std::thread::scope(|scope| {
        for _ in 0..12 {
            scope.spawn(|| (0..20).for_each(|_| assert_eq!(fs::read(&upper).unwrap(), b"secret")));
        }
    });
}

#[test]
fn root_of_another_user_name_space_is_no_root() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, upper) = mount.both("secret");
    place(&lower, b"secret", 0o600, USER, GROUP);
    let read = |wrapper: &[&str]| {
        Command::new(wrapper[0]).args(&wrapper[1..]).arg("cat").arg(&upper).output().unwrap()
    };
    if !Command::new("unshare").args(["-Ur", "true"]).status().is_ok_and(|status| status.success())
    {
        println!("SKIPPED: no user name spaces");
        return;
    }
    assert_eq!(read(&["env"]).stdout, b"secret");
    let output = read(&["unshare", "-Ur"]);
    assert!(!output.status.success() && output.stdout.is_empty(), "{output:?}");
}
