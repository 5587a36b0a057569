//! Filling a block: the memory is there, writable and private to the filler until it is published.

use std::fmt;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use tidepool_proto::table::BlockState;

use crate::backoff::Backoff;
use crate::cell::Cell;
use crate::engine::Engine;
use crate::policy::EvictionTerms;
use crate::segment_memory::{ActiveFill, SegmentMemory, charge_of};

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

impl Engine {
    /// Begins to fill a block. Read-ahead comes in only where the policy wants it.
    pub fn begin_fill(
        self: &Arc<Self>,
        memory: &Arc<SegmentMemory>,
        block: u64,
        is_read_ahead: bool,
    ) -> FillStart {
        let mut backoff = Backoff::default();
        let length = loop {
            let mut state = memory.state.lock();
            let length = memory.block_length(block);
            let being_cut = state.cutting_from.is_some_and(|first| block >= first);
            if length == 0 || state.closed || being_cut || u32::try_from(block).is_err() {
                return FillStart::NotAdmitted;
            }
            if self.budget.capacity() == 0 && memory.cells.get(block).is_none() {
                return FillStart::NotAdmitted;
            }
            match memory.cells.get_or_create(block).word.start_fill() {
                Ok(()) => {
                    let keep = length;
                    state.fills.push(ActiveFill { block, length, keep, charge: 0, stale: false });
                    break length;
                }
                Err(word) if word.is_resident() => return FillStart::Resident,
                Err(word) if word.is_filling() => return FillStart::Busy,
                Err(_) => {}
            }
            drop(state);
            // Its memory is being freed, which does not take long.
            backoff.wait();
        };
        let terms = match is_read_ahead {
            true => self.catalog.lock().admits(memory, block),
            false => EvictionTerms::Any,
        };
        let charge = charge_of(length);
        if !self.reserve_on(memory.owner, charge, terms) {
            if is_read_ahead {
                self.catalog.lock().refused(memory, block);
            }
            self.end_fill(memory, block);
            return FillStart::NotAdmitted;
        }
        memory.add_charge(charge);
        let added = |fill: &mut ActiveFill| fill.charge += charge;
        memory.state.lock().fills.iter_mut().filter(|fill| fill.block == block).for_each(added);
        match memory.populate_for_fill(block, length) {
            Some(address) => {
                FillStart::Started(BlockFill::new(self, memory, block, address, length))
            }
            None => {
                self.end_fill(memory, block);
                FillStart::NotAdmitted
            }
        }
    }

    /// Ends a fill by publishing the block. `None`: its bytes are stale and were
    /// discarded. Otherwise the generation of its word.
    pub fn commit(
        &self,
        memory: &Arc<SegmentMemory>,
        block: u64,
        block_state: BlockState,
    ) -> Option<u64> {
        let Some(generation) = self.publish(memory, block, block_state) else {
            self.end_fill(memory, block);
            return None;
        };
        if self.budget.excess() > 0 {
            self.trim();
        }
        Some(generation)
    }

    fn publish(&self, memory: &SegmentMemory, block: u64, block_state: BlockState) -> Option<u64> {
        let mut catalog = self.catalog.lock();
        let mut state = memory.state.lock();
        let length = memory.block_length(block);
        let place = state.fills.iter().position(|fill| fill.block == block);
        let place = place.expect("a fill is registered until it ends");
        let fill = &state.fills[place];
        let is_stale = fill.stale || fill.keep < fill.length;
        let unwanted = state.closed || length == 0 || fill.keep == 0;
        if unwanted || block_state == BlockState::Absent {
            return None;
        }
        if is_stale && block_state == BlockState::Clean {
            return None;
        }
        let fill = state.fills.swap_remove(place);
        // What a truncation cut off during the fill reads as zeros from then on.
        if fill.keep < fill.length {
            let cut = memory.cut_block(&mut state, block, fill.keep);
            if cut.is_err() || !memory.populate(&mut state, block, length) {
                state.fills.push(fill);
                return None;
            }
        }
        let surplus = fill.charge.saturating_sub(charge_of(length));
        let generation = memory.publish(&mut state, block, block_state);
        catalog.enter(memory, &state, block);
        if surplus > 0 {
            catalog.discharge(memory.owner, surplus);
            memory.remove_charge(surplus);
            self.budget.release(surplus);
        }
        _ = memory.apply_length(&mut state);
        Some(generation)
    }

    /// Ends a fill by giving the memory back.
    pub fn end_fill(&self, memory: &SegmentMemory, block: u64) {
        let start = block * memory.block_bytes;
        memory.file.punch(start, memory.block_bytes);
        let charge = {
            let mut catalog = self.catalog.lock();
            let mut state = memory.state.lock();
            let place = state.fills.iter().position(|fill| fill.block == block);
            let fill = state.fills.swap_remove(place.expect("a fill is registered until it ends"));
            let cell = memory.cells.get(block).expect("a block under a fill has a cell");
            cell.word.abandon_fill();
            catalog.discharge(memory.owner, fill.charge);
            _ = memory.apply_length(&mut state);
            fill.charge
        };
        memory.remove_charge(charge);
        self.budget.release(charge);
    }
}
