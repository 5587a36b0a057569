//! [`Pace`]: how fast files are written back at present. A controller begins the earlier the slower
//! it is.

use std::time::{Duration, Instant};

/// A rate is told this often.
const TOLD_EVERY: Duration = Duration::from_millis(100);
/// Time without a file after which the rate is known to be lower than it was believed.
const PATIENCE: Duration = Duration::from_millis(250);

/// Bytes that became clean since the first file was begun, or since that was reported.
#[derive(Debug, Default)]
pub(super) struct Pace {
    since: Option<Instant>,
    bytes: u64,
}

impl Pace {
    /// A file is begun, alone or beside others that go on.
    pub(super) fn begin(&mut self, now: Instant, alone: bool) {
        if alone {
            (self.since, self.bytes) = (None, 0);
        }
        self.since.get_or_insert(now);
    }

    /// A file ended with this many clean bytes; whether others go on. What is to be told now.
    pub(super) fn end(&mut self, bytes: u64, goes_on: bool) -> Option<(u64, Duration)> {
        self.bytes += bytes;
        let elapsed = self.since?.elapsed();
        if goes_on && (elapsed < TOLD_EVERY || self.bytes == 0) {
            return None;
        }
        self.since = goes_on.then(Instant::now);
        let bytes = std::mem::take(&mut self.bytes);
        (bytes > 0).then_some((bytes, elapsed))
    }

    /// The rate that cannot be exceeded any more, in bytes per second, while `coming` bytes are
    /// under way; `None` while that says little.
    pub(super) fn at_most(&self, coming: u64) -> Option<u64> {
        let elapsed = self.since?.elapsed();
        let bytes = self.bytes + coming;
        (elapsed >= PATIENCE && coming > 0).then(|| (bytes as f64 / elapsed.as_secs_f64()) as u64)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ago(milliseconds: u64) -> Instant {
        Instant::now().checked_sub(Duration::from_millis(milliseconds)).unwrap()
    }

    #[test]
    fn a_rate_is_told_as_it_goes_and_at_the_end() {
        let mut pace = Pace::default();
        pace.begin(Instant::now(), true);
        assert_eq!(pace.end(0, true), None, "nothing came");
        pace.since = Some(ago(200));
        let (bytes, elapsed) = pace.end(1000, true).unwrap();
        assert!(bytes == 1000 && elapsed >= Duration::from_millis(200));
        pace.since = Some(ago(10));
        let (bytes, elapsed) = pace.end(500, false).unwrap();
        assert!(bytes == 500 && elapsed < Duration::from_secs(60), "not what was told before");
        assert_eq!(pace.at_most(1), None, "nothing is under way");
    }

    #[test]
    fn time_without_a_file_bounds_the_rate() {
        let mut pace = Pace::default();
        pace.begin(Instant::now(), true);
        assert_eq!(pace.at_most(u64::MAX / 2), None, "it may come at once");
        pace.since = Some(ago(2000));
        let bytes_per_s = pace.at_most(1_000_000).unwrap();
        assert!(bytes_per_s <= 500_000 && bytes_per_s > 0, "{bytes_per_s}");
        pace.begin(Instant::now(), true);
        assert_eq!(pace.at_most(1), None, "what hung before is no part of it");
    }
}
