//! Policies against plain reference implementations, and the behaviour each one is there for.

mod attack;
mod regret;

use super::Simulation;
use crate::config::PolicyKind;
use proptest::prelude::*;

/// Least recently used, written the obvious way.
struct ReferenceLru {
    order: Vec<u32>,
    capacity: usize,
}

impl ReferenceLru {
    fn read(&mut self, block: u32) -> bool {
        let place = self.order.iter().position(|held| *held == block);
        if let Some(place) = place {
            self.order.remove(place);
        } else if self.order.len() == self.capacity {
            self.order.remove(0);
        }
        self.order.push(block);
        place.is_some()
    }
}

/// Least frequently used with halving, written the obvious way.
struct ReferenceLfu {
    /// Block, count, and when it reached that count.
    held: Vec<(u32, u32, u64)>,
    capacity: usize,
    clock: u64,
    hits: u64,
}

impl ReferenceLfu {
    fn read(&mut self, block: u32) -> bool {
        self.clock += 1;
        let found = self.held.iter().position(|(held, _, _)| *held == block);
        match found {
            Some(place) => {
                self.held[place].1 = (self.held[place].1 + 1).min(63);
                self.held[place].2 = self.clock;
            }
            None => {
                if self.held.len() == self.capacity {
                    let least =
                        (0..self.held.len()).min_by_key(|i| (self.held[*i].1, self.held[*i].2));
                    self.held.remove(least.unwrap());
                }
                self.held.push((block, 0, self.clock));
            }
        }
        self.hits += 1;
        if self.hits > 10 * self.held.len() as u64 {
            self.hits = 0;
            self.held.sort_by_key(|(_, count, at)| (*count, *at));
            for entry in &mut self.held {
                self.clock += 1;
                *entry = (entry.0, entry.1 / 2, self.clock);
            }
        }
        found.is_some()
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn lru_matches_its_reference(
        capacity in 1u32..8,
        reads in prop::collection::vec(0u32..20, 1..400),
    ) {
        let mut reference = ReferenceLru { order: Vec::new(), capacity: capacity as usize };
        let mut subject = Simulation::new(PolicyKind::Lru, capacity);
        for block in reads {
            prop_assert_eq!(subject.read(block), reference.read(block));
        }
    }

    #[test]
    fn lfu_matches_its_reference(
        capacity in 1u32..8,
        reads in prop::collection::vec(0u32..20, 1..400),
    ) {
        let mut reference =
            ReferenceLfu { held: Vec::new(), capacity: capacity as usize, clock: 0, hits: 0 };
        let mut subject = Simulation::new(PolicyKind::Lfu, capacity);
        let mut last = None;
        for block in reads {
            // The host takes immediate repetition for pieces of one read.
            if last.replace(block) != Some(block) {
                prop_assert_eq!(subject.read(block), reference.read(block));
            }
        }
    }

    #[test]
    fn any_policy_holds_what_it_says(
        kind in prop::sample::select(PolicyKind::ALL.to_vec()),
        other in prop::sample::select(PolicyKind::ALL.to_vec()),
        capacity in 1u32..40,
        reads in prop::collection::vec(0u32..80, 1..600),
    ) {
        let mut subject = Simulation::new(kind, capacity);
        let middle = reads.len() / 2;
        for (count, block) in reads.into_iter().enumerate() {
            if count == middle {
                subject.set_policy(other);
            }
            let expected = subject.holds(block);
            prop_assert_eq!(subject.read(block), expected);
            prop_assert!(subject.holds(block), "what was just read is resident");
            let held = (0..80).filter(|block| subject.holds(*block)).count();
            prop_assert!(held as u32 <= capacity);
        }
    }

    #[test]
    fn read_ahead_outlives_what_was_read(
        kind in prop::sample::select(PolicyKind::ALL.to_vec()),
        ahead in 1u32..8,
    ) {
        let capacity = 64;
        let mut subject = Simulation::new(kind, capacity);
        for block in 0..200 {
            subject.read(block);
        }
        for block in 1000..1000 + ahead {
            subject.bring_in(block);
        }
        let admitted: Vec<u32> =
            (1000..1000 + ahead).filter(|block| subject.holds(*block)).collect();
        prop_assert!(!admitted.is_empty());
        for block in 200..200 + capacity / 2 {
            subject.read(block);
        }
        for block in admitted {
            prop_assert!(subject.holds(block), "{kind} evicted unread block {block}");
        }
    }
}

fn hit_ratio(subject: &mut Simulation, reads: impl Iterator<Item = u32>) -> f64 {
    subject.take_hit_ratio();
    reads.for_each(|block| _ = subject.read(block));
    subject.take_hit_ratio().unwrap()
}

fn repeated(blocks: std::ops::Range<u32>, passes: usize) -> impl Iterator<Item = u32> {
    std::iter::repeat_n(blocks, passes).flatten()
}

#[test]
fn cyclic_keeps_a_stable_part_of_a_larger_loop() {
    for capacity in [96, 750, 6000] {
        let loop_blocks = capacity * 4 / 3;
        let mut cyclic = Simulation::new(PolicyKind::Cyclic, capacity);
        hit_ratio(&mut cyclic, repeated(0..loop_blocks, 1));
        let ratio = hit_ratio(&mut cyclic, repeated(0..loop_blocks, 4));
        assert!(ratio >= 0.71, "capacity {capacity}: {ratio}");
        let mut lru = Simulation::new(PolicyKind::Lru, capacity);
        assert_eq!(hit_ratio(&mut lru, repeated(0..loop_blocks, 5)), 0.0, "the known weakness");
    }
}

#[test]
fn read_ahead_does_not_drain_the_stable_part_of_a_loop() {
    for (capacity, window) in [(64, 16), (64, 1), (512, 16), (192, 16)] {
        let blocks = capacity * 4 / 3;
        let mut subject = Simulation::new(PolicyKind::Cyclic, capacity);
        let pass = |subject: &mut Simulation| {
            let hits = (0..blocks).filter(|block| {
                let hit = subject.holds(*block);
                // A block that read-ahead was refused passes its reader by the store.
                let passes = !hit && window > 0;
                subject.bring_in((block + window) % blocks);
                if !passes || subject.holds(*block) {
                    subject.read(*block);
                }
                hit
            });
            hits.count()
        };
        (0..4).for_each(|_| _ = pass(&mut subject));
        let share = pass(&mut subject) as f64 / f64::from(blocks);
        assert!(share >= 0.65, "window {window}, capacity {capacity}: {share:.3} hit");
    }
}

#[test]
fn a_loop_that_fits_is_kept_whole() {
    for kind in PolicyKind::ALL {
        let mut subject = Simulation::new(kind, 100);
        hit_ratio(&mut subject, repeated(0..95, 1));
        assert_eq!(hit_ratio(&mut subject, repeated(0..95, 4)), 1.0, "{kind}");
    }
}

#[test]
fn cyclic_finds_the_next_loop() {
    let mut subject = Simulation::new(PolicyKind::Cyclic, 600);
    hit_ratio(&mut subject, repeated(0..800, 5));
    hit_ratio(&mut subject, repeated(10_000..10_800, 2));
    let larger = hit_ratio(&mut subject, repeated(10_000..10_800, 3));
    assert!(larger >= 0.71, "a new loop of the same size: {larger}");
    hit_ratio(&mut subject, repeated(20_000..20_400, 2));
    let fitting = hit_ratio(&mut subject, repeated(20_000..20_400, 3));
    assert!(fitting >= 0.95, "a new loop that fits: {fitting}");
}

#[test]
fn one_scan_does_not_displace_the_working_set() {
    for kind in [PolicyKind::S3Fifo, PolicyKind::Cyclic, PolicyKind::Lfu] {
        let mut subject = Simulation::new(kind, 200);
        hit_ratio(&mut subject, repeated(0..150, 6));
        hit_ratio(&mut subject, 1000..5000);
        let after = hit_ratio(&mut subject, 0..150);
        assert!(after >= 0.9, "{kind} kept {after} of the working set");
    }
}

#[test]
fn pieces_of_one_read_are_one_read() {
    let mut subject = Simulation::new(PolicyKind::S3Fifo, 256);
    hit_ratio(&mut subject, repeated(0..200, 5));
    let scan_in_pieces = (1000..4000u32).flat_map(|block| [block; 4]);
    hit_ratio(&mut subject, scan_in_pieces);
    let after = hit_ratio(&mut subject, 0..200);
    assert!(after >= 0.9, "a scan in four pieces a block displaced the set: {after}");
}
