//! The host of a policy: turns reference bits into hits, protects unread read-ahead, offers
//! stale blocks first, and changes the policy while blocks are resident.

use super::fifo::Fifo;
use super::{Choice, Entries, Entry, EvictionTerms, Offer, Policy, block_key, create};
use crate::config::PolicyKind;

/// Nobody read the block since it came in.
const UNREAD: u16 = 1;
/// The segment is stale; the block waits in the first queue.
const INVALIDATED: u16 = 2;

/// Reads of one block within this many ticks are one read: applications read a block in pieces,
/// and several streams interleave.
const PIECES_TICKS_MAX: u32 = 32;

/// Whether a block was read ahead and still waits for its reader, for a turnover at most.
/// A block was read lately if no more than so many times the capacity came in since.
const RECENT_TURNOVERS: u32 = 8;

/// See [`Ranking::recent`].
#[derive(Clone, Copy)]
pub(crate) struct Recent {
    tick: u32,
    ticks: u32,
}

impl Recent {
    pub fn has(&self, entry: &Entry) -> bool {
        entry.flags & INVALIDATED == 0 && self.tick.wrapping_sub(entry.tick) <= self.ticks
    }
}

fn is_waiting(entry: &Entry, tick: u32, turnover_ticks: u32) -> bool {
    entry.flags & (UNREAD | INVALIDATED) == UNREAD
        && tick.wrapping_sub(entry.tick) <= turnover_ticks
}

/// All resident blocks in their order of eviction.
pub(crate) struct Ranking {
    entries: Entries,
    invalidated: Fifo,
    policy: Box<dyn Policy>,
    kind: PolicyKind,
    /// Counts blocks that came in and reads that counted.
    tick: u32,
    target_entries: u32,
}

impl Ranking {
    pub fn new(kind: PolicyKind) -> Self {
        Ranking {
            entries: Entries::default(),
            invalidated: Fifo::default(),
            policy: create(kind),
            kind,
            tick: 0,
            target_entries: 0,
        }
    }

    pub fn entries(&self) -> &Entries {
        &self.entries
    }

    pub fn kind(&self) -> PolicyKind {
        self.kind
    }

    pub fn tick(&self) -> u32 {
        self.tick
    }

    /// Which blocks were read lately.
    pub fn recent(&self) -> Recent {
        let ticks = self.target_entries.saturating_mul(RECENT_TURNOVERS);
        Recent { tick: self.tick, ticks }
    }

    pub fn admits(&mut self, history: u64, block: u32) -> EvictionTerms {
        self.policy.admits(&self.entries, block_key(history, block), self.tick)
    }

    /// A block found no room. It is read all the same, so time goes on for the others.
    pub fn refused(&mut self, history: u64, block: u32) {
        self.tick = self.tick.wrapping_add(1);
        self.policy.refused(block_key(history, block), self.tick);
    }

    /// Tells how many entries the capacity holds at their present average size.
    pub fn set_target(&mut self, target_entries: u32) {
        self.target_entries = target_entries;
        self.policy.set_target(target_entries);
    }

    /// A block came in; nobody has read it yet.
    pub fn insert(&mut self, segment: u32, block: u32, owner: u16, history: u64) -> u32 {
        let index = self.entries.add(segment, block, owner);
        self.tick = self.tick.wrapping_add(1);
        let entry = self.entries.get_mut(index);
        entry.tick = self.tick;
        entry.flags = UNREAD;
        self.policy.insert(&mut self.entries, index, block_key(history, block));
        index
    }

    /// A block was read since it was last asked about. `history` is that of its insertion.
    pub fn note_reference(&mut self, index: u32, history: u64) {
        let entry = self.entries.get_mut(index);
        if entry.flags & INVALIDATED != 0 {
            return;
        }
        let first = entry.flags & UNREAD != 0;
        let key = block_key(history, entry.block);
        let distance = self.tick.wrapping_sub(entry.tick);
        let pieces_ticks = PIECES_TICKS_MAX.min(self.target_entries / 8);
        if !first && distance <= pieces_ticks {
            // Another piece of the same read: recent, but no reuse. The tick stays, so that a
            // block that is read all the time counts again when the span is over.
            self.policy.hit(&mut self.entries, index, key, None);
            return;
        }
        entry.flags &= !UNREAD;
        if !first {
            self.tick = self.tick.wrapping_add(1);
        }
        entry.tick = self.tick;
        let reuse = (!first).then_some(distance);
        self.policy.hit(&mut self.entries, index, key, reuse);
    }

    /// The block's segment is stale: it goes before all that are not.
    pub fn invalidate(&mut self, index: u32) {
        if self.entries.get(index).flags & INVALIDATED == 0 {
            self.policy.remove(&mut self.entries, index);
            self.entries.get_mut(index).flags |= INVALIDATED;
            self.invalidated.insert(&mut self.entries, index, 0);
        }
    }

    /// The block left without being selected.
    pub fn remove(&mut self, index: u32) {
        if self.entries.get(index).flags & INVALIDATED != 0 {
            self.invalidated.remove(&mut self.entries, index);
        } else {
            self.policy.remove(&mut self.entries, index);
        }
        self.entries.release(index);
    }

    /// Offers blocks in the order of eviction until `offer` says stop: stale ones, then those
    /// that were read, then read-ahead that waited for a whole turnover or that is all there is.
    /// With `cheap_only` neither what the policy thinks much of nor read-ahead.
    pub fn select(&mut self, cheap_only: bool, mut offer: impl FnMut(&Entries, u32) -> Offer) {
        let mut gone = Vec::new();
        let mut stopped = false;
        let (tick, turnover_ticks) = (self.tick, self.target_entries);
        for unread_too in [false, true] {
            let mut ask = |entries: &mut Entries, index: u32| {
                if stopped {
                    return Offer::Stop;
                }
                let entry = entries.get(index);
                if is_waiting(entry, tick, turnover_ticks) != unread_too {
                    return Offer::Skip;
                }
                let answer = offer(entries, index);
                match answer {
                    Offer::Take(_) => gone.push(index),
                    Offer::Stop => stopped = true,
                    Offer::Skip => {}
                }
                answer
            };
            self.invalidated.select(&mut self.entries, cheap_only, &mut ask);
            self.policy.select(&mut self.entries, cheap_only, &mut ask);
            if stopped || cheap_only {
                break;
            }
        }
        for index in gone {
            self.entries.release(index);
        }
    }

    /// Changes the policy. What is resident is handed over in the old order of eviction.
    pub fn set_policy(&mut self, kind: PolicyKind, key_of: impl Fn(&Entries, u32) -> u64) {
        let mut order = Vec::new();
        self.policy.select(&mut self.entries, false, &mut |entries, index| {
            order.push((index, key_of(entries, index)));
            Offer::Take(0)
        });
        debug_assert_eq!(
            order.len() as u32 + self.invalidated.len(),
            self.entries.len(),
            "a policy offers every entry it holds"
        );
        self.policy = create(kind);
        self.kind = kind;
        self.policy.set_target(self.target_entries);
        for (index, key) in order {
            self.policy.insert(&mut self.entries, index, key);
        }
    }

    /// Position of the first block that `wanted` accepts in the order of eviction: 0 is next,
    /// 1 is last.
    pub fn position(&mut self, wanted: impl Fn(&Entries, u32) -> bool) -> Option<f64> {
        let mut order = Vec::new();
        let mut note = |_: &mut Entries, index: u32| {
            order.push(index);
            Offer::Skip
        };
        self.invalidated.select(&mut self.entries, false, &mut note);
        self.policy.select(&mut self.entries, false, &mut note);
        let place = order.iter().position(|index| wanted(&self.entries, *index))?;
        Some(place as f64 / (order.len().max(2) - 1) as f64)
    }

    pub fn choice(&self) -> Option<Choice> {
        self.policy.choice()
    }

    pub fn bookkeeping_bytes(&self) -> u64 {
        self.entries.bookkeeping_bytes() + self.policy.bookkeeping_bytes()
    }
}
