//! Passthrough: the kernel reads resident files by itself, and nobody is ever shown old bytes for
//! it.

mod support;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::mm::{MapFlags, ProtFlags};
use support::{Mounted, STRANGER, as_user, errno, mounted, mounted_with};
use tidepool_fake_node::FakeService;
use tidepool_fuse::MountConfig;

const LENGTH: usize = 16 << 10;

/// A mount where passthrough works; `None` (with a printed line) elsewhere.
fn passing(service: &Arc<FakeService>) -> Option<Mounted> {
    let mount = mounted(service.clone())?;
    if mount.mount().has_passthrough() {
        return Some(mount);
    }
    println!("SKIPPED: {}", mount.mount().notes().join("; "));
    None
}

fn byte(file: &File, offset: u64) -> u8 {
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    byte[0]
}

/// Maps the file shared, for reading, and returns the byte at `offset`.
fn mapped_byte(file: &File, offset: usize) -> u8 {
    // SAFETY: a new mapping at an address of the kernel's choice, read inside of its length and
    // unmapped before anything else can see it.
    unsafe {
        let flags = MapFlags::SHARED;
        let address =
            rustix::mm::mmap(std::ptr::null_mut(), LENGTH, ProtFlags::READ, flags, file, 0)
                .expect("the file maps");
        let byte = address.cast::<u8>().add(offset).read_volatile();
        rustix::mm::munmap(address, LENGTH).unwrap();
        byte
    }
}

#[test]
fn readers_share_one_backing_and_map_it() {
    let service = FakeService::memory();
    let Some(mount) = passing(&service) else { return };
    let (lower, upper) = mount.both("file");
    fs::write(&lower, vec![1; LENGTH]).unwrap();
    let readers: Vec<File> = (0..4).map(|_| File::open(&upper).unwrap()).collect();
    assert_eq!(service.pins.load(Ordering::SeqCst), 1, "one pin serves all opens of the file");
    for reader in &readers {
        assert_eq!(byte(reader, 77), 1);
        assert_eq!(mapped_byte(reader, 78), 1);
        assert_eq!(reader.metadata().unwrap().len(), LENGTH as u64);
    }
    drop(readers);
    drop(File::open(&upper).unwrap());
}

#[test]
fn a_reader_sees_what_a_writer_writes_and_the_writer_may_map() {
    let service = FakeService::memory();
    let Some(mount) = passing(&service) else { return };
    let (lower, upper) = mount.both("file");
    fs::write(&lower, vec![1; LENGTH]).unwrap();
    let reader = File::open(&upper).unwrap();
    assert_eq!((byte(&reader, 100), service.pins.load(Ordering::SeqCst)), (1, 1));
    let writer = OpenOptions::new().read(true).write(true).open(&upper).unwrap();
    writer.write_all_at(&[2], 100).unwrap();
    assert_eq!(byte(&reader, 100), 2, "by passthrough");
    assert_eq!(mapped_byte(&reader, 100), 2, "in a mapping of the segment");
    assert_eq!(byte(&writer, 100), 2);
    assert_eq!(mapped_byte(&writer, 100), 2, "in a mapping through the page cache");
    assert_eq!(fs::read(&lower).unwrap()[100], 2, "on the PFS");
    let late = File::open(&upper).unwrap();
    writer.write_all_at(&[3], 100).unwrap();
    assert_eq!((byte(&late, 100), byte(&reader, 100)), (3, 3));
    drop((writer, late));
    // The kernel tells of closes a little later, and the new node is for writers at first.
    while service.pins.load(Ordering::SeqCst) < 2 {
        assert_eq!(byte(&File::open(&upper).unwrap(), 100), 3);
    }
    assert_eq!(byte(&reader, 100), 3);
}

#[test]
fn every_way_to_write_gets_past_a_reader() {
    let service = FakeService::memory();
    let Some(mount) = passing(&service) else { return };
    let (lower, upper) = mount.both("file");
    fs::write(&lower, vec![1; LENGTH]).unwrap();
    let reader = File::open(&upper).unwrap();
    let mut appender = OpenOptions::new().append(true).open(&upper).unwrap();
    std::io::Write::write_all(&mut appender, b"tail").unwrap();
    assert_eq!(fs::metadata(&lower).unwrap().len(), LENGTH as u64 + 4);
    rustix::fs::open(
        &upper,
        rustix::fs::OFlags::WRONLY | rustix::fs::OFlags::TRUNC,
        rustix::fs::Mode::empty(),
    )
    .unwrap();
    assert_eq!(reader.metadata().unwrap().len(), 0);
    fs::write(&upper, b"new").unwrap();
    let mut seen = [0; 3];
    reader.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(&seen, b"new");
    // By path, without any open of the caller's own.
    let path = std::ffi::CString::new(upper.to_str().unwrap()).unwrap();
    // SAFETY: the path is a live, terminated string.
    assert_eq!(unsafe { libc::truncate(path.as_ptr(), 1) }, 0);
    assert_eq!(fs::read(&lower).unwrap(), b"n");
    assert_eq!(fs::read(&upper).unwrap(), b"n");
}

#[test]
fn a_change_on_the_pfs_is_seen_by_the_next_open_beside_an_old_reader() {
    let service = FakeService::memory();
    let Some(mount) = passing(&service) else { return };
    let (lower, upper) = mount.both("file");
    for value in 1..6u8 {
        fs::write(&lower, vec![value; LENGTH]).unwrap();
        let reader = File::open(&upper).unwrap();
        assert_eq!((byte(&reader, 9), mapped_byte(&reader, 9)), (value, value));
        File::options().write(true).open(&lower).unwrap().write_all_at(&[100 + value], 9).unwrap();
        let fresh = File::open(&upper).unwrap();
        assert_eq!((byte(&fresh, 9), mapped_byte(&fresh, 9)), (100 + value, 100 + value));
        assert_eq!(byte(&reader, 9), value, "one open never mixes versions");
        assert_eq!(fs::read(&upper).unwrap()[9], 100 + value);
    }
}

#[test]
fn an_open_that_may_be_mapped_keeps_passthrough_away() {
    let service = FakeService::memory();
    let Some(mount) = passing(&service) else { return };
    let upper = mount.upper.join("file");
    fs::write(&upper, vec![1; LENGTH]).unwrap();
    let writer = OpenOptions::new().read(true).write(true).open(&upper).unwrap();
    assert_eq!(mapped_byte(&writer, 0), 1);
    let pins = service.pins.load(Ordering::SeqCst);
    let reader = File::open(&upper).unwrap();
    assert_eq!((byte(&reader, 0), service.pins.load(Ordering::SeqCst)), (1, pins));
}

#[test]
fn names_and_metadata_work_on_a_file_that_is_read() {
    let service = FakeService::memory();
    let Some(mount) = passing(&service) else { return };
    let (lower, upper) = mount.both("file");
    fs::write(&lower, vec![1; LENGTH]).unwrap();
    let reader = File::open(&upper).unwrap();
    fs::set_permissions(&upper, fs::Permissions::from_mode(0o640)).unwrap();
    let second = File::open(&upper).unwrap();
    assert_eq!(
        (byte(&second, 1), service.fills.load(Ordering::SeqCst)),
        (1, 1),
        "chmod keeps the segment in service"
    );
    let moved = mount.upper.join("moved");
    fs::rename(&upper, &moved).unwrap();
    let writer = OpenOptions::new().write(true).open(&moved).unwrap();
    writer.write_all_at(&[8], 1).unwrap();
    assert_eq!((byte(&reader, 1), byte(&second, 1)), (8, 8));
    fs::remove_file(&moved).unwrap();
    assert_eq!(byte(&reader, 1), 8);
    assert_eq!(reader.metadata().unwrap().len(), LENGTH as u64);
}

#[test]
fn readers_and_writers_at_once_never_fail() {
    let service = FakeService::memory();
    let Some(mount) = passing(&service) else { return };
    let upper = mount.upper.join("file");
    fs::write(&upper, vec![0; LENGTH]).unwrap();
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..2_000 {
                    let reader = File::open(&upper).unwrap();
                    let mut piece = [0; 512];
                    reader.read_exact_at(&mut piece, 0).unwrap();
                }
            });
        }
        for writer in 1..=3u8 {
            let upper = &upper;
            scope.spawn(move || {
                for _ in 0..500 {
                    let file = OpenOptions::new().write(true).open(upper).unwrap();
                    file.write_all_at(&[writer; 512], 512 * u64::from(writer)).unwrap();
                }
            });
        }
    });
    let bytes = fs::read(&upper).unwrap();
    for writer in 1..=3u8 {
        assert_eq!(bytes[512 * usize::from(writer)..][..512], [writer; 512]);
    }
}

/// Uses a file by several threads, which are told their number, while another replaces it by this
/// name.
fn use_while_replaced(used: impl Fn(usize) + Sync, replaced: &Path) {
    let done = AtomicBool::new(false);
    let (used, done) = (&used, &done);
    std::thread::scope(|scope| {
        let threads = 0..4;
        let users: Vec<_> =
            threads.map(|user| scope.spawn(move || (0..2_000).for_each(|_| used(user)))).collect();
        scope.spawn(move || {
            let other = replaced.with_file_name("other");
            let mut value = 0_u8;
            while !done.load(Ordering::Relaxed) {
                value = value.wrapping_add(1);
                fs::write(&other, vec![value; LENGTH]).unwrap();
                fs::rename(&other, replaced).unwrap();
            }
        });
        let ends: Vec<_> = users.into_iter().map(|user| user.join()).collect();
        done.store(true, Ordering::Relaxed);
        assert!(ends.iter().all(Result::is_ok), "a user panicked");
    });
}

#[test]
fn opens_of_a_file_that_is_replaced_through_the_mount_never_fail() {
    let Some(mount) = mounted(FakeService::memory()) else { return };
    let upper = mount.upper.join("file");
    fs::write(&upper, vec![0; LENGTH]).unwrap();
    let open = |user| {
        let file = OpenOptions::new().read(true).write(user == 0).open(&upper).unwrap();
        byte(&file, 9);
    };
    use_while_replaced(open, &upper);
}

#[test]
fn opens_of_a_file_that_is_replaced_on_the_pfs_never_fail() {
    // Without passthrough no open asks for another node, which would hide what this is about.
    for passthrough in [true, false] {
        let adjust = |config: &mut MountConfig| config.passthrough = passthrough;
        let service = FakeService::memory();
        let Some(mount) = mounted_with(service, adjust) else { return };
        let (lower, upper) = mount.both("file");
        fs::write(&lower, vec![0; LENGTH]).unwrap();
        let open = |_| {
            byte(&File::open(&upper).unwrap(), 9);
        };
        use_while_replaced(open, &lower);
        assert_eq!(fs::read(&upper).unwrap(), fs::read(&lower).unwrap());
    }
}

#[test]
fn opens_of_a_file_that_changes_on_the_pfs_never_fail() {
    for passthrough in [true, false] {
        let adjust = |config: &mut MountConfig| config.passthrough = passthrough;
        let Some(mount) = mounted_with(FakeService::memory(), adjust) else { return };
        let (lower, upper) = mount.both("file");
        fs::write(&lower, vec![0; LENGTH]).unwrap();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let readers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        let mut earlier = File::open(&upper).unwrap();
                        for _ in 0..500 {
                            let now = File::open(&upper).unwrap();
                            byte(&earlier, 9);
                            earlier = now;
                        }
                    })
                })
                .collect();
            let changed = OpenOptions::new().write(true).open(&lower).unwrap();
            let writer = scope.spawn(|| {
                let changed = changed;
                while !done.load(Ordering::Relaxed) {
                    changed.write_all_at(&[1], 9).unwrap();
                }
            });
            let ends: Vec<_> = readers.into_iter().map(|reader| reader.join()).collect();
            done.store(true, Ordering::Relaxed);
            writer.join().unwrap();
            assert!(ends.iter().all(Result::is_ok), "a reader panicked");
        });
    }
}

#[test]
fn attributes_of_a_file_that_is_replaced_on_the_pfs_are_always_told() {
    let Some(mount) = mounted(FakeService::memory()) else { return };
    let (lower, upper) = mount.both("file");
    fs::write(&lower, vec![0; LENGTH]).unwrap();
    let told = |_| assert_eq!(fs::metadata(&upper).unwrap().len(), LENGTH as u64);
    use_while_replaced(told, &lower);
}

#[test]
fn the_segment_cannot_be_written_through_a_readers_descriptor() {
    let service = FakeService::memory();
    let Some(mount) = passing(&service) else { return };
    let (lower, upper) = mount.both("file");
    fs::write(&lower, vec![1; LENGTH]).unwrap();
    let reader = File::open(&upper).unwrap();
    as_user(STRANGER, STRANGER, &[], || {
        assert_eq!(errno(reader.write_at(&[9], 0)), Some(libc::EBADF));
        let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&reader));
        let reopened = OpenOptions::new().write(true).open(again);
        assert_eq!(errno(reopened), Some(libc::EACCES));
    });
    assert_eq!(byte(&reader, 0), 1);
}

#[test]
fn without_passthrough_the_same_files_read_the_same() {
    let service = FakeService::memory();
    let Some(mount) = mounted_with(service.clone(), |config| config.passthrough = false) else {
        return;
    };
    let (lower, upper) = mount.both("file");
    fs::write(&lower, vec![6; LENGTH]).unwrap();
    let reader = File::open(&upper).unwrap();
    assert_eq!((byte(&reader, 5), mapped_byte(&reader, 5)), (6, 6));
    assert_eq!(service.pins.load(Ordering::SeqCst), 0);
}
