//! The residency table: which blocks of a segment hold valid bytes, and the protocol for reading
//! them without a message or a lock.
//!
//! The table is a shared memory file of one 64-bit word a block after a header. The node writes it,
//! clients map it read-only. A word holds a generation and a state; every change of state takes a
//! new generation. A reader loads the word, reads the bytes, loads the word again: equal and
//! resident means that the bytes are those of the block (a sequence lock). The node publishes
//! *absent* before it frees the memory, and *resident* after it filled it.
//!
//! This module holds the word arithmetic and both sides of the protocol over a trait, so that the
//! store, the client and the model checker run the same code. It maps no memory.

/// Magic number at the start of a table: `TIDETAB1`.
pub const TABLE_MAGIC: u64 = u64::from_le_bytes(*b"TIDETAB1");
/// Bytes of the header before the first word: magic, block size, number of blocks, file size,
/// whether it is superseded, then reserved space up to one cache line.
pub const HEADER_BYTES: usize = 64;
/// Offset of the file size word in the header; it changes as local writers append or truncate.
pub const HEADER_SIZE_OFFSET: usize = 24;
/// Offset of the word that is not 0 once another program changed the file. An open for reading goes
/// on with these bytes; one that may write reads the file as it is now, all of it.
pub const HEADER_STALE_OFFSET: usize = 32;

/// State of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum BlockState {
    /// The memory holds nothing.
    Absent = 0,
    /// Equal to the PFS; may be evicted.
    Clean = 1,
    /// The PFS has no durable copy.
    Dirty = 2,
    /// Lives in memory only.
    MemoryOnly = 3,
}

const STATE_BITS: u32 = 2;
const STATE_MASK: u64 = (1 << STATE_BITS) - 1;

/// One word of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Word(pub u64);

impl Word {
    /// State of the block.
    pub fn state(self) -> BlockState {
        match self.0 & STATE_MASK {
            0 => BlockState::Absent,
            1 => BlockState::Clean,
            2 => BlockState::Dirty,
            _ => BlockState::MemoryOnly,
        }
    }

    /// Number of state changes so far.
    pub fn generation(self) -> u64 {
        self.0 >> STATE_BITS
    }

    /// Whether the block's bytes may be read.
    pub fn is_resident(self) -> bool {
        self.state() != BlockState::Absent
    }

    /// The word after a change to `state`.
    #[must_use]
    pub fn next(self, state: BlockState) -> Word {
        Word((self.generation().wrapping_add(1) << STATE_BITS) | state as u64)
    }
}

/// Access to one word, with the memory orders that the protocol needs. Implemented for the atomics
/// of the standard library and, in tests, for those of the model checker.
pub trait WordCell {
    /// Loads with acquire order.
    fn load_acquire(&self) -> u64;
    /// Loads after an acquire fence, so that reads before this call stay before it.
    fn load_after_fence(&self) -> u64;
    /// Stores with release order.
    fn store_release(&self, value: u64);
    /// Stores, then a full fence, so that nothing after this call moves before it.
    fn store_before_fence(&self, value: u64);
}

impl WordCell for std::sync::atomic::AtomicU64 {
    fn load_acquire(&self) -> u64 {
        self.load(std::sync::atomic::Ordering::Acquire)
    }

    fn load_after_fence(&self) -> u64 {
        std::sync::atomic::fence(std::sync::atomic::Ordering::Acquire);
        self.load(std::sync::atomic::Ordering::Relaxed)
    }

    fn store_release(&self, value: u64) {
        self.store(value, std::sync::atomic::Ordering::Release);
    }

    fn store_before_fence(&self, value: u64) {
        self.store(value, std::sync::atomic::Ordering::Relaxed);
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
    }
}

/// The reader's side: runs `read` and returns its result only if the block stayed resident and
/// unchanged throughout. `None` means: ask the node.
#[inline]
pub fn read_if_resident<C: WordCell, T>(cell: &C, read: impl FnOnce() -> T) -> Option<T> {
    let before = Word(cell.load_acquire());
    if !before.is_resident() {
        return None;
    }
    let result = read();
    (cell.load_after_fence() == before.0).then_some(result)
}

/// The node's side of a fill: call after the bytes are in place.
pub fn publish<C: WordCell>(cell: &C, state: BlockState) {
    let word = Word(cell.load_acquire()).next(state);
    cell.store_release(word.0);
}

/// The node's side of an eviction: call before the memory is freed or overwritten.
pub fn retract<C: WordCell>(cell: &C) {
    let word = Word(cell.load_acquire()).next(BlockState::Absent);
    cell.store_before_fence(word.0);
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn a_read_across_an_eviction_is_discarded() {
        let cell = AtomicU64::new(0);
        assert_eq!(read_if_resident(&cell, || 1), None);
        publish(&cell, BlockState::Clean);
        assert_eq!(read_if_resident(&cell, || 1), Some(1));
        assert_eq!(read_if_resident(&cell, || retract(&cell)), None);
        publish(&cell, BlockState::Clean);
        let evicted_and_refilled = || {
            retract(&cell);
            publish(&cell, BlockState::Clean);
        };
        assert_eq!(read_if_resident(&cell, evicted_and_refilled), None, "the generation tells");
    }
}
