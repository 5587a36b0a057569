//! Cost accounting of one request, per thread: bytes read by level, and time spent waiting for the
//! parallel file system. For request tracing.
//!
//! An account is open on a thread while [`of`] runs there. Without one, each function that adds to
//! it costs a look at a thread-local flag.

use std::cell::Cell;
use std::time::{Duration, Instant};

use tidepool_proto::BytesByLevel;

/// The account of one request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Bytes read, by level.
    pub levels: BytesByLevel,
    /// Time spent waiting for the parallel file system.
    pub waited: Duration,
    /// The kernel was told to go on by itself.
    pub passes_through: bool,
}

const NOTHING: Cost = Cost {
    levels: BytesByLevel { mapped: 0, store: 0, peer: 0, buffer: 0, pfs: 0 },
    waited: Duration::ZERO,
    passes_through: false,
};

thread_local! {
    static IS_OPEN: Cell<bool> = const { Cell::new(false) };
    static IS_WAITING: Cell<bool> = const { Cell::new(false) };
    static COST: Cell<Cost> = const { Cell::new(NOTHING) };
}

/// Does `work` and tells what it cost. `None` for what is a part of other work whose cost is being
/// told.
pub fn of<T>(work: impl FnOnce() -> T) -> (T, Option<Cost>) {
    /// Also after a panic, which the thread outlives.
    struct Close;
    impl Drop for Close {
        fn drop(&mut self) {
            IS_OPEN.set(false);
            IS_WAITING.set(false);
        }
    }
    if IS_OPEN.get() {
        return (work(), None);
    }
    COST.set(NOTHING);
    IS_OPEN.set(true);
    let close = Close;
    let done = work();
    drop(close);
    (done, Some(COST.get()))
}

/// Whether this thread works on something whose cost is being told.
pub fn is_open() -> bool {
    IS_OPEN.get()
}

fn add(change: impl FnOnce(&mut Cost)) {
    let mut cost = COST.get();
    change(&mut cost);
    COST.set(cost);
}

/// Does `work`, which is waiting for the parallel file system.
pub fn wait<T>(work: impl FnOnce() -> T) -> T {
    if !IS_OPEN.get() || IS_WAITING.replace(true) {
        return work();
    }
    let begun = Instant::now();
    let done = work();
    IS_WAITING.set(false);
    waited(begun.elapsed());
    done
}

/// Another process waited so long for the parallel file system while this thread waited for it.
pub fn waited(time: Duration) {
    if IS_OPEN.get() {
        add(|cost| cost.waited += time);
    }
}

/// Bytes were read.
pub fn served(levels: &BytesByLevel) {
    if IS_OPEN.get() {
        add(|cost| cost.levels.merge(levels));
    }
}

/// The kernel was told to go on by itself.
pub fn passes_through() {
    if IS_OPEN.get() {
        add(|cost| cost.passes_through = true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_account_is_of_the_outermost_work_and_ends_with_it() {
        let levels = BytesByLevel { pfs: 3, ..Default::default() };
        served(&levels);
        let (inner, cost) = of(|| {
            served(&levels);
            of(|| served(&levels)).1
        });
        assert_eq!(inner, None);
        assert_eq!(cost.map(|cost| cost.levels.pfs), Some(6));
        assert_eq!(of(|| ()).1, Some(Cost::default()), "nothing is left of it");
        let panics = std::panic::catch_unwind(|| of(|| wait(|| panic!("as meant"))));
        assert!(panics.is_err() && !is_open());
    }

    #[test]
    fn a_wait_within_a_wait_counts_once() {
        let pause = Duration::from_millis(2);
        let (begun, (_, cost)) =
            (Instant::now(), of(|| wait(|| wait(|| std::thread::sleep(pause)))));
        let waited = cost.map(|cost| cost.waited).unwrap_or_default();
        assert!(waited >= pause && waited <= begun.elapsed(), "{waited:?}");
    }
}
