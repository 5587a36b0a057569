//! The changes of one file that are not durable yet, shared by all of its writers.
//!
//! A sync makes durable what was changed before it began. So changes are counted by a number that
//! only goes up, and a sync that succeeds marks all that had been counted when it began. Nobody's
//! changes count as durable while a sync is still under way: a caller that needs it too waits for
//! its end, or makes one. A sync that fails is reported once to every open of that time, as the
//! kernel tells `fsync`.
//!
//! How to use it, in the node and in the client library alike:
//!
//! * one [`Unsynced`] a file (or an open, where nobody else can be asked), one [`Hearing`] a
//!   descriptor, made by [`Unsynced::listen`] at its open;
//! * after each change that the PFS took, or may have taken in part, call [`Unsynced::changed`];
//!   after the file was created, [`Unsynced::named`];
//! * `close` calls [`Unsynced::settle`] with [`Need::Counted`], `fsync` and writes of `O_SYNC` with
//!   [`Need::All`]. Never hold a lock in it that a writer needs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tidepool_proto::{Error, ErrorKind, Result};

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Unsynced {
    state: Mutex<State>,
    ended: Condvar,
}

/// Which failed syncs a descriptor has heard of.
#[derive(Debug)]
pub struct Hearing(AtomicU64);

/// What a caller must know to be durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The changes and the name that were counted before the call.
    Counted,
    /// All that is in the file before the call, also what nobody counted: the kernel's own writes,
    /// those of other programs, and those of a mode that promises nothing at `close`.
    All {
        /// Metadata that is not needed to read the bytes again may stay behind.
        data_only: bool,
    },
}

/// What a sync has to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// `fdatasync` is enough.
    pub data_only: bool,
    /// The directory entry has to be made durable as well, after the bytes.
    pub entry: bool,
    /// Bytes that were counted and not synced.
    pub bytes: u64,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes changed so far, and how many of them the last good sync found counted.
    changed: u64,
    synced: u64,
    /// The same for names.
    named: u64,
    names_synced: u64,
    /// Since when `changed` is ahead.
    since: Option<Instant>,
    /// Syncs begun so far; at most one is under way.
    begun: u64,
    running: bool,
    /// The latest sync that succeeded, of the data at least and of everything.
    data_done: u64,
    all_done: u64,
    /// Syncs that failed so far, and how the last one did.
    failures: u64,
    failure: Option<(i32, String)>,
    /// The last sync was one of them.
    failing: bool,
}

/// What the counters were when a call or a sync began.
#[derive(Clone, Copy)]
struct Mark {
    changed: u64,
    named: u64,
    begun: u64,
    failures: u64,
}

impl Unsynced {
    /// Counts a change of `bytes` that is with the PFS by now, durable or not. Returns how many
    /// bytes were dirty before. A change that moves no bytes counts as one.
    pub fn changed(&self, bytes: u64) -> u64 {
        let mut state = self.state.lock();
        let owed = state.changed - state.synced;
        state.changed += bytes.max(1);
        state.since.get_or_insert_with(Instant::now);
        owed
    }

    /// Counts the name of a file that was just created.
    pub fn named(&self) {
        self.state.lock().named += 1;
    }

    /// For a descriptor that is opened now: it will hear of syncs that fail from here on.
    pub fn listen(&self) -> Hearing {
        Hearing(AtomicU64::new(self.state.lock().failures))
    }

    /// Bytes that were changed and are not synced.
    pub fn dirty_bytes(&self) -> u64 {
        let state = self.state.lock();
        state.changed - state.synced
    }

    /// How long the oldest of them has been waiting.
    pub fn dirty_for(&self) -> Option<Duration> {
        self.state.lock().since.map(|since| since.elapsed())
    }

    /// Errno and text of the last sync, if it failed and bytes are dirty.
    pub fn failing(&self) -> Option<(i32, String)> {
        let state = self.state.lock();
        state.failure.clone().filter(|_| state.failing && state.changed > state.synced)
    }

    /// Returns when what `need` names is durable: by `sync`, which is called at most once, or by
    /// the sync of somebody else. An error is that of `sync`, or of a sync that failed since the
    /// last call for `hearing`.
    pub fn settle(
        &self,
        hearing: &Hearing,
        need: Need,
        sync: impl FnOnce(Work) -> Result<()>,
    ) -> Result<()> {
        let mut state = self.state.lock();
        let called = state.mark();
        loop {
            state.tell(hearing, &called)?;
            if state.meets(need, &called) {
                return Ok(());
            }
            if !state.running {
                break;
            }
            self.ended.wait(&mut state);
        }
        let (turn, work) = self.begin(&mut state, need);
        drop(state);
        let synced = sync(work);
        turn.end(hearing, &synced);
        synced
    }

    fn begin(&self, state: &mut State, need: Need) -> (Turn<'_>, Work) {
        state.running = true;
        state.begun += 1;
        let entry = state.named > state.names_synced;
        let data_only = need == Need::All { data_only: true } && !entry;
        let work = Work { data_only, entry, bytes: state.changed - state.synced };
        let (began, at) = (state.mark(), Instant::now());
        let turn = Turn { unsynced: self, began, at, data_only, has_ended: false };
        (turn, work)
    }
}

impl State {
    fn mark(&self) -> Mark {
        let State { changed, named, begun, failures, .. } = *self;
        Mark { changed, named, begun, failures }
    }

    fn meets(&self, need: Need, called: &Mark) -> bool {
        // A sync that was under way at the call may have missed what nobody counted.
        let bytes = match need {
            Need::Counted => self.synced >= called.changed,
            Need::All { data_only: true } => self.data_done > called.begun,
            Need::All { data_only: false } => self.all_done > called.begun,
        };
        bytes && self.names_synced >= called.named
    }

    /// Tells of a sync that failed since the descriptor last heard, or while this call waited.
    fn tell(&self, hearing: &Hearing, called: &Mark) -> Result<()> {
        let heard = hearing.0.swap(self.failures, Ordering::Relaxed);
        if heard == self.failures && called.failures == self.failures {
            return Ok(());
        }
        let (errno, text) = self.failure.clone().unwrap_or((libc::EIO, String::new()));
        Err(Error::new(ErrorKind::Pfs, "syncing a file", format!("a sync of it failed: {text}"))
            .caused_by(std::io::Error::from_raw_os_error(errno)))
    }

    fn succeed(&mut self, turn: &Turn<'_>) {
        let Mark { changed, named, begun, .. } = turn.began;
        self.synced = self.synced.max(changed);
        self.names_synced = self.names_synced.max(named);
        self.since = (self.changed > self.synced).then_some(turn.at);
        self.failing = false;
        self.data_done = begun;
        if !turn.data_only {
            self.all_done = begun;
        }
    }
}

/// The right to sync, held by one caller at a time.
struct Turn<'a> {
    unsynced: &'a Unsynced,
    began: Mark,
    at: Instant,
    data_only: bool,
    /// How the sync ended is known. The next one may be under way before this is dropped.
    has_ended: bool,
}

impl Turn<'_> {
    fn end(mut self, hearing: &Hearing, synced: &Result<()>) {
        let mut state = self.unsynced.state.lock();
        match synced {
            Ok(()) => state.succeed(&self),
            Err(error) => {
                state.failures += 1;
                state.failure = Some((error.errno(), error.to_string()));
                state.failing = true;
                // It hears this one from its own call.
                hearing.0.store(state.failures, Ordering::Relaxed);
            }
        }
        state.running = false;
        self.has_ended = true;
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            // A panic in the sync: nobody knows what it did.
            let mut state = self.unsynced.state.lock();
            state.running = false;
            state.failures += 1;
            state.failure = Some((libc::EIO, "it was not finished".into()));
            state.failing = true;
        }
        self.unsynced.ended.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: Need = Need::All { data_only: false };
    const DATA: Need = Need::All { data_only: true };

    fn failing() -> Result<()> {
        Err(Error::pfs("syncing", std::io::Error::from_raw_os_error(libc::EDQUOT)))
    }

    fn never(_: Work) -> Result<()> {
        panic!("nothing is owed")
    }

    #[test]
    fn what_is_changed_during_a_sync_is_owed_after_it() {
        let unsynced = Unsynced::default();
        let hearing = unsynced.listen();
        assert_eq!(unsynced.changed(10), 0);
        unsynced
            .settle(&hearing, Need::Counted, |work| {
                assert_eq!(work, Work { data_only: false, entry: false, bytes: 10 });
                unsynced.changed(5);
                Ok(())
            })
            .unwrap();
        assert_eq!(unsynced.dirty_bytes(), 5);
        assert!(unsynced.dirty_for().is_some());
        unsynced.settle(&hearing, DATA, |_| Ok(())).unwrap();
        unsynced.settle(&hearing, Need::Counted, never).unwrap();
        assert!(unsynced.dirty_for().is_none());
    }

    #[test]
    fn a_failure_is_heard_once_by_each_that_was_open() {
        let unsynced = Unsynced::default();
        let [one, two] = [unsynced.listen(), unsynced.listen()];
        unsynced.changed(1);
        for hearing in [&one, &two] {
            let error = unsynced.settle(hearing, Need::Counted, |_| failing()).unwrap_err();
            assert_eq!(error.errno(), libc::EDQUOT);
            assert_eq!(unsynced.failing().unwrap().0, libc::EDQUOT);
        }
        let later = unsynced.listen();
        for hearing in [&one, &two, &later] {
            unsynced.settle(hearing, ALL, |_| Ok(())).unwrap();
        }
        assert_eq!(unsynced.failing(), None, "what was owed is durable");
    }

    #[test]
    fn a_sync_of_data_leaves_the_rest_and_a_name_takes_everything() {
        let unsynced = Unsynced::default();
        let hearing = unsynced.listen();
        unsynced.named();
        let mut seen = Vec::new();
        for need in [DATA, DATA, ALL] {
            let note = |work| {
                seen.push(work);
                Ok(())
            };
            unsynced.settle(&hearing, need, note).unwrap();
        }
        let work = |data_only, entry| Work { data_only, entry, bytes: 0 };
        assert_eq!(seen, [work(false, true), work(true, false), work(false, false)]);
    }

    #[test]
    fn a_panic_in_a_sync_leaves_nobody_waiting() {
        let unsynced = Unsynced::default();
        let [one, two] = [unsynced.listen(), unsynced.listen()];
        let attempt = std::panic::AssertUnwindSafe(|| {
            let _ended = unsynced.settle(&one, ALL, |_| panic!("in a sync"));
        });
        std::panic::catch_unwind(attempt).unwrap_err();
        unsynced.settle(&two, ALL, |_| Ok(())).unwrap_err();
        unsynced.settle(&two, ALL, |_| Ok(())).unwrap();
    }

    #[test]
    fn syncs_that_follow_each_other_at_once_do_not_fail() {
        let unsynced = Unsynced::default();
        let running = AtomicU64::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    let hearing = unsynced.listen();
                    for _ in 0..50_000 {
                        let settled = unsynced.settle(&hearing, ALL, |_| {
                            let others = running.fetch_add(1, Ordering::Relaxed);
                            running.fetch_sub(1, Ordering::Relaxed);
                            assert_eq!(others, 0, "one at a time");
                            Ok(())
                        });
                        settled.expect("no sync failed");
                    }
                });
            }
        });
    }
}
