//! The budget of bookkeeping, measured at the allocator: what a resident block and a packed file
//! cost beside their data, and whether the store counts that honestly.
//!
//! One test only, because the allocator's count is that of the whole process.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidepool_proto::{FileId, Version};
use tidepool_store::{BlockState, FillStart, Owner, PolicyKind, Segment, Store, StoreConfig};

static ALLOCATED_BYTES: AtomicU64 = AtomicU64::new(0);

/// The system allocator, counting.
struct Counting;

// SAFETY: every call is passed on unchanged to the system allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATED_BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        ALLOCATED_BYTES.fetch_sub(layout.size() as u64, Ordering::Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

const BLOCK: u64 = 2 << 20;
const PER_BLOCK_BYTES_MAX: u64 = 64;
/// Shadow directories of the default, of a block of a store so small that all are in the sample.
/// Of larger stores they are of some thousand blocks in all.
const PER_SHADOWED_BLOCK_BYTES_MAX: u64 = 340;
const PER_SEGMENT_BYTES_MAX: u64 = 1024;
const PER_SMALL_FILE_BYTES_MAX: u64 = 300;

fn allocated() -> u64 {
    ALLOCATED_BYTES.load(Ordering::Relaxed)
}

fn fill(segment: &Segment, blocks: std::ops::Range<u64>) {
    for block in blocks {
        let FillStart::Started(fill) = segment.begin_fill(block) else { panic!("block {block}") };
        assert!(fill.commit(BlockState::Clean));
        drop(segment.pin_block(block));
    }
}

#[test]
fn bookkeeping_stays_within_its_budget_and_is_counted() {
    for policy in PolicyKind::ALL {
        blocks(policy);
        small_files(policy);
    }
    segments();
}

fn segments() {
    const SEGMENTS: u64 = 500;
    let store = store(4 * SEGMENTS, PolicyKind::Cyclic);
    let before = (allocated(), store.stats().bookkeeping_bytes);
    let new = |_| store.create_segment(300 << 10, Owner::default()).expect("a segment");
    let held: Vec<_> = (0..SEGMENTS).map(new).collect();
    held.iter().for_each(|segment| fill(segment, 0..1));
    let used = allocated() - before.0;
    println!("{} B a segment of one block", used / SEGMENTS);
    assert!(used / SEGMENTS <= PER_SEGMENT_BYTES_MAX, "{} B a segment", used / SEGMENTS);
    honest(store.stats().bookkeeping_bytes - before.1, used, 16384);
}

fn store(blocks: u64, policy: PolicyKind) -> Arc<Store> {
    let capacity_bytes = blocks * BLOCK;
    let config =
        StoreConfig { capacity_bytes, block_bytes: BLOCK, policy, ..StoreConfig::default() };
    Store::new(config).expect("a store")
}

fn blocks(policy: PolicyKind) {
    const BLOCKS: u64 = 256;
    let before = allocated();
    let store = store(BLOCKS, policy);
    let segment = store.create_segment(3 * BLOCKS * BLOCK, Owner::default()).expect("a segment");
    drop(segment.export().expect("descriptors").expect("not lent"));
    let empty = (allocated(), store.stats().bookkeeping_bytes);
    // Two turns of eviction, so that policies have their ghosts.
    fill(&segment, 0..3 * BLOCKS);
    assert_eq!(segment.resident_bytes(), BLOCKS * BLOCK);
    let (used, counted) = (allocated(), store.stats().bookkeeping_bytes);
    // The table for clients is memory beside the heap: a word and a mark for each block.
    let cost = used - empty.0 + (3 * BLOCKS * 9);
    // The cells of the two blocks in three that were evicted belong to the segment.
    let cost = cost - 2 * BLOCKS * (12 + 9);
    let ghosts_made_before = if policy == PolicyKind::Cyclic { BLOCKS * 10 } else { BLOCKS * 4 };
    let per_block = (cost + ghosts_made_before) / BLOCKS;
    println!("{policy}: {per_block} B a resident block");
    let shadows = if policy == PolicyKind::Adaptive { PER_SHADOWED_BLOCK_BYTES_MAX } else { 0 };
    assert!(per_block <= PER_BLOCK_BYTES_MAX + shadows, "{policy}: {per_block} B a block");
    honest(counted, used - before, 3 * BLOCKS * 9 + 8192);
    drop((segment, store));
}

fn small_files(policy: PolicyKind) {
    const FILES: u64 = 20_000;
    let store = store(8, policy);
    let before = (allocated(), store.stats().bookkeeping_bytes);
    for inode in 0..FILES {
        let id = FileId { device: 1, inode };
        let version = Version { id, size: 100, modified_ns: 1, changed_ns: 1, born_ns: 0 };
        assert!(store.insert_small(id, version, Owner::default(), &[7; 100]).expect("valid"));
    }
    let used = allocated() - before.0;
    println!("{policy}: {} B a packed file", used / FILES);
    assert!(used / FILES <= PER_SMALL_FILE_BYTES_MAX, "{policy}: {} B a file", used / FILES);
    honest(store.stats().bookkeeping_bytes - before.1, used, 8192);
}

/// What the store says it uses is what the allocator gave, but for a tenth and a few small things.
#[track_caller]
fn honest(counted: u64, measured: u64, slack: u64) {
    assert!(
        counted + slack + counted / 10 >= measured && counted <= measured + slack + measured / 10,
        "counted {counted} B, the allocator gave {measured} B"
    );
}
