//! Scenarios of stores: slow, failing, late, pinned, fragmented, in large blocks.

use tidepool_control_policy::{Alarm, ControlPolicy, Level, StoreSpeed};
use tidepool_model::simulator::{Fault, FaultKind, PlantConfig, StoreConfig, Trace};

use crate::support::*;

fn second_store(bytes: u64) -> StoreConfig {
    StoreConfig { name: "second".to_owned(), ..StoreConfig::tidepool(bytes) }
}

#[test]
fn scenario_07_bytes_that_come_late_are_asked_for_once() {
    let mut plant = node();
    plant.stores[0].return_delay = 10 * S;
    plant.stores[0].deadline = 30 * S;
    plant.stores[0].speed = StoreSpeed::Slow;
    let demand = Trace::ramp(FULL, FULL + 5 * GB / 2, GB / 4, S, 40 * S);
    let (run, measures) = run("bytes ten seconds late", &tidepool(plant, demand));
    assert_frugal(&measures);
    assert_eq!(measures.sign_changes, 0);
    assert_eq!(alarm(&run, Alarm::StoreFailed), None);
    assert_eq!(measures.over_memory_ns, 0, "the headroom covers them");
}

#[test]
fn scenario_07_other_stores_take_over_from_one_that_fails() {
    for kind in [FaultKind::CommandsLost(0), FaultKind::StoreSilent(0)] {
        let mut plant = node();
        plant.stores = vec![StoreConfig::tidepool(STORE / 2), second_store(STORE / 2)];
        plant.stores[0].deadline = S / 5;
        plant.faults = vec![Fault { from: S / 2, until: 20 * S, kind }];
        let demand = Trace::ramp(FULL, FULL + 5 * GB, 10 * GB, S, 4 * S);
        let (run, measures) = run(&format!("{kind:?}"), &tidepool(plant, demand));
        assert_frugal(&measures);
        assert_eq!(measures.over_memory_ns, 0);
        assert!(alarm(&run, Alarm::StoreFailed).is_some());
        let missing = measures.needed_bytes.saturating_sub(measures.evicted_bytes);
        assert!(missing < 50_000_000, "the other one gave it: {measures:?}");
    }
}

#[test]
fn scenario_07_a_store_at_a_tenth_of_its_rate_is_trusted_less_and_not_asked_for_more() {
    let mut plant = node();
    plant.stores[0].release_bytes_per_s = 10 * GB;
    plant.faults = vec![Fault { from: S, until: 60 * S, kind: FaultKind::ReleaseShare(0, 0.1) }];
    let demand = Trace::ramp(FULL, FULL + 12 * GB, 4 * GB, 2 * S, 20 * S);
    let (run, measures) = run("a tenth of the rate", &tidepool(plant, demand));
    assert!(measures.evicted_bytes <= measures.needed_bytes / 100 * 115, "{measures:?}");
    assert!(alarm(&run, Alarm::ActuatorLimited).is_some());
    assert_eq!(measures.sign_changes, 0);
}

#[test]
fn scenario_18_pinned_bytes_are_never_promised() {
    let mut plant = node();
    plant.stores[0].held_bytes = 20 * GB;
    let demand = Trace::ramp(FULL, FULL + 45 * GB, 10 * GB, S, 8 * S);
    let (run, measures) = run("20 GB pinned", &tidepool(plant, demand));
    assert!(alarm(&run, Alarm::AtMinimum).is_some(), "jobs want more than may be given");
    let lowest = run.decisions.iter().map(|decided| decided.decision.target_bytes).min();
    assert_eq!(lowest, Some(20 * GB), "the target is what can be had");
    assert_eq!(run.samples.last().unwrap().truth.stored_bytes, 20 * GB);
    assert_eq!(measures.sign_changes, 0);
}

#[test]
fn scenario_18_memory_only_bytes_are_written_down_in_time() {
    let mut plant = node();
    plant.stores[0].memory_only_bytes = 30 * GB;
    plant.stores[0].write_back_bytes_per_s = 2 * GB;
    let demand = Trace::ramp(FULL, FULL + 40 * GB, GB, S, 60 * S);
    let (run, measures) = run("30 GB to be written first", &tidepool(plant, demand));
    assert_harmless(&run, &measures);
    assert!(measures.evicted_bytes <= measures.needed_bytes / 100 * 110, "{measures:?}");
}

#[test]
fn scenario_21_without_large_pages_the_rate_is_learned_anew() {
    let mut plant = node();
    plant.faults = vec![Fault { from: S, until: 90 * S, kind: FaultKind::Fragmented(0, 4 * GB) }];
    let demand = Trace::ramp(FULL, FULL + 10 * GB, 2 * GB, 2 * S, 10 * S).plus(&Trace::ramp(
        0,
        10 * GB,
        8 * GB,
        20 * S,
        40 * S,
    ));
    let (run, measures) = run("no large pages", &tidepool(plant, demand));
    assert_eq!(measures.over_memory_ns, 0);
    assert!(measures.evicted_bytes <= measures.needed_bytes / 100 * 115, "{measures:?}");
    let limited = alarm(&run, Alarm::ActuatorLimited).expect("8 GB/s are more than 4 GB/s");
    assert!(limited >= 20 * S, "2 GB/s are not: {limited:?}");
}

#[test]
fn scenario_22_large_blocks_on_a_small_node_make_no_cycle() {
    for block in [64 << 20, 512 << 20] {
        let memory = 8 * GB;
        let mut plant = PlantConfig::node(memory, 4 * GB);
        plant.stores[0].block_bytes = block;
        plant.stores[0].resident_bytes = 4 * GB / block * block;
        plant.stores[0].capacity_bytes = 4 * GB / block * block;
        let demand = Trace::ramp(3 * GB, 5 * GB, GB, S, 60 * S);
        let mut simulation = tidepool(plant, demand);
        simulation.parameters.headroom_bytes = memory / 20;
        let (run, measures) = run(&format!("blocks of {} MiB", block >> 20), &simulation);
        // A ramp of 1 GB/s is foreseen by two ticks and the noise of a third.
        let most = measures.needed_bytes + block + GB / 1000 * 30;
        assert!(measures.evicted_bytes <= most, "{measures:?}");
        assert_eq!(measures.over_memory_ns, 0);
        assert_eq!(evicted_between(&run, 5 * S, 61 * S), 0, "no cycle");
        let last = run.samples.last().unwrap();
        assert_eq!(last.truth.stored_bytes % block, 0, "whole blocks");
        let used = last.truth.demand_bytes + last.truth.stored_bytes;
        assert!(used <= used_target(&simulation), "rounded toward the job");
        let _ = crate::support::run("  paper", &with(ControlPolicy::Dynims, &simulation));
    }
}

#[test]
fn an_emergency_ends_when_its_cause_does() {
    let mut plant = node();
    plant.stores[0] = plant.stores[0].clone().in_small_pages();
    plant.hidden_share = 0.0;
    let demand = Trace::ramp(FULL, FULL + 10 * GB, 30 * GB, S, 15 * S);
    let (run, _) = run("emergency", &tidepool(plant, demand));
    assert!(reached(&run, Level::Emergency));
    let last = run.decisions.last().unwrap();
    assert_eq!(last.decision.level, Level::Normal);
}
