//! Memory-only files that the PFS does not take, for another reason than lack of room: when each
//! is worth another try, and what operators are told. Where many fail one after the other it is
//! the PFS, and one file is tried for all.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidepool_proto::{Error, FileId};

/// Failures in a row after which it is the PFS that fails.
const MANY: u32 = 8;
/// The pause after the first refusal; it doubles up to the longest.
pub(super) const PAUSE_MIN: Duration = Duration::from_secs(1);
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(30);
/// What goes on is said this often.
pub(super) const SAY_EVERY: Duration = Duration::from_secs(60);
/// One file is tried for all at least this often, because a job may wait for the memory.
const PFS_PAUSE_MAX: Duration = Duration::from_secs(2);

/// See the module's documentation.
#[derive(Default)]
pub struct Failing(Mutex<Failures>);

#[derive(Default)]
struct Failures {
    files: HashMap<FileId, Failed>,
    in_a_row: u32,
    pfs: Option<Pause>,
    /// Failures that were not said yet.
    unsaid: u64,
    said: Option<Instant>,
    /// Operators believe that files fail.
    is_known: bool,
}

/// A file that the PFS did not take.
struct Failed {
    pause: Pause,
    why: String,
}

/// Until when nothing is tried.
#[derive(Clone, Copy)]
struct Pause {
    length: Duration,
    until: Instant,
    /// When the last failure was seen.
    seen: Instant,
}

impl Pause {
    /// The next pause, after a try that was begun at `begun`. Tries beside each other that all
    /// fail are one finding.
    fn next(before: Option<Pause>, begun: Instant, longest: Duration) -> Pause {
        let now = Instant::now();
        match before {
            Some(pause) if pause.seen > begun => pause,
            before => {
                let length = before.map_or(Duration::ZERO, |pause| pause.length);
                let length = (length * 2).clamp(PAUSE_MIN, longest);
                Pause { length, until: now + length, seen: now }
            }
        }
    }

    fn lasts(&self) -> bool {
        Instant::now() < self.until
    }
}

impl Failing {
    /// Whether this file, or all of them, failed a moment ago. Where all of them did and the pause
    /// is over, one caller may try.
    pub fn is_paused(&self, file: FileId) -> bool {
        let mut failures = self.0.lock();
        if failures.files.get(&file).is_some_and(|failed| failed.pause.lasts()) {
            return true;
        }
        let Some(pfs) = &mut failures.pfs else { return false };
        let lasts = pfs.lasts();
        if !lasts {
            pfs.until = Instant::now() + pfs.length;
        }
        lasts
    }

    /// A try that was begun at `begun` failed: the next pause begins.
    pub fn failed(&self, file: FileId, error: &Error, begun: Instant) {
        let now = Instant::now();
        let mut failures = self.0.lock();
        // Files may be gone, or be written back by their writers.
        failures.files.retain(|_, failed| now < failed.pause.until + PAUSE_MAX);
        let before = failures.files.get(&file).map(|failed| failed.pause);
        let pause = Pause::next(before, begun, PAUSE_MAX);
        failures.files.insert(file, Failed { pause, why: error.to_string() });
        failures.in_a_row += 1;
        if failures.in_a_row >= MANY {
            failures.pfs = Some(Pause::next(failures.pfs, begun, PFS_PAUSE_MAX));
        }
        failures.unsaid += 1;
        if failures.said.is_none_or(|said| now - said >= SAY_EVERY) {
            (failures.said, failures.is_known) = (Some(now), true);
            let (count, files) = (std::mem::take(&mut failures.unsaid), failures.files.len());
            tracing::error!(
                %error, inode = file.inode, count, files,
                "the PFS did not take memory-only files: they stay in memory and are tried again"
            );
        }
    }

    /// Why the PFS did not take a file, if it did not a while ago.
    pub fn why(&self, file: FileId) -> Option<String> {
        self.0.lock().files.get(&file).map(|failed| failed.why.clone())
    }

    /// A file was written back.
    pub fn succeeded(&self, file: FileId) {
        let mut failures = self.0.lock();
        failures.in_a_row = 0;
        if failures.files.is_empty() && !failures.is_known {
            return;
        }
        failures.files.remove(&file);
        if failures.pfs.take().is_some() {
            // It was not theirs.
            failures.files.clear();
        }
        let now = Instant::now();
        failures.files.retain(|_, failed| now < failed.pause.until + PAUSE_MAX);
        if failures.files.is_empty() && std::mem::take(&mut failures.is_known) {
            let count = std::mem::take(&mut failures.unsaid);
            tracing::info!(count, "the PFS takes the memory-only files again that it did not take");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn error() -> Error {
        Error::pfs("writing", std::io::Error::from_raw_os_error(libc::EIO))
    }

    fn file(inode: u64) -> FileId {
        FileId { device: 1, inode }
    }

    #[test]
    fn one_bad_file_holds_up_itself_alone() {
        let failing = Failing::default();
        let mut lengths = Vec::new();
        for _ in 0..7 {
            failing.failed(file(1), &error(), Instant::now());
            failing.succeeded(file(2));
            lengths.push(failing.0.lock().files[&file(1)].pause.length.as_secs());
        }
        assert_eq!(lengths, [1, 2, 4, 8, 16, 30, 30]);
        assert!(failing.is_paused(file(1)) && !failing.is_paused(file(2)));
        let failures = failing.0.lock();
        assert_eq!((failures.unsaid, failures.is_known), (6, true), "the first alone was said");
    }

    #[test]
    fn many_that_fail_pause_all_until_one_is_taken() {
        let failing = Failing::default();
        let begun = Instant::now();
        for number in 0..u64::from(MANY) {
            assert!(!failing.is_paused(file(100)), "{number} may be bad files");
            failing.failed(file(number), &error(), begun);
        }
        failing.failed(file(50), &error(), begun);
        assert!(failing.is_paused(file(100)));
        assert_eq!(failing.0.lock().pfs.unwrap().length, PAUSE_MIN, "beside each other: once");
        failing.0.lock().pfs.as_mut().unwrap().until = Instant::now();
        assert!(!failing.is_paused(file(100)), "one tries for all");
        assert!(failing.is_paused(file(101)));
        failing.succeeded(file(100));
        assert!(!failing.is_paused(file(101)) && !failing.is_paused(file(1)));
        assert!(!failing.0.lock().is_known, "and that is said");
    }
}
