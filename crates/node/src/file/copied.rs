//! [`Copied`]: what a node keeps of the copies that other nodes have of a memory-only file of its
//! own: who has them, and what changed since they were brought up to date.
//!
//! Changes are noted, and sent, under the file's exclusive gate.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidepool_proto::stub::Copies;

use super::ranges::Ranges;
use crate::cluster::copies::owing::Owing;

/// Ranges that are remembered apart; beyond it they are remembered coarser.
const RANGES_MAX: usize = 4096;
/// Bytes to which ranges are rounded at first.
const GRANULE_MIN: u64 = 4096;

/// See the module's documentation.
#[derive(Debug)]
pub struct Copied {
    /// Who has them, and what they are called, as the mark tells it.
    pub copies: Copies,
    /// Where they are in burst buffers: the way there.
    pub owing: Option<Owing>,
    /// Since when bytes are promised that the PFS does not have.
    owed_since: OnceLock<Instant>,
    is_promised: AtomicBool,
    /// Where its holders believe the file, below the PFS directory.
    told_path: Mutex<PathBuf>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    changed: Ranges,
    /// Shortest length since the copies were brought up to date.
    shortest_bytes: u64,
    /// Number of the next message about them.
    next: u64,
    /// They are what the file is.
    is_up_to_date: bool,
    /// When they said so last.
    confirmed: Option<Instant>,
    /// They are not brought up to date any more: the file has to be written back.
    is_over: bool,
    /// By which number other nodes read what the file is, until it changes (`cluster::owed_reads`).
    token: Option<u64>,
}

/// What the copies lack.
#[derive(Debug, PartialEq, Eq)]
pub struct Lacking {
    /// Number of the first message about it.
    pub first: u64,
    /// To be cut to this length first.
    pub shortest_bytes: u64,
    /// Where bytes changed; they may go beyond the end of the file.
    pub ranges: Vec<Range<u64>>,
}

/// A file that is open to be written, but was not synced for so long, counts as at rest.
const STILL_FOR: Duration = Duration::from_secs(5);
/// A file that is written on and on is brought to the PFS after this time.
const OWED_MAX: Duration = Duration::from_secs(60);

fn changed_nothing() -> Ranges {
    Ranges::new(GRANULE_MIN, RANGES_MAX)
}

/// How long a sync without a change counts on what the copies said: a holder may be started anew.
const CONFIRMED_FOR: Duration = Duration::from_secs(1);

impl Copied {
    /// Copies of a file that begins to be in memory only; there are none of them yet.
    pub fn new(copies: Copies, owing: Option<Owing>) -> Self {
        let state = State {
            changed: changed_nothing(),
            shortest_bytes: 0,
            next: 1,
            is_up_to_date: false,
            confirmed: None,
            is_over: false,
            token: None,
        };
        Copied {
            copies,
            owing,
            owed_since: OnceLock::new(),
            is_promised: AtomicBool::new(false),
            told_path: Mutex::default(),
            state: Mutex::new(state),
        }
    }

    /// What the mark is to tell now.
    pub fn told(&self) -> Copies {
        Copies { is_promised: self.is_promised.load(Ordering::Acquire), ..self.copies.clone() }
    }

    /// A sync is about to promise bytes; whether it is the first.
    pub fn promise(&self) -> bool {
        self.owed_since.get_or_init(Instant::now);
        !self.is_promised.swap(true, Ordering::AcqRel)
    }

    /// Its holders were told that the file is here.
    pub fn note_told(&self, path: &Path) {
        *self.told_path.lock() = path.to_owned();
    }

    /// Whether its holders believe the file elsewhere; false where they were told nothing yet.
    pub fn is_elsewhere(&self, path: &Path) -> bool {
        let told = self.told_path.lock();
        !told.as_os_str().is_empty() && *told != path
    }

    /// Bytes are about to be written.
    pub fn note_write(&self, range: Range<u64>) {
        let mut state = self.state.lock();
        (state.is_up_to_date, state.token) = (false, None);
        if !state.is_over {
            state.changed.add(range);
        }
    }

    /// The file is about to get another length.
    pub fn note_size(&self, bytes: u64) {
        let cut = self.owing.as_ref().map_or(0..0, |owing| owing.cut(bytes));
        let mut state = self.state.lock();
        state.changed.add(cut);
        (state.is_up_to_date, state.token) = (false, None);
        state.shortest_bytes = state.shortest_bytes.min(bytes);
    }

    /// What the copies lack; `None` where they lack nothing.
    pub fn lacking(&self) -> Option<Lacking> {
        let state = self.state.lock();
        let ranges = || state.changed.iter().collect();
        (!state.is_up_to_date).then(|| Lacking {
            first: state.next,
            shortest_bytes: state.shortest_bytes,
            ranges: ranges(),
        })
    }

    /// As [`lacking`](Self::lacking) where they said long ago that they lack nothing: with nothing
    /// in it, they are asked again.
    pub fn to_confirm(&self) -> Option<Lacking> {
        let state = self.state.lock();
        let is_old = state.confirmed.is_none_or(|at| at.elapsed() > CONFIRMED_FOR);
        is_old.then(|| Lacking {
            first: state.next,
            shortest_bytes: state.shortest_bytes,
            ranges: Vec::new(),
        })
    }

    /// The copies are what the file of `size` bytes is, after the message before `next`.
    pub fn brought_up_to_date(&self, size: u64, next: u64) {
        let mut state = self.state.lock();
        (state.changed, state.shortest_bytes) = (changed_nothing(), size);
        (state.next, state.is_up_to_date) = (next, true);
        state.confirmed = Some(Instant::now());
    }

    /// Of a file in burst buffers: since when they owe it to the PFS; `None`: they owe nothing.
    pub fn owed_since(&self) -> Option<Instant> {
        self.owing.as_ref().and_then(|_| self.owed_since.get().copied())
    }

    /// Whether a file in burst buffers is to be brought to the PFS now: nobody writes it, or it is
    /// owed for long.
    pub fn is_due(&self, is_written: bool) -> bool {
        let Some(since) = self.owed_since() else { return false };
        let state = self.state.lock();
        let is_still = state.confirmed.is_some_and(|at| at.elapsed() > STILL_FOR);
        state.is_up_to_date && (!is_written || is_still || since.elapsed() > OWED_MAX)
    }

    /// Takes ranges, of whole granules of `bytes` before `end`, out of what the copies lack: they
    /// are sent before a sync. `None` where they are fewer than so many bytes, or where the file is
    /// to be cut first, of which `told_bytes` are known there.
    pub fn take_ahead(
        &self,
        bytes: u64,
        end: u64,
        (told_bytes, fewest_bytes): (u64, u64),
    ) -> Option<Vec<Range<u64>>> {
        let mut state = self.state.lock();
        if state.is_over || state.shortest_bytes < told_bytes {
            return None;
        }
        let whole =
            |range: Range<u64>| range.start / bytes * bytes..range.end.min(end) / bytes * bytes;
        let ranges: Vec<_> = state.changed.iter().map(whole).filter(|it| !it.is_empty()).collect();
        let count: u64 = ranges.iter().map(|range| range.end - range.start).sum();
        if count < fewest_bytes {
            return None;
        }
        ranges.iter().for_each(|range| state.changed.remove(range.clone()));
        Some(ranges)
    }

    /// Whether a sync promised all of the bytes that are here.
    pub fn is_up_to_date(&self) -> bool {
        self.state.lock().is_up_to_date
    }

    /// By which number other nodes read the file as it is, and its length; `None` where a sync did
    /// not promise all of its bytes. It is `fresh` where there is none yet.
    pub fn token(&self, fresh: impl FnOnce() -> u64) -> Option<(u64, u64)> {
        let mut state = self.state.lock();
        if !state.is_up_to_date {
            return None;
        }
        let token = *state.token.get_or_insert_with(fresh);
        // Nothing was cut since.
        Some((token, state.shortest_bytes))
    }

    /// The length of the file while its bytes are those of `token`.
    pub fn length_of(&self, token: u64) -> Option<u64> {
        let state = self.state.lock();
        (state.token == Some(token)).then_some(state.shortest_bytes)
    }

    /// The number by which other nodes read the file, if any does.
    pub fn given_token(&self) -> Option<u64> {
        self.state.lock().token
    }

    /// The same where the PFS has the bytes, and nobody gets another one.
    pub fn end_token(&self) -> Option<u64> {
        let mut state = self.state.lock();
        state.is_up_to_date = false;
        state.token
    }

    /// From now on the promise of a sync is kept by the PFS.
    pub fn end(&self) {
        let mut state = self.state.lock();
        state.is_over = true;
        state.changed = changed_nothing();
    }

    /// Whether the file has to be written back.
    pub fn is_over(&self) -> bool {
        self.state.lock().is_over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copied() -> Copied {
        Copied::new(Copies { epoch: 1, holders: vec!["n1".into()], is_promised: false }, None)
    }

    #[test]
    fn copies_that_said_something_long_ago_are_asked_again() {
        let copied = copied();
        copied.note_write(10..20);
        copied.brought_up_to_date(20, 2);
        assert!(copied.lacking().is_none() && copied.to_confirm().is_none());
        copied.state.lock().confirmed = Instant::now().checked_sub(CONFIRMED_FOR * 2);
        let asked = copied.to_confirm().unwrap();
        assert_eq!((asked.first, asked.shortest_bytes, asked.ranges), (2, 20, vec![]));
        assert!(copied.lacking().is_none());
    }

    #[test]
    fn what_changed_is_lacking_until_it_was_sent() {
        let copied = copied();
        assert_eq!(copied.lacking().unwrap().ranges, [], "an empty file is told too");
        copied.note_write(10..20);
        copied.note_write(4096..4097);
        copied.note_write(100_000..100_001);
        let lacking = copied.lacking().unwrap();
        assert_eq!(lacking.ranges, [0..8192, 98_304..102_400]);
        assert_eq!((lacking.first, lacking.shortest_bytes), (1, 0));
        copied.brought_up_to_date(100_001, 5);
        assert!(copied.lacking().is_none() && copied.is_up_to_date());
        let (token, length) = copied.token(|| 7).unwrap();
        assert_eq!((copied.token(|| 8), length), (Some((7, length)), 100_001), "one for its bytes");
        assert_eq!((copied.length_of(token), copied.length_of(token + 1)), (Some(length), None));
        copied.note_size(7);
        assert_eq!((copied.token(|| 8), copied.length_of(token)), (None, None), "they are others");
        copied.note_size(50);
        let lacking = copied.lacking().unwrap();
        assert_eq!((lacking.first, lacking.shortest_bytes, lacking.ranges), (5, 7, vec![]));
        copied.brought_up_to_date(50, 6);
        let (next, _) = copied.token(|| 8).unwrap();
        assert_eq!(next, 8);
        copied.note_write(3..4);
        assert_eq!((copied.given_token(), copied.length_of(next)), (None, None));
    }
}
