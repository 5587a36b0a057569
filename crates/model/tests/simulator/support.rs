//! The node of most scenarios, and short ways to run it.

use std::time::Duration;

use tidepool_control_policy::{Alarm, ControlPolicy, Level, Parameters, headroom_bytes};
use tidepool_model::simulator::{Goal, Measures, PlantConfig, Run, Simulation, Trace, simulate};

pub const GB: u64 = 1_000_000_000;
pub const S: Duration = Duration::from_secs(1);
pub const MS: Duration = Duration::from_millis(1);
/// Memory of the papers' nodes, and of the store on them.
pub const MEMORY: u64 = 125 * GB;
pub const STORE: u64 = 60 * GB / (4 << 20) * (4 << 20);
/// Demand at which the node is as full as it may be: 95 % less the watermark, store and kernel.
pub const FULL: u64 = MEMORY / 100 * 95 - MEMORY / 400 - MEMORY / 100 - STORE;

/// The node: full store in 2 MiB pages, and readings that are never quite the same.
pub fn node() -> PlantConfig {
    PlantConfig { sensor_noise_bytes: 500_000, ..PlantConfig::node(MEMORY, STORE) }
}

/// Parameters with the headroom of the paper's r0 of 0.95.
pub fn parameters(policy: ControlPolicy) -> Parameters {
    let interval_ms = match policy {
        ControlPolicy::Tidepool | ControlPolicy::Static => 10,
        ControlPolicy::Dynims | ControlPolicy::DynimsPrinted => 100,
    };
    Parameters { policy, interval_ms, headroom_bytes: MEMORY / 20, ..Parameters::default() }
}

pub fn tidepool(plant: PlantConfig, demand: Trace) -> Simulation {
    Simulation::new(plant, demand, parameters(ControlPolicy::Tidepool))
}

pub fn with(policy: ControlPolicy, simulation: &Simulation) -> Simulation {
    Simulation { parameters: parameters(policy), ..simulation.clone() }
}

/// Bytes that use should not exceed: as the policy is told.
pub fn used_target(simulation: &Simulation) -> u64 {
    let total = simulation.plant.memory_total.demand_bytes(u64::MAX);
    let headroom = headroom_bytes(total, &simulation.parameters);
    total - headroom - simulation.plant.watermark_bytes
}

/// A run and its figures, taken at the last change of the demand; prints them.
pub fn run(name: &str, simulation: &Simulation) -> (Run, Measures) {
    let run = simulate(simulation);
    let rest_ns = simulation.demand.last_change_ns();
    let goal = Goal { used_target_bytes: used_target(simulation), rest_ns, rest_end_ns: u64::MAX };
    let measures = Measures::of(&run, &goal);
    let ms = |time: Option<u64>| time.map_or("-".to_owned(), |ns| format!("{}", ns / 1_000_000));
    let gb = |bytes: u64| bytes as f64 / 1e9;
    println!(
        "{name}: first byte {} ms, released {} ms, excess {:.3} GB, over memory {} ms, evicted \
         {:.3} of {:.3} GB, settled {} ms, turns {}, mean {:.2} GB, deviation {:.3} GB, regrown {} \
         ms, stalls {} ms, commands {}",
        ms(measures.first_byte_back_ns),
        ms(measures.released_after_ns),
        gb(measures.excess_peak_bytes),
        measures.over_memory_ns / 1_000_000,
        gb(measures.evicted_bytes),
        gb(measures.needed_bytes),
        ms(measures.settling_ns),
        measures.sign_changes,
        gb(measures.stored_mean_bytes),
        gb(measures.stored_deviation_bytes),
        ms(measures.regrowth_ns),
        measures.stalled_some_ns / 1_000_000,
        measures.commands,
    );
    (run, measures)
}

/// Time of the first decision that meets a condition.
pub fn first(
    run: &Run,
    from: Duration,
    condition: impl Fn(&Run, usize) -> bool,
) -> Option<Duration> {
    let at = |index: &usize| Duration::from_nanos(run.decisions[*index].at_ns);
    let found = (0..run.decisions.len()).filter(|index| at(index) >= from);
    found.into_iter().find(|index| condition(run, *index)).map(|index| at(&index))
}

/// Time of the first decision with an alarm.
pub fn alarm(run: &Run, alarm: Alarm) -> Option<Duration> {
    first(run, Duration::ZERO, |run, at| run.decisions[at].decision.alarms.contains(&alarm))
}

/// Whether no decision has an alarm.
pub fn is_quiet(run: &Run) -> bool {
    run.decisions.iter().all(|decided| decided.decision.alarms.is_empty())
}

/// Whether some decision is at a level.
pub fn reached(run: &Run, level: Level) -> bool {
    run.decisions.iter().any(|decided| decided.decision.level == level)
}

/// Bytes in the stores at a time.
pub fn stored_at(run: &Run, at: Duration) -> u64 {
    let at_ns = at.as_nanos() as u64;
    let after = run.samples.partition_point(|sample| sample.at_ns < at_ns);
    run.samples[after.min(run.samples.len() - 1)].truth.stored_bytes
}

/// Bytes that the stores gave back from one time to another.
pub fn evicted_between(run: &Run, from: Duration, until: Duration) -> u64 {
    let at = |time: Duration| {
        let after = run.samples.partition_point(|sample| sample.at_ns < time.as_nanos() as u64);
        run.samples[after.min(run.samples.len() - 1)].truth.evicted_bytes
    };
    at(until) - at(from)
}

/// What is promised wherever nothing is broken: no store above its bound, no time above the
/// memory, nobody waits.
pub fn assert_harmless(run: &Run, measures: &Measures) {
    let above = run.samples.iter().find(|sample| sample.capacity_bytes > run.capacity_max_bytes);
    assert_eq!(above, None);
    assert_eq!(measures.over_memory_ns, 0);
    assert_eq!((measures.stalled_some_ns, measures.stalled_full_ns), (0, 0));
    assert_eq!(measures.swapped_out_bytes, 0);
}

/// What is evicted is what is needed, within 5 % and a block.
pub fn assert_frugal(measures: &Measures) {
    let most = measures.needed_bytes / 100 * 105 + (4 << 20);
    assert!(measures.evicted_bytes <= most, "{measures:?}");
}

/// At rest within 100 ms, without turns, within 0.2 % of the memory.
pub fn assert_settled(measures: &Measures) {
    assert!(measures.settling_ns.is_some_and(|ns| ns <= 100_000_000), "{measures:?}");
    assert_eq!(measures.sign_changes, 0, "{measures:?}");
    assert!(measures.stored_deviation_bytes < MEMORY / 500, "{measures:?}");
}
