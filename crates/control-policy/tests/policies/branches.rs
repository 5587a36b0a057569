//! Tests of each branch of the policy `tidepool`.

use tidepool_control_policy::{
    Alarm, ControlPolicy, INTERVAL_MAX_MS, Level, Limit, MemoryNode, Parameters, Pressure, Reason,
    StoreState, policy,
};

use crate::node::{BLOCK, GIB, Node, TOTAL, has};

#[test]
fn a_step_is_answered_at_the_first_reading_with_the_absolute_target() {
    let mut node = Node::full(60 * GIB);
    node.demand += 10 * GIB;
    let decision = node.tick();
    assert_eq!(decision.target_bytes, TOTAL - node.headroom() - node.demand);
    assert_eq!((decision.reason, decision.slope_bytes_per_s), (Reason::Demand, 0));
    // Obeyed, the same demand asks for nothing more.
    let evicted = node.stored();
    assert_eq!(node.run(1_000).target_bytes, evicted);
}

#[test]
fn bytes_under_way_are_not_asked_for_twice() {
    let mut node = Node::full(60 * GIB);
    node.obeys = false;
    node.demand += 5 * GIB;
    let target = node.tick().target_bytes;
    node.store().outstanding_bytes = 5 * GIB;
    for _ in 0..15 {
        assert_eq!(node.tick().target_bytes, target);
    }
}

#[test]
fn a_ramp_is_foreseen_and_a_step_is_not() {
    let mut node = Node::full(60 * GIB);
    node.parameters.headroom_bytes = 2 * GIB;
    node.demand += 10 * GIB;
    node.run(3_000);
    let mut foreseen = false;
    for _ in 0..20 {
        // Not whole blocks: a job's memory never leaves available memory level to the byte.
        node.demand += 50 * GIB / 100 + 12_345;
        let decision = node.tick();
        if decision.slope_bytes_per_s > 0 {
            let exact = TOTAL - node.headroom() - node.demand;
            foreseen |= decision.target_bytes < exact - BLOCK;
            assert!(decision.slope_bytes_per_s.abs_diff(50 * GIB) < GIB);
        }
    }
    assert!(foreseen);
    assert_eq!(node.tick().slope_bytes_per_s, 0, "the ramp is over");
}

#[test]
fn growth_waits_for_the_hold_is_slow_and_ends_below_the_target() {
    let mut node = Node::new(40 * GIB, 10 * GIB, 100 * GIB);
    assert_eq!(node.run(1_900).reason, Reason::Hold);
    assert_eq!(node.stored(), 10 * GIB);
    assert_eq!(node.run(200).reason, Reason::Growth);
    let before = node.stored();
    node.run(1_000);
    let rate = Parameters::default().growth_bytes_per_s;
    assert!(node.stored() - before <= rate + BLOCK && node.stored() > before + rate / 2);
    let decision = node.run(90_000);
    let band = TOTAL / 200;
    assert_eq!(decision.reason, Reason::Steady);
    assert!(decision.target_bytes <= TOTAL - node.headroom() - node.demand - band);
    assert!(decision.target_bytes + 2 * band > TOTAL - node.headroom() - node.demand - band);
}

#[test]
fn unused_capacity_stays_and_a_burst_takes_bytes_as_soon_as_it_needs_them() {
    let mut node = Node::new(40 * GIB, 10 * GIB, 60 * GIB);
    node.obeys = false;
    node.store().capacity_bytes = 60 * GIB;
    let decision = node.run(5_000);
    assert_eq!(decision.target_bytes, 60 * GIB, "a cold load is not held up");
    let room = TOTAL - node.headroom() - node.demand;
    node.demand += room - 9 * GIB;
    let decisions = [node.tick(), node.tick()];
    assert!(decisions[1].target_bytes < 10 * GIB, "{decisions:?}");
}

#[test]
fn what_others_lowered_is_where_growth_begins() {
    let mut node = Node::new(40 * GIB, 60 * GIB, 60 * GIB);
    node.run(5_000);
    // The watchdog of the store, while the controller was stopped.
    node.store().resident_bytes = 10 * GIB;
    node.store().capacity_bytes = 10 * GIB;
    let rate = Parameters::default().growth_bytes_per_s;
    let decision = node.tick();
    assert!(decision.target_bytes <= 10 * GIB + rate / 50, "{decision:?}");
}

#[test]
fn no_growth_while_demand_grows_tasks_stall_or_files_are_read_again() {
    let growing = || {
        let mut node = Node::new(60 * GIB, 10 * GIB, 60 * GIB);
        assert_eq!(node.run(2_500).reason, Reason::Growth);
        node
    };
    let mut node = growing();
    for _ in 0..50 {
        node.demand += GIB / 100;
        let before = node.stored();
        assert_eq!(node.tick().reason, Reason::Brake);
        assert_eq!(node.stored(), before);
    }
    let mut node = growing();
    for tick in 0..50 {
        node.snapshot.refaulted_pages = Some(tick * 1_000);
        let reason = node.tick().reason;
        assert!(tick == 0 || reason == Reason::Brake, "{reason:?}");
    }
    // Stalls brake where memory is scarce; with plenty of it they are a job's own.
    for (demand, braked) in [(60 * GIB, false), (115 * GIB, true)] {
        let mut node = Node::new(demand, 10 * GIB, 60 * GIB);
        node.run(2_500);
        node.snapshot.pressure = Some(Pressure { some_us: 5_000, full_us: 0 });
        assert_eq!(node.tick().reason == Reason::Brake, braked, "demand {demand}");
    }
}

#[test]
fn a_demand_that_comes_and_goes_parks_the_store() {
    let mut node = Node::full(60 * GIB);
    let mut evicted = Vec::new();
    for _ in 0..12 {
        let before = node.stored();
        node.demand += 10 * GIB;
        node.run(4_000);
        evicted.push(before.saturating_sub(node.stored()));
        node.demand -= 10 * GIB;
        node.run(4_000);
    }
    assert!(evicted[0] >= 10 * GIB);
    assert!(evicted[1] > 0, "it grew after the first tooth");
    assert_eq!(evicted[4..].iter().sum::<u64>(), 0, "{evicted:?}");
    // Calm ends it.
    node.run(180_000);
    assert!(node.stored() > 58 * GIB);
}

#[test]
fn an_emergency_refuses_writes_and_takes_more_only_when_it_lasts() {
    let mut node = Node::full(60 * GIB);
    node.obeys = false;
    node.demand += 11 * GIB;
    let decision = node.tick();
    assert_eq!(decision.level, Level::Emergency);
    let target = TOTAL - node.headroom() - node.demand;
    assert_eq!(decision.target_bytes, target);
    assert_eq!(
        node.run(2_000).target_bytes,
        target,
        "one store gives no more for being asked more"
    );
    // Another one may give in its place.
    let other = StoreState { block_bytes: BLOCK, ..StoreState::default() };
    node.snapshot.stores.push(other);
    let later = node.run(2_000);
    assert_eq!(later.reason, Reason::Emergency);
    assert_eq!(later.target_bytes, TOTAL - 2 * node.headroom() - node.demand);
    node.obeys = true;
    node.tick();
    assert_eq!(node.run(500).level, Level::Normal);
}

#[test]
fn a_stall_of_all_tasks_is_an_emergency_only_where_headroom_is_used() {
    for (used, level) in [(0, Level::Normal), (GIB / 4, Level::Emergency)] {
        let mut node = Node::full(60 * GIB);
        node.obeys = false;
        node.demand += used;
        node.snapshot.pressure = Some(Pressure { some_us: 9_000, full_us: 9_000 });
        assert_eq!(node.tick().level, level);
    }
}

#[test]
fn limits_count_where_they_hold_the_store() {
    for holds_store in [true, false] {
        let mut node = Node::new(40 * GIB, 60 * GIB, 60 * GIB);
        let limit = Limit {
            name: "/job".to_owned(),
            limit_bytes: 80 * GIB,
            used_bytes: if holds_store { 90 * GIB } else { 80 * GIB },
            holds_store,
            outside: 0,
            hits: 0,
        };
        node.snapshot.limits = vec![limit];
        let decision = node.tick();
        assert_eq!(decision.reason == Reason::Limit, holds_store);
        assert_eq!(decision.target_bytes < 50 * GIB, holds_store);
        node.snapshot.limits[0].hits = 5;
        assert_eq!(node.tick().level == Level::Emergency, holds_store);
    }
}

#[test]
fn a_short_numa_node_shrinks_the_store_in_proportion() {
    let mut node = Node::new(40 * GIB, 40 * GIB, 40 * GIB);
    let half = |number, available_bytes| MemoryNode {
        number,
        total_bytes: TOTAL / 2,
        available_bytes,
        stored_bytes: 20 * GIB,
    };
    node.snapshot.memory_nodes = vec![half(0, 0), half(1, 24 * GIB)];
    let decision = node.tick();
    assert_eq!(decision.reason, Reason::MemoryNode);
    let evicted = 40 * GIB - decision.target_bytes;
    assert!(evicted.abs_diff(node.headroom()) <= BLOCK, "half of the headroom, twice: {evicted}");
    let mut node = Node::new(40 * GIB, 40 * GIB, 40 * GIB);
    node.snapshot.memory_nodes = vec![half(0, 24 * GIB), half(1, 24 * GIB)];
    assert_eq!(node.tick().target_bytes, 40 * GIB);
}

#[test]
fn what_is_held_or_unwritten_is_not_promised() {
    let mut node = Node::full(60 * GIB);
    node.store().held_bytes = 40 * GIB;
    node.store().memory_only_bytes = 15 * GIB;
    node.demand += 11 * GIB;
    let decision = node.tick();
    assert_eq!(decision.target_bytes, 55 * GIB - BLOCK, "what a decision writes back");
    assert!(has(&decision, Alarm::AtMinimum));
    node.store().capacity_min_bytes = 55 * GIB;
    node.store().memory_only_bytes = 0;
    let decision = node.tick();
    assert_eq!(decision.target_bytes, 55 * GIB, "the guaranteed part");
    assert_eq!(decision.level, Level::Normal, "an emergency would change nothing");
}

#[test]
fn slow_spilling_starts_earlier() {
    let target = |spill: u64| {
        let mut node = Node::full(60 * GIB);
        node.store().memory_only_bytes = 58 * GIB;
        node.store().write_back_bytes_per_s = spill;
        let mut target = 0;
        for _ in 0..8 {
            node.demand += 10 * GIB / 100;
            target = node.tick().target_bytes;
        }
        target
    };
    assert!(target(GIB) < target(0) - GIB / 100, "what is written next may be asked for");
}

#[test]
fn a_demand_faster_than_the_store_is_said() {
    let mut node = Node::full(60 * GIB);
    node.store().release_bytes_per_s = 5 * GIB;
    let mut said = false;
    for _ in 0..10 {
        node.demand += 20 * GIB / 100;
        said |= has(&node.tick(), Alarm::ActuatorLimited);
    }
    assert!(said);
    assert!(!has(&node.run(3_000), Alarm::ActuatorLimited));
}

#[test]
fn a_demand_faster_than_writing_down_is_said_before_a_rate_was_measured() {
    let said = |demand_bytes_per_s: u64| {
        let mut node = Node::full(60 * GIB);
        node.store().memory_only_bytes = 60 * GIB;
        let mut said = false;
        for _ in 0..20 {
            node.demand += demand_bytes_per_s / 100;
            said |= has(&node.tick(), Alarm::ActuatorLimited);
        }
        said
    };
    assert!(said(2 * GIB), "a PFS is not believed to be that fast");
    assert!(!said(GIB / 64));
}

#[test]
fn swapping_is_said_and_holds_growth() {
    let mut node = Node::new(40 * GIB, 10 * GIB, 60 * GIB);
    node.run(2_500);
    node.snapshot.swapped_out_pages = Some(1_000);
    node.demand -= GIB;
    let decision = node.tick();
    assert!(has(&decision, Alarm::SwapOut));
    assert_eq!(decision.reason, Reason::Hold);
    assert_eq!(node.run(1_500).reason, Reason::Hold);
}

#[test]
fn a_failed_store_is_said_and_its_bytes_are_not_counted_on() {
    let mut node = Node::full(60 * GIB);
    node.obeys = false;
    node.store().failed = true;
    node.demand += 5 * GIB;
    let decision = node.tick();
    assert!(has(&decision, Alarm::StoreFailed));
    let asked = node.stored() - decision.target_bytes;
    assert!(asked >= 5 * GIB, "one error must not keep it from being asked: {asked}");
}

#[test]
fn memory_only_bytes_are_asked_for_before_a_rate_of_writing_was_measured() {
    for rate in [0, 1] {
        let mut node = Node::full(60 * GIB);
        node.store().memory_only_bytes = 60 * GIB;
        node.store().write_back_bytes_per_s = rate;
        node.demand += 5 * GIB;
        for _ in 0..10 {
            let before = node.stored();
            node.store().memory_only_bytes = before;
            let target = node.tick().target_bytes;
            assert!(target + BLOCK <= before, "{rate} B/s: {target} of {before} bytes");
        }
    }
}

#[test]
fn a_job_at_its_own_limit_stops_no_growth() {
    let mut node = Node::new(40 * GIB, 10 * GIB, 60 * GIB);
    node.run(2_500);
    let before = node.stored();
    for _ in 0..200 {
        let snapshot = &mut node.snapshot;
        snapshot.refaulted_pages = snapshot.refaulted_pages.map(|pages| pages + 1_000);
        snapshot.swapped_out_pages = snapshot.swapped_out_pages.map(|pages| pages + 1);
        snapshot.free_bytes = Some(50 * GIB);
        let decision = node.tick();
        assert!(!matches!(decision.reason, Reason::Brake | Reason::Hold), "{decision:?}");
        assert_eq!(decision.alarms, []);
    }
    assert!(node.stored() > before + GIB, "growth went on");
}

#[test]
fn page_cache_that_does_not_fit_beside_the_store_is_said() {
    let mut node = Node::full(60 * GIB);
    let mut said_after = None;
    for tick in 0..1_000 {
        node.snapshot.refaulted_pages = node.snapshot.refaulted_pages.map(|pages| pages + 1_000);
        if has(&node.tick(), Alarm::PageCacheStarved) && said_after.is_none() {
            said_after = Some(tick);
        }
    }
    assert!(said_after.is_some_and(|tick| tick > 400), "not for a moment: {said_after:?}");
    assert!(!has(&node.run(3_000), Alarm::PageCacheStarved));
}

#[test]
fn a_store_that_does_not_give_back_makes_no_chatter() {
    let mut node = Node::full(60 * GIB);
    node.obeys = false;
    node.demand += 5 * GIB;
    let target = node.tick().target_bytes;
    node.store().capacity_bytes = target;
    for _ in 0..300 {
        assert!(node.tick().target_bytes <= target);
    }
}

#[test]
fn a_total_that_shrinks_is_followed_at_once() {
    let mut node = Node::full(60 * GIB);
    node.tick();
    node.snapshot.memory_total_bytes -= 4 * GIB;
    node.snapshot.available_bytes =
        node.snapshot.available_bytes.map(|bytes| bytes.saturating_sub(4 * GIB));
    let decision = node.tick_as_read();
    assert!(decision.target_bytes < 60 * GIB, "{decision:?}");
}

#[test]
fn refaults_are_judged_by_the_time_since_their_counter_was_read() {
    // The counter is read at every tenth decision; 10 000 pages a second are too many.
    for (pages_a_reading, braked) in [(500, false), (2_000, true)] {
        let mut node = Node::new(60 * GIB, 10 * GIB, 60 * GIB);
        let mut reasons = Vec::new();
        for tick in 0..300 {
            if tick % 10 == 0 {
                node.snapshot.events_at_ns = Some(node.snapshot.at_ns + 10_000_000);
                node.snapshot.refaulted_pages = Some(tick / 10 * pages_a_reading);
            }
            reasons.push(node.tick().reason);
        }
        let growth = reasons.contains(&Reason::Growth);
        assert_eq!((growth, reasons.contains(&Reason::Brake)), (!braked, braked));
    }
}

#[test]
fn page_cache_that_counts_as_available_is_no_memory_that_jobs_lack() {
    let mut node = Node::new(60 * GIB, 20 * GIB, 20 * GIB);
    let mut cache = node.store().clone();
    cache.name = "cache".to_owned();
    cache.page_cache_bytes = cache.resident_bytes;
    node.snapshot.stores.push(cache);
    let used = 60 * GIB + 20 * GIB;
    node.snapshot.available_bytes = Some(TOTAL - used);
    node.snapshot.used_kinds_bytes = Some(used);
    node.obeys = false;
    let decision = node.tick_as_read();
    assert_eq!(decision.demand_bytes, 60 * GIB);
    // Both stores together must leave the headroom, the cache too.
    node.snapshot.available_bytes = Some(TOTAL - used - 40 * GIB);
    node.snapshot.used_kinds_bytes = Some(used + 40 * GIB);
    let decision = node.tick_as_read();
    assert_eq!(decision.demand_bytes, 100 * GIB);
    assert!(decision.target_bytes.abs_diff(28 * GIB - node.headroom()) <= BLOCK);
}

#[test]
fn the_first_reading_after_a_calm_sleep_acts_at_once() {
    let asleep = |node: &mut Node| {
        for _ in 0..20 {
            node.snapshot.at_ns += 90_000_000;
            node.tick();
        }
    };
    let mut node = Node::full(60 * GIB);
    asleep(&mut node);
    node.snapshot.at_ns += 90_000_000;
    node.demand += node.headroom() + GIB;
    let decision = node.tick();
    // More than all the headroom is gone, so that the reading shows no more than that.
    assert!(decision.target_bytes <= 60 * GIB - node.headroom(), "{decision:?}");
    assert_eq!(decision.level, Level::Emergency);

    // A rise during the sleep is a rise, and a ramp that goes on is foreseen two readings later.
    let mut node = Node::new(40 * GIB, 10 * GIB, 60 * GIB);
    node.run(2_500);
    assert_eq!(node.tick().reason, Reason::Growth);
    asleep(&mut node);
    node.snapshot.at_ns += 90_000_000;
    node.demand += GIB;
    assert_eq!(node.tick().reason, Reason::Brake);
    let slopes = [0, 1].map(|_| {
        node.demand += GIB / 10;
        node.tick().slope_bytes_per_s
    });
    assert!(slopes[1].abs_diff(10 * GIB) < GIB / 10, "{slopes:?}");
}

#[test]
fn the_controller_rests_only_where_nothing_can_need_it() {
    let calm = || {
        let mut node = Node::new(20 * GIB, 60 * GIB, 60 * GIB);
        node.run(3_000);
        node
    };
    assert_eq!(calm().tick().next_ms, INTERVAL_MAX_MS);
    assert_eq!(Node::full(60 * GIB).tick().next_ms, 10, "at the threshold");
    let rest = |change: fn(&mut Node)| {
        let mut node = calm();
        change(&mut node);
        node.tick().next_ms
    };
    assert_eq!(rest(|node| node.demand += GIB), 10, "it moves");
    assert_eq!(rest(|node| node.store().outstanding_bytes = BLOCK), 10, "a command is under way");
    assert_eq!(rest(|node| node.store().memory_only_bytes = BLOCK), 10, "spilling takes long");
    assert_eq!(rest(|node| node.snapshot.processors = Some(1)), INTERVAL_MAX_MS, "20 GB/s");
    let limit = |used_bytes, holds_store| Limit {
        name: "/node".to_owned(),
        limit_bytes: 80 * GIB,
        used_bytes,
        holds_store,
        outside: 0,
        hits: 0,
    };
    let limited = |limit: Limit| {
        let mut node = calm();
        node.snapshot.limits = vec![limit];
        node.tick();
        node.tick().next_ms
    };
    assert_eq!(limited(limit(78 * GIB + GIB / 2, true)), 10, "the group is nearly full");
    assert_eq!(limited(limit(79 * GIB, false)), INTERVAL_MAX_MS, "a job at its own limit");
    let nodes = |available_bytes: u64| {
        let mut node = calm();
        let half = |number, available_bytes| MemoryNode {
            number,
            total_bytes: TOTAL / 2,
            available_bytes,
            stored_bytes: 30 * GIB,
        };
        node.snapshot.memory_nodes = vec![half(0, available_bytes), half(1, 24 * GIB)];
        node.tick().next_ms
    };
    let headroom = calm().headroom();
    assert_eq!(nodes(headroom / 2 + GIB / 4), 10, "one node is nearly full");
    assert_eq!(nodes(24 * GIB), INTERVAL_MAX_MS);
    let mut node = calm();
    node.snapshot.available_bytes = None;
    assert_eq!(node.tick_as_read().next_ms, 10, "a reading is missing");
}

#[test]
fn a_law_whose_gain_belongs_to_its_interval_never_rests() {
    for (kind, next_ms) in [(ControlPolicy::Dynims, 10), (ControlPolicy::Static, INTERVAL_MAX_MS)] {
        let node = Node::new(20 * GIB, 60 * GIB, 60 * GIB);
        let decision = policy(kind).decide(&node.snapshot, &node.parameters);
        assert_eq!(decision.next_ms, next_ms, "{kind:?}");
    }
}

#[test]
fn a_size_that_somebody_lowers_is_said_to_be_that() {
    let mut node = Node::full(60 * GIB);
    node.store().capacity_max_bytes = 20 * GIB;
    let decision = node.tick();
    assert_eq!((decision.target_bytes, decision.reason), (20 * GIB, Reason::Ceiling));
    assert_ne!(node.tick().reason, Reason::Ceiling, "said once");
}

#[test]
fn a_leased_ceiling_is_the_reason_for_as_long_as_it_holds() {
    let mut node = Node::full(60 * GIB);
    let configured_bytes = node.store().capacity_max_bytes;
    (node.store().capacity_max_bytes, node.store().is_leased) = (20 * GIB, true);
    for _ in 0..3 {
        let decision = node.tick();
        let told = (decision.target_bytes, decision.reason, decision.level);
        assert_eq!(told, (20 * GIB, Reason::LeasedCeiling, Level::Normal));
    }
    assert_eq!(node.tick().next_ms, INTERVAL_MAX_MS, "it takes no decisions of its own");
    (node.store().capacity_max_bytes, node.store().is_leased) = (configured_bytes, false);
    assert_ne!(node.tick().reason, Reason::LeasedCeiling, "its lease is over");
}

#[test]
fn a_headroom_that_somebody_moves_is_no_flapping() {
    let mut node = Node::new(40 * GIB, 40 * GIB, 60 * GIB);
    node.run(3_000);
    for _ in 0..4 {
        node.parameters.headroom_bytes = 40 * GIB;
        node.run(1_000);
        node.parameters.headroom_bytes = 12 * GIB;
        node.run(4_000);
    }
    assert!(node.stored() > 50 * GIB, "the hold is as long as before: {}", node.stored());
}

#[test]
fn page_cache_at_the_limit_of_a_group_is_no_emergency() {
    for (used, emergency) in [(10 * GIB, false), (19 * GIB, true)] {
        let mut node = Node::new(40 * GIB, 5 * GIB, 5 * GIB);
        node.run(2_500);
        let mut limit = Limit {
            name: "/job".to_owned(),
            limit_bytes: 20 * GIB,
            used_bytes: used,
            holds_store: true,
            outside: 0,
            hits: 0,
        };
        node.snapshot.limits = vec![limit.clone()];
        node.tick();
        limit.hits = 7;
        node.snapshot.limits = vec![limit];
        assert_eq!(node.tick().level == Level::Emergency, emergency, "{used} bytes in use");
    }
}
