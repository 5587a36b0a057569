//! [`SharedTable`]: what clients see of a segment. They read the residency table, and write the
//! reference bits, which are not trusted.

use std::sync::atomic::{AtomicU64, Ordering};

use tidepool_proto::table::{HEADER_BYTES, HEADER_SIZE_OFFSET, HEADER_STALE_OFFSET, TABLE_MAGIC};
use tidepool_proto::{Result, SegmentExport};

use crate::backing::{MemoryFile, PAGE_BYTES};
use crate::mapping::Mapping;

const WORD_BYTES: u64 = size_of::<u64>() as u64;

/// One table and its reference bits, of a fixed number of blocks.
pub(crate) struct SharedTable {
    table: MemoryFile,
    memory: Mapping,
    references: MemoryFile,
    blocks: u64,
    block_bytes: u64,
}

impl SharedTable {
    /// A table in which every block is absent, for at least `blocks` blocks.
    pub fn new(blocks: u64, block_bytes: u64, size_bytes: u64) -> Result<SharedTable> {
        // Fills its last page, so that a growing file seldom needs another table.
        let length = (HEADER_BYTES as u64 + (blocks + 1) * WORD_BYTES).next_multiple_of(PAGE_BYTES);
        let blocks = (length - HEADER_BYTES as u64) / WORD_BYTES;
        let table = MemoryFile::create_shared("tidepool-table", length)?;
        let memory = table.map(length)?;
        let references = MemoryFile::create_shared("tidepool-touches", blocks)?;
        references.seal_as_it_is()?;
        let this = SharedTable { table, memory, references, blocks, block_bytes };
        this.header(0).store(TABLE_MAGIC, Ordering::Relaxed);
        this.header(8).store(block_bytes, Ordering::Relaxed);
        this.header(16).store(blocks, Ordering::Relaxed);
        this.set_size(size_bytes);
        this.table.seal_writes()?;
        Ok(this)
    }

    /// Blocks that the table has words for.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    pub fn set_size(&self, size_bytes: u64) {
        self.header(HEADER_SIZE_OFFSET).store(size_bytes, Ordering::Release);
    }

    /// Tells clients that another program changed the file.
    pub fn invalidate(&self) {
        self.header(HEADER_STALE_OFFSET).store(1, Ordering::Release);
    }

    /// Clears the reference bits of some blocks, in ascending order, and passes them on. Clients
    /// may write and punch this file as they like, so it is never mapped: a system call cannot
    /// fault. The file may be long, and is looked at near these blocks alone.
    pub fn take_references(&self, blocks: &[u32], mut referenced: impl FnMut(u64)) {
        let mut marks = [0; PAGE_BYTES as usize];
        let page_of = |block: &u32| u64::from(*block) / PAGE_BYTES;
        for near in blocks.chunk_by(|one, next| page_of(one) == page_of(next)) {
            let start = page_of(&near[0]) * PAGE_BYTES;
            let file = self.references.read_write();
            let Ok(count) = rustix::io::pread(file, &mut marks[..], start) else { return };
            let is_marked = |block: &&u32| {
                marks[..count].get((u64::from(**block) - start) as usize).is_some_and(|it| *it != 0)
            };
            let marked: Vec<u64> = near.iter().filter(is_marked).map(|it| u64::from(*it)).collect();
            if !marked.is_empty() {
                marks[..count].fill(0);
                _ = rustix::io::pwrite(file, &marks[..count], start);
                marked.into_iter().for_each(&mut referenced);
            }
        }
    }

    /// Descriptors for a client, with the segment's own.
    pub fn export(&self, segment: &MemoryFile) -> Result<SegmentExport> {
        Ok(SegmentExport {
            segment: segment.read_only_copy()?,
            table: self.table.read_only_copy()?,
            touches: self.references.writable_copy()?,
            block_bytes: self.block_bytes,
            blocks: self.blocks,
        })
    }

    /// Bytes of memory that the table and marks for `blocks` blocks take at most.
    pub fn bytes_for(blocks: u64) -> u64 {
        let table = (HEADER_BYTES as u64 + (blocks + 1) * WORD_BYTES).next_multiple_of(PAGE_BYTES);
        table + (table / WORD_BYTES).next_multiple_of(PAGE_BYTES)
    }

    /// Bytes of memory that the table and marks take at most.
    pub fn bookkeeping_bytes(&self) -> u64 {
        self.memory.length() + self.blocks + size_of::<Self>() as u64
    }

    fn header(&self, offset: usize) -> &AtomicU64 {
        assert!(offset < HEADER_BYTES && offset.is_multiple_of(size_of::<u64>()));
        // SAFETY: inside the mapping, aligned, and only ever accessed as an atomic on this side.
        // The file is sealed against shrinking and against writing by anyone else.
        unsafe { AtomicU64::from_ptr(self.memory.base().add(offset).cast()) }
    }

    /// The word of a block, if the table has one.
    pub fn word(&self, block: u64) -> Option<&AtomicU64> {
        let offset = HEADER_BYTES + block as usize * size_of::<u64>();
        // SAFETY: a block below `blocks` has its word inside the mapping; otherwise as above.
        (block < self.blocks)
            .then(|| unsafe { AtomicU64::from_ptr(self.memory.base().add(offset).cast()) })
    }
}
