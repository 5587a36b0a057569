//! Open files of the node in miniature, and what it keeps of them.

use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::{Mutex, RwLock};
use tidepool_pfs::identity::{Acting, act_as};
use tidepool_proto::{
    BytesByLevel, Error, ErrorKind, Identity, Level, OpenFile, OpenRequest, PassthroughPin,
    ReadMode, ReadOutcome, Result, SegmentExport, Version, WriteMode,
};

use super::segment::{Segment, reopened};
use super::{BLOCK_BYTES, FakeNode, Keeps, SMALL_BYTES, version_of};

/// Bytes read of a file below at a time.
const STEP_BYTES: u64 = 4 << 20;

/// A version of a file, and its successors made by writes through the node.
pub struct FakeFile {
    /// Locked for writing while what is kept changes or goes away.
    version: RwLock<Version>,
    segment: Segment,
    /// Held while a block is filled.
    filling: Mutex<()>,
    pins: AtomicU64,
}

impl FakeFile {
    fn new(node: &FakeNode, lower: &File) -> Result<FakeFile> {
        let version = version_of(lower);
        let by_blocks = node.keeps == Keeps::Blocks;
        let file = FakeFile {
            version: RwLock::new(version),
            segment: Segment::new(version.size, by_blocks),
            filling: Mutex::default(),
            pins: AtomicU64::new(0),
        };
        if !by_blocks {
            file.load(&readable(lower)?, 0..version.size)?;
            node.fills.fetch_add(1, Ordering::SeqCst);
        }
        Ok(file)
    }

    /// Number of blocks that can be evicted.
    pub(crate) fn blocks(&self) -> u64 {
        self.segment.blocks()
    }

    /// Evicts blocks, unless some are pinned.
    pub(crate) fn evict(&self, blocks: Range<u64>) {
        let _version = self.version.write();
        if self.pins.load(Ordering::SeqCst) == 0 {
            blocks.for_each(|block| self.segment.evict(block));
        }
    }

    pub(crate) fn take_touches(&self) -> usize {
        self.segment.take_touches()
    }

    /// A change of metadata took the file from one version to another.
    pub(crate) fn rebase(&self, before: &Version, after: &Version, alone: bool) {
        let mut version = self.version.write();
        let unchanged = before.size == after.size && before.modified_ns == after.modified_ns;
        if *version == *before && unchanged && alone {
            *version = *after;
        }
    }

    /// Copies a range of the file below into the segment.
    fn load(&self, source: &File, mut range: Range<u64>) -> Result<()> {
        let mut buffer = vec![0; range.end.saturating_sub(range.start).min(STEP_BYTES) as usize];
        while range.start < range.end {
            let wanted = buffer.len().min((range.end - range.start) as usize);
            let bytes = read_all(source, range.start, &mut buffer[..wanted])?;
            if bytes == 0 {
                break;
            }
            self.segment.memory.write_all_at(&buffer[..bytes], range.start).map_err(failed)?;
            range.start += bytes as u64;
        }
        Ok(())
    }

    fn are_resident(&self, range: Range<u64>) -> bool {
        (range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES))
            .all(|block| self.segment.is_resident(block))
    }

    /// Whether it comes along with opens, without a segment.
    fn is_small(&self, version: &Version) -> bool {
        self.segment.is_by_blocks() && version.size <= SMALL_BYTES
    }
}

fn failed(error: impl Into<io::Error>) -> Error {
    Error::pfs("accessing the file", error)
}

/// The same file for reading: a descriptor opened for writing alone cannot be read.
fn readable(lower: &File) -> Result<File> {
    reopened(lower, false).map_err(failed)
}

/// Reads until the buffer is full or the file ends.
fn read_all(lower: &File, offset: u64, buffer: &mut [u8]) -> Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match lower.read_at(&mut buffer[done..], offset + done as u64).map_err(failed)? {
            0 => break,
            bytes => done += bytes,
        }
    }
    Ok(done)
}

/// Writes all of `data` at the end of the file, as one step; returns the offset.
fn append(lower: &File, data: &[u8]) -> Result<u64> {
    let vector = libc::iovec { iov_base: data.as_ptr().cast_mut().cast(), iov_len: data.len() };
    // SAFETY: the vector describes `data`, which lives during the call and is only read.
    let written = unsafe { libc::pwritev2(lower.as_raw_fd(), &vector, 1, 0, libc::RWF_APPEND) };
    if written != data.len() as isize {
        return Err(failed(io::Error::last_os_error()));
    }
    Ok(version_of(lower).size - data.len() as u64)
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
    /// None where nothing is kept.
    kept: Option<Arc<FakeFile>>,
    lower: File,
    read_mode: Option<ReadMode>,
    append: bool,
    may_be_lost: bool,
    changes_as: Option<Identity>,
    /// Length when it was opened.
    size: u64,
}

impl Drop for FakeOpen {
    fn drop(&mut self) {
        self.node.open_files.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Opens the file of a request.
pub(crate) fn open(node: &Arc<FakeNode>, request: OpenRequest) -> Result<Arc<dyn OpenFile>> {
    node.hold_opens.pass();
    let lower = File::from(request.lower);
    let id = version_of(&lower).id;
    if node.device != 0 && id.device != node.device {
        let detail = "the file is on another file system";
        return Err(Error::new(ErrorKind::InvalidInput, "opening a file", detail));
    }
    let kept = if node.keeps == Keeps::Nothing { None } else { Some(kept(node, &lower)?) };
    node.open_files.fetch_add(1, Ordering::SeqCst);
    let may_be_lost =
        node.writes_as_node || request.write_mode.is_some_and(WriteMode::is_in_memory);
    Ok(Arc::new(FakeOpen {
        node: Arc::clone(node),
        kept,
        size: version_of(&lower).size,
        lower,
        read_mode: request.read_mode,
        append: request.append,
        may_be_lost,
        changes_as: request.changes_as.filter(|_| !may_be_lost),
    }))
}

/// What is kept of the file as it is now.
fn kept(node: &FakeNode, lower: &File) -> Result<Arc<FakeFile>> {
    let mut files = node.files.lock();
    let id = version_of(lower).id;
    // Seen with the version locked: no write of another open is halfway then.
    let known = files.get(&id).filter(|file| {
        let version = file.version.read();
        *version == version_of(lower)
    });
    if let Some(file) = known {
        return Ok(Arc::clone(file));
    }
    let file = Arc::new(FakeFile::new(node, lower)?);
    files.insert(id, Arc::clone(&file));
    Ok(file)
}

impl FakeOpen {
    /// Fills a block; the level that it came from.
    fn fill(&self, file: &FakeFile, version: &Version, block: u64) -> Result<Level> {
        if file.segment.is_resident(block) {
            return Ok(Level::Store);
        }
        let _filling = file.filling.lock();
        if file.segment.is_resident(block) {
            return Ok(Level::Store);
        }
        let from = block * BLOCK_BYTES;
        file.load(&self.lower, from..(from + BLOCK_BYTES).min(version.size))?;
        if version_of(&self.lower) != *version {
            file.segment.free(block);
            return Err(Error::new(ErrorKind::Changed, "filling", "the file changed"));
        }
        file.segment.publish(block);
        self.node.fills.fetch_add(1, Ordering::SeqCst);
        Ok(Level::Pfs)
    }

    fn acting(&self) -> Result<Option<Acting>> {
        self.changes_as.as_ref().map_or(Ok(None), act_as)
    }

    /// Changes the file below, then what is kept of it: evicts the blocks of the range that
    /// `changed` makes of the outcome and the length before, or has `follow` change the whole file
    /// that is kept. Takes no new memory for writes: the kernel may hold the lock of the address
    /// space while it waits for one.
    fn change<T>(
        &self,
        below: impl FnOnce(&File) -> Result<T>,
        changed: impl FnOnce(&T, u64) -> Range<u64>,
        follow: impl FnOnce(&FakeFile, &T) -> Result<()>,
    ) -> Result<T> {
        let _changing = Changing::begin(&self.node);
        let below = || {
            let _acting = self.acting()?;
            below(&self.lower)
        };
        let Some(file) = &self.kept else { return below() };
        let mut version = file.version.write();
        let before = version.size;
        let outcome = below();
        *version = version_of(&self.lower);
        file.segment.set_size(version.size);
        let outcome = outcome?;
        if file.segment.is_by_blocks() {
            let range = changed(&outcome, before);
            (range.start / BLOCK_BYTES..range.end.div_ceil(BLOCK_BYTES))
                .for_each(|block| file.segment.evict(block));
        } else {
            follow(file, &outcome)?;
        }
        Ok(outcome)
    }

    /// Pins a range, which is told of the length of the file.
    fn pin(&self, range: impl FnOnce(u64) -> Range<u64>) -> Option<Arc<dyn PassthroughPin>> {
        let file = self.kept.as_ref().filter(|_| !self.node.without_pins)?;
        let version = file.version.read();
        if file.is_small(&version) || !file.are_resident(range(version.size)) {
            return None;
        }
        file.pins.fetch_add(1, Ordering::SeqCst);
        self.node.pins.fetch_add(1, Ordering::SeqCst);
        Some(Arc::new(FakePin { file: Arc::clone(file), segment: file.segment.reader() }))
    }
}

impl OpenFile for FakeOpen {
    fn version(&self) -> Version {
        self.kept.as_ref().map_or_else(|| version_of(&self.lower), |file| *file.version.read())
    }

    fn may_be_lost(&self) -> bool {
        self.may_be_lost
    }

    fn is_owed(&self) -> bool {
        (self.node.hooks.is_owed)(self.size)
    }

    fn size(&self) -> Result<u64> {
        Ok(self.version().size)
    }

    fn write_mode(&self) -> WriteMode {
        WriteMode::Through
    }

    fn is_resident(&self, offset: u64, length: usize) -> bool {
        let end = offset.saturating_add(length as u64);
        (self.node.hooks.is_resident)(&self.node, self.size)
            && self
                .kept
                .as_ref()
                .is_some_and(|file| file.are_resident(offset..end.min(file.blocks() * BLOCK_BYTES)))
    }

    fn read_with(
        &self,
        offset: u64,
        length: usize,
        sink: &mut dyn FnMut(&[IoSlice<'_>]),
    ) -> Result<ReadOutcome> {
        self.node.hold_reads.pass();
        let length = (self.node.hooks.read)(&self.node, self.size, offset, length);
        let Some(file) = &self.kept else {
            let mut buffer = vec![0; length];
            let bytes = read_all(&self.lower, offset, &mut buffer)?;
            sink(&[IoSlice::new(&buffer[..bytes])]);
            return Ok(ReadOutcome { bytes, levels: BytesByLevel::of(Level::Pfs, bytes as u64) });
        };
        let version = file.version.read();
        let end = offset.saturating_add(length as u64).min(version.size);
        let range = offset.min(end)..end;
        let mut outcome = ReadOutcome { bytes: (end - range.start) as usize, ..Default::default() };
        let mut at = range.start;
        while at < end {
            let block = at / BLOCK_BYTES;
            let piece = (end - at).min(BLOCK_BYTES - at % BLOCK_BYTES);
            if self.read_mode == Some(ReadMode::Memory) && !file.segment.is_resident(block) {
                return Err(Error::new(ErrorKind::NotResident, "reading", "not resident"));
            }
            outcome.levels.add(self.fill(file, &version, block)?, piece);
            at += piece;
        }
        // SAFETY: the range is within the length of the file, which the segment has at least;
        // neither changes while the version is locked.
        unsafe { file.segment.with(range, |bytes| sink(&[IoSlice::new(bytes)])) };
        Ok(outcome)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<u64> {
        let write = |lower: &File| match self.append {
            true => append(lower, data),
            false => lower.write_all_at(data, offset).map_err(failed).map(|()| offset),
        };
        let end = |offset| offset + data.len() as u64;
        let follow = |file: &FakeFile, offset: &u64| {
            file.segment.memory.write_all_at(data, *offset).map_err(failed)
        };
        self.change(write, |offset, _| *offset..end(*offset), follow)
    }

    fn set_size(&self, size: u64) -> Result<()> {
        let below = |lower: &File| lower.set_len(size).map_err(failed);
        self.change(below, |(), before| size.min(before)..size.max(before), |_, ()| Ok(()))
    }

    fn allocate(&self, mode_bits: i32, offset: u64, length: u64) -> Result<()> {
        let flags = rustix::fs::FallocateFlags::from_bits_retain(mode_bits.cast_unsigned());
        let below =
            |lower: &File| rustix::fs::fallocate(lower, flags, offset, length).map_err(failed);
        let range = offset..offset + length;
        let follow = |file: &FakeFile, (): &()| file.load(&readable(&self.lower)?, range.clone());
        self.change(below, |(), _| range.clone(), follow)
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        if data_only { self.lower.sync_data() } else { self.lower.sync_all() }.map_err(failed)
    }

    fn flush(&self) -> Result<()> {
        self.node.flushes.fetch_add(1, Ordering::SeqCst);
        (self.node.hooks.flush)(&self.node, self.size)
    }

    fn passthrough(&self) -> Option<Arc<dyn PassthroughPin>> {
        self.pin(|size| 0..size)
    }

    fn pin_range(&self, offset: u64, length: u64) -> Result<Option<Arc<dyn PassthroughPin>>> {
        Ok(self.pin(|_| offset..offset + length))
    }

    fn export(&self) -> Result<Option<SegmentExport>> {
        let Some(file) = &self.kept else { return Ok(None) };
        if file.is_small(&file.version.read()) || self.read_mode == Some(ReadMode::Bypass) {
            return Ok(None);
        }
        Ok(file.segment.export(self.node.careless.load(Ordering::SeqCst)))
    }

    fn lower(&self) -> BorrowedFd<'_> {
        self.lower.as_fd()
    }

    fn prefetch(&self, offset: u64, length: u64) {
        self.node.prefetches.fetch_add(1, Ordering::SeqCst);
        let Some(file) = &self.kept else { return };
        let version = file.version.read();
        let end = offset.saturating_add(length).min(version.size);
        for block in offset / BLOCK_BYTES..end.div_ceil(BLOCK_BYTES) {
            let _ = self.fill(file, &version, block);
        }
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
        *self.file.version.read() == *version
    }
}
