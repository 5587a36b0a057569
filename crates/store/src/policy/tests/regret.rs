//! The default against the best of all others, on the ways in which jobs iterate over a set of
//! which two thirds fit.

use tidepool_patterns::{Pattern, Random, Set};

use super::super::Simulation;
use crate::config::PolicyKind;

/// Warm-up and measured passes.
const WARM_UP: u64 = 2;
const MEASURED: u64 = 8;
/// Blocks of a file.
const FILE_BLOCKS: u32 = 16;

/// Hit ratio after the warm-up.
fn hit_ratio(kind: PolicyKind, pattern: Pattern, capacity: u32) -> f64 {
    let files = capacity / 2 * 3 / FILE_BLOCKS;
    let set = Set { files: files.into(), file_blocks: FILE_BLOCKS.into() };
    let mut random = Random(7);
    let mut simulation = Simulation::new(kind, capacity);
    for number in 0..WARM_UP + MEASURED {
        if number == WARM_UP {
            simulation.take_hit_ratio();
        }
        for visit in pattern.pass(number, set, &mut random) {
            (visit.block..visit.block + visit.blocks).for_each(|block| {
                simulation.read(block as u32);
            });
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
        for pattern in Pattern::ALL {
            let (ours, best, text) = compare(pattern, capacity);
            println!("{:.2} {text}", ours / best);
            if ours < 0.95 * best {
                worse.push(text);
            }
        }
    }
    assert!(worse.is_empty(), "{worse:#?}");
}
