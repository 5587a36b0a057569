//! The capacities that the stores were asked for, and the test whether an administrator or another
//! program lowered one of them since.
//!
//! A store that does not take its raise, because it is slow, fails or keeps more than it was asked
//! to, was lowered by nobody: it must not keep the others from growing.

use super::{Snapshot, split};

/// The last commands and what the stores showed then.
#[derive(Default)]
pub(super) struct Asked {
    capacities: Vec<u64>,
    shown: Vec<u64>,
}

impl Asked {
    /// The bytes where growth begins: `last`, the last target, or what is left of it where
    /// capacities fell by more than `tolerance` below what they were asked to be, such as by a
    /// store's watchdog.
    pub(super) fn left_of(&self, last: u64, snapshot: &Snapshot, tolerance: u64) -> u64 {
        if self.capacities.len() != snapshot.stores.len() {
            return last;
        }
        let asked = self.capacities.iter().zip(&self.shown);
        let lowered =
            snapshot.stores.iter().zip(asked).fold(0_u64, |sum, (store, (asked, shown))| {
                let fell = store.capacity_bytes < *shown && !store.failed;
                let lacks = if fell { asked.saturating_sub(store.capacity_bytes) } else { 0 };
                sum.saturating_add(lacks)
            });
        if lowered <= tolerance {
            return last;
        }
        let all = self.capacities.iter().fold(0_u64, |sum, bytes| sum.saturating_add(*bytes));
        last.min(all).saturating_sub(lowered)
    }

    /// Notes what the stores show and are asked for now. Allocates nothing once it knows them all.
    pub(super) fn note(&mut self, target_bytes: u64, snapshot: &Snapshot) {
        split(target_bytes, &snapshot.stores, &mut self.capacities);
        self.shown.clear();
        self.shown.extend(snapshot.stores.iter().map(|store| store.capacity_bytes));
    }
}
