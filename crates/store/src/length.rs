//! Changes of a segment's length. Growing keeps the tail block resident with zeros behind the old
//! end; shrinking waits for short pins of what is cut off, never for fills.

use std::sync::Arc;

use tidepool_proto::table::BlockState;
use tidepool_proto::{Error, ErrorKind, Result};

use crate::backoff::Backoff;
use crate::catalog::{CatalogGuard, Victim};
use crate::cell::Refusal;
use crate::engine::Engine;
use crate::segment_memory::{SegmentMemory, State, charge_of};

/// Attempts to evict a tail block that somebody reads at this moment.
const TAIL_ATTEMPTS: usize = 100;

/// Bytes that make a file longer.
#[derive(Default)]
pub(crate) struct Growth<'a> {
    pub offset: u64,
    pub data: &'a [u8],
}

impl Growth<'_> {
    /// Writes what lies in the tail block behind the end, whose memory is there already.
    fn write_behind(&self, memory: &SegmentMemory, state: &mut State, tail: u64) -> Result<()> {
        let end_of_tail = (tail + 1) * memory.block_bytes;
        let from = memory.size().max(self.offset);
        let upto = end_of_tail.min(self.offset + self.data.len() as u64);
        if from >= upto {
            return Ok(());
        }
        let part = &self.data[(from - self.offset) as usize..(upto - self.offset) as usize];
        let base = memory.map(state)?;
        // SAFETY: the mapping reaches the end of the file, which was set, and the memory of the
        // range was populated. Nobody reads behind the length that is announced.
        unsafe {
            std::ptr::copy_nonoverlapping(part.as_ptr(), base.add(from as usize), part.len());
        }
        Ok(())
    }
}

/// A block that the new end of the file lies inside, made unreadable while it is cut.
struct Partial {
    charge: u64,
    state: BlockState,
}

impl Engine {
    /// Sets the length of a segment to exactly `bytes`.
    pub fn set_size(&self, memory: &Arc<SegmentMemory>, bytes: u64) -> Result<()> {
        let _serial = memory.lengths.lock();
        match bytes >= memory.size() {
            true => self.grow(memory, bytes, &Growth::default()),
            false => self.cut(memory, bytes),
        }
    }

    /// Makes a segment reach the end of `growth` at least. Readers that go by its length find the
    /// bytes in the block that the old end lies in, if that is resident.
    pub fn grow_with(&self, memory: &Arc<SegmentMemory>, growth: &Growth<'_>) -> Result<()> {
        let _serial = memory.lengths.lock();
        let bytes = growth.offset + growth.data.len() as u64;
        if bytes > memory.size() { self.grow(memory, bytes, growth) } else { Ok(()) }
    }

    /// Makes a segment at least `bytes` long.
    pub fn set_size_at_least(&self, memory: &Arc<SegmentMemory>, bytes: u64) -> Result<()> {
        let _serial = memory.lengths.lock();
        if bytes > memory.size() { self.grow(memory, bytes, &Growth::default()) } else { Ok(()) }
    }

    fn grow(&self, memory: &Arc<SegmentMemory>, bytes: u64, growth: &Growth<'_>) -> Result<()> {
        let tail = memory.size() / memory.block_bytes;
        let mut booked = 0;
        let mut backoff = Backoff::default();
        let mut attempts = 0;
        loop {
            let missing = {
                let mut state = memory.state.lock();
                let needed = growth_charge(memory, &state, tail, bytes);
                if needed <= booked {
                    let outcome = apply_growth(memory, &mut state, (tail, bytes, needed), growth);
                    drop(state);
                    let unused = booked - if outcome.is_ok() { needed } else { 0 };
                    if unused > 0 {
                        self.cancel_reservation(memory.owner, unused);
                    }
                    return outcome;
                }
                needed - booked
            };
            if self.reserve(memory.owner, missing) {
                booked += missing;
                continue;
            }
            // The tail itself may go, and may have gone while room was looked for.
            self.evict_blocks(memory, tail, tail + 1);
            let tail_state = memory.block_state(tail);
            let filling = memory.state.lock().fills.iter().any(|fill| fill.block == tail);
            if tail_state == BlockState::Absent && !filling {
                continue;
            }
            attempts += 1;
            if tail_state != BlockState::Clean || attempts > TAIL_ATTEMPTS {
                if booked > 0 {
                    self.cancel_reservation(memory.owner, booked);
                }
                return Err(no_room(bytes));
            }
            backoff.wait();
        }
    }

    pub(crate) fn cut(&self, memory: &Arc<SegmentMemory>, bytes: u64) -> Result<()> {
        let first_cut = bytes / memory.block_bytes;
        // What the kernel may read goes with the length of the file, not before as zeros.
        let mut kept_to_the_end = Vec::new();
        self.ask(memory);
        let is_borrowed = {
            let mut state = memory.state.lock();
            state.cutting_from = Some(first_cut);
            for fill in state.fills.iter_mut().filter(|fill| fill.block >= first_cut) {
                let start = fill.block * memory.block_bytes;
                fill.keep = fill.keep.min(bytes.saturating_sub(start));
            }
            state.borrow.is_active()
        };
        let mut partial = None;
        let mut backoff = Backoff::default();
        loop {
            let mut victims = Vec::new();
            {
                let mut catalog = self.catalog.lock();
                let mut state = memory.state.lock();
                let cut = (first_cut, bytes);
                let pinned =
                    retract_cut(&mut catalog, memory, &state, cut, &mut victims, &mut partial);
                if victims.is_empty() && !pinned {
                    let outcome = self.finish_cut(&mut catalog, memory, &mut state, bytes, partial);
                    drop((state, catalog));
                    self.free(kept_to_the_end);
                    return outcome;
                }
                memory.pin_less(&mut state, victims.iter().map(|victim| victim.charge).sum());
                self.announce_freeing(&catalog, &victims);
            }
            if is_borrowed && !victims.is_empty() {
                kept_to_the_end.append(&mut victims);
            } else if self.free(victims) == 0 {
                backoff.wait();
            }
        }
    }

    /// Nothing beyond `bytes` is resident any more: makes the cut.
    fn finish_cut(
        &self,
        catalog: &mut CatalogGuard<'_>,
        memory: &SegmentMemory,
        state: &mut State,
        bytes: u64,
        partial: Option<Partial>,
    ) -> Result<()> {
        state.cutting_from = None;
        memory.announce_size(state, bytes);
        let mut outcome = Ok(());
        if let Some(partial) = partial {
            let block = bytes / memory.block_bytes;
            let length = memory.block_length(block);
            // A fill further on may keep the file long, so the cut is not left to its length.
            outcome = memory.cut_block(state, block, length);
            memory.restore(state, block, partial.state);
            catalog.enter(memory, state, block);
            let surplus = partial.charge - charge_of(length);
            catalog.discharge(memory.owner, surplus);
            memory.pin_less(state, surplus);
            memory.remove_charge(surplus);
            self.budget.release(surplus);
        }
        outcome.and(memory.apply_length(state))
    }
}

/// Bytes to book for the block that the old end of the file lies in.
fn growth_charge(memory: &SegmentMemory, state: &State, tail: u64, bytes: u64) -> u64 {
    let length_after = (bytes - tail * memory.block_bytes).min(memory.block_bytes);
    let charge_after = charge_of(length_after);
    if let Some(fill) = state.fills.iter().find(|fill| fill.block == tail) {
        // A fill that did not book its own memory yet books it beside this.
        return charge_after.saturating_sub(fill.charge.max(charge_of(fill.length)));
    }
    if memory.block_state(tail) == BlockState::Absent {
        return 0;
    }
    charge_after - charge_of(memory.block_length(tail))
}

/// Grows with `charge` bytes booked for the tail block. Changes nothing if it fails.
fn apply_growth(
    memory: &SegmentMemory,
    state: &mut State,
    (tail, bytes, charge): (u64, u64, u64),
    growth: &Growth<'_>,
) -> Result<()> {
    let length_before = memory.block_length(tail);
    let length_after = (bytes - tail * memory.block_bytes).min(memory.block_bytes);
    let resident = memory.block_state(tail) != BlockState::Absent;
    // The file and its memory first: a reader that pins the tail may use all that the size says.
    let mut outcome = memory.lengthen(state, bytes);
    if outcome.is_ok() && resident && charge > 0 && !memory.populate(state, tail, length_after) {
        outcome = Err(no_room(bytes));
    }
    if outcome.is_ok() && resident {
        outcome = growth.write_behind(memory, state, tail);
    }
    if outcome.is_err() {
        _ = memory.apply_length(state);
        return outcome;
    }
    memory.announce_size(state, bytes);
    if resident {
        memory.add_resident_bytes(length_after - length_before);
    } else if let Some(fill) = state.fills.iter_mut().find(|fill| fill.block == tail) {
        fill.charge += charge;
    }
    memory.add_charge(charge);
    Ok(())
}

/// Makes all blocks from `first` on unreadable, whatever their state. The block that `bytes` lies
/// inside goes to `partial`, the others to `victims`. True: some are pinned still.
fn retract_cut(
    catalog: &mut CatalogGuard<'_>,
    memory: &Arc<SegmentMemory>,
    state: &State,
    (first, bytes): (u64, u64),
    victims: &mut Vec<Victim>,
    partial: &mut Option<Partial>,
) -> bool {
    let is_partial = |block| block == first && !bytes.is_multiple_of(memory.block_bytes);
    let mut pinned = false;
    for (block, _) in memory.cells.range(first, memory.blocks()) {
        match memory.retract(state, block, false) {
            Ok((charge, before)) => {
                catalog.leave(memory, block);
                if is_partial(block) {
                    *partial = Some(Partial { charge, state: before });
                } else {
                    catalog.discharge(memory.owner, charge);
                    victims.push(Victim { memory: memory.clone(), block, charge });
                }
            }
            Err(refusal) => pinned |= refusal == Refusal::Pinned,
        }
    }
    pinned
}

fn no_room(bytes: u64) -> Error {
    let detail = format!("no memory for a length of {bytes} bytes");
    Error::new(ErrorKind::StoreFull, "growing a segment", detail)
        .remedy("unpin files, wait for dirty bytes, or enlarge the store (`tidepool resize`)")
}
