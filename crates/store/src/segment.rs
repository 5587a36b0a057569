//! [`Segment`]: one cached version of a file, as the node sees it, and the pins of its blocks.

use std::fmt;
use std::ops::Deref;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use tidepool_proto::table::BlockState;
use tidepool_proto::{Result, SegmentExport};

use crate::cell::Cell;
use crate::engine::Engine;
use crate::fill::FillStart;
use crate::length::Growth;
use crate::segment_memory::{Pinned, SegmentMemory};

/// A sparse memory file with the offsets and the length of the file it caches.
///
/// Dropping the last handle frees its memory, apart from what pins still use.
pub struct Segment {
    pub(crate) engine: Arc<Engine>,
    pub(crate) memory: Arc<SegmentMemory>,
}

impl Segment {
    pub(crate) fn new(engine: Arc<Engine>, memory: Arc<SegmentMemory>) -> Self {
        Segment { engine, memory }
    }

    /// Number of the segment, never reused within a store.
    pub fn id(&self) -> u64 {
        self.memory.id
    }

    /// Length of the file in bytes.
    pub fn size(&self) -> u64 {
        self.memory.size()
    }

    /// Sets the length to exactly `bytes`. What grows reads as zeros. What is cut off is dropped
    /// whatever its state, after short pins of it are gone: do not call this holding one. Fails
    /// with `StoreFull` if a tail block that is not clean would need more memory than there is.
    pub fn set_size(&self, bytes: u64) -> Result<()> {
        self.engine.set_size(&self.memory, bytes)
    }

    /// As [`set_size`](Self::set_size) to the end of bytes that are written behind the present
    /// one, if it is not as long yet. The part of them in the block of the old end is there before
    /// anybody sees the new length; the rest is for the caller to bring.
    pub fn grow_with(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.engine.grow_with(&self.memory, &Growth { offset, data })
    }

    /// Appends `zeros` zeros and then `data` to a wholly resident segment. Readers that go by the
    /// length alone (the kernel in passthrough opens, clients) find the bytes as soon as they see
    /// the length. New blocks become `state`. False: there is no memory for all of it, and
    /// nothing changed.
    pub fn extend(&self, zeros: u64, data: &[u8], state: BlockState) -> bool {
        self.engine.extend(&self.memory, zeros, data, state)
    }

    /// Bytes of a block.
    pub fn block_bytes(&self) -> u64 {
        self.memory.block_bytes
    }

    /// Number of blocks, the last of which may be short.
    pub fn blocks(&self) -> u64 {
        self.memory.blocks()
    }

    /// State of a block; `Absent` beyond the end.
    pub fn state(&self, block: u64) -> BlockState {
        self.memory.block_state(block)
    }

    /// Blocks that are not absent, with their states, in ascending order. Costs what came in at
    /// some time, not what the file's length says.
    pub fn resident_blocks(&self) -> impl Iterator<Item = (u64, BlockState)> {
        let cells = self.memory.cells.range(0, self.blocks());
        let states = cells.map(|(block, cell)| (block, cell.word.word().state()));
        states.filter(|(_, state)| *state != BlockState::Absent)
    }

    /// Bytes of the file that are resident.
    pub fn resident_bytes(&self) -> u64 {
        self.memory.resident_bytes()
    }

    /// Whether every block is resident; true of an empty file.
    pub fn is_wholly_resident(&self) -> bool {
        self.memory.is_wholly_resident()
    }

    /// Begins to fill an absent block. Evicts others, and asks the pressure hook, to make room.
    pub fn begin_fill(&self, block: u64) -> FillStart {
        self.engine.begin_fill(&self.memory, block, false)
    }

    /// Begins to fill a block that nobody has asked for yet. `NotAdmitted` also where the policy
    /// would have to evict something better for it.
    pub fn begin_read_ahead(&self, block: u64) -> FillStart {
        self.engine.begin_fill(&self.memory, block, true)
    }

    /// Pins a resident block for a short read, and counts a hit.
    pub fn pin_block(&self, block: u64) -> Option<BlockPin> {
        BlockPin::new(&self.memory, block, true)
    }

    /// Writes over the resident blocks of a range in place and skips the others; returns the bytes
    /// written. A fill under way in the range is marked: if it is committed as clean, it is
    /// discarded, because its bytes may be older. So call this after the lower level has the data.
    pub fn write_resident(&self, offset: u64, data: &[u8]) -> u64 {
        let block_bytes = self.memory.block_bytes;
        let mut written = 0;
        let mut done = 0;
        while done < data.len() {
            let at = offset + done as u64;
            let (block, within) = (at / block_bytes, at % block_bytes);
            let piece = (data.len() - done).min((block_bytes - within) as usize);
            written += self.memory.patch(block, within, &data[done..done + piece]);
            done += piece;
        }
        written
    }

    /// Changes the state of a resident block, for example to clean once its bytes are durable.
    /// `Absent` is refused: evict or drop instead.
    pub fn set_state(&self, block: u64, state: BlockState) {
        if state != BlockState::Absent
            && self.memory.change_state(block, state)
            && state == BlockState::Clean
            && self.engine.budget.excess() > 0
        {
            self.engine.trim();
        }
    }

    /// Evicts a block if it is clean and unpinned.
    pub fn evict_block(&self, block: u64) -> bool {
        self.engine.evict_blocks(&self.memory, block, block + 1) > 0
    }

    /// Evicts all clean, unpinned blocks unless the segment is pinned; returns bytes.
    pub fn evict(&self) -> u64 {
        self.engine.evict_blocks(&self.memory, 0, u64::MAX)
    }

    /// Drops all blocks whatever their state, and the fills under way. Waits for short pins: do not
    /// call this with one of your own. A pinned segment keeps its blocks until the last pin drops.
    pub fn discard(&self) {
        self.engine.discard(&self.memory);
    }

    /// Pins all blocks of a wholly resident segment until the pin drops. `None` where it is not
    /// wholly resident, or all pins together would go beyond their share of the capacity.
    pub fn pin_all(&self) -> Option<SegmentPin> {
        // At the limit others may have pinned what they do not use any more.
        self.try_pin().or_else(|| self.engine.ask_all().then(|| self.try_pin()).flatten())
    }

    fn try_pin(&self) -> Option<SegmentPin> {
        let memory = &self.memory;
        let mut state = memory.state.lock();
        let usable = !state.closed && state.cutting_from.is_none();
        if !usable || !memory.is_wholly_resident() || !memory.begin_pin(&mut state) {
            return None;
        }
        drop(state);
        Some(SegmentPin { engine: self.engine.clone(), memory: memory.clone() })
    }

    /// The memory file, for this process alone: it can be written.
    pub fn descriptor(&self) -> BorrowedFd<'_> {
        self.memory.file.read_write()
    }

    /// Descriptors that let another process read resident blocks. The table and the reference bits
    /// are made at the first call, and again when the file outgrew them. `None` while the kernel
    /// may read the memory file by itself.
    pub fn export(&self) -> Result<Option<SegmentExport>> {
        if self.is_borrowed_by_kernel() { Ok(None) } else { self.memory.export() }
    }

    /// Marks the segment as stale: its readers can still read it, and it is evicted first.
    pub fn invalidate(&self) {
        self.engine.invalidate(&self.memory);
    }

    /// Clients that have the segment ask the node for every byte from now on. What they borrowed
    /// stays as it is.
    pub fn hide_from_clients(&self) {
        self.memory.hide_from_clients(&self.memory.state.lock());
    }

    /// Bytes booked for the segment: whole pages, with those of fills under way.
    pub fn charged_bytes(&self) -> u64 {
        self.memory.charged()
    }

    /// Place of the segment's next block in the order of eviction, from 0 (next) to 1 (last).
    pub fn rank(&self) -> Option<f64> {
        self.engine.catalog.lock().rank(&self.memory)
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        self.engine.close(&self.memory);
    }
}

impl fmt::Debug for Segment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("Segment");
        shown.field("id", &self.id()).field("size", &self.size());
        shown.field("resident_bytes", &self.resident_bytes()).finish()
    }
}

/// A resident block that stays where it is while this lives. For short reads only: evictions pass
/// it by, but truncations and drops wait for it.
///
/// The bytes are those of the file at this version; local writes to it may change them under the
/// reader, as POSIX lets concurrent writes do.
pub struct BlockPin {
    memory: Arc<SegmentMemory>,
    /// The block's residency word, which lives as long as the segment's memory.
    word: *const AtomicU64,
    address: *mut u8,
    length: usize,
    generation: u64,
}

// SAFETY: the pin keeps the memory in place from any thread; it gives out shared access only.
unsafe impl Send for BlockPin {}
// SAFETY: as above.
unsafe impl Sync for BlockPin {}

impl BlockPin {
    pub(crate) fn new(memory: &Arc<SegmentMemory>, block: u64, hit: bool) -> Option<BlockPin> {
        let Pinned { word, address, length, generation } = memory.pin(block, hit)?;
        let (memory, word) = (memory.clone(), std::ptr::from_ref(word));
        Some(BlockPin { memory, word, address, length: length as usize, generation })
    }

    /// Part of the block.
    ///
    /// # Safety
    /// Nobody writes the range while the slice lives.
    pub(crate) unsafe fn range(&self, offset: usize, length: usize) -> &[u8] {
        assert!(offset + length <= self.length, "a range outside its block");
        // SAFETY: inside the pinned block; the caller vouches that nobody writes it.
        unsafe { std::slice::from_raw_parts(self.address.add(offset), length) }
    }

    /// Writes part of the block.
    ///
    /// # Safety
    /// Nobody else reads or writes the range during the call.
    pub(crate) unsafe fn write(&self, offset: usize, data: &[u8]) {
        assert!(offset + data.len() <= self.length, "a range outside its block");
        // SAFETY: inside the pinned block; the caller vouches that nobody else uses it.
        unsafe {
            std::ptr::copy_nonoverlapping(data.as_ptr(), self.address.add(offset), data.len());
        }
    }

    /// Changes whenever the block was evicted, filled or changed its state.
    pub fn generation(&self) -> u64 {
        self.generation
    }
}

impl Deref for BlockPin {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the range is mapped, populated and below the end of the file while the block is
        // pinned, and the segment's memory lives as long as this.
        unsafe { std::slice::from_raw_parts(self.address, self.length) }
    }
}

impl Drop for BlockPin {
    fn drop(&mut self) {
        // SAFETY: cells never move and live as long as the memory that this keeps alive.
        unsafe { &*self.word }.unpin();
    }
}

impl fmt::Debug for BlockPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("BlockPin");
        shown.field("segment", &self.memory.id).field("length", &self.length).finish()
    }
}

/// A counted pin of all blocks of a wholly resident segment.
pub struct SegmentPin {
    engine: Arc<Engine>,
    memory: Arc<SegmentMemory>,
}

impl Drop for SegmentPin {
    fn drop(&mut self) {
        let rest = self.memory.end_pin(&mut self.memory.state.lock());
        self.engine.after_pin(&self.memory, rest);
    }
}

impl fmt::Debug for SegmentPin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SegmentPin").field("segment", &self.memory.id).finish_non_exhaustive()
    }
}
