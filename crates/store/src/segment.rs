//! One cached version of a file: a sparse memory file, filled, read and freed in blocks.

use std::ops::{Deref, DerefMut};
use std::os::fd::BorrowedFd;

use tidepool_proto::table::BlockState;
use tidepool_proto::{HandOut, Result};

/// One cached version of a file.
#[derive(Debug)]
pub struct Segment {}

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

/// The memory of a block that is being filled; dropping it gives the memory back.
#[derive(Debug)]
pub struct BlockFill {}

impl BlockFill {
    /// Publishes the block. `false`: the bytes were superseded meanwhile and were discarded.
    pub fn commit(self, _state: BlockState) -> bool {
        unimplemented!()
    }
}

impl Deref for BlockFill {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        unimplemented!()
    }
}

impl DerefMut for BlockFill {
    fn deref_mut(&mut self) -> &mut [u8] {
        unimplemented!()
    }
}

/// A resident block that stays while this lives.
#[derive(Debug)]
pub struct BlockPin {}

impl Deref for BlockPin {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        unimplemented!()
    }
}

/// A counted pin of all blocks of a wholly resident segment.
#[derive(Debug)]
pub struct SegmentHold {}

impl Segment {
    /// Number of the segment, never reused within a store.
    pub fn id(&self) -> u64 {
        unimplemented!()
    }
    /// Length in bytes.
    pub fn size(&self) -> u64 {
        unimplemented!()
    }
    /// Sets the length in bytes.
    pub fn set_size(&self, _bytes: u64) -> Result<()> {
        unimplemented!()
    }
    /// Bytes of a block.
    pub fn block_bytes(&self) -> u64 {
        unimplemented!()
    }
    /// Number of blocks.
    pub fn blocks(&self) -> u64 {
        unimplemented!()
    }
    /// State of a block.
    pub fn state(&self, _block: u64) -> BlockState {
        unimplemented!()
    }
    /// Bytes resident.
    pub fn resident_bytes(&self) -> u64 {
        unimplemented!()
    }
    /// Whether every block is resident.
    pub fn is_wholly_resident(&self) -> bool {
        unimplemented!()
    }
    /// Starts to fill a block.
    pub fn begin_fill(&self, _block: u64) -> FillStart {
        unimplemented!()
    }
    /// Pins a resident block for a short read and marks a hit.
    pub fn pin_block(&self, _block: u64) -> Option<BlockPin> {
        unimplemented!()
    }
    /// Patches bytes of resident blocks; returns how many.
    pub fn write_resident(&self, _offset: u64, _data: &[u8]) -> u64 {
        unimplemented!()
    }
    /// Changes the state of a resident block.
    pub fn set_state(&self, _block: u64, _state: BlockState) {
        unimplemented!()
    }
    /// Evicts a block if it is clean and unpinned.
    pub fn evict_block(&self, _block: u64) -> bool {
        unimplemented!()
    }
    /// Evicts all clean unpinned blocks; returns bytes.
    pub fn evict(&self) -> u64 {
        unimplemented!()
    }
    /// Drops all blocks regardless of state.
    pub fn drop_contents(&self) {
        unimplemented!()
    }
    /// Holds all blocks of a wholly resident segment.
    pub fn hold(&self) -> Option<SegmentHold> {
        unimplemented!()
    }
    /// Read-only descriptor of the memory file.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        unimplemented!()
    }
    /// Descriptors for readers in other processes.
    pub fn hand_out(&self) -> Result<HandOut> {
        unimplemented!()
    }
    /// Marks it as superseded: first to be evicted.
    pub fn retire(&self) {
        unimplemented!()
    }
    /// How near to eviction, from 0 (next) to 1 (last).
    pub fn rank(&self) -> Option<f64> {
        unimplemented!()
    }
}
