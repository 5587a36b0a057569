//! A segment in a memory file with its residency table and touch marks, as the store lays them out.

use std::fs::{File, OpenOptions, Permissions};
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

/// The segment of one file.
pub struct Segment {
    memory: File,
    table_file: File,
    touches_file: File,
    table: *mut u8,
    touches: *mut u8,
    blocks: u64,
}

// SAFETY: the mapped memory is accessed through atomics only.
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

fn memory(length: u64) -> File {
    let descriptor = rustix::fs::memfd_create("fake", MemfdFlags::CLOEXEC).unwrap();
    let file = File::from(descriptor);
    file.set_len(length).unwrap();
    file.set_permissions(Permissions::from_mode(0o600)).unwrap();
    file
}

fn reopened(file: &File, write: bool) -> OwnedFd {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    OpenOptions::new().read(true).write(write).open(path).unwrap().into()
}

fn mapped(file: &File, length: usize) -> *mut u8 {
    let protection = ProtFlags::READ | ProtFlags::WRITE;
    let null = std::ptr::null_mut();
    // SAFETY: a new mapping at an address of the kernel's choice touches nothing else.
    let address =
        unsafe { rustix::mm::mmap(null, length, protection, MapFlags::SHARED, file, 0) }.unwrap();
    address.cast()
}

impl Segment {
    /// An empty segment for a file of `size` bytes.
    pub fn new(size: u64) -> Segment {
        let blocks = size.div_ceil(BLOCK_BYTES) + SPARE_BLOCKS;
        let table_bytes = HEADER_BYTES + 8 * blocks as usize;
        let table_file = memory(table_bytes as u64);
        let touches_file = memory(blocks);
        let (table, touches) =
            (mapped(&table_file, table_bytes), mapped(&touches_file, blocks as usize));
        let memory = memory(blocks * BLOCK_BYTES);
        let segment = Segment { memory, table_file, touches_file, table, touches, blocks };
        for (offset, value) in [(0, TABLE_MAGIC), (8, BLOCK_BYTES), (16, blocks)] {
            segment.atomic(offset).store(value, Ordering::SeqCst);
        }
        segment.set_size(size);
        segment
    }

    fn atomic(&self, offset: usize) -> &AtomicU64 {
        // SAFETY: offsets of this module lie within the mapped table and are multiples of 8.
        unsafe { &*self.table.add(offset).cast() }
    }

    fn word(&self, block: u64) -> &AtomicU64 {
        self.atomic(HEADER_BYTES + 8 * block as usize)
    }

    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Whether a block is resident.
    pub fn is_resident(&self, block: u64) -> bool {
        block < self.blocks && Word(self.word(block).load(Ordering::SeqCst)).is_resident()
    }

    /// Tells readers the length of the file.
    pub fn set_size(&self, size: u64) {
        self.atomic(HEADER_SIZE_OFFSET).store(size, Ordering::SeqCst);
    }

    /// Puts the bytes of a block in place, then says so.
    pub fn publish(&self, block: u64, bytes: &[u8]) {
        self.memory.write_all_at(bytes, block * BLOCK_BYTES).unwrap();
        publish(self.word(block), BlockState::Clean);
    }

    /// Says that a block is gone, then frees it.
    pub fn evict(&self, block: u64) {
        if !self.is_resident(block) {
            return;
        }
        retract(self.word(block));
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&self.memory, flags, block * BLOCK_BYTES, BLOCK_BYTES).unwrap();
    }

    /// Bytes of resident blocks.
    pub fn bytes(&self, offset: u64, length: usize) -> Vec<u8> {
        let mut bytes = vec![0; length];
        self.memory.read_exact_at(&mut bytes, offset).unwrap();
        bytes
    }

    /// A descriptor for reading.
    pub fn reader(&self) -> OwnedFd {
        reopened(&self.memory, false)
    }

    /// Descriptors for a client; `careless` ones could be written.
    pub fn export(&self, careless: bool) -> SegmentExport {
        SegmentExport {
            segment: reopened(&self.memory, careless),
            table: reopened(&self.table_file, false),
            touches: reopened(&self.touches_file, true),
            block_bytes: BLOCK_BYTES,
            blocks: self.blocks,
        }
    }

    /// Counts and clears the touch marks.
    pub fn take_touches(&self) -> usize {
        (0..self.blocks as usize)
            .filter(|block| {
                // SAFETY: the marks are mapped for all blocks.
                let mark = unsafe { &*self.touches.add(*block).cast::<AtomicU8>() };
                mark.swap(0, Ordering::SeqCst) != 0
            })
            .count()
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // Clients of a version that was replaced must not go on with it.
        (0..self.blocks).for_each(|block| self.evict(block));
        let table_bytes = HEADER_BYTES + 8 * self.blocks as usize;
        // SAFETY: both mappings were made by `new`, and nobody refers to them any more.
        unsafe {
            let _ = rustix::mm::munmap(self.table.cast(), table_bytes);
            let _ = rustix::mm::munmap(self.touches.cast(), self.blocks as usize);
        }
    }
}
