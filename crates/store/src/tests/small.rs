//! Packed small files.

use std::sync::Arc;

use tidepool_proto::{FileId, Version};

use super::support::*;
use crate::{Owner, QuotaKey, Store};

fn id(inode: u64) -> FileId {
    FileId { device: 1, inode }
}

fn version(inode: u64, size: u64, stamp: i128) -> Version {
    Version { id: id(inode), size, modified_ns: stamp, changed_ns: stamp, born_ns: 0 }
}

fn insert(store: &Store, inode: u64, size: usize, stamp: i128) -> bool {
    let bytes = vec![inode as u8; size];
    store
        .insert_small(id(inode), version(inode, size as u64, stamp), Owner::default(), &bytes)
        .unwrap()
}

fn holds(store: &Store, inode: u64, size: usize, stamp: i128) -> bool {
    let right = |bytes: &[u8]| bytes.len() == size && bytes.iter().all(|b| *b == inode as u8);
    match store.read_small(id(inode), &version(inode, size as u64, stamp), right) {
        Some(right) => {
            assert!(right, "file {inode} has other bytes");
            true
        }
        None => false,
    }
}

#[test]
fn only_the_exact_version_is_read() {
    let store = store(4);
    assert!(insert(&store, 1, 5000, 10));
    assert!(insert(&store, 2, 0, 10), "an empty file");
    assert!(holds(&store, 1, 5000, 10) && holds(&store, 2, 0, 10));
    assert!(!holds(&store, 1, 5000, 11), "changed");
    assert!(!holds(&store, 1, 5001, 10), "another length");
    assert!(!holds(&store, 3, 1, 10), "never seen");
    store.rebase_small(id(1), &version(1, 5000, 10), version(1, 5000, 12));
    assert!(holds(&store, 1, 5000, 12) && !holds(&store, 1, 5000, 10));
    store.rebase_small(id(1), &version(1, 5000, 10), version(1, 5000, 13));
    assert!(holds(&store, 1, 5000, 12), "carried from a version that is not there");
    assert!(insert(&store, 1, 100, 14), "replaced");
    assert!(holds(&store, 1, 100, 14) && !holds(&store, 1, 5000, 12));
    assert_eq!(store.small_state(id(1)), Some((version(1, 100, 14), 100)));
    assert_eq!(store.stats().small_files, 2);
    assert_eq!(store.stats().segments, 0);
    store.remove_small(id(1));
    assert!(!holds(&store, 1, 100, 14));
    assert!(store.insert_small(id(1), version(1, 9, 1), Owner::default(), b"short").is_err());
}

#[test]
fn a_later_file_with_the_inode_number_of_another_is_not_given_its_bytes() {
    let store = store(4);
    let born = |born_ns| Version { born_ns, ..version(1, 100, 10) };
    assert!(store.insert_small(id(1), born(5), Owner::default(), &[1; 100]).unwrap());
    let is_read = |version: Version| store.read_small(id(1), &version, |_| ()).is_some();
    assert!(is_read(born(5)) && !is_read(born(6)));
    assert!(is_read(born(0)), "who does not know the birth time is not shut out");
    store.rebase_small(id(1), &born(6), Version { changed_ns: 11, ..born(6) });
    assert!(is_read(born(5)), "carried along by another file");
    store.rebase_small(id(1), &born(0), Version { changed_ns: 12, ..born(0) });
    let carried = |born_ns| Version { changed_ns: 12, ..born(born_ns) };
    assert!(is_read(carried(5)) && !is_read(carried(6)), "a carry keeps the birth time");
}

#[test]
fn a_pack_is_freed_when_its_last_file_is_gone() {
    let store = store(4);
    let half = BLOCK as usize / 2;
    (1..=4).for_each(|inode| assert!(insert(&store, inode, half, 1)));
    assert_eq!(store.stats().resident_bytes, 2 * BLOCK);
    store.remove_small(id(1));
    assert_eq!(store.stats().resident_bytes, 2 * BLOCK);
    store.remove_small(id(2));
    assert_eq!(store.stats().resident_bytes, BLOCK, "the first pack is dead");
    assert!(holds(&store, 3, half, 1) && holds(&store, 4, half, 1));
    assert!(insert(&store, 5, half, 1) && insert(&store, 6, half, 1), "its block is used again");
    assert!((3..=6).all(|inode| holds(&store, inode, half, 1)));
}

#[test]
fn whole_packs_are_evicted_and_forgotten() {
    let store = store(3);
    let segment = segment(&store, 2 * BLOCK);
    let size = 64 << 10;
    let per_pack = BLOCK as usize / size;
    let count = 10 * per_pack as u64;
    (0..count).for_each(|inode| assert!(insert(&store, inode, size, 1)));
    let present = (0..count).filter(|inode| holds(&store, *inode, size, 1)).count();
    assert_eq!(present, 3 * per_pack);
    assert_eq!(store.stats().small_files, present as u64);
    assert!(fill_clean(&segment, 0, 1), "segments and packs share the memory");
    let present = (0..count).filter(|inode| holds(&store, *inode, size, 1)).count();
    assert_eq!(present, 2 * per_pack);
    store.resize(0);
    assert_eq!(store.stats().small_files, 0);
    assert!(!insert(&store, 1, size, 1));
    store.resize(BLOCK);
    assert!(insert(&store, 1, size, 1) && holds(&store, 1, size, 1));
}

#[test]
fn owners_pay_for_their_own_packs() {
    let store = store(8);
    let owner = |user_id| Owner { user_id, ..Owner::default() };
    store.set_quota(QuotaKey::User(1), Some(BLOCK));
    store.set_quota(QuotaKey::User(3), Some(0));
    let bytes = vec![1; BLOCK as usize / 4];
    let size = bytes.len() as u64;
    for inode in 0..12 {
        let user = inode as u32 % 2 + 1;
        assert!(
            store.insert_small(id(inode), version(inode, size, 1), owner(user), &bytes).unwrap()
        );
    }
    let present = |inode: &u64| store.small_state(id(*inode)).is_some();
    assert_eq!((0..12).filter(|inode| inode % 2 == 1).filter(present).count(), 6);
    assert_eq!((0..12).filter(|inode| inode % 2 == 0).filter(present).count(), 2, "one block");
    assert!(!store.insert_small(id(99), version(99, size, 1), owner(3), &bytes).unwrap());
}

#[test]
fn readers_and_writers_of_small_files_agree_under_eviction() {
    let store = store(3);
    let workers: Vec<_> = (0..4u64)
        .map(|worker| {
            let store: Arc<Store> = store.clone();
            std::thread::spawn(move || {
                for round in 0..1500u64 {
                    let inode = (round * 7 + worker * 13) % 200;
                    let size = 1000 + inode as usize * 200;
                    holds(&store, inode, size, 1);
                    match round % 11 {
                        0 => store.remove_small(id(inode)),
                        5 if worker == 0 => _ = store.evict_all(),
                        6 if worker == 1 => _ = store.resize((round % 4) * BLOCK),
                        _ => _ = insert(&store, inode, size, 1),
                    }
                }
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    store.resize(3 * BLOCK);
    for inode in 0..20 {
        let size = 1000 + inode as usize * 200;
        assert!(insert(&store, inode, size, 2) && holds(&store, inode, size, 2), "still works");
    }
    store.resize(0);
    let stats = store.stats();
    assert_eq!((stats.resident_bytes, stats.small_files), (0, 0));
    assert!(stats.resident_bytes_peak <= 3 * BLOCK);
}

#[test]
fn packs_of_files_that_are_read_once_count_as_no_hits() {
    // A pack takes the block of one that went.
    let store = store(8);
    for inode in 0..2_000 {
        assert!(insert(&store, inode, 100 << 10, 10));
        assert!(holds(&store, inode, 100 << 10, 10));
    }
    let choice = store.stats().policy_choice.expect("the default says");
    assert!(choice.compared_reads > 20, "{choice:?}");
    assert!(choice.candidates.iter().all(|it| it.would_hit_ratio < 0.01), "{choice:?}");
}
