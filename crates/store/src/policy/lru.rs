//! Least recently used: the paper's first policy. Scores nothing on a loop larger than the
//! capacity, which is why it is not the default.

use super::{Entries, List, Offered, Policy};

#[derive(Default)]
pub(crate) struct Lru {
    by_recency: List,
}

impl Policy for Lru {
    fn insert(&mut self, entries: &mut Entries, index: u32, _key: u64) {
        self.by_recency.push(entries, index);
    }

    fn hit(&mut self, entries: &mut Entries, index: u32, _: u64, _reuse: Option<u32>) {
        self.by_recency.refresh(entries, index);
    }

    fn remove(&mut self, entries: &mut Entries, index: u32) {
        self.by_recency.remove(entries, index);
    }

    fn select(&mut self, entries: &mut Entries, _cheap_only: bool, offer: Offered<'_>) {
        self.by_recency.offer_all(entries, offer, |_, _, _| {});
    }
}
