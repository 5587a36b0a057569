//! Changes of a segment's length. Growing keeps the tail block resident with zeros behind the old
//! end; shrinking waits for short pins of what is cut off, never for fills.

use std::sync::Arc;

use tidepool_proto::table::BlockState;
use tidepool_proto::{Error, ErrorKind, Result};

use crate::catalog::{CatalogGuard, Victim};
use crate::cell::Refusal;
use crate::engine::{Engine, Patience};
use crate::segment_memory::{Content, State, charge_of};

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
    fn write_behind(&self, content: &Content, state: &mut State, tail: u64) -> Result<()> {
        let end_of_tail = (tail + 1) * content.block_bytes;
        let from = content.size().max(self.offset);
        let upto = end_of_tail.min(self.offset + self.data.len() as u64);
        if from >= upto {
            return Ok(());
        }
        let part = &self.data[(from - self.offset) as usize..(upto - self.offset) as usize];
        let base = content.map(state)?;
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
    /// Sets the length of a content to exactly `bytes`.
    pub fn set_size(&self, content: &Arc<Content>, bytes: u64) -> Result<()> {
        let _serial = content.lengths.lock();
        match bytes >= content.size() {
            true => self.grow(content, bytes, &Growth::default()),
            false => self.cut(content, bytes),
        }
    }

    /// Makes a content reach the end of `growth` at least. Who goes by its length finds the bytes
    /// in the block that the old end lies in, if that is resident.
    pub fn grow_with(&self, content: &Arc<Content>, growth: &Growth<'_>) -> Result<()> {
        let _serial = content.lengths.lock();
        let bytes = growth.offset + growth.data.len() as u64;
        if bytes > content.size() { self.grow(content, bytes, growth) } else { Ok(()) }
    }

    /// Makes a content at least `bytes` long.
    pub fn set_size_at_least(&self, content: &Arc<Content>, bytes: u64) -> Result<()> {
        let _serial = content.lengths.lock();
        if bytes > content.size() { self.grow(content, bytes, &Growth::default()) } else { Ok(()) }
    }

    fn grow(&self, content: &Arc<Content>, bytes: u64, growth: &Growth<'_>) -> Result<()> {
        let tail = content.size() / content.block_bytes;
        let mut booked = 0;
        let mut patience = Patience::default();
        let mut attempts = 0;
        loop {
            let missing = {
                let mut state = content.state.lock();
                let needed = growth_charge(content, &state, tail, bytes);
                if needed <= booked {
                    let outcome = apply_growth(content, &mut state, (tail, bytes, needed), growth);
                    drop(state);
                    let unused = booked - if outcome.is_ok() { needed } else { 0 };
                    if unused > 0 {
                        self.cancel_reservation(content.owner, unused);
                    }
                    return outcome;
                }
                needed - booked
            };
            if self.reserve(content.owner, missing) {
                booked += missing;
                continue;
            }
            // The tail itself may go, and may have gone while room was looked for.
            self.evict_blocks(content, tail, tail + 1);
            let tail_state = content.block_state(tail);
            let filling = content.state.lock().fills.iter().any(|fill| fill.block == tail);
            if tail_state == BlockState::Absent && !filling {
                continue;
            }
            attempts += 1;
            if tail_state != BlockState::Clean || attempts > TAIL_ATTEMPTS {
                if booked > 0 {
                    self.cancel_reservation(content.owner, booked);
                }
                return Err(no_room(bytes));
            }
            patience.wait();
        }
    }

    pub(crate) fn cut(&self, content: &Arc<Content>, bytes: u64) -> Result<()> {
        let first_cut = bytes / content.block_bytes;
        // What the kernel may read goes with the length of the file, not before as zeros.
        let mut kept_to_the_end = Vec::new();
        self.ask(content);
        let is_lent = {
            let mut state = content.state.lock();
            state.cutting_from = Some(first_cut);
            for fill in state.fills.iter_mut().filter(|fill| fill.block >= first_cut) {
                let start = fill.block * content.block_bytes;
                fill.keep = fill.keep.min(bytes.saturating_sub(start));
            }
            state.loan.is_active()
        };
        let mut partial = None;
        let mut patience = Patience::default();
        loop {
            let mut victims = Vec::new();
            {
                let mut catalog = self.catalog.lock();
                let mut state = content.state.lock();
                let cut = (first_cut, bytes);
                let pinned =
                    retract_cut(&mut catalog, content, &state, cut, &mut victims, &mut partial);
                if victims.is_empty() && !pinned {
                    let outcome =
                        self.finish_cut(&mut catalog, content, &mut state, bytes, partial);
                    drop((state, catalog));
                    self.free(kept_to_the_end);
                    return outcome;
                }
                content.hold_less(&mut state, victims.iter().map(|victim| victim.charge).sum());
                self.announce_freeing(&catalog, &victims);
            }
            if is_lent && !victims.is_empty() {
                kept_to_the_end.append(&mut victims);
            } else if self.free(victims) == 0 {
                patience.wait();
            }
        }
    }

    /// Nothing beyond `bytes` is resident any more: makes the cut.
    fn finish_cut(
        &self,
        catalog: &mut CatalogGuard<'_>,
        content: &Content,
        state: &mut State,
        bytes: u64,
        partial: Option<Partial>,
    ) -> Result<()> {
        state.cutting_from = None;
        content.announce_size(state, bytes);
        let mut outcome = Ok(());
        if let Some(partial) = partial {
            let block = bytes / content.block_bytes;
            let length = content.block_length(block);
            // A fill further on may keep the file long, so the cut is not left to its length.
            outcome = content.cut_block(state, block, length);
            content.restore(state, block, partial.state);
            catalog.enter(content, state, block);
            let surplus = partial.charge - charge_of(length);
            catalog.discharge(content.owner, surplus);
            content.hold_less(state, surplus);
            content.remove_charge(surplus);
            self.budget.release(surplus);
        }
        outcome.and(content.apply_length(state))
    }
}

/// Bytes to book for the block that the old end of the file lies in.
fn growth_charge(content: &Content, state: &State, tail: u64, bytes: u64) -> u64 {
    let length_after = (bytes - tail * content.block_bytes).min(content.block_bytes);
    let charge_after = charge_of(length_after);
    if let Some(fill) = state.fills.iter().find(|fill| fill.block == tail) {
        // A fill that did not book its own memory yet books it beside this.
        return charge_after.saturating_sub(fill.charge.max(charge_of(fill.length)));
    }
    if content.block_state(tail) == BlockState::Absent {
        return 0;
    }
    charge_after - charge_of(content.block_length(tail))
}

/// Grows with `charge` bytes booked for the tail block. Changes nothing if it fails.
fn apply_growth(
    content: &Content,
    state: &mut State,
    (tail, bytes, charge): (u64, u64, u64),
    growth: &Growth<'_>,
) -> Result<()> {
    let length_before = content.block_length(tail);
    let length_after = (bytes - tail * content.block_bytes).min(content.block_bytes);
    let resident = content.block_state(tail) != BlockState::Absent;
    // The file and its memory first: who pins the tail may use all that the size says.
    let mut outcome = content.lengthen(state, bytes);
    if outcome.is_ok() && resident && charge > 0 && !content.populate(state, tail, length_after) {
        outcome = Err(no_room(bytes));
    }
    if outcome.is_ok() && resident {
        outcome = growth.write_behind(content, state, tail);
    }
    if outcome.is_err() {
        _ = content.apply_length(state);
        return outcome;
    }
    content.announce_size(state, bytes);
    if resident {
        content.add_resident_bytes(length_after - length_before);
    } else if let Some(fill) = state.fills.iter_mut().find(|fill| fill.block == tail) {
        fill.charge += charge;
    }
    content.add_charge(charge);
    Ok(())
}

/// Makes all blocks from `first` on unreadable, whatever their state. The block that `bytes` lies
/// inside goes to `partial`, the others to `victims`. True: some are pinned still.
fn retract_cut(
    catalog: &mut CatalogGuard<'_>,
    content: &Arc<Content>,
    state: &State,
    (first, bytes): (u64, u64),
    victims: &mut Vec<Victim>,
    partial: &mut Option<Partial>,
) -> bool {
    let is_partial = |block| block == first && !bytes.is_multiple_of(content.block_bytes);
    let mut pinned = false;
    for (block, _) in content.cells.range(first, content.blocks()) {
        match content.retract(state, block, false) {
            Ok((charge, before)) => {
                catalog.leave(content, block);
                if is_partial(block) {
                    *partial = Some(Partial { charge, state: before });
                } else {
                    catalog.discharge(content.owner, charge);
                    victims.push(Victim { content: content.clone(), block, charge });
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
        .remedy("unpin files, wait for owed writes, or enlarge the store (`tidepool resize`)")
}
