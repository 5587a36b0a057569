//! Checks whether a reading of available memory can be true. Refuses what the kernel's own
//! arithmetic excludes, and a reading that stands still while the stores move.

use super::meminfo::MemoryCounters;

/// Stores must move this far before a reading that does not move is called frozen.
const MOVED_BYTES: u64 = 64 << 20;
/// The kernel folds its per-CPU counts once a second; a reading may lag that long, and once more.
const FROZEN_NS: u64 = 2_000_000_000;

/// What was seen when the reading last changed.
#[derive(Default)]
pub(crate) struct Plausibility {
    counters: MemoryCounters,
    changed_ns: u64,
    stored_bytes: u64,
}

impl Plausibility {
    /// The available bytes of `counters` if they can be true.
    pub fn check(
        &mut self,
        at_ns: u64,
        counters: &MemoryCounters,
        available_bytes: Option<u64>,
        stored_bytes: u64,
    ) -> Option<u64> {
        if *counters != self.counters {
            self.counters = *counters;
            self.changed_ns = at_ns;
            self.stored_bytes = stored_bytes;
        }
        let frozen = at_ns.saturating_sub(self.changed_ns) > FROZEN_NS
            && stored_bytes.abs_diff(self.stored_bytes) > MOVED_BYTES;
        let available = available_bytes?;
        let total = counters.total.filter(|&total| total > 0)?;
        // The counts are not taken at one moment; a sixty-fourth is more than they drift apart.
        let ceiling = counters.available_ceiling_bytes().unwrap_or(total);
        let possible = available <= total && available <= ceiling.saturating_add(total / 64);
        (possible && !frozen).then_some(available)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn counters(free: u64) -> MemoryCounters {
        MemoryCounters {
            total: Some(64 << 30),
            free: Some(free),
            active_file: Some(0),
            inactive_file: Some(1 << 30),
            ..MemoryCounters::default()
        }
    }

    #[test]
    fn a_reading_beyond_the_kernels_arithmetic_is_refused() {
        let mut plausibility = Plausibility::default();
        let counters = counters(4 << 30);
        let mut check = |available| plausibility.check(0, &counters, available, 0);
        assert_eq!(check(Some(5 << 30)), Some(5 << 30));
        assert_eq!(check(Some(50 << 30)), None, "ten times as much");
        assert_eq!(check(Some(65 << 30)), None);
        assert_eq!(check(None), None);
    }

    #[test]
    fn a_reading_that_stands_still_while_stores_move_is_refused() {
        let mut plausibility = Plausibility::default();
        let available = Some(4 << 30);
        let second = 1_000_000_000;
        let mut check = |at, stored| plausibility.check(at, &counters(4 << 30), available, stored);
        assert_eq!(check(second, 10 << 30), available);
        assert_eq!(check(2 * second, 5 << 30), available, "it may lag");
        assert_eq!(check(10 * second, 10 << 30), available, "nothing moved: it may be idle");
        assert_eq!(check(11 * second, 5 << 30), None);
        let moved = plausibility.check(12 * second, &counters(5 << 30), available, 5 << 30);
        assert_eq!(moved, available, "it moves again");
    }
}
