//! When memory-only files are written down for want of memory: by one thread at a time, and after a
//! PFS without room said so not again at once. Every try blocks a file and costs a sync, and where
//! one file found no room the next will find none either.

use std::time::{Duration, Instant};

use parking_lot::{Mutex, MutexGuard};
use tidepool_proto::Error;

/// The pause after the first refusal; it doubles up to the longest.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(30);
/// A full PFS is said this often.
const SAY_EVERY: Duration = Duration::from_secs(60);

/// The state of writing down.
#[derive(Default)]
pub struct Spilling {
    turn: Mutex<()>,
    refusals: Mutex<Refusals>,
}

#[derive(Default)]
struct Refusals {
    pause: Duration,
    until: Option<Instant>,
    /// Refusals that were not said yet.
    unsaid: u64,
    said: Option<Instant>,
}

impl Spilling {
    /// The right to write down for a controller; `None` while another thread does it.
    pub fn turn(&self) -> Option<MutexGuard<'_, ()>> {
        self.turn.try_lock()
    }

    /// Whether the PFS had no room a moment ago.
    pub fn is_paused(&self) -> bool {
        self.refusals.lock().until.is_some_and(|until| Instant::now() < until)
    }

    /// A file was written down: there is room.
    pub fn succeeded(&self) {
        let mut refusals = self.refusals.lock();
        refusals.until = None;
        refusals.pause = Duration::ZERO;
    }

    /// The PFS had no room for a file: the next pause begins.
    pub fn refused(&self, error: &Error) {
        let now = Instant::now();
        let mut refusals = self.refusals.lock();
        refusals.pause = (refusals.pause * 2).clamp(PAUSE_MIN, PAUSE_MAX);
        refusals.until = Some(now + refusals.pause);
        refusals.unsaid += 1;
        if refusals.said.is_none_or(|said| now - said >= SAY_EVERY) {
            refusals.said = Some(now);
            let count = std::mem::take(&mut refusals.unsaid);
            let again = refusals.pause;
            tracing::error!(
                %error, count, ?again,
                "the PFS has no room for memory-only files: they stay in memory; make room on it"
            );
        }
    }
}

/// Whether an error says that the PFS, or a quota on it, is full.
pub fn is_full(error: &Error) -> bool {
    matches!(error.errno(), libc::ENOSPC | libc::EDQUOT)
}

#[cfg(test)]
mod tests {
    use tidepool_proto::ErrorKind;

    use super::*;

    #[test]
    fn pauses_double_to_a_bound_and_end_with_a_success() {
        let (spilling, full) = (Spilling::default(), Error::new(ErrorKind::StoreFull, "", ""));
        assert!(is_full(&full) && !spilling.is_paused());
        let mut pauses = Vec::new();
        for _ in 0..7 {
            spilling.refused(&full);
            assert!(spilling.is_paused());
            pauses.push(spilling.refusals.lock().pause.as_secs());
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!(spilling.refusals.lock().unsaid, 6, "the first alone was said");
        spilling.succeeded();
        assert!(!spilling.is_paused());
        spilling.refused(&full);
        assert_eq!(spilling.refusals.lock().pause, PAUSE_MIN);
    }

    #[test]
    fn one_thread_has_the_turn() {
        let spilling = Spilling::default();
        let turn = spilling.turn();
        assert!(turn.is_some() && spilling.turn().is_none());
        drop(turn);
        assert!(spilling.turn().is_some());
    }
}
