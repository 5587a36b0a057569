//! Keeping written bytes: what goes to the PFS also goes to the store, so that it is warm when it
//! is read back.
//!
//! Files start in a buffer while they could still be packed as small ones, and move to a segment
//! when they outgrow it. Bytes are captured only after the PFS took them, and only whole blocks or
//! bytes of resident blocks: a block is never half known. The block at the end of a growing file is
//! gathered beside the segment, so that it comes in 2 MiB pages when it is whole.

use std::sync::Arc;

use tidepool_proto::Result;
use tidepool_proto::table::BlockState;
use tidepool_store::{FillStart, Segment, Store};

use super::cached_version::CachedVersion;
use super::kernel_borrow;
use super::written::Written;
use crate::block_buffers::{AlignedBuffer, BlockBuffers};

/// Where the bytes of a file being written are kept.
#[derive(Debug, Default)]
pub enum Capture {
    /// Nowhere but in blocks that are resident or written whole.
    #[default]
    Off,
    /// Here, because it may end up small: all bytes from the start of the file.
    Buffer(Vec<u8>),
    /// In the segment, and the block that is being written from its start to its end here.
    Gather(GatheredBlock),
}

/// Where written bytes may go.
#[derive(Clone, Copy)]
pub struct Places<'a> {
    /// Segments and packed files.
    pub store: &'a Arc<Store>,
    /// Buffers to gather blocks in.
    pub buffers: &'a BlockBuffers,
    /// Files up to this length are packed.
    pub small_file_bytes_max: u64,
}

/// A block that is written piece by piece.
#[derive(Debug)]
pub struct GatheredBlock {
    block: u64,
    buffer: AlignedBuffer,
    filled: usize,
}

impl GatheredBlock {
    /// Starts a block with its first bytes, if not too many are gathered already.
    fn start(buffers: &BlockBuffers, block: u64, first: &[u8]) -> Option<Self> {
        let buffer = buffers.gathering_buffer()?;
        let mut this = GatheredBlock { block, buffer, filled: 0 };
        this.take(0, first);
        Some(this)
    }

    /// Takes bytes that join or overlap what is here.
    fn take(&mut self, within: usize, part: &[u8]) -> bool {
        if within > self.filled {
            return false;
        }
        let end = within + part.len();
        self.buffer.bytes_mut()[within..end].copy_from_slice(part);
        self.filled = self.filled.max(end);
        true
    }

    /// Puts the block into the segment if it reaches to the block's end or the file's.
    fn commit(&self, segment: &Segment) {
        let length = segment.size().saturating_sub(self.block * segment.block_bytes());
        if (self.filled as u64) < length.min(segment.block_bytes()) {
            return;
        }
        if let FillStart::Started(mut fill) = segment.begin_fill(self.block) {
            let length = fill.len();
            fill.copy_from_slice(&self.buffer.bytes()[..length]);
            fill.commit(BlockState::Clean);
        }
    }
}

impl Capture {
    /// Keeps `written`. `keep_new` is false in write mode `bypass`: then only what is resident
    /// already is brought up to date.
    pub fn keep(
        &mut self,
        places: Places<'_>,
        cached: &CachedVersion,
        written: &Written<'_>,
        keep_new: bool,
    ) -> Result<()> {
        let Places { store, buffers, small_file_bytes_max } = places;
        if cached.segment().is_none() {
            store.remove_small(cached.id());
            if !keep_new || !cached.admit {
                *self = Capture::Off;
                return Ok(());
            }
            if written.size_after() <= small_file_bytes_max {
                self.buffer(written);
                return Ok(());
            }
            cached.set_size(written.size_after());
            let segment = cached.segment_or_create(store)?;
            if let Capture::Buffer(bytes) = std::mem::take(self) {
                let whole = bytes.len() as u64 == written.size_before;
                let start = Written { offset: 0, data: &bytes, size_before: 0 };
                if whole && !bytes.is_empty() {
                    self.keep_in_segment((buffers, segment), &start, true)?;
                }
            }
            return self.keep_in_segment((buffers, segment), written, true);
        }
        let segment = cached.segment_or_create(store)?.clone();
        if cached.is_borrowed_by_kernel() && written.end() > written.size_before {
            return kernel_borrow::write(&segment, written, BlockState::Clean);
        }
        self.keep_in_segment((buffers, &segment), written, keep_new && cached.admit)
    }

    /// Extends or patches the buffer; drops it where that would leave a gap.
    fn buffer(&mut self, written: &Written<'_>) {
        if written.size_before == 0 && matches!(self, Capture::Off) {
            *self = Capture::Buffer(Vec::new());
        }
        let Capture::Buffer(bytes) = self else { return };
        if bytes.len() as u64 != written.size_before {
            *self = Capture::Off;
            return;
        }
        let end = written.end() as usize;
        if end > bytes.len() {
            // A gap after the old end is a hole, and holes read as zeros.
            bytes.resize(end, 0);
        }
        bytes[written.offset as usize..end].copy_from_slice(written.data);
    }

    /// Follows a change of the file's length to `size`.
    pub fn set_size(&mut self, store: &Store, cached: &CachedVersion, size: u64) -> Result<()> {
        store.remove_small(cached.id());
        match self {
            Capture::Buffer(bytes) => match usize::try_from(size) {
                Ok(size) if size <= bytes.len() => bytes.truncate(size),
                _ => *self = Capture::Off,
            },
            Capture::Off if size == 0 && cached.segment().is_none() => {
                *self = Capture::Buffer(Vec::new());
            }
            Capture::Gather(_) => *self = Capture::Off,
            Capture::Off => {}
        }
        match cached.segment() {
            Some(segment) if cached.is_borrowed_by_kernel() => {
                kernel_borrow::set_size(segment, size, BlockState::Clean)
            }
            Some(segment) => segment.set_size(size),
            None => Ok(()),
        }
    }

    /// Puts what was gathered so far into the store: the file's last block, or a small file.
    pub fn settle(&mut self, store: &Store, cached: &CachedVersion) -> Result<()> {
        if let (Capture::Gather(gathered), Some(segment)) = (&*self, cached.segment()) {
            gathered.commit(segment);
            *self = Capture::Off;
        }
        let Capture::Buffer(bytes) = self else { return Ok(()) };
        let version = cached.version();
        let whole = bytes.len() as u64 == version.size && cached.segment().is_none();
        if whole && !cached.is_racy() && !bytes.is_empty() {
            store.insert_small(version.id, version, cached.owner, bytes)?;
        }
        Ok(())
    }
}

impl Capture {
    /// Patches resident blocks, and keeps new ones from their start to their end.
    fn keep_in_segment(
        &mut self,
        (buffers, segment): (&BlockBuffers, &Segment),
        written: &Written<'_>,
        keep_new: bool,
    ) -> Result<()> {
        segment.grow_with(written.offset, written.data)?;
        let block_bytes = segment.block_bytes();
        let mut at = written.offset;
        while at < written.end() {
            let block = at / block_bytes;
            let upto = ((block + 1) * block_bytes).min(written.end());
            let part =
                &written.data[(at - written.offset) as usize..(upto - written.offset) as usize];
            if segment.state(block) != BlockState::Absent {
                segment.write_resident(at, part);
                if matches!(self, Capture::Gather(gathered) if gathered.block == block) {
                    *self = Capture::Off;
                }
            } else if keep_new {
                let within = (at - block * block_bytes) as usize;
                self.gather((buffers, segment), block, within, part);
            }
            at = upto;
        }
        Ok(())
    }

    /// Keeps bytes of a block that is not resident.
    fn gather(
        &mut self,
        (buffers, segment): (&BlockBuffers, &Segment),
        block: u64,
        within: usize,
        part: &[u8],
    ) {
        let block_bytes = segment.block_bytes() as usize;
        match self {
            Capture::Gather(gathered) if gathered.block == block => {
                if !gathered.take(within, part) {
                    *self = Capture::Off;
                } else if gathered.filled == block_bytes {
                    gathered.commit(segment);
                    *self = Capture::Off;
                }
            }
            _ if within > 0 => {}
            _ if part.len() == block_bytes => fill_whole(segment, block, part),
            _ => {
                // What was gathered before is complete only if the file ended there.
                *self = Capture::Off;
                match GatheredBlock::start(buffers, block, part) {
                    Some(gathered) => *self = Capture::Gather(gathered),
                    None => fill_whole(segment, block, part),
                }
            }
        }
    }
}

/// Fills a block from bytes that reach to its end or the file's; others are left out.
fn fill_whole(segment: &Segment, block: u64, bytes: &[u8]) {
    if let FillStart::Started(mut fill) = segment.begin_fill(block)
        && fill.len() == bytes.len()
    {
        fill.copy_from_slice(bytes);
        fill.commit(BlockState::Clean);
    }
}
