//! Eviction policies: which resident block goes next.
//!
//! A policy orders entries of a [`Entries`] slab; it owns no memory of blocks, takes no lock and
//! asks no clock, so that every decision can be replayed offline ([`Simulation`]). [`Ranking`] is
//! its host: it turns reference bits into hits, protects read-ahead that nobody has read yet, and
//! puts stale blocks first. The host promises that every index it passes in was inserted and not
//! yet removed; a policy promises to offer every entry that it holds at most once per selection.

mod adaptive;
mod cyclic;
mod entries;
mod fifo;
mod fixed;
mod ghost;
mod lfu;
mod lru;
mod ranking;
mod s3fifo;
mod shadow;
mod simulation;
mod strain;
#[cfg(test)]
mod tests;

pub use adaptive::Choice;
pub(crate) use entries::{Entries, Entry, List, NONE};
pub(crate) use ranking::Ranking;
pub use simulation::Simulation;

use crate::config::PolicyKind;

/// What the host says to an entry that a policy offers for eviction.
pub(crate) enum Offer {
    /// It goes; the key is what the policy remembers it by.
    Take(u64),
    /// It cannot go now (pinned, not clean, another owner's).
    Skip,
    /// Enough is selected; this entry stays.
    Stop,
}

/// The answer to an offer; may look at and change the entry, but not link or unlink it.
pub(crate) type Offered<'a> = &'a mut dyn FnMut(&mut Entries, u32) -> Offer;

/// What may be evicted for a block that comes in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EvictionTerms {
    /// Any block.
    Any,
    /// Only blocks that the policy expects little of.
    CheapOnly,
}

/// An order of eviction.
pub(crate) trait Policy: Send {
    /// Tells how many entries the capacity holds at their present average size.
    fn set_target(&mut self, _target_entries: u32) {}

    /// What may be evicted for a block that comes in ahead of its first read.
    fn admits(&mut self, _: &Entries, _key: u64, _tick: u32) -> EvictionTerms {
        EvictionTerms::Any
    }

    /// A block found no room on its terms; it is read all the same, at `tick`.
    fn refused(&mut self, _key: u64, _tick: u32) {}

    /// A block came in. `key` names it across evictions.
    fn insert(&mut self, entries: &mut Entries, index: u32, key: u64);

    /// A block was read; `reuse` is the number of ticks since its read before, and `None` at the
    /// first read after it came in and for further pieces of the same read. The entry's tick is
    /// that of the last read that was no such piece. `key` is that of the insertion.
    fn hit(&mut self, entries: &mut Entries, index: u32, key: u64, reuse: Option<u32>);

    /// A block left for a reason other than selection.
    fn remove(&mut self, entries: &mut Entries, index: u32);

    /// Offers entries in the order of eviction until told to stop; unlinks those that go. With
    /// `cheap_only` just those that it would give for a block that comes in `CheapOnly`.
    fn select(&mut self, entries: &mut Entries, cheap_only: bool, offer: Offered<'_>);

    /// What a policy that chooses among others chose.
    fn choice(&self) -> Option<Choice> {
        None
    }

    /// Bytes of bookkeeping beside the entries.
    fn bookkeeping_bytes(&self) -> u64 {
        0
    }
}

/// A policy of the given kind that holds nothing.
pub(crate) fn create(kind: PolicyKind) -> Box<dyn Policy> {
    match kind {
        PolicyKind::Lru => Box::new(lru::Lru::default()),
        PolicyKind::Lfu => Box::new(lfu::Lfu::default()),
        PolicyKind::S3Fifo => Box::new(s3fifo::S3Fifo::default()),
        PolicyKind::Cyclic => Box::new(cyclic::Cyclic::default()),
        PolicyKind::Fixed => Box::new(fixed::Fixed::default()),
        PolicyKind::Adaptive => Box::new(adaptive::Adaptive::default()),
    }
}

/// Spreads a segment's history key and a block number over 64 bits.
pub(crate) fn block_key(history: u64, block: u32) -> u64 {
    let mut hash = history ^ u64::from(block).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    hash = (hash ^ (hash >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    hash = (hash ^ (hash >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    hash ^ (hash >> 31)
}
