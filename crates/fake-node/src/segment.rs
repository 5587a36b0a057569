//! The bytes of one version of a file in a memory file, and beside them, for files that are kept
//! by blocks, the residency table and the touch marks as the store lays them out.

use std::fs::{File, OpenOptions, Permissions};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, MemfdFlags};
use rustix::mm::{MapFlags, ProtFlags};
use tidepool_proto::SegmentExport;
use tidepool_proto::table::{
    BlockState, HEADER_BYTES, HEADER_SIZE_OFFSET, TABLE_MAGIC, Word, publish, retract,
};

use super::BLOCK_BYTES;

/// Room beyond the length at the beginning, so that files can grow, in blocks.
const SPARE_BLOCKS: u64 = 256;
/// Address space set aside for a file at least, so that it can grow under its mapping. Bytes beyond
/// are copied.
const MAPPING_BYTES_MIN: usize = 1 << 30;

/// The segment of one file.
pub(crate) struct Segment {
    pub(crate) memory: File,
    bytes: Mapping,
    /// None where the whole file is kept.
    table: Option<Table>,
}

struct Table {
    words_file: File,
    words: Mapping,
    touches_file: File,
    touches: Mapping,
    blocks: u64,
}

/// A shared mapping of a memory file.
struct Mapping(*mut u8, usize);

// SAFETY: what is written in mapped memory is accessed through atomics only.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: &File, length: usize, protection: ProtFlags) -> Mapping {
        let (null, flags) = (std::ptr::null_mut(), MapFlags::SHARED | MapFlags::NORESERVE);
        // SAFETY: a new mapping at an address of the kernel's choice touches nothing else.
        let address = unsafe { rustix::mm::mmap(null, length, protection, flags, file, 0) };
        Mapping(address.expect("a fake node has its memory and files").cast(), length)
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by `new`, and nobody refers to it any more.
        let _ = unsafe { rustix::mm::munmap(self.0.cast(), self.1) };
    }
}

fn memory(length: u64) -> File {
    let descriptor = rustix::fs::memfd_create("fake", MemfdFlags::CLOEXEC)
        .expect("a fake node has its memory and files");
    let file = File::from(descriptor);
    file.set_len(length).expect("a fake node has its memory and files");
    file.set_permissions(Permissions::from_mode(0o600))
        .expect("a fake node has its memory and files");
    file
}

/// Opens a file once more, by its descriptor.
pub(crate) fn reopened(file: &File, write: bool) -> std::io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).write(write).open(path)
}

impl Segment {
    /// An empty segment for a file of `size` bytes, with a table if it is kept by blocks.
    pub(crate) fn new(size: u64, by_blocks: bool) -> Segment {
        let table = by_blocks.then(|| Table::new(size));
        let memory = memory(table.as_ref().map_or(size, |table| table.blocks * BLOCK_BYTES));
        let bytes = Mapping::new(&memory, MAPPING_BYTES_MIN.max(size as usize), ProtFlags::READ);
        Segment { memory, bytes, table }
    }

    /// Number of blocks that a table tells of.
    pub(crate) fn blocks(&self) -> u64 {
        self.table.as_ref().map_or(0, |table| table.blocks)
    }

    /// Whether the blocks of a file are kept one by one.
    pub(crate) fn is_by_blocks(&self) -> bool {
        self.table.is_some()
    }

    /// Whether a block is resident.
    pub(crate) fn is_resident(&self, block: u64) -> bool {
        self.table.as_ref().is_none_or(|table| {
            block < table.blocks && Word(table.word(block).load(Ordering::SeqCst)).is_resident()
        })
    }

    /// The file has this length now.
    pub(crate) fn set_size(&self, size: u64) {
        match &self.table {
            Some(table) => table.number(HEADER_SIZE_OFFSET).store(size, Ordering::SeqCst),
            None => self.memory.set_len(size).expect("a fake node has its memory and files"),
        }
    }

    /// Says that the bytes of a block are in place.
    pub(crate) fn publish(&self, block: u64) {
        if let Some(table) = &self.table {
            publish(table.word(block), BlockState::Clean);
        }
    }

    /// Says that a block is gone, then frees it.
    pub(crate) fn evict(&self, block: u64) {
        let Some(table) = self.table.as_ref().filter(|_| self.is_resident(block)) else { return };
        retract(table.word(block));
        self.free(block);
    }

    /// Frees the memory of a block that is not resident.
    pub(crate) fn free(&self, block: u64) {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.memory, flags, block * BLOCK_BYTES, BLOCK_BYTES)
            .expect("a fake node has its memory and files");
    }

    /// Passes bytes of resident blocks to `sink`, without copying where they are mapped.
    ///
    /// # Safety
    /// The range is in the memory file, which is not shortened meanwhile.
    pub(crate) unsafe fn with<T>(&self, range: Range<u64>, sink: impl FnOnce(&[u8]) -> T) -> T {
        let length = (range.end - range.start) as usize;
        if range.end > self.bytes.1 as u64 {
            let mut copy = vec![0; length];
            self.memory
                .read_exact_at(&mut copy, range.start)
                .expect("a fake node has its memory and files");
            return sink(&copy);
        }
        // SAFETY: the range lies within the mapping, and by the caller's word within the file.
        sink(unsafe { std::slice::from_raw_parts(self.bytes.0.add(range.start as usize), length) })
    }

    /// A descriptor for reading.
    pub(crate) fn reader(&self) -> OwnedFd {
        reopened(&self.memory, false).expect("a fake node has its memory and files").into()
    }

    /// Descriptors for a client; `careless` ones could be written. None where there is no table.
    pub(crate) fn export(&self, careless: bool) -> Option<SegmentExport> {
        let table = self.table.as_ref()?;
        Some(SegmentExport {
            segment: reopened(&self.memory, careless)
                .expect("a fake node has its memory and files")
                .into(),
            table: reopened(&table.words_file, false)
                .expect("a fake node has its memory and files")
                .into(),
            touches: reopened(&table.touches_file, true)
                .expect("a fake node has its memory and files")
                .into(),
            block_bytes: BLOCK_BYTES,
            blocks: table.blocks,
        })
    }

    /// Counts and clears the touch marks.
    pub(crate) fn take_touches(&self) -> usize {
        self.table.as_ref().map_or(0, Table::take_touches)
    }
}

impl Table {
    fn new(size: u64) -> Table {
        let blocks = size.div_ceil(BLOCK_BYTES) + SPARE_BLOCKS;
        let words_bytes = HEADER_BYTES + 8 * blocks as usize;
        let (words_file, touches_file) = (memory(words_bytes as u64), memory(blocks));
        let protection = ProtFlags::READ | ProtFlags::WRITE;
        let words = Mapping::new(&words_file, words_bytes, protection);
        let touches = Mapping::new(&touches_file, blocks as usize, protection);
        let table = Table { words_file, words, touches_file, touches, blocks };
        let header = [(0, TABLE_MAGIC), (8, BLOCK_BYTES), (16, blocks), (HEADER_SIZE_OFFSET, size)];
        for (offset, value) in header {
            table.number(offset).store(value, Ordering::SeqCst);
        }
        table
    }

    fn number(&self, offset: usize) -> &AtomicU64 {
        assert!(offset + 8 <= self.words.1, "a file outgrew its segment");
        // SAFETY: the offset is a multiple of 8 within the mapped table.
        unsafe { &*self.words.0.add(offset).cast() }
    }

    fn word(&self, block: u64) -> &AtomicU64 {
        self.number(HEADER_BYTES + 8 * block as usize)
    }

    fn take_touches(&self) -> usize {
        let marks = (0..self.touches.1).filter(|block| {
            // SAFETY: the marks are mapped for all blocks.
            let mark = unsafe { &*self.touches.0.add(*block).cast::<AtomicU8>() };
            mark.swap(0, Ordering::SeqCst) != 0
        });
        marks.count()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // Clients of a version that was replaced must not go on with it.
        (0..self.blocks()).for_each(|block| self.evict(block));
    }
}
