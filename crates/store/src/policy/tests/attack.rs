//! All policies under random demands of their host: pinned blocks, blocks that leave on their own,
//! capacities that change, and stores of few blocks. And what the default believes of the others.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::super::{Offer, Ranking, Simulation, block_key};
use crate::config::PolicyKind;

/// Shadow directories of the default, whatever the size of the store.
const SHADOW_BYTES_MAX: u64 = 2 << 20;

#[derive(Clone, Debug)]
enum Step {
    Read(u32),
    BringIn(u32),
    Pin(u32),
    UnpinAll,
    Leave(u32),
    Supersede(u32),
    Resize(u32),
    SetPolicy(PolicyKind),
}

fn steps(blocks: u32, capacity_max: u32) -> impl Strategy<Value = Vec<Step>> {
    let block = || 0..blocks;
    let step = prop_oneof![
        20 => block().prop_map(Step::Read),
        6 => block().prop_map(Step::BringIn),
        3 => block().prop_map(Step::Pin),
        1 => Just(Step::UnpinAll),
        2 => block().prop_map(Step::Leave),
        2 => block().prop_map(Step::Supersede),
        1 => (0..=capacity_max).prop_map(Step::Resize),
        1 => prop::sample::select(PolicyKind::ALL.to_vec()).prop_map(Step::SetPolicy),
    ];
    prop::collection::vec(step, 1..400)
}

/// A host that knows by itself what is there.
struct Host {
    ranking: Ranking,
    resident: BTreeMap<u32, u32>,
    pinned: BTreeSet<u32>,
    capacity: u32,
}

impl Host {
    fn new(kind: PolicyKind, capacity: u32) -> Self {
        let mut ranking = Ranking::new(kind);
        ranking.set_target(capacity);
        Host { ranking, resident: BTreeMap::new(), pinned: BTreeSet::new(), capacity }
    }

    fn apply(&mut self, step: &Step) {
        match *step {
            Step::Read(block) => self.read(block, true),
            Step::BringIn(block) => self.read(block, false),
            Step::Pin(block) => {
                if self.resident.contains_key(&block) {
                    self.pinned.insert(block);
                }
            }
            Step::UnpinAll => self.pinned.clear(),
            Step::Leave(block) => {
                if let Some(index) = self.resident.remove(&block) {
                    self.pinned.remove(&block);
                    self.ranking.remove(index);
                }
            }
            Step::Supersede(block) => {
                if let Some(index) = self.resident.get(&block) {
                    self.ranking.invalidate(*index);
                }
            }
            Step::Resize(capacity) => {
                self.capacity = capacity;
                self.ranking.set_target(capacity);
                while self.resident.len() as u32 > capacity && self.evict(1, false) > 0 {}
            }
            Step::SetPolicy(kind) => {
                self.ranking
                    .set_policy(kind, |entries, index| block_key(0, entries.get(index).block));
            }
        }
    }

    fn read(&mut self, block: u32, counts: bool) {
        if !self.resident.contains_key(&block) {
            let cheap =
                !counts && self.ranking.admits(0, block) == super::super::EvictionTerms::CheapOnly;
            let full = self.resident.len() as u32 >= self.capacity;
            if self.capacity == 0 || full && self.evict(1, cheap) == 0 {
                return self.ranking.refused(0, block);
            }
            let index = self.ranking.insert(0, block, 0, 0);
            self.resident.insert(block, index);
        }
        if counts {
            self.ranking.note_reference(self.resident[&block], 0);
        }
    }

    /// Evicts so many blocks; none that is pinned, none that is not there, none twice.
    fn evict(&mut self, wanted: usize, cheap_only: bool) -> usize {
        let (mut gone, mut offered) = (Vec::new(), BTreeSet::new());
        let Host { ranking, pinned, resident, .. } = self;
        ranking.select(cheap_only, |entries, index| {
            if gone.len() == wanted {
                return Offer::Stop;
            }
            let block = entries.get(index).block;
            assert_eq!(resident.get(&block), Some(&index), "block {block} is not there");
            assert!(offered.insert(block), "block {block} is offered twice");
            if pinned.contains(&block) {
                return Offer::Skip;
            }
            gone.push(block);
            Offer::Take(block_key(0, block))
        });
        if gone.len() < wanted && !cheap_only {
            assert_eq!(
                offered.len(),
                resident.len(),
                "all blocks are offered before none is found"
            );
        }
        gone.iter().for_each(|block| _ = resident.remove(block));
        gone.len()
    }

    fn check(&self) {
        assert_eq!(self.ranking.entries().len() as usize, self.resident.len());
        assert!(self.pinned.iter().all(|block| self.resident.contains_key(block)));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(192))]

    #[test]
    fn what_is_pinned_stays_and_nothing_is_lost(
        kind in prop::sample::select(PolicyKind::ALL.to_vec()),
        capacity in 0u32..24,
        steps in steps(40, 24),
    ) {
        let mut host = Host::new(kind, capacity);
        for step in &steps {
            host.apply(step);
            host.check();
        }
        host.pinned.clear();
        host.evict(usize::MAX, false);
        prop_assert_eq!(host.ranking.entries().len(), 0, "all of it can go");
    }

    #[test]
    fn stores_of_few_blocks_are_as_good_as_one_of_the_others(
        capacity in 1u32..9,
        blocks in 1u32..16,
        passes in 4usize..40,
    ) {
        let ratio = |kind| {
            let mut subject = Simulation::new(kind, capacity);
            super::hit_ratio(&mut subject, super::repeated(0..blocks, passes))
        };
        let others = PolicyKind::ALL.into_iter().filter(|kind| *kind != PolicyKind::Adaptive);
        let worst = others.map(ratio).fold(1.0, f64::min);
        prop_assert!(ratio(PolicyKind::Adaptive) >= worst);
    }
}

#[test]
fn the_shadows_are_of_bounded_size_at_any_capacity() {
    let mut host = Host::new(PolicyKind::Adaptive, 0);
    let mut block = 0;
    for capacity in [100, 1_000, 5_000, 1_500, 40_000, 4_096, 300, 20_000] {
        host.apply(&Step::Resize(capacity));
        for _ in 0..capacity * 3 / 2 {
            host.read(block, true);
            block = (block + 1) % (capacity * 5 / 4);
        }
        let entries = host.ranking.entries().bookkeeping_bytes();
        // Ghosts of the policy that decides come with the capacity.
        let ghosts = u64::from(capacity) * 15;
        let shadows = host.ranking.bookkeeping_bytes() - entries;
        assert!(shadows < SHADOW_BYTES_MAX + ghosts, "{capacity} blocks: {shadows} B");
    }
}

/// Hit ratios of all candidates in a loop over `blocks` after the capacity changed.
fn beliefs(host: &mut Host, blocks: u32, passes: u32) -> Vec<(PolicyKind, f64)> {
    for _ in 0..passes {
        (0..blocks).for_each(|block| host.read(block, true));
    }
    host.ranking.choice().expect("the default says").would_hit
}

#[test]
fn the_sample_follows_the_capacity() {
    let mut host = Host::new(PolicyKind::Adaptive, 7_000);
    beliefs(&mut host, 6_000, 2);
    // Each changes the share of the blocks that are in the sample.
    for capacity in [40_000, 7_000, 60_000] {
        host.apply(&Step::Resize(capacity));
        for (kind, ratio) in beliefs(&mut host, 6_000, 30) {
            assert!(ratio > 0.9, "all fits into {capacity} blocks, yet {kind} hits {ratio:.2}");
        }
    }
}

#[test]
fn what_the_others_would_hit_is_what_they_hit() {
    let (capacity, blocks) = (12_000, 16_000);
    let mut host = Host::new(PolicyKind::Adaptive, capacity);
    for (kind, believed) in beliefs(&mut host, blocks, 10) {
        let mut subject = Simulation::new(kind, capacity);
        super::hit_ratio(&mut subject, super::repeated(0..blocks, 4));
        let hits = super::hit_ratio(&mut subject, super::repeated(0..blocks, 6));
        assert!((hits - believed).abs() < 0.05, "{kind} hits {hits:.3}, believed {believed:.3}");
    }
}
