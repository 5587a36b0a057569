//! How the mount treats what the node does: slow reads, panics, errors, memory-only files.

mod support;

use std::fs::{self, File};
use std::io::IoSlice;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Condvar, Mutex};

use support::memory::MemoryService;
use support::{errno, mounted_with};
use tidepool_proto::{
    Error, ErrorKind, FileId, FileService, OpenFile, OpenRequest, PassthroughPin, ReadOutcome,
    Result, SegmentExport, Version, WriteMode,
};

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

#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicUsize,
}

impl Gate {
    fn wait(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut open = self.open.lock().unwrap();
        while !*open {
            open = self.opened.wait(open).unwrap();
        }
    }

    /// Lets those who wait go on, and all that come.
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }
}

/// Behaves by the length of the file; others are in memory.
#[derive(Default)]
struct Moody {
    memory: MemoryService,
    gate: Arc<Gate>,
    stub: Mutex<Option<FileId>>,
}

struct MoodyFile {
    inner: Arc<dyn OpenFile>,
    gate: Arc<Gate>,
    kind: u64,
}

impl OpenFile for MoodyFile {
    fn version(&self) -> Version {
        self.inner.version()
    }

    fn size(&self) -> Result<u64> {
        self.inner.size()
    }

    fn write_mode(&self) -> WriteMode {
        WriteMode::Through
    }

    fn is_resident(&self, _offset: u64, _length: usize) -> bool {
        assert!(self.kind != PANIC_EARLY, "a question of this file panics");
        ![SLOW, CUT].contains(&self.kind)
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<ReadOutcome> {
        self.inner.read_at(offset, buffer)
    }

    fn read_with(
        &self,
        offset: u64,
        length: usize,
        sink: &mut dyn FnMut(&[IoSlice<'_>]),
    ) -> Result<ReadOutcome> {
        assert!(self.kind != PANIC, "a read of this file panics");
        if [SLOW, CUT].contains(&self.kind) {
            self.gate.wait();
        }
        let length = match self.kind {
            CUT => length.min(CUT_TO.saturating_sub(offset as usize)),
            _ => length,
        };
        self.inner.read_with(offset, length, sink)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<u64> {
        self.inner.write_at(offset, data)
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.inner.set_size(size)
    }

    fn allocate(&self, mode_bits: i32, offset: u64, length: u64) -> Result<()> {
        self.inner.allocate(mode_bits, offset, length)
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        self.inner.sync(data_only)
    }

    fn flush(&self) -> Result<()> {
        match self.kind {
            FULL => Err(Error::new(ErrorKind::StoreFull, "closing", "as the test wants it")),
            _ => self.inner.flush(),
        }
    }

    fn passthrough(&self) -> Option<Arc<dyn PassthroughPin>> {
        None
    }

    fn export(&self) -> Result<Option<SegmentExport>> {
        Ok(None)
    }

    fn lower(&self) -> BorrowedFd<'_> {
        self.inner.lower()
    }

    fn prefetch(&self, _offset: u64, _length: u64) {}
}

impl FileService for Moody {
    fn open(&self, request: OpenRequest) -> Result<Arc<dyn OpenFile>> {
        let inner = self.memory.open(request)?;
        let version = inner.version();
        if version.size == STUB {
            *self.stub.lock().unwrap() = Some(version.id);
        }
        Ok(Arc::new(MoodyFile { inner, gate: self.gate.clone(), kind: version.size }))
    }

    fn rebase_version(&self, before: &Version, after: &Version, alone: bool) {
        self.memory.rebase_version(before, after, alone);
    }

    fn memory_only_size(&self, id: FileId, _pfs_size: u64) -> Option<u64> {
        (*self.stub.lock().unwrap() == Some(id)).then_some(MEMORY_ONLY)
    }

    fn has_memory_only(&self) -> bool {
        self.stub.lock().unwrap().is_some()
    }

    fn removed(&self, id: FileId) {
        self.memory.removed(id);
    }
}

fn moody() -> Option<(Arc<Moody>, support::Mounted)> {
    moody_with(true)
}

fn moody_with(direct_io: bool) -> Option<(Arc<Moody>, support::Mounted)> {
    let service = Arc::new(Moody::default());
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
        while service.gate.waiting.load(Ordering::SeqCst) < 4 {
            std::thread::yield_now();
        }
        for index in 0..50 {
            assert_eq!(fs::read(&upper).unwrap(), b"resident");
            fs::write(mount.upper.join(format!("new{index}")), b"a longer text").unwrap();
        }
        service.gate.open();
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
        while service.gate.waiting.load(Ordering::SeqCst) == 0 && !reads.is_finished() {
            std::thread::yield_now();
        }
        std::io::Write::write_all(&mut appender, &[2; 700]).unwrap();
        service.gate.open();
        assert_eq!(reads.join().unwrap(), [1; CUT_TO]);
    });
}
