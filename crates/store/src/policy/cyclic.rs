//! For loops over a set larger than the capacity: keeps one stable part of the loop resident, so
//! that the hit ratio is near capacity / size, where recency alone scores zero.
//!
//! It ranks blocks by the distance between their last two reads instead of by recency (LIRS, Jiang
//! and Zhang, SIGMETRICS 2002). *Stable* blocks hold nearly all of the capacity; the others pass
//! through a short queue. A passing block becomes stable if it comes back sooner than the coldest
//! stable block was last read; that one then passes. Instead of LIRS's stack of departed blocks,
//! read times are kept with the entries and in a small ghost table: "is still in the stack" is
//! "was read after the coldest stable block". A loop that moved on is found by the same rule.

use super::ghost::Ghosts;
use super::strain::Strain;
use super::{Entries, EvictionTerms, List, NONE, Offered, Policy};

const STABLE: u32 = 1;
/// Passing blocks hold one entry in a hundred.
const PASSING_SHARE: u32 = 100;
/// But enough that one of them is neither being read nor waiting for its reader.
const PASSING_LEAST: u32 = 4;
/// Departed blocks remembered per two entries of capacity: finds loops of up to three times the
/// capacity.
const GHOSTS_PER_TWO_ENTRIES: u32 = 5;

/// Read-ahead holds one part in so many of the capacity at the most.
const READ_AHEAD_SHARE: u32 = 4;
#[derive(Default)]
pub(crate) struct Cyclic {
    /// By last read.
    stable: List,
    /// By arrival or last read.
    passing: List,
    ghosts: Ghosts,
    stable_max: u32,
    passing_max: u32,
    strain: Strain,
    now: u32,
}

impl Cyclic {
    fn coldest_age(&self, entries: &Entries) -> Option<u32> {
        let coldest = self.stable.first();
        (coldest != NONE).then(|| self.now.wrapping_sub(entries.get(coldest).tick))
    }

    /// Whether a block that comes in `age` ticks after it was last read comes back sooner than the
    /// coldest stable block. It may come in ahead of its reader, so its reuse takes longer than its
    /// age by the read-ahead, which is a quarter of the capacity at the most.
    fn returns_early(&self, entries: &Entries, age: Option<u32>) -> bool {
        let ahead = self.stable_max / READ_AHEAD_SHARE;
        match (age, self.coldest_age(entries)) {
            (Some(age), Some(coldest_age)) => age.saturating_add(ahead) < coldest_age,
            _ => false,
        }
    }

    /// Whether the host lately kept passing blocks, so that stable ones went.
    fn is_strained(&mut self) -> bool {
        let target_entries = self.stable_max.saturating_add(self.passing_max);
        self.passing.len() >= self.passing_max && self.strain.lasts(self.now, target_entries)
    }

    fn make_stable(&mut self, entries: &mut Entries, index: u32) {
        entries.get_mut(index).meta = STABLE;
        self.stable.push(entries, index);
        while self.stable.len() > self.stable_max {
            let Some(coldest) = self.stable.pop(entries) else { return };
            entries.get_mut(coldest).meta = 0;
            self.passing.push(entries, coldest);
        }
    }
}

impl Policy for Cyclic {
    fn set_target(&mut self, target_entries: u32) {
        let least = PASSING_LEAST.min(target_entries / 8).max(1);
        let passing = (target_entries / PASSING_SHARE).max(least);
        self.stable_max = target_entries.saturating_sub(passing);
        self.passing_max = passing;
        self.ghosts.resize(target_entries.saturating_mul(GHOSTS_PER_TWO_ENTRIES) / 2);
    }

    /// Read-ahead must not drain the stable blocks: it takes the place of a passing one, or passes
    /// through without being kept, unless it comes back soon enough to become stable.
    fn admits(&mut self, entries: &Entries, key: u64, tick: u32) -> EvictionTerms {
        self.now = tick;
        let age = self.ghosts.recall(key, tick);
        if let Some(age) = age {
            self.ghosts.remember(key, tick.wrapping_sub(age), tick);
        }
        if self.returns_early(entries, age) { EvictionTerms::Any } else { EvictionTerms::CheapOnly }
    }

    fn refused(&mut self, key: u64, tick: u32) {
        self.ghosts.recall(key, tick);
        self.ghosts.remember(key, tick, tick);
    }

    fn insert(&mut self, entries: &mut Entries, index: u32, key: u64) {
        self.now = entries.get(index).tick;
        let age = self.ghosts.recall(key, self.now);
        let has_place = self.returns_early(entries, age) || self.stable.len() < self.stable_max;
        if has_place && !self.is_strained() {
            self.make_stable(entries, index);
        } else {
            entries.get_mut(index).meta = 0;
            self.passing.push(entries, index);
        }
    }

    fn hit(&mut self, entries: &mut Entries, index: u32, _: u64, reuse: Option<u32>) {
        let entry = *entries.get(index);
        self.now = entry.tick;
        if entry.meta == STABLE {
            self.stable.refresh(entries, index);
        } else if reuse.is_some() && reuse < self.coldest_age(entries) && !self.is_strained() {
            self.passing.remove(entries, index);
            self.make_stable(entries, index);
        } else {
            self.passing.refresh(entries, index);
        }
    }

    fn remove(&mut self, entries: &mut Entries, index: u32) {
        let stable = entries.get(index).meta == STABLE;
        let list = if stable { &mut self.stable } else { &mut self.passing };
        list.remove(entries, index);
    }

    fn select(&mut self, entries: &mut Entries, cheap_only: bool, offer: Offered<'_>) {
        let Cyclic { stable, passing, ghosts, strain, now, .. } = self;
        let mut depart = |entries: &Entries, index: u32, key: u64| {
            ghosts.remember(key, entries.get(index).tick, *now);
        };
        if passing.offer_all(entries, offer, &mut depart) && !cheap_only {
            let refused = passing.len() > 0;
            stable.offer_all(entries, offer, |entries, index, key| {
                depart(entries, index, key);
                if refused {
                    strain.note(*now);
                }
            });
        }
    }

    fn bookkeeping_bytes(&self) -> u64 {
        self.ghosts.bookkeeping_bytes()
    }
}
