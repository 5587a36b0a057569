//! Three first-in-first-out queues: a small one on probation, a main one, and ghosts of what
//! probation threw out. One pass over data never reaches the main queue. After Yang et al.,
//! "FIFO queues are all you need for cache eviction" (SOSP 2023).

use super::ghost::Ghosts;
use super::{Entries, List, NONE, Offer, Offered, Policy};

const COUNT_MAX: u32 = 3;
const COUNT_MASK: u32 = 0b11;
const IN_MAIN: u32 = 0b100;
/// The small queue holds one entry in ten.
const SMALL_SHARE: u32 = 10;

#[derive(Default)]
pub(crate) struct S3Fifo {
    small: List,
    main: List,
    ghosts: Ghosts,
    target_entries: u32,
    /// Counts departures from the small queue: the clock of the ghosts.
    departures: u32,
}

/// Where a selection stands in one queue.
struct Cursor(u32);

impl S3Fifo {
    fn queue(&mut self, entries: &Entries, index: u32) -> &mut List {
        if entries.get(index).meta & IN_MAIN != 0 { &mut self.main } else { &mut self.small }
    }

    fn promote(&mut self, entries: &mut Entries, index: u32) {
        self.small.remove(entries, index);
        entries.get_mut(index).meta = IN_MAIN;
        self.main.push(entries, index);
    }

    /// Advances in the small queue by one entry. False when told to stop.
    fn step_small(
        &mut self,
        entries: &mut Entries,
        at: &mut Cursor,
        in_main: &mut Cursor,
        offer: Offered<'_>,
    ) -> bool {
        let index = at.0;
        at.0 = List::after(entries, index);
        if entries.get(index).meta & COUNT_MASK > 1 {
            self.promote(entries, index);
            // The main queue may have been gone through: it goes on with this one.
            if in_main.0 == NONE {
                in_main.0 = index;
            }
            return true;
        }
        match offer(entries, index) {
            Offer::Take(key) => {
                self.small.remove(entries, index);
                self.departures = self.departures.wrapping_add(1);
                self.ghosts.remember(key, self.departures, self.departures);
                true
            }
            Offer::Skip => true,
            Offer::Stop => false,
        }
    }

    /// Advances in the main queue by one entry. False when told to stop.
    fn step_main(&mut self, entries: &mut Entries, at: &mut Cursor, offer: Offered<'_>) -> bool {
        let index = at.0;
        let next = List::after(entries, index);
        if entries.get(index).meta & COUNT_MASK > 0 {
            entries.get_mut(index).meta -= 1;
            self.main.refresh(entries, index);
            at.0 = if next == NONE { index } else { next };
            return true;
        }
        at.0 = next;
        match offer(entries, index) {
            Offer::Take(_) => {
                self.main.remove(entries, index);
                true
            }
            Offer::Skip => true,
            Offer::Stop => false,
        }
    }
}

impl Policy for S3Fifo {
    fn set_target(&mut self, target_entries: u32) {
        self.target_entries = target_entries;
        self.ghosts.resize(target_entries);
    }

    fn insert(&mut self, entries: &mut Entries, index: u32, key: u64) {
        let age = self.ghosts.recall(key, self.departures);
        let returns = age.is_some_and(|age| age <= self.target_entries);
        entries.get_mut(index).meta = if returns { IN_MAIN } else { 0 };
        self.queue(entries, index).push(entries, index);
    }

    fn hit(&mut self, entries: &mut Entries, index: u32, _: u64, reuse: Option<u32>) {
        let entry = entries.get_mut(index);
        if reuse.is_some() && entry.meta & COUNT_MASK < COUNT_MAX {
            entry.meta += 1;
        }
    }

    fn remove(&mut self, entries: &mut Entries, index: u32) {
        self.queue(entries, index).remove(entries, index);
    }

    fn select(&mut self, entries: &mut Entries, _cheap_only: bool, offer: Offered<'_>) {
        let (mut in_small, mut in_main) = (Cursor(self.small.first()), Cursor(self.main.first()));
        loop {
            let held = self.small.len() + self.main.len();
            let small_is_full = self.small.len() * SMALL_SHARE >= held;
            let go_on = if in_small.0 != NONE && (small_is_full || in_main.0 == NONE) {
                self.step_small(entries, &mut in_small, &mut in_main, offer)
            } else if in_main.0 != NONE {
                self.step_main(entries, &mut in_main, offer)
            } else {
                return;
            };
            if !go_on {
                return;
            }
        }
    }

    fn bookkeeping_bytes(&self) -> u64 {
        self.ghosts.bookkeeping_bytes()
    }
}
