//! Admission and eviction: the operations that touch the budget, the catalog and the memory of
//! segments together.
//!
//! # Invariants
//!
//! 1. Memory of blocks is booked in the [`Budget`] before it is taken and released after it is
//!    freed. A booking never goes beyond the capacity; only a smaller capacity leaves an excess.
//!    `SegmentMemory::charged` is the part of one segment. (One exception: up to a large page that
//!    is cut while it is in use, see *Known limits* in `docs/design/store.md`.)
//! 2. Every booked byte is charged to one payer, under the catalog's lock with the booking. The
//!    charge ends when the block becomes unreadable, the booking when its memory is free: payers
//!    are never charged for more than is booked.
//! 3. Every resident block of a segment that is not closed has one entry in the ranking, and its
//!    cell names it. Both change under the catalog's lock and the segment's `state`.
//! 4. Eviction takes clean blocks without pins, of segments without pins. All others leave by a cut
//!    or a discard, which wait for the pins of blocks, or with their segment.
//! 5. The memory of a block is freed after its words (cell and clients' tables) say *absent*; a new
//!    fill of it begins after that. Whole blocks are freed outside all locks.
//! 6. Locks are taken in the order `SegmentMemory::lengths`, `Engine::catalog`,
//!    `SegmentMemory::state`, those of `Mappings`, which only tries the `state` of others.
//!    `Engine::lingering` comes before `state` and is taken with no other lock.
//! 7. The pressure hook runs with none of these locks but `lengths` of one segment that grows.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tidepool_proto::Result;

use crate::backing::Backing;
use crate::backoff::Backoff;
use crate::budget::Budget;
use crate::catalog::{Catalog, CatalogGuard, Filter, Victim};
use crate::cell::{Cell, Refusal};
use crate::config::{Owner, QuotaKey, StoreConfig};
use crate::mappings::Mappings;
use crate::policy::EvictionTerms;
use crate::segment_memory::{SegmentMemory, SegmentMemoryOptions, charge_of};
use crate::shared::SharedTable;

/// Called with the number of bytes wanted.
pub(crate) type PressureHook = Arc<dyn Fn(u64) + Send + Sync>;

/// Blocks evicted ahead of need, at most, so that not every fill pays for a selection.
const BATCH_BLOCKS_MAX: u64 = 8;
/// Bytes that one selection of a large shrink takes, so that memory comes back while it goes on.
const SHRINK_STEP_BYTES: u64 = 1 << 30;
/// How long a shrink waits for short pins before it reports their bytes as held.
const PIN_TIMEOUT: Duration = Duration::from_millis(20);

/// Segments whose borrows may linger.
#[derive(Default)]
pub(crate) struct Lingering {
    pub memories: Vec<Arc<SegmentMemory>>,
    /// A thread asks for them.
    pub is_asking: bool,
}

/// The machinery behind a store and its segments.
pub(crate) struct Engine {
    pub budget: Arc<Budget>,
    pub backing: Arc<Backing>,
    pub mappings: Arc<Mappings>,
    pub catalog: Mutex<Catalog>,
    pub block_bytes: u64,
    pub lingering: Mutex<Lingering>,
    hook: RwLock<Option<PressureHook>>,
    next_id: AtomicU64,
}

impl Engine {
    pub fn new(
        config: &StoreConfig,
        backing: Backing,
        mappings: Arc<Mappings>,
    ) -> Result<Arc<Engine>> {
        config.check()?;
        let StoreConfig { capacity_bytes, block_bytes, policy, .. } = *config;
        Ok(Arc::new(Engine {
            budget: Arc::new(Budget::new(capacity_bytes, block_bytes, config.pinned_share_max)?),
            backing: Arc::new(backing),
            mappings,
            catalog: Mutex::new(Catalog::new(policy, block_bytes, capacity_bytes)),
            block_bytes,
            lingering: Mutex::default(),
            hook: RwLock::new(None),
            next_id: AtomicU64::new(1),
        }))
    }

    pub fn set_hook(&self, hook: PressureHook) {
        *self.hook.write() = Some(hook);
    }

    /// The memory of a new segment, in the catalog. Policies remember its blocks by `history`, or
    /// by its own number where there is none.
    pub fn create_memory(
        &self,
        size_bytes: u64,
        owner: &Owner,
        history: Option<u64>,
    ) -> Result<Arc<SegmentMemory>> {
        self.create(size_bytes, owner, history, false)
    }

    /// Memory in the catalog whose blocks are packs of small files.
    pub fn create_pack_memory(&self, owner: &Owner) -> Result<Arc<SegmentMemory>> {
        self.create(0, owner, None, true)
    }

    fn create(
        &self,
        size_bytes: u64,
        owner: &Owner,
        history: Option<u64>,
        packs: bool,
    ) -> Result<Arc<SegmentMemory>> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let payer = self.catalog.lock().payer_slot(owner)?;
        let options = SegmentMemoryOptions {
            id,
            size_bytes,
            block_bytes: self.block_bytes,
            owner: payer,
            history: history.unwrap_or(id),
            time_to_live: owner.time_to_live,
            packs,
        };
        let memory = SegmentMemory::new(options, &self.backing, &self.budget, &self.mappings)?;
        self.catalog.lock().add_memory(memory.clone());
        Ok(memory)
    }

    /// The last handle of a segment is gone: nothing of it is ranked or charged any more. Its
    /// memory goes with its last pin.
    pub fn close(&self, memory: &Arc<SegmentMemory>) {
        let taken;
        {
            let mut catalog = self.catalog.lock();
            let mut state = memory.state.lock();
            state.closed = true;
            for (block, cell) in memory.cells.range(0, u64::MAX) {
                if cell.word.word().is_resident() {
                    catalog.leave(memory, block);
                    let charge = charge_of(memory.block_length(block));
                    catalog.discharge(memory.owner, charge);
                }
            }
            taken = catalog.take_memory(memory);
        }
        drop(taken);
    }

    /// Books `bytes` for a payer, evicting where needed (invariants 1 and 2). False: they cannot be
    /// had.
    pub fn reserve(&self, payer: u16, bytes: u64) -> bool {
        self.reserve_on(payer, bytes, EvictionTerms::Any)
    }

    /// As `reserve`, evicting only what the terms allow.
    pub fn reserve_on(&self, payer: u16, bytes: u64, terms: EvictionTerms) -> bool {
        let mut asked_hook = false;
        let mut backoff = Backoff::default();
        loop {
            let mut victims = Vec::new();
            let mut within_quota = true;
            let missing = {
                let mut catalog = self.catalog.lock();
                let missing = match catalog.quota_shortfall(payer, bytes) {
                    Some((_, None)) => return false,
                    Some((key, Some(missing))) => {
                        catalog.select(Filter::Quota(key), missing, terms, &mut victims);
                        within_quota = false;
                        missing
                    }
                    None => match self.budget.reserve(bytes) {
                        Ok(()) => {
                            catalog.charge(payer, bytes);
                            return true;
                        }
                        Err(_) if bytes > self.budget.capacity() => return false,
                        Err(missing) => {
                            let ahead = match terms {
                                EvictionTerms::Any => self.batch_bytes(),
                                EvictionTerms::CheapOnly => 0,
                            };
                            self.refresh_target(&mut catalog);
                            let capacity_bytes = self.budget.capacity();
                            let filter = Filter::For { payer, capacity_bytes };
                            catalog.select(filter, ahead.max(missing), terms, &mut victims);
                            missing
                        }
                    },
                };
                self.announce_freeing(&catalog, &victims);
                missing
            };
            if self.free(victims) > 0 {
                continue;
            }
            if self.ask_all() {
                continue;
            }
            if terms == EvictionTerms::CheapOnly {
                return false;
            }
            if self.budget.freeing() > 0 {
                // Somebody else is freeing memory; it may do for us too.
                backoff.wait();
            } else if !within_quota || asked_hook || !self.ask_hook(missing) {
                return false;
            } else {
                asked_hook = true;
            }
        }
    }

    /// Releases what was booked but is not resident.
    pub fn cancel_reservation(&self, payer: u16, bytes: u64) {
        self.catalog.lock().discharge(payer, bytes);
        self.budget.release(bytes);
    }

    /// Counts victims as memory that is about to come back. The lock is that under which they were
    /// made unreadable, so that nobody finds neither the bytes nor this promise of them.
    pub fn announce_freeing(&self, _catalog: &CatalogGuard<'_>, victims: &[Victim]) {
        self.budget.start_freeing(victims.iter().map(|victim| victim.charge).sum());
    }

    /// Evicts what is above the capacity and may go at once. Returns bytes freed.
    pub fn trim(&self) -> u64 {
        let mut freed = 0;
        loop {
            let step = self.evict_step(self.budget.excess());
            if step == 0 {
                return freed;
            }
            freed += step;
        }
    }

    /// Evicts everything that may go at once. Returns bytes freed.
    pub fn evict_all(&self) -> u64 {
        self.ask_all();
        let mut freed = 0;
        loop {
            let step = self.evict_step(self.budget.used());
            if step == 0 {
                return freed;
            }
            freed += step;
        }
    }

    /// Evicts until the capacity is kept: waits for the pins of blocks, and has what is not clean
    /// written back by the pressure hook. Returns bytes freed.
    pub fn shrink(&self) -> u64 {
        let mut freed = 0;
        let mut asked_hook = false;
        let mut backoff = Backoff::default();
        let since = Instant::now();
        loop {
            freed += self.trim();
            let excess = self.budget.excess();
            if excess == 0 {
                return freed;
            }
            if self.ask_all() {
                continue;
            }
            if self.budget.freeing() > 0 || since.elapsed() < PIN_TIMEOUT && self.any_pins() {
                backoff.wait();
            } else if asked_hook || !self.ask_hook(excess) {
                return freed;
            } else {
                asked_hook = true;
            }
        }
    }

    fn evict_step(&self, wanted: u64) -> u64 {
        // What is being freed by others is as good as gone.
        let wanted = wanted.saturating_sub(self.budget.freeing());
        if wanted == 0 {
            return 0;
        }
        let mut victims = Vec::new();
        {
            let mut catalog = self.catalog.lock();
            self.refresh_target(&mut catalog);
            let step = wanted.min(SHRINK_STEP_BYTES);
            catalog.select(Filter::All, step, EvictionTerms::Any, &mut victims);
            self.announce_freeing(&catalog, &victims);
        }
        self.free(victims)
    }

    fn any_pins(&self) -> bool {
        let catalog = self.catalog.lock();
        catalog.memories().any(|memory| {
            memory.cells.range(0, u64::MAX).any(|(_, cell)| cell.word.word().is_pinned())
        })
    }

    fn ask_hook(&self, bytes: u64) -> bool {
        let hook = self.hook.read().clone();
        hook.is_some_and(|hook| {
            hook(bytes);
            true
        })
    }

    fn batch_bytes(&self) -> u64 {
        let one_in_a_while = self.budget.capacity() / self.block_bytes / 128;
        one_in_a_while.clamp(1, BATCH_BLOCKS_MAX) * self.block_bytes
    }

    pub fn refresh_target(&self, catalog: &mut Catalog) {
        catalog.set_target(self.budget.capacity(), self.budget.used());
    }

    /// Evicts what a quota no longer allows.
    pub fn enforce_quota(&self, key: QuotaKey) -> u64 {
        self.ask_all();
        let mut victims = Vec::new();
        {
            let mut catalog = self.catalog.lock();
            let excess = catalog.quota_excess(key);
            catalog.select(Filter::Quota(key), excess, EvictionTerms::Any, &mut victims);
            self.announce_freeing(&catalog, &victims);
        }
        self.free(victims)
    }

    /// Evicts the clean, unpinned blocks of a range, unless the segment is pinned (invariant 4).
    /// Returns bytes.
    pub fn evict_blocks(&self, memory: &Arc<SegmentMemory>, first: u64, end: u64) -> u64 {
        self.ask(memory);
        let mut victims = Vec::new();
        {
            let mut catalog = self.catalog.lock();
            let state = memory.state.lock();
            // A closed segment is charged to nobody and goes with its last pin.
            if state.segment_pins == 0 && !state.closed {
                for (block, _) in memory.cells.range(first, end) {
                    if let Ok((charge, _)) = memory.retract(&state, block, true) {
                        catalog.leave(memory, block);
                        catalog.discharge(memory.owner, charge);
                        victims.push(Victim { memory: memory.clone(), block, charge });
                    }
                }
            }
            self.announce_freeing(&catalog, &victims);
        }
        self.free(victims)
    }

    /// Drops all blocks whatever their state; waits for the pins of blocks. A pinned segment is
    /// discarded when its last pin drops.
    pub fn discard(&self, memory: &Arc<SegmentMemory>) {
        self.ask(memory);
        let mut backoff = Backoff::default();
        memory.state.lock().fills.iter_mut().for_each(|fill| fill.keep = 0);
        loop {
            let mut victims = Vec::new();
            let mut pinned = false;
            {
                let mut catalog = self.catalog.lock();
                let mut state = memory.state.lock();
                if state.closed {
                    return;
                }
                if state.segment_pins > 0 {
                    state.discard_when_unpinned = true;
                    memory.cells.range(0, u64::MAX).for_each(|(_, cell)| cell.word.open());
                    return;
                }
                for (block, _) in memory.cells.range(0, u64::MAX) {
                    match memory.retract(&state, block, false) {
                        Ok((charge, _)) => {
                            catalog.leave(memory, block);
                            catalog.discharge(memory.owner, charge);
                            victims.push(Victim { memory: memory.clone(), block, charge });
                        }
                        Err(refusal) => pinned |= refusal == Refusal::Pinned,
                    }
                }
                self.announce_freeing(&catalog, &victims);
            }
            self.free(victims);
            if !pinned {
                return;
            }
            backoff.wait();
        }
    }

    /// Marks a segment as stale: its blocks go before all others.
    pub fn invalidate(&self, memory: &SegmentMemory) {
        let mut catalog = self.catalog.lock();
        {
            let mut state = memory.state.lock();
            state.invalidated = true;
            state.shared.iter().for_each(SharedTable::invalidate);
        }
        catalog.invalidate(memory);
    }

    /// Evicts what outlived its time. Returns bytes.
    pub fn expire(&self, now: Instant) -> u64 {
        let outlived: Vec<Arc<SegmentMemory>> = {
            let catalog = self.catalog.lock();
            let is_due = |memory: &&Arc<SegmentMemory>| {
                memory.time_to_live.is_some()
                    && memory.state.lock().expires.is_some_and(|expires| expires <= now)
            };
            catalog.memories().filter(is_due).cloned().collect()
        };
        outlived.iter().map(|memory| self.evict_blocks(memory, 0, u64::MAX)).sum()
    }
}
