//! Two nodes on one machine, each with a store and a controller of its own, which counts the
//! other's store as demand of jobs.

use std::time::Duration;

use tidepool_control_policy::{Level, Parameters, Policy, policy, split};
use tidepool_model::simulator::{Plant, PlantConfig, StoreConfig, Trace, Truth};

use crate::support::*;

const GIB: u64 = 1 << 30;
const MEMORY_SMALL: u64 = 24 * GIB;
const STORE_MIN: u64 = GIB / 4;

struct OneNode {
    plant: Plant,
    law: Box<dyn Policy>,
    parameters: Parameters,
    due_ms: u64,
}

impl OneNode {
    fn new(store: u64, others: u64, phase_ms: u64) -> Self {
        let store = StoreConfig { capacity_min_bytes: STORE_MIN, ..StoreConfig::tidepool(store) };
        let mut config = PlantConfig::node(MEMORY_SMALL, 0);
        config.stores = vec![store];
        config.sensor_noise_bytes = 1 << 20;
        config.seed = phase_ms + 1;
        let parameters = Parameters::default();
        let law = policy(parameters.policy);
        OneNode { plant: Plant::new(config, &constant(others)), law, parameters, due_ms: phase_ms }
    }

    /// A millisecond, with this much used by everybody else.
    fn step(&mut self, at_ms: u64, others: u64) {
        self.plant.advance(at_ms * 1_000_000, &constant(others));
        if at_ms < self.due_ms {
            return;
        }
        let snapshot = self.plant.snapshot();
        let decision = self.law.decide(&snapshot, &self.parameters);
        let mut capacities = Vec::new();
        split(decision.target_bytes, &snapshot.stores, &mut capacities);
        self.plant.command(&capacities, decision.level == Level::Emergency);
        self.due_ms = at_ms + decision.next_ms.max(self.parameters.interval_ms);
    }

    fn truth(&self) -> Truth {
        self.plant.truth()
    }
}

fn constant(bytes: u64) -> Trace {
    Trace::constant(bytes, S)
}

/// What was true of both at each second under a demand of jobs.
fn both(phase_ms: u64, jobs: &Trace, seconds: u64) -> Vec<[Truth; 2]> {
    let mut held = [8 * GIB, 6 * GIB];
    let start = jobs.demand_bytes(0);
    let mut nodes = [
        OneNode::new(held[0], start + held[1], 0),
        OneNode::new(held[1], start + held[0], phase_ms),
    ];
    let mut seen = Vec::new();
    for at_ms in 0..=seconds * 1000 {
        let demand = jobs.demand_bytes(at_ms * 1_000_000);
        nodes[0].step(at_ms, demand + held[1]);
        held[0] = nodes[0].truth().stored_bytes;
        nodes[1].step(at_ms, demand + held[0]);
        held[1] = nodes[1].truth().stored_bytes;
        if at_ms % 1000 == 0 {
            seen.push(nodes.each_ref().map(OneNode::truth));
        }
    }
    seen
}

fn sum(truths: &[Truth; 2], of: fn(&Truth) -> u64) -> u64 {
    truths.iter().map(of).sum()
}

#[test]
fn two_nodes_give_a_step_at_once_and_make_no_cycle() {
    for phase_ms in [0, 1, 5, 9] {
        // 14 GiB of stores on 24 GiB: the step takes 5 GiB of them, faster than either's tick.
        let jobs = Trace::step(8 * GIB, 14 * GIB, 5 * S, 120 * S);
        let seen = both(phase_ms, &jobs, 120);
        let (end, before) = (seen[120], seen[60]);
        let evicted = sum(&end, |truth| truth.evicted_bytes);
        println!(
            "{phase_ms} ms apart: evicted {:.2} GiB, filled {:.2} GiB, hold {:.2} and {:.2} GiB",
            evicted as f64 / GIB as f64,
            sum(&end, |truth| truth.filled_bytes) as f64 / GIB as f64,
            end[0].stored_bytes as f64 / GIB as f64,
            end[1].stored_bytes as f64 / GIB as f64,
        );
        // At most each gives the whole shortfall.
        assert!(evicted <= 2 * 5 * GIB, "{evicted}");
        assert!(end.iter().all(|truth| truth.stored_bytes >= STORE_MIN));
        // What both gave too much is theirs again, once.
        let late = evicted - sum(&before, |truth| truth.evicted_bytes);
        assert!(late <= GIB / 4, "{late} bytes evicted in the second minute of rest");
        let held = sum(&end, |truth| truth.stored_bytes);
        assert!(held >= 7 * GIB, "{held} of 9 GiB that fit");
    }
}

#[test]
fn two_nodes_beside_jobs_that_come_and_go_are_bounded() {
    let period = Duration::from_secs(3);
    let jobs = Trace::sawtooth(8 * GIB, 12 * GIB, period, 120 * S);
    let seen = both(5, &jobs, 120);
    let asked = 40 * 4 * GIB;
    let filled = sum(&seen[120], |truth| truth.filled_bytes);
    println!("sawtooth: filled {:.2} GiB", filled as f64 / GIB as f64);
    assert!(filled <= asked / 5, "{filled} bytes filled");
    assert!(seen[120].iter().all(|truth| truth.shortages == 0));
}
