//! The gate of a file, a lock that is shared by fills and reads from the PFS and exclusive for
//! everything that changes the file.
//!
//! A function that needs the gate takes its guard as an argument. The guard is of one file and
//! stands for that file's [`FileState`], so the gate of another file is no proof.

use std::ops::Deref;
use std::time::Duration;

use parking_lot::{RwLockReadGuard, RwLockWriteGuard};

use super::state::FileState;

/// A gate that is held, shared or exclusively.
pub trait Gated: Deref<Target = FileState> {}

/// A gate that is held shared: no change through this node is under way.
pub struct SharedGate<'a> {
    file: &'a FileState,
    _guard: RwLockReadGuard<'a, ()>,
}

/// A gate that is held exclusively: neither fills nor reads from the PFS are under way, and the
/// holder alone may change the file.
pub struct ExclusiveGate<'a> {
    file: &'a FileState,
    _guard: RwLockWriteGuard<'a, ()>,
}

impl FileState {
    /// Waits for the gate, shared.
    pub fn share_gate(&self) -> SharedGate<'_> {
        SharedGate { file: self, _guard: self.gate.read() }
    }

    /// As [`share_gate`](Self::share_gate), also before writers that wait already.
    pub fn share_gate_before_writers(&self) -> SharedGate<'_> {
        SharedGate { file: self, _guard: self.gate.read_recursive() }
    }

    /// The gate, shared; `None` where a writer has it or waits for it.
    pub fn try_share_gate(&self) -> Option<SharedGate<'_>> {
        Some(SharedGate { file: self, _guard: self.gate.try_read()? })
    }

    /// Waits for the gate, exclusively.
    pub fn close_gate(&self) -> ExclusiveGate<'_> {
        ExclusiveGate { file: self, _guard: self.gate.write() }
    }

    /// The gate, exclusively; `None` where anybody has it.
    pub fn try_close_gate(&self) -> Option<ExclusiveGate<'_>> {
        Some(ExclusiveGate { file: self, _guard: self.gate.try_write()? })
    }

    /// As [`try_close_gate`](Self::try_close_gate), after a wait of at most `timeout`.
    pub fn try_close_gate_for(&self, timeout: Duration) -> Option<ExclusiveGate<'_>> {
        Some(ExclusiveGate { file: self, _guard: self.gate.try_write_for(timeout)? })
    }
}

impl Deref for SharedGate<'_> {
    type Target = FileState;

    fn deref(&self) -> &FileState {
        self.file
    }
}

impl Deref for ExclusiveGate<'_> {
    type Target = FileState;

    fn deref(&self) -> &FileState {
        self.file
    }
}

impl Gated for SharedGate<'_> {}
impl Gated for ExclusiveGate<'_> {}
