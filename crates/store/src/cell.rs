//! The residency word of a block inside the node: state, pins, and who is changing it.
//!
//! All transitions are compare-and-swap on one word, so a hit takes no lock. The word is the
//! node's own; what clients see is its mirror in the shared table (`tidepool_proto::table`). The
//! code is generic over the atomic so that the model checker runs exactly what production runs.
//!
//! Exclusive changes (a fill, a retraction) are announced by a bit. A block under one of them
//! cannot be pinned, and a pinned block cannot be retracted. A truncation, which must retract it
//! all the same, closes it: pins that are there end, new ones are refused, so readers cannot keep
//! the truncation waiting by taking turns.

use std::sync::atomic::{AtomicU64, Ordering};

use tidepool_proto::table::{self, BlockState, WordCell};

/// What a cell needs of an atomic.
pub(crate) trait AtomicWord {
    fn load(&self) -> u64;
    fn swap_if(&self, current: u64, new: u64) -> Result<u64, u64>;
    fn subtract(&self, amount: u64);
}

impl AtomicWord for AtomicU64 {
    fn load(&self) -> u64 {
        AtomicU64::load(self, Ordering::SeqCst)
    }

    fn swap_if(&self, current: u64, new: u64) -> Result<u64, u64> {
        self.compare_exchange_weak(current, new, Ordering::SeqCst, Ordering::SeqCst)
    }

    fn subtract(&self, amount: u64) {
        self.fetch_sub(amount, Ordering::Release);
    }
}

const STATE_MASK: u64 = 0b11;
/// Somebody fills the block.
const FILLING: u64 = 1 << 2;
/// The block's memory is being freed or cut; its bytes are invalid.
const RETRACTING: u64 = 1 << 3;
/// Read since the policy last looked.
const REFERENCED: u64 = 1 << 4;
/// Somebody waits for the pins to end: no new ones.
const CLOSING: u64 = 1 << 5;
const PIN: u64 = 1 << 8;
const PINS_MASK: u64 = 0xFFFF << 8;
const GENERATION: u64 = 1 << 24;

/// A snapshot of a cell.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CellWord(u64);

impl CellWord {
    pub fn state(self) -> BlockState {
        match self.0 & STATE_MASK {
            0 => BlockState::Absent,
            1 => BlockState::Clean,
            2 => BlockState::Dirty,
            _ => BlockState::MemoryOnly,
        }
    }

    pub fn is_resident(self) -> bool {
        self.0 & STATE_MASK != 0
    }

    pub fn is_filling(self) -> bool {
        self.0 & FILLING != 0
    }

    pub fn is_retracting(self) -> bool {
        self.0 & RETRACTING != 0
    }

    pub fn is_referenced(self) -> bool {
        self.0 & REFERENCED != 0
    }

    pub fn is_pinned(self) -> bool {
        self.0 & PINS_MASK != 0
    }

    pub fn is_closing(self) -> bool {
        self.0 & CLOSING != 0
    }

    /// Counts the state changes, modulo 2^40.
    pub fn generation(self) -> u64 {
        self.0 / GENERATION
    }

    fn with_state(self, state: BlockState) -> u64 {
        let kept = self.0 & !(STATE_MASK | FILLING | RETRACTING | CLOSING);
        kept.wrapping_add(GENERATION) | state as u64
    }
}

/// Why a block cannot be retracted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// Nothing to retract, or a change is under way.
    NotResident,
    /// Somebody reads it at this moment.
    Pinned,
    /// Not clean, and only clean blocks were asked for.
    NotClean,
}

/// The operations on a residency word.
pub(crate) trait Cell {
    /// The present word.
    fn word(&self) -> CellWord;
    /// Pins a resident block that is not closing; a `hit` leaves a mark for the policy.
    fn pin(&self, hit: bool) -> Option<CellWord>;
    /// Lets go of one pin.
    fn unpin(&self);
    /// Takes an absent block for filling; the word tells why not.
    fn start_fill(&self) -> Result<(), CellWord>;
    /// Ends a fill: the bytes are in place.
    fn finish_fill(&self, state: BlockState) -> CellWord;
    /// Ends a fill: the memory is given back.
    fn abandon_fill(&self);
    /// Makes a resident, unpinned block unreadable; tells its state before. A pinned one is closed
    /// unless only clean blocks are wanted: the caller tries again until its pins have ended, or
    /// opens it.
    fn start_retract(&self, clean_only: bool) -> Result<BlockState, Refusal>;
    /// Lets a block that was closed be pinned again.
    fn open(&self);
    /// Ends a retraction: absent after the memory is freed, or resident again.
    fn finish_retract(&self, state: BlockState);
    /// Changes the state of a resident block.
    fn change_state(&self, state: BlockState) -> bool;
    /// Takes the mark of a hit away.
    fn take_reference(&self) -> bool;
}

/// Replaces the word by what `change` makes of it, or passes its refusal on. Returns the word
/// before the change.
fn update<A: AtomicWord, E>(
    atomic: &A,
    change: impl Fn(CellWord) -> Result<u64, E>,
) -> Result<CellWord, E> {
    let mut current = atomic.load();
    loop {
        let new = change(CellWord(current))?;
        match atomic.swap_if(current, new) {
            Ok(_) => return Ok(CellWord(current)),
            Err(seen) => current = seen,
        }
    }
}

impl<A: AtomicWord> Cell for A {
    fn word(&self) -> CellWord {
        CellWord(self.load())
    }

    fn pin(&self, hit: bool) -> Option<CellWord> {
        let mark = if hit { REFERENCED } else { 0 };
        let pinned = update(self, |word| {
            let room = word.0 & PINS_MASK != PINS_MASK && !word.is_closing();
            if word.is_resident() && room { Ok((word.0 + PIN) | mark) } else { Err(()) }
        });
        pinned.ok()
    }

    fn unpin(&self) {
        self.subtract(PIN);
    }

    fn start_fill(&self) -> Result<(), CellWord> {
        let idle = |word: CellWord| word.0 & (STATE_MASK | FILLING | RETRACTING) == 0;
        update(self, |word| if idle(word) { Ok(word.0 | FILLING) } else { Err(word) }).map(|_| ())
    }

    fn finish_fill(&self, state: BlockState) -> CellWord {
        debug_assert!(self.word().is_filling(), "only the filler ends a fill");
        let Ok(before) =
            update::<_, std::convert::Infallible>(self, |word| Ok(word.with_state(state)));
        CellWord(before.with_state(state))
    }

    fn abandon_fill(&self) {
        debug_assert!(self.word().is_filling(), "only the filler ends a fill");
        self.subtract(FILLING);
    }

    fn start_retract(&self, clean_only: bool) -> Result<BlockState, Refusal> {
        let before = update(self, |word| {
            if !word.is_resident() {
                Err(Refusal::NotResident)
            } else if clean_only && word.state() != BlockState::Clean {
                Err(Refusal::NotClean)
            } else if word.is_pinned() {
                if clean_only { Err(Refusal::Pinned) } else { Ok(word.0 | CLOSING) }
            } else {
                Ok((word.with_state(BlockState::Absent) | RETRACTING) & !REFERENCED)
            }
        })?;
        if before.is_pinned() { Err(Refusal::Pinned) } else { Ok(before.state()) }
    }

    fn open(&self) {
        let closing =
            |word: CellWord| if word.is_closing() { Ok(word.0 & !CLOSING) } else { Err(()) };
        // Nothing to do where it is not closing.
        _ = update(self, closing);
    }

    fn finish_retract(&self, state: BlockState) {
        debug_assert!(self.word().is_retracting(), "only the retractor ends a retraction");
        let Ok(_) = update::<_, std::convert::Infallible>(self, |word| Ok(word.with_state(state)));
    }

    fn change_state(&self, state: BlockState) -> bool {
        debug_assert!(state != BlockState::Absent, "retraction makes a block absent");
        update(self, |word| if word.is_resident() { Ok(word.with_state(state)) } else { Err(()) })
            .is_ok()
    }

    fn take_reference(&self) -> bool {
        let referenced = |word: CellWord| {
            if word.is_referenced() { Ok(word.0 & !REFERENCED) } else { Err(()) }
        };
        update(self, referenced).is_ok()
    }
}

/// Ends a fill whose bytes are in place, for the node and for clients. Returns the word after it.
pub(crate) fn publish_block<'a, W: WordCell + 'a>(
    cell: &impl Cell,
    mirrors: impl Iterator<Item = &'a W>,
    state: BlockState,
) -> CellWord {
    let word = cell.finish_fill(state);
    mirrors.for_each(|mirror| table::publish(mirror, state));
    word
}

/// Makes a block unreadable for the node and for clients. Its memory may be freed or changed when
/// this returns, and `finish_retract` follows that.
pub(crate) fn retract_block<'a, W: WordCell + 'a>(
    cell: &impl Cell,
    mirrors: impl Iterator<Item = &'a W>,
    clean_only: bool,
) -> Result<BlockState, Refusal> {
    let before = cell.start_retract(clean_only)?;
    mirrors.for_each(table::retract);
    Ok(before)
}
