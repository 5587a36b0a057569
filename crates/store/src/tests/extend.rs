//! Growth of a segment that somebody reads by its descriptor alone.

use std::sync::atomic::{AtomicBool, Ordering};

use super::support::*;
use crate::BlockState;

#[test]
fn a_reader_by_the_length_alone_never_meets_a_hole() {
    let store = store(40);
    let segment = segment(&store, 100);
    assert!(fill_clean(&segment, 0, 7));
    let hold = segment.pin_all().expect("resident and within the cap");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut buffer = vec![0; 8 << 20];
            let mut longest = 0;
            loop {
                // Once more after all of it is there: this thread may not have run before.
                let last = done.load(Ordering::Acquire);
                let from = longest.max(64) as u64 - 64;
                let count = rustix::io::pread(segment.descriptor(), &mut buffer, from).unwrap();
                assert!(buffer[..count].iter().all(|byte| *byte == 7), "a hole within the length");
                longest = (from as usize + count).max(longest);
                if last {
                    return longest;
                }
            }
        });
        for step in 0..400u64 {
            let piece = vec![7; 1 + (step as usize * 7919) % 70_000];
            assert!(segment.extend(0, &piece, BlockState::Clean));
            assert!(segment.is_wholly_resident());
            assert_eq!(segment.descriptor_length(), segment.size());
        }
        done.store(true, Ordering::Release);
        assert!(reader.join().unwrap() > 1 << 20);
    });
    for block in 0..segment.blocks() {
        assert_holds(&segment, block, 7);
    }
    let stats = store.stats();
    assert_eq!(stats.resident_bytes, segment.charged_bytes());
    assert_eq!(stats.pinned_bytes, stats.resident_bytes);
    drop(hold);
    assert_eq!(store.stats().pinned_bytes, 0);
    segment.evict();
    assert_eq!(store.stats().resident_bytes, 0);
}

#[test]
fn growth_without_room_changes_nothing() {
    let store = store(4);
    let segment = segment(&store, BLOCK);
    assert!(fill_clean(&segment, 0, 7));
    let _hold = segment.pin_all().expect("resident and within the cap");
    let clean = BlockState::Clean;
    assert!(!segment.extend(BLOCK, &vec![7; BLOCK as usize], clean), "half may be held");
    assert!(!segment.extend(u64::MAX, b"far away", clean));
    assert_eq!(segment.size(), BLOCK);
    assert!(segment.extend(BLOCK - 1, b"7", clean));
    assert_eq!(segment.size(), 2 * BLOCK);
    assert_eq!(segment.descriptor_length(), 2 * BLOCK);
    assert!(segment.is_wholly_resident());
    assert_eq!(store.stats().resident_bytes, 2 * BLOCK);
}

#[test]
fn growth_that_finds_no_room_half_way_is_taken_back() {
    let store = store(4);
    let others = segment(&store, 3 * BLOCK);
    for block in 0..3 {
        assert!(fill(&others, block, 1, BlockState::MemoryOnly));
    }
    let segment = segment(&store, 100);
    assert!(fill_clean(&segment, 0, 7));
    let _hold = segment.pin_all().expect("resident and within the cap");
    let before = store.stats();
    let growth = vec![7; BLOCK as usize + 8192];
    assert!(!segment.extend(0, &growth, BlockState::Clean));
    assert_eq!(segment.size(), 100);
    assert_eq!(segment.descriptor_length(), 100);
    assert_holds(&segment, 0, 7);
    assert_eq!(store.stats().pinned_bytes, before.pinned_bytes);
    assert_eq!(store.stats().resident_bytes, before.resident_bytes);
}

#[test]
fn what_is_cut_off_a_held_segment_is_held_no_more() {
    let store = store(8);
    let segment = segment(&store, 3 * BLOCK);
    for block in 0..3 {
        assert!(fill_clean(&segment, block, 7));
    }
    let hold = segment.pin_all().expect("resident and within the cap");
    for size in [2 * BLOCK + 100, 0] {
        segment.set_size(size).unwrap();
        assert_eq!(store.stats().pinned_bytes, segment.charged_bytes());
    }
    assert!(segment.extend(0, &vec![8; 4 * BLOCK as usize], BlockState::MemoryOnly));
    assert_eq!(store.stats().pinned_bytes, 4 * BLOCK);
    drop(hold);
    segment.evict();
    assert_holds(&segment, 3, 8);
    assert_eq!(store.stats().pinned_bytes, 0);
}

#[test]
fn growth_of_a_segment_with_gaps_is_refused() {
    let store = store(4);
    let segment = segment(&store, 2 * BLOCK);
    assert!(fill_clean(&segment, 1, 7));
    assert!(!segment.extend(0, b"more", BlockState::Clean));
    assert_eq!(segment.size(), 2 * BLOCK);
}
