//! Tests with sensors that are late, wrong or absent.

use tidepool_control_policy::{Alarm, Level, Reason};

use crate::node::{GIB, Node, TOTAL, has};

#[test]
fn a_rise_without_second_reading_is_a_tick_late_and_a_spike_is_none() {
    let mut node = Node::full(60 * GIB);
    let available = |node: &Node| TOTAL - node.demand - node.stored();
    let ticks = |node: &mut Node, drops: &[u64]| -> Vec<u64> {
        let tick = |drop: &u64| {
            node.snapshot.used_kinds_bytes = None;
            node.snapshot.available_bytes = Some(available(node).saturating_sub(*drop));
            node.tick_as_read().target_bytes
        };
        drops.iter().map(tick).collect()
    };
    assert_eq!(ticks(&mut node, &[0, GIB, 0, 0]), [60 * GIB; 4], "a spike");
    let targets = ticks(&mut node, &[0, GIB / 2, GIB / 2]);
    assert_eq!(targets[1], 60 * GIB);
    assert!(targets[2] < 60 * GIB);
}

#[test]
fn hidden_pages_after_an_eviction_evict_nothing_more() {
    let mut node = Node::full(60 * GIB);
    node.demand += 10 * GIB;
    let target = node.tick().target_bytes;
    // Nine tenths of what was freed do not show.
    node.hidden = 9 * GIB;
    for _ in 0..500 {
        assert!(node.tick().target_bytes + 8 * (4 << 20) >= target, "no second eviction");
    }
}

#[test]
fn used_memory_that_no_kind_counts_is_demand_in_the_end() {
    let mut node = Node::full(60 * GIB);
    node.hidden = 2 * GIB;
    let decision = node.run(1_000);
    assert!(decision.target_bytes <= 58 * GIB, "nothing was freed that could hide: {decision:?}");
}

#[test]
fn a_missing_sensor_freezes_and_then_leaves_the_guaranteed_part() {
    let mut node = Node::new(40 * GIB, 20 * GIB, 60 * GIB);
    node.store().capacity_min_bytes = 4 * GIB;
    node.run(3_000);
    let before = node.stored();
    let blind = |node: &mut Node, ticks: u64| {
        let mut last = None;
        for _ in 0..ticks {
            node.snapshot.available_bytes = None;
            last = Some(node.tick_as_read());
        }
        last.unwrap()
    };
    let decision = blind(&mut node, 3);
    assert_eq!((decision.level, decision.target_bytes), (Level::Normal, before));
    let decision = blind(&mut node, 10);
    assert_eq!((decision.level, decision.target_bytes), (Level::Safe, before));
    assert!(has(&decision, Alarm::SensorStale));
    let decision = blind(&mut node, 100);
    assert_eq!((decision.reason, decision.target_bytes), (Reason::Sensors, 4 * GIB));
    assert_eq!(node.tick().level, Level::Normal, "it recovers");
    node.run(3_000);
    assert!(node.stored() > 4 * GIB);
}

#[test]
fn jobs_get_memory_while_the_main_sensor_is_missing() {
    let mut node = Node::full(60 * GIB);
    for _ in 0..20 {
        node.demand += GIB / 10;
        node.snapshot.available_bytes = None;
        node.snapshot.used_kinds_bytes = Some(node.demand + node.stored());
        node.tick_as_read();
    }
    assert!(node.stored() <= 58 * GIB + GIB / 10, "{}", node.stored());
}

#[test]
fn a_sensor_that_multiplies_is_not_believed() {
    let mut node = Node::new(80 * GIB, 10 * GIB, 60 * GIB);
    node.run(1_000);
    let mut alarmed = false;
    for _ in 0..3_000 {
        node.snapshot.available_bytes = Some(100 * GIB);
        node.snapshot.used_kinds_bytes = Some(node.demand + node.stored());
        let decision = node.tick_as_read();
        alarmed |= has(&decision, Alarm::SensorDisagreement) || has(&decision, Alarm::SensorStale);
        let room = TOTAL - node.headroom() - node.demand;
        assert!(decision.target_bytes <= room, "{decision:?}");
    }
    assert!(alarmed);
}

#[test]
fn a_frozen_sensor_is_noticed() {
    let mut node = Node::full(60 * GIB);
    let frozen = node.snapshot.available_bytes;
    let mut stale = false;
    for _ in 0..100 {
        node.demand += GIB / 20;
        node.snapshot.available_bytes = frozen;
        node.snapshot.used_kinds_bytes = Some(node.demand + node.stored());
        stale |= has(&node.tick_as_read(), Alarm::SensorStale);
        let used = node.demand + node.stored();
        assert!(used <= TOTAL, "the second reading is followed");
    }
    assert!(stale);
}

#[test]
fn a_pause_of_the_controller_is_no_slope_and_no_growth() {
    let mut node = Node::new(40 * GIB, 20 * GIB, 60 * GIB);
    node.run(2_500);
    let before = node.stored();
    node.snapshot.at_ns += 10_000_000_000;
    node.demand += GIB;
    let decision = node.tick();
    assert_eq!(decision.slope_bytes_per_s, 0);
    assert!(decision.target_bytes <= before + GIB / 20, "ten seconds of growth at once");
}
