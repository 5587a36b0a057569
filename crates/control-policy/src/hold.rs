//! The hold after a shrink, during which a store must not grow. It doubles while growth and
//! shrinking alternate, and keeps the highest demand within it. It never delays a shrink.
//!
//! Growth is measured against the highest demand of the last hold, not against the present one. So
//! a demand that comes and goes faster than the hold leaves the store where it fits at all times.

use super::Parameters;

const MILLISECOND_NS: u64 = 1_000_000;

/// The hold.
#[derive(Default)]
pub(super) struct Hold {
    hold_ns: u64,
    /// The last decision that took bytes; the first decision counts as one.
    last_shrink_ns: Option<u64>,
    /// First shrink since the last growth.
    episode_ns: Option<u64>,
    grown_bytes: u64,
    calm_since_ns: u64,
    peaks: Peaks,
}

impl Hold {
    /// Notes the demand of this moment. `band_bytes` is what counts as a notable change.
    pub(super) fn observe(&mut self, at: u64, demand: u64, band_bytes: u64, p: &Parameters) {
        let min = p.hold_ms.saturating_mul(MILLISECOND_NS);
        let max = p.hold_max_ms.max(p.hold_ms).saturating_mul(MILLISECOND_NS);
        self.last_shrink_ns.get_or_insert(at);
        self.hold_ns = self.hold_ns.clamp(min, max);
        self.peaks.push(at, demand);
        let swing = self.peak_bytes(at).saturating_sub(demand);
        if swing > band_bytes.saturating_mul(2) {
            self.calm_since_ns = at;
        } else if at.saturating_sub(self.calm_since_ns) > self.hold_ns.saturating_mul(2) {
            self.hold_ns = (self.hold_ns / 2).max(min);
            self.calm_since_ns = at;
        }
    }

    /// Notes that bytes were taken at `at`. Where notable growth came before, the two alternate:
    /// the hold doubles, or covers one and a half periods of what was seen, whichever is longer.
    pub(super) fn shrunk(&mut self, at: u64, band_bytes: u64, p: &Parameters) {
        let max = p.hold_max_ms.max(p.hold_ms).saturating_mul(MILLISECOND_NS);
        if self.grown_bytes >= band_bytes.max(1) {
            if let Some(before) = self.episode_ns {
                let period = at.saturating_sub(before);
                if period <= max.saturating_mul(2) {
                    let longer =
                        self.hold_ns.saturating_mul(2).max(period.saturating_add(period / 2));
                    self.hold_ns = longer.min(max);
                }
            }
            self.episode_ns = Some(at);
        }
        self.episode_ns.get_or_insert(at);
        self.grown_bytes = 0;
        self.last_shrink_ns = Some(at);
        self.calm_since_ns = at;
    }

    /// Notes that room was taken which nobody used yet. What was grown before still counts: a
    /// demand that rises evenly takes the last unused bytes first.
    pub(super) fn took_unused(&mut self, at: u64) {
        self.last_shrink_ns = Some(at);
    }

    /// Restarts the hold without counting it as flapping.
    pub(super) fn restart(&mut self, at: u64) {
        self.last_shrink_ns = Some(at);
        self.grown_bytes = 0;
    }

    /// Notes growth by `bytes`.
    pub(super) fn grew(&mut self, bytes: u64) {
        self.grown_bytes = self.grown_bytes.saturating_add(bytes);
    }

    /// Whether the hold after the last shrink is over.
    pub(super) fn is_over(&self, at: u64) -> bool {
        self.last_shrink_ns.is_some_and(|last| at.saturating_sub(last) >= self.hold_ns)
    }

    /// The highest demand within the hold.
    pub(super) fn peak_bytes(&mut self, at: u64) -> u64 {
        self.peaks.highest(at.saturating_sub(self.hold_ns))
    }
}

const PEAKS: usize = 64;

/// Highest value of a sliding window: times rise, values fall. In place; where it is full, two
/// neighbours become one that is higher and later than either, so a peak is never forgotten early.
struct Peaks {
    entries: [(u64, u64); PEAKS],
    count: usize,
}

impl Default for Peaks {
    fn default() -> Self {
        Peaks { entries: [(0, 0); PEAKS], count: 0 }
    }
}

impl Peaks {
    fn push(&mut self, at: u64, value: u64) {
        while self.count > 0 && self.entries[self.count - 1].1 <= value {
            self.count -= 1;
        }
        if self.count == PEAKS {
            self.merge();
        }
        self.entries[self.count] = (at, value);
        self.count += 1;
    }

    /// Joins the two neighbours that are nearest in value.
    fn merge(&mut self) {
        let step = |at: &usize| self.entries[*at].1 - self.entries[at + 1].1;
        let nearest = (0..self.count - 1).min_by_key(step).unwrap_or(0);
        self.entries[nearest].0 = self.entries[nearest + 1].0;
        self.entries.copy_within(nearest + 2..self.count, nearest + 1);
        self.count -= 1;
    }

    /// The highest value at or after `since`; the newest is never forgotten.
    fn highest(&mut self, since: u64) -> u64 {
        let old = self.entries[..self.count].iter().take_while(|entry| entry.0 < since).count();
        let old = old.min(self.count.saturating_sub(1));
        self.entries.copy_within(old..self.count, 0);
        self.count -= old;
        if self.count == 0 { 0 } else { self.entries[0].1 }
    }
}
