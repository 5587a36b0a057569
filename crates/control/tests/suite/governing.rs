//! Tests of the controller on a simulated node, with sensors, clocks and stores that misbehave.

use std::sync::Arc;
use std::time::Duration;

use tidepool_control::{Priority, start};
use tidepool_control_policy::{
    Alarm, ControlPolicy, INTERVAL_MAX_MS, Level, Parameters, Reason, StoreSpeed,
};
use tidepool_proto::ErrorKind;

use crate::fakes::{FakeNode, FakeStore, GIB, MILLISECOND, wait_until};

/// A target that is the sum of the stores' upper bounds: the test sets it directly.
fn fixed() -> Parameters {
    Parameters { policy: ControlPolicy::Static, ..Parameters::default() }
}

fn asks(store: &FakeStore, bytes: u64) {
    store.change(|state| state.capacity_max_bytes = bytes);
}

#[test]
fn a_burst_takes_memory_from_the_store_and_gives_it_back_later() {
    let store = FakeStore::full("store", 40 * GIB);
    let mut node = FakeNode::new(std::slice::from_ref(&store), Parameters::default());
    node.tick_until("a calm start", |report| report.ticks > 300);
    let burst_ns = node.at_ns;
    node.memory.lock().jobs_bytes = 50 * GIB;
    let report = node.tick_until("room for the jobs", |_| store.resident_bytes() < 14 * GIB);
    assert!(report.recent.iter().any(|entry| entry.words().contains("jobs")), "{report:?}");
    let report =
        node.tick_until("the confirmation", |report| report.stores[0].freed_bytes > 26 * GIB);
    // Commands of the last readings may still be on their way.
    node.tick_until("calm", |other| other.ticks > report.ticks + 50);
    node.memory.lock().jobs_bytes = 10 * GIB;
    let before = store.capacity_bytes();
    let grown = node.tick_until("growth", |_| store.capacity_bytes() > before);
    let held_ns = node.at_ns - burst_ns;
    assert!(held_ns >= 2_000 * MILLISECOND, "growth waits for the hold: {held_ns} ns");
    assert_eq!(grown.decision.alarms, []);
}

#[test]
fn without_sensors_the_store_falls_to_its_guaranteed_part_and_comes_back() {
    let store = FakeStore::full("store", 40 * GIB);
    store.change(|state| state.capacity_min_bytes = 2 * GIB);
    let mut node = FakeNode::new(std::slice::from_ref(&store), Parameters::default());
    node.tick_until("a calm start", |report| report.ticks > 100);
    node.memory.lock().readable = false;
    let blind_ns = node.at_ns;
    let report = node.tick_until("safe mode", |report| report.decision.level == Level::Safe);
    assert_eq!(report.snapshot.available_bytes, None, "unreadable is not zero");
    assert!(report.decision.alarms.contains(&Alarm::SensorStale));
    node.tick_until("the guaranteed part", |_| store.resident_bytes() == 2 * GIB);
    assert!(node.at_ns - blind_ns > 500 * MILLISECOND, "a short gap is no reason");
    node.memory.lock().readable = true;
    node.tick_until("normal mode", |report| report.decision.level == Level::Normal);
    node.tick_until("growth", |_| store.capacity_bytes() > 2 * GIB);
}

#[test]
fn one_command_is_under_way_and_only_the_latest_waits() {
    let store = FakeStore::full("store", 40 * GIB);
    let mut node = FakeNode::new(std::slice::from_ref(&store), fixed());
    node.tick();
    assert!(store.asked().is_empty(), "nothing to change, nothing to ask");
    store.close_gate();
    asks(&store, 30 * GIB);
    let report = node.tick();
    wait_until("the command", || store.asked() == [30 * GIB]);
    assert_eq!(report.snapshot.stores[0].outstanding_bytes, 0, "asked for after the reading");
    let report = node.tick();
    assert_eq!(report.snapshot.stores[0].outstanding_bytes, 10 * GIB);
    for bytes in [28, 26, 24] {
        asks(&store, bytes * GIB);
        for _ in 0..3 {
            node.tick();
        }
    }
    assert_eq!(store.asked(), [30 * GIB], "one at a time");
    assert_eq!(node.tick().snapshot.stores[0].outstanding_bytes, 16 * GIB);
    store.open_gate();
    node.tick_until("the last capacity", |_| store.resident_bytes() == 24 * GIB);
    assert_eq!(store.asked(), [30 * GIB, 24 * GIB]);
    let report = node.tick_until("the confirmation", |report| {
        report.snapshot.stores[0].outstanding_bytes == 0 && report.stores[0].freed_bytes == 16 * GIB
    });
    assert!(report.snapshot.stores[0].release_bytes_per_s > 0, "the rate is learned");
}

#[test]
fn a_late_answer_costs_trust_and_is_not_asked_for_again() {
    let store = FakeStore::full("store", 40 * GIB);
    let mut node = FakeNode::new(std::slice::from_ref(&store), fixed());
    asks(&store, 30 * GIB);
    let report = node.tick_until("a release", |report| report.stores[0].freed_bytes > 0);
    let trusted = report.snapshot.stores[0].release_bytes_per_s;
    assert_eq!(trusted, 100 * GIB);
    store.close_gate();
    asks(&store, 20 * GIB);
    node.tick();
    wait_until("the command", || store.asked().len() == 2);
    let report = node.tick_until("the deadline", |report| report.snapshot.stores[0].failed);
    assert_eq!(report.stores[0].late_commands, 1);
    let report = node.tick_until("much later", |other| other.ticks > report.ticks + 1000);
    assert_eq!(report.stores[0].late_commands, 1);
    assert_eq!(report.snapshot.stores[0].release_bytes_per_s, trusted / 2);
    assert_eq!(store.asked().len(), 2, "no repetition");
    store.open_gate();
    let report = node.tick_until("trust", |report| !report.snapshot.stores[0].failed);
    assert_eq!(report.snapshot.stores[0].resident_bytes, 20 * GIB);
    node.tick_until("calm", |other| other.ticks > report.ticks + 50);
    assert_eq!(store.asked(), [30 * GIB, 20 * GIB], "none waited behind the late one");
}

#[test]
fn a_dead_store_keeps_its_bytes_and_the_other_takes_over() {
    let stores = [FakeStore::full("first", 20 * GIB), FakeStore::full("second", 20 * GIB)];
    let mut node = FakeNode::new(&stores, Parameters::default());
    node.tick_until("a calm start", |report| report.ticks > 100);
    stores[0].set_dead(true);
    let report = node.tick();
    assert!(report.snapshot.stores[0].failed);
    assert_eq!(report.snapshot.stores[0].resident_bytes, 20 * GIB, "not zero");
    assert!(report.decision.alarms.contains(&Alarm::StoreFailed));
    assert!(report.stores[0].last_error.as_ref().unwrap().contains("it is dead"));
    node.memory.lock().jobs_bytes = 35 * GIB;
    node.tick_until("the second's memory", |_| stores[1].resident_bytes() < 9 * GIB);
    let asked = stores[0].asked().len();
    let ticks = node.governor.report().ticks;
    node.tick_until("two seconds", |report| report.ticks == ticks + 200);
    assert!(stores[0].asked().len() <= asked + 3, "a dead store is not hammered");
    stores[0].set_dead(false);
    node.tick_until("its return", |report| report.decision.alarms.is_empty());
}

#[test]
fn a_slow_store_that_fails_is_asked_again_with_long_pauses() {
    let store = FakeStore::full("store", 40 * GIB);
    store.change(|state| state.speed = StoreSpeed::Slow);
    let mut node = FakeNode::new(std::slice::from_ref(&store), fixed());
    node.tick();
    store.refuse_commands(true);
    asks(&store, 30 * GIB);
    node.tick_until("the first refusal", |report| report.stores[0].failed_commands == 1);
    let begun_ns = node.at_ns;
    node.tick_until("the second", |report| report.stores[0].failed_commands == 2);
    assert!(node.at_ns - begun_ns > 10_000 * MILLISECOND, "{} ns", node.at_ns - begun_ns);
    store.refuse_commands(false);
    node.tick_until("its memory", |_| store.resident_bytes() == 30 * GIB);
}

#[test]
fn a_fast_store_that_refused_once_is_asked_again_at_once() {
    let store = FakeStore::full("store", 40 * GIB);
    let mut node = FakeNode::new(std::slice::from_ref(&store), fixed());
    node.tick();
    store.refuse_commands(true);
    asks(&store, 30 * GIB);
    node.tick_until("the first refusal", |report| report.stores[0].failed_commands >= 1);
    store.refuse_commands(false);
    let begun_ns = node.at_ns;
    node.tick_until("its memory", |_| store.resident_bytes() == 30 * GIB);
    // The fake clock ticks while the command's thread runs, so this is generous; once a second is
    // what a store that does not answer at all gets.
    assert!(node.at_ns - begun_ns < 500 * MILLISECOND, "{} ns", node.at_ns - begun_ns);
}

#[test]
fn a_store_that_is_dead_at_the_start_is_no_reason_to_fail() {
    let store = FakeStore::full("store", 20 * GIB);
    store.set_dead(true);
    let mut node = FakeNode::new(std::slice::from_ref(&store), Parameters::default());
    let report = node.tick();
    assert!(report.snapshot.stores[0].failed);
    assert_eq!(report.snapshot.stores[0].name, "fake");
    store.set_dead(false);
    let report = node.tick();
    assert_eq!(report.snapshot.stores[0].resident_bytes, 20 * GIB);
}

#[test]
fn a_capacity_that_something_else_sets_is_noticed_and_set_again() {
    let store = FakeStore::full("store", 40 * GIB);
    let mut node = FakeNode::new(std::slice::from_ref(&store), fixed());
    asks(&store, 30 * GIB);
    node.tick_until("the command's end", |report| report.stores[0].freed_bytes > 0);
    let quiet = node.tick();
    assert_eq!(quiet.stores[0].foreign_changes, 0);
    store.change(|state| state.capacity_bytes = 35 * GIB);
    node.tick();
    let report = node.tick_until("our capacity", |_| store.capacity_bytes() == 30 * GIB);
    assert_eq!(report.stores[0].foreign_changes, 1);
    let report = node.tick_until("calm", |other| other.ticks > report.ticks + 50);
    assert_eq!(report.stores[0].foreign_changes, 1, "our own command is not foreign");
}

#[test]
fn a_clock_that_jumps_makes_no_command_and_no_late_store() {
    let store = FakeStore::full("store", 40 * GIB);
    let mut node = FakeNode::new(std::slice::from_ref(&store), Parameters::default());
    node.tick_until("a calm start", |report| report.ticks > 100);
    let (ticks_ns, asked) = (node.at_ns, store.asked());
    let next = node.governor.tick(ticks_ns / 2);
    assert!(next > ticks_ns, "back in time counts as now");
    assert_eq!(node.governor.report().snapshot.at_ns, ticks_ns);
    node.at_ns += 3_600_000 * MILLISECOND;
    let report = node.tick();
    assert_eq!((report.late_ticks, report.stores[0].late_commands), (1, 0));
    assert_eq!(report.decision.level, Level::Normal, "{report:?}");
    assert_eq!(store.asked(), asked);

    // Stopped for an hour while a command was under way: the store had no hour either.
    store.close_gate();
    node.memory.lock().jobs_bytes = 50 * GIB;
    node.tick_until("the command", |_| store.asked().len() > asked.len());
    node.tick();
    node.at_ns += 3_600_000 * MILLISECOND;
    assert_eq!(node.tick().stores[0].late_commands, 0);
    store.open_gate();
}

#[test]
fn a_calm_node_is_looked_at_less_often() {
    let store = FakeStore::full("store", 40 * GIB);
    let mut node = FakeNode::new(std::slice::from_ref(&store), fixed());
    assert_eq!(node.next_ms(), INTERVAL_MAX_MS, "a fixed size needs no decision");
    store.close_gate();
    asks(&store, 30 * GIB);
    node.next_ms();
    assert_eq!(node.next_ms(), 10, "a command is under way");
    store.open_gate();
    let store = FakeStore::full("store", 40 * GIB);
    let mut node = FakeNode::new(std::slice::from_ref(&store), Parameters::default());
    node.tick_until("a calm start", |report| report.ticks > 10);
    assert_eq!(node.next_ms(), INTERVAL_MAX_MS, "jobs are far from the threshold");
    node.memory.lock().jobs_bytes += GIB;
    assert_eq!(node.next_ms(), 10, "they move");
}

#[test]
fn no_rest_outlasts_the_lease_of_a_store() {
    let store = FakeStore::full("store", GIB);
    let mut node = FakeNode::new(std::slice::from_ref(&store), fixed());
    assert_eq!(node.next_ms(), INTERVAL_MAX_MS);
    store.set_lease(Duration::from_millis(400));
    assert_eq!(node.next_ms(), 100);
    store.set_lease(Duration::from_millis(20));
    assert_eq!(node.next_ms(), 10, "the interval is the least");
}

#[test]
fn parameters_change_while_it_runs() {
    let store = FakeStore::full("store", 40 * GIB);
    let node = FakeNode::new(std::slice::from_ref(&store), Parameters::default());
    let handle = start(node.governor, Priority::Ordinary).unwrap();
    wait_until("decisions", || handle.report().ticks > 3);
    let refused = handle.set_parameters(Parameters { interval_ms: 60_000, ..fixed() }).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    assert!(refused.to_string().contains("60000 ms is not between 1 ms and 10000 ms"), "{refused}");
    assert_eq!(handle.parameters(), Parameters::default(), "those before stay");
    handle.set_parameters(Parameters { interval_ms: 10_000, ..fixed() }).unwrap();
    wait_until("the other policy", || handle.report().decision.reason == Reason::Fixed);
    let ticks = handle.report().ticks;
    asks(&store, 10 * GIB);
    handle.wake();
    wait_until("the command", || store.resident_bytes() == 10 * GIB);
    assert!(handle.report().ticks > ticks, "a wake-up decides at once");
    assert_eq!(handle.parameters().policy, ControlPolicy::Static);
    drop(handle);
}

#[test]
fn a_hanging_store_does_not_keep_the_controller_from_ending() {
    let store = FakeStore::full("store", 40 * GIB);
    let node = FakeNode::new(std::slice::from_ref(&store), fixed());
    let handle = start(node.governor, Priority::Ordinary).unwrap();
    store.close_gate();
    asks(&store, 10 * GIB);
    wait_until("the command", || !store.asked().is_empty());
    let ticks = handle.report().ticks;
    wait_until("decisions beside it", || handle.report().ticks > ticks + 3);
    drop(handle);
    store.open_gate();
    let stores = Arc::strong_count(&store);
    wait_until("the thread's end", || Arc::strong_count(&store) < stores.max(2));
}
