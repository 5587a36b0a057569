//! Growth of a pinned segment: the bytes are in the file before the length says so, because the
//! kernel (passthrough) and clients read up to the length without asking anybody. Growth that
//! finds no memory is refused with nothing changed; it never evicts what is pinned.

use std::sync::Arc;

use tidepool_proto::table::BlockState;

use crate::cell::Cell;
use crate::engine::Engine;
use crate::segment_memory::{SegmentMemory, charge_of};

/// What a gap is written from, piece by piece.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl Engine {
    /// Appends `zeros` zeros and then `data` to a wholly resident segment, whose new blocks become
    /// `block_state`. False: there was no memory, and the segment is as it was.
    pub fn extend(
        &self,
        memory: &Arc<SegmentMemory>,
        zeros: u64,
        data: &[u8],
        block_state: BlockState,
    ) -> bool {
        let _serial = memory.lengths.lock();
        if !self.may_pin_more(memory, zeros.saturating_add(data.len() as u64)) {
            return false;
        }
        let size_before = memory.size();
        let append = |part: &[u8]| self.append(memory, part, block_state);
        let mut gap = zeros;
        while gap > 0 {
            let part = gap.min(ZEROS.len() as u64);
            if !append(&ZEROS[..part as usize]) {
                break;
            }
            gap -= part;
        }
        if gap == 0 && append(data) {
            return true;
        }
        if memory.size() > size_before {
            // Should this fail, the memory file stays longer than the size until it changes again.
            _ = self.cut(memory, size_before);
        }
        false
    }

    /// Spares the others an eviction for growth that the cap on pins refuses in the end.
    fn may_pin_more(&self, memory: &SegmentMemory, bytes: u64) -> bool {
        memory.state.lock().segment_pins == 0 || self.budget.may_pin(bytes)
    }

    fn append(&self, memory: &Arc<SegmentMemory>, data: &[u8], block_state: BlockState) -> bool {
        let mut rest = data;
        while !rest.is_empty() {
            let room = memory.block_bytes - memory.size() % memory.block_bytes;
            let (part, later) = rest.split_at(rest.len().min(room as usize));
            if !self.extend_within_block(memory, part, block_state) {
                return false;
            }
            rest = later;
        }
        true
    }

    fn extend_within_block(
        &self,
        memory: &Arc<SegmentMemory>,
        part: &[u8],
        block_state: BlockState,
    ) -> bool {
        let size = memory.size();
        let (block, within) = (size / memory.block_bytes, size % memory.block_bytes);
        let grown = charge_of(within + part.len() as u64);
        let charge = if within > 0 { grown - charge_of(within) } else { grown };
        if u32::try_from(block).is_err() || !self.reserve(memory.owner, charge) {
            return false;
        }
        if !self.append_booked(memory, block, part, (charge, block_state)) {
            self.cancel_reservation(memory.owner, charge);
            return false;
        }
        true
    }

    /// Appends within one block with the memory booked; false leaves everything as it was.
    fn append_booked(
        &self,
        memory: &Arc<SegmentMemory>,
        block: u64,
        part: &[u8],
        (charge, block_state): (u64, BlockState),
    ) -> bool {
        let mut catalog = self.catalog.lock();
        let mut state = memory.state.lock();
        let size = memory.size();
        let is_new = size.is_multiple_of(memory.block_bytes);
        let usable = !state.closed && state.cutting_from.is_none() && state.fills.is_empty();
        if !usable || !memory.is_wholly_resident() || !memory.pin_more(&mut state, charge) {
            return false;
        }
        if is_new && memory.cells.get_or_create(block).word.start_fill().is_err() {
            memory.pin_less(&mut state, charge);
            return false;
        }
        if !memory.append_to_file(&mut state, part) {
            if is_new {
                let cell = memory.cells.get(block).expect("made just now");
                cell.word.abandon_fill();
            }
            memory.pin_less(&mut state, charge);
            return false;
        }
        memory.add_charge(charge);
        if is_new {
            memory.publish(&mut state, block, block_state);
            catalog.enter(memory, &state, block);
        } else {
            memory.add_resident_bytes(part.len() as u64);
        }
        true
    }
}
