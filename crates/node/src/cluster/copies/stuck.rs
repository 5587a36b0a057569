//! [`Watched`]: claims of nodes that are there and do not get on. A call to the PFS that does not
//! return holds one thread up, and its node says that it is well.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// How long the file of a claim may stay as it is: syncing a large one takes its time.
const LIMIT: Duration = Duration::from_secs(120);
/// Claims that are watched.
const WATCHED_MAX: usize = 10_000;

/// Length of the file of a claim, and when it changed.
pub type Progress = (u64, i64, i64);

/// See the module's documentation.
#[derive(Default)]
pub struct Watched(Mutex<HashMap<u64, Seen>>);

struct Seen {
    claim: Vec<u8>,
    file: Option<Progress>,
    since: Instant,
}

impl Watched {
    /// Whether a claim of this time in memory, and its file, have been like that for too long. Its
    /// file may be taken out of the hands of its node then, as at any time.
    pub fn is_stuck(&self, epoch: u64, claim: &[u8], file: Option<Progress>) -> bool {
        self.is_stuck_at(Instant::now(), epoch, (claim, file))
    }

    fn is_stuck_at(
        &self,
        now: Instant,
        epoch: u64,
        (claim, file): (&[u8], Option<Progress>),
    ) -> bool {
        let mut watched = self.0.lock();
        if watched.len() >= WATCHED_MAX {
            watched.retain(|_, seen| now.saturating_duration_since(seen.since) < LIMIT * 2);
        }
        let anew = || Seen { claim: claim.to_owned(), file, since: now };
        let seen = watched.entry(epoch).or_insert_with(anew);
        if (&*seen.claim, seen.file) != (claim, file) {
            *seen = anew();
        }
        now.saturating_duration_since(seen.since) >= LIMIT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_that_gets_on_is_waited_for_and_one_that_does_not_is_stuck() {
        let (watched, begun) = (Watched::default(), Instant::now());
        let is_stuck = |after: u32, claim: &[u8], length| {
            watched.is_stuck_at(begun + LIMIT * after, 7, (claim, Some((length, 0, 0))))
        };
        assert!(!is_stuck(0, b"n1", 1));
        assert!(!is_stuck(1, b"n1", 2), "its file is longer");
        assert!(!is_stuck(2, b"n2", 2), "another one");
        assert!(is_stuck(3, b"n2", 2));
    }
}
