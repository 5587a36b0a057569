//! The residency protocol under a model checker: every interleaving of readers, evictions, refills
//! and pins, with the transitions of production code over the checker's atomics.

use loom::sync::Arc;
use loom::sync::atomic::{AtomicU64, Ordering, fence};
use loom::thread;
use tidepool_proto::table::{self, BlockState, WordCell};

use crate::cell::{AtomicWord, Cell, Refusal, publish_block, retract_block};

/// A residency word of the node, in the checker's memory.
struct NodeWord(AtomicU64);

impl AtomicWord for NodeWord {
    fn load(&self) -> u64 {
        self.0.load(Ordering::SeqCst)
    }

    fn swap_if(&self, current: u64, new: u64) -> Result<u64, u64> {
        self.0.compare_exchange(current, new, Ordering::SeqCst, Ordering::SeqCst)
    }

    fn subtract(&self, amount: u64) {
        self.0.fetch_sub(amount, Ordering::Release);
    }
}

/// The word that clients see, with the orders that the standard atomics use in production.
struct SharedWord(AtomicU64);

impl WordCell for SharedWord {
    fn load_acquire(&self) -> u64 {
        self.0.load(Ordering::Acquire)
    }

    fn load_after_fence(&self) -> u64 {
        fence(Ordering::Acquire);
        self.0.load(Ordering::Relaxed)
    }

    fn store_release(&self, value: u64) {
        self.0.store(value, Ordering::Release);
    }

    fn store_before_fence(&self, value: u64) {
        self.0.store(value, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }
}

/// A block of two machine words. Both always hold the same value while the block is resident;
/// freed memory reads as zero.
struct Block {
    node: NodeWord,
    shared: SharedWord,
    memory: [AtomicU64; 2],
}

impl Block {
    fn absent() -> Arc<Block> {
        Arc::new(Block {
            node: NodeWord(AtomicU64::new(0)),
            shared: SharedWord(AtomicU64::new(0)),
            memory: [AtomicU64::new(0), AtomicU64::new(0)],
        })
    }

    fn filled(value: u64) -> Arc<Block> {
        let block = Block::absent();
        assert!(block.fill(value));
        block
    }

    fn fill(&self, value: u64) -> bool {
        if self.node.start_fill().is_err() {
            return false;
        }
        self.memory.iter().for_each(|word| word.store(value, Ordering::Relaxed));
        publish_block(&self.node, std::iter::once(&self.shared), BlockState::Clean);
        true
    }

    fn evict(&self) -> bool {
        if retract_block(&self.node, std::iter::once(&self.shared), true).is_err() {
            return false;
        }
        self.memory.iter().for_each(|word| word.store(0, Ordering::Relaxed));
        self.node.finish_retract(BlockState::Absent);
        true
    }

    fn bytes(&self) -> [u64; 2] {
        [self.memory[0].load(Ordering::Relaxed), self.memory[1].load(Ordering::Relaxed)]
    }

    /// A client's read: no lock, no pin. False: the client has to ask the node.
    fn client_read(&self) -> bool {
        let read = table::read_if_resident(&self.shared, || self.bytes());
        if let Some(bytes) = read {
            assert!(bytes[0] == bytes[1], "torn: {bytes:?}");
            assert!(bytes[0] != 0, "zeros of freed memory");
        }
        read.is_some()
    }

    /// A read inside the node.
    fn pinned_read(&self) {
        if self.node.pin(true).is_some() {
            let bytes = self.bytes();
            assert!(bytes[0] == bytes[1] && bytes[0] != 0, "changed under a pin: {bytes:?}");
            self.node.unpin();
        }
    }
}

fn check(model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(3);
    builder.check(model);
}

#[test]
fn a_client_sees_no_zeros_and_no_mixture() {
    check(|| {
        let block = Block::filled(1);
        let writer = block.clone();
        let node = thread::spawn(move || {
            assert!(writer.evict());
            assert!(writer.fill(2));
        });
        block.client_read();
        node.join().unwrap();
        assert!(block.client_read(), "a resident block is served without the node");
    });
}

#[test]
fn a_pin_and_an_eviction_exclude_each_other() {
    check(|| {
        let block = Block::filled(1);
        let (evictor, reader) = (block.clone(), block.clone());
        let one = thread::spawn(move || evictor.evict());
        let two = thread::spawn(move || reader.pinned_read());
        block.client_read();
        let evicted = one.join().unwrap();
        two.join().unwrap();
        assert_eq!(block.node.word().is_resident(), !evicted);
        assert!(!block.node.word().is_pinned());
    });
}

#[test]
fn one_of_two_fillers_fills() {
    check(|| {
        let block = Block::absent();
        let other = block.clone();
        let one = thread::spawn(move || other.fill(2));
        let filled = block.fill(3);
        assert!(filled != one.join().unwrap(), "a block was filled twice, or by nobody");
        block.pinned_read();
    });
}

#[test]
fn two_fillers_and_an_evictor_leave_one_block() {
    check(|| {
        let block = Block::filled(1);
        let (other, evictor) = (block.clone(), block.clone());
        let one = thread::spawn(move || other.fill(2));
        let two = thread::spawn(move || evictor.evict());
        let filled = block.fill(3);
        let (also_filled, evicted) = (one.join().unwrap(), two.join().unwrap());
        assert!(!(filled && also_filled), "there was room for one fill");
        assert!(evicted || !(filled || also_filled), "a resident block was filled again");
        block.pinned_read();
    });
}

#[test]
fn a_change_of_state_keeps_pins_and_stops_evictions() {
    check(|| {
        let block = Block::filled(1);
        let (marker, evictor) = (block.clone(), block.clone());
        let one = thread::spawn(move || marker.node.change_state(BlockState::Dirty));
        let two = thread::spawn(move || evictor.evict());
        block.pinned_read();
        let (dirty, evicted) = (one.join().unwrap(), two.join().unwrap());
        assert!(dirty != evicted || !evicted, "an owed block was evicted");
        let word = block.node.word();
        assert_eq!(word.is_resident(), !evicted);
        assert_eq!(word.state() == BlockState::Dirty, dirty);
    });
}

#[test]
fn who_must_retract_waits_only_for_the_pins_that_are_there() {
    check(|| {
        let block = Block::filled(1);
        let (reader, cutter) = (block.clone(), block.clone());
        assert!(block.node.pin(true).is_some());
        let one = thread::spawn(move || reader.pinned_read());
        let two = thread::spawn(move || {
            let refused = retract_block(&cutter.node, std::iter::once(&cutter.shared), false);
            assert_eq!(refused, Err(Refusal::Pinned));
            assert!(cutter.node.pin(true).is_none(), "a block that somebody must retract");
        });
        two.join().unwrap();
        one.join().unwrap();
        block.node.unpin();
        let retracted = retract_block(&block.node, std::iter::once(&block.shared), false);
        assert_eq!(retracted, Ok(BlockState::Clean));
        block.node.finish_retract(BlockState::Clean);
        assert!(block.node.pin(true).is_some(), "it is open again");
        block.node.unpin();
    });
}
