//! Scenarios of demand: bursts, ramps, sawtooth, leak, noise, storms.

use std::time::Duration;

use tidepool_control_policy::{Alarm, ControlPolicy, Level, Reason};
use tidepool_model::simulator::{Bursts, Measures, Storm, Trace};

use crate::support::*;

fn burst(bytes: u64, rate: u64) -> Trace {
    Trace::ramp(FULL, FULL + bytes, rate, S, 3 * S)
}

#[test]
fn scenario_01_a_burst_is_served_in_one_shrink() {
    for (gb, rate, released_ms) in [(1, 20, 30), (10, 20, 150), (40, 60, 500)] {
        let simulation = tidepool(node(), burst(gb * GB, rate * GB));
        let (run, measures) = run(&format!("burst of {gb} GB at {rate} GB/s"), &simulation);
        assert_harmless(&run, &measures);
        // A ramp is foreseen by one tick and the time of the actuator.
        let foreseen = rate * GB / 1000 * 20;
        assert!(measures.evicted_bytes <= measures.needed_bytes / 100 * 105 + foreseen);
        assert_settled(&measures);
        let burst_ns = gb * 1_000_000_000 / rate;
        let after_ns = measures.released_after_ns.unwrap().saturating_sub(burst_ns);
        assert!(after_ns <= released_ms * 1_000_000, "{measures:?}");
        let grew = first(&run, Duration::ZERO, |run, at| {
            run.decisions[at].decision.reason == Reason::Growth
        });
        assert_eq!(grew, None, "the hold is not over");
        let (_, fixed) = crate::support::run("  static", &with(ControlPolicy::Static, &simulation));
        let (_, paper) = crate::support::run("  paper", &with(ControlPolicy::Dynims, &simulation));
        assert!(fixed.evicted_bytes == 0 && paper.excess_peak_bytes > measures.excess_peak_bytes);
    }
}

#[test]
fn scenario_01_the_first_byte_is_back_within_a_tick_or_two() {
    let mut times: Vec<u64> = (0..20)
        .map(|phase| {
            let mut simulation = tidepool(node(), Trace::step(FULL, FULL + 5 * GB, S, 2 * S));
            simulation.phase = phase * MS / 2;
            simulation.step = MS / 2;
            let goal = tidepool_model::simulator::Goal {
                used_target_bytes: used_target(&simulation),
                rest_ns: 0,
                rest_end_ns: 0,
            };
            let run = tidepool_model::simulator::simulate(&simulation);
            Measures::of(&run, &goal).first_byte_back_ns.unwrap()
        })
        .collect();
    times.sort_unstable();
    let (median, last) = (times[times.len() / 2], times[times.len() - 1]);
    println!("first byte back: median {median} ns, last {last} ns");
    assert!(median <= 8_000_000 && last <= 20_000_000, "{times:?}");
}

#[test]
fn scenario_02_ramps_are_followed_as_fast_as_the_store_gives() {
    for rate in [GB / 10, GB, 5 * GB, 10 * GB, 20 * GB, 40 * GB, 60 * GB] {
        let simulation = tidepool(node(), burst(40 * GB, rate));
        let (run, measures) = run(&format!("ramp of {:.1} GB/s", rate as f64 / 1e9), &simulation);
        assert_harmless(&run, &measures);
        assert_frugal(&measures);
        assert_settled(&measures);
        // Until there are readings to tell a ramp from a step, it is followed by its size alone.
        let reaction_ms = 10 + 10 + 10;
        assert!(measures.excess_peak_bytes <= rate / 1000 * reaction_ms, "{measures:?}");
        if rate <= 10 * GB {
            assert!(measures.excess_peak_bytes <= 3 * GB / 10, "{measures:?}");
        }
        assert_eq!(alarm(&run, Alarm::ActuatorLimited), None);
    }
}

#[test]
fn scenario_02_a_ramp_faster_than_the_store_is_an_emergency_and_said() {
    let mut plant = node();
    plant.stores[0] = plant.stores[0].clone().in_small_pages();
    plant.hidden_share = 0.0;
    let simulation = tidepool(plant, burst(38 * GB, 20 * GB));
    let (run, measures) = run("ramp of 20 GB/s on a store of 5 GB/s", &simulation);
    let (_, paper) = crate::support::run("  paper", &with(ControlPolicy::Dynims, &simulation));
    assert!(alarm(&run, Alarm::ActuatorLimited).is_some());
    assert!(reached(&run, Level::Emergency), "new bytes are refused");
    assert!(measures.evicted_bytes <= measures.needed_bytes / 100 * 110, "{measures:?}");
    assert!(measures.over_memory_ns <= paper.over_memory_ns);
}

#[test]
fn scenario_03_a_sawtooth_parks_the_store_near_its_trough() {
    // Periods of 200 ms to 60 s, as high as 10 GB/s reach, at most ±20 GB. At most 9 GB of a tooth
    // are above what the node has: a store that parks below more than that is smaller on average
    // than one that follows each tooth.
    for period_ms in [200, 1_000, 4_000, 8_000, 20_000, 60_000] {
        let period = Duration::from_millis(period_ms);
        let height = (10 * GB / 1000 * period_ms / 2).min(40 * GB);
        let low = FULL + (9 * GB).min(height / 2) - height;
        let duration = (period * 12).max(60 * S);
        let demand = Trace::sawtooth(low, low + height, period, duration);
        let mut simulation = tidepool(node(), demand);
        simulation.step = 5 * MS;
        let (run, ours) = run(&format!("sawtooth of {period_ms} ms"), &simulation);
        let (_, paper) = crate::support::run("  paper", &with(ControlPolicy::Dynims, &simulation));
        assert_harmless(&run, &ours);
        assert!(ours.evicted_bytes <= paper.evicted_bytes.max(4 << 20), "{ours:?} {paper:?}");
        if paper.evicted_bytes > MEMORY / 10 {
            assert!(ours.evicted_bytes <= paper.evicted_bytes / 3, "{ours:?}, paper {paper:?}");
        }
        assert!(ours.stored_mean_bytes >= paper.stored_mean_bytes / 100 * 85, "{ours:?}");
        let late = evicted_between(&run, duration / 2, duration);
        assert!(late <= ours.evicted_bytes / 2, "{late} evicted in the second half");
    }
}

#[test]
fn scenario_04_a_leak_is_followed_to_the_guaranteed_part_without_alarm() {
    let mut plant = node();
    plant.stores[0].capacity_min_bytes = 5 * GB;
    let mut simulation = tidepool(plant, Trace::leak(FULL - GB, 20_000_000, 3_000 * S));
    simulation.step = 10 * MS;
    let (run, measures) = run("leak of 20 MB/s", &simulation);
    assert_harmless(&run, &measures);
    assert_frugal(&measures);
    let minimum = alarm(&run, Alarm::AtMinimum).expect("the end is said");
    assert!(stored_at(&run, minimum) <= 5 * GB + GB / 10);
    let early = run.decisions.iter().take_while(|decided| decided.at_ns < 2_700_000_000_000);
    assert!(early.clone().all(|decided| decided.decision.alarms.is_empty()));
    assert!(!reached(&run, Level::Emergency), "a leak is none, and at the minimum none helps");
    assert_eq!(run.samples.last().unwrap().truth.stored_bytes, 5 * GB);
}

#[test]
fn scenario_05_noise_evicts_nothing() {
    let noise = MEMORY / 100;
    let demand = Trace::noise(5, FULL - 2 * noise, noise, 20 * MS, 60 * S);
    let (told, measures) = run("noise of the demand", &tidepool(node(), demand));
    assert_eq!(measures.evicted_bytes, 0);
    assert!(is_quiet(&told));
    let mut plant = node();
    plant.sensor_noise_bytes = noise;
    let simulation = tidepool(plant, Trace::constant(FULL - 2 * noise, 60 * S));
    let (_, measures) = run("noise of the sensors", &simulation);
    assert_eq!(measures.evicted_bytes, 0);
    // At the limit it makes room for the highest peak once, and stays there.
    let demand = Trace::noise(6, FULL, noise, 20 * MS, 120 * S);
    let (at_limit, measures) = run("noise at the limit", &tidepool(node(), demand));
    assert!(measures.evicted_bytes <= 3 * noise, "{measures:?}");
    assert_eq!(evicted_between(&at_limit, 60 * S, 120 * S), 0);
}

#[test]
fn scenario_06_a_store_that_is_not_full_gives_its_first_byte_as_soon() {
    let at = |resident: u64, demand: u64| {
        let mut plant = node();
        plant.stores[0].resident_bytes = resident;
        plant.stores[0].fill_bytes_per_s = 0;
        let simulation = tidepool(plant, Trace::step(demand, demand + 5 * GB, S, 3 * S));
        let (run, measures) = run(&format!("store with {} GB", resident / GB), &simulation);
        assert_harmless(&run, &measures);
        let paper = crate::support::run("  paper", &with(ControlPolicy::Dynims, &simulation)).1;
        (measures.first_byte_back_ns.unwrap(), paper.first_byte_back_ns)
    };
    let (full, _) = at(STORE, FULL);
    let (part, paper) = at(10 * GB, FULL + 50 * GB);
    assert!(part <= full + 10_000_000, "{part} after {full}");
    assert!(paper.is_none_or(|paper| paper > 10 * part), "the paper's law winds down first");
}

#[test]
fn scenario_17_a_storm_of_jobs_never_waits_for_the_store() {
    let storm = Storm {
        jobs_per_minute: 50,
        job_bytes: (GB / 2, 5 * GB),
        life: (2 * S, 20 * S),
        rise: S / 2,
        duration: 120 * S,
    };
    let demand = Trace::constant(30 * GB, S).plus(&Trace::storm(17, &storm));
    let simulation = tidepool(node(), demand);
    let (run, ours) = run("storm of 50 jobs a minute", &simulation);
    let (_, paper) = crate::support::run("  paper", &with(ControlPolicy::Dynims, &simulation));
    assert_harmless(&run, &ours);
    assert!(ours.evicted_bytes <= paper.evicted_bytes, "{ours:?}, paper {paper:?}");
    assert!(ours.stored_mean_bytes >= paper.stored_mean_bytes / 100 * 85, "{ours:?} {paper:?}");
}

#[test]
fn after_a_run_of_linpack_the_store_is_back_within_30_seconds() {
    let bursts = Bursts {
        low_bytes: 30 * GB,
        high_bytes: 110 * GB,
        rate_bytes_per_s: 20 * GB,
        run: 20 * S,
        pause: 60 * S,
        runs: 1,
    };
    let mut simulation = tidepool(node(), Trace::bursts(&bursts));
    let (run, measures) = run("run of Linpack", &simulation);
    assert_harmless(&run, &measures);
    assert_eq!(measures.sign_changes, 0, "growth alone");
    // 47 GB at the default of 1 GiB/s take 44 s: a node of this size affords twice that.
    simulation.parameters.growth_bytes_per_s = 2 * GB;
    let (run, measures) = crate::support::run("  growing by 2 GB/s", &simulation);
    assert_harmless(&run, &measures);
    assert!(measures.regrowth_ns.is_some_and(|ns| ns <= 30_000_000_000), "{measures:?}");
}
