//! Random operations against a plain model: a map from block to byte value, state and length.

use std::collections::HashMap;
use std::sync::Arc;

use proptest::prelude::*;

use super::support::*;
use crate::{BlockState, FillStart, PolicyKind, Segment, SegmentPin, Store};

const SEGMENTS: usize = 3;
const BLOCKS: u64 = 4;
const CAPACITY_BLOCKS: u64 = 5;

#[derive(Clone, Debug)]
enum Step {
    Fill(usize, u64, u8, BlockState),
    DropFill(usize, u64),
    Read(usize, u64),
    Write(usize, u64, u16, u8),
    SetState(usize, u64, BlockState),
    EvictBlock(usize, u64),
    Evict(usize),
    SetSize(usize, u64),
    DropContents(usize),
    Replace(usize, u64),
    Hold(usize),
    Release,
    Resize(u64),
    SetPolicy(PolicyKind),
    SegmentExport(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let segment = || 0..SEGMENTS;
    let block = || 0..BLOCKS;
    let size = || prop_oneof![0..=BLOCKS * BLOCK, (0..=BLOCKS).prop_map(|n| n * BLOCK), 0..9000u64];
    let state = || {
        prop::sample::select(vec![
            BlockState::Clean,
            BlockState::Clean,
            BlockState::Dirty,
            BlockState::MemoryOnly,
        ])
    };
    let step = prop_oneof![
        10 => (segment(), block(), 1..=255u8, state())
            .prop_map(|(s, b, v, k)| Step::Fill(s, b, v, k)),
        1 => (segment(), block()).prop_map(|(s, b)| Step::DropFill(s, b)),
        6 => (segment(), block()).prop_map(|(s, b)| Step::Read(s, b)),
        5 => (segment(), 0..BLOCKS * BLOCK, 0..9000u16, 1..=255u8)
            .prop_map(|(s, o, n, v)| Step::Write(s, o, n, v)),
        4 => (segment(), block(), state()).prop_map(|(s, b, k)| Step::SetState(s, b, k)),
        2 => (segment(), block()).prop_map(|(s, b)| Step::EvictBlock(s, b)),
        1 => segment().prop_map(Step::Evict),
        5 => (segment(), size()).prop_map(|(s, n)| Step::SetSize(s, n)),
        1 => segment().prop_map(Step::DropContents),
        1 => (segment(), size()).prop_map(|(s, n)| Step::Replace(s, n)),
        1 => segment().prop_map(Step::Hold),
        1 => Just(Step::Release),
        1 => (0..=CAPACITY_BLOCKS).prop_map(Step::Resize),
        1 => prop::sample::select(PolicyKind::ALL.to_vec()).prop_map(Step::SetPolicy),
        1 => segment().prop_map(Step::SegmentExport),
    ];
    prop::collection::vec(step, 1..60)
}

/// What a segment must hold where it holds anything.
#[derive(Default)]
struct Expected {
    size: u64,
    blocks: HashMap<u64, (Vec<u8>, BlockState)>,
}

struct World {
    store: Arc<Store>,
    segments: Vec<Arc<Segment>>,
    expected: Vec<Expected>,
    holds: Vec<SegmentPin>,
    cut_under_hold: bool,
}

impl World {
    fn new() -> Self {
        let store = store(CAPACITY_BLOCKS);
        let size = BLOCKS * BLOCK - 100;
        let segments = (0..SEGMENTS).map(|_| segment(&store, size)).collect();
        let fresh = || Expected { size, blocks: HashMap::new() };
        World {
            store,
            segments,
            expected: (0..SEGMENTS).map(|_| fresh()).collect(),
            holds: vec![],
            cut_under_hold: false,
        }
    }

    fn apply(&mut self, step: Step) {
        match step {
            Step::Fill(s, block, value, state) => {
                if fill_if_absent(&self.segments[s], block, value, state) {
                    let length = self.length(s, block);
                    self.expected[s].blocks.insert(block, (vec![value; length], state));
                }
            }
            Step::DropFill(s, block) => drop(self.segments[s].begin_fill(block)),
            Step::Read(s, block) => self.check_block(s, block),
            Step::Write(s, offset, length, value) => self.write(s, offset, length.into(), value),
            Step::SetState(s, block, state) => {
                self.segments[s].set_state(block, state);
                if let Some(held) = self.expected[s].blocks.get_mut(&block) {
                    held.1 = state;
                }
            }
            Step::EvictBlock(s, block) => _ = self.segments[s].evict_block(block),
            Step::Evict(s) => _ = self.segments[s].evict(),
            Step::SetSize(s, bytes) => self.set_size(s, bytes),
            Step::DropContents(s) => {
                self.holds.clear();
                self.segments[s].discard();
                self.expected[s].blocks.clear();
                assert_eq!(self.segments[s].resident_bytes(), 0);
            }
            Step::Replace(s, size) => {
                self.segments[s] = segment(&self.store, size);
                self.expected[s] = Expected { size, blocks: HashMap::new() };
            }
            Step::Hold(s) => self.holds.extend(self.segments[s].pin_all()),
            Step::Release => self.holds.clear(),
            Step::Resize(blocks) => _ = self.store.resize(blocks * BLOCK),
            Step::SetPolicy(kind) => self.store.set_policy(kind),
            Step::SegmentExport(s) => drop(self.segments[s].export().unwrap().unwrap()),
        }
    }

    fn length(&self, s: usize, block: u64) -> usize {
        self.expected[s].size.saturating_sub(block * BLOCK).min(BLOCK) as usize
    }

    fn write(&mut self, s: usize, offset: u64, length: usize, value: u8) {
        let written = self.segments[s].write_resident(offset, &vec![value; length]);
        let mut covered = 0;
        for (block, (bytes, _)) in &mut self.expected[s].blocks {
            let resident = self.segments[s].state(*block) != BlockState::Absent;
            let start = offset.max(block * BLOCK);
            let end = (offset + length as u64).min(block * BLOCK + bytes.len() as u64);
            if resident && start < end {
                let (start, end) = (start - block * BLOCK, end - block * BLOCK);
                bytes[start as usize..end as usize].fill(value);
                covered += end - start;
            }
        }
        assert_eq!(written, covered);
    }

    fn set_size(&mut self, s: usize, bytes: u64) {
        self.cut_under_hold |= !self.holds.is_empty();
        if self.segments[s].set_size(bytes).is_ok() {
            self.expected[s].size = bytes;
            let expected = &mut self.expected[s];
            for (block, (held, _)) in &mut expected.blocks {
                held.resize(bytes.saturating_sub(block * BLOCK).min(BLOCK) as usize, 0);
            }
            expected.blocks.retain(|_, (held, _)| !held.is_empty());
        }
        assert_eq!(self.segments[s].size(), self.expected[s].size);
        assert_eq!(self.segments[s].descriptor_length(), self.expected[s].size);
    }

    /// Resident means as expected; absent is allowed for clean blocks only.
    fn check_block(&self, s: usize, block: u64) {
        let expected = self.expected[s].blocks.get(&block);
        match (self.segments[s].pin_block(block), expected) {
            (Some(pin), Some((bytes, state))) => {
                assert!(*pin == bytes[..], "segment {s} block {block} holds other bytes");
                assert_eq!(self.segments[s].state(block), *state);
            }
            (Some(_), None) => panic!("segment {s} block {block} came from nowhere"),
            (None, Some((_, state))) => assert_eq!(*state, BlockState::Clean, "an owed block went"),
            (None, None) => {}
        }
    }

    fn check(&mut self) {
        let mut booked = 0;
        for s in 0..SEGMENTS {
            let segment = self.segments[s].clone();
            let mut resident = 0;
            for block in 0..BLOCKS {
                if segment.state(block) == BlockState::Absent {
                    self.check_block(s, block);
                    self.expected[s].blocks.remove(&block);
                } else {
                    let length = self.length(s, block) as u64;
                    resident += length;
                    booked += length.next_multiple_of(4096);
                }
            }
            assert_eq!(segment.resident_bytes(), resident);
            let whole = (0..segment.blocks()).all(|b| segment.state(b) != BlockState::Absent);
            assert_eq!(segment.is_wholly_resident(), whole);
            let on_disk = rustix::fs::fstat(segment.descriptor()).unwrap().st_blocks as u64 * 512;
            // A cut of a held segment leaves huge pages that the kernel cannot split.
            let exact = self.holds.is_empty() && !self.cut_under_hold;
            assert!(!exact || on_disk <= segment.charged_bytes(), "{on_disk} B, fewer booked");
        }
        // Replaced segments may live on in holds.
        if self.holds.is_empty() {
            assert_eq!(self.store.stats().resident_bytes, booked);
        }
        assert!(self.store.stats().resident_bytes_peak <= CAPACITY_BLOCKS * BLOCK);
    }
}

fn fill_if_absent(segment: &Segment, block: u64, value: u8, state: BlockState) -> bool {
    match segment.begin_fill(block) {
        FillStart::Started(mut fill) => {
            assert!(fill.iter().all(|byte| *byte == 0), "a fill shows old bytes");
            fill.fill(value);
            assert!(fill.commit(state), "nothing superseded it");
            true
        }
        FillStart::Busy => panic!("one thread, yet another fill is under way"),
        FillStart::Resident | FillStart::NotAdmitted => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn the_store_agrees_with_the_model(steps in steps()) {
        let mut world = World::new();
        for step in steps {
            world.apply(step);
            world.check();
        }
        let store = world.store.clone();
        drop(world);
        let stats = store.stats();
        prop_assert_eq!((stats.resident_bytes, stats.pinned_bytes, stats.segments), (0, 0, 0));
    }
}
