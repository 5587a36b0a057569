//! [`Segment`]: the memory of a file that the node handed out, with its residency table and touch
//! marks. Resident bytes are read without a message, a lock or an allocation, and only while the
//! table vouches for them, before and after.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use tidepool_proto::mapping::{Access, Mapping};
use tidepool_proto::table::{
    HEADER_BYTES, HEADER_SIZE_OFFSET, HEADER_STALE_OFFSET, TABLE_MAGIC, Word, read_if_resident,
};
use tidepool_proto::wire::SegmentLayout;
use tidepool_proto::{Error, ErrorKind, Result};

fn unusable(detail: &str) -> Error {
    Error::new(ErrorKind::Protocol, "mapping memory of the node", detail)
}

/// Maps `length` bytes of what the node handed out from `offset`, a multiple of the page size. They
/// must lie within the file: beyond its end an access would be a fault.
pub(crate) fn map(file: impl AsFd, offset: u64, length: usize, access: Access) -> Result<Mapping> {
    let status = rustix::fs::fstat(&file)
        .map_err(|error| unusable("its size is unknown").caused_by(error))?;
    let end = offset.checked_add(length as u64);
    if length == 0 || end.is_none_or(|end| end > u64::try_from(status.st_size).unwrap_or(0)) {
        return Err(unusable("it is shorter than the node said"));
    }
    Mapping::shared(file, offset, length, access)
        .map_err(|error| unusable("mmap fails").caused_by(error))
}

/// A segment that can be read without asking.
#[derive(Debug)]
pub(crate) struct Segment {
    segment: OwnedFd,
    table: Mapping,
    touches: Mapping,
    block_bytes: u64,
    blocks: u64,
}

/// Bytes read out of one block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    /// How many bytes.
    pub(crate) bytes: usize,
    /// The file ends behind them.
    pub(crate) at_end: bool,
}

impl Segment {
    /// Maps what the node handed out: segment, table, touch marks.
    pub(crate) fn new(layout: SegmentLayout, descriptors: Vec<OwnedFd>) -> Result<Segment> {
        let Ok([segment, table, touches]) = <[OwnedFd; 3]>::try_from(descriptors) else {
            return Err(unusable("descriptors are missing"));
        };
        let blocks = usize::try_from(layout.blocks).map_err(|_| unusable("too many blocks"))?;
        let table_bytes = blocks
            .checked_mul(8)
            .and_then(|bytes| bytes.checked_add(HEADER_BYTES))
            .ok_or_else(|| unusable("too many blocks"))?;
        if layout.block_bytes == 0 || blocks == 0 {
            return Err(unusable("there are no blocks"));
        }
        let table = map(&table, 0, table_bytes, Access::Read)?;
        let touches = map(&touches, 0, blocks, Access::ReadWrite)?;
        let header = [0, 8, 16].map(|offset| table.word(offset).load(Ordering::Relaxed));
        if header != [TABLE_MAGIC, layout.block_bytes, layout.blocks] {
            return Err(unusable("the table is not of the layout that the node said"));
        }
        let SegmentLayout { block_bytes, blocks } = layout;
        Ok(Segment { segment, table, touches, block_bytes, blocks })
    }

    /// Block size in bytes.
    pub(crate) fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// Bytes from `offset` to the end of its block, at most `length`.
    pub(crate) fn piece_bytes(&self, offset: u64, length: usize) -> usize {
        let left = self.block_bytes - offset % self.block_bytes;
        usize::try_from(left).map_or(length, |left| left.min(length))
    }

    fn word(&self, block: u64) -> &AtomicU64 {
        self.table.word(HEADER_BYTES + 8 * block as usize)
    }

    /// Reads out of the block that holds `offset`; no bytes at or beyond the end of the file.
    /// `None`: the node must be asked.
    pub(crate) fn read(&self, offset: u64, buffer: &mut [u8]) -> Option<Piece> {
        self.read_block(offset, buffer).or_else(|| self.read_end(offset))
    }

    #[inline]
    fn read_block(&self, offset: u64, buffer: &mut [u8]) -> Option<Piece> {
        let block = offset / self.block_bytes;
        if block >= self.blocks {
            return None;
        }
        let wanted = self.piece_bytes(offset, buffer.len());
        let size = self.table.word(HEADER_SIZE_OFFSET);
        let piece = read_if_resident(self.word(block), || {
            let left = size.load(Ordering::Acquire).checked_sub(offset).filter(|left| *left > 0)?;
            let bytes = usize::try_from(left).map_or(wanted, |left| left.min(wanted));
            let mut filled = 0;
            while filled < bytes {
                let at = offset + filled as u64;
                match rustix::io::pread(&self.segment, &mut buffer[filled..bytes], at) {
                    Ok(0) => return None,
                    Ok(more) => filled += more,
                    Err(rustix::io::Errno::INTR) => {}
                    Err(_) => return None,
                }
            }
            Some(Piece { bytes, at_end: bytes < wanted })
        })
        .flatten()?;
        let touch = self.touches.byte(block as usize);
        // Looked at first, so that readers of one block do not fight for its cache line.
        if touch.load(Ordering::Relaxed) == 0 {
            touch.store(1, Ordering::Relaxed);
        }
        Some(piece)
    }

    /// Nothing, where the file ends at or before `offset`.
    #[cold]
    fn read_end(&self, offset: u64) -> Option<Piece> {
        let size = self.held_size()?;
        (size <= offset).then_some(Piece { bytes: 0, at_end: true })
    }

    /// Length of the file in bytes, where the block that it ends in is resident: only such a block
    /// vouches for the table. What another program changed the node tells.
    pub(crate) fn held_size(&self) -> Option<u64> {
        let last = self.size().checked_sub(1)? / self.block_bytes;
        if last >= self.blocks || self.is_superseded() {
            return None;
        }
        read_if_resident(self.word(last), || self.size())
    }

    /// Whether a block of the range is not resident.
    pub(crate) fn lacks_any(&self, from: u64, to: u64) -> bool {
        let first = from / self.block_bytes;
        let last = to.div_ceil(self.block_bytes).min(self.blocks);
        (first..last).any(|block| !Word(self.word(block).load(Ordering::Relaxed)).is_resident())
    }

    /// Whether another program changed the file since: these are bytes of before.
    pub(crate) fn is_superseded(&self) -> bool {
        self.table.word(HEADER_STALE_OFFSET).load(Ordering::Acquire) != 0
    }

    /// Length of the file as the table has it, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.table.word(HEADER_SIZE_OFFSET).load(Ordering::Acquire)
    }
}
