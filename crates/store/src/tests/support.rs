//! What the tests of the store share: small stores, and block contents that tell where they belong.

use std::sync::Arc;

use crate::backing::Backing;
use crate::mappings::Mappings;
use crate::{BackingChoice, BlockState, FillStart, Owner, PolicyKind, Segment, Store, StoreConfig};

pub(super) const BLOCK: u64 = 2 << 20;

pub(super) fn config(blocks: u64) -> StoreConfig {
    StoreConfig { capacity_bytes: blocks * BLOCK, block_bytes: BLOCK, ..StoreConfig::default() }
}

pub(super) fn store(blocks: u64) -> Arc<Store> {
    Store::new(config(blocks)).expect("a store")
}

pub(super) fn store_with(blocks: u64, policy: PolicyKind) -> Arc<Store> {
    Store::new(StoreConfig { policy, ..config(blocks) }).expect("a store")
}

pub(super) fn segment(store: &Arc<Store>, size_bytes: u64) -> Arc<Segment> {
    store.create_segment(size_bytes, Owner::default()).expect("a segment")
}

/// Fills a block with one byte value; false if it was not admitted.
pub(super) fn fill(segment: &Segment, block: u64, value: u8, state: BlockState) -> bool {
    match segment.begin_fill(block) {
        FillStart::Started(mut fill) => {
            fill.fill(value);
            fill.commit(state)
        }
        FillStart::NotAdmitted => false,
        other => panic!("block {block}: {other:?}"),
    }
}

pub(super) fn fill_clean(segment: &Segment, block: u64, value: u8) -> bool {
    fill(segment, block, value, BlockState::Clean)
}

/// Asserts that a block is resident and all of one value.
#[track_caller]
pub(super) fn assert_holds(segment: &Segment, block: u64, value: u8) {
    let pin = segment.pin_block(block).expect("resident");
    assert!(pin.iter().all(|byte| *byte == value), "block {block} is not all {value}");
}

impl Segment {
    /// Length of the memory file, as a passthrough reader sees it.
    pub(super) fn descriptor_length(&self) -> u64 {
        rustix::fs::fstat(self.descriptor()).expect("an open descriptor").st_size as u64
    }

    /// Memory behind the file, by the system's count.
    pub(super) fn allocated_bytes(&self) -> u64 {
        rustix::fs::fstat(self.descriptor()).expect("an open descriptor").st_blocks as u64 * 512
    }
}

pub(super) fn store_with_mappings(blocks: u64, mappings: Arc<Mappings>) -> Arc<Store> {
    let backing = Backing::open(BackingChoice::Auto, true).expect("a backing");
    Store::assemble(config(blocks), backing, mappings).expect("a store")
}

/// A store that thinks it has more memory than the kernel gives; `None` without the right to mount.
pub(super) fn store_short_of_memory(blocks: u64, limit_bytes: u64) -> Option<Arc<Store>> {
    let backing = Backing::open_limited(limit_bytes)?;
    Some(Store::assemble(config(blocks), backing, Mappings::new()).expect("a store"))
}
