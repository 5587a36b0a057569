//! What several users of one store leave each other.

use std::sync::Arc;

use super::support::{BLOCK, fill_clean, store_with};
use crate::{Owner, PolicyKind, Segment, Store};

const POLICIES: [PolicyKind; 4] =
    [PolicyKind::Lru, PolicyKind::Lfu, PolicyKind::S3Fifo, PolicyKind::Cyclic];
const READER: u32 = 1;
const STREAMER: u32 = 2;
const CAPACITY_BLOCKS: u64 = 32;

fn segment_of(store: &Arc<Store>, user_id: u32, blocks: u64) -> Arc<Segment> {
    let owner = Owner { user_id, ..Owner::default() };
    let segment = store.create_segment(blocks * BLOCK, owner).expect("a segment");
    for block in 0..blocks {
        fill_clean(&segment, block, 1);
    }
    segment
}

fn resident_blocks(segment: &Segment) -> usize {
    (0..segment.blocks()).filter(|block| segment.pin_block(*block).is_some()).count()
}

/// Lets so many blocks of one file pass through the store.
fn stream(store: &Arc<Store>, blocks: u64) {
    drop(segment_of(store, STREAMER, blocks));
}

#[test]
fn who_streams_leaves_what_others_read() {
    for policy in POLICIES {
        let store = store_with(CAPACITY_BLOCKS, policy);
        let read = segment_of(&store, READER, CAPACITY_BLOCKS / 4);
        for round in 0..10 {
            let resident = resident_blocks(&read);
            assert_eq!(resident as u64, CAPACITY_BLOCKS / 4, "{policy:?}, round {round}");
            stream(&store, 3 * CAPACITY_BLOCKS);
        }
    }
}

#[test]
fn what_nobody_reads_goes_for_others() {
    for policy in POLICIES {
        let store = store_with(CAPACITY_BLOCKS, policy);
        let idle = segment_of(&store, READER, CAPACITY_BLOCKS / 4);
        stream(&store, 40 * CAPACITY_BLOCKS);
        assert_eq!(resident_blocks(&idle), 0, "{policy:?}");
    }
}

#[test]
fn nobody_keeps_more_than_his_share_from_others() {
    for policy in [PolicyKind::Lru, PolicyKind::S3Fifo] {
        let store = store_with(CAPACITY_BLOCKS, policy);
        let read = segment_of(&store, READER, CAPACITY_BLOCKS * 3 / 4);
        let mut resident = 0;
        for _ in 0..10 {
            resident = resident_blocks(&read) as u64;
            stream(&store, 3 * CAPACITY_BLOCKS);
        }
        assert!((1..=CAPACITY_BLOCKS / 2).contains(&resident), "{policy:?}: {resident} blocks");
    }
}

/// Reads a block, bringing it in where it is not; whether it was there.
fn visit(segment: &Segment, block: u64) -> bool {
    let hit = segment.pin_block(block).is_some();
    if !hit {
        fill_clean(segment, block, 1);
        drop(segment.pin_block(block));
    }
    hit
}

#[test]
fn a_loop_beside_another_user_keeps_a_stable_part() {
    for policy in [PolicyKind::Cyclic, PolicyKind::Fixed, PolicyKind::Adaptive] {
        let store = store_with(64, policy);
        let empty = |user_id| {
            let owner = Owner { user_id, ..Owner::default() };
            store.create_segment(48 * BLOCK, owner).expect("a segment")
        };
        let (looping, popular) = (empty(READER), empty(STREAMER));
        let (mut hits, mut state) = (0, 1_u64);
        for pass in 0..12 {
            for block in 0..48 {
                let hit = visit(&looping, block);
                hits += u32::from(hit && pass >= 4);
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                let share = (state >> 33) as f64 / (1_u64 << 31) as f64;
                visit(&popular, (share.powi(3) * 48.0) as u64);
            }
        }
        let ratio = f64::from(hits) / (8.0 * 48.0);
        assert!(ratio > 0.5, "{policy}: {ratio:.3} of a loop of which two thirds fit");
    }
}
