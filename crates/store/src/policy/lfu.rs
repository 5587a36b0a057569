//! Least frequently used, with aging: the paper's second policy. Counts are halved after ten hits
//! per entry, so that what was popular last week does not stay for ever. Equal counts go in the
//! order in which they reached that count.

use super::{Entries, List, Offered, Policy};

const COUNT_MAX: u32 = 63;
const HITS_PER_ENTRY_BEFORE_AGING: u64 = 10;

pub(crate) struct Lfu {
    by_count: [List; COUNT_MAX as usize + 1],
    entries_held: u64,
    hits_since_aging: u64,
}

impl Default for Lfu {
    fn default() -> Self {
        let by_count = [List::default(); COUNT_MAX as usize + 1];
        Lfu { by_count, entries_held: 0, hits_since_aging: 0 }
    }
}

impl Lfu {
    fn list(&mut self, entries: &Entries, index: u32) -> &mut List {
        &mut self.by_count[entries.get(index).meta as usize]
    }

    fn halve_counts(&mut self, entries: &mut Entries) {
        self.hits_since_aging = 0;
        for count in 1..self.by_count.len() {
            let mut list = std::mem::take(&mut self.by_count[count]);
            while let Some(index) = list.pop(entries) {
                entries.get_mut(index).meta = count as u32 / 2;
                self.by_count[count / 2].push(entries, index);
            }
        }
    }
}

impl Policy for Lfu {
    fn insert(&mut self, entries: &mut Entries, index: u32, _key: u64) {
        entries.get_mut(index).meta = 0;
        self.by_count[0].push(entries, index);
        self.entries_held += 1;
    }

    fn hit(&mut self, entries: &mut Entries, index: u32, _: u64, reuse: Option<u32>) {
        self.list(entries, index).remove(entries, index);
        let entry = entries.get_mut(index);
        entry.meta = (entry.meta + u32::from(reuse.is_some())).min(COUNT_MAX);
        self.list(entries, index).push(entries, index);
        self.hits_since_aging += 1;
        if self.hits_since_aging > HITS_PER_ENTRY_BEFORE_AGING * self.entries_held {
            self.halve_counts(entries);
        }
    }

    fn remove(&mut self, entries: &mut Entries, index: u32) {
        self.list(entries, index).remove(entries, index);
        self.entries_held -= 1;
    }

    fn select(&mut self, entries: &mut Entries, _cheap_only: bool, offer: Offered<'_>) {
        for list in &mut self.by_count {
            let held = &mut self.entries_held;
            if !list.offer_all(entries, offer, |_, _, _| *held -= 1) {
                return;
            }
        }
    }
}
