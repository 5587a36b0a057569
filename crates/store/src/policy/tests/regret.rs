//! The default against the best of all others, on the ways in which jobs iterate over a set of
//! which two thirds fit.

use super::super::Simulation;
use crate::config::PolicyKind;

/// Warm-up and measured passes.
const WARM_UP: u32 = 2;
const MEASURED: u32 = 8;
/// Blocks of a file.
const FILE: u32 = 16;

/// A small generator of random numbers, the same on every machine.
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u32) -> u32 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963);
        let mixed = (self.0 ^ (self.0 >> 31)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        ((u128::from(mixed) * u128::from(bound)) >> 64) as u32
    }

    fn shuffled(&mut self, count: u32) -> Vec<u32> {
        let mut order: Vec<u32> = (0..count).collect();
        for at in (1..count).rev() {
            order.swap(at as usize, self.below(at + 1) as usize);
        }
        order
    }

    /// By Zipf's law with exponent 0.9, over `count` blocks.
    fn zipf(&mut self, count: u32) -> u32 {
        let share = (f64::from(self.below(1 << 30)) + 0.5) / f64::from(1 << 30);
        // The inverse of the integral of x^-0.9.
        ((share * (f64::from(count).powf(0.1) - 1.0) + 1.0).powf(10.0) - 1.0) as u32
    }
}

#[derive(Clone, Copy, Debug)]
enum Pattern {
    Loop,
    RandomBlocks,
    RandomFiles,
    ForthAndBack,
    SmallSetAndScans,
    Zipf,
    TwoUsers,
}

const PATTERNS: [Pattern; 7] = [
    Pattern::Loop,
    Pattern::RandomBlocks,
    Pattern::RandomFiles,
    Pattern::ForthAndBack,
    Pattern::SmallSetAndScans,
    Pattern::Zipf,
    Pattern::TwoUsers,
];

/// The reads of one pass over `size` blocks.
fn pass(pattern: Pattern, number: u32, size: u32, random: &mut Random) -> Vec<u32> {
    match pattern {
        Pattern::Loop => (0..size).collect(),
        Pattern::RandomBlocks => random.shuffled(size),
        Pattern::RandomFiles => {
            let files = random.shuffled(size / FILE);
            files.into_iter().flat_map(|file| file * FILE..(file + 1) * FILE).collect()
        }
        Pattern::ForthAndBack if number.is_multiple_of(2) => (0..size).collect(),
        Pattern::ForthAndBack => (0..size).rev().collect(),
        Pattern::SmallSetAndScans => {
            (0..8).flat_map(|_| 0..size / 6).chain(size / 6..size).collect()
        }
        Pattern::Zipf => (0..size).map(|_| random.zipf(size)).collect(),
        Pattern::TwoUsers => {
            let half = size / 2;
            (0..half).flat_map(|block| [block, half + random.zipf(half)]).collect()
        }
    }
}

/// Hit ratio after the warm-up.
fn hit_ratio(kind: PolicyKind, pattern: Pattern, capacity: u32) -> f64 {
    let size = capacity / 2 * 3 / FILE * FILE;
    let mut random = Random(7);
    let mut simulation = Simulation::new(kind, capacity);
    for number in 0..WARM_UP + MEASURED {
        if number == WARM_UP {
            simulation.take_hit_ratio();
        }
        for block in pass(pattern, number, size, &mut random) {
            simulation.read(block);
        }
    }
    simulation.take_hit_ratio().unwrap()
}

/// The default, the best of the others, and all of them in words.
fn compare(pattern: Pattern, capacity: u32) -> (f64, f64, String) {
    let ours = hit_ratio(PolicyKind::Adaptive, pattern, capacity);
    let others = PolicyKind::ALL.into_iter().filter(|kind| *kind != PolicyKind::Adaptive);
    let ratios: Vec<_> = others.map(|kind| (kind, hit_ratio(kind, pattern, capacity))).collect();
    let best = ratios.iter().map(|(_, ratio)| *ratio).fold(0.0, f64::max);
    let words: Vec<_> = ratios.iter().map(|(kind, ratio)| format!("{kind} {ratio:.3}")).collect();
    let text =
        format!("{pattern:?}, {capacity} blocks: {ours:.3} of {best:.3}; {}", words.join(" "));
    (ours, best, text)
}

#[test]
fn the_default_hits_nearly_as_much_as_the_best_of_the_others() {
    let mut worse = Vec::new();
    for capacity in [64, 200, 1_000, 6_000] {
        for pattern in PATTERNS {
            let (ours, best, text) = compare(pattern, capacity);
            println!("{:.2} {text}", ours / best);
            if ours < 0.95 * best {
                worse.push(text);
            }
        }
    }
    assert!(worse.is_empty(), "{worse:#?}");
}
