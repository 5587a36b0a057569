//! Admission, fills, eviction: the operations that touch budget, catalog and contents together.
//!
//! Memory is reserved before it is taken and released after it is freed. Victims are chosen and
//! made unreadable under the catalog's lock, in batches; their memory is freed outside all locks.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tidepool_proto::Result;
use tidepool_proto::table::BlockState;

use crate::backing::Backing;
use crate::borrow::Lingering;
use crate::budget::Budget;
use crate::catalog::{Catalog, CatalogGuard, Filter, Victim};
use crate::cell::{Cell, Refusal};
use crate::config::{Owner, QuotaKey, StoreConfig};
use crate::fill::{BlockFill, FillStart};
use crate::mappings::Mappings;
use crate::policy::Admission;
use crate::segment_memory::{ActiveFill, Content, ContentOptions, charge_of};
use crate::shared::SharedTable;

/// Called with the number of bytes wanted.
pub(crate) type PressureHook = Arc<dyn Fn(u64) + Send + Sync>;

/// Blocks evicted ahead of need, at most, so that not every fill pays for a selection.
const BATCH_BLOCKS_MAX: u64 = 8;
/// Bytes that one selection of a large shrink takes, so that memory comes back while it goes on.
const SHRINK_STEP_BYTES: u64 = 1 << 30;
/// How long a shrink waits for short pins before it reports them as held.
const PIN_PATIENCE: Duration = Duration::from_millis(20);

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

/// Waits a little longer each time, for something that others finish soon.
#[derive(Default)]
pub(crate) struct Patience(u32);

impl Patience {
    pub fn wait(&mut self) {
        if self.0 < 32 {
            std::thread::yield_now();
        } else {
            std::thread::sleep(Duration::from_micros(50));
        }
        self.0 += 1;
    }
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

    /// A new content in the catalog. Policies remember its blocks by `history`, or by its own
    /// number where there is none.
    pub fn create_content(
        &self,
        size_bytes: u64,
        owner: &Owner,
        history: Option<u64>,
    ) -> Result<Arc<Content>> {
        self.create(size_bytes, owner, history, false)
    }

    /// A new content in the catalog whose blocks are packs of small files.
    pub fn create_pack_content(&self, owner: &Owner) -> Result<Arc<Content>> {
        self.create(0, owner, None, true)
    }

    fn create(
        &self,
        size_bytes: u64,
        owner: &Owner,
        history: Option<u64>,
        packs: bool,
    ) -> Result<Arc<Content>> {
        let id = self.next_id.fetch_add(1, Ordering::Relaxed);
        let payer = self.catalog.lock().payer_slot(owner)?;
        let options = ContentOptions {
            id,
            size_bytes,
            block_bytes: self.block_bytes,
            owner: payer,
            history: history.unwrap_or(id),
            time_to_live: owner.time_to_live,
            packs,
        };
        let content = Content::new(options, &self.backing, &self.budget, &self.mappings)?;
        self.catalog.lock().add_content(content.clone());
        Ok(content)
    }

    /// The last handle of a content is gone: nothing of it is ranked or charged any more. Its
    /// memory goes when the last pin or hold lets go of it.
    pub fn close(&self, content: &Arc<Content>) {
        let taken;
        {
            let mut catalog = self.catalog.lock();
            let mut state = content.state.lock();
            state.closed = true;
            for (block, cell) in content.cells.range(0, u64::MAX) {
                if cell.word.word().is_resident() {
                    catalog.leave(content, block);
                    let charge = charge_of(content.block_length(block));
                    catalog.discharge(content.owner, charge);
                }
            }
            taken = catalog.take_content(content);
        }
        drop(taken);
    }

    /// Books `bytes` for an owner, evicting where needed. False: they cannot be had.
    pub fn reserve(&self, payer: u16, bytes: u64) -> bool {
        self.reserve_on(payer, bytes, Admission::Always)
    }

    /// As `reserve`, evicting only what the terms allow.
    fn reserve_on(&self, payer: u16, bytes: u64, admission: Admission) -> bool {
        let mut asked_hook = false;
        let mut patience = Patience::default();
        loop {
            let mut victims = Vec::new();
            let mut within_quota = true;
            let missing = {
                let mut catalog = self.catalog.lock();
                let missing = match catalog.quota_shortfall(payer, bytes) {
                    Some((_, None)) => return false,
                    Some((key, Some(missing))) => {
                        catalog.select(Filter::Quota(key), missing, admission, &mut victims);
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
                            let ahead = match admission {
                                Admission::Always => self.batch_bytes(),
                                Admission::IfCheap => 0,
                            };
                            self.refresh_target(&mut catalog);
                            let capacity_bytes = self.budget.capacity();
                            let filter = Filter::For { payer, capacity_bytes };
                            catalog.select(filter, ahead.max(missing), admission, &mut victims);
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
            if admission == Admission::IfCheap {
                return false;
            }
            if self.budget.freeing() > 0 {
                // Somebody else is freeing memory; it may do for us too.
                patience.wait();
            } else if !within_quota || asked_hook || !self.ask_hook(missing) {
                return false;
            } else {
                asked_hook = true;
            }
        }
    }

    /// Gives back what was booked but is not resident.
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

    /// Evicts until the capacity is kept: waits for short pins, and asks for what is not clean to
    /// be written down. Returns bytes freed.
    pub fn shrink(&self) -> u64 {
        let mut freed = 0;
        let mut asked_hook = false;
        let mut patience = Patience::default();
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
            if self.budget.freeing() > 0 || since.elapsed() < PIN_PATIENCE && self.any_pins() {
                patience.wait();
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
            catalog.select(Filter::All, step, Admission::Always, &mut victims);
            self.announce_freeing(&catalog, &victims);
        }
        self.free(victims)
    }

    fn any_pins(&self) -> bool {
        let catalog = self.catalog.lock();
        catalog.contents().any(|content| {
            content.cells.range(0, u64::MAX).any(|(_, cell)| cell.word.word().is_pinned())
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
            catalog.select(Filter::Quota(key), excess, Admission::Always, &mut victims);
            self.announce_freeing(&catalog, &victims);
        }
        self.free(victims)
    }

    /// Begins to fill a block. Read-ahead comes in only where the policy wants it.
    pub fn begin_fill(
        self: &Arc<Self>,
        content: &Arc<Content>,
        block: u64,
        is_read_ahead: bool,
    ) -> FillStart {
        let mut patience = Patience::default();
        let length = loop {
            let mut state = content.state.lock();
            let length = content.block_length(block);
            let being_cut = state.cutting_from.is_some_and(|first| block >= first);
            if length == 0 || state.closed || being_cut || u32::try_from(block).is_err() {
                return FillStart::NotAdmitted;
            }
            if self.budget.capacity() == 0 && content.cells.get(block).is_none() {
                return FillStart::NotAdmitted;
            }
            match content.cells.get_or_create(block).word.start_fill() {
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
            patience.wait();
        };
        let admission = match is_read_ahead {
            true => self.catalog.lock().admits(content, block),
            false => Admission::Always,
        };
        let charge = charge_of(length);
        if !self.reserve_on(content.owner, charge, admission) {
            if is_read_ahead {
                self.catalog.lock().refused(content, block);
            }
            self.end_fill(content, block);
            return FillStart::NotAdmitted;
        }
        content.add_charge(charge);
        let added = |fill: &mut ActiveFill| fill.charge += charge;
        content.state.lock().fills.iter_mut().filter(|fill| fill.block == block).for_each(added);
        match content.populate_for_fill(block, length) {
            Some(memory) => {
                FillStart::Started(BlockFill::new(self, content, block, memory, length))
            }
            None => {
                self.end_fill(content, block);
                FillStart::NotAdmitted
            }
        }
    }

    /// Ends a fill by publishing the block. `None`: its bytes were superseded and are
    /// discarded. Otherwise the generation of its word.
    pub fn commit(
        &self,
        content: &Arc<Content>,
        block: u64,
        block_state: BlockState,
    ) -> Option<u64> {
        let Some(generation) = self.publish(content, block, block_state) else {
            self.end_fill(content, block);
            return None;
        };
        if self.budget.excess() > 0 {
            self.trim();
        }
        Some(generation)
    }

    fn publish(&self, content: &Content, block: u64, block_state: BlockState) -> Option<u64> {
        let mut catalog = self.catalog.lock();
        let mut state = content.state.lock();
        let length = content.block_length(block);
        let place = state.fills.iter().position(|fill| fill.block == block);
        let place = place.expect("a fill is registered until it ends");
        let fill = &state.fills[place];
        let superseded = fill.stale || fill.keep < fill.length;
        let unwanted = state.closed || length == 0 || fill.keep == 0;
        if unwanted || block_state == BlockState::Absent {
            return None;
        }
        if superseded && block_state == BlockState::Clean {
            return None;
        }
        let fill = state.fills.swap_remove(place);
        // What a truncation cut off during the fill reads as zeros from then on.
        if fill.keep < fill.length {
            let cut = content.cut_block(&mut state, block, fill.keep);
            if cut.is_err() || !content.populate(&mut state, block, length) {
                state.fills.push(fill);
                return None;
            }
        }
        let surplus = fill.charge.saturating_sub(charge_of(length));
        let generation = content.publish(&mut state, block, block_state);
        catalog.enter(content, &state, block);
        if surplus > 0 {
            catalog.discharge(content.owner, surplus);
            content.remove_charge(surplus);
            self.budget.release(surplus);
        }
        _ = content.apply_length(&mut state);
        Some(generation)
    }

    /// Ends a fill by giving the memory back.
    pub fn end_fill(&self, content: &Content, block: u64) {
        let start = block * content.block_bytes;
        content.file.punch(start, content.block_bytes);
        let charge = {
            let mut catalog = self.catalog.lock();
            let mut state = content.state.lock();
            let place = state.fills.iter().position(|fill| fill.block == block);
            let fill = state.fills.swap_remove(place.expect("a fill is registered until it ends"));
            let cell = content.cells.get(block).expect("a block under a fill has a cell");
            cell.word.abandon_fill();
            catalog.discharge(content.owner, fill.charge);
            _ = content.apply_length(&mut state);
            fill.charge
        };
        content.remove_charge(charge);
        self.budget.release(charge);
    }

    /// Evicts the clean, unpinned blocks of a range, unless they are held. Returns bytes.
    pub fn evict_blocks(&self, content: &Arc<Content>, first: u64, end: u64) -> u64 {
        self.ask(content);
        let mut victims = Vec::new();
        {
            let mut catalog = self.catalog.lock();
            let state = content.state.lock();
            // A closed content is charged to nobody and goes with its last pin or hold.
            if state.holds == 0 && !state.closed {
                for (block, _) in content.cells.range(first, end) {
                    if let Ok((charge, _)) = content.retract(&state, block, true) {
                        catalog.leave(content, block);
                        catalog.discharge(content.owner, charge);
                        victims.push(Victim { content: content.clone(), block, charge });
                    }
                }
            }
            self.announce_freeing(&catalog, &victims);
        }
        self.free(victims)
    }

    /// Drops all blocks whatever their state; waits for short pins. What is held goes when the
    /// last hold lets go.
    pub fn drop_contents(&self, content: &Arc<Content>) {
        self.ask(content);
        let mut patience = Patience::default();
        content.state.lock().fills.iter_mut().for_each(|fill| fill.keep = 0);
        loop {
            let mut victims = Vec::new();
            let mut pinned = false;
            {
                let mut catalog = self.catalog.lock();
                let mut state = content.state.lock();
                if state.closed {
                    return;
                }
                if state.holds > 0 {
                    state.drop_when_released = true;
                    content.cells.range(0, u64::MAX).for_each(|(_, cell)| cell.word.open());
                    return;
                }
                for (block, _) in content.cells.range(0, u64::MAX) {
                    match content.retract(&state, block, false) {
                        Ok((charge, _)) => {
                            catalog.leave(content, block);
                            catalog.discharge(content.owner, charge);
                            victims.push(Victim { content: content.clone(), block, charge });
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
            patience.wait();
        }
    }

    /// Supersedes a content: its blocks go before all others.
    pub fn retire(&self, content: &Content) {
        let mut catalog = self.catalog.lock();
        {
            let mut state = content.state.lock();
            state.retired = true;
            state.shared.iter().for_each(SharedTable::supersede);
        }
        catalog.supersede(content);
    }

    /// Evicts what outlived its time. Returns bytes.
    pub fn expire(&self, now: Instant) -> u64 {
        let outlived: Vec<Arc<Content>> = {
            let catalog = self.catalog.lock();
            let is_due = |content: &&Arc<Content>| {
                content.time_to_live.is_some()
                    && content.state.lock().expires.is_some_and(|expires| expires <= now)
            };
            catalog.contents().filter(is_due).cloned().collect()
        };
        outlived.iter().map(|content| self.evict_blocks(content, 0, u64::MAX)).sum()
    }
}
