//! The simplest policy: first in, first out, deaf to hits. It is the yardstick of the others and
//! keeps the order of stale blocks; no configuration selects it.

use super::{Entries, List, Offered, Policy};

#[derive(Default)]
pub(crate) struct Fifo {
    queue: List,
}

impl Fifo {
    pub fn len(&self) -> u32 {
        self.queue.len()
    }
}

impl Policy for Fifo {
    fn insert(&mut self, entries: &mut Entries, index: u32, _key: u64) {
        self.queue.push(entries, index);
    }

    fn hit(&mut self, _entries: &mut Entries, _index: u32, _: u64, _reuse: Option<u32>) {}

    fn remove(&mut self, entries: &mut Entries, index: u32) {
        self.queue.remove(entries, index);
    }

    fn select(&mut self, entries: &mut Entries, _cheap_only: bool, offer: Offered<'_>) {
        self.queue.offer_all(entries, offer, |_, _, _| {});
    }
}
