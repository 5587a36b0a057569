//! How the mount treats what the node does: slow reads, panics, errors, memory-only files.

mod support;

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;

use support::{errno, mounted_with};
use tidepool_fake_node::{FakeNode, FakeService, Gate, Hooks, Keeps};
use tidepool_proto::{Error, ErrorKind};

/// Length of files that are never resident and are read only once the gate is open.
const SLOW: u64 = 1;
/// Length of files whose reads panic.
const PANIC: u64 = 2;
/// Length of files of which the question whether bytes are resident panics.
const PANIC_EARLY: u64 = 5;
/// Length of files whose close fails.
const FULL: u64 = 3;
/// Length of files that end early, as if they had been cut just now, and are read only once the
/// gate is open; and where they end.
const CUT: u64 = 12_288;
const CUT_TO: usize = 5;
/// Length of stubs of memory-only files, and of what they stand for.
const STUB: u64 = 4;
const MEMORY_ONLY: u64 = 123_456;
/// Length of files that another node has, and the PFS not yet.
const OWED: u64 = 1 << 20;

/// Behaves by the length of the file; others are in memory.
const MOODY: Hooks = Hooks {
    opened: |node, version| {
        if version.size == STUB {
            node.memory_only.lock().insert(version.id, MEMORY_ONLY);
        }
        Ok(())
    },
    is_resident: |_, size| {
        assert!(size != PANIC_EARLY, "a question of this file panics");
        ![SLOW, CUT].contains(&size)
    },
    read: |node, size, offset, length| {
        assert!(size != PANIC, "a read of this file panics");
        if [SLOW, CUT].contains(&size) {
            node.gate.pass();
        }
        if size == CUT { length.min(CUT_TO.saturating_sub(offset as usize)) } else { length }
    },
    is_owed: |size| size == OWED,
    flush: |_, size| match size {
        FULL => Err(Error::new(ErrorKind::StoreFull, "closing", "as the test wants it")),
        _ => Ok(()),
    },
};

fn moody() -> Option<(Arc<FakeService>, support::Mounted)> {
    moody_with(true)
}

fn moody_with(direct_io: bool) -> Option<(Arc<FakeService>, support::Mounted)> {
    let service = FakeService::of(FakeNode {
        keeps: Keeps::Files,
        without_pins: true,
        hooks: MOODY,
        gate: Gate::closed(),
        ..FakeNode::default()
    });
    let mount = mounted_with(service.clone(), |config| {
        config.threads = 1;
        config.direct_io = direct_io;
    })?;
    Some((service, mount))
}

#[test]
fn reads_that_wait_for_the_pfs_hold_up_nobody_else() {
    const READERS: usize = 40;
    let Some((service, mount)) = moody() else { return };
    let (lower_slow, slow) = mount.both("slow");
    fs::write(&lower_slow, vec![9; SLOW as usize]).unwrap();
    let (lower, upper) = mount.both("resident");
    fs::write(&lower, b"resident").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..READERS {
            scope.spawn(|| assert_eq!(fs::read(&slow).unwrap(), [9]));
        }
        while service.gate.waiting() < 4 {
            std::thread::yield_now();
        }
        for index in 0..50 {
            assert_eq!(fs::read(&upper).unwrap(), b"resident");
            fs::write(mount.upper.join(format!("new{index}")), b"a longer text").unwrap();
        }
        service.gate.set(false);
    });
}

#[test]
fn a_panic_is_an_error_of_one_request() {
    let Some((_, mount)) = moody() else { return };
    let (lower, upper) = mount.both("file");
    for length in [PANIC, PANIC_EARLY] {
        fs::write(&lower, vec![0; length as usize]).unwrap();
        for _ in 0..20 {
            assert_eq!(errno(fs::read(&upper)), Some(libc::EIO));
        }
    }
    fs::write(&lower, b"long enough").unwrap();
    assert_eq!(fs::read(&upper).unwrap(), b"long enough");
}

#[test]
fn the_error_of_a_flush_reaches_close() {
    let Some((_, mount)) = moody() else { return };
    let (lower, upper) = mount.both("file");
    fs::write(&lower, vec![0; FULL as usize]).unwrap();
    let file = File::options().write(true).open(&upper).unwrap();
    file.write_all_at(b"x", 0).unwrap();
    let descriptor = std::os::fd::IntoRawFd::into_raw_fd(file);
    // SAFETY: the descriptor is ours alone and not used afterwards.
    assert_eq!(unsafe { libc::close(descriptor) }, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), Some(libc::ENOSPC));
}

#[test]
fn stubs_show_the_size_of_what_is_in_memory() {
    let Some((_, mount)) = moody() else { return };
    let (lower, upper) = mount.both("file");
    fs::write(&lower, vec![0; STUB as usize]).unwrap();
    let file = File::open(&upper).unwrap();
    assert_eq!(file.metadata().unwrap().len(), MEMORY_ONLY);
    let metadata = fs::metadata(&upper).unwrap();
    assert_eq!((metadata.len(), metadata.blocks()), (MEMORY_ONLY, MEMORY_ONLY.div_ceil(512)));
    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(1000)).unwrap();
    let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(1000)).unwrap();
    assert_eq!((data, hole), (1000, MEMORY_ONLY));
    fs::write(mount.lower.join("other"), b"other").unwrap();
    assert_eq!(fs::metadata(mount.upper.join("other")).unwrap().len(), 5);
}

#[test]
fn what_the_pfs_has_not_got_yet_is_no_hole() {
    let Some((_, mount)) = moody() else { return };
    let (lower, upper) = mount.both("file");
    File::create(&lower).unwrap().set_len(OWED).unwrap();
    let file = File::open(&upper).unwrap();
    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(1000)).unwrap();
    let hole = rustix::fs::seek(&file, rustix::fs::SeekFrom::Hole(1000)).unwrap();
    assert_eq!((data, hole), (1000, OWED), "a program that copies data alone would leave zeros");
    let beyond = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(OWED));
    assert_eq!(beyond, Err(rustix::io::Errno::NXIO));
}

#[test]
fn an_append_puts_no_zeros_into_a_page_that_is_being_read() {
    let Some((service, mount)) = moody_with(false) else { return };
    let (lower, upper) = mount.both("log");
    fs::write(&lower, [1; CUT as usize]).unwrap();
    let reader = File::open(&upper).unwrap();
    let mut appender = File::options().append(true).open(&upper).unwrap();
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| {
            let mut bytes = [9; 2000];
            let length = reader.read_at(&mut bytes, 0).unwrap();
            bytes[..length].to_vec()
        });
        while service.gate.waiting() == 0 && !reads.is_finished() {
            std::thread::yield_now();
        }
        std::io::Write::write_all(&mut appender, &[2; 700]).unwrap();
        service.gate.set(false);
        assert_eq!(reads.join().unwrap(), [1; CUT_TO]);
    });
}
