//! `Borrow`: the kernel's borrow of one segment, as the state of the segment has it. What follows
//! from it: [`crate::borrow`].

use crate::budget::Budget;

/// The kernel's borrow of one segment.
#[derive(Debug, Default)]
pub(crate) struct Borrow {
    /// Opens of the kernel's.
    pub opens: u32,
    /// All opens are over, but perhaps not all mappings.
    pub lingers: bool,
    /// Read-only descriptors left the process, and may still be somewhere.
    pub shown: bool,
    /// The kernel does not tell who has the file.
    pub unknown: bool,
    /// The user and the bytes booked on that user, until it ends. Without a user it is bounded by
    /// all pins alone.
    booked: Option<(u32, u64)>,
}

impl Borrow {
    /// Whether the kernel may read the memory file by itself.
    pub fn is_active(&self) -> bool {
        self.opens > 0 || self.lingers
    }

    /// Books `bytes` more on the user of the borrow. False: that user has as many as allowed.
    pub fn book(&mut self, budget: &Budget, bytes: u64) -> bool {
        let Some((user, booked)) = &mut self.booked else { return true };
        let fits = budget.book_borrow(*user, bytes);
        *booked += if fits { bytes } else { 0 };
        fits
    }

    /// Takes up to `bytes` off again.
    pub fn take_off(&mut self, budget: &Budget, bytes: u64) {
        if let Some((user, booked)) = &mut self.booked {
            let bytes = bytes.min(*booked);
            budget.release_borrow(*user, bytes);
            *booked -= bytes;
        }
    }

    /// Is nobody's any more.
    pub fn end(&mut self, budget: &Budget) {
        self.take_off(budget, u64::MAX);
        self.booked = None;
    }

    /// Begins to be `user`'s.
    pub fn begin(&mut self, user: Option<u32>, budget: &Budget, bytes: u64) -> bool {
        self.booked = user.map(|user| (user, 0));
        self.book(budget, bytes)
    }

    /// Notes that a read-only descriptor leaves the process.
    pub fn note_shown(&mut self) {
        self.shown = true;
    }
}

/// What is left to do after a pin of the segment, outside of its lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AfterPin {
    /// The segment is still pinned.
    Nothing,
    /// What is above the capacity may go.
    Trim,
    /// It was discarded while it was pinned.
    Discard,
}
