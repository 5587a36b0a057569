//! Buffers for bytes that pass through without being kept: blocks that the policy did not admit.
//!
//! A bounded pool beside the store's capacity. A block read ahead of its reader waits here until it
//! was read once. It is part of the overhead that the node states at start.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

/// A page-aligned buffer, so that direct I/O can fill it.
#[derive(Debug)]
pub struct AlignedBuffer {
    memory: mapping::Mapping,
    length: usize,
}

impl AlignedBuffer {
    /// A zeroed buffer of `length` bytes.
    pub fn new(length: usize) -> std::io::Result<Self> {
        Ok(AlignedBuffer { memory: mapping::Mapping::new(length.max(1))?, length })
    }

    /// Shortens the buffer to what was read into it.
    pub fn truncate(&mut self, length: usize) {
        self.length = self.length.min(length);
    }

    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.memory.bytes()[..self.length]
    }

    /// The bytes, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory.bytes_mut()[..self.length]
    }
}

/// The smallest safe wrapper around one anonymous mapping.
mod mapping {
    use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous, munmap};

    #[derive(Debug)]
    pub struct Mapping {
        address: *mut u8,
        length: usize,
    }

    // SAFETY: the mapping is private to its owner; `&Mapping` only gives shared reads.
    unsafe impl Send for Mapping {}
    // SAFETY: see above.
    unsafe impl Sync for Mapping {}

    impl Mapping {
        pub fn new(length: usize) -> std::io::Result<Self> {
            // SAFETY: a fresh anonymous mapping at an address of the kernel's choice.
            let address = unsafe {
                mmap_anonymous(
                    std::ptr::null_mut(),
                    length,
                    ProtFlags::READ | ProtFlags::WRITE,
                    MapFlags::PRIVATE,
                )?
            };
            Ok(Mapping { address: address.cast(), length })
        }

        pub fn bytes(&self) -> &[u8] {
            // SAFETY: the mapping is `length` bytes long, readable, and lives as long as `self`.
            unsafe { std::slice::from_raw_parts(self.address, self.length) }
        }

        pub fn bytes_mut(&mut self) -> &mut [u8] {
            // SAFETY: as above, writable, and `&mut self` makes the access exclusive.
            unsafe { std::slice::from_raw_parts_mut(self.address, self.length) }
        }
    }

    impl Drop for Mapping {
        fn drop(&mut self) {
            // SAFETY: the range was mapped by `new` and no reference outlives `self`.
            let _ = unsafe { munmap(self.address.cast(), self.length) };
        }
    }
}

/// Recently read blocks that were not admitted, newest last, at most a fixed number.
#[derive(Debug)]
pub struct TransientBlocks {
    entries: Mutex<VecDeque<(u64, u64, Arc<AlignedBuffer>)>>,
    blocks_max: usize,
}

impl TransientBlocks {
    /// A pool of at most `blocks_max` blocks.
    pub fn new(blocks_max: usize) -> Self {
        TransientBlocks { entries: Mutex::new(VecDeque::new()), blocks_max }
    }

    /// Keeps a block of the content numbered `content` until it is pushed out.
    pub fn insert(&self, content: u64, block: u64, buffer: Arc<AlignedBuffer>) {
        let mut entries = self.entries.lock();
        if entries.len() >= self.blocks_max {
            entries.pop_front();
        }
        entries.push_back((content, block, buffer));
    }

    /// A block that is still here.
    pub fn get(&self, content: u64, block: u64) -> Option<Arc<AlignedBuffer>> {
        let entries = self.entries.lock();
        entries.iter().find(|entry| (entry.0, entry.1) == (content, block)).map(|e| e.2.clone())
    }

    /// Forgets one block, because its reader went past its end.
    pub fn remove(&self, content: u64, block: u64) {
        self.entries.lock().retain(|entry| (entry.0, entry.1) != (content, block));
    }

    /// Forgets all blocks of a content, because it was written to or superseded.
    pub fn forget(&self, content: u64) {
        self.entries.lock().retain(|entry| entry.0 != content);
    }

    /// Whether anything is here; the common case costs one lock.
    pub fn is_empty(&self) -> bool {
        self.entries.lock().is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_is_bounded_and_forgets() {
        let pool = TransientBlocks::new(2);
        for block in 0..3 {
            pool.insert(7, block, Arc::new(AlignedBuffer::new(4096).unwrap()));
        }
        assert!(pool.get(7, 0).is_none() && pool.get(7, 2).is_some());
        pool.forget(7);
        assert!(pool.is_empty());
    }
}
