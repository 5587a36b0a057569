//! The clock of a file system, as far as it is known: a time that is never ahead of the clock that
//! stamps changes. Ahead would mean to call a racy time stamp settled while a change could still
//! hide in its tick; behind costs only a little caching.

use parking_lot::Mutex;
use rustix::time::{ClockId, clock_gettime};

/// Clocks of two machines may drift apart by this share of the time since they were compared.
const DRIFT_PARTS_PER_MILLION: i128 = 500;
/// Age at which a comparison is made anew.
const COMPARISON_AGE_MAX_NS: i128 = 300_000_000_000;

fn nanoseconds(clock: ClockId) -> i128 {
    let time = clock_gettime(clock);
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

/// Readings of the local clocks.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Reading {
    /// Wall clock; people and daemons set it.
    pub realtime_ns: i128,
    /// Time since boot, which nobody sets; counts suspension.
    pub boottime_ns: i128,
}

impl Reading {
    pub fn now() -> Self {
        Reading {
            realtime_ns: nanoseconds(ClockId::Realtime),
            boottime_ns: nanoseconds(ClockId::Boottime),
        }
    }
}

/// One comparison: a stamp that the file system gave at some time before `after`.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Comparison {
    pub stamp_ns: i128,
    pub after: Reading,
}

impl Comparison {
    /// The latest time that the file system's clock is sure to have reached at `now`.
    ///
    /// Follows the smaller advance of both local clocks, so that setting the wall clock forward
    /// or back never puts the result ahead.
    pub fn lower_bound_ns(&self, now: Reading) -> i128 {
        let by_wall = now.realtime_ns - self.after.realtime_ns;
        let by_boot = (now.boottime_ns - self.after.boottime_ns).max(0);
        let drift = by_boot * DRIFT_PARTS_PER_MILLION / 1_000_000;
        self.stamp_ns + by_wall.min(by_boot) - drift
    }

    /// The comparison that tells more, seen from `now`.
    pub fn tighter(self, other: Comparison, now: Reading) -> Comparison {
        if other.lower_bound_ns(now) > self.lower_bound_ns(now) { other } else { self }
    }
}

/// How time stamps of a store are compared with the time.
pub(crate) enum FileSystemClock {
    /// This machine's kernel stamps changes.
    Local,
    /// Another machine does; its clock was compared with ours.
    Compared {
        /// The tightest comparison.
        comparison: Mutex<Comparison>,
        /// What clocks of other clients may lag behind, where clients stamp changes themselves.
        allowance_ns: i128,
    },
    /// Another machine does, and the directory cannot be written to compare.
    Unknown {
        /// How far its clock may lag behind ours.
        allowance_ns: i128,
    },
}

impl FileSystemClock {
    /// See [`crate::LowerStore::now_ns`].
    pub fn now_ns(&self) -> i128 {
        match self {
            // The coarse clock is the one that the kernel stamps files with.
            FileSystemClock::Local => nanoseconds(ClockId::RealtimeCoarse),
            FileSystemClock::Compared { comparison, allowance_ns } => {
                comparison.lock().lower_bound_ns(Reading::now()) - allowance_ns
            }
            FileSystemClock::Unknown { allowance_ns } => {
                nanoseconds(ClockId::Realtime) - allowance_ns
            }
        }
    }

    /// Compares anew by `compare` if the last comparison is old. Concurrent callers do not wait.
    pub fn refresh(&self, compare: impl FnOnce() -> Option<Comparison>) {
        let FileSystemClock::Compared { comparison, .. } = self else { return };
        let now = Reading::now();
        {
            let Some(mut old) = comparison.try_lock() else { return };
            if now.boottime_ns - old.after.boottime_ns < COMPARISON_AGE_MAX_NS {
                return;
            }
            // Others go on with the old one meanwhile, moved to now so that one caller compares.
            *old = Comparison { stamp_ns: old.lower_bound_ns(now), after: now };
        }
        // Not the tighter of the two: the other clock may have been set back.
        if let Some(fresh) = compare() {
            *comparison.lock() = fresh;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i128 = 1_000_000_000;

    fn reading(realtime_s: i128, boottime_s: i128) -> Reading {
        Reading { realtime_ns: realtime_s * S, boottime_ns: boottime_s * S }
    }

    #[test]
    fn a_wall_clock_that_jumps_never_puts_the_time_ahead() {
        let comparison = Comparison { stamp_ns: 5_000 * S, after: reading(1_000, 10) };
        let drift = |seconds: i128| seconds * S * DRIFT_PARTS_PER_MILLION / 1_000_000;
        assert_eq!(comparison.lower_bound_ns(reading(1_002, 12)), 5_002 * S - drift(2));
        // Set forward by an hour: the boot clock binds.
        assert_eq!(comparison.lower_bound_ns(reading(4_602, 12)), 5_002 * S - drift(2));
        // Set back by 100 s: the wall clock binds.
        assert_eq!(comparison.lower_bound_ns(reading(902, 12)), 4_902 * S - drift(2));
    }

    #[test]
    fn the_tighter_comparison_wins() {
        let now = reading(1_010, 20);
        let loose = Comparison { stamp_ns: 5_000 * S, after: reading(1_002, 12) };
        let tight = Comparison { stamp_ns: 5_000 * S, after: reading(1_001, 11) };
        assert_eq!(loose.tighter(tight, now), tight);
        assert_eq!(tight.tighter(loose, now), tight);
    }

    #[test]
    fn an_old_comparison_is_made_anew_once() {
        let old_after = Reading {
            realtime_ns: Reading::now().realtime_ns - 1_000 * S,
            boottime_ns: Reading::now().boottime_ns - 1_000 * S,
        };
        let clock = FileSystemClock::Compared {
            comparison: Mutex::new(Comparison { stamp_ns: 0, after: old_after }),
            allowance_ns: 0,
        };
        let mut calls = 0;
        for _ in 0..2 {
            clock.refresh(|| {
                calls += 1;
                Some(Comparison { stamp_ns: 7 * S, after: Reading::now() })
            });
        }
        assert_eq!(calls, 1);
        assert!(clock.now_ns() >= 7 * S - S && clock.now_ns() < 1_000 * S);
    }
}
