//! One thread, one step at a time: what each operation promises.

use std::os::fd::{AsFd, AsRawFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::support::*;
use crate::{
    BackingChoice, BlockState, FillStart, Owner, PolicyKind, QuotaKey, Store, StoreConfig,
};

#[test]
fn a_block_is_filled_read_evicted() {
    let store = store(4);
    let segment = segment(&store, 3 * BLOCK + 5);
    assert_eq!((segment.blocks(), segment.size()), (4, 3 * BLOCK + 5));
    assert!(segment.pin_block(0).is_none());
    for block in 0..4 {
        assert!(fill_clean(&segment, block, block as u8 + 1));
    }
    assert!(matches!(segment.begin_fill(1), FillStart::Resident));
    assert!(matches!(segment.begin_fill(4), FillStart::NotAdmitted), "beyond the end");
    assert_eq!(segment.pin_block(3).unwrap().len(), 5);
    assert_eq!(segment.resident_bytes(), 3 * BLOCK + 5);
    assert!(segment.is_wholly_resident());
    for block in 0..4 {
        assert_holds(&segment, block, block as u8 + 1);
    }
    assert!(segment.evict_block(1));
    assert_eq!(segment.state(1), BlockState::Absent);
    assert!(!segment.is_wholly_resident());
    assert_eq!(segment.evict(), 2 * BLOCK + 4096);
    assert_eq!(store.stats().resident_bytes, 0);
}

#[test]
fn a_fill_that_is_dropped_gives_its_memory_back() {
    let store = store(1);
    let segment = segment(&store, 2 * BLOCK);
    let FillStart::Started(mut fill) = segment.begin_fill(0) else { panic!("not started") };
    fill.fill(9);
    assert!(matches!(segment.begin_fill(0), FillStart::Busy));
    assert!(matches!(segment.begin_fill(1), FillStart::NotAdmitted), "the only block is taken");
    drop(fill);
    assert_eq!(store.stats().resident_bytes, 0);
    let FillStart::Started(fill) = segment.begin_fill(0) else { panic!("not started") };
    assert!(fill.iter().all(|byte| *byte == 0), "old bytes shine through");
}

#[test]
fn only_clean_unpinned_blocks_are_evicted() {
    let store = store(3);
    let segment = segment(&store, 4 * BLOCK);
    assert!(fill(&segment, 0, 1, BlockState::Dirty));
    assert!(fill(&segment, 1, 2, BlockState::MemoryOnly));
    assert!(fill_clean(&segment, 2, 3));
    let pin = segment.pin_block(2).unwrap();
    assert!(!fill_clean(&segment, 3, 4), "nothing may go");
    drop(pin);
    assert!(fill_clean(&segment, 3, 4), "the clean block may go");
    assert!(segment.pin_block(2).is_none());
    assert_holds(&segment, 0, 1);
    assert_holds(&segment, 1, 2);
    segment.set_state(0, BlockState::Clean);
    assert!(segment.evict_block(0));
    segment.discard();
    assert_eq!(store.stats().resident_bytes, 0, "drop asks for no state");
}

#[test]
fn pressure_asks_for_owed_blocks() {
    let store = store(2);
    let segment = segment(&store, 4 * BLOCK);
    assert!(fill(&segment, 0, 1, BlockState::MemoryOnly));
    assert!(fill(&segment, 1, 2, BlockState::MemoryOnly));
    let asked_bytes = Arc::new(AtomicU64::new(0));
    let (spilled, asked) = (segment.clone(), asked_bytes.clone());
    store.on_pressure(Box::new(move |bytes| {
        asked.fetch_add(bytes, Ordering::Relaxed);
        spilled.set_state(0, BlockState::Clean);
    }));
    assert!(fill_clean(&segment, 2, 3));
    assert_eq!(asked_bytes.load(Ordering::Relaxed), BLOCK);
    assert_eq!(segment.state(0), BlockState::Absent);
    store.on_pressure(Box::new(|_| {}));
}

#[test]
fn a_resize_to_nothing_reports_what_is_held() {
    let store = store(4);
    let segment = segment(&store, 4 * BLOCK);
    (0..3).for_each(|block| assert!(fill_clean(&segment, block, 7)));
    assert!(fill(&segment, 3, 8, BlockState::Dirty));
    let pin = segment.pin_block(0).unwrap();
    let report = store.resize(0);
    assert_eq!((report.freed_bytes, report.held_bytes), (2 * BLOCK, 2 * BLOCK));
    assert!(!fill_clean(&segment, 1, 7), "nothing comes in");
    assert!(pin.iter().all(|byte| *byte == 7), "what is pinned can be read");
    drop(pin);
    segment.set_state(3, BlockState::Clean);
    assert_eq!(store.stats().resident_bytes, 0, "what was held goes when it is let go of");
    assert_eq!(store.resize(4 * BLOCK).capacity_bytes, 4 * BLOCK);
    assert!(fill_clean(&segment, 1, 7));
    assert_holds(&segment, 1, 7);
}

#[test]
fn holds_keep_a_whole_segment_within_their_cap() {
    let store = store(8);
    let held = segment(&store, 4 * BLOCK);
    assert!(held.pin_all().is_none(), "not resident");
    (0..4).for_each(|block| assert!(fill_clean(&held, block, 1)));
    let other = segment(&store, BLOCK);
    assert!(fill_clean(&other, 0, 2));
    let hold = held.pin_all().unwrap();
    let again = held.pin_all().unwrap();
    assert_eq!(store.stats().pinned_bytes, 4 * BLOCK, "counted once");
    assert!(other.pin_all().is_none(), "beyond half of the capacity");
    assert_eq!(held.evict(), 0);
    held.discard();
    assert_holds(&held, 3, 1);
    drop(hold);
    assert_holds(&held, 3, 1);
    assert_eq!(store.evict_all().held_bytes, 4 * BLOCK);
    drop(again);
    assert_eq!(store.stats().resident_bytes, 0, "the drop was asked for under the hold");
    assert_eq!(store.stats().pinned_bytes, 0);
}

#[test]
fn growing_reads_as_zeros_and_stays_resident() {
    let store = store(4);
    let segment = segment(&store, 100);
    assert!(fill(&segment, 0, 5, BlockState::MemoryOnly));
    segment.set_size(10_000).unwrap();
    let pin = segment.pin_block(0).unwrap();
    assert_eq!(pin.len(), 10_000);
    assert!(pin[..100].iter().all(|byte| *byte == 5) && pin[100..].iter().all(|byte| *byte == 0));
    drop(pin);
    assert_eq!(segment.write_resident(9_000, &[6; 5_000]), 1_000, "up to the end");
    segment.set_size(3 * BLOCK + 1).unwrap();
    assert_eq!(segment.pin_block(0).unwrap().len() as u64, BLOCK);
    assert_eq!(segment.pin_block(0).unwrap()[9_999], 6);
    assert_eq!(store.stats().resident_bytes, BLOCK);
    assert_eq!(segment.resident_bytes(), BLOCK);
    assert!(fill_clean(&segment, 3, 1));
    assert_eq!(segment.descriptor_length(), 3 * BLOCK + 1, "passthrough sees the exact end");
}

#[test]
fn growing_without_room_changes_nothing() {
    let store = store(2);
    let owed = segment(&store, BLOCK);
    assert!(fill(&owed, 0, 1, BlockState::Dirty));
    let segment = segment(&store, 4096);
    assert!(fill(&segment, 0, 2, BlockState::Dirty));
    let other = super::support::segment(&store, BLOCK - 4096);
    assert!(fill(&other, 0, 3, BlockState::Dirty));
    let error = segment.set_size(BLOCK).unwrap_err();
    assert_eq!(error.kind(), tidepool_proto::ErrorKind::StoreFull);
    assert_eq!((segment.size(), segment.resident_bytes()), (4096, 4096));
    assert_holds(&segment, 0, 2);
    segment.set_state(0, BlockState::Clean);
    segment.set_size(BLOCK).expect("a clean block is given up instead");
    assert_eq!(segment.state(0), BlockState::Absent);
}

#[test]
fn shrinking_cuts_exactly() {
    let store = store(8);
    let segment = segment(&store, 4 * BLOCK);
    (0..4).for_each(|block| assert!(fill(&segment, block, 3, BlockState::Dirty)));
    segment.set_size(BLOCK + 10).unwrap();
    assert_eq!(segment.blocks(), 2);
    assert_eq!(segment.pin_block(1).unwrap().len(), 10);
    assert_eq!(segment.state(1), BlockState::Dirty);
    assert_eq!(store.stats().resident_bytes, BLOCK + 4096);
    segment.set_size(2 * BLOCK).unwrap();
    let pin = segment.pin_block(1).unwrap();
    assert!(pin[..10].iter().all(|byte| *byte == 3) && pin[10..].iter().all(|byte| *byte == 0));
    drop(pin);
    segment.set_size(0).unwrap();
    assert_eq!(store.stats().resident_bytes, 0);
    assert!(segment.is_wholly_resident(), "nothing is all of nothing");
    assert!(segment.pin_all().is_some());
}

#[test]
fn a_truncation_during_a_fill_does_not_wait_for_it() {
    let store = store(8);
    let segment = segment(&store, 3 * BLOCK);
    let start = |block| match segment.begin_fill(block) {
        FillStart::Started(mut fill) => {
            fill.fill(4);
            fill
        }
        other => panic!("{other:?}"),
    };
    let (whole, clean, beyond) = (start(0), start(1), start(2));
    segment.set_size(BLOCK + 100).unwrap();
    assert!(!clean.commit(BlockState::Clean), "bytes of the version before");
    assert!(!beyond.commit(BlockState::Dirty), "cut off");
    assert!(whole.commit(BlockState::Clean));
    let written = start(1);
    assert_eq!(written.len(), 100);
    segment.set_size(BLOCK + 40).unwrap();
    segment.set_size(2 * BLOCK).unwrap();
    assert!(written.commit(BlockState::Dirty), "written bytes are not lost");
    let pin = segment.pin_block(1).unwrap();
    assert_eq!(pin.len() as u64, BLOCK);
    assert!(pin[..40].iter().all(|byte| *byte == 4) && pin[40..].iter().all(|byte| *byte == 0));
    drop(pin);
    assert_eq!(store.stats().resident_bytes, 2 * BLOCK);
    segment.set_size(2 * BLOCK - 5000).unwrap();
    assert_eq!(segment.descriptor_length(), 2 * BLOCK - 5000);
}

#[test]
fn a_cut_reads_as_zeros_even_while_a_fill_keeps_the_file_long() {
    let store = store(4);
    let segment = segment(&store, 3 * BLOCK);
    assert!(fill(&segment, 0, 5, BlockState::Dirty));
    let FillStart::Started(beyond) = segment.begin_fill(2) else { panic!("not started") };
    segment.set_size(100).unwrap();
    assert_eq!(store.stats().resident_bytes, 4096 + BLOCK);
    segment.set_size(BLOCK).unwrap();
    let pin = segment.pin_block(0).unwrap();
    assert!(pin[..100].iter().all(|byte| *byte == 5) && pin[100..].iter().all(|byte| *byte == 0));
    drop((pin, beyond));
    assert_eq!(store.stats().resident_bytes, BLOCK);
    assert_eq!(segment.descriptor_length(), BLOCK);
}

#[test]
fn a_write_over_a_fill_makes_it_stale() {
    let store = store(2);
    let segment = segment(&store, BLOCK);
    let FillStart::Started(fill) = segment.begin_fill(0) else { panic!("not started") };
    assert_eq!(segment.write_resident(10, b"new"), 0);
    assert!(!fill.commit(BlockState::Clean), "it may have read the bytes before the write");
    assert!(fill_clean(&segment, 0, 1));
    assert_eq!(segment.write_resident(BLOCK - 2, b"new"), 2);
    assert_eq!(&segment.pin_block(0).unwrap()[BLOCK as usize - 3..], b"\x01ne");
}

#[test]
fn a_terabyte_costs_nothing_until_it_is_filled() {
    let store = store(2);
    let before = store.stats().bookkeeping_bytes;
    let segment = segment(&store, 1 << 40);
    let last = segment.blocks() - 1;
    assert!(fill_clean(&segment, last, 1));
    assert!(fill_clean(&segment, 0, 2));
    assert_holds(&segment, last, 1);
    let cost = store.stats().bookkeeping_bytes - before;
    assert!(cost < 400_000, "{cost} bytes of bookkeeping");
    assert_eq!(store.stats().resident_bytes, 2 * BLOCK);
    segment.set_size(0).unwrap();
    assert_eq!(segment.blocks(), 0);
}

#[test]
fn a_dropped_segment_frees_everything_once_pins_are_gone() {
    let store = store(4);
    let segment = segment(&store, 2 * BLOCK);
    assert!(fill_clean(&segment, 0, 1) && fill(&segment, 1, 2, BlockState::Dirty));
    let pin = segment.pin_block(0).unwrap();
    let FillStart::Started(fill) = segment_fill(&store) else { panic!("not started") };
    drop(segment);
    assert_eq!(store.stats().segments, 0);
    assert!(pin.iter().all(|byte| *byte == 1));
    drop(pin);
    assert!(!fill.commit(BlockState::Dirty), "its segment is gone");
    assert_eq!(store.stats().resident_bytes, 0);
}

fn segment_fill(store: &Arc<Store>) -> FillStart {
    segment(store, BLOCK).begin_fill(0)
}

#[test]
fn superseded_segments_go_first() {
    for kind in PolicyKind::ALL {
        let store = store_with(4, kind);
        let (old, new) = (segment(&store, 2 * BLOCK), segment(&store, 3 * BLOCK));
        assert!(fill_clean(&new, 0, 1) && fill_clean(&new, 1, 1));
        assert!(fill_clean(&old, 0, 2) && fill_clean(&old, 1, 2));
        (0..2).for_each(|block| _ = (new.pin_block(block), old.pin_block(block)));
        old.invalidate();
        assert_holds(&old, 1, 2);
        assert_eq!(old.rank(), Some(0.0));
        assert!(fill_clean(&new, 2, 1));
        assert_eq!(old.resident_bytes(), BLOCK, "{kind}");
        assert_eq!(new.resident_bytes(), 3 * BLOCK, "{kind}");
    }
}

#[test]
fn quotas_evict_from_their_own_owner() {
    let store = store(8);
    let owner = |user_id, directory| Owner { user_id, directory, time_to_live: None };
    let one = store.create_segment(4 * BLOCK, owner(1, Some(7))).unwrap();
    let two = store.create_segment(4 * BLOCK, owner(2, Some(7))).unwrap();
    store.set_quota(QuotaKey::User(1), Some(2 * BLOCK));
    (0..4).for_each(|block| assert!(fill_clean(&two, block, 2)));
    (0..4).for_each(|block| assert!(fill_clean(&one, block, 1)));
    assert_eq!((one.resident_bytes(), two.resident_bytes()), (2 * BLOCK, 4 * BLOCK));
    one.discard();
    assert!(fill(&one, 0, 1, BlockState::Dirty) && fill(&one, 1, 1, BlockState::Dirty));
    assert!(!fill_clean(&one, 2, 1), "nothing of this owner may go");
    assert_eq!(two.resident_bytes(), 4 * BLOCK, "others do not pay");
    store.set_quota(QuotaKey::Directory(7), Some(3 * BLOCK));
    assert_eq!(one.resident_bytes() + two.resident_bytes(), 3 * BLOCK, "at once");
    store.set_quota(QuotaKey::Directory(7), None);
    store.set_quota(QuotaKey::User(1), None);
    assert!(fill_clean(&one, 2, 1));
}

#[test]
fn contents_expire() {
    let store = store(8);
    let life = Some(Duration::from_secs(60));
    let owner = Owner { user_id: 0, directory: None, time_to_live: life };
    let mortal = store.create_segment(2 * BLOCK, owner).unwrap();
    let immortal = segment(&store, BLOCK);
    assert!(fill_clean(&mortal, 0, 1) && fill_clean(&immortal, 0, 2));
    assert!(fill(&mortal, 1, 1, BlockState::Dirty));
    assert_eq!(store.expire(Instant::now()), 0);
    let later = Instant::now() + Duration::from_secs(61);
    assert_eq!(store.expire(later), BLOCK, "what is owed stays");
    assert_eq!((mortal.resident_bytes(), immortal.resident_bytes()), (BLOCK, BLOCK));
}

#[test]
fn memfd_and_small_pages_work_too() {
    let config = StoreConfig {
        backing: BackingChoice::Memfd,
        huge_pages: false,
        ..super::support::config(4)
    };
    let store = Store::new(config).unwrap();
    assert_eq!((store.stats().backing.as_str(), store.stats().huge_pages), ("memfd", false));
    let segment = segment(&store, 3 * BLOCK + 1);
    (0..4).for_each(|block| assert!(fill_clean(&segment, block, 9)));
    assert_holds(&segment, 3, 9);
    let mut bytes = [0; 8];
    assert_eq!(rustix::io::pread(segment.descriptor(), &mut bytes, 3 * BLOCK - 4).unwrap(), 5);
    assert_eq!(bytes, [9, 9, 9, 9, 9, 0, 0, 0]);
    assert_eq!(segment.evict(), 3 * BLOCK + 4096);
    assert_eq!(rustix::io::pread(segment.descriptor(), &mut bytes, 0).unwrap(), 8);
    assert_eq!(bytes, [0; 8], "freed memory reads as zeros: the table says absent");
}

#[test]
fn settings_without_meaning_are_refused() {
    for (block_bytes, pinned_share_max) in
        [(0, 0.5), (3 << 20, 0.5), (2 << 20, 1.5), (4 << 30, 0.1)]
    {
        let refused = StoreConfig { block_bytes, pinned_share_max, ..StoreConfig::default() };
        assert!(Store::new(refused).is_err(), "{block_bytes} {pinned_share_max}");
    }
    for kind in PolicyKind::ALL {
        assert_eq!(kind.to_string().parse::<PolicyKind>().unwrap(), kind);
    }
    assert!("mru".parse::<PolicyKind>().is_err());
}

#[test]
fn descriptors_of_readers_cannot_write() {
    let store = store(2);
    let segment = segment(&store, BLOCK);
    assert!(fill_clean(&segment, 0, 1));
    let out = segment.export().unwrap().unwrap();
    let borrow = segment.borrow_for_client().unwrap();
    for file in [borrow.descriptor(), out.segment.as_fd(), out.table.as_fd()] {
        assert!(rustix::io::pwrite(file, b"x", 0).is_err());
        assert!(rustix::fs::ftruncate(file, 0).is_err());
        let mode = rustix::fs::fstat(file).unwrap().st_mode & 0o7777;
        assert_eq!(mode, 0, "nobody reopens it through /proc");
        // SAFETY: the kernel chooses the place; the mapping is refused, so there is none.
        let writable = unsafe {
            let protection = rustix::mm::ProtFlags::WRITE;
            let flags = rustix::mm::MapFlags::SHARED;
            rustix::mm::mmap(std::ptr::null_mut(), 4096, protection, flags, file, 0)
        };
        assert!(writable.is_err());
    }
    assert!(rustix::fs::ftruncate(&out.touches, 0).is_err(), "sealed against shrinking");
    assert!(rustix::io::pwrite(&out.touches, b"x", 0).is_ok());
    let seals = rustix::fs::fcntl_get_seals(&out.table).unwrap();
    assert!(seals.contains(rustix::fs::SealFlags::FUTURE_WRITE));
}

#[test]
fn memory_that_cannot_be_had_is_a_refusal_not_a_signal() {
    let Some(store) = store_short_of_memory(8, 2 * BLOCK + 8192) else {
        return eprintln!("skipped: needs the right to mount");
    };
    let segment = segment(&store, 4 * BLOCK);
    assert!(fill(&segment, 0, 1, BlockState::Dirty) && fill(&segment, 1, 2, BlockState::Dirty));
    assert!(!fill_clean(&segment, 2, 3), "the kernel has no more");
    assert_eq!(store.stats().resident_bytes, 2 * BLOCK);
    let small = super::support::segment(&store, 4096);
    assert!(fill(&small, 0, 4, BlockState::Dirty));
    assert!(small.set_size(BLOCK).is_err(), "growing takes its memory at once");
    assert_eq!((small.size(), small.descriptor_length()), (4096, 4096));
    assert_holds(&small, 0, 4);
    segment.discard();
    assert!(fill_clean(&segment, 2, 3));
    assert_holds(&segment, 2, 3);
    assert_eq!(store.stats().resident_bytes, BLOCK + 4096);
}

#[test]
fn a_loop_larger_than_the_store_hits_as_often_as_it_can() {
    let capacity_blocks = 96;
    let store = store_with(capacity_blocks, PolicyKind::Cyclic);
    let loop_blocks = capacity_blocks * 4 / 3;
    let segment = segment(&store, loop_blocks * BLOCK);
    let mut hits = 0;
    for pass in 0..5 {
        for block in 0..loop_blocks {
            // In four pieces, as an application with a smaller buffer reads.
            for piece in 0..4 {
                if segment.pin_block(block).is_some() {
                    hits += u64::from(pass > 0 && piece == 0);
                } else if let FillStart::Started(fill) = segment.begin_fill(block) {
                    assert!(fill.commit(BlockState::Clean));
                    assert!(segment.pin_block(block).is_some());
                }
            }
        }
    }
    let ratio = hits as f64 / (4 * loop_blocks) as f64;
    assert!(ratio >= 0.71, "hit ratio {ratio} of the passes after the first");
}

#[test]
fn a_cut_frees_its_memory_even_from_a_page_that_cannot_be_split() {
    let store = store(4);
    let segment = segment(&store, BLOCK);
    assert!(fill(&segment, 0, 6, BlockState::Dirty));
    // A page in a pipe is referenced, and the kernel does not split a huge page that is.
    let (_reader, writer) = std::io::pipe().unwrap();
    let (from, to) = (segment.descriptor().as_raw_fd(), writer.as_raw_fd());
    let mut offset = 0;
    let none = std::ptr::null_mut();
    // SAFETY: both descriptors are open, and the offset lives as long as the call.
    let moved = unsafe { libc::splice(from, &raw mut offset, to, none, 4096, 0) };
    assert_eq!(moved, 4096);
    segment.set_size(5000).unwrap();
    let held = rustix::fs::fstat(segment.descriptor()).unwrap().st_blocks * 512;
    assert_eq!((held as u64, segment.charged_bytes()), (8192, 8192));
    assert_eq!(segment.pin_block(0).unwrap().len(), 5000);
    assert_holds(&segment, 0, 6);
    segment.set_size(9000).unwrap();
    assert!(segment.pin_block(0).unwrap()[5000..].iter().all(|byte| *byte == 0));
}

#[test]
fn what_nobody_uses_is_unmapped_and_mapped_again() {
    let store = store(8);
    let [idle, used] = [1, 2].map(|value| {
        let segment = segment(&store, 2 * BLOCK);
        assert!(fill_clean(&segment, 0, value) && fill_clean(&segment, 1, value));
        segment
    });
    store.unmap_idle();
    assert_eq!(store.mapping_count(), 2, "both were filled since the last look");
    drop(used.pin_block(0));
    store.unmap_idle();
    assert_eq!(store.mapping_count(), 1);
    let pin = used.pin_block(1).unwrap();
    (0..3).for_each(|_| store.unmap_idle());
    assert!(pin.iter().all(|byte| *byte == 2), "unmapped under a pin");
    assert_holds(&idle, 1, 1);
    assert_eq!(store.mapping_count(), 2);
    let before = store.stats().resident_bytes;
    drop(pin);
    (0..3).for_each(|_| store.unmap_idle());
    assert_eq!((store.mapping_count(), store.stats().resident_bytes), (0, before));
}
