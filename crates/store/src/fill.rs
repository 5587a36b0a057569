//! Filling a block: the memory is there, writable and private to the filler until it is published.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use tidepool_proto::table::BlockState;

use crate::engine::Engine;
use crate::segment_memory::SegmentMemory;

/// How a fill begins.
#[derive(Debug)]
pub enum FillStart {
    /// The caller fills the block and commits it.
    Started(BlockFill),
    /// The block is resident already.
    Resident,
    /// Another fill of it is under way.
    Busy,
    /// No room, or the policy or a quota says no, or the memory could not be had.
    NotAdmitted,
}

/// The memory of a block that is being filled. It is zeroed at first, and populated, so that
/// touching it cannot fault. Dropping it without a commit gives the memory back.
pub struct BlockFill {
    engine: Arc<Engine>,
    memory: Arc<SegmentMemory>,
    block: u64,
    address: *mut u8,
    length: usize,
    ended: bool,
}

// SAFETY: the memory belongs to the fill alone until it ends; the pointer has no thread affinity.
unsafe impl Send for BlockFill {}
// SAFETY: shared access gives out shared slices only.
unsafe impl Sync for BlockFill {}

impl BlockFill {
    pub(crate) fn new(
        engine: &Arc<Engine>,
        memory: &Arc<SegmentMemory>,
        block: u64,
        address: *mut u8,
        length: u64,
    ) -> Self {
        let (engine, memory) = (engine.clone(), memory.clone());
        BlockFill { engine, memory, block, address, length: length as usize, ended: false }
    }

    /// Number of the block.
    pub fn block(&self) -> u64 {
        self.block
    }

    /// Publishes the block. `false` means that its bytes became stale during the fill and are
    /// discarded: the segment was discarded or the block was cut off, or it is committed as clean
    /// and `write_resident` or a truncation passed over it.
    pub fn commit(self, state: BlockState) -> bool {
        self.commit_generation(state).is_some()
    }

    /// As `commit`, and tells the generation of the block's word that readers will find.
    pub(crate) fn commit_generation(mut self, state: BlockState) -> Option<u64> {
        self.ended = true;
        self.engine.commit(&self.memory, self.block, state)
    }
}

impl Deref for BlockFill {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is mapped and populated, stays so while the fill is registered, and
        // nobody else writes it.
        unsafe { std::slice::from_raw_parts(self.address, self.length) }
    }
}

impl DerefMut for BlockFill {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and nobody else reads it before the commit.
        unsafe { std::slice::from_raw_parts_mut(self.address, self.length) }
    }
}

impl Drop for BlockFill {
    fn drop(&mut self) {
        if !self.ended {
            self.engine.end_fill(&self.memory, self.block);
        }
    }
}

impl fmt::Debug for BlockFill {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("BlockFill");
        shown.field("segment", &self.memory.id).field("block", &self.block).finish()
    }
}
