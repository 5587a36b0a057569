//! Names and metadata through the mount: what happens on one side shows on the other, at once.

mod support;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{CWD, RenameFlags, XattrFlags};
use support::{STRANGER, as_user, errno, mounted, mounted_with};
use tidepool_fake_node::FakeService;

#[test]
fn names_may_be_any_bytes_up_to_255() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let longest = vec![b'n'; 255];
    let strange: &[&[u8]] = &[b"\xff\xfe\x80", b"new\nline", b" ", b"-rf", &longest];
    for name in strange {
        let name = OsStr::from_bytes(name);
        let (lower, upper) = mount.both(name);
        fs::write(&upper, name.as_bytes()).unwrap();
        assert_eq!(fs::read(&lower).unwrap(), name.as_bytes());
        let listed = fs::read_dir(&mount.upper).unwrap().map(|entry| entry.unwrap().file_name());
        assert_eq!(listed.collect::<Vec<_>>(), [name]);
        fs::remove_file(&upper).unwrap();
        assert!(!lower.exists());
    }
    let too_long = mount.upper.join(OsStr::from_bytes(&vec![b'n'; 256]));
    assert_eq!(errno(fs::write(too_long, b"")), Some(libc::ENAMETOOLONG));
}

#[test]
fn changes_on_the_pfs_are_seen_at_once() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, upper) = mount.both("file");
    assert!(!upper.exists(), "the kernel now knows that there is no such name");
    fs::write(&lower, b"one").unwrap();
    assert_eq!(fs::metadata(&upper).unwrap().len(), 3);
    fs::write(&lower, b"longer").unwrap();
    assert_eq!(fs::metadata(&upper).unwrap().len(), 6);
    let open = fs::File::open(&upper).unwrap();
    fs::write(&lower, b"longest yet").unwrap();
    assert_eq!(open.metadata().unwrap().len(), 11);
    let replacement = mount.lower.join("replacement");
    fs::write(&replacement, b"other").unwrap();
    fs::rename(&replacement, &lower).unwrap();
    assert_eq!(fs::read(&upper).unwrap(), b"other");
    assert_eq!(open.metadata().unwrap().len(), 11, "an open file stays what it was");
    fs::remove_file(&lower).unwrap();
    assert_eq!(errno(fs::metadata(&upper)), Some(libc::ENOENT));
    fs::create_dir(&lower).unwrap();
    assert!(fs::metadata(&upper).unwrap().is_dir());
}

#[test]
fn attributes_are_those_of_the_pfs() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, upper) = mount.both("file");
    fs::write(&upper, vec![7; 10_000]).unwrap();
    fs::set_permissions(&upper, fs::Permissions::from_mode(0o4751)).unwrap();
    std::os::unix::fs::chown(&upper, Some(12), Some(34)).unwrap();
    let (below, above) = (fs::metadata(&lower).unwrap(), fs::metadata(&upper).unwrap());
    assert_eq!(below.ino(), above.ino());
    assert_eq!(below.mode(), above.mode());
    assert_eq!((below.uid(), below.gid()), (above.uid(), above.gid()));
    assert_eq!((below.size(), below.blocks()), (above.size(), above.blocks()));
    assert_eq!((below.mtime(), below.mtime_nsec()), (above.mtime(), above.mtime_nsec()));
    assert_eq!((below.ctime(), below.ctime_nsec()), (above.ctime(), above.ctime_nsec()));
    assert_eq!(below.nlink(), above.nlink());
}

#[test]
fn renames_know_their_flags() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (a, b) = (mount.upper.join("a"), mount.upper.join("b"));
    fs::write(&a, b"a").unwrap();
    fs::write(&b, b"b").unwrap();
    let refused = rustix::fs::renameat_with(CWD, &a, CWD, &b, RenameFlags::NOREPLACE);
    assert_eq!(refused, Err(rustix::io::Errno::EXIST));
    rustix::fs::renameat_with(CWD, &a, CWD, &b, RenameFlags::EXCHANGE).unwrap();
    assert_eq!((fs::read(&a).unwrap(), fs::read(&b).unwrap()), (b"b".into(), b"a".into()));
    fs::rename(&a, &b).unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"b");
    assert!(!a.exists());
    fs::create_dir_all(mount.upper.join("d/e")).unwrap();
    fs::rename(&b, mount.upper.join("d/e/f")).unwrap();
    fs::rename(mount.upper.join("d"), mount.upper.join("g")).unwrap();
    assert_eq!(fs::read(mount.lower.join("g/e/f")).unwrap(), b"b");
    assert_eq!(fs::read(mount.upper.join("g/e/f")).unwrap(), b"b");
}

#[test]
fn links_of_both_kinds_work() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (file, hard, soft) =
        (mount.upper.join("file"), mount.upper.join("hard"), mount.upper.join("soft"));
    fs::write(&file, b"x").unwrap();
    fs::hard_link(&file, &hard).unwrap();
    assert_eq!(fs::metadata(&hard).unwrap().nlink(), 2);
    assert_eq!(fs::metadata(&hard).unwrap().ino(), fs::metadata(&file).unwrap().ino());
    symlink("file", &soft).unwrap();
    assert_eq!(fs::read_link(&soft).unwrap(), OsStr::new("file"));
    assert_eq!(fs::read(&soft).unwrap(), b"x");
    fs::remove_file(&file).unwrap();
    assert_eq!(fs::metadata(&hard).unwrap().nlink(), 1);
    assert_eq!(errno(fs::read(&soft)), Some(libc::ENOENT));
}

#[test]
fn a_removed_file_lives_on_while_it_is_open() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let upper = mount.upper.join("file");
    fs::write(&upper, b"still here").unwrap();
    let open = fs::File::open(&upper).unwrap();
    let by_path = rustix::fs::open(
        &upper,
        rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC,
        rustix::fs::Mode::empty(),
    )
    .unwrap();
    fs::remove_file(&upper).unwrap();
    assert_eq!(open.metadata().unwrap().nlink(), 0);
    assert_eq!(std::io::read_to_string(&open).unwrap(), "still here");
    drop(open);
    assert_eq!(rustix::fs::fstat(&by_path).unwrap().st_size, 10, "kept by the path descriptor");
}

#[test]
fn extended_attributes_pass_and_ours_are_hidden() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    let (lower, upper) = mount.both("file");
    fs::write(&upper, b"").unwrap();
    let set = |name: &str| rustix::fs::setxattr(&upper, name, b"value", XattrFlags::empty());
    set("user.mine").unwrap();
    assert_eq!(set("user.tidepool.stub"), Err(rustix::io::Errno::PERM));
    rustix::fs::setxattr(&lower, "user.tidepool.stub", b"secret", XattrFlags::empty()).unwrap();
    let mut buffer = [0u8; 256];
    let length = rustix::fs::getxattr(&upper, "user.mine", &mut buffer[..]).unwrap();
    assert_eq!(&buffer[..length], b"value");
    // Programs that copy attributes ask for the size first.
    let size = |name: &str| rustix::fs::getxattr_query(&upper, name);
    assert_eq!(size("user.mine"), Ok(b"value".len()));
    assert_eq!(size("user.other"), Err(rustix::io::Errno::NODATA));
    assert_eq!(size("user.tidepool.stub"), Err(rustix::io::Errno::NODATA));
    let small = rustix::fs::getxattr(&upper, "user.mine", &mut buffer[..2]);
    assert_eq!(small, Err(rustix::io::Errno::RANGE));
    let hidden = rustix::fs::getxattr(&upper, "user.tidepool.stub", &mut buffer[..]);
    assert_eq!(hidden, Err(rustix::io::Errno::NODATA));
    let length = rustix::fs::listxattr(&upper, &mut buffer[..]).unwrap();
    assert_eq!(&buffer[..length], b"user.mine\0");
    let hidden = rustix::fs::removexattr(&upper, "user.tidepool.stub");
    assert_eq!(hidden, Err(rustix::io::Errno::NODATA));
    rustix::fs::removexattr(&upper, "user.mine").unwrap();
    assert_eq!(rustix::fs::listxattr(&upper, &mut buffer[..]), Ok(0));
}

#[test]
fn big_directories_list_every_name_once() {
    const FILES: usize = 5_000;
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    for index in 0..FILES {
        fs::write(mount.lower.join(format!("some-longer-name-{index:05}")), b"").unwrap();
    }
    let list = |path| {
        let mut names: Vec<_> =
            fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        names.sort();
        names
    };
    let names = list(&mount.upper);
    assert_eq!(names.len(), FILES);
    assert_eq!(names, list(&mount.lower));
}

#[test]
fn more_inodes_than_descriptors_are_fine() {
    const DIRECTORIES: usize = 200;
    let few = |config: &mut tidepool_fuse::MountConfig| config.inode_descriptors_max = Some(16);
    let Some(mount) = mounted_with(FakeService::bypass(), few) else { return };
    let name = |index: usize| mount.upper.join(format!("d{index}/e"));
    for index in 0..DIRECTORIES {
        fs::create_dir_all(name(index)).unwrap();
        fs::write(name(index).join("f"), index.to_string()).unwrap();
    }
    // Working directories keep nodes alive while their descriptors go.
    let held: Vec<_> = (0..DIRECTORIES).map(|i| support::open_directory(&name(i))).collect();
    for (index, directory) in held.iter().enumerate() {
        let flags = rustix::fs::OFlags::RDONLY | rustix::fs::OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, "f", flags, rustix::fs::Mode::empty());
        let read = std::io::read_to_string(fs::File::from(file.unwrap())).unwrap();
        assert_eq!(read, index.to_string());
    }
    let descriptors = fs::read_dir("/proc/self/fd").unwrap();
    let inodes = descriptors
        .filter_map(|entry| fs::read_link(entry.ok()?.path()).ok())
        .filter(|target| target.starts_with(&mount.lower))
        .count();
    assert!(inodes <= 20, "{inodes} descriptors below the PFS directory");
}

#[test]
fn metadata_changes_are_reported_to_the_node() {
    let service = FakeService::memory();
    let Some(mount) = mounted(service.clone()) else { return };
    let (a, b) = (mount.upper.join("a"), mount.upper.join("b"));
    fs::write(&a, b"bytes").unwrap();
    fs::read(&a).unwrap();
    let loads = service.fills.load(Ordering::SeqCst);
    fs::rename(&a, &b).unwrap();
    fs::set_permissions(&b, fs::Permissions::from_mode(0o600)).unwrap();
    fs::hard_link(&b, &a).unwrap();
    fs::remove_file(&b).unwrap();
    std::os::unix::fs::chown(&a, Some(1), Some(1)).unwrap();
    rustix::fs::setxattr(&a, "user.mine", b"value", XattrFlags::empty()).unwrap();
    assert_eq!(fs::read(&a).unwrap(), b"bytes");
    assert_eq!(
        service.fills.load(Ordering::SeqCst),
        loads,
        "what was cached of the file still serves it"
    );
    assert!(service.carried.load(Ordering::SeqCst) >= 6);
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let read_only = |config: &mut tidepool_fuse::MountConfig| config.read_only = true;
    let Some(mount) = mounted_with(FakeService::bypass(), read_only) else { return };
    let (lower, upper) = mount.both("file");
    fs::write(&lower, b"x").unwrap();
    assert_eq!(fs::read(&upper).unwrap(), b"x");
    assert_eq!(errno(fs::write(&upper, b"y")), Some(libc::EROFS));
    assert_eq!(errno(fs::remove_file(&upper)), Some(libc::EROFS));
}

/// Opens a file without a name.
fn open_nameless(directory: &std::path::Path, flags: i32) -> std::io::Result<fs::File> {
    use std::os::unix::fs::OpenOptionsExt;
    let mut options = fs::OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_TMPFILE | flags).mode(0o666);
    options.open(directory)
}

/// Whether the kernel passes them on and the PFS has them; says why not.
fn has_nameless(mount: &support::Mounted) -> bool {
    let version = support::kernel_version();
    let possible = version >= (6, 2) && open_nameless(&mount.lower, 0).is_ok();
    if !possible {
        println!("SKIPPED: Linux {version:?} or this file system has no files without a name here");
    }
    possible
}

fn name_it(file: &fs::File, path: &std::path::Path) -> std::io::Result<()> {
    use std::os::fd::AsRawFd;
    let number = format!("/proc/self/fd/{}", file.as_raw_fd());
    Ok(rustix::fs::linkat(CWD, number, CWD, path, rustix::fs::AtFlags::SYMLINK_FOLLOW)?)
}

fn a_file_without_a_name_gets_one(service: Arc<dyn tidepool_proto::FileService>) {
    let Some(mount) = mounted_with(service, |config| config.inode_descriptors_max = Some(16))
    else {
        return;
    };
    if !has_nameless(&mount) {
        return;
    }
    let directory = mount.upper.join("directory");
    fs::create_dir(&directory).unwrap();
    std::os::unix::fs::chown(&directory, Some(STRANGER), Some(STRANGER)).unwrap();
    let (lower, upper) = mount.both("directory/named");
    let file = as_user(STRANGER, STRANGER, &[], || open_nameless(&directory, 0).unwrap());
    assert_eq!((file.metadata().unwrap().nlink(), file.metadata().unwrap().uid()), (0, STRANGER));
    file.write_all_at(b"first ", 0).unwrap();
    // Nodes beside it press on the descriptors that are kept.
    for number in 0..64 {
        let path = mount.upper.join(number.to_string());
        fs::write(&path, b"x").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    assert_eq!(fs::read_dir(mount.lower.join("directory")).unwrap().count(), 0);
    as_user(STRANGER, STRANGER, &[], || name_it(&file, &upper).unwrap());
    file.write_all_at(b"second", 6).unwrap();
    file.sync_all().unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    drop(file);
    assert_eq!(fs::read(&upper).unwrap(), b"first second");
    assert_eq!(fs::read(&lower).unwrap(), b"first second");
    assert_eq!(fs::metadata(&lower).unwrap().uid(), STRANGER);
}

#[test]
fn a_file_without_a_name_gets_one_by_a_link() {
    a_file_without_a_name_gets_one(FakeService::bypass());
    a_file_without_a_name_gets_one(FakeService::memory());
}

#[test]
fn a_file_without_a_name_is_refused_as_on_the_pfs() {
    let Some(mount) = mounted(FakeService::bypass()) else { return };
    if !has_nameless(&mount) {
        return;
    }
    let file = open_nameless(&mount.upper, libc::O_EXCL).unwrap();
    assert_eq!(errno(name_it(&file, &mount.upper.join("named"))), Some(libc::ENOENT));
    let closed = mount.upper.join("closed");
    fs::create_dir(&closed).unwrap();
    fs::set_permissions(&closed, fs::Permissions::from_mode(0o755)).unwrap();
    let refused = as_user(STRANGER, STRANGER, &[], || {
        let flags = rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR;
        rustix::fs::open(&closed, flags, rustix::fs::Mode::RUSR).err()
    });
    assert_eq!(refused, Some(rustix::io::Errno::ACCESS));
}
