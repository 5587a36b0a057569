//! What the default policy costs beside LRU, by the store's own calls: a hit, with the sweep that
//! brings its marks to the policy, and a miss of 4 MiB with its eviction. Processor time, in turns;
//! medians.
//!
//! `cargo run --release -p tidepool-store --example policy_cost [ROUNDS]`

use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tidepool_store::{BlockState, FillStart, Owner, PolicyKind, Segment, Store, StoreConfig};

const BLOCK_BYTES: u64 = 4 << 20;
/// Blocks that fit; all of them are in the default's sample.
const CAPACITY_BLOCKS: u64 = 256;
const SET_BLOCKS: u64 = CAPACITY_BLOCKS * 3 / 2;
const HITS: u64 = 1_000_000;

/// Processor time of this thread: what others do on the machine is none of it.
fn now_ns() -> f64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    time.tv_sec as f64 * 1e9 + time.tv_nsec as f64
}

struct Subject {
    store: Arc<Store>,
    segment: Arc<Segment>,
    next: u64,
}

impl Subject {
    fn new(policy: PolicyKind) -> Self {
        let config = StoreConfig {
            capacity_bytes: CAPACITY_BLOCKS * BLOCK_BYTES,
            block_bytes: BLOCK_BYTES,
            policy,
            ..StoreConfig::default()
        };
        let store = Store::new(config).expect("a store");
        let segment = store.create_segment(SET_BLOCKS * BLOCK_BYTES, Owner::default());
        let mut this = Subject { store, segment: segment.expect("a segment"), next: 0 };
        (0..2 * SET_BLOCKS).for_each(|_| _ = this.miss());
        this
    }

    /// Brings one more block of a loop in; nanoseconds, if it was not there.
    fn miss(&mut self) -> Option<f64> {
        let block = self.next;
        self.next = (self.next + 1) % SET_BLOCKS;
        if self.segment.pin_block(block).is_some() {
            return None;
        }
        let started = now_ns();
        if let FillStart::Started(fill) = self.segment.begin_fill(block) {
            fill.commit(BlockState::Clean);
        }
        drop(self.segment.pin_block(block));
        Some(now_ns() - started)
    }

    /// Nanoseconds of a read of a resident block, at random places.
    fn hit(&self) -> f64 {
        let is_resident = |block: &u64| self.segment.pin_block(*block).is_some();
        let resident: Vec<u64> = (0..SET_BLOCKS).filter(is_resident).collect();
        let mut state = 1_u64;
        let started = now_ns();
        for _ in 0..HITS {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            let block = resident[(state >> 33) as usize % resident.len()];
            std::hint::black_box(self.segment.pin_block(block).is_some());
        }
        // The node does so once a second, which is much rarer than here.
        self.store.expire(Instant::now());
        (now_ns() - started) / HITS as f64
    }
}

fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

fn main() {
    let rounds = std::env::args().nth(1).map_or(15, |text| text.parse().expect("rounds"));
    let kinds = [PolicyKind::Lru, PolicyKind::Adaptive];
    let mut subjects = kinds.map(Subject::new);
    let (mut hits, mut misses) = ([const { Vec::new() }; 2], [const { Vec::new() }; 2]);
    let (mut hit_ratios, mut miss_ratios) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        let (mut hit, mut miss) = ([0.0; 2], [0.0; 2]);
        for number in order {
            hit[number] = subjects[number].hit();
            hits[number].push(hit[number]);
        }
        // By turns, one miss each: what the machine does beside hits both alike.
        let mut times = [const { Vec::new() }; 2];
        let until = Instant::now() + Duration::from_secs(1);
        while Instant::now() < until {
            for number in order {
                while times[number].len() <= times[1 - number].len() {
                    times[number].extend(subjects[number].miss());
                }
            }
        }
        for number in 0..2 {
            miss[number] = median(&mut times[number]);
            misses[number].push(miss[number]);
        }
        hit_ratios.push(hit[1] / hit[0]);
        miss_ratios.push(miss[1] / miss[0]);
    }
    for (name, of, ratios) in
        [("hit", &mut hits, &mut hit_ratios), ("miss of 4 MiB", &mut misses, &mut miss_ratios)]
    {
        let [lru, adaptive] = of;
        let (lru, adaptive) = (median(lru), median(adaptive));
        let ratio = median(ratios);
        let spread = (ratios[0], ratios[ratios.len() - 1]);
        println!(
            "{name}: lru {lru:.0} ns, adaptive {adaptive:.0} ns, ratio {ratio:.3} ({:.3} to {:.3})",
            spread.0, spread.1
        );
    }
}
