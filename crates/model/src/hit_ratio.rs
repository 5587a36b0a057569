//! f, the share of read bytes that memory has, from capacity, set size, policy and access, where
//! the papers take it as given. Steady state: the first pass, which brings the set in, is not part
//! of it. Counts blocks; a set smaller than one block is one block.

use serde::{Deserialize, Serialize};
use tidepool_proto::{Error, ErrorKind, Result};

use crate::quantity::{Bytes, Share};

/// What is evicted when memory is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Policy {
    /// Least recently read.
    Lru,
    /// Least often read; among equals the least recently read.
    Lfu,
    /// Keeps a stable part of a loop, the default of the store.
    Cyclic,
    /// The best that is possible: for cyclic access what a policy that knows the future gets, for
    /// Zipf access what one that knows all frequencies gets.
    Optimum,
}

impl Policy {
    /// All policies.
    pub const ALL: [Policy; 4] = [Policy::Lru, Policy::Lfu, Policy::Cyclic, Policy::Optimum];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Policy::Lru => "lru",
            Policy::Lfu => "lfu",
            Policy::Cyclic => "cyclic",
            Policy::Optimum => "optimum",
        }
    }
}

/// In which order a set is read.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Access {
    /// All of it from start to end, again and again, as iterative analytics does.
    Cyclic,
    /// Independent reads; the block of rank k is read in proportion to 1/k^exponent. 0 is uniform.
    Zipf {
        /// At least 0.
        exponent: f64,
    },
}

/// The cyclic policy lets one block in a hundred pass through, at least one.
const PASSING_SHARE: f64 = 100.0;
/// Ranks that are summed one by one; further ranks are summed in bins a hundredth wide.
const EXACT_RANKS: f64 = 1000.0;
const BIN_GROWTH: f64 = 1.01;
/// Halvings of the interval that holds the characteristic time: enough for all digits.
const BISECTIONS: u32 = 200;

/// f in the steady state, for a memory of `capacity` and a set of `set`, both in blocks of `block`.
///
/// With C and S the blocks of memory and set, and C < S (else f = 1):
/// * cyclic access: 0 for LRU and LFU, because the block read next is always the one evicted last;
///   C/S for the optimum (Belady's rule on a loop, where a block may pass without being kept);
///   (C − max(1, C/100))/S for the cyclic policy;
/// * Zipf access, with p_k the share of reads of rank k: Σ p_k over k ≤ C for LFU and the optimum;
///   Σ p_k (1 − e^(−p_k T)) with T such that Σ (1 − e^(−p_k T)) = C for LRU (Che, Tung and Wang,
///   2002); the cyclic policy is taken as LRU there, which is cautious.
pub fn hit_ratio(
    capacity: Bytes,
    set: Bytes,
    block: Bytes,
    policy: Policy,
    access: Access,
) -> Result<Share> {
    if block.get() == 0.0 {
        let error =
            Error::new(ErrorKind::InvalidInput, "computing a hit ratio", "blocks of 0 bytes");
        return Err(error.remedy("give the block size of the store, as 4MiB"));
    }
    let frames = (capacity.get() / block.get()).floor();
    let blocks = (set.get() / block.get()).ceil().max(1.0);
    if frames >= blocks {
        return Ok(Share::ALL);
    }
    if frames == 0.0 {
        return Ok(Share::NONE);
    }
    match access {
        Access::Cyclic => Ok(cyclic(frames, blocks, policy)),
        Access::Zipf { exponent } if exponent.is_finite() && exponent >= 0.0 => {
            Ok(zipf(frames, blocks, policy, exponent))
        }
        Access::Zipf { exponent } => {
            let detail = format!("a Zipf exponent of {exponent}");
            Err(Error::new(ErrorKind::InvalidInput, "computing a hit ratio", detail)
                .remedy("exponents start at 0, which is uniform"))
        }
    }
}

fn cyclic(frames: f64, blocks: f64, policy: Policy) -> Share {
    match policy {
        Policy::Lru | Policy::Lfu => Share::NONE,
        Policy::Optimum => Share::clamped(frames / blocks),
        Policy::Cyclic => {
            let passing = (frames / PASSING_SHARE).floor().max(1.0);
            Share::clamped((frames - passing) / blocks)
        }
    }
}

/// Ranks that are treated alike.
struct Bin {
    ranks: f64,
    /// Weight of one rank, not yet divided by the sum.
    weight: f64,
}

/// Ranks 1 to `blocks`, with a border after rank `border`.
fn bins(blocks: f64, border: f64, exponent: f64) -> Vec<Bin> {
    let mut bins = Vec::new();
    let mut first = 1.0;
    while first <= blocks {
        let widest = if first <= EXACT_RANKS { first } else { (first * BIN_GROWTH).floor() };
        let end = if first <= border { border } else { blocks };
        let last = widest.min(end);
        // The middle of the bin stands for all of it; it is narrow.
        let middle = f64::midpoint(first, last);
        bins.push(Bin { ranks: last - first + 1.0, weight: middle.powf(-exponent) });
        first = last + 1.0;
    }
    bins
}

fn zipf(frames: f64, blocks: f64, policy: Policy, exponent: f64) -> Share {
    let bins = bins(blocks, frames, exponent);
    let total: f64 = bins.iter().map(|bin| bin.ranks * bin.weight).sum();
    match policy {
        Policy::Lfu | Policy::Optimum => {
            let mut left = frames;
            let mut sum = 0.0;
            for bin in &bins {
                let taken = bin.ranks.min(left);
                sum += taken * bin.weight;
                left -= taken;
            }
            Share::clamped(sum / total)
        }
        Policy::Lru | Policy::Cyclic => Share::clamped(che(&bins, total, frames)),
    }
}

/// Che's approximation: a block stays for a time T that is the same for all.
fn che(bins: &[Bin], total: f64, frames: f64) -> f64 {
    let resident = |time: f64, bin: &Bin| -f64::exp_m1(-bin.weight / total * time);
    let held = |time: f64| -> f64 { bins.iter().map(|bin| bin.ranks * resident(time, bin)).sum() };
    let (mut low, mut high) = (0.0, frames);
    while held(high) < frames {
        high *= 2.0;
    }
    for _ in 0..BISECTIONS {
        let middle = f64::midpoint(low, high);
        if held(middle) < frames { low = middle } else { high = middle }
    }
    bins.iter().map(|bin| bin.ranks * bin.weight / total * resident(high, bin)).sum()
}
