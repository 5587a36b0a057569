//! Keeps one part of what is read and lets the rest pass through: no policy can do better where
//! each pass over the data comes in a new random order, as training jobs read, and recency only
//! throws out what comes back. The share of hits is capacity / size, whatever the order.
//!
//! A block that was kept and not read for several turnovers gives its place to another, so that a
//! job that moved on to other data gets a part of those.

use super::strain::Strain;
use super::{Entries, EvictionTerms, List, NONE, Offered, Policy};

const KEPT: u32 = 1;
/// Passing blocks hold one entry in a hundred.
const PASSING_SHARE: u32 = 100;
/// But enough that one of them is neither being read nor waiting for its reader.
const PASSING_LEAST: u32 = 4;
/// A kept block is evicted where the store could have been filled so many times since its last
/// read: of a set of four times the capacity, any block is read again before.
const FORGOTTEN_TURNOVERS: u32 = 8;

#[derive(Default)]
pub(crate) struct Fixed {
    /// By last read.
    kept: List,
    /// By arrival or last read.
    passing: List,
    kept_max: u32,
    passing_max: u32,
    strain: Strain,
    now: u32,
    forgotten_ticks: u32,
}

impl Fixed {
    fn keep(&mut self, entries: &mut Entries, index: u32) {
        entries.get_mut(index).meta = KEPT;
        self.kept.push(entries, index);
    }

    fn is_strained(&mut self) -> bool {
        self.strain.lasts(self.now, self.kept_max.saturating_add(self.passing_max))
    }

    /// Whether there is a place for one more, made by the coldest one where that is forgotten.
    fn has_place(&mut self, entries: &mut Entries, now: u32) -> bool {
        self.now = now;
        if self.kept.len() < self.kept_max {
            return self.passing.len() < self.passing_max || !self.is_strained();
        }
        let coldest = self.kept.first();
        if self.kept.len() > self.kept_max
            || coldest == NONE
            || now.wrapping_sub(entries.get(coldest).tick) <= self.forgotten_ticks
        {
            return false;
        }
        self.kept.remove(entries, coldest);
        entries.get_mut(coldest).meta = 0;
        self.passing.push(entries, coldest);
        true
    }
}

impl Policy for Fixed {
    fn set_target(&mut self, target_entries: u32) {
        let least = PASSING_LEAST.min(target_entries / 8).max(1);
        let passing = (target_entries / PASSING_SHARE).max(least);
        self.kept_max = target_entries.saturating_sub(passing);
        self.passing_max = passing;
        self.forgotten_ticks = target_entries.saturating_mul(FORGOTTEN_TURNOVERS);
    }

    fn admits(&mut self, _: &Entries, _key: u64, _tick: u32) -> EvictionTerms {
        if self.kept.len() < self.kept_max { EvictionTerms::Any } else { EvictionTerms::CheapOnly }
    }

    fn insert(&mut self, entries: &mut Entries, index: u32, _key: u64) {
        let now = entries.get(index).tick;
        if self.has_place(entries, now) {
            self.keep(entries, index);
        } else {
            entries.get_mut(index).meta = 0;
            self.passing.push(entries, index);
        }
    }

    fn hit(&mut self, entries: &mut Entries, index: u32, _: u64, _reuse: Option<u32>) {
        if entries.get(index).meta == KEPT {
            self.kept.refresh(entries, index);
        } else if self.kept.len() < self.kept_max && !self.is_strained() {
            self.passing.remove(entries, index);
            self.keep(entries, index);
        } else {
            self.passing.refresh(entries, index);
        }
    }

    fn remove(&mut self, entries: &mut Entries, index: u32) {
        let kept = entries.get(index).meta == KEPT;
        let list = if kept { &mut self.kept } else { &mut self.passing };
        list.remove(entries, index);
    }

    fn select(&mut self, entries: &mut Entries, cheap_only: bool, offer: Offered<'_>) {
        let Fixed { kept, passing, strain, now, .. } = self;
        if passing.offer_all(entries, offer, |_, _, _| {}) && !cheap_only {
            let refused = passing.len() > 0;
            kept.offer_all(entries, offer, |_, _, _| {
                if refused {
                    strain.note(*now);
                }
            });
        }
    }
}
