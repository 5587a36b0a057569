//! Prints the hit ratio of every policy on typical traces. Counts only; no memory, no clock.
//!
//! `cargo run --release -p tidepool-store --example hit_ratio [CAPACITY_BLOCKS]`

use tidepool_store::{PolicyKind, Simulation};

/// A small generator of reproducible pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn unit(&mut self) -> f64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, bound: u32) -> u32 {
        (self.unit() * f64::from(bound)) as u32
    }
}

fn zipf(blocks: u32, exponent: f64, reads: usize, random: &mut Random) -> Vec<u32> {
    let mut sums = Vec::with_capacity(blocks as usize);
    let mut sum = 0.0;
    for rank in 1..=blocks {
        sum += f64::from(rank).powf(-exponent);
        sums.push(sum);
    }
    let pick = |random: &mut Random| {
        let wanted = random.unit() * sum;
        let rank = sums.partition_point(|sum| *sum < wanted) as u32;
        // Popular blocks are spread over the set, not in front.
        (u64::from(rank) * 2_654_435_761 % u64::from(blocks)) as u32
    };
    (0..reads).map(|_| pick(random)).collect()
}

fn passes(first: u32, blocks: u32, count: usize) -> Vec<u32> {
    std::iter::repeat_n(first..first + blocks, count).flatten().collect()
}

fn traces(capacity: u32) -> Vec<(&'static str, Vec<u32>, Vec<u32>)> {
    let mut random = Random(0x9E37_79B9_7F4A_7C15);
    let loop_blocks = capacity * 4 / 3;
    let many = capacity as usize * 20;
    let scans_over_zipf = |random: &mut Random| {
        let mut trace = Vec::new();
        for round in 0..10 {
            trace.extend(zipf(capacity * 4, 0.9, many / 10, random));
            trace.extend(passes(1_000_000 + round * capacity, capacity, 1));
        }
        trace
    };
    let loop_with_noise = |random: &mut Random| {
        let noisy = |block| {
            if random.below(10) == 0 { 2_000_000 + random.below(capacity * 50) } else { block }
        };
        passes(0, loop_blocks, 8).into_iter().map(noisy).collect()
    };
    let changed = [passes(0, loop_blocks, 5), passes(5_000_000, loop_blocks, 1)].concat();
    vec![
        ("cyclic 1.33x", passes(0, loop_blocks, 1), passes(0, loop_blocks, 4)),
        ("cyclic 1.05x", passes(0, capacity * 21 / 20, 1), passes(0, capacity * 21 / 20, 4)),
        ("cyclic 3x", passes(0, capacity * 3, 1), passes(0, capacity * 3, 4)),
        ("cyclic fits", passes(0, capacity * 9 / 10, 1), passes(0, capacity * 9 / 10, 4)),
        ("loop changed", changed, passes(5_000_000, loop_blocks, 4)),
        ("zipf 0.7", vec![], zipf(capacity * 10, 0.7, many, &mut random)),
        ("zipf 1.0", vec![], zipf(capacity * 10, 1.0, many, &mut random)),
        ("scan once", vec![], passes(0, capacity * 5, 1)),
        ("zipf + scans", vec![], scans_over_zipf(&mut random)),
        ("loop + noise", vec![], loop_with_noise(&mut random)),
        ("uniform 2x", vec![], (0..many).map(|_| random.below(capacity * 2)).collect()),
    ]
}

fn main() {
    let capacity = std::env::args().nth(1).map_or(1500, |text| text.parse().expect("blocks"));
    print!("{:<14}", "trace");
    PolicyKind::ALL.iter().for_each(|kind| print!("{kind:>9}"));
    println!("   (capacity {capacity} blocks)");
    for (name, warm_up, measured) in traces(capacity) {
        print!("{name:<14}");
        for kind in PolicyKind::ALL {
            let mut subject = Simulation::new(kind, capacity);
            warm_up.iter().for_each(|block| _ = subject.read(*block));
            subject.take_hit_ratio();
            measured.iter().for_each(|block| _ = subject.read(*block));
            print!("{:>9.3}", subject.take_hit_ratio().unwrap_or(0.0));
        }
        println!();
    }
}
