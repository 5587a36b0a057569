//! Growth of a segment that somebody reads by its descriptor alone.

use std::sync::atomic::{AtomicBool, Ordering};

use super::support::*;

#[test]
fn a_reader_by_the_length_alone_never_meets_a_hole() {
    let store = store(40);
    let segment = segment(&store, 100);
    assert!(fill_clean(&segment, 0, 7));
    let hold = segment.hold().expect("resident and within the cap");
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let mut reads = 0;
            let mut buffer = vec![0; 8 << 20];
            let mut longest = 0;
            while !done.load(Ordering::Acquire) || reads == 0 {
                let from = longest.max(64) as u64 - 64;
                let count = rustix::io::pread(hold.descriptor(), &mut buffer, from).unwrap();
                assert!(buffer[..count].iter().all(|byte| *byte == 7), "a hole within the length");
                longest = (from as usize + count).max(longest);
                reads += 1;
            }
            longest
        });
        for step in 0..400u64 {
            let piece = vec![7; 1 + (step as usize * 7919) % 70_000];
            assert_eq!(segment.extend(&piece), piece.len() as u64);
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
    let _hold = segment.hold().expect("resident and within the cap");
    let appended = segment.extend(&vec![7; 3 * BLOCK as usize]);
    assert_eq!(appended, BLOCK, "half of the store may be held");
    assert_eq!(segment.size(), 2 * BLOCK);
    assert_eq!(segment.descriptor_length(), 2 * BLOCK);
    assert!(segment.is_wholly_resident());
    assert_eq!(store.stats().resident_bytes, 2 * BLOCK);
}

#[test]
fn growth_of_a_segment_with_gaps_is_refused() {
    let store = store(4);
    let segment = segment(&store, 2 * BLOCK);
    assert!(fill_clean(&segment, 1, 7));
    assert_eq!(segment.extend(b"more"), 0);
    assert_eq!(segment.size(), 2 * BLOCK);
}
