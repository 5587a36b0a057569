//! Many threads at once: every byte read is the one that belongs there, and memory is never more
//! than the capacity.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use super::support::*;
use crate::mappings::Mappings;
use crate::{BlockState, FillStart, Owner, PolicyKind, QuotaKey, Segment, Store};

const SEGMENTS: usize = 4;
const BLOCKS: u64 = 6;
const CAPACITY_BLOCKS: u64 = 10;
/// What never ends would be waited for no longer than this.
const STARVED: Duration = Duration::from_secs(30);

/// A small generator of reproducible pseudo-random numbers (xorshift).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % bound
    }
}

/// A block starts with a stamp of its place and generation, and goes on with a byte made from it.
fn stamp(bytes: &mut [u8], segment: u64, block: u64, generation: u64) {
    let value = (segment * 31 + block * 7 + generation) as u8 | 1;
    bytes.fill(value);
    for (place, word) in [segment, block, generation].into_iter().enumerate() {
        bytes[place * 8..place * 8 + 8].copy_from_slice(&word.to_le_bytes());
    }
}

fn check_stamp(bytes: &[u8], segment: u64, block: u64) {
    let word = |place: usize| {
        u64::from_le_bytes(bytes[place * 8..place * 8 + 8].try_into().expect("eight bytes"))
    };
    assert_eq!((word(0), word(1)), (segment, block), "bytes of another block");
    let value = (segment * 31 + block * 7 + word(2)) as u8 | 1;
    // All pages, but not all bytes: the machine has better things to do.
    let mut rest = bytes[24..].iter().step_by(509);
    assert!(rest.all(|byte| *byte == value), "two generations in one block");
}

struct Arena {
    store: Arc<Store>,
    segments: Vec<Arc<Segment>>,
    generation: AtomicU64,
    reads: AtomicU64,
    stop: AtomicBool,
}

impl Arena {
    fn new() -> Arc<Arena> {
        let store = store(CAPACITY_BLOCKS);
        let segments = (0..SEGMENTS).map(|_| segment(&store, BLOCKS * BLOCK)).collect();
        let (generation, reads) = (AtomicU64::new(1), AtomicU64::new(0));
        Arc::new(Arena { store, segments, generation, reads, stop: AtomicBool::new(false) })
    }

    fn read_or_fill(&self, random: &mut Random) {
        let segment = &self.segments[random.below(SEGMENTS as u64) as usize];
        let block = random.below(BLOCKS);
        if let Some(pin) = segment.pin_block(block) {
            check_stamp(&pin, segment.id(), block);
            self.reads.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let FillStart::Started(mut fill) = segment.begin_fill(block) else { return };
        let generation = self.generation.fetch_add(1, Ordering::Relaxed);
        stamp(&mut fill, segment.id(), block, generation);
        match random.below(12) {
            0 => drop(fill),
            1 => {
                if fill.commit(BlockState::Dirty) {
                    segment.set_state(block, BlockState::Clean);
                }
            }
            _ => _ = fill.commit(BlockState::Clean),
        }
    }

    fn disturb(&self, random: &mut Random) {
        let segment = &self.segments[random.below(SEGMENTS as u64) as usize];
        match random.below(10) {
            0 | 1 => _ = self.store.resize(random.below(CAPACITY_BLOCKS + 1) * BLOCK),
            2 => self.store.set_policy(PolicyKind::ALL[random.below(6) as usize]),
            3 => _ = segment.evict(),
            4 => segment.discard(),
            5 => {
                segment.set_size(random.below(BLOCKS) * BLOCK).unwrap();
                segment.set_size(BLOCKS * BLOCK).unwrap();
            }
            6 => _ = self.store.expire(Instant::now()),
            7 => self.store.set_quota(QuotaKey::User(0), Some(random.below(10) * BLOCK)),
            8 => self.store.set_quota(QuotaKey::User(0), None),
            _ => {
                if let Some(hold) = segment.pin_all() {
                    (0..BLOCKS).for_each(|block| {
                        // Only a truncation or a drop may take a held block away.
                        if let Some(pin) = segment.pin_block(block) {
                            check_stamp(&pin, segment.id(), block);
                        }
                    });
                    drop(hold);
                }
                drop(segment.export().unwrap());
                drop(segment.borrow_for_kernel(None));
            }
        }
    }
}

#[test]
fn bytes_stay_true_while_everything_changes() {
    let arena = Arena::new();
    let workers: Vec<_> = (0..4u64)
        .map(|worker| {
            let arena = arena.clone();
            std::thread::spawn(move || {
                let mut random = Random(0x9E37_79B9 + worker);
                while !arena.stop.load(Ordering::Relaxed) {
                    (0..20).for_each(|_| arena.read_or_fill(&mut random));
                }
            })
        })
        .collect();
    let mut random = Random(0xDECAF);
    for _ in 0..600 {
        arena.disturb(&mut random);
        std::thread::yield_now();
    }
    arena.store.set_quota(QuotaKey::User(0), None);
    arena.store.resize(CAPACITY_BLOCKS * BLOCK);
    while arena.reads.load(Ordering::Relaxed) < 100 && workers.iter().all(|w| !w.is_finished()) {
        std::thread::yield_now();
    }
    arena.stop.store(true, Ordering::Relaxed);
    workers.into_iter().for_each(|worker| worker.join().expect("no reader saw a wrong byte"));
    let stats = arena.store.stats();
    assert!(stats.resident_bytes_peak <= CAPACITY_BLOCKS * BLOCK, "{stats:?}");
    let resident: u64 = arena.segments.iter().map(|segment| segment.resident_bytes()).sum();
    assert_eq!(stats.resident_bytes, resident, "nothing leaked");
    let report = arena.store.resize(0);
    assert_eq!((report.resident_bytes, report.held_bytes), (0, 0));
    for segment in &arena.segments {
        assert_eq!(rustix::fs::fstat(segment.descriptor()).unwrap().st_blocks, 0);
    }
}

#[test]
fn one_fill_however_many_ask() {
    let store = store(4);
    let segment = segment(&store, BLOCK);
    let started = Arc::new(AtomicU64::new(0));
    for _ in 0..50 {
        let workers: Vec<_> = (0..4)
            .map(|_| {
                let (segment, started) = (segment.clone(), started.clone());
                std::thread::spawn(move || {
                    if let FillStart::Started(mut fill) = segment.begin_fill(0) {
                        started.fetch_add(1, Ordering::Relaxed);
                        fill[0] = 1;
                        assert!(fill.commit(BlockState::Clean));
                    }
                })
            })
            .collect();
        workers.into_iter().for_each(|worker| worker.join().unwrap());
        assert!(segment.evict_block(0));
    }
    assert_eq!(started.load(Ordering::Relaxed), 50);
}

#[test]
fn segments_come_and_go_under_pressure() {
    let store = store(6);
    let workers: Vec<_> = (0..4u64)
        .map(|worker| {
            let store = store.clone();
            std::thread::spawn(move || {
                for round in 0..150 {
                    let owner = Owner { user_id: worker as u32, ..Owner::default() };
                    let segment = store.create_segment(2 * BLOCK + 10, owner).unwrap();
                    for block in 0..3 {
                        if let FillStart::Started(mut fill) = segment.begin_fill(block) {
                            fill.fill(round as u8);
                            fill.commit(BlockState::Clean);
                        }
                        let pin = segment.pin_block(block);
                        if round % 3 == 0 {
                            segment.invalidate();
                        }
                        assert!(
                            pin.is_none_or(|pin| pin.iter().step_by(97).all(|b| *b == round as u8))
                        );
                    }
                }
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    let stats = store.stats();
    assert_eq!((stats.resident_bytes, stats.segments), (0, 0));
    assert!(stats.resident_bytes_peak <= 6 * BLOCK);
}

#[test]
fn idle_segments_are_unmapped_and_mapped_again() {
    let store = store_with_mappings(30, Mappings::with_limit(4));
    let segments: Vec<_> = (0..20).map(|_| segment(&store, 4096)).collect();
    for (number, segment) in segments.iter().enumerate() {
        assert!(fill_clean(segment, 0, number as u8));
    }
    assert!(store.mapping_count() <= 6, "{} mappings", store.mapping_count());
    let pin = segments[0].pin_block(0).unwrap();
    let stop = Arc::new(AtomicBool::new(false));
    let others: Vec<_> = (0..2)
        .map(|_| {
            let (segments, stop) = (segments.clone(), stop.clone());
            std::thread::spawn(move || {
                while !stop.load(Ordering::Relaxed) {
                    for (number, segment) in segments.iter().enumerate() {
                        assert_holds(segment, 0, number as u8);
                    }
                }
            })
        })
        .collect();
    for _ in 0..200 {
        let fresh = segment(&store, 4096);
        assert!(fill_clean(&fresh, 0, 7));
        assert!(pin.iter().all(|byte| *byte == 0), "unmapped under a pin");
    }
    stop.store(true, Ordering::Relaxed);
    others.into_iter().for_each(|other| other.join().unwrap());
}

#[test]
fn a_pin_reaches_no_further_than_the_file_while_it_grows_and_shrinks() {
    let store = store(CAPACITY_BLOCKS);
    let segment = segment(&store, 2 * BLOCK);
    assert!(fill_clean(&segment, 1, 7));
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                // The end is where the file comes last.
                let last = segment.pin_block(1).and_then(|pin| pin.last().copied());
                assert!(matches!(last, None | Some(0 | 7)));
                // The writer waits for pins.
                std::hint::spin_loop();
            }
        });
        for round in 0..30_000 {
            segment.set_size(BLOCK + 1 + round % 5).unwrap();
            segment.set_size(BLOCK + (64 << 10)).unwrap();
        }
        over.store(true, Ordering::Relaxed);
    });
}

/// Whoever takes a block away, whatever its state.
type Taker = fn(&Segment);

#[test]
fn readers_who_take_turns_do_not_keep_those_waiting_who_take_a_block_away() {
    let takers: [Taker; 2] = [|segment| segment.set_size(100).unwrap(), Segment::discard];
    let store = store(4);
    for take in takers {
        let segment = segment(&store, BLOCK);
        assert!(fill_clean(&segment, 0, 7));
        let mut held = segment.pin_block(0).expect("resident");
        let patience = Instant::now() + STARVED;
        std::thread::scope(|scope| {
            let taker = scope.spawn(|| take(&segment));
            // There is a pin at every moment.
            while let Some(next) = segment.pin_block(0) {
                assert!(Instant::now() < patience, "readers who take turns win for ever");
                held = next;
            }
            assert!(held.iter().all(|byte| *byte == 7));
            drop(held);
            taker.join().unwrap();
        });
        assert!(segment.pin_block(0).is_none_or(|pin| pin.len() == 100));
    }
}

#[test]
fn a_drop_that_meets_a_hold_lets_readers_in_again() {
    let store = store(4);
    let segment = segment(&store, BLOCK);
    assert!(fill_clean(&segment, 0, 7));
    std::thread::scope(|scope| {
        let pin = segment.pin_block(0).expect("resident");
        let dropper = scope.spawn(|| segment.discard());
        let patience = Instant::now() + STARVED;
        while segment.pin_block(0).is_some() {
            assert!(Instant::now() < patience, "a block that somebody drops takes pins");
            std::thread::yield_now();
        }
        let hold = segment.pin_all().expect("wholly resident");
        dropper.join().unwrap();
        assert_holds(&segment, 0, 7);
        drop(pin);
        drop(hold);
    });
    assert_eq!(segment.state(0), BlockState::Absent);
}

/// Enough for several threads to free it.
#[test]
fn a_large_shrink_gives_back_the_memory_of_every_file() {
    const FILES: u64 = 5;
    const BLOCKS_EACH: u64 = 16;
    let store = store(FILES * BLOCKS_EACH);
    let files: Vec<_> = (0..FILES).map(|_| segment(&store, BLOCKS_EACH * BLOCK)).collect();
    for (number, file) in files.iter().enumerate() {
        (0..BLOCKS_EACH).for_each(|block| assert!(fill_clean(file, block, number as u8)));
    }
    let pin = files[3].pin_block(7).unwrap();
    let report = store.resize(0);
    assert_eq!(report.freed_bytes, (FILES * BLOCKS_EACH - 1) * BLOCK);
    assert_eq!(report.held_bytes, BLOCK);
    let allocated = files.iter().map(|file| file.allocated_bytes()).sum::<u64>();
    assert_eq!(allocated, BLOCK, "what was freed is with the system again");
    assert!(pin.iter().all(|byte| *byte == 3));
    drop(pin);
    store.resize(FILES * BLOCKS_EACH * BLOCK);
    assert!(fill_clean(&files[0], 0, 9));
    assert_holds(&files[0], 0, 9);
}
