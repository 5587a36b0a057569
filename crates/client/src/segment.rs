//! A segment that the node handed out, with its residency table and touch marks: reading resident
//! bytes without a message, a lock or an allocation. Serves nothing that the table does not vouch
//! for, before and after the bytes were read.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags};
use tidepool_proto::table::{
    HEADER_BYTES, HEADER_SIZE_OFFSET, HEADER_SUPERSEDED_OFFSET, TABLE_MAGIC, Word, read_if_resident,
};
use tidepool_proto::wire::SegmentLayout;
use tidepool_proto::{Error, ErrorKind, Result};

/// Shared memory of another process, mapped for as long as the value lives.
#[derive(Debug)]
pub(crate) struct Mapping {
    address: *mut u8,
    length_bytes: usize,
}

// SAFETY: the mapping is plain memory; all shared access to it goes through atomics, or through
// `bytes`, whose caller promises that nobody changes them.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

fn unusable(detail: &str) -> Error {
    Error::new(ErrorKind::Protocol, "mapping memory of the node", detail)
}

impl Mapping {
    /// Maps `length_bytes` at `offset` (a multiple of the page size), which must lie within the
    /// file: beyond its end an access would be a fault.
    pub(crate) fn new(
        file: impl AsFd,
        offset: u64,
        length_bytes: usize,
        protection: ProtFlags,
    ) -> Result<Mapping> {
        let status = rustix::fs::fstat(&file)
            .map_err(|error| unusable("its size is unknown").caused_by(error))?;
        let end = offset.checked_add(length_bytes as u64);
        if length_bytes == 0
            || end.is_none_or(|end| end > u64::try_from(status.st_size).unwrap_or(0))
        {
            return Err(unusable("it is shorter than the node said"));
        }
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing else.
        let address = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                length_bytes,
                protection,
                MapFlags::SHARED,
                &file,
                offset,
            )
        }
        .map_err(|error| unusable("mmap fails").caused_by(error))?;
        Ok(Mapping { address: address.cast(), length_bytes })
    }

    /// The mapped bytes.
    ///
    /// # Safety
    /// Nobody may change the bytes while the slice lives.
    pub(crate) unsafe fn bytes(&self) -> &[u8] {
        // SAFETY: the range is mapped and readable; the caller answers for the rest.
        unsafe { std::slice::from_raw_parts(self.address, self.length_bytes) }
    }

    /// Puts pages of zeros in the place of the file's.
    pub(crate) fn retire(self) -> Mapping {
        let flags = MapFlags::PRIVATE | MapFlags::FIXED | MapFlags::NORESERVE;
        // SAFETY: the range is this mapping's own, and nobody holds a reference into it.
        let _ = unsafe {
            rustix::mm::mmap_anonymous(
                self.address.cast(),
                self.length_bytes,
                ProtFlags::READ,
                flags,
            )
        };
        self
    }

    /// A word of shared memory.
    #[inline]
    pub(crate) fn word(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8) && offset + 8 <= self.length_bytes, "within the mapping");
        // SAFETY: the eight bytes are mapped (checked above) and aligned (a mapping is page
        // aligned); other processes access them as atomics too.
        unsafe { &*self.address.add(offset).cast::<AtomicU64>() }
    }

    fn byte(&self, offset: usize) -> &AtomicU8 {
        assert!(offset < self.length_bytes, "within the touch marks");
        // SAFETY: the byte is mapped (checked above); other processes access it as an atomic too.
        unsafe { &*self.address.add(offset).cast::<AtomicU8>() }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new`, and borrows of it end before the value does.
        let _ = unsafe { rustix::mm::munmap(self.address.cast(), self.length_bytes) };
    }
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
        let table = Mapping::new(&table, 0, table_bytes, ProtFlags::READ)?;
        let writable = ProtFlags::READ | ProtFlags::WRITE;
        let touches = Mapping::new(&touches, 0, blocks, writable)?;
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
        self.table.word(HEADER_SUPERSEDED_OFFSET).load(Ordering::Acquire) != 0
    }

    /// Length of the file as the table has it, in bytes.
    pub(crate) fn size(&self) -> u64 {
        self.table.word(HEADER_SIZE_OFFSET).load(Ordering::Acquire)
    }
}
