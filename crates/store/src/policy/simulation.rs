//! Replays a trace of block reads against a policy, without memory and without a clock: for
//! choosing a policy by the hit ratio on one's own trace, and for tests.

use std::collections::HashMap;

use super::{Choice, EvictionTerms, Offer, Ranking};
use crate::config::PolicyKind;

/// A store of equal blocks that only counts.
pub struct Simulation {
    ranking: Ranking,
    resident: HashMap<u32, u32>,
    capacity_blocks: u32,
    hits: u64,
    reads: u64,
}

impl Simulation {
    /// An empty store for `capacity_blocks` blocks.
    pub fn new(kind: PolicyKind, capacity_blocks: u32) -> Self {
        let mut ranking = Ranking::new(kind);
        ranking.set_target(capacity_blocks);
        Simulation { ranking, resident: HashMap::new(), capacity_blocks, hits: 0, reads: 0 }
    }

    /// Reads a block, bringing it in if it is not resident; tells whether it was.
    pub fn read(&mut self, block: u32) -> bool {
        let hit = self.resident.contains_key(&block);
        if !hit && self.capacity_blocks > 0 {
            self.insert(block, false);
        }
        if let Some(index) = self.resident.get(&block) {
            self.ranking.note_reference(*index, 0);
        }
        self.reads += 1;
        self.hits += u64::from(hit);
        hit
    }

    /// Brings a block in ahead of its first read, if the policy admits it.
    pub fn bring_in(&mut self, block: u32) {
        if self.resident.contains_key(&block) || self.capacity_blocks == 0 {
            return;
        }
        let cheap_only = self.ranking.admits(0, block) == EvictionTerms::CheapOnly;
        if !self.insert(block, cheap_only) {
            self.ranking.refused(0, block);
        }
    }

    fn insert(&mut self, block: u32, cheap_only: bool) -> bool {
        let full = self.resident.len() as u32 >= self.capacity_blocks;
        if full && !self.evict_one(cheap_only) {
            return false;
        }
        let index = self.ranking.insert(0, block, 0, 0);
        self.resident.insert(block, index);
        true
    }

    /// Whether a block is resident.
    pub fn holds(&self, block: u32) -> bool {
        self.resident.contains_key(&block)
    }

    /// Changes the policy, keeping what is resident.
    pub fn set_policy(&mut self, kind: PolicyKind) {
        self.ranking
            .set_policy(kind, |entries, index| super::block_key(0, entries.get(index).block));
    }

    /// Share of the reads since the last call that were hits; `None` without reads.
    pub fn take_hit_ratio(&mut self) -> Option<f64> {
        let (hits, reads) = (self.hits, self.reads);
        (self.hits, self.reads) = (0, 0);
        (reads > 0).then(|| hits as f64 / reads as f64)
    }

    /// What a policy that chooses among others chose.
    pub fn choice(&self) -> Option<Choice> {
        self.ranking.choice()
    }

    fn evict_one(&mut self, cheap_only: bool) -> bool {
        let mut victim = None;
        self.ranking.select(cheap_only, |entries, index| {
            if victim.is_some() {
                return Offer::Stop;
            }
            let block = entries.get(index).block;
            victim = Some(block);
            Offer::Take(super::block_key(0, block))
        });
        victim.is_some_and(|block| self.resident.remove(&block).is_some())
    }
}
