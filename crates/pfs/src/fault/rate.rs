//! Holds many threads together to a number of bytes a second.
//!
//! Each transfer books its time on one line of time and waits for the end of its booking. Waiting
//! too long (a busy machine) is made good by the next bookings, up to a small credit; idle time
//! beyond the credit is gone, as it is on a real wire.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

/// Time that may be caught up: 1 % of a second, so that a second is exact to about 1 %.
const CREDIT: Duration = Duration::from_millis(10);

/// A budget of bytes a second.
pub(crate) struct RateLimiter {
    bytes_per_second: u64,
    /// End of the last booking.
    booked_until: Mutex<Option<Instant>>,
}

impl RateLimiter {
    pub fn new(bytes_per_second: u64) -> Self {
        RateLimiter { bytes_per_second, booked_until: Mutex::new(None) }
    }

    /// Books a transfer that began at `began`; it must not end before the result.
    pub fn book(&self, began: Instant, bytes: usize) -> Instant {
        let nanoseconds = bytes as u128 * 1_000_000_000 / u128::from(self.bytes_per_second);
        let length = Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        let mut booked_until = self.booked_until.lock();
        let start = match *booked_until {
            // Behind by no more than the credit: the line of time goes on without a gap.
            Some(until) if until + CREDIT >= began => until,
            Some(_) => began.checked_sub(CREDIT).unwrap_or(began),
            None => began,
        };
        let end = start + length;
        *booked_until = Some(end);
        end
    }

    /// Books a transfer and waits for the end of its booking.
    pub fn wait(&self, began: Instant, bytes: usize) {
        let end = self.book(began, bytes);
        let now = Instant::now();
        if end > now {
            std::thread::sleep(end - now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RATE: u64 = 400_000_000;

    /// Simulated threads that move blocks of 4 MiB for `seconds`, each transfer taking
    /// `transfer` itself and waking `late` after the booked end; returns bytes a second.
    fn simulate(threads: usize, transfer: Duration, late: Duration, seconds: u64) -> f64 {
        let limiter = RateLimiter::new(RATE);
        let start = Instant::now();
        let finish = start + Duration::from_secs(seconds);
        let mut free_at = vec![start; threads];
        let mut moved = 0u64;
        loop {
            let thread = (0..threads).min_by_key(|thread| free_at[*thread]).unwrap();
            let began = free_at[thread];
            if began >= finish {
                break;
            }
            let end = limiter.book(began, 4 << 20).max(began + transfer) + late;
            free_at[thread] = end;
            if end <= finish {
                moved += 4 << 20;
            }
        }
        moved as f64 / seconds as f64
    }

    #[test]
    fn the_rate_is_exact_for_any_number_of_threads() {
        for threads in [1, 2, 8, 32] {
            for late_us in [0, 100, 1_000, 4_000] {
                let late = Duration::from_micros(late_us);
                let rate = simulate(threads, Duration::from_millis(1), late, 10);
                let error = (rate / RATE as f64 - 1.0).abs();
                assert!(error < 0.03, "{threads} threads, {late_us} us late: {error:.3} off");
            }
        }
    }

    #[test]
    fn transfers_slower_than_the_rate_are_not_slowed_further() {
        let rate = simulate(1, Duration::from_millis(40), Duration::ZERO, 10);
        let own = (4u64 << 20) as f64 / 0.040;
        assert!((rate / own - 1.0).abs() < 0.03, "{rate} against {own}");
    }

    #[test]
    fn idle_time_is_not_saved_up() {
        let limiter = RateLimiter::new(RATE);
        let start = Instant::now();
        limiter.book(start, 4 << 20);
        let later = start + Duration::from_secs(5);
        let end = limiter.book(later, 400_000_000);
        assert!(end >= later + Duration::from_millis(990));
    }
}
