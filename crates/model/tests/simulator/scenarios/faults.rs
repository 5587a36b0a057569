//! Scenarios of broken sensors and broken control: frozen readings, hidden pages, dead controllers,
//! rivals, late messages.

use std::time::Duration;

use tidepool_control_policy::{Alarm, ControlPolicy, Level, Parameters};
use tidepool_model::simulator::{Absence, Fault, FaultKind, Simulation, Trace};

use crate::support::*;

fn faulty(kind: FaultKind, until: Duration, demand: Trace) -> Simulation {
    let mut plant = node();
    plant.stores[0].capacity_min_bytes = 10 * GB;
    plant.faults = vec![Fault { from: 2 * S, until, kind }];
    tidepool(plant, demand)
}

#[test]
fn scenario_11_an_unreadable_sensor_ends_in_the_guaranteed_part_and_recovers() {
    let demand = Trace::constant(30 * GB, 90 * S);
    let simulation = faulty(FaultKind::AvailableUnreadable, 5 * S, demand);
    let (run, _) = run("unreadable sensor", &simulation);
    let safe = first(&run, 2 * S, |run, at| run.decisions[at].decision.level == Level::Safe);
    assert!(safe.is_some_and(|at| at <= 3 * S), "{safe:?}");
    assert!(alarm(&run, Alarm::SensorStale).is_some_and(|at| at <= 3 * S));
    assert_eq!(stored_at(&run, 3 * S + 700 * MS), 10 * GB);
    assert!(run.samples.last().unwrap().truth.stored_bytes >= STORE / 10 * 9, "it recovers");
    let short =
        faulty(FaultKind::AvailableUnreadable, 2 * S + 500 * MS, Trace::constant(30 * GB, 5 * S));
    let (_, measures) = crate::support::run("unreadable for half a second", &short);
    assert_eq!(measures.evicted_bytes, 0, "a short gap costs nothing");
}

#[test]
fn scenario_11_a_frozen_sensor_hides_no_burst() {
    let demand = Trace::ramp(FULL, FULL + 20 * GB, 10 * GB, 3 * S, 10 * S);
    let (run, measures) = run("frozen sensor", &faulty(FaultKind::AvailableFrozen, 8 * S, demand));
    assert_eq!(measures.over_memory_ns, 0, "the second estimate sees it");
    let stale = alarm(&run, Alarm::SensorStale);
    let differs = alarm(&run, Alarm::SensorDisagreement);
    let said = stale.into_iter().chain(differs).min();
    assert!(said.is_some_and(|at| at <= 4 * S), "{said:?}");
    let last = run.decisions.last().unwrap();
    assert_eq!(last.decision.level, Level::Normal, "it recovers");
}

#[test]
fn scenario_11_a_sensor_that_says_ten_times_as_much_is_not_believed() {
    for times in [10.0, 2.0, 0.1] {
        let demand = Trace::ramp(FULL, FULL + 20 * GB, 10 * GB, 4 * S, 12 * S);
        let simulation = faulty(FaultKind::AvailableTimes(times), 10 * S, demand);
        let (run, measures) = run(&format!("available times {times}"), &simulation);
        assert_eq!(measures.over_memory_ns, 0);
        let said = [Alarm::SensorStale, Alarm::SensorDisagreement].map(|kind| alarm(&run, kind));
        let said = said.into_iter().flatten().min();
        if times > 1.0 {
            assert!(said.is_some_and(|at| at <= 5 * S), "{said:?}");
        }
    }
}

#[test]
fn scenario_11_what_is_absent_or_jumps_changes_nothing_else() {
    let demand = Trace::ramp(FULL, FULL + 20 * GB, 10 * GB, 3 * S, 8 * S);
    let kinds = [
        FaultKind::PressureAbsent,
        FaultKind::UsedKindsUnreadable,
        FaultKind::ClockAhead(3_600 * S),
    ];
    for kind in kinds {
        let (run, measures) = run(&format!("{kind:?}"), &faulty(kind, 6 * S, demand.clone()));
        assert_harmless(&run, &measures);
        assert_frugal(&measures);
        assert_eq!(measures.sign_changes, 0);
    }
}

#[test]
fn scenario_12_hidden_pages_cause_no_second_eviction() {
    for hidden_read in [None, Some(S / 10)] {
        let mut plant = node();
        plant.stores[0] = plant.stores[0].clone().in_small_pages();
        plant.hidden_read = hidden_read;
        let demand = Trace::ramp(FULL, FULL + 10 * GB, 2 * GB, S, 20 * S);
        let name = format!("4 KiB pages, lists read each {hidden_read:?}");
        let (_, measures) = run(&name, &tidepool(plant, demand));
        assert_frugal(&measures);
        assert_eq!(measures.sign_changes, 0);
    }
}

#[test]
fn scenario_12_after_the_exit_of_many_processes_growth_is_not_missed() {
    let mut plant = node();
    plant.hidden_read = Some(S / 10);
    let demand = Trace::step(FULL + 30 * GB, FULL, 10 * S, 80 * S);
    plant.stores[0].resident_bytes = STORE - 30 * GB;
    plant.stores[0].capacity_bytes = STORE - 30 * GB;
    let (run, _) = run("exit of many processes", &tidepool(plant, demand));
    let last = run.samples.last().unwrap().truth.stored_bytes;
    assert!(last + MEMORY / 100 >= STORE, "{last}");
}

#[test]
fn scenario_13_without_a_controller_the_store_falls_and_a_restart_is_no_jump() {
    for killed in [true, false] {
        let mut plant = node();
        plant.stores[0].capacity_min_bytes = 10 * GB;
        let demand = Trace::ramp(FULL, FULL + 30 * GB, 20 * GB, 3 * S, 20 * S);
        let mut simulation = tidepool(plant, demand);
        simulation.absences = vec![Absence { from: 3 * S + 200 * MS, until: 13 * S, killed }];
        let (run, measures) = run(&format!("killed: {killed}"), &simulation);
        assert_eq!(stored_at(&run, 5 * S), 10 * GB, "the watchdog took over");
        assert_eq!(evicted_between(&run, 13 * S, 21 * S), 0, "nothing is evicted twice");
        assert_eq!(measures.sign_changes, 0);
        let growth = |at: Duration| stored_at(&run, at + S) - stored_at(&run, at);
        let rate = simulation.parameters.growth_bytes_per_s;
        assert!((13..19).all(|second| growth(second * S) < rate * 5 / 4), "no jump");
    }
}

#[test]
fn scenario_14_two_controllers_without_a_fence_make_no_cycle() {
    let demand = Trace::ramp(FULL, FULL + 20 * GB, 10 * GB, 3 * S, 30 * S);
    let alone = tidepool(node(), demand);
    let mut both = alone.clone();
    both.rival = Some((parameters(ControlPolicy::Tidepool), 5 * MS));
    let (run, measures) = run("two controllers", &both);
    // A fence keeps a second one away. Without it, each takes the other's steps for the store's,
    // which costs bytes, not memory of jobs.
    assert_harmless(&run, &measures);
    assert_settled(&measures);
    assert!(measures.evicted_bytes <= 2 * measures.needed_bytes, "{measures:?}");
}

#[test]
fn scenario_14_a_capacity_set_by_somebody_else_makes_no_fight() {
    let demand = Trace::constant(40 * GB, 60 * S);
    let mut simulation = tidepool(node(), demand);
    simulation.foreign = vec![(5 * S, 0, 30 * GB), (6 * S, 0, 80 * GB)];
    let (run, measures) = run("set by somebody else", &simulation);
    assert_harmless(&run, &measures);
    assert!(measures.evicted_bytes <= 31 * GB, "{measures:?}");
    assert!(measures.commands < 6_500 && run.samples.last().unwrap().capacity_bytes <= STORE);
    assert_eq!(evicted_between(&run, 10 * S, 61 * S), 0);
}

#[test]
fn scenario_20_messages_from_afar_only_change_parameters() {
    let demand = Trace::ramp(FULL, FULL + 20 * GB, 10 * GB, 5 * S, 40 * S);
    let alone = tidepool(node(), demand);
    let (lost, _) = run("cluster plane lost", &alone);
    let mut repeated = alone.clone();
    // The same settings, repeated and late, change nothing.
    repeated.changes = vec![(4 * S, alone.parameters.clone()), (9 * S, alone.parameters.clone())];
    let (again, _) = run("messages repeated", &repeated);
    assert_eq!(lost.decisions, again.decisions);
    // A raised headroom is followed, and its end as well.
    let raised = Parameters { headroom_bytes: 10 * GB, ..alone.parameters.clone() };
    let mut capped = alone.clone();
    capped.changes = vec![(2 * S, raised), (10 * S, alone.parameters.clone())];
    let (run, measures) = run("headroom raised for a time", &capped);
    assert_harmless(&run, &measures);
    assert!(stored_at(&run, 3 * S) <= STORE - 3 * GB);
    assert_eq!(measures.sign_changes, 0);
}
