//! A node in miniature for tests of the server and the client: segments in memory files with real
//! residency tables, blocks that go away at random, writes through to the files below. Keeps the
//! contracts of the service traits; has no policy, no quota and no capacity.

mod segment;

use std::collections::HashMap;
use std::fs::File;
use std::io::IoSlice;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use tidepool_proto::admin::{AdminReply, AdminRequest, AdminService, LoadReport, Status};
use tidepool_proto::{
    Access, BytesByLevel, ChangeTimes, Error, ErrorKind, FileId, FileService, Level, MetadataWatch,
    OpenFile, OpenRequest, PassthroughPin, ReadMode, ReadOutcome, Result, SegmentExport, Version,
    WriteMode,
};

pub use segment::Segment;

/// Block size of the fake: small, so that small tests cross many borders.
pub const BLOCK_BYTES: u64 = 64 << 10;
/// Longest file that has no segment.
pub const SMALL_BYTES: u64 = 16 << 10;

/// The node.
#[derive(Default)]
pub struct FakeNode {
    /// Directory that it says it serves.
    pub pfs: String,
    /// Device of the only file system it takes, 0 for any.
    pub device: u64,
    /// Files that were opened, at their latest version.
    pub files: Mutex<HashMap<FileId, Arc<FakeFile>>>,
    /// Bytes that clients said they read by themselves.
    pub mapped_bytes: AtomicU64,
    /// Blocks filled so far.
    pub fills: AtomicU64,
    /// Ranges asked for ahead.
    pub prefetches: AtomicU64,
    /// Flushes so far.
    pub flushes: AtomicU64,
    /// Open files at the moment.
    pub open_files: Arc<AtomicU64>,
    /// Segments are handed out writable: an error that the server must not pass on.
    pub careless: AtomicBool,
    /// Notes of versions that were carried.
    pub carried: AtomicU64,
    /// While set, opens wait.
    pub hold_opens: Gate,
    /// While set, reads that reach the node wait.
    pub hold_reads: Gate,
    /// While set, writes and changes of length that reach the node wait.
    pub hold_writes: Gate,
    /// Of these, how many are under way.
    pub changing: AtomicU64,
    /// While set, loads go on for as long as they are let.
    pub endless_loads: AtomicBool,
    /// Such a load is under way.
    pub loading: AtomicBool,
}

/// Something to wait at.
#[derive(Default)]
pub struct Gate(Mutex<bool>, Condvar);

impl Gate {
    /// Closes or opens the gate.
    pub fn set(&self, closed: bool) {
        *self.0.lock() = closed;
        self.1.notify_all();
    }

    fn pass(&self) {
        let mut closed = self.0.lock();
        while *closed {
            self.1.wait(&mut closed);
        }
    }
}

/// A version of a file with its segment.
pub struct FakeFile {
    state: Mutex<FileState>,
    segment: Segment,
    pins: AtomicU64,
}

struct FileState {
    version: Version,
}

/// The version of an open file.
pub fn version_of(file: &File) -> Version {
    Version::from(&file.metadata().unwrap())
}

impl FakeNode {
    /// A node that takes files of any file system.
    pub fn new() -> Arc<FakeNode> {
        Arc::default()
    }

    /// Drops a block of some file, chosen by `seed`, unless it is pinned.
    pub fn evict_some(&self, seed: u64) {
        let files: Vec<_> = self.files.lock().values().cloned().collect();
        if files.is_empty() {
            return;
        }
        let file = &files[(seed % files.len() as u64) as usize];
        let _state = file.state.lock();
        if file.pins.load(Ordering::SeqCst) == 0 {
            file.segment.evict((seed >> 8) % file.segment.blocks());
        }
    }

    /// Drops everything that is not pinned.
    pub fn evict_all(&self) {
        for file in self.files.lock().values() {
            let _state = file.state.lock();
            if file.pins.load(Ordering::SeqCst) == 0 {
                (0..file.segment.blocks()).for_each(|block| file.segment.evict(block));
            }
        }
    }

    /// Blocks that clients touched since the last call.
    pub fn take_touches(&self) -> usize {
        self.files.lock().values().map(|file| file.segment.take_touches()).sum()
    }
}

/// A change under way.
struct Changing<'a>(&'a FakeNode);

impl<'a> Changing<'a> {
    fn begin(node: &'a FakeNode) -> Self {
        node.changing.fetch_add(1, Ordering::SeqCst);
        let changing = Changing(node);
        node.hold_writes.pass();
        changing
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.0.changing.fetch_sub(1, Ordering::SeqCst);
    }
}

struct FakeOpen {
    node: Arc<FakeNode>,
    file: Arc<FakeFile>,
    lower: File,
    request: (Access, Option<ReadMode>, bool),
    may_be_lost: bool,
    open_files: Arc<AtomicU64>,
}

impl Drop for FakeOpen {
    fn drop(&mut self) {
        self.open_files.fetch_sub(1, Ordering::SeqCst);
    }
}

/// The service as the server wants it: an `Arc` that opens can keep.
pub struct FakeService(pub Arc<FakeNode>);

/// A note of no file.
struct FakeNote(Arc<FakeNode>);

impl MetadataWatch for FakeNote {
    fn carry(self: Box<Self>, _: Option<ChangeTimes>) -> Result<()> {
        self.0.carried.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

impl FileService for FakeService {
    fn open(&self, request: OpenRequest) -> Result<Arc<dyn OpenFile>> {
        self.0.hold_opens.pass();
        let lower = File::from(request.lower);
        let id = version_of(&lower).id;
        if self.0.device != 0 && id.device != self.0.device {
            let detail = "the file is on another file system";
            return Err(Error::new(ErrorKind::InvalidInput, "opening a file", detail));
        }
        let mut files = self.0.files.lock();
        // Seen with the state locked: no write of another open is halfway then.
        let known = files.get(&id).filter(|file| {
            let state = file.state.lock();
            state.version == version_of(&lower)
        });
        let file = match known {
            Some(file) => Arc::clone(file),
            None => {
                let version = version_of(&lower);
                let segment = Segment::new(version.size);
                let state = Mutex::new(FileState { version });
                let file = Arc::new(FakeFile { state, segment, pins: AtomicU64::new(0) });
                files.insert(id, Arc::clone(&file));
                file
            }
        };
        self.0.open_files.fetch_add(1, Ordering::SeqCst);
        Ok(Arc::new(FakeOpen {
            node: Arc::clone(&self.0),
            file,
            lower,
            request: (request.access, request.read_mode, request.append),
            may_be_lost: request.write_mode == Some(WriteMode::Memory),
            open_files: Arc::clone(&self.0.open_files),
        }))
    }

    fn rebase_version(&self, _: &Version, _: &Version, _: bool) {}

    fn watch_metadata(&self, _lower: OwnedFd) -> Result<Box<dyn MetadataWatch>> {
        Ok(Box::new(FakeNote(Arc::clone(&self.0))))
    }

    fn memory_only_size(&self, _: FileId, _: u64) -> Option<u64> {
        None
    }

    fn has_memory_only(&self) -> bool {
        false
    }

    fn removed(&self, _: FileId) {}
}

impl FakeOpen {
    fn is_small(&self, state: &FileState) -> bool {
        state.version.size <= SMALL_BYTES
    }

    /// Fills a block; whether it was resident before.
    fn fill(&self, state: &FileState, block: u64) -> Result<bool> {
        let segment = &self.file.segment;
        if segment.is_resident(block) {
            return Ok(true);
        }
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        let mut filled = 0;
        while filled < bytes.len() {
            let at = block * BLOCK_BYTES + filled as u64;
            match self.lower.read_at(&mut bytes[filled..], at) {
                Ok(0) => break,
                Ok(more) => filled += more,
                Err(error) => return Err(Error::pfs("filling", error)),
            }
        }
        if version_of(&self.lower) != state.version {
            return Err(Error::new(ErrorKind::Changed, "filling", "the file changed"));
        }
        segment.publish(block, &bytes);
        self.node.fills.fetch_add(1, Ordering::SeqCst);
        Ok(false)
    }

    fn after_write(&self, state: &mut FileState, from: u64, to: u64) {
        state.version = version_of(&self.lower);
        self.file.segment.set_size(state.version.size);
        for block in from / BLOCK_BYTES..to.div_ceil(BLOCK_BYTES) {
            self.file.segment.evict(block);
        }
    }
}

impl OpenFile for FakeOpen {
    fn may_be_lost(&self) -> bool {
        self.may_be_lost
    }

    fn version(&self) -> Version {
        self.file.state.lock().version
    }

    fn size(&self) -> Result<u64> {
        Ok(self.file.state.lock().version.size)
    }

    fn write_mode(&self) -> WriteMode {
        WriteMode::Through
    }

    fn is_resident(&self, offset: u64, length: usize) -> bool {
        let end = offset.saturating_add(length as u64).div_ceil(BLOCK_BYTES);
        (offset / BLOCK_BYTES..end.min(self.file.segment.blocks()))
            .all(|block| self.file.segment.is_resident(block))
    }

    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<ReadOutcome> {
        let mut filled = 0;
        self.read_with(offset, buffer.len(), &mut |slices| {
            for slice in slices {
                buffer[filled..filled + slice.len()].copy_from_slice(slice);
                filled += slice.len();
            }
        })
    }

    fn read_with(
        &self,
        offset: u64,
        length: usize,
        sink: &mut dyn FnMut(&[IoSlice<'_>]),
    ) -> Result<ReadOutcome> {
        self.node.hold_reads.pass();
        let state = self.file.state.lock();
        let end = offset.saturating_add(length as u64).min(state.version.size);
        let mut outcome = ReadOutcome::default();
        let mut bytes = Vec::new();
        let mut at = offset;
        while at < end {
            let block = at / BLOCK_BYTES;
            let piece = (end - at).min(BLOCK_BYTES - at % BLOCK_BYTES);
            let resident = self.file.segment.is_resident(block);
            if self.request.1 == Some(ReadMode::Memory) && !resident {
                return Err(Error::new(ErrorKind::NotResident, "reading", "not resident"));
            }
            let level = if self.fill(&state, block)? { Level::Store } else { Level::Pfs };
            outcome.levels.add(level, piece);
            bytes.extend_from_slice(&self.file.segment.bytes(at, piece as usize));
            at += piece;
        }
        outcome.bytes = bytes.len();
        sink(&[IoSlice::new(&bytes)]);
        Ok(outcome)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<u64> {
        let _changing = Changing::begin(&self.node);
        let mut state = self.file.state.lock();
        let offset = if self.request.2 { state.version.size } else { offset };
        self.lower.write_all_at(data, offset).map_err(|error| Error::pfs("writing", error))?;
        self.after_write(&mut state, offset, offset + data.len() as u64);
        Ok(offset)
    }

    fn set_size(&self, size: u64) -> Result<()> {
        let _changing = Changing::begin(&self.node);
        let mut state = self.file.state.lock();
        let before = state.version.size;
        self.lower.set_len(size).map_err(|error| Error::pfs("setting the size", error))?;
        self.after_write(&mut state, before.min(size), before.max(size));
        Ok(())
    }

    fn allocate(&self, mode_bits: i32, offset: u64, length: u64) -> Result<()> {
        let _changing = Changing::begin(&self.node);
        let mut state = self.file.state.lock();
        let flags = rustix::fs::FallocateFlags::from_bits_retain(mode_bits.cast_unsigned());
        rustix::fs::fallocate(&self.lower, flags, offset, length)
            .map_err(|error| Error::pfs("allocating", error))?;
        self.after_write(&mut state, offset, offset + length);
        Ok(())
    }

    fn sync(&self, _: bool) -> Result<()> {
        self.lower.sync_all().map_err(|error| Error::pfs("syncing", error))
    }

    fn flush(&self) -> Result<()> {
        self.node.flushes.fetch_add(1, Ordering::SeqCst);
        if self.request.0.writes() { self.sync(false) } else { Ok(()) }
    }

    fn passthrough(&self) -> Option<Arc<dyn PassthroughPin>> {
        let state = self.file.state.lock();
        let all = 0..state.version.size.div_ceil(BLOCK_BYTES);
        if self.is_small(&state) || !all.into_iter().all(|b| self.file.segment.is_resident(b)) {
            return None;
        }
        self.file.pins.fetch_add(1, Ordering::SeqCst);
        Some(Arc::new(FakePin {
            file: Arc::clone(&self.file),
            segment: self.file.segment.reader(),
        }))
    }

    fn export(&self) -> Result<Option<SegmentExport>> {
        let state = self.file.state.lock();
        if self.is_small(&state) || self.request.1 == Some(ReadMode::Bypass) {
            return Ok(None);
        }
        Ok(Some(self.file.segment.export(self.node.careless.load(Ordering::SeqCst))))
    }

    fn lower(&self) -> BorrowedFd<'_> {
        self.lower.as_fd()
    }

    fn prefetch(&self, offset: u64, length: u64) {
        self.node.prefetches.fetch_add(1, Ordering::SeqCst);
        let state = self.file.state.lock();
        let end = offset.saturating_add(length).min(state.version.size);
        for block in offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES) {
            let _ = self.fill(&state, block);
        }
    }

    fn pin_range(&self, offset: u64, length: u64) -> Result<Option<Arc<dyn PassthroughPin>>> {
        let state = self.file.state.lock();
        let range = offset / BLOCK_BYTES..(offset + length).div_ceil(BLOCK_BYTES);
        if self.is_small(&state) || !range.into_iter().all(|b| self.file.segment.is_resident(b)) {
            return Ok(None);
        }
        self.file.pins.fetch_add(1, Ordering::SeqCst);
        let segment = self.file.segment.reader();
        Ok(Some(Arc::new(FakePin { file: Arc::clone(&self.file), segment })))
    }

    fn count_mapped(&self, bytes: u64) {
        self.node.mapped_bytes.fetch_add(bytes, Ordering::SeqCst);
    }
}

struct FakePin {
    file: Arc<FakeFile>,
    segment: OwnedFd,
}

impl Drop for FakePin {
    fn drop(&mut self) {
        self.file.pins.fetch_sub(1, Ordering::SeqCst);
    }
}

impl PassthroughPin for FakePin {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.segment.as_fd()
    }

    fn segment_id(&self) -> u64 {
        Arc::as_ptr(&self.file) as u64
    }

    fn serves(&self, version: &Version) -> bool {
        self.file.state.lock().version == *version
    }
}

impl AdminService for FakeService {
    fn pfs_root(&self) -> PathBuf {
        PathBuf::from(&self.0.pfs)
    }

    fn admin(
        &self,
        request: AdminRequest,
        descriptor: Option<OwnedFd>,
        _: u32,
    ) -> Result<AdminReply> {
        Ok(match request {
            AdminRequest::Status => AdminReply::Status(Box::new(Status {
                process_id: std::process::id(),
                pfs: self.0.pfs.clone(),
                served: BytesByLevel::default(),
                ..Status::default()
            })),
            AdminRequest::EvictAll => {
                self.0.evict_all();
                AdminReply::Done
            }
            AdminRequest::Load => {
                let size_bytes = version_of(&File::from(descriptor.expect("a file"))).size;
                AdminReply::Loaded(LoadReport { size_bytes, ..LoadReport::default() })
            }
            AdminRequest::Metrics => AdminReply::Metrics("x".repeat(100_000)),
            _ => AdminReply::Done,
        })
    }

    fn admin_while(
        &self,
        request: AdminRequest,
        descriptor: Option<OwnedFd>,
        user_id: u32,
        go_on: &dyn Fn() -> bool,
    ) -> Result<AdminReply> {
        while self.0.endless_loads.load(Ordering::SeqCst) && request == AdminRequest::Load {
            self.0.loading.store(true, Ordering::SeqCst);
            if !go_on() {
                self.0.loading.store(false, Ordering::SeqCst);
                return Err(Error::new(ErrorKind::NodeUnavailable, "loading", "nobody waits"));
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        self.admin(request, descriptor, user_id)
    }
}
