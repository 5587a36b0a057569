//! Buffers for bytes that pass through without being kept: blocks that the policy did not admit.
//!
//! A bounded pool beside the store's capacity. A block read ahead of its reader waits here until it
//! was read once. It is part of the overhead that the node states at start.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::Mutex;

/// Buffers that are kept to be used again.
const SPARE_MAX: usize = 2;
/// Places left to blocks that a reader needs at once.
const SPARE_PLACES: usize = 4;

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
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

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
            // Large pages make the first fill several times cheaper; without them it works too.
            // SAFETY: the range was mapped just above.
            let _ = unsafe { madvise(address, length, Advice::LinuxHugepage) };
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

/// Recently read blocks that were not admitted, newest last, at most a fixed number, and buffers to
/// use again.
#[derive(Debug)]
pub struct TransientBlocks {
    pool: Mutex<Pool>,
    blocks_max: usize,
    block_bytes: usize,
}

#[derive(Debug, Default)]
struct Pool {
    entries: VecDeque<Entry>,
    spare: Vec<AlignedBuffer>,
}

#[derive(Debug)]
struct Entry {
    content: u64,
    block: u64,
    buffer: Arc<AlignedBuffer>,
}

impl Pool {
    /// Takes out the entries that `gone` names, keeping their memory for the next block.
    fn drop_where(&mut self, gone: impl Fn(&Entry) -> bool) {
        let mut at = 0;
        while at < self.entries.len() {
            if !gone(&self.entries[at]) {
                at += 1;
                continue;
            }
            let Some(entry) = self.entries.remove(at) else { return };
            // A reader may still hold it; then its memory goes when the reader is done.
            if let Some(buffer) = Arc::into_inner(entry.buffer)
                && self.spare.len() < SPARE_MAX
            {
                self.spare.push(buffer);
            }
        }
    }
}

impl TransientBlocks {
    /// A pool of at most `blocks_max` blocks of `block_bytes`, spare buffers included.
    pub fn new(blocks_max: usize, block_bytes: u64) -> Self {
        TransientBlocks {
            pool: Mutex::new(Pool::default()),
            blocks_max,
            block_bytes: block_bytes as usize,
        }
    }

    /// A buffer of `length` bytes, at most a block, whose content is of no meaning.
    pub fn buffer(&self, length: usize) -> std::io::Result<AlignedBuffer> {
        let spare = self.pool.lock().spare.pop();
        let mut buffer = match spare {
            Some(buffer) => buffer,
            None => AlignedBuffer::new(self.block_bytes)?,
        };
        buffer.length = length.min(self.block_bytes);
        Ok(buffer)
    }

    /// Keeps a block of the content numbered `content` until it is pushed out.
    pub fn insert(&self, content: u64, block: u64, buffer: Arc<AlignedBuffer>) {
        let mut pool = self.pool.lock();
        if pool.entries.len() >= self.blocks_max {
            let oldest = pool.entries.front().map(|entry| (entry.content, entry.block));
            pool.drop_where(|entry| Some((entry.content, entry.block)) == oldest);
        }
        pool.entries.push_back(Entry { content, block, buffer });
    }

    /// Whether more read-ahead would push out what its readers still wait for.
    pub fn is_nearly_full(&self) -> bool {
        self.pool.lock().entries.len() + SPARE_PLACES >= self.blocks_max
    }

    /// A block that is still here.
    pub fn get(&self, content: u64, block: u64) -> Option<Arc<AlignedBuffer>> {
        let pool = self.pool.lock();
        let found = pool.entries.iter().find(|e| (e.content, e.block) == (content, block));
        found.map(|entry| entry.buffer.clone())
    }

    /// Forgets one block, because its reader went past its end.
    pub fn remove(&self, content: u64, block: u64) {
        self.pool.lock().drop_where(|entry| (entry.content, entry.block) == (content, block));
    }

    /// Forgets all blocks of a content, because it was written to or superseded.
    pub fn forget(&self, content: u64) {
        self.pool.lock().drop_where(|entry| entry.content == content);
    }

    /// Gives the memory of spare buffers back.
    pub fn trim(&self) {
        self.pool.lock().spare.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_is_bounded_forgets_and_uses_memory_again() {
        let pool = TransientBlocks::new(2, 8192);
        for block in 0..3 {
            pool.insert(7, block, Arc::new(pool.buffer(4096).unwrap()));
        }
        assert!(pool.get(7, 0).is_none() && pool.get(7, 2).is_some());
        pool.forget(7);
        assert!(pool.get(7, 2).is_none());
        assert_eq!(pool.pool.lock().spare.len(), 2);
        assert_eq!(pool.buffer(10_000).unwrap().bytes().len(), 8192, "never more than a block");
    }
}
