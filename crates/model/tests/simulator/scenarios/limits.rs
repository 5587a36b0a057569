//! Scenarios of memory that is not simply the node's: control groups, page cache, swap, NUMA nodes,
//! a total that changes, and other guards of memory.

use std::time::Duration;

use tidepool_control_policy::{Alarm, Reason};
use tidepool_model::simulator::{
    LimitConfig, MemoryNodeConfig, Simulation, StoreConfig, Trace, simulate_observed,
};

use crate::support::*;

fn limit(limit_bytes: u64, demand: Trace, holds_store: bool) -> LimitConfig {
    LimitConfig { name: "/job".to_owned(), limit_bytes, demand, holds_store, outside: Vec::new() }
}

#[test]
fn scenario_08_the_nearest_limit_counts() {
    let inside = Trace::ramp(5 * GB, 25 * GB, 10 * GB, S, 4 * S);
    let mut plant = node();
    plant.limits = vec![limit(70 * GB, inside.clone(), true)];
    let simulation = tidepool(plant, inside);
    let (run, measures) = run("store within a group of 70 GB", &simulation);
    let last = run.samples.last().unwrap().truth.stored_bytes;
    assert!((40 * GB..=45 * GB).contains(&last), "{last}");
    assert!(measures.evicted_bytes <= 20 * GB, "{measures:?}");
    let reason = first(&run, S, |run, at| run.decisions[at].decision.reason == Reason::Limit);
    assert!(reason.is_some());
}

#[test]
fn scenario_08_a_job_at_its_own_limit_evicts_nothing() {
    let job = Trace::ramp(5 * GB, 40 * GB, 10 * GB, S, 6 * S);
    let mut plant = node();
    plant.limits = vec![limit(30 * GB, job, false)];
    // The group keeps the job at its limit, so the node sees no more than that.
    let (_, measures) = run(
        "job at its own limit",
        &tidepool(plant, Trace::ramp(5 * GB, 30 * GB, 10 * GB, S, 6 * S)),
    );
    assert_eq!(measures.evicted_bytes, 0);
}

/// A store of 20 GB in a group of 40 GB, and one of 60 GB that is charged elsewhere, on a node with
/// room for both.
fn half_outside(inside: Trace) -> Simulation {
    let mut plant = node();
    let size = 20 * GB / (4 << 20) * (4 << 20);
    plant.stores[0] = StoreConfig::tidepool(size);
    plant.stores.push(StoreConfig { name: "outside".to_owned(), ..StoreConfig::tidepool(STORE) });
    plant.limits = vec![LimitConfig { outside: vec![1], ..limit(40 * GB, inside.clone(), true) }];
    tidepool(plant, inside)
}

#[test]
fn scenario_08_a_store_outside_of_the_group_is_not_cut_for_its_limit() {
    let (run, measures) =
        run("a larger store outside", &half_outside(Trace::constant(5 * GB, 5 * S)));
    assert_eq!(measures.evicted_bytes, 0);
    assert!(is_quiet(&run), "nobody lacks anything");
}

#[test]
fn scenario_08_what_a_group_lacks_is_asked_of_the_stores_in_it() {
    let up = Trace::ramp(5 * GB, 30 * GB, 10 * GB, S, 8 * S);
    let simulation = half_outside(up);
    let mut outside = Vec::new();
    let run = simulate_observed(&simulation, &mut |snapshot, _, _| {
        outside.push(snapshot.stores[1].resident_bytes);
    });
    assert!(outside.iter().all(|bytes| *bytes == STORE), "it has nothing to do with it");
    let inside = run.samples.last().unwrap().truth.stored_bytes - STORE;
    assert!((7 * GB..=8 * GB).contains(&inside), "{inside}");
    let most = run.samples.iter().map(|sample| {
        simulation.demand.demand_bytes(sample.at_ns) + sample.truth.stored_bytes - STORE
    });
    assert!(most.max().unwrap() <= 40 * GB, "the group would have killed");
    let reason = first(&run, S, |run, at| run.decisions[at].decision.reason == Reason::Limit);
    assert!(reason.is_some());
}

#[test]
fn scenario_08_the_store_in_the_group_grows_again_after_the_hold() {
    let down = Trace::ramp(30 * GB, 5 * GB, 10 * GB, 2 * S, 60 * S);
    let (run, measures) = run("a job in the group ends", &half_outside(down));
    assert!(stored_at(&run, 2 * S) <= STORE + 8 * GB, "{measures:?}");
    assert!(stored_at(&run, 60 * S) >= STORE + 19 * GB, "{measures:?}");
    assert_eq!(measures.sign_changes, 0);
}

#[test]
fn scenario_08_a_group_that_its_stores_cannot_relieve_is_said() {
    let (run, _) = run(
        "a job as large as its group",
        &half_outside(Trace::ramp(5 * GB, 39 * GB, 10 * GB, S, 6 * S)),
    );
    assert!(alarm(&run, Alarm::AtMinimum).is_some());
    assert!(stored_at(&run, 6 * S) >= STORE, "the other store is no help");
}

#[test]
fn scenario_09_a_neighbour_that_streams_files_neither_drains_the_store_nor_starves() {
    let mut plant = node();
    plant.page_cache = Some((Trace::constant(200 * GB, S), 2 * GB));
    let (_, measures) =
        run("streaming neighbour", &tidepool(plant.clone(), Trace::constant(40 * GB, 30 * S)));
    assert_eq!(measures.evicted_bytes, 0, "clean pages are free");
    plant.stores[0].resident_bytes = 20 * GB;
    plant.stores[0].capacity_bytes = 20 * GB;
    let simulation = tidepool(plant, Trace::constant(40 * GB, 60 * S));
    let (grown, _) = run("growth beside it", &simulation);
    let braked = first(&grown, 2 * S, |run, at| run.decisions[at].decision.reason == Reason::Brake);
    assert!(braked.is_some(), "files that are read again stop growth");
    // The page cache is full after about 20 s.
    assert_eq!(stored_at(&grown, 30 * S), stored_at(&grown, 61 * S));
}

#[test]
fn scenario_09_dirty_pages_count_as_used_until_they_are_written() {
    let mut plant = node();
    plant.dirty = Some(Trace::ramp(0, 15 * GB, 5 * GB, S, 10 * S).plus(&Trace::constant(0, S)));
    let mut simulation = tidepool(plant, Trace::constant(FULL, 10 * S));
    simulation.demand = Trace::constant(FULL, 10 * S);
    let (run, measures) = run("flood of dirty pages", &simulation);
    assert_harmless(&run, &measures);
    assert!(stored_at(&run, 6 * S) <= STORE - 15 * GB, "{measures:?}");
    assert_frugal(&measures);
}

#[test]
fn scenario_10_swapped_pages_are_a_failure_and_no_free_memory() {
    let mut plant = node();
    plant.swap = (64 * GB, 2 * GB);
    plant.stores[0] = plant.stores[0].clone().in_small_pages();
    plant.stores[0].release_bytes_per_s = GB;
    plant.hidden_share = 0.0;
    let demand = Trace::ramp(FULL, FULL + 20 * GB, 20 * GB, S, 40 * S);
    let (run, measures) = run("swap", &tidepool(plant, demand));
    assert!(measures.swapped_out_bytes > 0);
    assert!(alarm(&run, Alarm::SwapOut).is_some());
    let grew = first(&run, S, |run, at| run.decisions[at].decision.reason == Reason::Growth);
    assert_eq!(grew, None, "free memory came from swapping");
}

#[test]
fn scenario_15_a_full_numa_node_is_relieved_although_the_node_has_room() {
    let local = Trace::ramp(20 * GB, 55 * GB, 10 * GB, S, 5 * S);
    let mut plant = node();
    let half = |demand| MemoryNodeConfig { total_bytes: MEMORY / 2, demand, store_share: 0.5 };
    plant.stores[0].resident_bytes = 40 * GB;
    plant.stores[0].capacity_bytes = 40 * GB;
    plant.stores[0].capacity_max_bytes = 40 * GB;
    plant.memory_nodes = vec![half(local.clone()), half(Trace::constant(0, S))];
    let (run, _) = run("job bound to one NUMA node", &tidepool(plant, local));
    let stored = run.samples.last().unwrap().truth.stored_bytes;
    assert!(stored / 2 + 55 * GB + GB < MEMORY / 2, "node 0 has room: {stored}");
    let reason = first(&run, S, |run, at| run.decisions[at].decision.reason == Reason::MemoryNode);
    assert!(reason.is_some());
    assert!(stored >= 5 * GB, "no more than the proportion: {stored}");
}

#[test]
fn scenario_16_a_total_that_shrinks_is_followed_in_a_tick() {
    let mut plant = node();
    // Hot-unplug or a reservation of huge pages takes 4 GB at once, then 10 GB more.
    let total = Trace::step(MEMORY, MEMORY - 4 * GB, S, 3 * S);
    plant.memory_total = total.clone();
    let simulation = tidepool(plant, Trace::constant(FULL - GB, 3 * S));
    let simulation = Simulation { duration: 4 * S, ..simulation };
    let (run, measures) = run("memory taken away", &simulation);
    assert_eq!(measures.over_memory_ns, 0);
    let at = first(&run, S, |run, at| run.decisions[at].decision.target_bytes < STORE);
    assert!(at.is_some_and(|at| at <= S + 20 * MS), "{at:?}");
    let stored = run.samples.last().unwrap().truth.stored_bytes;
    assert!((STORE - 3 * GB - GB / 5..=STORE - 3 * GB).contains(&stored), "{stored}");
}

#[test]
fn scenario_19_other_guards_of_memory_see_no_reason_to_act() {
    // earlyoom acts below 10 % of available memory: a headroom above that keeps it quiet.
    let demand = Trace::ramp(40 * GB, 90 * GB, 10 * GB, S, 8 * S);
    let mut simulation = tidepool(node(), demand);
    simulation.parameters.headroom_bytes = MEMORY / 100 * 12;
    let (run, measures) = run("beside earlyoom", &simulation);
    assert_harmless(&run, &measures);
    let lowest = run.samples.iter().map(|sample| sample.truth.free_bytes).min().unwrap();
    assert!(lowest > MEMORY / 10, "{lowest}");
    let rest = Duration::from_nanos(measures.stalled_full_ns);
    assert_eq!(rest, Duration::ZERO, "no pressure for oomd and the kubelet");
}
