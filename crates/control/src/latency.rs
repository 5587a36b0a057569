//! A histogram of times, in powers of two of a microsecond. Gives bounds, not exact values.

use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Counts of times: entry `n` counts those from 2^(n-1) up to 2^n microseconds, entry 0 those
/// below one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Histogram {
    /// The counts.
    pub counts: [u64; 32],
}

impl Histogram {
    /// Counts one time.
    pub fn add(&mut self, time: Duration) {
        let microseconds = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let bits = (u64::BITS - microseconds.leading_zeros()) as usize;
        self.counts[bits.min(self.counts.len() - 1)] += 1;
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Microseconds below which at least `share` (0 to 1) of the times lie; `None` where none was
    /// counted.
    pub fn quantile_us(&self, share: f64) -> Option<u64> {
        let needed = (self.count() as f64 * share).ceil().max(1.0) as u64;
        let mut seen = 0;
        self.counts.iter().enumerate().find_map(|(bits, count)| {
            seen += count;
            (seen >= needed).then_some(1 << bits)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_are_upper_bounds() {
        let mut histogram = Histogram::default();
        assert_eq!(histogram.quantile_us(0.5), None);
        for micros in [0, 3, 3, 3, 100] {
            histogram.add(Duration::from_micros(micros));
        }
        histogram.add(Duration::MAX);
        assert_eq!(histogram.count(), 6);
        assert_eq!(histogram.quantile_us(0.0), Some(1));
        assert_eq!(histogram.quantile_us(0.5), Some(4));
        assert_eq!(histogram.quantile_us(0.8), Some(128));
    }
}
