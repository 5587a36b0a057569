//! Property tests of the policies on simulated nodes: bounds, frugality, no growth against the
//! demand, few commands, and no oscillation for any delay up to the configured one.

use std::time::Duration;

use proptest::prelude::*;
use tidepool_control_policy::{ControlPolicy, INTERVAL_MAX_MS, Parameters, growth_max_bytes_per_s};
use tidepool_model::simulator::{
    Decided, Fault, FaultKind, Goal, Measures, PlantConfig, Sample, Simulation, Trace, simulate,
};

use crate::support::{MS, S, used_target};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// End of the growth of the demand at the latest, and end of a run.
const GROWN: Duration = Duration::from_secs(5);
const END: Duration = Duration::from_secs(9);

/// A node, its parameters, and a demand that grows once; with the rate of the growth.
fn simulations() -> impl Strategy<Value = (Simulation, u64)> {
    let node = (4_u64..512, 0.1..0.7_f64, 0_u32..5, 1_u64..200, 0.0..0.002_f64);
    let control = (5_u64..50, 1_u64..50, 0.0..=1.0_f64, any::<u64>());
    let demand = (0.05..1.0_f64, 0.01..1.0_f64, -0.1..0.3_f64);
    (node, control, demand).prop_map(|(node, control, demand)| {
        let (memory_gib, store_share, block_log, release_gib, noise_share) = node;
        let (interval_ms, actuation_delay_ms, delay_share, seed) = control;
        let memory = memory_gib * GIB;
        // Blocks of 1 MiB to 256 MiB, no larger than a hundredth of the node.
        let block = (MIB << (2 * block_log)).min(memory / 128);
        let store = (memory as f64 * store_share) as u64 / block * block;
        let mut plant = PlantConfig::node(memory, store);
        plant.seed = seed;
        plant.sensor_noise_bytes = (memory as f64 * noise_share) as u64;
        let own = &mut plant.stores[0];
        own.block_bytes = block;
        own.release_bytes_per_s = release_gib * GIB;
        own.actuation_delay =
            Duration::from_micros((1e3 * actuation_delay_ms as f64 * delay_share) as u64);
        let headroom_bytes = memory / 20;
        let parameters =
            Parameters { interval_ms, actuation_delay_ms, headroom_bytes, ..Parameters::default() };
        // Begins before the node is full, or up to two fifths of the headroom above that.
        let kernel = plant.kernel_bytes + plant.watermark_bytes;
        let full = memory - headroom_bytes - kernel - store;
        let begin = (full as f64 * (1.0 - demand.2.max(0.0))) as u64;
        let begin = begin + (headroom_bytes as f64 * 4.0 * (-demand.2).max(0.0)) as u64;
        // What the headroom covers until a decision has acted, and what the store gives.
        let reaction_ms = 3 * interval_ms + actuation_delay_ms + 10;
        let most = (headroom_bytes / 3 * 1000 / reaction_ms).min(release_gib * GIB / 2);
        // Grown within 3 s.
        let height = ((store as f64 * 0.8 * demand.0) as u64).min(3 * most);
        let least = (height / 3).max(1);
        let rate = least + ((most - least) as f64 * demand.1) as u64;
        let trace = Trace::ramp(begin, begin + height, rate, S, END);
        let mut simulation = Simulation::new(plant, trace, parameters);
        simulation.duration = END;
        (simulation, rate)
    })
}

/// A node at rest with some room, and a demand that begins to grow at any moment, as fast as the
/// processors can or slower; with the room.
fn surprises() -> impl Strategy<Value = (Simulation, u64)> {
    let node = (64_u64..512, 1_u32..12, 0.0..1.0_f64);
    let control = (2_u64..50, 0_u64..300, 0.05..1.0_f64, any::<bool>());
    (node, control).prop_map(|(node, control)| {
        let (memory_gib, processors, room_share) = node;
        let (interval_ms, after_ms, rate_share, has_kinds) = control;
        let memory = memory_gib * GIB;
        let store = memory / 2 / (4 * MIB) * (4 * MIB);
        let mut plant = PlantConfig { processors, ..PlantConfig::node(memory, store) };
        if !has_kinds {
            let kind = FaultKind::UsedKindsUnreadable;
            plant.faults = vec![Fault { from: Duration::ZERO, until: END, kind }];
        }
        let headroom_bytes = memory / 8;
        let rate = (growth_max_bytes_per_s(Some(processors)) as f64 * rate_share) as u64;
        // Used up within 3 s.
        let room = ((memory as f64 / 8.0 * room_share) as u64).min(3 * rate);
        let used = plant.kernel_bytes + plant.watermark_bytes + headroom_bytes + store;
        let begin = memory - used - room;
        let start = S + Duration::from_millis(after_ms);
        let trace = Trace::ramp(begin, begin + room + memory / 16, rate, start, END);
        let parameters = Parameters { interval_ms, headroom_bytes, ..Parameters::default() };
        let mut simulation = Simulation::new(plant, trace, parameters);
        simulation.duration = 6 * S;
        (simulation, room)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn rest_never_makes_an_answer_late((simulation, room) in surprises()) {
        let run = simulate(&simulation);
        let interval_ns = simulation.parameters.interval_ms * 1_000_000;
        let step_ns = simulation.step.as_nanos() as u64;
        let target = used_target(&simulation);
        let stored = simulation.plant.stores[0].capacity_max_bytes;
        let over = |s: &&Sample| s.truth.demand_bytes + stored > target;
        let crossed = run.samples.iter().find(over).expect("it grows beyond the room").at_ns;
        let gives = |d: &&Decided| d.decision.target_bytes < stored;
        let answer = run.decisions.iter().find(gives).expect("the store gives").at_ns;
        // Without the second reading a rise counts when it was read twice.
        let readings = if simulation.plant.faults.is_empty() { 1 } else { 2 };
        let latest = crossed + readings * interval_ns + step_ns;
        prop_assert!(answer <= latest, "crossed at {crossed}, answered at {answer}");
        // And where there is room it does rest.
        let calm = run.decisions.iter().filter(|d| d.at_ns < 1_000_000_000).count() as u64;
        let takes_ms = room / (growth_max_bytes_per_s(Some(simulation.plant.processors)) / 1000);
        let next_ms = takes_ms.min(INTERVAL_MAX_MS - interval_ns / 1_000_000).max(1);
        prop_assert!(calm <= 8 + 1_000 / next_ms, "{calm} decisions, rests of {next_ms} ms");
    }

    #[test]
    fn nodes_of_all_kinds_keep_the_promises((simulation, rate) in simulations()) {
        let run = simulate(&simulation);
        let store = &simulation.plant.stores[0];
        let bound = store.capacity_max_bytes;
        let within = |bytes: u64| bytes <= bound;
        prop_assert!(run.samples.iter().all(|s| within(s.capacity_bytes)));
        prop_assert!(run.samples.iter().all(|s| within(s.truth.stored_bytes)));
        prop_assert!(run.decisions.iter().all(|d| within(d.decision.target_bytes)));
        prop_assert!(run.commands <= run.decisions.len() as u64, "one a tick at most");

        let goal = Goal {
            used_target_bytes: used_target(&simulation),
            rest_ns: GROWN.as_nanos() as u64,
            rest_end_ns: u64::MAX,
        };
        let measures = Measures::of(&run, &goal);
        prop_assert_eq!(measures.over_memory_ns, 0);
        // A ramp is foreseen by a tick, the actuator and what a slope of noise adds.
        let p = &simulation.parameters;
        let foreseen = rate / 1000 * (2 * p.interval_ms + p.actuation_delay_ms);
        let noise = 8 * simulation.plant.sensor_noise_bytes;
        let most = measures.needed_bytes / 100 * 105 + store.block_bytes + foreseen + noise;
        prop_assert!(measures.evicted_bytes <= most, "{} of {most}", measures.evicted_bytes);

        // At rest nothing turns and nothing is evicted any more, once a slow store has given what
        // was needed.
        prop_assert_eq!(measures.sign_changes, 0);
        let at_rest = run.samples.iter().filter(|s| s.at_ns >= goal.rest_ns);
        let evicted: Vec<u64> =
            at_rest.map(|s| s.truth.evicted_bytes.max(measures.needed_bytes)).collect();
        let late = evicted[evicted.len() - 1] - evicted[0];
        prop_assert!(late <= noise + store.block_bytes, "{late} evicted at rest");
    }

    #[test]
    fn targets_never_rise_while_the_demand_does((simulation, rate) in simulations()) {
        let mut simulation = simulation;
        let p = &simulation.parameters;
        // Growth that drowns in the noise of its readings cannot be told.
        let tick_bytes = rate / 1000 * p.interval_ms;
        let noise = &mut simulation.plant.sensor_noise_bytes;
        *noise = (*noise).min(tick_bytes / 5);
        let known = S + Duration::from_millis(p.slope_window_ms + 3 * p.interval_ms);
        let end = simulation.demand.last_change_ns();
        let growing = (known.as_nanos() as u64)..end;
        let run = simulate(&simulation);
        let ticks: Vec<_> =
            run.decisions.iter().filter(|decided| growing.contains(&decided.at_ns)).collect();
        for pair in ticks.windows(2) {
            let (before, after) = (pair[0].decision.target_bytes, pair[1].decision.target_bytes);
            let block = simulation.plant.stores[0].block_bytes;
            prop_assert!(after <= before + block, "{before} to {after} at {}", pair[1].at_ns);
        }
    }

    #[test]
    fn the_corrected_law_of_the_paper_keeps_its_bounds((simulation, _) in simulations()) {
        let mut simulation = simulation;
        simulation.parameters.policy = ControlPolicy::Dynims;
        simulation.parameters.interval_ms = 100;
        simulation.step = 5 * MS;
        let run = simulate(&simulation);
        let bound = simulation.plant.stores[0].capacity_max_bytes;
        prop_assert!(run.samples.iter().all(|sample| sample.capacity_bytes <= bound));
        prop_assert!(run.commands <= run.decisions.len() as u64);
    }
}
