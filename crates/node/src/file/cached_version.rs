//! [`CachedVersion`]: the cached bytes of one version of a file. Writes through this node make it
//! another version of the same bytes.
//!
//! It is *current* until the file is seen at a version that this node did not make; then it is
//! invalidated: opens that have it keep reading what is resident, absent blocks answer `Changed`.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::Mutex;
use tidepool_proto::{BytesByLevel, FileId, Level, Result, Version};
use tidepool_store::{Owner, Segment, Store};

use crate::cluster::clean::{Found, Writing};
use crate::cluster::owed_reads::take::Owed;
use crate::server_loads::KnownPlacement;
use crate::ticket::{Filled, Ticket};

static NEXT_NUMBER: AtomicU64 = AtomicU64::new(1);

/// See the module's documentation.
#[derive(Debug)]
pub struct CachedVersion {
    /// Identity within this process.
    pub number: u64,
    /// Whom quotas charge.
    pub owner: Owner,
    /// Whether a rule lets it be kept at all.
    pub admit: bool,
    version: Mutex<Version>,
    size: AtomicU64,
    /// How often it got shorter while its bytes were in memory alone.
    cuts: AtomicU64,
    segment: OnceLock<Arc<Segment>>,
    invalidated: AtomicBool,
    /// What took its place without another program's doing.
    successor: OnceLock<Arc<CachedVersion>>,
    /// Those in whose place it came and whose bytes the kernel goes on reading by itself.
    behind: Mutex<Vec<Weak<CachedVersion>>>,
    racy: AtomicBool,
    memory_only: AtomicBool,
    /// Where its bytes are, until the PFS has them.
    owed: Option<Arc<Owed>>,
    lost: AtomicBool,
    client_borrows: AtomicU32,
    read_bytes: AtomicU64,
    passthrough_bytes: AtomicU64,
    /// Bytes of blocks that came from elsewhere and were not asked for yet, by block.
    unread: Mutex<HashMap<u64, (u64, Level)>>,
    unread_blocks: AtomicUsize,
    /// Which data servers have its bytes.
    pub(crate) placement: KnownPlacement,
    /// Packets of it that burst buffers get while it is written.
    pub(crate) writing: Mutex<Option<Arc<Writing>>>,
    /// Where burst buffers have it.
    pub(crate) clean: Mutex<Option<Found>>,
    /// Fills under way, by block.
    pub(crate) fills: Mutex<HashMap<u64, Arc<Ticket>>>,
    /// Small reads that missed, by block, so that a hot block is fetched whole in the end.
    pub(crate) misses: Mutex<HashMap<u64, u8>>,
}

/// Blocks whose misses are counted at a time.
const MISSES_TRACKED: usize = 1024;
/// Small random reads of one block after which it is fetched whole.
const MISSES_TO_FILL: u8 = 3;

impl Drop for CachedVersion {
    /// One after the other: recursion along a long chain of successors would end the stack.
    fn drop(&mut self) {
        let mut next = self.successor.take();
        while let Some(cached) = next {
            next = Arc::into_inner(cached).and_then(|mut cached| cached.successor.take());
        }
    }
}

impl CachedVersion {
    /// Nothing cached yet of `version`.
    pub fn new(version: Version, owner: Owner, admit: bool) -> Self {
        CachedVersion {
            number: NEXT_NUMBER.fetch_add(1, Ordering::Relaxed),
            owner,
            admit,
            size: AtomicU64::new(version.size),
            cuts: AtomicU64::new(0),
            version: Mutex::new(version),
            segment: OnceLock::new(),
            invalidated: AtomicBool::new(false),
            successor: OnceLock::new(),
            behind: Mutex::default(),
            racy: AtomicBool::new(false),
            memory_only: AtomicBool::new(false),
            owed: None,
            lost: AtomicBool::new(false),
            client_borrows: AtomicU32::new(0),
            read_bytes: AtomicU64::new(0),
            passthrough_bytes: AtomicU64::new(0),
            unread: Mutex::new(HashMap::new()),
            unread_blocks: AtomicUsize::new(0),
            placement: KnownPlacement::default(),
            writing: Mutex::default(),
            clean: Mutex::default(),
            fills: Mutex::new(HashMap::new()),
            misses: Mutex::new(HashMap::new()),
        }
    }

    /// The version that it is, after all writes through this node.
    pub fn version(&self) -> Version {
        *self.version.lock()
    }

    /// Which file.
    pub fn id(&self) -> FileId {
        self.version().id
    }

    /// Length in bytes.
    pub fn size(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    /// Records what a change through this node made of it. For memory-only cached versions the
    /// version is the stub's, so their length is set by [`CachedVersion::set_size`].
    pub fn set_version(&self, version: Version) {
        // What burst buffers have of it may be of other bytes.
        *self.writing.lock() = None;
        self.set_noted_version(version);
    }

    /// The same after a change that was noted for what burst buffers have of it, or kept the bytes.
    pub fn set_noted_version(&self, version: Version) {
        let mut ours = self.version.lock();
        *ours = version.born_as(&ours);
        drop(ours);
        if !self.is_memory_only() {
            self.size.store(version.size, Ordering::Release);
        }
    }

    /// Records the length.
    pub fn set_size(&self, bytes: u64) {
        self.size.store(bytes, Ordering::Release);
    }

    /// Records a shorter length, before bytes go of a file that is in memory alone.
    pub fn shrink(&self, bytes: u64) {
        self.set_size(bytes);
        self.cuts.fetch_add(1, Ordering::AcqRel);
    }

    /// How often that was. A read asks for it before it asks for the length, and again when it has
    /// its bytes: a block that went meanwhile looks like a hole.
    pub fn cuts(&self) -> u64 {
        self.cuts.load(Ordering::Acquire)
    }

    /// The segment, if one was made.
    pub fn segment(&self) -> Option<&Arc<Segment>> {
        self.segment.get()
    }

    /// The segment, made now if need be.
    pub fn segment_or_create(&self, store: &Arc<Store>) -> Result<&Arc<Segment>> {
        if let Some(segment) = self.segment.get() {
            return Ok(segment);
        }
        let (size, history) = (self.size(), history_of(self.id()));
        let segment = store.create_segment_with_history(size, self.owner, history)?;
        Ok(self.segment.get_or_init(|| segment))
    }

    /// Whether the file was seen at a version that this node did not make.
    pub fn is_invalidated(&self) -> bool {
        self.invalidated.load(Ordering::Acquire)
    }

    /// Marks it as stale, for good: it is no longer the file's content.
    pub fn invalidate(&self) {
        self.invalidated.store(true, Ordering::Release);
        if let Some(segment) = self.segment.get() {
            segment.invalidate();
        }
    }

    /// Leads readers on to `next`: this node invalidated the version, but no other program changed
    /// the file.
    pub fn lead_to(self: &Arc<Self>, next: &Arc<CachedVersion>) {
        _ = self.successor.set(next.clone());
        let mut behind = std::mem::take(&mut *self.behind.lock());
        behind
            .retain(|cached| cached.upgrade().is_some_and(|cached| cached.is_borrowed_by_kernel()));
        if self.is_borrowed_by_kernel() {
            behind.push(Arc::downgrade(self));
        }
        next.behind.lock().append(&mut behind);
        if let Some(segment) = self.segment.get() {
            segment.hide_from_clients();
        }
    }

    /// Versions that the kernel goes on reading by itself although this one took their place, as
    /// where there was no memory for them to grow (see `behind`).
    pub fn left_behind(&self) -> Vec<Arc<CachedVersion>> {
        let mut behind = self.behind.lock();
        if behind.is_empty() {
            return Vec::new();
        }
        behind
            .retain(|cached| cached.upgrade().is_some_and(|cached| cached.is_borrowed_by_kernel()));
        behind.iter().filter_map(Weak::upgrade).collect()
    }

    /// What readers of this cached version read now.
    pub fn latest(self: &Arc<Self>) -> Arc<CachedVersion> {
        let mut latest = self;
        while let Some(next) = latest.successor.get() {
            latest = next;
        }
        latest.clone()
    }

    /// Whether bytes were read or written within the tick of the version's time stamps, so that a
    /// later change may hide behind them: later opens do not use it.
    pub fn is_racy(&self) -> bool {
        self.racy.load(Ordering::Acquire)
    }

    /// Keeps later opens from using it.
    pub fn mark_racy(&self) {
        self.racy.store(true, Ordering::Release);
    }

    /// Whether its bytes exist in memory only.
    pub fn is_memory_only(&self) -> bool {
        self.memory_only.load(Ordering::Acquire)
    }

    /// Says whether its bytes exist in memory only.
    pub fn set_memory_only(&self, memory_only: bool) {
        self.memory_only.store(memory_only, Ordering::Release);
    }

    /// Says that another node owes its bytes; its version is that of the stub.
    pub fn set_owed(&mut self, owed: Arc<Owed>) {
        self.set_size(owed.length);
        self.owed = Some(owed);
    }

    /// The bytes of another node that it is read from, before the PFS has them; never from there.
    pub fn owed(&self) -> Option<&Arc<Owed>> {
        self.owed.as_ref().filter(|owed| !owed.is_handed_over())
    }

    /// Whether its bytes were in memory only and are gone.
    pub fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }

    /// Says that its bytes are gone.
    pub fn set_lost(&self) {
        self.lost.store(true, Ordering::Release);
    }

    /// Whether the kernel has borrowed the segment, for a passthrough open or for what was mapped
    /// by one.
    pub fn is_borrowed_by_kernel(&self) -> bool {
        self.segment.get().is_some_and(|segment| segment.is_borrowed_by_kernel())
    }

    /// Whether a client has borrowed the segment and may have parts of it mapped: these bytes must
    /// never change.
    pub fn is_borrowed_by_client(&self) -> bool {
        self.client_borrows.load(Ordering::Acquire) > 0
    }

    /// Counts a client's borrow in.
    pub fn begin_client_borrow(&self) {
        self.client_borrows.fetch_add(1, Ordering::AcqRel);
    }

    /// Counts a client's borrow out.
    pub fn end_client_borrow(&self) {
        self.client_borrows.fetch_sub(1, Ordering::AcqRel);
    }

    /// Counts bytes that readers got.
    pub fn count_read(&self, bytes: u64) {
        self.read_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Bytes that readers got so far, as far as the node is told.
    pub fn read_bytes(&self) -> u64 {
        self.read_bytes.load(Ordering::Relaxed)
    }

    /// Counts an open that the kernel reads by itself.
    pub fn count_kernel_open(&self) {
        self.passthrough_bytes.fetch_add(self.size(), Ordering::Relaxed);
    }

    /// The length of the file, for each open that the kernel reads by itself.
    pub fn passthrough_bytes(&self) -> u64 {
        self.passthrough_bytes.load(Ordering::Relaxed)
    }

    /// Notes that a block of `bytes` came from `level`.
    pub fn note_unread(&self, block: u64, bytes: u64, level: Level) {
        let mut unread = self.unread.lock();
        unread.insert(block, (bytes, level));
        self.unread_blocks.store(unread.len(), Ordering::Release);
    }

    /// Where `bytes` that are read from a resident block now came from for this read: read-ahead is
    /// no hit, and a byte is charged to the PFS or to a peer once.
    pub fn take_unread(&self, block: u64, bytes: u64) -> BytesByLevel {
        let mut levels = BytesByLevel::of(Level::Store, bytes);
        if self.unread_blocks.load(Ordering::Acquire) == 0 {
            return levels;
        }
        let mut unread = self.unread.lock();
        let Some((left, level)) = unread.get_mut(&block) else { return levels };
        let taken = bytes.min(*left);
        *left -= taken;
        levels.store -= taken;
        levels.add(*level, taken);
        if *left == 0 {
            unread.remove(&block);
            self.unread_blocks.store(unread.len(), Ordering::Release);
        }
        levels
    }

    /// Ends a fill that was registered in `fills`. It leaves the map first: a reader that asks
    /// after this finds the block, or starts anew.
    pub(crate) fn end_fill(&self, ticket: &Ticket, filled: Filled) {
        self.fills.lock().remove(&ticket.block);
        ticket.finish(filled);
    }

    /// Counts a small random read that missed `block`; true when the block is worth fetching.
    pub fn miss_is_hot(&self, block: u64) -> bool {
        let mut misses = self.misses.lock();
        if misses.len() >= MISSES_TRACKED {
            misses.clear();
        }
        let count = misses.entry(block).or_insert(0);
        *count = count.saturating_add(1);
        *count >= MISSES_TO_FILL
    }

    /// Bytes of this cached version in the store, not counting packed small files.
    pub fn resident_bytes(&self) -> u64 {
        self.segment.get().map_or(0, |segment| segment.resident_bytes())
    }
}

/// A number by which policies know a file again after its last block was evicted.
fn history_of(id: FileId) -> u64 {
    let mixed = (id.inode ^ id.device.rotate_left(40)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    mixed ^ (mixed >> 29)
}
