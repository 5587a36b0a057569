//! The adaptive sampling interval: how long a controller may wait until its next decision. No
//! decision comes later after the demand crossed the threshold than at the shortest interval.
//!
//! With `d` bytes left before the stores must give, and jobs and stores that take at most `X` bytes
//! a second together, nothing needs a decision for `d / X`. The controller waits for the interval
//! and that time, in whole intervals: `T (1 + floor(d / (X T)))`. If the demand starts to grow
//! right after a decision, it crosses the threshold after `d / X` at the soonest. The next decision
//! comes at most `T` later, as it would at the shortest interval.

use super::Parameters;
use super::estimate::SLOPE_MAX_BYTES_PER_S;

/// The longest time between two decisions in milliseconds, unless the interval is longer.
pub const INTERVAL_MAX_MS: u64 = 250;

/// The most that one processor takes in a second. Filling 2 MiB pages of a tmpfs was measured at 17
/// to 19 GB/s on memory that the host backs already; jobs are seen at 10.
const GROWTH_PER_PROCESSOR_BYTES_PER_S: f64 = 20e9;

/// The most that jobs and stores take in a second: what the processors can fill, and no more than
/// the memory takes.
pub fn growth_max_bytes_per_s(processors: Option<u32>) -> u64 {
    let filled = processors.map(|count| f64::from(count.max(1)) * GROWTH_PER_PROCESSOR_BYTES_PER_S);
    filled.unwrap_or(f64::INFINITY).min(SLOPE_MAX_BYTES_PER_S) as u64
}

/// Milliseconds until the next decision where `room_bytes` are left.
pub(super) fn next_ms(room_bytes: u64, processors: Option<u32>, parameters: &Parameters) -> u64 {
    let interval_ms = parameters.interval_ms.max(1);
    let room_ms = room_bytes / (growth_max_bytes_per_s(processors) / 1000);
    let intervals = 1 + room_ms.min(INTERVAL_MAX_MS) / interval_ms;
    interval_ms.saturating_mul(intervals.min((INTERVAL_MAX_MS / interval_ms).max(1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_are_whole_intervals_within_what_can_be_taken() {
        let p = |interval_ms| Parameters { interval_ms, ..Parameters::default() };
        // Two processors take 40 MB in a millisecond.
        let wait = |room, interval_ms| next_ms(room, Some(2), &p(interval_ms));
        assert_eq!([wait(0, 10), wait(399_999_999, 10), wait(400_000_000, 10)], [10, 10, 20]);
        assert_eq!([wait(u64::MAX, 10), wait(u64::MAX, 30), wait(u64::MAX, 250)], [250, 240, 250]);
        assert_eq!(wait(u64::MAX, 0), INTERVAL_MAX_MS, "an interval of zero is none");
    }

    #[test]
    fn unknown_processors_take_all_that_memory_gives() {
        assert_eq!(growth_max_bytes_per_s(Some(2)), 40_000_000_000);
        assert_eq!(growth_max_bytes_per_s(Some(0)), 20_000_000_000);
        assert_eq!(growth_max_bytes_per_s(None), growth_max_bytes_per_s(Some(256)));
    }
}
