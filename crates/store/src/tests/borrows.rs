//! Loans to the kernel, which end with the last mapping, not with the open.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::mm::{MapFlags, ProtFlags};

use super::support::*;
use crate::{BackingChoice, BlockState, KernelBorrow, Segment, Store, StoreConfig};

/// Within this everything comes that comes by itself.
const PATIENCE: Duration = Duration::from_secs(30);

/// What a program mapped by an open that is over: the kernel opens the memory file for each open.
struct Mapped {
    base: *const u8,
    length: usize,
}

impl Mapped {
    fn of(borrow: &KernelBorrow, length: u64, flags: MapFlags) -> Mapped {
        let path = format!("/proc/self/fd/{}", borrow.descriptor().as_raw_fd());
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        let (length, read) = (length as usize, ProtFlags::READ);
        // SAFETY: the kernel chooses the place.
        let base = unsafe { rustix::mm::mmap(std::ptr::null_mut(), length, read, flags, &file, 0) };
        Mapped { base: base.unwrap().cast(), length }
    }

    #[track_caller]
    fn assert_holds(&self, start: u64, end: u64, value: u8) {
        assert!(end as usize <= self.length);
        let bytes = start as usize..end as usize;
        // SAFETY: inside the mapping; the callers ask for what is below the end of the file.
        let byte = |at: usize| unsafe { self.base.add(at).read_volatile() };
        let wrong = bytes.filter(|at| byte(*at) != value).count();
        assert_eq!(wrong, 0, "bytes that are not {value} in {start}..{end}");
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // SAFETY: the whole mapping, which nobody uses any more.
        unsafe { rustix::mm::munmap(self.base.cast_mut().cast(), self.length) }.unwrap();
    }
}

#[track_caller]
fn wait_until(what: &str, mut done: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < deadline, "not within {PATIENCE:?}: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn stores(blocks: u64) -> [Arc<Store>; 2] {
    let with = |backing| Store::new(StoreConfig { backing, ..config(blocks) }).unwrap();
    [with(BackingChoice::Auto), with(BackingChoice::Memfd)]
}

fn filled(store: &Arc<Store>, blocks: u64, value: u8) -> Arc<Segment> {
    let segment = segment(store, blocks * BLOCK);
    (0..blocks).for_each(|block| assert!(fill_clean(&segment, block, value)));
    segment
}

#[test]
fn a_loan_without_a_mapping_ends_with_its_open() {
    for store in stores(8) {
        let segment = filled(&store, 2, 7);
        let borrow = segment.borrow_for_kernel(None).unwrap();
        let other = segment.borrow_for_kernel(None).unwrap();
        assert_eq!(store.stats().pinned_bytes, 2 * BLOCK, "counted once");
        assert_eq!(store.stats().lingering_bytes, 0, "it is open");
        drop(borrow);
        assert!(segment.is_borrowed_by_kernel());
        assert_eq!(segment.evict(), 0);
        drop(other);
        assert!(!segment.is_borrowed_by_kernel());
        assert_eq!(store.stats().pinned_bytes, 0);
        assert_eq!(segment.evict(), 2 * BLOCK);
    }
}

#[test]
fn a_mapping_keeps_its_bytes_whatever_is_evicted() {
    for (store, flags) in stores(8).into_iter().zip([MapFlags::SHARED, MapFlags::PRIVATE]) {
        let segment = filled(&store, 2, 7);
        let borrow = segment.borrow_for_kernel(None).unwrap();
        let mapped = Mapped::of(&borrow, 2 * BLOCK, flags);
        drop(borrow);
        assert_eq!(segment.evict(), 0);
        assert_eq!(store.evict_all().held_bytes, 2 * BLOCK);
        assert_eq!(store.resize(0).held_bytes, 2 * BLOCK);
        segment.discard();
        assert_eq!(store.stats().pinned_bytes, 2 * BLOCK, "told as held");
        assert_eq!(store.stats().lingering_bytes, 2 * BLOCK, "and why");
        mapped.assert_holds(0, 2 * BLOCK, 7);
        assert!(store.stats().resident_bytes <= 2 * BLOCK, "nothing was taken anew");
        drop(mapped);
        wait_until("the memory comes back", || store.stats().resident_bytes == 0);
        assert_eq!((store.stats().pinned_bytes, store.stats().lingering_bytes), (0, 0));
        assert_eq!(segment.allocated_bytes(), 0);
    }
}

#[test]
fn others_find_other_room_and_that_of_the_mapping_once_it_is_gone() {
    for store in stores(4) {
        let first = filled(&store, 2, 7);
        let borrow = first.borrow_for_kernel(None).unwrap();
        let mapped = Mapped::of(&borrow, 2 * BLOCK, MapFlags::SHARED);
        drop(borrow);
        let second = segment(&store, 4 * BLOCK);
        for block in 0..2 {
            assert!(fill(&second, block, 8, BlockState::Dirty));
        }
        assert!(!fill(&second, 2, 8, BlockState::Dirty), "the rest is mapped");
        mapped.assert_holds(0, 2 * BLOCK, 7);
        assert!(
            filled(&store, 0, 0).borrow_for_kernel(None).is_some(),
            "what is empty takes no room"
        );
        drop(mapped);
        for block in 2..4 {
            assert!(fill(&second, block, 8, BlockState::Dirty), "at once, not at the next look");
        }
        assert_eq!(store.stats().resident_bytes_peak, 4 * BLOCK);
    }
}

#[test]
fn a_segment_that_is_given_up_stays_whole_for_its_mapping() {
    for store in stores(4) {
        let segment = filled(&store, 2, 7);
        let borrow = segment.borrow_for_kernel(None).unwrap();
        let mapped = Mapped::of(&borrow, 2 * BLOCK, MapFlags::SHARED);
        segment.invalidate();
        drop((borrow, segment));
        let second = self::segment(&store, 2 * BLOCK);
        assert!(fill(&second, 0, 8, BlockState::Dirty) && fill(&second, 1, 8, BlockState::Dirty));
        store.resize(0);
        let stats = store.stats();
        assert_eq!((stats.resident_bytes, stats.pinned_bytes), (4 * BLOCK, 2 * BLOCK));
        mapped.assert_holds(0, 2 * BLOCK, 7);
        drop(mapped);
        wait_until("the memory comes back", || store.stats().resident_bytes == 2 * BLOCK);
        assert_eq!(store.stats().pinned_bytes, 0);
    }
}

#[test]
fn a_store_that_ends_leaves_mappings_their_bytes() {
    for store in stores(4) {
        let segment = filled(&store, 2, 7);
        let borrow = segment.borrow_for_kernel(None).unwrap();
        let mapped = Mapped::of(&borrow, 2 * BLOCK, MapFlags::SHARED);
        drop((borrow, segment, store));
        mapped.assert_holds(0, 2 * BLOCK, 7);
    }
}

#[test]
fn a_cut_under_a_mapping_ends_it_and_changes_nothing_before() {
    for store in stores(8) {
        let segment = filled(&store, 3, 7);
        let borrow = segment.borrow_for_kernel(None).unwrap();
        let mapped = Mapped::of(&borrow, 3 * BLOCK, MapFlags::SHARED);
        drop(borrow);
        // A reader that is cut off reads less. In one call it may see zeros behind the cut, as of
        // any file: the kernel looks at the length, then copies a page whose rest goes meanwhile.
        let path = format!("/proc/self/fd/{}", segment.descriptor().as_raw_fd());
        let reader = std::fs::File::open(path).unwrap();
        std::thread::scope(|scope| {
            let cut = scope.spawn(|| segment.set_size(BLOCK + 5000).unwrap());
            let mut bytes = vec![0; 3 * BLOCK as usize];
            while !cut.is_finished() {
                let count = rustix::io::pread(&reader, &mut bytes, 0).unwrap();
                let kept = &bytes[..count.min((BLOCK + 5000) as usize)];
                assert!(kept.iter().all(|byte| *byte == 7), "zeros before the cut");
            }
        });
        mapped.assert_holds(0, BLOCK + 5000, 7);
        assert_eq!(segment.descriptor_length(), BLOCK + 5000);
        assert_eq!(store.stats().resident_bytes, segment.charged_bytes());
        assert_eq!(store.stats().pinned_bytes, segment.charged_bytes());
        assert!(segment.extend(100, &[8], BlockState::Clean));
        mapped.assert_holds(BLOCK + 5000, BLOCK + 5100, 0);
        mapped.assert_holds(BLOCK + 5100, BLOCK + 5101, 8);
    }
}

#[test]
fn kernel_and_clients_have_a_segment_in_turn() {
    for store in stores(4) {
        let segment = filled(&store, 2, 7);
        let exported = segment.export().unwrap().expect("nobody has it");
        assert!(segment.borrow_for_kernel(None).is_none(), "a client may have it mapped");
        let borrowed = segment.borrow_for_client().expect("clients share it");
        drop(exported);
        assert!(segment.borrow_for_kernel(None).is_none(), "one client has it still");
        drop(borrowed);
        let borrow = segment.borrow_for_kernel(None).expect("no client has it");
        assert!(segment.export().unwrap().is_none() && segment.borrow_for_client().is_none());
        let mapped = Mapped::of(&borrow, 2 * BLOCK, MapFlags::SHARED);
        drop(borrow);
        assert!(segment.export().unwrap().is_none() && segment.borrow_for_client().is_none());
        let again = segment.borrow_for_kernel(None).expect("the kernel may have it twice");
        drop(mapped);
        assert!(segment.export().unwrap().is_none(), "it is open again");
        drop(again);
        assert!(segment.export().unwrap().is_some() && segment.borrow_for_client().is_some());
    }
}

#[test]
fn loans_that_linger_count_into_the_share_of_all_holds() {
    for store in stores(8) {
        let files: Vec<_> = (0..3).map(|value| filled(&store, 2, value)).collect();
        let borrowed = |file: &Arc<Segment>| {
            let borrow = file.borrow_for_kernel(None)?;
            Some(Mapped::of(&borrow, 2 * BLOCK, MapFlags::SHARED))
        };
        let mapped: Vec<_> = files.iter().filter_map(borrowed).collect();
        assert_eq!((mapped.len(), store.stats().pinned_bytes), (2, 4 * BLOCK));
        drop(mapped);
        assert!(borrowed(&files[2]).is_some(), "what is unmapped makes room at once");
    }
}

#[test]
fn one_user_leaves_room_for_the_loans_of_others() {
    const HELD_SHARE_MAX: f64 = 0.5;
    let store = Store::new(StoreConfig { pinned_share_max: HELD_SHARE_MAX, ..config(40) }).unwrap();
    let files: Vec<_> = (0..20).map(|_| filled(&store, 1, 7)).collect();
    let borrow_all = |user| {
        let borrowed = |file: &Arc<Segment>| (!file.is_borrowed_by_kernel()).then(|| file.clone());
        files.iter().filter_map(borrowed).map_while(|file| file.borrow_for_kernel(user)).collect()
    };
    // Twenty blocks may be held.
    let greedy: Vec<KernelBorrow> = borrow_all(Some(1));
    assert_eq!(greedy.len(), 15);
    let mapped = Mapped::of(&greedy[0], BLOCK, MapFlags::SHARED);
    let shared = files[0].borrow_for_kernel(Some(1)).expect("what is borrowed costs nothing more");
    let other: Vec<KernelBorrow> = borrow_all(Some(2));
    assert_eq!(other.len(), 3, "three quarters of the rest");
    let nobody: Vec<KernelBorrow> = borrow_all(None);
    assert_eq!(nobody.len(), 2, "bounded by all holds alone");
    drop((greedy, shared, nobody));
    assert_eq!(store.stats().pinned_bytes, 4 * BLOCK, "what is mapped counts on");
    let again: Vec<KernelBorrow> = borrow_all(Some(1));
    assert_eq!(again.len(), 11, "twelve with the mapping");
    drop(again);
    drop(mapped);
    let again: Vec<KernelBorrow> = borrow_all(Some(1));
    assert_eq!(again.len(), 12, "and now without");
    drop((again, other));
    wait_until("all is let go", || store.stats().pinned_bytes == 0);
    assert_eq!(borrow_all(Some(3)).len(), 15);
}

#[test]
fn growth_of_a_lent_file_counts_for_its_user() {
    let store = Store::new(StoreConfig { pinned_share_max: 0.5, ..config(16) }).unwrap();
    let file = filled(&store, 2, 7);
    let borrow = file.borrow_for_kernel(Some(1)).unwrap();
    let block = vec![7; BLOCK as usize];
    let grown = (0..8).take_while(|_| file.extend(0, &block, BlockState::Clean)).count();
    assert_eq!(grown, 4, "six of eight blocks are his");
    drop(borrow);
    let pinned = file.pin_all().unwrap();
    for _ in 0..2 {
        assert!(file.extend(0, &block, BlockState::Clean), "a pin is none of his");
    }
    drop(pinned);
    assert_eq!(store.stats().pinned_bytes, 0);
}
