//! [`SegmentMemory`]: file, mapping and cells of a segment, and the record of changes under way. It
//! takes no decision; the engine tells it what to retract and charges the budget. A pin of a block
//! takes no lock. Invariants and the order of locks: [`crate::engine`].

use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidepool_proto::table::{self, BlockState};
use tidepool_proto::{Result, SegmentExport};

use crate::backing::{Backing, MemoryFile, PAGE_BYTES};
use crate::borrow_state::{AfterPin, Borrow};
use crate::budget::Budget;
use crate::cell::{Cell, Refusal, publish_block, retract_block};
use crate::cells::Cells;
use crate::mapping::Mapping;
use crate::mappings::{Mappings, Used};
use crate::shared::SharedTable;

/// A fill under way.
#[derive(Debug)]
pub(crate) struct ActiveFill {
    pub block: u64,
    /// Bytes that the filler was given.
    pub length: u64,
    /// Bytes of it that no truncation cut off meanwhile.
    pub keep: u64,
    /// Bytes booked for it.
    pub charge: u64,
    /// A write went over the block, so bytes from the lower level may be old.
    pub stale: bool,
}

/// What changes only under the lock.
#[derive(Default)]
pub(crate) struct State {
    pub fills: Vec<ActiveFill>,
    /// Length of the memory file, which differs from the size while a fill beyond it goes on.
    file_length: u64,
    pub segment_pins: u32,
    /// Bytes booked as pinned by the first pin, and for growth since.
    pub pinned_bytes: u64,
    pub discard_when_unpinned: bool,
    pub borrow: Borrow,
    /// Stale: evicted before all that is not.
    pub invalidated: bool,
    /// The last handle is gone.
    pub closed: bool,
    /// Blocks from here on are being cut off: no fill of them begins.
    pub cutting_from: Option<u64>,
    pub expires: Option<Instant>,
    pub shared: Vec<SharedTable>,
    /// Bytes booked for them.
    table_bytes: u64,
    mapping: Option<Mapping>,
    /// Smaller mappings that pins may still point into.
    outgrown: Vec<Mapping>,
}

impl State {
    /// What clients see of a block.
    fn mirrors(&self, block: u64) -> impl Iterator<Item = &AtomicU64> {
        self.shared.iter().filter_map(move |table| table.word(block))
    }
}

/// A block that was pinned: `word.unpin()` lets go of it.
pub(crate) struct Pinned<'a> {
    pub word: &'a AtomicU64,
    pub address: *mut u8,
    pub length: u64,
    pub generation: u64,
}

/// What the memory of a segment is made with.
pub(crate) struct SegmentMemoryOptions {
    pub id: u64,
    pub size_bytes: u64,
    pub block_bytes: u64,
    pub owner: u16,
    pub history: u64,
    pub time_to_live: Option<Duration>,
    /// Its blocks are packs of small files.
    pub packs: bool,
}

/// The memory of a segment.
pub(crate) struct SegmentMemory {
    pub id: u64,
    pub owner: u16,
    /// What policies remember its blocks by.
    pub history: u64,
    pub time_to_live: Option<Duration>,
    pub block_bytes: u64,
    pub cells: Cells,
    pub file: MemoryFile,
    /// Serialises changes of the length.
    pub lengths: Mutex<()>,
    pub state: Mutex<State>,
    /// Slot in the catalog; fixed once it is there.
    pub slot: std::sync::atomic::AtomicU32,
    pub exported: AtomicBool,
    /// Where the blocks are packs: the packs that were evicted and not cleaned up after yet.
    pub evicted_packs: Option<Mutex<Vec<u32>>>,
    size: AtomicU64,
    resident_blocks: AtomicU64,
    resident_bytes: AtomicU64,
    /// Bytes booked in the budget for this segment.
    charged: AtomicU64,
    base: AtomicPtr<u8>,
    pub used: Used,
    myself: Weak<SegmentMemory>,
    pub budget: Arc<Budget>,
    backing: Arc<Backing>,
    mappings: Arc<Mappings>,
}

/// Blocks of a file that clients get a table for; of longer ones they ask the node. At the default
/// size of a block this is 1 TiB, and table and marks are 2.25 MiB.
const EXPORT_BLOCKS_MAX: u64 = 1 << 18;

/// Bytes of memory that `length` bytes of a file take.
pub(crate) fn charge_of(length: u64) -> u64 {
    length.next_multiple_of(PAGE_BYTES)
}

impl SegmentMemory {
    pub fn new(
        options: SegmentMemoryOptions,
        backing: &Arc<Backing>,
        budget: &Arc<Budget>,
        mappings: &Arc<Mappings>,
    ) -> Result<Arc<SegmentMemory>> {
        let SegmentMemoryOptions {
            id,
            size_bytes,
            block_bytes,
            owner,
            history,
            time_to_live,
            packs,
        } = options;
        let file = backing.create(size_bytes)?;
        Ok(Arc::new_cyclic(|myself| SegmentMemory {
            id,
            owner,
            history,
            time_to_live,
            block_bytes,
            // Packs are added one by one, so their cells come in larger groups.
            cells: Cells::new(if packs { 64 } else { size_bytes.div_ceil(block_bytes) }),
            file,
            lengths: Mutex::new(()),
            state: Mutex::new(State { file_length: size_bytes, ..State::default() }),
            slot: crate::policy::NONE.into(),
            exported: AtomicBool::new(false),
            evicted_packs: packs.then(Mutex::default),
            size: AtomicU64::new(size_bytes),
            resident_blocks: AtomicU64::new(0),
            resident_bytes: AtomicU64::new(0),
            charged: AtomicU64::new(0),
            base: AtomicPtr::new(std::ptr::null_mut()),
            used: Used::default(),
            myself: myself.clone(),
            budget: budget.clone(),
            backing: backing.clone(),
            mappings: mappings.clone(),
        }))
    }

    pub fn size(&self) -> u64 {
        self.size.load(Ordering::SeqCst)
    }

    /// Sets what `size` answers and tells clients. The file is made longer before (`lengthen`) and
    /// shorter afterwards (`apply_length`): a reader that pins a block may read as far as the size
    /// says.
    pub fn announce_size(&self, state: &State, bytes: u64) {
        self.size.store(bytes, Ordering::SeqCst);
        state.shared.iter().for_each(|table| table.set_size(bytes));
    }

    /// Lets clients find nothing in their tables any more, so that they ask for every byte. What
    /// is pinned stays.
    pub fn hide_from_clients(&self, state: &State) {
        state.shared.iter().for_each(|table| table.set_size(0));
    }

    pub fn blocks(&self) -> u64 {
        self.size().div_ceil(self.block_bytes)
    }

    /// Bytes of the file in a block; 0 beyond the end.
    pub fn block_length(&self, block: u64) -> u64 {
        let start = block.saturating_mul(self.block_bytes);
        self.size().saturating_sub(start).min(self.block_bytes)
    }

    pub fn block_state(&self, block: u64) -> BlockState {
        self.cells.get(block).map_or(BlockState::Absent, |cell| cell.word.word().state())
    }

    pub fn resident_bytes(&self) -> u64 {
        self.resident_bytes.load(Ordering::SeqCst)
    }

    pub fn resident_blocks(&self) -> u64 {
        self.resident_blocks.load(Ordering::SeqCst)
    }

    pub fn is_wholly_resident(&self) -> bool {
        self.resident_blocks() == self.blocks()
    }

    pub fn charged(&self) -> u64 {
        self.charged.load(Ordering::SeqCst)
    }

    pub fn add_charge(&self, bytes: u64) {
        self.charged.fetch_add(bytes, Ordering::SeqCst);
    }

    pub fn remove_charge(&self, bytes: u64) {
        self.charged.fetch_sub(bytes, Ordering::SeqCst);
    }

    pub fn add_resident_bytes(&self, bytes: u64) {
        self.resident_bytes.fetch_add(bytes, Ordering::SeqCst);
    }

    /// Pins a block that is resident and below the end of the file: its memory and length.
    pub fn pin(&self, block: u64, hit: bool) -> Option<Pinned<'_>> {
        let cell = self.cells.get(block)?;
        let word = cell.word.pin(hit)?;
        // Read after the pin: a truncation lowers the size first, then waits for pins.
        let length = self.block_length(block);
        let base = self.base.load(Ordering::SeqCst);
        let base = if base.is_null() { self.map_again() } else { Some(base) };
        self.used.note();
        match base {
            Some(base) if length > 0 => {
                // SAFETY: the mapping covers every block that was ever resident while it exists,
                // and stays while a block is pinned.
                let address = unsafe { base.add((block * self.block_bytes) as usize) };
                Some(Pinned { word: cell.word, address, length, generation: word.generation() })
            }
            _ => {
                cell.word.unpin();
                None
            }
        }
    }

    /// Writes over part of a block if it is resident; returns the bytes written. Otherwise marks
    /// a fill of it as stale.
    pub fn patch(&self, block: u64, within: u64, data: &[u8]) -> u64 {
        let pinned = self.pin(block, false).or_else(|| {
            // Either the fill is seen here, or it has ended and the block can be pinned now. Only
            // the mapping needs the lock inside `pin`, and a fill that has ended has made it.
            let mut state = self.state.lock();
            let fill = state.fills.iter_mut().find(|fill| fill.block == block);
            if let Some(fill) = fill {
                fill.stale = true;
            }
            drop(state);
            self.pin(block, false)
        });
        let Some(Pinned { word, address, length, .. }) = pinned else { return 0 };
        let count = length.saturating_sub(within).min(data.len() as u64);
        // SAFETY: `within + count` is inside the pinned block, whose memory is populated; the data
        // is the caller's and does not overlap it. Readers see the old or the new bytes.
        unsafe {
            let target = address.add(within.min(length) as usize);
            std::ptr::copy_nonoverlapping(data.as_ptr(), target, count as usize);
        }
        word.unpin();
        count
    }

    /// The mapping, made to reach the end of the file as it is now.
    pub fn map(&self, state: &mut State) -> Result<*mut u8> {
        self.used.note();
        let wanted = self.blocks().max(1) * self.block_bytes;
        if let Some(mapping) = state.mapping.as_ref().filter(|map| map.length() >= wanted) {
            return Ok(mapping.base());
        }
        // Doubling keeps the number of outgrown mappings of an appended file small.
        let length = match &state.mapping {
            Some(mapping) => wanted.max(mapping.length() * 2),
            None => wanted,
        };
        let mapping = self.file.map(length)?;
        let base = mapping.base();
        self.base.store(base, Ordering::SeqCst);
        state.outgrown.extend(state.mapping.replace(mapping));
        self.mappings.added(self.myself.clone(), length);
        Ok(base)
    }

    fn map_again(&self) -> Option<*mut u8> {
        self.map(&mut self.state.lock()).ok()
    }

    /// Unmaps the file unless it is in use at this moment.
    pub fn unmap_if_idle(&self) -> bool {
        let Some(mut state) = self.state.try_lock() else { return false };
        if !state.fills.is_empty() {
            return false;
        }
        // A reader pins its block and then looks for the base; we take the base away and then look
        // for pins. One of us sees the other.
        let base = self.base.swap(std::ptr::null_mut(), Ordering::SeqCst);
        if self.cells.range(0, u64::MAX).any(|(_, cell)| cell.word.word().is_pinned()) {
            self.base.store(base, Ordering::SeqCst);
            return false;
        }
        self.unmap(&mut state);
        true
    }

    fn unmap(&self, state: &mut State) {
        for mapping in state.outgrown.drain(..).chain(state.mapping.take()) {
            self.mappings.removed(mapping.length());
        }
    }

    /// Takes memory for the first `length` bytes of a block. False: there is none.
    pub fn populate(&self, state: &mut State, block: u64, length: u64) -> bool {
        let Ok(_) = self.map(state) else { return false };
        let mapping = state.mapping.as_ref().expect("mapped just now");
        let start = block * self.block_bytes;
        self.backing.advise(mapping, start, length);
        mapping.populate(start, charge_of(length)).is_ok()
    }

    /// As `populate`, without holding the lock while pages are zeroed. The caller has a fill of
    /// the block registered, which keeps the mapping and the length of the file.
    pub fn populate_for_fill(&self, block: u64, length: u64) -> Option<*mut u8> {
        let view = {
            let mut state = self.state.lock();
            let base = self.map(&mut state).ok()?;
            let mapping = state.mapping.as_ref().expect("mapped just now");
            self.backing.advise(mapping, block * self.block_bytes, length);
            base
        };
        // SAFETY: the mapping covers the block and stays, as said above.
        let address = unsafe { view.add((block * self.block_bytes) as usize) };
        // SAFETY: populating changes no bytes; the range is inside the mapping and the file.
        unsafe { crate::mapping::populate(address, charge_of(length)) }.ok()?;
        Some(address)
    }

    /// Records that a block became readable, and tells the generation of its word. The caller
    /// holds the lock and is its filler.
    pub fn publish(&self, state: &mut State, block: u64, block_state: BlockState) -> u64 {
        let length = self.block_length(block);
        let cell = self.cells.get(block).expect("a filled block has a cell");
        let word = publish_block(cell.word, state.mirrors(block), block_state);
        if self.resident_blocks.fetch_add(1, Ordering::SeqCst) == 0 {
            state.expires = self.time_to_live.and_then(|life| Instant::now().checked_add(life));
        }
        self.add_resident_bytes(length);
        word.generation()
    }

    /// Makes a block unreadable; its memory may be freed when this returns. Tells the bytes that
    /// are booked for it and its state before. Pins of the segment are the caller's business.
    pub fn retract(
        &self,
        state: &State,
        block: u64,
        clean_only: bool,
    ) -> Result<(u64, BlockState), Refusal> {
        let cell = self.cells.get(block).ok_or(Refusal::NotResident)?;
        let before = retract_block(cell.word, state.mirrors(block), clean_only)?;
        let length = self.block_length(block);
        self.resident_blocks.fetch_sub(1, Ordering::SeqCst);
        self.resident_bytes.fetch_sub(length, Ordering::SeqCst);
        Ok((charge_of(length), before))
    }

    /// Makes a retracted block readable again, with the length that it has now.
    pub fn restore(&self, state: &State, block: u64, block_state: BlockState) {
        let cell = self.cells.get(block).expect("a retracted block has a cell");
        cell.word.finish_retract(block_state);
        state.mirrors(block).for_each(|word| table::publish(word, block_state));
        self.resident_blocks.fetch_add(1, Ordering::SeqCst);
        self.add_resident_bytes(self.block_length(block));
    }

    /// Frees what lies behind the first `length` bytes of an unreadable block; these stay. Then
    /// makes the file as long as `apply_length` does.
    pub fn cut_block(&self, state: &mut State, block: u64, length: u64) -> Result<()> {
        let start = block * self.block_bytes;
        let end = start + self.block_bytes;
        if state.borrow.is_active() {
            // The kernel reads the file itself: what is cut ends, and is never zeros before.
            return self.apply_length(state);
        }
        let kept = self.file.free_tail(start, length, end);
        let outcome = self.apply_length(state);
        if let Some(kept) = kept {
            self.file.write_back(start, &kept);
            // While a fill keeps the file long, that may have taken a huge page again.
            self.file.punch(start + length, end - start - length);
        }
        outcome
    }

    /// Changes the state of a resident block.
    pub fn change_state(&self, block: u64, block_state: BlockState) -> bool {
        let state = self.state.lock();
        let Some(cell) = self.cells.get(block) else { return false };
        let changed = cell.word.change_state(block_state);
        if changed {
            state.mirrors(block).for_each(|word| table::publish(word, block_state));
        }
        changed
    }

    /// Makes the file at least `bytes` long, ahead of what `size` will say.
    pub fn lengthen(&self, state: &mut State, bytes: u64) -> Result<()> {
        if state.file_length < bytes {
            self.file.set_len(bytes)?;
            state.file_length = bytes;
        }
        Ok(())
    }

    /// Makes the file as long as `size` says, or longer where a fill still needs it.
    pub fn apply_length(&self, state: &mut State) -> Result<()> {
        let needed = |fill: &ActiveFill| fill.block * self.block_bytes + fill.length;
        let longest = state.fills.iter().map(needed).max().unwrap_or(0);
        let wanted = self.size().max(longest);
        if state.file_length != wanted {
            self.file.set_len(wanted)?;
            state.file_length = wanted;
        }
        Ok(())
    }

    /// Writes `part` at the end of the file, which thereby grows: a reader that goes by the
    /// length alone never meets a hole. False leaves file and length as they were.
    pub fn append_to_file(&self, state: &mut State, part: &[u8]) -> bool {
        let size = self.size();
        let after = size + part.len() as u64;
        if self.file.write_all_at(size, part).is_err() {
            _ = self.file.set_len(size);
            return false;
        }
        state.file_length = after;
        self.announce_size(state, after);
        // Pins of a block need the mapping to reach it, so it is made before the block is shown.
        if self.map(state).is_err() {
            self.announce_size(state, size);
            _ = self.file.set_len(size);
            state.file_length = size;
            return false;
        }
        true
    }

    /// Pins all blocks of a wholly resident segment. False: the cap on pins is reached.
    pub fn begin_pin(&self, state: &mut State) -> bool {
        if state.segment_pins == 0 {
            let bytes = self.charged();
            if !self.budget.pin(bytes) {
                return false;
            }
            state.pinned_bytes = bytes;
        }
        state.segment_pins += 1;
        true
    }

    /// Ends one pin of the segment; tells what is left to do once the lock is released.
    pub fn end_pin(&self, state: &mut State) -> AfterPin {
        state.segment_pins -= 1;
        if state.segment_pins > 0 {
            return AfterPin::Nothing;
        }
        self.budget.unpin(std::mem::take(&mut state.pinned_bytes));
        match std::mem::take(&mut state.discard_when_unpinned) {
            true => AfterPin::Discard,
            false => AfterPin::Trim,
        }
    }

    /// Books growth of a pinned segment as pinned too. False: the cap on pins is reached.
    pub fn pin_more(&self, state: &mut State, bytes: u64) -> bool {
        if state.segment_pins == 0 {
            return true;
        }
        if !state.borrow.book(&self.budget, bytes) {
            return false;
        }
        if !self.budget.pin(bytes) {
            state.borrow.take_off(&self.budget, bytes);
            return false;
        }
        state.pinned_bytes += bytes;
        true
    }

    /// Takes back what `pin_more` booked, or what is cut off a pinned segment.
    pub fn pin_less(&self, state: &mut State, bytes: u64) {
        // What grew by its length alone was never booked as pinned.
        let bytes = bytes.min(state.pinned_bytes);
        if state.segment_pins > 0 {
            self.budget.unpin(bytes);
            state.pinned_bytes -= bytes;
            state.borrow.take_off(&self.budget, bytes);
        }
    }

    /// Descriptors for another process, with a table that reaches the present end of the file.
    /// `None` while the kernel may have the file, and where tables take too much memory already.
    pub fn export(&self) -> Result<Option<SegmentExport>> {
        let mut state = self.state.lock();
        if state.borrow.is_active() {
            return Ok(None);
        }
        let blocks = self.blocks();
        if state.shared.last().is_none_or(|table| table.blocks() < blocks) {
            let bytes = SharedTable::bytes_for(blocks);
            if blocks > EXPORT_BLOCKS_MAX || !self.budget.book_table(self.owner, bytes) {
                return Ok(None);
            }
            state.table_bytes += bytes;
            let shared = SharedTable::new(blocks, self.block_bytes, self.size())?;
            for (block, cell) in self.cells.range(0, blocks) {
                let word = cell.word.word();
                if word.is_resident() {
                    shared.word(block).into_iter().for_each(|it| table::publish(it, word.state()));
                }
            }
            if state.invalidated {
                shared.invalidate();
            }
            state.shared.push(shared);
            self.exported.store(true, Ordering::Release);
        }
        let exported = state.shared.last().expect("made above").export(&self.file)?;
        state.borrow.note_shown();
        Ok(Some(exported))
    }

    /// Turns the reference bits that clients set on resident blocks into those of the cells.
    pub fn take_client_references(&self, blocks: &[u32]) {
        let state = self.state.lock();
        for table in &state.shared {
            table.take_references(blocks, |block| self.mark_read(block));
        }
    }

    /// Marks a block as read if it is resident.
    pub fn mark_read(&self, block: u64) {
        if let Some(cell) = self.cells.get(block)
            && cell.word.pin(true).is_some()
        {
            cell.word.unpin();
        }
    }

    pub fn bookkeeping_bytes(&self) -> u64 {
        let state = self.state.lock();
        let tables: u64 = state.shared.iter().map(SharedTable::bookkeeping_bytes).sum();
        let lists = state.fills.capacity() * size_of::<ActiveFill>()
            + state.outgrown.capacity() * size_of::<Mapping>();
        size_of::<SegmentMemory>() as u64 + self.cells.bookkeeping_bytes() + tables + lists as u64
    }
}

impl Drop for SegmentMemory {
    fn drop(&mut self) {
        let mut state = std::mem::take(self.state.get_mut());
        let is_borrowed = state.borrow.is_active();
        debug_assert!(state.fills.is_empty(), "they keep the memory alive");
        debug_assert!(state.segment_pins == u32::from(is_borrowed), "they keep the memory alive");
        self.budget.unpin(state.pinned_bytes);
        state.borrow.end(&self.budget);
        // Clients may keep descriptors: say that the blocks are gone, then free the memory.
        for (block, cell) in self.cells.range(0, u64::MAX) {
            if cell.word.word().is_resident() {
                state.mirrors(block).for_each(table::retract);
            }
        }
        self.budget.release_table(self.owner, state.table_bytes);
        self.unmap(&mut state);
        let length = self.blocks() * self.block_bytes;
        // What may be mapped goes whole, with its last mapping.
        if length > 0 && !is_borrowed {
            self.file.punch(0, length);
        }
        self.budget.release(self.charged());
    }
}
