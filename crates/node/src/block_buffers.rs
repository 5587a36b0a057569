//! Buffers of a block for bytes that are not in the store: blocks that pass through because the
//! policy did not admit them, and blocks that are gathered while they are written.
//!
//! A bounded pool beside the store's capacity. A block read ahead of its reader waits here until it
//! was read once. Released memory is used again, because new memory would have to be zeroed first.
//! It is part of the overhead that the node states at start.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tidepool_proto::Level;
use tidepool_proto::mapping::Memory;

/// Buffers that are kept to be used again.
const SPARE_MAX: usize = 4;
/// Places left to blocks that a reader needs at once.
const SPARE_PLACES: usize = 4;
/// Blocks that are gathered at a time in all files; beyond it, blocks are filled as they grow.
const GATHERED_MAX: usize = 16;

/// A page-aligned buffer, so that direct I/O can fill it. Its memory goes back to its pool.
#[derive(Debug)]
pub struct AlignedBuffer {
    /// Taken out by the drop.
    memory: Option<Memory>,
    /// Where its bytes came from.
    pub level: Level,
    length: usize,
    gathers: bool,
    pool: Arc<Spare>,
}

impl AlignedBuffer {
    /// The bytes.
    pub fn bytes(&self) -> &[u8] {
        &self.memory.as_ref().expect("there until the drop").bytes()[..self.length]
    }

    /// The bytes, to be filled.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.memory.as_mut().expect("there until the drop").bytes_mut()[..self.length]
    }
}

impl Drop for AlignedBuffer {
    fn drop(&mut self) {
        if self.gathers {
            self.pool.gathered.fetch_sub(1, Ordering::AcqRel);
        }
        let mut memory = self.pool.memory.lock();
        if memory.len() < SPARE_MAX {
            memory.extend(self.memory.take());
        }
    }
}

/// Memory to be used again, all of one block's length.
#[derive(Debug, Default)]
struct Spare {
    memory: Mutex<Vec<Memory>>,
    gathered: AtomicUsize,
}

/// Recently read blocks that were not admitted, newest last, at most a fixed number, and buffers to
/// use again.
#[derive(Debug)]
pub struct BlockBuffers {
    entries: Mutex<VecDeque<Entry>>,
    spare: Arc<Spare>,
    blocks_max: usize,
    block_bytes: usize,
}

#[derive(Debug)]
struct Entry {
    cached: u64,
    block: u64,
    buffer: Arc<AlignedBuffer>,
}

impl BlockBuffers {
    /// A pool of at most `blocks_max` blocks of `block_bytes`, spare buffers included.
    pub fn new(blocks_max: usize, block_bytes: u64) -> Self {
        BlockBuffers {
            entries: Mutex::default(),
            spare: Arc::default(),
            blocks_max,
            block_bytes: block_bytes as usize,
        }
    }

    /// A buffer of `length` bytes, at most a block, whose content is of no meaning.
    pub fn buffer(&self, length: usize) -> std::io::Result<AlignedBuffer> {
        let spare = self.spare.memory.lock().pop();
        let memory = match spare {
            Some(memory) => memory,
            None => Memory::new(self.block_bytes)?,
        };
        Ok(AlignedBuffer {
            memory: Some(memory),
            level: Level::Pfs,
            length: length.min(self.block_bytes),
            gathers: false,
            pool: self.spare.clone(),
        })
    }

    /// A buffer for a block that is being written, unless too many are.
    pub fn gathering_buffer(&self) -> Option<AlignedBuffer> {
        let mut buffer = self.buffer(self.block_bytes).ok()?;
        buffer.gathers = true;
        let before = self.spare.gathered.fetch_add(1, Ordering::AcqRel);
        (before < GATHERED_MAX).then_some(buffer)
    }

    /// Keeps a block of the cached version numbered `cached` until it is pushed out.
    pub fn insert(&self, cached: u64, block: u64, buffer: Arc<AlignedBuffer>) {
        let mut entries = self.entries.lock();
        if entries.len() >= self.blocks_max {
            entries.pop_front();
        }
        entries.push_back(Entry { cached, block, buffer });
    }

    /// Whether more read-ahead would push out what its readers still wait for.
    pub fn is_nearly_full(&self) -> bool {
        self.entries.lock().len() + SPARE_PLACES >= self.blocks_max
    }

    /// A block that is still here.
    pub fn get(&self, cached: u64, block: u64) -> Option<Arc<AlignedBuffer>> {
        let entries = self.entries.lock();
        let found = entries.iter().find(|e| (e.cached, e.block) == (cached, block));
        found.map(|entry| entry.buffer.clone())
    }

    /// Drops one block, because its reader went past its end.
    pub fn remove(&self, cached: u64, block: u64) {
        self.entries.lock().retain(|entry| (entry.cached, entry.block) != (cached, block));
    }

    /// Drops all blocks of a cached version, because it was written to or invalidated.
    pub fn discard(&self, cached: u64) {
        self.entries.lock().retain(|entry| entry.cached != cached);
    }

    /// Frees the memory of spare buffers.
    pub fn trim(&self) {
        let memory = std::mem::take(&mut *self.spare.memory.lock());
        drop(memory);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pool_is_bounded_forgets_and_uses_memory_again() {
        let pool = BlockBuffers::new(2, 8192);
        for block in 0..3 {
            pool.insert(7, block, Arc::new(pool.buffer(4096).unwrap()));
        }
        assert!(pool.get(7, 0).is_none() && pool.get(7, 2).is_some());
        let read = pool.get(7, 1);
        pool.discard(7);
        assert!(pool.get(7, 2).is_none());
        let spare = |pool: &BlockBuffers| pool.spare.memory.lock().len();
        assert_eq!(spare(&pool), 2, "what was pushed out and what was forgotten");
        drop(read);
        assert_eq!(spare(&pool), 3, "also what a reader still had");
        assert_eq!(pool.buffer(10_000).unwrap().bytes().len(), 8192, "never more than a block");
        pool.trim();
        assert_eq!(spare(&pool), 0);
    }

    #[test]
    fn only_so_many_blocks_are_gathered_at_a_time() {
        let pool = BlockBuffers::new(2, 8192);
        let mut gathered: Vec<_> = (0..GATHERED_MAX).map(|_| pool.gathering_buffer()).collect();
        assert!(gathered.iter().all(Option::is_some));
        assert!(pool.gathering_buffer().is_none() && pool.gathering_buffer().is_none());
        gathered.pop();
        assert!(pool.gathering_buffer().is_some());
        drop(gathered);
        assert_eq!(pool.spare.gathered.load(Ordering::Acquire), 0);
        assert!(pool.spare.memory.lock().len() <= SPARE_MAX);
    }
}
