//! The gate of a file, a lock that is shared by fills and reads from the PFS and exclusive for
//! everything that changes the file.
//!
//! A function that needs the gate takes its guard as an argument. The guard is of one file and
//! stands for that file's [`FileState`], so the gate of another file is no proof.
//!
//! Whoever has it closed for something that nobody waits for, and that can take long, looks
//! whether somebody waits for the gate by now.

use std::ops::Deref;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, RwLock, RwLockReadGuard, RwLockWriteGuard};

use super::state::FileState;

/// The lock, and who waits for it.
#[derive(Debug, Default)]
pub(super) struct Gate {
    lock: RwLock<()>,
    waiting: Mutex<u32>,
    /// Somebody waits for it who did not before.
    came: Condvar,
}

impl Gate {
    /// Counts a thread among those that wait while it does.
    fn wait<T>(&self, get: impl FnOnce() -> T) -> T {
        *self.waiting.lock() += 1;
        self.came.notify_all();
        let got = get();
        *self.waiting.lock() -= 1;
        got
    }

    fn read(&self) -> RwLockReadGuard<'_, ()> {
        self.lock.try_read().unwrap_or_else(|| self.wait(|| self.lock.read()))
    }

    fn write(&self) -> RwLockWriteGuard<'_, ()> {
        self.lock.try_write().unwrap_or_else(|| self.wait(|| self.lock.write()))
    }
}

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
    is_in_background: bool,
    _guard: RwLockWriteGuard<'a, ()>,
}

impl FileState {
    /// Waits for the gate, shared.
    pub fn share_gate(&self) -> SharedGate<'_> {
        SharedGate { file: self, _guard: self.gate.read() }
    }

    /// As [`share_gate`](Self::share_gate), also before writers that wait already.
    pub fn share_gate_before_writers(&self) -> SharedGate<'_> {
        let lock = &self.gate.lock;
        let guard = lock.try_read_recursive();
        let guard = guard.unwrap_or_else(|| self.gate.wait(|| lock.read_recursive()));
        SharedGate { file: self, _guard: guard }
    }

    /// The same, after a wait of at most `timeout`, for which nobody has to hurry.
    pub fn try_share_gate_before_writers(&self, timeout: Duration) -> Option<SharedGate<'_>> {
        let lock = &self.gate.lock;
        Some(SharedGate { file: self, _guard: lock.try_read_recursive_for(timeout)? })
    }

    /// The gate, shared; `None` where a writer has it or waits for it.
    pub fn try_share_gate(&self) -> Option<SharedGate<'_>> {
        Some(SharedGate { file: self, _guard: self.gate.lock.try_read()? })
    }

    /// Waits for the gate, exclusively.
    pub fn close_gate(&self) -> ExclusiveGate<'_> {
        ExclusiveGate::new(self, self.gate.write())
    }

    /// The gate, exclusively; `None` where anybody has it.
    pub fn try_close_gate(&self) -> Option<ExclusiveGate<'_>> {
        Some(ExclusiveGate::new(self, self.gate.lock.try_write()?))
    }

    /// As [`try_close_gate`](Self::try_close_gate), after a wait of at most `timeout`.
    pub fn try_close_gate_for(&self, timeout: Duration) -> Option<ExclusiveGate<'_>> {
        let lock = &self.gate.lock;
        let guard = lock.try_write();
        let guard = guard.or_else(|| self.gate.wait(|| lock.try_write_for(timeout)))?;
        Some(ExclusiveGate::new(self, guard))
    }
}

impl<'a> ExclusiveGate<'a> {
    fn new(file: &'a FileState, guard: RwLockWriteGuard<'a, ()>) -> Self {
        ExclusiveGate { file, is_in_background: false, _guard: guard }
    }

    /// The same, for something that nobody waits for.
    pub fn in_background(self) -> Self {
        ExclusiveGate { is_in_background: true, ..self }
    }

    /// Whether it is for something that nobody waited for when it began.
    pub fn is_in_background(&self) -> bool {
        self.is_in_background
    }

    /// Waits until somebody waits for this gate, for no longer than `limit`; whether somebody does.
    pub fn wait_until_wanted(&self, limit: Duration) -> bool {
        let until = Instant::now() + limit;
        let mut waiting = self.file.gate.waiting.lock();
        while *waiting == 0 {
            if self.file.gate.came.wait_until(&mut waiting, until).timed_out() {
                break;
            }
        }
        *waiting > 0
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

#[cfg(test)]
mod tests {
    use tidepool_proto::FileId;

    use super::*;
    use crate::file::state::FileTable;

    const LONG: Duration = Duration::from_secs(3600);

    #[test]
    fn who_waits_for_a_gate_is_known_to_who_has_it() {
        let file = FileTable::default().get_or_create(FileId { device: 1, inode: 2 });
        let waits: [fn(&FileState); 4] = [
            |file| drop(file.share_gate()),
            |file| drop(file.share_gate_before_writers()),
            |file| drop(file.close_gate()),
            |file| drop(file.try_close_gate_for(LONG)),
        ];
        for wait in waits {
            let gate = file.close_gate();
            assert!(!gate.wait_until_wanted(Duration::from_millis(1)));
            assert!(file.try_share_gate().is_none() && file.try_close_gate().is_none());
            assert!(!gate.wait_until_wanted(Duration::ZERO), "they do not wait");
            std::thread::scope(|scope| {
                scope.spawn(|| wait(&file));
                assert!(gate.wait_until_wanted(LONG));
                drop(gate);
            });
            assert!(!file.close_gate().wait_until_wanted(Duration::ZERO), "it waits no more");
        }
    }
}
