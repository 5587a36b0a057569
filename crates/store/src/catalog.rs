//! [`Catalog`]: all segments, their payers and quotas, and the order of eviction, under one lock
//! that no hit takes. It frees nothing; it only selects.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::MutexGuard;
use tidepool_proto::admin::{PolicyChoice, PolicyRatio};
use tidepool_proto::{Error, ErrorKind, Result};

use crate::cell::Cell;
use crate::cells::CellRef;
use crate::config::{Owner, PolicyKind, QuotaKey};
use crate::policy::{Choice, Entries, Entry, EvictionTerms, NONE, Offer, Ranking, block_key};
use crate::segment_memory::{SegmentMemory, State};

/// A block that was made unreadable and whose memory is to be freed.
pub(crate) struct Victim {
    pub memory: Arc<SegmentMemory>,
    pub block: u64,
    /// Bytes booked for it.
    pub charge: u64,
}

/// Which blocks a selection may take.
#[derive(Clone, Copy)]
pub(crate) enum Filter {
    All,
    Quota(QuotaKey),
    /// All, for the sake of this payer; what others read lately within their share of the capacity
    /// goes last.
    For {
        payer: u16,
        capacity_bytes: u64,
    },
}

/// One walk through the order of eviction.
struct Pass {
    filter: Filter,
    /// Only what the policy expects little of.
    cheap_only: bool,
    /// Also blocks with hits that the policy does not know of.
    referenced_too: bool,
    /// See [`Catalog::kept`].
    kept: Vec<bool>,
}

/// Whom memory is charged to.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
struct Payer {
    user_id: u32,
    directory: Option<u32>,
}

impl Payer {
    fn keys(self) -> impl Iterator<Item = QuotaKey> {
        let directory = self.directory.map(QuotaKey::Directory);
        std::iter::once(QuotaKey::User(self.user_id)).chain(directory)
    }

    fn matches(self, filter: Filter) -> bool {
        match filter {
            Filter::All | Filter::For { .. } => true,
            Filter::Quota(key) => self.keys().any(|own| own == key),
        }
    }
}

#[derive(Default)]
struct Quota {
    limit_bytes: Option<u64>,
    used_bytes: u64,
}

/// All segments, owners, and the order of eviction.
pub(crate) struct Catalog {
    ranking: Ranking,
    memories: Vec<Option<Arc<SegmentMemory>>>,
    free_slots: Vec<u32>,
    live_segments: u64,
    payers: Vec<Payer>,
    payer_slots: HashMap<Payer, u16>,
    quotas: HashMap<QuotaKey, Quota>,
    swept_tick: u32,
    block_bytes: u64,
}

/// A sweep comes after one part in so many of the entries changed.
const SWEEP_SHARE: u32 = 1024;
/// Up to so many entries a sweep costs little beside a transfer.
const SWEPT_ALWAYS: u32 = 4096;

impl Catalog {
    pub fn new(kind: PolicyKind, block_bytes: u64, capacity_bytes: u64) -> Self {
        let mut this = Catalog {
            ranking: Ranking::new(kind),
            memories: Vec::new(),
            free_slots: Vec::new(),
            live_segments: 0,
            payers: Vec::new(),
            payer_slots: HashMap::new(),
            quotas: HashMap::new(),
            swept_tick: 0,
            block_bytes,
        };
        this.set_target(capacity_bytes, 0);
        this
    }

    pub fn kind(&self) -> PolicyKind {
        self.ranking.kind()
    }

    /// What a policy that chooses among others follows.
    pub fn choice(&self) -> Option<PolicyChoice> {
        let Choice { chosen, would_hit, reads } = self.ranking.choice()?;
        let ratio = |(kind, ratio): (PolicyKind, f64)| PolicyRatio {
            policy: kind.to_string(),
            would_hit_ratio: ratio,
        };
        let candidates = would_hit.into_iter().map(ratio).collect();
        let compared_reads = reads.round() as u64;
        Some(PolicyChoice { chosen: chosen.to_string(), candidates, compared_reads })
    }

    pub fn live_segments(&self) -> u64 {
        self.live_segments
    }

    pub fn memories(&self) -> impl Iterator<Item = &Arc<SegmentMemory>> {
        self.memories.iter().flatten()
    }

    /// The number of an owner, for entries.
    pub fn payer_slot(&mut self, owner: &Owner) -> Result<u16> {
        let payer = Payer { user_id: owner.user_id, directory: owner.directory };
        if let Some(slot) = self.payer_slots.get(&payer) {
            return Ok(*slot);
        }
        let slot = u16::try_from(self.payers.len()).map_err(|_| {
            let detail = "65,536 pairs of user and directory rule are in use";
            Error::new(ErrorKind::LimitReached, "creating a segment", detail)
                .remedy("use fewer directory rules")
        })?;
        self.payers.push(payer);
        self.payer_slots.insert(payer, slot);
        Ok(slot)
    }

    pub fn add_memory(&mut self, memory: Arc<SegmentMemory>) {
        let slot = self.free_slots.pop().unwrap_or_else(|| {
            self.memories.push(None);
            self.memories.len() as u32 - 1
        });
        memory.slot.store(slot, Ordering::Relaxed);
        self.memories[slot as usize] = Some(memory);
        self.live_segments += 1;
    }

    /// Takes a segment's memory out. The caller drops it after the lock is released.
    pub fn take_memory(&mut self, memory: &SegmentMemory) -> Option<Arc<SegmentMemory>> {
        let slot = memory.slot.swap(NONE, Ordering::Relaxed);
        let taken = self.memories.get_mut(slot as usize)?.take();
        self.free_slots.push(slot);
        self.live_segments -= 1;
        taken
    }

    /// Enters a block that became resident (invariant 3 of [`crate::engine`]).
    pub fn enter(&mut self, memory: &SegmentMemory, state: &State, block: u64) {
        let cell = memory.cells.get(block).expect("a resident block has a cell");
        let (slot, number) = (memory.slot.load(Ordering::Relaxed), block as u32);
        let history = history_of(memory, cell);
        let index = self.ranking.insert(slot, number, memory.owner, history);
        cell.entry.store(index, Ordering::Relaxed);
        if state.invalidated {
            self.ranking.invalidate(index);
        }
    }

    /// Removes a block that was retracted for a reason other than selection.
    pub fn leave(&mut self, memory: &SegmentMemory, block: u64) {
        let cell = memory.cells.get(block).expect("a retracted block has a cell");
        let index = cell.entry.swap(NONE, Ordering::Relaxed);
        if index != NONE {
            self.ranking.remove(index);
        }
    }

    /// Moves all blocks of a stale segment to the front of the order.
    pub fn invalidate(&mut self, memory: &SegmentMemory) {
        for (_, cell) in memory.cells.range(0, u64::MAX) {
            let index = cell.entry.load(Ordering::Relaxed);
            if index != NONE {
                self.ranking.invalidate(index);
            }
        }
    }

    pub fn admits(&mut self, memory: &SegmentMemory, block: u64) -> EvictionTerms {
        self.sweep(false);
        self.ranking.admits(memory.history, block as u32)
    }

    /// A block found no room on its terms.
    pub fn refused(&mut self, memory: &SegmentMemory, block: u64) {
        self.ranking.refused(memory.history, block as u32);
    }

    /// Books bytes on an owner.
    pub fn charge(&mut self, payer: u16, bytes: u64) {
        for key in self.payers[payer as usize].keys() {
            self.quotas.entry(key).or_default().used_bytes += bytes;
        }
    }

    /// Takes booked bytes off an owner.
    pub fn discharge(&mut self, payer: u16, bytes: u64) {
        if bytes == 0 {
            return;
        }
        for key in self.payers[payer as usize].keys() {
            let quota = self.quotas.get_mut(&key).expect("charged before");
            quota.used_bytes -= bytes;
            if quota.used_bytes == 0 && quota.limit_bytes.is_none() {
                self.quotas.remove(&key);
            }
        }
    }

    pub fn set_quota(&mut self, key: QuotaKey, limit_bytes: Option<u64>) {
        self.quotas.entry(key).or_default().limit_bytes = limit_bytes;
    }

    /// Bytes by which a quota is exceeded now.
    pub fn quota_excess(&self, key: QuotaKey) -> u64 {
        let Some(quota) = self.quotas.get(&key) else { return 0 };
        quota.used_bytes.saturating_sub(quota.limit_bytes.unwrap_or(u64::MAX))
    }

    /// The quota that `bytes` more would break, and how many must go first; `None` within it are
    /// more than can ever go.
    pub fn quota_shortfall(&self, payer: u16, bytes: u64) -> Option<(QuotaKey, Option<u64>)> {
        self.payers[payer as usize].keys().find_map(|key| {
            let quota = self.quotas.get(&key)?;
            let limit_bytes = quota.limit_bytes?;
            let missing = (quota.used_bytes + bytes).saturating_sub(limit_bytes);
            (missing > 0).then_some((key, (bytes <= limit_bytes).then_some(missing)))
        })
    }

    /// Tells the policy how many entries the capacity holds at their average size.
    pub fn set_target(&mut self, capacity_bytes: u64, used_bytes: u64) {
        let entries = u64::from(self.ranking.entries().len());
        let average = used_bytes.checked_div(entries).unwrap_or(0);
        let average = average.clamp(1, self.block_bytes);
        let average = if entries == 0 { self.block_bytes } else { average };
        self.ranking.set_target(u32::try_from(capacity_bytes / average).unwrap_or(u32::MAX));
    }

    /// Brings hits to the policy: those marked in cells and those that clients marked.
    pub fn sweep(&mut self, forced: bool) {
        let ticks = self.ranking.tick().wrapping_sub(self.swept_tick);
        if !forced && ticks < self.ranking.entries().len() / SWEEP_SHARE {
            return;
        }
        self.take_client_references();
        for index in 0..self.ranking.entries().bound() {
            if !self.ranking.entries().is_live(index) {
                continue;
            }
            let entry = *self.ranking.entries().get(index);
            let memory = memory_of(&self.memories, entry.segment);
            let Some(cell) = memory.cells.get(u64::from(entry.block)) else { continue };
            if cell.word.take_reference() {
                self.ranking.note_reference(index, history_of(memory, cell));
            }
        }
        self.swept_tick = self.ranking.tick();
    }

    /// Looks at the marks of resident blocks alone: a file may have millions of others.
    fn take_client_references(&self) {
        let entries = self.ranking.entries();
        let live = (0..entries.bound()).filter(|index| entries.is_live(*index));
        let mut blocks: Vec<(u32, u32)> = live
            .map(|index| (entries.get(index).segment, entries.get(index).block))
            .filter(|(slot, _)| memory_of(&self.memories, *slot).exported.load(Ordering::Acquire))
            .collect();
        blocks.sort_unstable();
        for of_one in blocks.chunk_by(|(one, _), (next, _)| one == next) {
            let resident: Vec<u32> = of_one.iter().map(|(_, block)| *block).collect();
            memory_of(&self.memories, of_one[0].0).take_client_references(&resident);
        }
    }

    /// Makes blocks unreadable in the order of eviction until `bytes` are found. Returns how many.
    pub fn select(
        &mut self,
        filter: Filter,
        bytes: u64,
        terms: EvictionTerms,
        victims: &mut Vec<Victim>,
    ) -> u64 {
        let cheap_only = terms == EvictionTerms::CheapOnly;
        // What was just read must not look unread, nor the other way round, where the order of
        // eviction turns on it; in a large store one sweep serves several selections.
        self.sweep(self.ranking.entries().len() <= SWEPT_ALWAYS);
        let first = victims.len();
        let mut pass = Pass { filter, cheap_only, referenced_too: false, kept: self.kept(filter) };
        let mut found = self.select_pass(&pass, bytes, victims);
        if found < bytes {
            self.sweep(true);
            pass.referenced_too = true;
            found += self.select_pass(&pass, bytes - found, victims);
        }
        if found < bytes && !pass.kept.is_empty() && !cheap_only {
            pass.kept.clear();
            found += self.select_pass(&pass, bytes - found, victims);
        }
        for victim in &victims[first..] {
            self.discharge(victim.memory.owner, victim.charge);
        }
        found
    }

    /// By payer, whether what its users read stays while others want room: each user has an equal
    /// share of the capacity. Empty if nobody's does.
    fn kept(&self, filter: Filter) -> Vec<bool> {
        let Filter::For { payer, capacity_bytes } = filter else { return Vec::new() };
        let asker = QuotaKey::User(self.payers[payer as usize].user_id);
        let others = || {
            let users = self.quotas.iter().filter(|(key, _)| matches!(key, QuotaKey::User(_)));
            users.filter(|(key, quota)| **key != asker && quota.used_bytes > 0)
        };
        let share_bytes = capacity_bytes / (others().count() as u64 + 1);
        if others().all(|(_, quota)| quota.used_bytes > share_bytes) {
            return Vec::new();
        }
        let keeps = |payer: &Payer| {
            let user = QuotaKey::User(payer.user_id);
            let used = self.quotas.get(&user).map_or(0, |quota| quota.used_bytes);
            user != asker && used <= share_bytes
        };
        self.payers.iter().map(keeps).collect()
    }

    fn select_pass(&mut self, pass: &Pass, bytes: u64, victims: &mut Vec<Victim>) -> u64 {
        let Catalog { ranking, memories, payers, .. } = self;
        let Pass { filter, cheap_only, referenced_too, ref kept } = *pass;
        let recent = ranking.recent();
        let mut found = 0;
        ranking.select(cheap_only, |entries, index| {
            let entry = entries.get(index);
            if found >= bytes {
                return Offer::Stop;
            }
            let memory = memory_of(memories, entry.segment);
            let block = u64::from(entry.block);
            let cell = memory.cells.get(block).expect("a resident block has a cell");
            // A hit that the policy does not know of yet: look again after the next sweep.
            let unknown_hit = cell.word.word().is_referenced() && !referenced_too;
            if unknown_hit || !payers[entry.owner as usize].matches(filter) {
                return Offer::Skip;
            }
            if kept.get(entry.owner as usize) == Some(&true) && recent.has(entry) {
                return Offer::Skip;
            }
            let state = memory.state.lock();
            if state.segment_pins > 0 {
                return Offer::Skip;
            }
            let Ok((charge, _)) = memory.retract(&state, block, true) else { return Offer::Skip };
            cell.entry.store(NONE, Ordering::Relaxed);
            victims.push(Victim { memory: memory.clone(), block, charge });
            found += charge;
            Offer::Take(departure_key(memory, entry))
        });
        found
    }

    pub fn set_policy(&mut self, kind: PolicyKind) {
        self.sweep(true);
        let Catalog { ranking, memories, .. } = self;
        ranking.set_policy(kind, |entries, index| {
            let entry = entries.get(index);
            let memory = memory_of(memories, entry.segment);
            let cell = memory.cells.get(u64::from(entry.block));
            block_key(history_of(memory, cell.expect("a resident block has a cell")), entry.block)
        });
    }

    /// Place of the segment's next block in the order of eviction: 0 is next, 1 is last.
    pub fn rank(&mut self, memory: &SegmentMemory) -> Option<f64> {
        self.sweep(true);
        let slot = memory.slot.load(Ordering::Relaxed);
        self.ranking.position(|entries: &Entries, index| entries.get(index).segment == slot)
    }

    pub fn bookkeeping_bytes(&self) -> u64 {
        let payer_bytes = size_of::<Payer>() + size_of::<(Payer, u16)>() + 1;
        let own = self.memories.capacity() * size_of::<Option<Arc<SegmentMemory>>>()
            + self.free_slots.capacity() * size_of::<u32>()
            + self.payers.capacity() * payer_bytes
            + self.quotas.capacity() * (size_of::<(QuotaKey, Quota)>() + 1);
        let memories: u64 = self.memories().map(|memory| memory.bookkeeping_bytes()).sum();
        own as u64 + memories + self.ranking.bookkeeping_bytes()
    }
}

/// What the policy knows a resident block by. A pack's block comes back with other files.
fn history_of(memory: &SegmentMemory, cell: CellRef<'_>) -> u64 {
    let is_pack = memory.evicted_packs.is_some();
    let use_number = if is_pack { cell.word.word().generation() } else { 0 };
    memory.history ^ use_number << 20
}

/// What the policy remembers a departing block by. A pack's block comes back with other files.
fn departure_key(memory: &SegmentMemory, entry: &Entry) -> u64 {
    let reused = memory.evicted_packs.is_some();
    let history =
        if reused { memory.history ^ u64::from(entry.tick) << 32 } else { memory.history };
    block_key(history, entry.block)
}

fn memory_of(memories: &[Option<Arc<SegmentMemory>>], slot: u32) -> &Arc<SegmentMemory> {
    memories[slot as usize]
        .as_ref()
        .expect("the memory of a segment stays in the catalog while it has entries")
}

/// The lock of the catalog, for signatures.
pub(crate) type CatalogGuard<'a> = MutexGuard<'a, Catalog>;
