//! Property tests: what holds for any snapshot, however wrong its sensors.

use proptest::prelude::*;
use tidepool_control_policy::{
    ControlPolicy, Limit, MemoryNode, Parameters, Pressure, Snapshot, StoreSpeed, StoreState,
    policy, split,
};

use crate::node::{BLOCK, GIB, Node};

fn bytes() -> impl Strategy<Value = u64> {
    prop_oneof![0..200 * GIB, Just(0), Just(u64::MAX)]
}

prop_compose! {
    fn store()(
        sizes in proptest::array::uniform8(bytes()),
        flags in (any::<bool>(), any::<bool>(), 0_u32..5),
        block in prop_oneof![Just(0), Just(BLOCK), Just(GIB / 2), Just(u64::MAX)],
    ) -> StoreState {
        let [resident, capacity, a, b, held, memory_only, release, outstanding] = sizes;
        StoreState {
            name: String::new(),
            resident_bytes: resident,
            page_cache_bytes: if flags.0 { held } else { 0 },
            capacity_bytes: capacity,
            capacity_min_bytes: a.min(b),
            capacity_max_bytes: a.max(b),
            capacity_configured_bytes: a.max(b),
            held_bytes: held,
            memory_only_bytes: memory_only,
            release_bytes_per_s: release,
            write_back_bytes_per_s: release / 2,
            speed: if flags.0 { StoreSpeed::Slow } else { StoreSpeed::Fast },
            weight: flags.2,
            block_bytes: block,
            outstanding_bytes: outstanding,
            failed: flags.1,
            is_limited: false,
            is_leased: flags.1,
            process_id: 0,
        }
    }
}

prop_compose! {
    fn snapshot()(
        sensors in (bytes(), proptest::option::of(bytes()), proptest::option::of(bytes())),
        counters in (proptest::option::of((any::<u64>(), any::<u64>())), any::<u64>()),
        limit in (bytes(), bytes(), any::<bool>(), any::<u64>()),
        nodes in proptest::collection::vec((bytes(), bytes(), bytes()), 0..4),
        stores in proptest::collection::vec(store(), 0..4),
        at_ns in prop_oneof![0..1_u64 << 36, Just(u64::MAX)],
    ) -> Snapshot {
        let node = |(number, node): (usize, &(u64, u64, u64))| MemoryNode {
            number: number as u32,
            total_bytes: node.0,
            available_bytes: node.1,
            stored_bytes: node.2,
        };
        Snapshot {
            at_ns,
            events_at_ns: sensors.1.filter(|_| counters.0.is_some()),
            memory_total_bytes: sensors.0,
            processors: Some(stores.len() as u32),
            available_bytes: sensors.1,
            has_lists: counters.1 % 2 == 0,
            free_bytes: sensors.2,
            used_kinds_bytes: sensors.2,
            pressure: counters.0.map(|(some_us, full_us)| Pressure { some_us, full_us }),
            swapped_out_pages: Some(counters.1),
            refaulted_pages: Some(counters.1),
            limits: vec![Limit {
                name: String::new(),
                limit_bytes: limit.0,
                used_bytes: limit.1,
                holds_store: limit.2,
                outside: 0,
                hits: limit.3,
            }],
            memory_nodes: nodes.iter().enumerate().map(node).collect(),
            stores,
        }
    }
}

proptest! {
    #[test]
    fn targets_stay_between_the_guaranteed_part_and_the_maximum(
        snapshots in proptest::collection::vec(snapshot(), 1..20),
    ) {
        let kinds = [ControlPolicy::Tidepool, ControlPolicy::Dynims, ControlPolicy::DynimsPrinted];
        for kind in kinds {
            let mut law = policy(kind);
            let mut again = policy(kind);
            for snapshot in &snapshots {
                let decision = law.decide(snapshot, &Parameters::default());
                let sum = |part: fn(&StoreState) -> u64| {
                    snapshot.stores.iter().map(part).fold(0, u64::saturating_add)
                };
                prop_assert!(decision.target_bytes <= sum(|store| store.capacity_max_bytes));
                prop_assert!(decision.target_bytes >= sum(|store| store.capacity_min_bytes));
                prop_assert_eq!(again.decide(snapshot, &Parameters::default()), decision);
            }
        }
    }

    #[test]
    fn a_split_keeps_bounds_and_the_target(
        target in bytes(),
        stores in proptest::collection::vec(store(), 0..5),
    ) {
        let mut capacities = Vec::new();
        split(target, &stores, &mut capacities);
        prop_assert_eq!(capacities.len(), stores.len());
        let mut floors = 0_u64;
        for (store, capacity) in stores.iter().zip(&capacities) {
            prop_assert!(*capacity <= store.capacity_max_bytes);
            prop_assert!(*capacity >= store.capacity_min_bytes);
            let kept = store.held_bytes.min(store.resident_bytes).min(store.capacity_max_bytes);
            prop_assert!(*capacity >= kept, "held bytes stay");
            floors = floors.saturating_add(kept.max(store.capacity_min_bytes));
        }
        let sum = capacities.iter().fold(0, |sum: u64, capacity| sum.saturating_add(*capacity));
        prop_assert!(sum <= target.max(floors), "{} of {}", sum, target);
    }

    #[test]
    fn an_obedient_store_is_evicted_no_more_than_needed_and_never_grown_into_a_rise(
        steps in proptest::collection::vec((0..20_u64, -6..6_i64), 1..40),
        stored in 20..60_u64,
    ) {
        let mut node = Node::new(60 * GIB, stored * GIB, 60 * GIB);
        node.run(2_500);
        // A rise is one only over the window of the slope.
        let mut window = std::collections::VecDeque::from([u64::MAX; 5]);
        let slowest = node.parameters.growth_bytes_per_s / 100 + BLOCK;
        for (ticks, gib_per_s) in steps {
            for _ in 0..ticks {
                let rise = gib_per_s * (GIB / 100) as i64;
                node.demand = node.demand.saturating_add_signed(rise).min(100 * GIB);
                let (before, demand) = (node.stored(), node.demand);
                window.push_back(demand);
                let first = window.pop_front().unwrap_or(u64::MAX);
                let rises = rise > 0 && first < demand;
                let decision = node.tick();
                let grown = node.stored().saturating_sub(before);
                prop_assert!(grown <= 2 * slowest, "rate of growth: {}", grown);
                prop_assert!(!rises || demand >= 100 * GIB || grown == 0, "{:?}", decision);
                // What is taken leaves at most the headroom, what is foreseen, and a block.
                let foreseen = decision.slope_bytes_per_s / 50;
                let least = (128 * GIB - node.headroom() - demand).saturating_sub(foreseen + BLOCK);
                prop_assert!(node.stored() >= before.min(least), "{:?}", decision);
            }
        }
    }
}
