//! Growth of a held segment: the bytes are in the file before the length says so, because the
//! kernel (passthrough) and clients read up to the length without asking anybody. Growth that
//! finds no memory is refused with nothing changed; it never evicts what is held.

use std::sync::Arc;

use tidepool_proto::table::BlockState;

use crate::cell::Cell;
use crate::content::{Content, charge_of};
use crate::engine::Engine;

impl Engine {
    /// Appends `data` to a wholly resident content. Returns the bytes appended: all of them, or
    /// as many as there was memory for.
    pub fn extend(&self, content: &Arc<Content>, data: &[u8]) -> u64 {
        let _serial = content.lengths.lock();
        let mut appended = 0;
        while appended < data.len() {
            let within = content.size() % content.block_bytes;
            let room = (content.block_bytes - within) as usize;
            let part = &data[appended..data.len().min(appended + room)];
            if !self.extend_within_block(content, part) {
                break;
            }
            appended += part.len();
        }
        appended as u64
    }

    fn extend_within_block(&self, content: &Arc<Content>, part: &[u8]) -> bool {
        let size = content.size();
        let (block, within) = (size / content.block_bytes, size % content.block_bytes);
        let grown = charge_of(within + part.len() as u64);
        let charge = if within > 0 { grown - charge_of(within) } else { grown };
        if u32::try_from(block).is_err() || !self.reserve(content.owner, charge) {
            return false;
        }
        if !self.append_booked(content, block, part, charge) {
            self.cancel_reservation(content.owner, charge);
            return false;
        }
        true
    }

    /// Appends within one block with the memory booked; false leaves everything as it was.
    fn append_booked(&self, content: &Arc<Content>, block: u64, part: &[u8], charge: u64) -> bool {
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
            content.publish(&mut state, block, BlockState::Clean);
            catalog.enter(content, &state, block);
        } else {
            content.add_resident_bytes(part.len() as u64);
        }
        true
    }
}
