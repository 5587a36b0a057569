//! Tests of the split over several stores.

use tidepool_control_policy::{StoreSpeed, StoreState, split};

use crate::node::{BLOCK, GIB};

fn store(resident_gib: u64, max_gib: u64) -> StoreState {
    StoreState {
        resident_bytes: resident_gib * GIB,
        capacity_bytes: resident_gib * GIB,
        capacity_max_bytes: max_gib * GIB,
        block_bytes: BLOCK,
        ..StoreState::default()
    }
}

fn slow(resident_gib: u64, max_gib: u64) -> StoreState {
    StoreState { speed: StoreSpeed::Slow, ..store(resident_gib, max_gib) }
}

fn gib(target_gib: u64, stores: &[StoreState]) -> Vec<u64> {
    let mut capacities = vec![7; 9];
    split(target_gib * GIB, stores, &mut capacities);
    capacities.iter().map(|bytes| bytes / GIB).collect()
}

#[test]
fn fast_stores_give_first_in_their_order() {
    let stores = [slow(20, 20), store(20, 20), store(10, 10)];
    assert_eq!(gib(45, &stores), [20, 15, 10]);
    assert_eq!(gib(25, &stores), [20, 0, 5]);
    assert_eq!(gib(15, &stores), [15, 0, 0], "slow ones give what is left");
}

#[test]
fn unconfirmed_bytes_count_as_held() {
    let asked = StoreState { outstanding_bytes: 20 * GIB, ..slow(20, 20) };
    assert_eq!(gib(20, &[asked, store(20, 20)]), [20, 0]);
}

#[test]
fn guaranteed_held_and_unwritten_bytes_stay() {
    let mut stores = [store(20, 20), store(20, 20), store(20, 20)];
    stores[0].capacity_min_bytes = 15 * GIB;
    stores[1].held_bytes = 8 * GIB;
    stores[2].memory_only_bytes = 9 * GIB;
    assert_eq!(gib(32, &stores), [15, 8, 9]);
    assert_eq!(gib(25, &stores), [15, 8, 2], "what can be written is asked for in the end");
    assert_eq!(gib(0, &stores), [15, 8, 0]);
}

#[test]
fn others_take_over_from_a_failed_store() {
    let failed = StoreState { failed: true, ..store(20, 40) };
    assert_eq!(gib(25, &[failed.clone(), store(20, 20)]), [20, 5]);
    assert_eq!(gib(60, &[failed.clone(), store(20, 40)]), [20, 40], "and it is given nothing");
    assert_eq!(gib(15, &[failed, store(20, 20)]), [15, 0], "the last resort");
}

#[test]
fn growth_is_shared_by_weight_and_overflows_to_others() {
    let mut stores = [store(0, 40), store(0, 40)];
    stores[0].weight = 3;
    assert_eq!(gib(20, &stores), [15, 5]);
    stores[0].capacity_max_bytes = 10 * GIB;
    assert_eq!(gib(30, &stores), [10, 20]);
}

#[test]
fn capacities_are_whole_blocks_toward_the_job() {
    let stores = [StoreState { block_bytes: 3 * GIB, ..store(9, 60) }];
    assert_eq!(gib(8, &stores), [6]);
    assert_eq!(gib(14, &stores), [12]);
    let large = StoreState { block_bytes: 8 * GIB, ..store(0, 64) };
    assert_eq!(gib(12, &[large.clone(), large]), [8, 0], "what is left over makes a block");
}
