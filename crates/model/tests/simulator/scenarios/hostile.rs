//! Scenarios of hostile demand: jobs that come and go at once, bytes that are nowhere else beside a
//! slow PFS, jobs that thrash in their own groups, memory that no kind counts, processes that stop.

use std::time::Duration;

use tidepool_control_policy::{Alarm, ControlPolicy, Parameters, Reason};
use tidepool_model::simulator::{
    Absence, Fault, FaultKind, LimitConfig, Measures, MemoryNodeConfig, PlantConfig, Run,
    Simulation, Trace, TracePoint,
};

use crate::support::*;

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
/// A small node, as a shared virtual machine is.
const SMALL: u64 = 24 * GIB;
const SMALL_STORE: u64 = 14 * GIB;

/// The small node with a full store.
fn small() -> PlantConfig {
    PlantConfig { processors: 2, sensor_noise_bytes: MIB, ..PlantConfig::node(SMALL, SMALL_STORE) }
}

fn with_defaults(plant: PlantConfig, demand: Trace) -> Simulation {
    Simulation::new(plant, demand, Parameters::default())
}

/// Demand of the small node at which the next byte is the store's.
fn small_full() -> u64 {
    let simulation = with_defaults(small(), Trace::constant(0, S));
    used_target(&simulation) - SMALL_STORE - simulation.plant.kernel_bytes
}

/// A job that takes `bytes` each `every`, `steps` times, and keeps them.
fn staircase(from: u64, bytes: u64, every: Duration, steps: u64, end: Duration) -> Trace {
    let ns = |time: Duration| time.as_nanos() as u64;
    let mut points = vec![TracePoint { at_ns: 0, demand_bytes: from }];
    for step in 0..steps {
        let at_ns = ns(S) + step * ns(every);
        points.push(TracePoint { at_ns, demand_bytes: from + step * bytes });
        // As fast as one processor fills pages.
        points
            .push(TracePoint { at_ns: at_ns + bytes / 4, demand_bytes: from + (step + 1) * bytes });
    }
    points.push(TracePoint { at_ns: ns(end), demand_bytes: from + steps * bytes });
    Trace::new(points).unwrap()
}

/// A job that takes 900 MiB at 4 GB/s and gives them back at once, again and again; and what it
/// asks for in all.
fn bursts(from: u64, every: Duration, end: Duration) -> (Trace, u64) {
    let (bytes, rise_ns) = (900 * MIB, 900 * MIB / 4);
    let (every_ns, end_ns) = (every.as_nanos() as u64, end.as_nanos() as u64);
    let mut points = vec![TracePoint { at_ns: 0, demand_bytes: from }];
    let mut at_ns = S.as_nanos() as u64;
    let mut asked = 0;
    while at_ns + every_ns < end_ns {
        let mut put = |at_ns, demand_bytes| points.push(TracePoint { at_ns, demand_bytes });
        put(at_ns, from);
        put(at_ns + rise_ns, from + bytes);
        let held_ns = (every_ns - rise_ns) / 2;
        put(at_ns + rise_ns + held_ns, from + bytes);
        put(at_ns + rise_ns + held_ns + 10_000_000, from);
        asked += bytes;
        at_ns += every_ns;
    }
    points.push(TracePoint { at_ns: end_ns, demand_bytes: from });
    (Trace::new(points).unwrap(), asked)
}

fn said(run: &Run, from: Duration, wanted: Reason) -> bool {
    first(run, from, |run, at| run.decisions[at].decision.reason == wanted).is_some()
}

fn last(run: &Run) -> tidepool_model::simulator::Truth {
    run.samples.last().unwrap().truth
}

/// Nobody is killed, and what is nowhere else is somewhere.
fn assert_no_loss(run: &Run, measures: &Measures) {
    assert_eq!(measures.shortages, 0, "the kernel would have killed: {measures:?}");
    assert_eq!(last(run).short_bytes, 0);
}

#[test]
fn bursts_of_900_mib_park_the_store() {
    for (every_ms, most_share) in [(300, 0.05), (500, 0.05), (1_000, 0.1), (7_000, 0.6)] {
        let every = Duration::from_millis(every_ms);
        let (demand, asked) = bursts(small_full(), every, every.max(S) * 24);
        let simulation = with_defaults(small(), demand);
        let (run, ours) = run(&format!("900 MiB each {every_ms} ms"), &simulation);
        let mut of_paper = simulation.clone();
        of_paper.parameters = parameters(ControlPolicy::Dynims);
        let (_, paper) = crate::support::run("  paper", &of_paper);
        let share = |measures: &Measures| measures.filled_bytes as f64 / asked as f64;
        println!("  refilled by asked: {:.3}, paper {:.3}", share(&ours), share(&paper));
        assert_no_loss(&run, &ours);
        assert!(share(&ours) <= most_share, "{} of {asked} refilled", ours.filled_bytes);
        assert!(ours.evicted_bytes <= 3 * 900 * MIB, "{ours:?}");
        assert!(ours.stored_mean_bytes >= paper.stored_mean_bytes / 100 * 85, "{ours:?} {paper:?}");
    }
}

#[test]
fn memory_only_bytes_are_written_down_under_a_job_in_the_same_group() {
    // 1.95 GiB of whole blocks that are nowhere else, in a group of 3 GiB: the rate of the PFS was
    // never measured. A store of clean bytes beside them must not be needed for the first step.
    for spill in [340 * 1_000_000, GB, 2 * GB] {
        let (group, store) = (3 * GIB, 500 * 4 * MIB);
        let steps = if spill < GB { 20 } else { 40 };
        let job = staircase(100 * MIB, 64 * MIB, S / 10, steps, 10 * S);
        let mut plant = PlantConfig { processors: 2, ..PlantConfig::node(SMALL, store) };
        plant.stores[0].memory_only_bytes = store;
        plant.stores[0].write_back_bytes_per_s = spill;
        plant.limits = vec![LimitConfig {
            name: "/job".to_owned(),
            limit_bytes: group,
            demand: job.clone(),
            holds_store: true,
            outside: Vec::new(),
        }];
        let simulation = with_defaults(plant, job.clone());
        let (run, measures) = run(&format!("memory-only bytes, PFS of {spill} B/s"), &simulation);
        let used = run.samples.iter().map(|s| job.demand_bytes(s.at_ns) + s.truth.stored_bytes);
        let most = used.max().unwrap();
        assert!(most <= group, "the group would have killed: {} MiB", most / MIB);
        let left = last(&run);
        let asked = job.peak_bytes() + store - group;
        assert!(left.memory_only_bytes <= store - asked, "{left:?}");
        assert_eq!(measures.sign_changes, 0);
    }
}

#[test]
fn a_pfs_far_slower_than_believed_is_asked_all_the_time_and_said() {
    let mut plant = small();
    plant.stores[0].memory_only_bytes = SMALL_STORE;
    plant.stores[0].write_back_bytes_per_s = GB;
    // It was fast when it was measured, and now takes 20 MB/s.
    plant.faults =
        vec![Fault { from: 3 * S, until: 600 * S, kind: FaultKind::SpillRate(0, 20_000_000) }];
    let full = small_full();
    let demand = Trace::ramp(full, full + 300 * MIB, 500 * MIB, S, 4 * S).plus(&Trace::ramp(
        0,
        2 * GIB,
        100_000_000,
        4 * S,
        60 * S,
    ));
    let (run, measures) = run("a PFS far slower than believed", &with_defaults(plant, demand));
    assert!(alarm(&run, Alarm::ActuatorLimited).is_some_and(|at| at >= 3 * S), "it is said");
    let only = |at: Duration| {
        let at_ns = at.as_nanos() as u64;
        let index = run.samples.partition_point(|sample| sample.at_ns < at_ns);
        run.samples[index].truth.memory_only_bytes
    };
    // From the first byte that jobs need on, the PFS never waits for a command.
    let written = only(5 * S) - only(25 * S);
    assert!(written >= 20 * 20_000_000 / 10 * 9, "{written} written in 20 s");
    assert_eq!(measures.sign_changes, 0);
}

#[test]
fn a_job_that_thrashes_in_its_own_group_stops_no_growth() {
    let mut plant = small();
    plant.stores[0].resident_bytes = 2 * GIB;
    plant.stores[0].capacity_bytes = 2 * GIB;
    plant.group_refaults_bytes_per_s = 400 * MIB;
    let (run, _) = run("a job that thrashes", &with_defaults(plant, Trace::constant(GIB, 20 * S)));
    assert_eq!(alarm(&run, Alarm::PageCacheStarved), None, "it is the group's doing");
    // 2 s of hold, and 12 GiB at 2 GiB/s.
    assert!(stored_at(&run, 12 * S) >= SMALL_STORE / 10 * 9, "{:?}", last(&run));
}

#[test]
fn growth_that_is_braked_for_a_minute_is_said() {
    let mut plant = small();
    plant.stores[0].resident_bytes = 2 * GIB;
    plant.stores[0].capacity_bytes = 2 * GIB;
    plant.sensor_noise_bytes = MIB / 10;
    // A demand that creeps all the time brakes growth although half of the node is free.
    let demand = Trace::leak(GIB / 2, 120_000_000, 80 * S);
    let (run, _) = run("growth braked", &with_defaults(plant, demand));
    assert!(said(&run, 2 * S, Reason::Brake));
    let said = alarm(&run, Alarm::GrowthBraked).expect("it is said");
    assert!((60 * S..70 * S).contains(&said), "{said:?}");
    assert!(run.decisions.last().unwrap().decision.alarms.is_empty(), "the store grows again");
}

#[test]
fn a_squeezed_page_cache_is_said_and_nothing_swings() {
    let mut plant = small();
    // 4 GiB that a job reads again and again beside a store that wants all of the rest.
    plant.page_cache = Some((Trace::constant(4 * GIB, S), 2 * GB));
    plant.stores[0] = tidepool_model::simulator::StoreConfig {
        resident_bytes: 20 * GIB,
        capacity_bytes: 20 * GIB,
        capacity_max_bytes: 20 * GIB,
        ..plant.stores[0].clone()
    };
    let (run, measures) =
        run("page cache squeezed", &with_defaults(plant, Trace::constant(GIB, 30 * S)));
    assert!(alarm(&run, Alarm::PageCacheStarved).is_some_and(|at| at <= 10 * S));
    assert_eq!((measures.shortages, measures.sign_changes), (0, 0));
    assert!(measures.evicted_bytes <= GIB, "{measures:?}");
}

#[test]
fn a_pause_of_store_and_controller_empties_nothing() {
    for seconds in [2, 30, 3_600] {
        let (from, until) = (2 * S, (2 + seconds) * S);
        let mut plant = small();
        plant.faults = vec![Fault { from, until, kind: FaultKind::Stopped(0) }];
        let mut simulation = with_defaults(plant, Trace::constant(2 * GIB, until + 5 * S));
        simulation.absences = vec![Absence { from, until, killed: false }];
        simulation.step = if seconds > 100 { 10 * MS } else { MS };
        let (run, measures) = run(&format!("both paused for {seconds} s"), &simulation);
        assert_eq!(measures.evicted_bytes, 0);
        assert!(is_quiet(&run));
    }
}

#[test]
fn a_store_that_runs_alone_keeps_what_the_node_can_spare_no_longer_than_its_lease() {
    // The controller alone is stopped: nobody knows what jobs need, so the guaranteed part stays.
    let mut plant = small();
    plant.stores[0].capacity_min_bytes = GIB;
    let mut simulation = with_defaults(plant, Trace::constant(2 * GIB, 12 * S));
    simulation.absences = vec![Absence { from: 2 * S, until: 6 * S, killed: false }];
    let (run, _) = run("controller stopped", &simulation);
    assert_eq!(stored_at(&run, 5 * S), GIB);
    assert!(last(&run).stored_bytes > 2 * GIB, "it returns");
}

#[test]
fn a_slow_leak_of_minutes_is_followed_byte_by_byte() {
    let full = small_full();
    let mut simulation = with_defaults(small(), Trace::leak(full - GIB, 10_000_000, 600 * S));
    simulation.step = 5 * MS;
    let (run, measures) = run("leak of 10 MB/s for 10 min", &simulation);
    assert_harmless(&run, &measures);
    assert_frugal(&measures);
    assert!(is_quiet(&run));
    assert_eq!(measures.sign_changes, 0);
    assert!(measures.filled_bytes <= measures.evicted_bytes / 100, "{measures:?}");
}

#[test]
fn floods_of_dirty_pages_that_come_and_go_make_no_cycle() {
    let full = small_full();
    let mut plant = small();
    // 3 GiB dirty and written again each 6 s, as a program that makes checkpoints.
    plant.dirty = Some(Trace::sawtooth(0, 3 * GIB, 6 * S, 120 * S));
    let simulation = with_defaults(plant, Trace::constant(full - GIB, 120 * S));
    let (run, measures) = run("floods of dirty pages", &simulation);
    assert_harmless(&run, &measures);
    let asked = 20 * 3 * GIB;
    assert!(measures.filled_bytes <= asked / 5, "{measures:?}");
    assert_eq!(evicted_between(&run, 60 * S, 120 * S), 0, "it is parked");
}

#[test]
fn locked_files_and_memory_of_drivers_are_believed() {
    for (name, rate) in [("at once", 1_000 * GB), ("at 2 GB/s", 2 * GB)] {
        let mut plant = small();
        let full = small_full();
        plant.uncounted = Some(Trace::ramp(0, 4 * GIB, rate, 2 * S, 60 * S));
        let (run, measures) =
            run(&format!("locked {name}"), &with_defaults(plant, Trace::constant(full, 60 * S)));
        if rate <= 2 * GB {
            assert_no_loss(&run, &measures);
        }
        assert!(measures.over_memory_ns <= 1_000_000_000, "{measures:?}");
        assert!(stored_at(&run, 5 * S) <= SMALL_STORE - 4 * GIB + GIB / 16, "{measures:?}");
        // What no kind counts is usual after a while, and the store stays where it is.
        assert!(alarm(&run, Alarm::SensorDisagreement).is_some());
        assert!(run.decisions.last().unwrap().decision.alarms.is_empty(), "{name}");
        assert!(measures.filled_bytes < GIB / 4, "{measures:?}");
    }
}

#[test]
fn packed_small_files_that_come_back_slowly_are_not_asked_for_twice() {
    let full = small_full();
    let mut plant = small();
    // Believed to give 5 GB/s; many small files share segments, and 150 MB/s come.
    plant.stores[0] = plant.stores[0].clone().in_small_pages();
    plant.stores[0].release_believed_bytes_per_s = 5 * GB;
    plant.stores[0].release_bytes_per_s = 150_000_000;
    let demand = Trace::ramp(full, full + 2 * GIB, GB, S, 40 * S);
    let (run, measures) = run("packed small files", &with_defaults(plant, demand));
    // Jobs wait: nothing gives faster than it gives. In the end they have all.
    assert_eq!(last(&run).short_bytes, 0);
    assert!(alarm(&run, Alarm::ActuatorLimited).is_some(), "{measures:?}");
    assert!(measures.evicted_bytes <= measures.needed_bytes / 100 * 120, "{measures:?}");
    assert_eq!(measures.sign_changes, 0);
    assert!(measures.filled_bytes <= measures.evicted_bytes / 10, "{measures:?}");
}

#[test]
fn a_store_that_gives_nothing_is_not_pestered_and_said() {
    for kind in [FaultKind::ReleaseShare(0, 0.0), FaultKind::CommandsLost(0)] {
        let full = small_full();
        let mut plant = small();
        plant.stores[0].deadline = S;
        plant.faults = vec![Fault { from: S / 2, until: 20 * S, kind }];
        let demand = Trace::ramp(full, full + GIB / 4, GB, S, 60 * S);
        let (run, measures) = run(&format!("{kind:?}"), &with_defaults(plant, demand));
        assert!(alarm(&run, Alarm::StoreFailed).is_some(), "{measures:?}");
        let at = |second: u32| {
            let at_ns = u64::from(second) * 1_000_000_000;
            let index = run.decisions.partition_point(|decided| decided.at_ns < at_ns);
            run.decisions[index].decision.target_bytes
        };
        assert!(at(10).abs_diff(at(18)) <= 8 * MIB, "the target stands: {} {}", at(10), at(18));
        assert!(measures.evicted_bytes <= GIB / 2, "once it gives, no more than asked");
        assert_no_loss(&run, &measures);
    }
}

#[test]
fn jumps_of_the_clock_take_and_give_nothing() {
    let full = small_full();
    for ahead in [S / 2, 5 * S, 3_600 * S] {
        let mut plant = small();
        // Ahead, and back again.
        plant.faults =
            vec![Fault { from: 5 * S, until: 8 * S, kind: FaultKind::ClockAhead(ahead) }];
        let demand = Trace::ramp(full, full + GIB, GB, 2 * S, 30 * S);
        let (run, measures) =
            run(&format!("clock ahead by {ahead:?}"), &with_defaults(plant, demand));
        assert_harmless(&run, &measures);
        assert_frugal(&measures);
        assert_eq!(measures.sign_changes, 0);
    }
}

#[test]
fn idle_pages_that_are_put_aside_stop_no_growth() {
    let mut plant = small();
    plant.stores[0].resident_bytes = 2 * GIB;
    plant.stores[0].capacity_bytes = 2 * GIB;
    plant.swap = (8 * GIB, GB);
    plant.swap_idle_bytes_per_s = MIB;
    let (run, _) = run("idle pages", &with_defaults(plant, Trace::constant(GIB, 20 * S)));
    assert!(last(&run).stored_bytes >= SMALL_STORE / 10 * 9, "{:?}", last(&run));
    assert_eq!(alarm(&run, Alarm::SwapOut), None);
}

#[test]
fn compressed_swap_is_said_and_what_it_frees_is_not_grown_into() {
    let full = small_full();
    let mut plant = small();
    plant.swap = (8 * GIB, GB);
    plant.swap_kept_share = 0.4;
    plant.stores[0] = plant.stores[0].clone().in_small_pages();
    plant.stores[0].release_bytes_per_s = 300_000_000;
    plant.hidden_share = 0.0;
    let demand = Trace::ramp(full, full + 4 * GIB, 8 * GB, S, 40 * S);
    let (run, measures) = run("compressed swap", &with_defaults(plant, demand));
    assert!(measures.swapped_out_bytes > 0);
    assert!(alarm(&run, Alarm::SwapOut).is_some());
    assert!(measures.filled_bytes < GIB / 8, "{measures:?}");
    assert_eq!(last(&run).short_bytes, 0, "in the end there is room for all");
}

#[test]
fn a_numa_node_that_fills_at_once_is_relieved() {
    let half = |demand| MemoryNodeConfig { total_bytes: SMALL / 2, demand, store_share: 0.5 };
    let local = Trace::step(GIB, 9 * GIB, 5 * S, 20 * S);
    let mut plant = small();
    plant.stores[0].resident_bytes = 8 * GIB;
    plant.stores[0].capacity_bytes = 8 * GIB;
    plant.stores[0].capacity_max_bytes = 8 * GIB;
    plant.memory_nodes = vec![half(local.clone()), half(Trace::constant(0, S))];
    let (run, measures) = run("a NUMA node filled at once", &with_defaults(plant, local));
    assert_no_loss(&run, &measures);
    // In the proportion in which the store lies there, within a rest and a tick.
    let at = first(&run, 5 * S, |run, at| run.decisions[at].decision.reason == Reason::MemoryNode);
    assert!(at.is_some_and(|at| at <= 5 * S + 270 * MS), "{at:?}");
    let stored = last(&run).stored_bytes;
    assert!(stored / 2 + 9 * GIB < SMALL / 2, "node 0 has room: {stored}");
    assert!(stored >= 4 * GIB, "no more than the proportion: {stored}");
    assert_eq!(measures.sign_changes, 0);
}
