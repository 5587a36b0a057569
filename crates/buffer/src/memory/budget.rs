//! [`Budget`]: how many bytes a server may hold, and how many it does.

use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use super::spare::Spare;

/// Bytes that a value takes beside itself: its key, its record, what the allocator rounds up.
pub const VALUE_OVERHEAD_BYTES: u64 = 256;

/// The bytes of a server's memory.
#[derive(Debug)]
pub struct Budget {
    state: Mutex<State>,
    freed: Condvar,
    spare: Spare,
}

#[derive(Clone, Copy, Debug)]
struct State {
    capacity_bytes: u64,
    used_bytes: u64,
    owed_bytes: u64,
    waiting: u64,
    /// How often something became evictable.
    settled: u64,
}

/// What a budget says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Usage {
    /// Most bytes.
    pub capacity_bytes: u64,
    /// Bytes in use.
    pub used_bytes: u64,
    /// Of these, those that the PFS does not have.
    pub owed_bytes: u64,
    /// Writers that wait for room.
    pub waiting: u64,
}

/// There is no room, and none came in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full(pub Usage);

/// Bytes that were taken; they come back when it is dropped.
#[derive(Debug)]
pub struct Room {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Budget {
    /// Of so many bytes.
    pub fn new(capacity_bytes: u64) -> Arc<Self> {
        let state = State { capacity_bytes, used_bytes: 0, owed_bytes: 0, waiting: 0, settled: 0 };
        Arc::new(Budget {
            state: Mutex::new(state),
            freed: Condvar::new(),
            spare: Spare::default(),
        })
    }

    /// What is in use.
    pub fn usage(&self) -> Usage {
        usage(&self.state.lock())
    }

    /// Sets how many bytes there are. Fewer than are in use take nothing away by themselves.
    pub fn set_capacity(&self, bytes: u64) {
        self.state.lock().capacity_bytes = bytes;
        self.freed.notify_all();
    }

    /// Takes room for a value of `length` bytes, of what `evict` frees where it has to: it tells
    /// whether it freed anything. Where nothing is left to free this waits for up to `patience`.
    ///
    /// # Errors
    /// No room in time.
    pub fn take(
        self: &Arc<Self>,
        length: usize,
        patience: Duration,
        evict: impl Fn() -> bool,
    ) -> Result<Room, Full> {
        let bytes = length as u64 + VALUE_OVERHEAD_BYTES;
        let deadline = Instant::now() + patience;
        let mut state = self.state.lock();
        while state.used_bytes + bytes > state.capacity_bytes {
            if bytes > state.capacity_bytes {
                return Err(Full(usage(&state)));
            }
            let settled = state.settled;
            drop(state);
            let has_freed = evict();
            state = self.state.lock();
            let is_other = settled != state.settled;
            if has_freed || is_other || state.used_bytes + bytes <= state.capacity_bytes {
                continue;
            }
            state.waiting += 1;
            let is_late = self.freed.wait_until(&mut state, deadline).timed_out();
            state.waiting -= 1;
            if is_late && state.used_bytes + bytes > state.capacity_bytes {
                return Err(Full(usage(&state)));
            }
        }
        state.used_bytes += bytes;
        Ok(Room { budget: self.clone(), bytes })
    }

    /// Takes room for what is there already, however much that is.
    pub fn hold(self: &Arc<Self>, bytes: u64) -> Room {
        self.state.lock().used_bytes += bytes;
        Room { budget: self.clone(), bytes }
    }

    /// Gives buffers of values that are gone back to the allocator.
    pub(super) fn drop_spare(&self) {
        self.spare.clear();
    }

    /// Notes that bytes are owed to the PFS.
    pub(super) fn owe(&self, bytes: u64) {
        self.state.lock().owed_bytes += bytes;
    }

    /// Notes that they are not any more: they may be evicted now.
    pub(super) fn settle(&self, bytes: u64) {
        let mut state = self.state.lock();
        state.owed_bytes -= bytes;
        state.settled += 1;
        drop(state);
        self.freed.notify_all();
    }
}

impl Room {
    /// Bytes that it counts for.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// An empty buffer for a value of so many bytes.
    pub fn buffer(&self, length: usize) -> Vec<u8> {
        self.budget.spare.take(length)
    }

    /// Keeps the buffer of a value that goes, unless there is less memory by now.
    pub(super) fn reuse(&self, buffer: Vec<u8>) {
        let usage = self.budget.usage();
        if usage.used_bytes <= usage.capacity_bytes {
            self.budget.spare.give(buffer);
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.budget.state.lock().used_bytes -= self.bytes;
        self.budget.freed.notify_all();
    }
}

fn usage(state: &State) -> Usage {
    let State { capacity_bytes, used_bytes, owed_bytes, waiting, .. } = *state;
    Usage { capacity_bytes, used_bytes, owed_bytes, waiting }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Duration = Duration::ZERO;
    const LONG: Duration = Duration::from_secs(60);
    const LENGTH: usize = 1000;
    const BYTES: u64 = LENGTH as u64 + VALUE_OVERHEAD_BYTES;

    #[test]
    fn room_is_taken_freed_and_refused_with_figures() {
        let budget = Budget::new(2 * BYTES);
        let nothing = || false;
        let first = budget.take(LENGTH, NOW, nothing).unwrap();
        let second = budget.take(LENGTH, NOW, nothing).unwrap();
        assert_eq!(second.bytes(), BYTES);
        let Full(usage) = budget.take(LENGTH, NOW, nothing).unwrap_err();
        assert_eq!((usage.used_bytes, usage.capacity_bytes), (2 * BYTES, 2 * BYTES));
        drop(first);
        drop(budget.take(LENGTH, NOW, nothing).unwrap());
        assert_eq!(budget.usage().used_bytes, BYTES);
        assert!(budget.take(10_000, LONG, nothing).is_err(), "it can never come");
    }

    #[test]
    fn who_waits_goes_on_when_room_comes_back_or_is_made() {
        let budget = Budget::new(BYTES);
        let held = Mutex::new(Some(budget.take(LENGTH, NOW, || false).unwrap()));
        // What is evicted makes room at once.
        let evict = || held.lock().take().is_some();
        let held_now = budget.take(LENGTH, NOW, evict).unwrap();
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| budget.take(LENGTH, LONG, || false).map(drop));
            while budget.usage().waiting == 0 {
                std::thread::yield_now();
            }
            drop(held_now);
            assert_eq!(waiter.join().unwrap(), Ok(()));
            let held_now = budget.take(LENGTH, NOW, || false).unwrap();
            let waiter = scope.spawn(|| budget.take(LENGTH, LONG, || false).map(drop));
            while budget.usage().waiting == 0 {
                std::thread::yield_now();
            }
            budget.set_capacity(2 * BYTES);
            assert_eq!(waiter.join().unwrap(), Ok(()));
            drop(held_now);
        });
    }
}
