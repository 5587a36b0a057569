//! The read path: resident bytes straight from the store, the rest by fills, each byte counted at
//! the level that served it.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use tidepool_pfs::{Placement, asked};
use tidepool_proto::table::BlockState;
use tidepool_proto::{BytesByLevel, Error, ErrorKind, Level, ReadMode, ReadOutcome, Result};
use tidepool_store::BlockPin;

use super::cached_version::CachedVersion;
use super::handle::Handle;
use super::memory_only;
use crate::block_buffers::AlignedBuffer;
use crate::cluster::owed_reads::take::{Owed, Place};
use crate::fill::BlockSource;
use crate::fill_pool::Admission;
use crate::read_ahead::Pattern;
use crate::ticket::{Filled, Origin};

/// Blocks of a stripe as far as a load looks ahead further because of it.
const STRIPE_BLOCKS_MAX: u64 = 16;
/// Reads that are random and no longer than this do not fetch a whole block at first.
const SMALL_READ_BYTES: usize = 128 << 10;
/// Times that a block is asked for again after it went away between its fill and its use.
const ATTEMPTS: usize = 3;
/// The same for bytes that are nowhere else: they only move while somebody changes the file.
const ATTEMPTS_IN_MEMORY: usize = 10_000;

/// Time after which the bytes that another node owes are asked for again.
const OWED_PAUSE: Duration = Duration::from_millis(50);

/// Times that a file is read which ends before its length.
const ATTEMPTS_AT_SHORT_FILE: u32 = 4;
/// The first pause between them; each later one is twice as long.
const SHORT_FILE_PAUSE: Duration = Duration::from_millis(5);

/// Part of a reply, kept alive until it was sent.
enum Piece {
    Resident(BlockPin, usize, usize),
    Passing(Arc<AlignedBuffer>, usize, usize),
    Copied(Vec<u8>),
    Zeros(Vec<u8>),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Piece::Resident(pin, start, end) => &pin[*start..*end],
            Piece::Passing(buffer, start, end) => &buffer.bytes()[*start..*end],
            Piece::Copied(bytes) | Piece::Zeros(bytes) => bytes,
        }
    }
}

type Sink<'a> = dyn FnMut(&[IoSlice<'_>]) + 'a;

impl Handle {
    /// Reads and counts it.
    pub(super) fn read_recorded(
        &self,
        offset: u64,
        length: usize,
        sink: &mut Sink<'_>,
    ) -> Result<ReadOutcome> {
        let (result, length) = match self.cached_version_to_read() {
            Some(cached) => {
                let (result, length) = self.read_to_end(&cached, offset, length, sink);
                cached.count_read(result.as_ref().map_or(0, |outcome| outcome.bytes as u64));
                (result, length)
            }
            None => (self.read_from_pfs(offset, length, sink), length),
        };
        match &result {
            Ok(outcome) => self.count_served(&outcome.levels),
            Err(_) => self.core.counters.failed(length as u64),
        }
        result
    }

    /// Reads up to the end of the file as it is. Where a writer of this node moved the end during
    /// the read, the read begins anew. Where the PFS ends the file early, as its client may after
    /// another node changed the length, it gets a few chances. Also tells how many bytes could
    /// have been had.
    fn read_to_end(
        &self,
        cached: &Arc<CachedVersion>,
        offset: u64,
        asked: usize,
        sink: &mut Sink<'_>,
    ) -> (Result<ReadOutcome>, usize) {
        let mut short = 0;
        for attempt in 0.. {
            // In this order.
            let cuts = cached.cuts();
            let (version, size) = (cached.version(), cached.size());
            let length = size.saturating_sub(offset).min(asked as u64) as usize;
            let result = self.read_cached_version((cached, cuts), offset, length, sink);
            let changed = matches!(&result, Err(error) if error.kind() == ErrorKind::Changed);
            if changed && let Some(owed) = cached.owed() {
                match asked::while_another_node_works(|| owed.wait(OWED_PAUSE)) {
                    Place::Nowhere(reason) => return (Err(owed.error(&reason)), length),
                    Place::Holder | Place::Pfs => continue,
                }
            }
            let latest = cached.latest();
            if changed && latest.number != cached.number {
                return self.read_to_end(&latest, offset, asked, sink);
            }
            let moved = changed && !cached.is_invalidated();
            if !moved || attempt >= ATTEMPTS_IN_MEMORY {
                return (result, length);
            }
            let as_before = cached.version() == version && cached.size() == size;
            if as_before && !cached.is_memory_only() {
                short += 1;
                if short == ATTEMPTS_AT_SHORT_FILE {
                    return (Err(self.ends_early(size)), length);
                }
                std::thread::sleep(SHORT_FILE_PAUSE * 2u32.pow(short - 1));
            }
        }
        unreachable!("the loop ends by its last attempt")
    }

    /// What reads come from; `None` is the PFS as it is now, which is what mode `bypass` sees
    /// unless the file's bytes are in memory only.
    pub(super) fn cached_version_to_read(&self) -> Option<Arc<CachedVersion>> {
        if self.read_mode == ReadMode::Bypass {
            let current = self.file.cached().unwrap_or_else(|| self.cached.clone());
            return Some(current).filter(|cached| cached.is_memory_only() || cached.is_lost());
        }
        if self.access.writes() {
            let inner = self.file.inner.lock();
            let current = inner.cached.clone().unwrap_or_else(|| self.cached.clone());
            return (!inner.written_directly).then_some(current);
        }
        Some(self.cached())
    }

    /// Reads what was there when it had become shorter so often.
    fn read_cached_version(
        &self,
        (cached, cuts): (&Arc<CachedVersion>, u64),
        offset: u64,
        length: usize,
        sink: &mut Sink<'_>,
    ) -> Result<ReadOutcome> {
        if cached.is_lost() {
            return Err(memory_only::lost_error(&self.core, cached, &*self.lower));
        }
        if length == 0 {
            sink(&[]);
            return Ok(ReadOutcome::default());
        }
        if let Some(outcome) = self.read_packed((cached, cuts), offset, length, sink)? {
            return Ok(outcome);
        }
        self.plan_ahead(cached, offset, length);
        let range = offset..offset + length as u64;
        let attempts = if cached.is_memory_only() { ATTEMPTS_IN_MEMORY } else { ATTEMPTS };
        for _ in 0..attempts {
            let obtained = self.obtain(cached, &range)?;
            let pinned = self.pin(cached, &range, obtained);
            if cached.cuts() != cuts {
                return Err(self.changed());
            }
            if let Some(pieces) = pinned {
                return Ok(self.send(cached, &range, &pieces, sink));
            }
            std::thread::yield_now();
        }
        let mut bytes = vec![0; length];
        self.read_checked(cached, offset, &mut bytes)?;
        if cached.cuts() != cuts {
            return Err(self.changed());
        }
        sink(&[IoSlice::new(&bytes)]);
        let levels = BytesByLevel::of(Level::Pfs, length as u64);
        Ok(ReadOutcome { bytes: length, levels })
    }

    /// Blocks that a range touches, each with the part of it that is inside.
    fn parts(&self, range: &Range<u64>) -> impl Iterator<Item = (u64, Range<usize>)> + use<> {
        let (block_bytes, range) = (self.core.block_bytes(), range.clone());
        (range.start / block_bytes..range.end.div_ceil(block_bytes)).map(move |block| {
            let start = block * block_bytes;
            let stop = range.end.min(start + block_bytes);
            (block, (range.start.max(start) - start) as usize..(stop - start) as usize)
        })
    }

    /// Brings in what is not resident. No pin is held here (invariant 7 of [`super`]).
    fn obtain(
        &self,
        cached: &Arc<CachedVersion>,
        range: &Range<u64>,
    ) -> Result<Vec<Option<Piece>>> {
        let request_bytes = (range.end - range.start) as usize;
        self.parts(range)
            .map(|(block, within)| self.obtain_part(cached, block, within, request_bytes))
            .collect()
    }

    /// Bytes of one block that are not in the store, or `None` where they should be there now.
    fn obtain_part(
        &self,
        cached: &Arc<CachedVersion>,
        block: u64,
        within: Range<usize>,
        request_bytes: usize,
    ) -> Result<Option<Piece>> {
        let resident = |segment: &Arc<tidepool_store::Segment>| {
            block < segment.blocks() && segment.state(block) != BlockState::Absent
        };
        if cached.segment().is_some_and(resident) {
            return Ok(None);
        }
        if cached.is_memory_only() {
            return Ok(Some(Piece::Zeros(vec![0; within.len()])));
        }
        if self.read_mode == ReadMode::Memory {
            return Err(self.not_resident(block));
        }
        let pattern = self.read_ahead.lock().pattern();
        let small = pattern == Pattern::Random && request_bytes <= SMALL_READ_BYTES;
        if !small || cached.owed().is_some() || cached.miss_is_hot(block) {
            let admission = match pattern {
                _ if !self.is_worth_keeping() => Admission::Never,
                Pattern::Sequential => Admission::IfBeneficial,
                _ => Admission::Always,
            };
            match self.source(cached).fetch(block, admission) {
                Filled::Kept => return Ok(None),
                Filled::Passing(buffer) if buffer.bytes().len() >= within.end => {
                    if within.end == buffer.bytes().len() {
                        self.core.buffers.remove(cached.number, block);
                    }
                    return Ok(Some(Piece::Passing(buffer, within.start, within.end)));
                }
                Filled::Passing(_) => {}
                Filled::Changed => return Err(self.changed()),
                Filled::Failed(errno, message) => return Err(from_pfs(errno, message)),
            }
        }
        let offset = block * self.core.block_bytes() + within.start as u64;
        let mut bytes = vec![0; within.len()];
        self.read_checked(cached, offset, &mut bytes)?;
        Ok(Some(Piece::Copied(bytes)))
    }

    /// Pins what was not obtained otherwise; `None` where a block went away meanwhile.
    fn pin(
        &self,
        cached: &CachedVersion,
        range: &Range<u64>,
        obtained: Vec<Option<Piece>>,
    ) -> Option<Vec<Piece>> {
        let pinned = |(block, within): (u64, Range<usize>)| {
            let pin = cached.segment()?.pin_block(block)?;
            (pin.len() >= within.end).then(|| Piece::Resident(pin, within.start, within.end))
        };
        let parts = self.parts(range).zip(obtained);
        parts.map(|(part, piece)| piece.or_else(|| pinned(part))).collect()
    }

    /// Passes the pieces on and tells which level each byte came from.
    fn send(
        &self,
        cached: &CachedVersion,
        range: &Range<u64>,
        pieces: &[Piece],
        sink: &mut Sink<'_>,
    ) -> ReadOutcome {
        let mut levels = BytesByLevel::default();
        for ((block, within), piece) in self.parts(range).zip(pieces) {
            let bytes = within.len() as u64;
            levels.merge(&match piece {
                Piece::Resident(..) => cached.take_unread(block, bytes),
                Piece::Zeros(_) => BytesByLevel::of(Level::Store, bytes),
                Piece::Passing(buffer, ..) => BytesByLevel::of(buffer.level, bytes),
                Piece::Copied(_) => BytesByLevel::of(Level::Pfs, bytes),
            });
        }
        let slices: Vec<IoSlice<'_>> = pieces.iter().map(|p| IoSlice::new(p.bytes())).collect();
        sink(&slices);
        ReadOutcome { bytes: (range.end - range.start) as usize, levels }
    }

    /// Reads from the PFS under the version rule: the bytes are those of `cached` or an error.
    fn read_checked(&self, cached: &CachedVersion, offset: u64, bytes: &mut [u8]) -> Result<()> {
        if let Some(owed) = cached.owed() {
            return self.read_owed(owed, cached.size(), offset, bytes);
        }
        let unchanged_by_us = self.file.share_gate();
        let reading = self.core.background.begin_read();
        let read = self.lower.read_current(offset, bytes)?;
        reading.end(read as u64);
        self.core.counters.pfs_read_bytes.add(read as u64);
        let current = self.core.still_current(&unchanged_by_us, cached, &*self.lower)?;
        if read < bytes.len() || !current {
            return Err(self.changed());
        }
        Ok(())
    }

    /// Reads from the node that owes the file, block by block, past the store.
    fn read_owed(&self, owed: &Owed, size: u64, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let cluster = self.core.cluster().ok_or_else(|| self.changed())?;
        let block_bytes = self.core.block_bytes();
        let range = offset..offset + bytes.len() as u64;
        let (mut block_of, mut done) = (Vec::new(), 0);
        for (block, within) in self.parts(&range) {
            let start = block * block_bytes;
            block_of.resize(size.saturating_sub(start).min(block_bytes) as usize, 0);
            if within.end > block_of.len()
                || !cluster.fetch_owed(&self.core, owed, start, &mut block_of)
            {
                return Err(self.changed());
            }
            bytes[done..done + within.len()].copy_from_slice(&block_of[within.clone()]);
            done += within.len();
        }
        Ok(())
    }

    /// Reads straight from the PFS, whatever version it has now.
    fn read_from_pfs(
        &self,
        offset: u64,
        length: usize,
        sink: &mut Sink<'_>,
    ) -> Result<ReadOutcome> {
        let mut bytes = vec![0; length];
        let reading = self.core.background.begin_read();
        let read = self.lower.read_at(offset, &mut bytes)?;
        reading.end(read as u64);
        self.core.counters.pfs_read_bytes.add(read as u64);
        sink(&[IoSlice::new(&bytes[..read])]);
        Ok(ReadOutcome { bytes: read, levels: BytesByLevel::of(Level::Pfs, read as u64) })
    }

    /// Small files: from their pack, read whole and packed at the first miss.
    fn read_packed(
        &self,
        (cached, cuts): (&Arc<CachedVersion>, u64),
        offset: u64,
        length: usize,
        sink: &mut Sink<'_>,
    ) -> Result<Option<ReadOutcome>> {
        let size = cached.size();
        let packed = size <= self.core.config.small_file_bytes_max && cached.segment().is_none();
        if !packed || cached.is_memory_only() {
            return Ok(None);
        }
        let range = offset as usize..offset as usize + length;
        let version = cached.version();
        if !cached.is_racy() {
            // A writer may have made it shorter since its length was asked for.
            let found = self.core.store.read_small(version.id, &version, |bytes| {
                let part = bytes.get(range.clone());
                part.map(|part| sink(&[IoSlice::new(part)])).is_some()
            });
            if let Some(is_long_enough) = found {
                if !is_long_enough {
                    return Err(self.changed());
                }
                let levels = BytesByLevel::of(Level::Store, length as u64);
                return Ok(Some(ReadOutcome { bytes: length, levels }));
            }
        }
        if self.read_mode == ReadMode::Memory {
            return Err(self.not_resident(0));
        }
        let mut bytes = vec![0; size as usize];
        // What a program mapped it may change without a new time stamp, until its pages are clean.
        let clean =
            cached.admit && self.is_worth_keeping() && self.lower.write_back(0, size).is_ok();
        self.read_checked(cached, 0, &mut bytes)?;
        if cached.cuts() != cuts || bytes.len() < range.end {
            return Err(self.changed());
        }
        let trusted = clean && !cached.is_racy() && !cached.is_invalidated();
        if trusted && self.is_worth_keeping() && self.file.inner.lock().writers == 0 {
            let owner = cached.owner;
            self.core.store.insert_small(version.id, version, owner, &bytes)?;
        }
        sink(&[IoSlice::new(&bytes[range])]);
        let levels = BytesByLevel::of(Level::Pfs, length as u64);
        Ok(Some(ReadOutcome { bytes: length, levels }))
    }

    /// Brings a whole file in, `ahead` bytes of transfers under way at a time, counting no read.
    pub(crate) fn bring_in(&self, ahead: u64, go_on: &dyn Fn() -> bool) -> Result<()> {
        self.bring_in_part((0..u64::MAX, Origin::Servers), ahead, go_on)
    }

    /// The same for the blocks of a range of bytes, from where they are; a file that is packed
    /// comes whole.
    pub(crate) fn bring_in_part(
        &self,
        (range, origin): (std::ops::Range<u64>, Origin),
        ahead: u64,
        go_on: &dyn Fn() -> bool,
    ) -> Result<()> {
        let cached = self.cached();
        if cached.is_memory_only() {
            return Ok(());
        }
        let size = cached.size();
        if size <= self.core.config.small_file_bytes_max && cached.segment().is_none() {
            let cuts = cached.cuts();
            return self.read_packed((&cached, cuts), 0, size as usize, &mut |_| ()).map(|_| ());
        }
        let block_bytes = self.core.block_bytes();
        let end = range.end.min(size);
        self.core.find_placement(&cached, &*self.lower);
        let mut ahead_to = range.start / block_bytes * block_bytes;
        for block in range.start / block_bytes..end.div_ceil(block_bytes) {
            crate::loads::check(go_on)?;
            let offset = block * block_bytes;
            // Several stripes, so that several servers have work.
            let stripe_bytes = cached.placement.get().and_then(Placement::stripe_bytes);
            let stripe_blocks = stripe_bytes.map_or(1, |bytes| bytes.div_ceil(block_bytes));
            let wanted = (offset + ahead * stripe_blocks.min(STRIPE_BLOCKS_MAX)).min(end);
            if wanted > ahead_to {
                self.prefetch_from(&cached, origin, ahead_to.max(offset), wanted - ahead_to);
                ahead_to = wanted;
            }
            match self.source_of(&cached, origin).fetch(block, Admission::Always) {
                // Brought in on demand of an operator: no later reader is charged for it.
                Filled::Kept => _ = cached.take_unread(block, block_bytes),
                Filled::Passing(_) => {}
                Filled::Changed => return Err(self.changed()),
                Filled::Failed(errno, message) => return Err(from_pfs(errno, message)),
            }
        }
        Ok(())
    }

    /// Where the blocks of `cached` come from, for this open.
    fn source<'a>(&'a self, cached: &'a Arc<CachedVersion>) -> BlockSource<'a> {
        self.source_of(cached, Origin::Servers)
    }

    fn source_of<'a>(&'a self, cached: &'a Arc<CachedVersion>, origin: Origin) -> BlockSource<'a> {
        BlockSource { core: &self.core, file: &self.file, lower: &self.lower, cached, origin }
    }

    /// Notes the read for the pattern and starts what the pattern asks for.
    fn plan_ahead(&self, cached: &Arc<CachedVersion>, offset: u64, length: usize) {
        if self.read_mode != ReadMode::TwoLevel || cached.is_memory_only() {
            return;
        }
        let one_block = cached.size() <= self.core.block_bytes();
        if one_block || cached.segment().is_some_and(|segment| segment.is_wholly_resident()) {
            return;
        }
        let ranges = self.read_ahead.lock().on_read(offset, length as u64);
        for range in ranges {
            self.prefetch_cached(cached, range.offset, range.length);
        }
    }

    /// Starts fills of a range without waiting for them.
    pub(super) fn prefetch_range(&self, offset: u64, length: u64) {
        self.prefetch_cached(&self.cached(), offset, length);
    }

    fn prefetch_cached(&self, cached: &Arc<CachedVersion>, offset: u64, length: u64) {
        self.prefetch_from(cached, Origin::Servers, offset, length);
    }

    fn prefetch_from(&self, cached: &Arc<CachedVersion>, origin: Origin, offset: u64, length: u64) {
        if self.core.config.read_ahead_bytes_max == 0 || cached.is_memory_only() {
            return;
        }
        let block_bytes = self.core.block_bytes();
        let end = offset.saturating_add(length).min(cached.size());
        if offset >= end {
            return;
        }
        let admission =
            if self.is_worth_keeping() { Admission::IfBeneficial } else { Admission::Never };
        for block in offset / block_bytes..end.div_ceil(block_bytes) {
            self.source_of(cached, origin).prefetch(block, admission);
        }
    }

    /// Whether a range can be read without the PFS.
    pub(super) fn range_is_resident(&self, offset: u64, length: usize) -> bool {
        let Some(cached) = self.cached_version_to_read() else { return false };
        if cached.is_memory_only() {
            return true;
        }
        let end = cached.size().min(offset.saturating_add(length as u64));
        if offset >= end {
            return true;
        }
        match cached.segment() {
            Some(segment) => {
                let block_bytes = self.core.block_bytes();
                (offset / block_bytes..end.div_ceil(block_bytes))
                    .all(|block| segment.state(block) != BlockState::Absent)
            }
            None => {
                let version = cached.version();
                self.core
                    .store
                    .small_state(version.id)
                    .is_some_and(|(cached, _)| cached.agrees_with(&version))
            }
        }
    }

    fn not_resident(&self, block: u64) -> Error {
        Error::new(
            ErrorKind::NotResident,
            "reading in mode `memory`",
            format!("block {block} of {} is not in the store", self.name()),
        )
        .remedy("load the file first (`tidepool load`), or read in mode `two-level`")
    }

    fn ends_early(&self, size: u64) -> Error {
        Error::new(
            ErrorKind::Pfs,
            "reading from the PFS",
            format!("{} is {size} bytes long, but its bytes end before that", self.name()),
        )
        .caused_by(std::io::Error::from_raw_os_error(libc::EIO))
        .remedy("another node may just have cut it: open it again, or look at the PFS's servers")
    }

    fn changed(&self) -> Error {
        Error::new(
            ErrorKind::Changed,
            "reading",
            format!("{} was changed by another program since it was opened", self.name()),
        )
        .remedy("open it again to read the new version")
    }

    /// Name of the file for messages.
    pub(super) fn name(&self) -> String {
        match self.lower.relative_path() {
            Some(path) => path.display().to_string(),
            None => format!("inode {}", self.file.id.inode),
        }
    }
}

/// The error of a transfer that another thread may have made.
fn from_pfs(errno: i32, message: String) -> Error {
    Error::new(ErrorKind::Pfs, "reading from the PFS", message)
        .caused_by(std::io::Error::from_raw_os_error(errno))
}
