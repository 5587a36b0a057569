//! Scenarios of a second store that keeps its bytes, does not obey, or is gone for good: the own
//! store comes back all the same once the node is calm.

use std::time::Duration;

use tidepool_control_policy::Alarm;
use tidepool_model::simulator::{
    Decided, Fault, FaultKind, PlantConfig, Run, Simulation, StoreConfig, Trace, TracePoint,
    simulate, simulate_observed,
};

use crate::support::*;

const OWN: u64 = 5_000 * (4 << 20);
const OTHER: u64 = 3_600 * (4 << 20);
const CALM: Duration = Duration::from_secs(7);
/// Growth of the own store alone takes about 10 s, the hold before it 2 s.
const BACK: Duration = Duration::from_secs(20);
const FOR_GOOD: Duration = Duration::from_secs(1_000);

/// A node whose jobs take everything for 5 s, with the own store and another one.
fn pressed(other: StoreConfig, faults: Vec<Fault>) -> Simulation {
    let mut plant = PlantConfig { sensor_noise_bytes: 500_000, ..PlantConfig::node(MEMORY, OWN) };
    plant.stores.push(StoreConfig { name: "other".to_owned(), ..other });
    plant.faults = faults;
    let point = |at: Duration, demand_bytes| TracePoint { at_ns: ns(at), demand_bytes };
    let (calm, full) = (40 * GB, MEMORY - 10 * GB);
    let demand = vec![
        point(Duration::ZERO, calm),
        point(2 * S, calm),
        point(3 * S, full),
        point(CALM, full),
        point(CALM + MS, calm),
        point(CALM + 90 * S, calm),
    ];
    tidepool(plant, Trace::new(demand).unwrap())
}

fn other() -> StoreConfig {
    StoreConfig {
        capacity_min_bytes: 16 << 20,
        capacity_max_bytes: OTHER / 2 * 3,
        deadline: S / 5,
        lease: None,
        ..StoreConfig::tidepool(OTHER)
    }
}

/// Bytes in the own store after each step; its number in the plant is 0.
fn own(simulation: &Simulation) -> (Run, Vec<(Duration, u64)>) {
    let mut seen = Vec::new();
    let run = simulate_observed(simulation, &mut |snapshot, _, _| {
        let own = &snapshot.stores[0];
        seen.push((Duration::from_nanos(snapshot.at_ns), own.resident_bytes));
    });
    (run, seen)
}

/// The own store is back within a bounded time, stays, and the target rests.
fn assert_back(name: &str, simulation: &Simulation) {
    let (run, seen) = own(simulation);
    let least = OWN / 10 * 9;
    let lowest = seen.iter().filter(|(at, _)| *at < CALM + S).map(|(_, bytes)| *bytes).min();
    assert!(lowest.is_some_and(|bytes| bytes < OWN / 2), "{name}: pressed: {lowest:?}");
    let back = seen.iter().find(|(at, bytes)| *at > CALM && *bytes >= least);
    let back = back.unwrap_or_else(|| panic!("{name}: never back, {:?} at the end", seen.last()));
    println!("{name}: back {:?} after the jobs left", back.0 - CALM);
    assert!(back.0 < CALM + BACK, "{name}: back only at {:?}", back.0);
    let lost = seen.iter().find(|(at, bytes)| *at > back.0 && *bytes < least);
    assert_eq!(lost, None, "{name}: lost again");
    let late: Vec<_> = run.decisions.iter().filter(|d| d.at_ns > ns(CALM + 2 * BACK)).collect();
    let moved = |pair: &&[&Decided]| pair[0].decision.target_bytes != pair[1].decision.target_bytes;
    let moves = late.windows(2).filter(moved).count();
    assert!(moves < 100, "{name}: the target moved {moves} times in a minute of calm");
}

fn ns(time: Duration) -> u64 {
    time.as_nanos() as u64
}

#[test]
fn a_store_that_keeps_its_bytes_does_not_keep_the_own_store_down() {
    let keeps = |kind| vec![Fault { from: S, until: FOR_GOOD, kind }];
    assert_back("keeps its bytes", &pressed(other(), keeps(FaultKind::ReleaseShare(1, 0.0))));
    assert_back("does nothing", &pressed(other(), keeps(FaultKind::CommandsLost(1))));
}

#[test]
fn a_store_that_does_not_take_its_raise_does_not_keep_the_own_store_down() {
    // It obeyed under pressure, and no command reaches it since: it has missed nothing.
    let kind = FaultKind::CommandsLost(1);
    let fault = Fault { from: CALM - S, until: FOR_GOOD, kind };
    assert_back("is not raised", &pressed(other(), vec![fault]));
    let slow = StoreConfig { actuation_delay: 15 * S, deadline: 60 * S, ..other() };
    assert_back("is slow", &pressed(slow, Vec::new()));
}

#[test]
fn a_store_that_is_gone_for_good_does_not_keep_the_own_store_down() {
    for from in [S, 5 * S, CALM + 5 * S] {
        let fault = Fault { from, until: FOR_GOOD, kind: FaultKind::Gone(1) };
        assert_back(&format!("gone at {from:?}"), &pressed(other(), vec![fault]));
    }
}

#[test]
fn growth_begins_where_somebody_else_lowered_one_of_two_stores() {
    let mut simulation = pressed(other(), Vec::new());
    simulation.demand = Trace::constant(20 * GB, 20 * S);
    simulation.duration = 20 * S;
    simulation.foreign = vec![(10 * S, 0, 0)];
    let run = simulate(&simulation);
    let before = stored_at(&run, 10 * S - MS);
    let after = stored_at(&run, 10 * S + 200 * MS);
    assert!(before >= OWN + OTHER, "{before}");
    assert!(after < before - OWN / 2, "it grows slowly from there: {after} of {before}");
}

#[test]
fn an_empty_store_keeps_its_capacity_through_a_moment_without_sensors() {
    let mut plant = PlantConfig::node(MEMORY, OWN);
    plant.stores[0].resident_bytes = 0;
    plant.stores[0].fill_bytes_per_s = 0;
    let kind = FaultKind::AvailableUnreadable;
    plant.faults = vec![Fault { from: 2 * S, until: 2 * S + 500 * MS, kind }];
    let run = simulate(&tidepool(plant, Trace::constant(20 * GB, 5 * S)));
    assert!(alarm(&run, Alarm::SensorStale).is_some(), "it was noticed");
    let lowest = run.samples.iter().map(|sample| sample.capacity_bytes).min();
    assert_eq!(lowest, Some(OWN));
}
