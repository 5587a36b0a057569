//! The read path: resident bytes straight from the store, the rest by fills, each byte counted at
//! the level that served it.

use std::io::IoSlice;
use std::sync::Arc;

use tidepool_proto::table::BlockState;
use tidepool_proto::{BytesByLevel, Error, ErrorKind, Level, ReadMode, ReadOutcome, Result};
use tidepool_store::BlockPin;

use super::content::Content;
use super::handle::Handle;
use crate::fill::{self, Filled};
use crate::read_ahead::Pattern;
use crate::transient::AlignedBuffer;

/// Reads that are random and no longer than this do not fetch a whole block at first.
const SMALL_READ_BYTES: usize = 128 << 10;
/// Times that a block is asked for again after it went away between its fill and its use.
const ATTEMPTS: usize = 3;

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
    /// Reads and records it in the ledger.
    pub(super) fn read_recorded(
        &self,
        offset: u64,
        length: usize,
        sink: &mut Sink<'_>,
    ) -> Result<ReadOutcome> {
        let (result, length) = match self.content_to_read() {
            Some(content) => {
                let length = content.size().saturating_sub(offset).min(length as u64) as usize;
                (self.read_content(&content, offset, length, sink), length)
            }
            None => (self.read_from_pfs(offset, length, sink), length),
        };
        match &result {
            Ok(outcome) => self.core.ledger.served(&outcome.levels),
            Err(_) => self.core.ledger.failed(length as u64),
        }
        result
    }

    /// What reads come from; `None` is the PFS as it is now, which is what mode `bypass` sees
    /// unless the file's bytes are in memory only.
    pub(super) fn content_to_read(&self) -> Option<Arc<Content>> {
        if self.read_mode == ReadMode::Bypass {
            return self.file.content().filter(|content| content.is_memory_only());
        }
        Some(self.content())
    }

    fn read_content(
        &self,
        content: &Arc<Content>,
        offset: u64,
        length: usize,
        sink: &mut Sink<'_>,
    ) -> Result<ReadOutcome> {
        if length == 0 {
            sink(&[]);
            return Ok(ReadOutcome::default());
        }
        if let Some(outcome) = self.read_packed(content, offset, length, sink)? {
            return Ok(outcome);
        }
        let mut pieces = Vec::with_capacity(2);
        let mut levels = BytesByLevel::default();
        self.plan_ahead(content, offset, length);
        let block_bytes = self.core.block_bytes();
        let end = offset + length as u64;
        let mut at = offset;
        while at < end {
            let block = at / block_bytes;
            let stop = end.min((block + 1) * block_bytes);
            let within = (at - block * block_bytes) as usize..(stop - block * block_bytes) as usize;
            let piece = self.piece(content, block, within, length)?;
            let from_pfs = match &piece {
                Piece::Resident(..) => content.take_fresh(block, stop - at),
                Piece::Zeros(_) => 0,
                Piece::Passing(..) | Piece::Copied(_) => stop - at,
            };
            levels.add(Level::Pfs, from_pfs);
            levels.add(Level::Store, stop - at - from_pfs);
            pieces.push(piece);
            at = stop;
        }
        let slices: Vec<IoSlice<'_>> = pieces.iter().map(|p| IoSlice::new(p.bytes())).collect();
        sink(&slices);
        Ok(ReadOutcome { bytes: length, levels })
    }

    /// Bytes of one block.
    fn piece(
        &self,
        content: &Arc<Content>,
        block: u64,
        within: std::ops::Range<usize>,
        request_bytes: usize,
    ) -> Result<Piece> {
        for _ in 0..ATTEMPTS {
            let pin = content.segment().and_then(|segment| segment.pin_block(block));
            if let Some(pin) = pin.filter(|pin| pin.len() >= within.end) {
                return Ok(Piece::Resident(pin, within.start, within.end));
            }
            if content.is_memory_only() {
                return Ok(Piece::Zeros(vec![0; within.len()]));
            }
            if self.read_mode == ReadMode::Memory {
                return Err(self.not_resident(block));
            }
            let random = self.read_ahead.lock().pattern() == Pattern::Random;
            if random && request_bytes <= SMALL_READ_BYTES && !content.miss_is_hot(block) {
                break;
            }
            match fill::fetch(&self.core, &self.file, &self.lower, content, block) {
                Filled::Kept => {}
                Filled::Passing(buffer) if buffer.bytes().len() >= within.end => {
                    if within.end == buffer.bytes().len() {
                        self.core.transient.remove(content.number, block);
                    }
                    return Ok(Piece::Passing(buffer, within.start, within.end));
                }
                Filled::Passing(_) => break,
                Filled::Changed => return Err(self.changed()),
                Filled::Failed(errno, message) => return Err(from_pfs(errno, message)),
            }
        }
        let offset = block * self.core.block_bytes() + within.start as u64;
        let mut bytes = vec![0; within.len()];
        self.read_checked(content, offset, &mut bytes)?;
        Ok(Piece::Copied(bytes))
    }

    /// Reads from the PFS under the version rule: the bytes are those of `content` or an error.
    fn read_checked(&self, content: &Content, offset: u64, bytes: &mut [u8]) -> Result<()> {
        let _unchanged_by_us = self.file.gate.read();
        let read = self.lower.read_at(offset, bytes)?;
        self.core.ledger.pfs_read_bytes.add(read as u64);
        let current = fill::still_current(&self.core, content, &self.lower)?;
        if read < bytes.len() || !current {
            return Err(self.changed());
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
        let read = self.lower.read_at(offset, &mut bytes)?;
        self.core.ledger.pfs_read_bytes.add(read as u64);
        sink(&[IoSlice::new(&bytes[..read])]);
        Ok(ReadOutcome { bytes: read, levels: BytesByLevel::of(Level::Pfs, read as u64) })
    }

    /// Small files: from their pack, read whole and packed at the first miss.
    fn read_packed(
        &self,
        content: &Arc<Content>,
        offset: u64,
        length: usize,
        sink: &mut Sink<'_>,
    ) -> Result<Option<ReadOutcome>> {
        let size = content.size();
        let packed = size <= self.core.config.small_file_bytes_max && content.segment().is_none();
        if !packed || content.is_memory_only() {
            return Ok(None);
        }
        let range = offset as usize..offset as usize + length;
        let version = content.version();
        if !content.is_unsettled() {
            let found = self.core.store.read_small(version.id, &version, |bytes| {
                sink(&[IoSlice::new(&bytes[range.clone()])]);
            });
            if found.is_some() {
                let levels = BytesByLevel::of(Level::Store, length as u64);
                return Ok(Some(ReadOutcome { bytes: length, levels }));
            }
        }
        if self.read_mode == ReadMode::Memory {
            return Err(self.not_resident(0));
        }
        let mut bytes = vec![0; size as usize];
        self.read_checked(content, 0, &mut bytes)?;
        let trusted = content.admit && !content.is_unsettled() && !content.is_superseded();
        if trusted && self.file.inner.lock().writers == 0 {
            let owner = content.owner;
            self.core.store.insert_small(version.id, version, owner, &bytes)?;
        }
        sink(&[IoSlice::new(&bytes[range])]);
        let levels = BytesByLevel::of(Level::Pfs, length as u64);
        Ok(Some(ReadOutcome { bytes: length, levels }))
    }

    /// Brings a whole file in, `ahead` bytes of transfers under way at a time, counting no read.
    pub(crate) fn bring_in(&self, ahead: u64) -> Result<()> {
        let content = self.content();
        if content.is_memory_only() {
            return Ok(());
        }
        let size = content.size();
        if size <= self.core.config.small_file_bytes_max && content.segment().is_none() {
            return self.read_packed(&content, 0, size as usize, &mut |_| ()).map(|_| ());
        }
        let block_bytes = self.core.block_bytes();
        let mut ahead_to = 0;
        for block in 0..size.div_ceil(block_bytes) {
            let offset = block * block_bytes;
            let wanted = (offset + ahead).min(size);
            if wanted > ahead_to {
                self.prefetch_content(&content, ahead_to.max(offset), wanted - ahead_to);
                ahead_to = wanted;
            }
            match fill::fetch(&self.core, &self.file, &self.lower, &content, block) {
                Filled::Kept | Filled::Passing(_) => {}
                Filled::Changed => return Err(self.changed()),
                Filled::Failed(errno, message) => return Err(from_pfs(errno, message)),
            }
        }
        Ok(())
    }

    /// Notes the read for the pattern and starts what the pattern asks for.
    fn plan_ahead(&self, content: &Arc<Content>, offset: u64, length: usize) {
        if self.read_mode != ReadMode::TwoLevel || content.is_memory_only() {
            return;
        }
        if content.segment().is_some_and(|segment| segment.is_wholly_resident()) {
            return;
        }
        let ranges = self.read_ahead.lock().on_read(offset, length as u64);
        for range in ranges {
            self.prefetch_content(content, range.offset, range.length);
        }
    }

    /// Starts fills of a range without waiting for them.
    pub(super) fn prefetch_range(&self, offset: u64, length: u64) {
        self.prefetch_content(&self.content(), offset, length);
    }

    fn prefetch_content(&self, content: &Arc<Content>, offset: u64, length: u64) {
        if self.core.config.read_ahead_bytes_max == 0 || content.is_memory_only() {
            return;
        }
        let block_bytes = self.core.block_bytes();
        let end = offset.saturating_add(length).min(content.size());
        if offset >= end {
            return;
        }
        for block in offset / block_bytes..end.div_ceil(block_bytes) {
            fill::prefetch(&self.core, &self.file, &self.lower, content, block);
        }
    }

    /// Whether a range can be read without the PFS.
    pub(super) fn range_is_resident(&self, offset: u64, length: usize) -> bool {
        let Some(content) = self.content_to_read() else { return false };
        if content.is_memory_only() {
            return true;
        }
        let end = content.size().min(offset.saturating_add(length as u64));
        if offset >= end {
            return true;
        }
        match content.segment() {
            Some(segment) => {
                let block_bytes = self.core.block_bytes();
                (offset / block_bytes..end.div_ceil(block_bytes))
                    .all(|block| segment.state(block) != BlockState::Absent)
            }
            None => {
                let version = content.version();
                self.core.store.small_state(version.id).is_some_and(|(cached, _)| cached == version)
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
