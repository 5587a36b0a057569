//! [`Drained`]: whether the node takes new opens, and which orders say that it does not.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

/// Why the node takes no new opens.
#[derive(Debug, Default)]
pub struct Drained {
    /// It was told to, until that is undone.
    by_order: AtomicBool,
    /// Orders to end that are being carried out.
    stops: AtomicU32,
    /// How often it was undone.
    undone: AtomicU64,
}

/// One drain that is being carried out; dropped, the node is as before it.
#[derive(Debug)]
pub struct Draining<'a> {
    drained: &'a Drained,
    to_end: bool,
    undone: u64,
}

impl Drained {
    /// Whether new opens are refused.
    pub fn is_on(&self) -> bool {
        self.by_order.load(Ordering::Acquire) || self.stops.load(Ordering::Acquire) > 0
    }

    /// Refuses new opens from now on; `to_end`: because the node is to end.
    pub fn begin(&self, to_end: bool) -> Draining<'_> {
        match to_end {
            true => _ = self.stops.fetch_add(1, Ordering::AcqRel),
            false => self.by_order.store(true, Ordering::Release),
        }
        Draining { drained: self, to_end, undone: self.undone.load(Ordering::Acquire) }
    }

    /// Takes new opens again. What is being carried out ends.
    pub fn undo(&self) {
        self.by_order.store(false, Ordering::Release);
        self.stops.store(0, Ordering::Release);
        self.undone.fetch_add(1, Ordering::AcqRel);
    }
}

impl Draining<'_> {
    /// Whether nobody undid it.
    pub fn goes_on(&self) -> bool {
        self.drained.undone.load(Ordering::Acquire) == self.undone
    }

    /// It is done, and new opens stay refused.
    pub fn stay(self) {
        std::mem::forget(self);
    }
}

impl Drop for Draining<'_> {
    fn drop(&mut self) {
        match self.to_end {
            _ if !self.goes_on() => {}
            true => _ = self.drained.stops.fetch_sub(1, Ordering::AcqRel),
            false => self.drained.by_order.store(false, Ordering::Release),
        }
    }
}
