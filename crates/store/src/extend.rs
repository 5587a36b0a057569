//! Growth of a held segment: the bytes are in the file before the length says so, because the
//! kernel (passthrough) and clients read up to the length without asking anybody. Growth that
//! finds no memory is refused with nothing changed; it never evicts what is held.

use std::sync::Arc;

use tidepool_proto::table::BlockState;

use crate::cell::Cell;
use crate::engine::Engine;
use crate::segment_memory::{Content, charge_of};

/// What a gap is written from, piece by piece.
static ZEROS: [u8; 64 << 10] = [0; 64 << 10];

impl Engine {
    /// Appends `zeros` zeros and then `data` to a wholly resident content, whose new blocks become
    /// `block_state`. False: there was no memory, and the content is as it was.
    pub fn extend(
        &self,
        content: &Arc<Content>,
        zeros: u64,
        data: &[u8],
        block_state: BlockState,
    ) -> bool {
        let _serial = content.lengths.lock();
        if !self.may_hold_more(content, zeros.saturating_add(data.len() as u64)) {
            return false;
        }
        let size_before = content.size();
        let append = |part: &[u8]| self.append(content, part, block_state);
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
        if content.size() > size_before {
            // Should this fail, the memory file stays longer than the size until it changes again.
            _ = self.cut(content, size_before);
        }
        false
    }

    /// Spares the others an eviction for growth that the cap on holds refuses in the end.
    fn may_hold_more(&self, content: &Content, bytes: u64) -> bool {
        content.state.lock().holds == 0 || self.budget.may_hold(bytes)
    }

    fn append(&self, content: &Arc<Content>, data: &[u8], block_state: BlockState) -> bool {
        let mut rest = data;
        while !rest.is_empty() {
            let room = content.block_bytes - content.size() % content.block_bytes;
            let (part, later) = rest.split_at(rest.len().min(room as usize));
            if !self.extend_within_block(content, part, block_state) {
                return false;
            }
            rest = later;
        }
        true
    }

    fn extend_within_block(
        &self,
        content: &Arc<Content>,
        part: &[u8],
        block_state: BlockState,
    ) -> bool {
        let size = content.size();
        let (block, within) = (size / content.block_bytes, size % content.block_bytes);
        let grown = charge_of(within + part.len() as u64);
        let charge = if within > 0 { grown - charge_of(within) } else { grown };
        if u32::try_from(block).is_err() || !self.reserve(content.owner, charge) {
            return false;
        }
        if !self.append_booked(content, block, part, (charge, block_state)) {
            self.cancel_reservation(content.owner, charge);
            return false;
        }
        true
    }

    /// Appends within one block with the memory booked; false leaves everything as it was.
    fn append_booked(
        &self,
        content: &Arc<Content>,
        block: u64,
        part: &[u8],
        (charge, block_state): (u64, BlockState),
    ) -> bool {
        let mut catalog = self.catalog.lock();
        let mut state = content.state.lock();
        let size = content.size();
        let is_new = size.is_multiple_of(content.block_bytes);
        let usable = !state.closed && state.cutting_from.is_none() && state.fills.is_empty();
        if !usable || !content.is_wholly_resident() || !content.hold_more(&mut state, charge) {
            return false;
        }
        if is_new && content.cells.get_or_create(block).word.start_fill().is_err() {
            content.hold_less(&mut state, charge);
            return false;
        }
        if !content.append_to_file(&mut state, part) {
            if is_new {
                let cell = content.cells.get(block).expect("made just now");
                cell.word.abandon_fill();
            }
            content.hold_less(&mut state, charge);
            return false;
        }
        content.add_charge(charge);
        if is_new {
            content.publish(&mut state, block, block_state);
            catalog.enter(content, &state, block);
        } else {
            content.add_resident_bytes(part.len() as u64);
        }
        true
    }
}
