//! Growth of the demand over the last second. A job that takes its memory in steps has no slope
//! between them, and write back to a slow file system must begin long before the last step.

/// Time that is looked at, and time between two values that are kept.
const WINDOW_NS: u64 = 1_000_000_000;
const STEP_NS: u64 = 100_000_000;
const VALUES: usize = 12;

/// The demand of the last second.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Climb {
    /// Times and values, oldest first.
    values: [(u64, u64); VALUES],
    count: usize,
}

impl Climb {
    /// Takes in the demand at `at` and returns by how much it is above the lowest of the second
    /// before; 0 where that is less than `least`.
    pub(super) fn update(&mut self, at: u64, demand: u64, least: u64) -> u64 {
        let since = at.saturating_sub(WINDOW_NS);
        let old = self.values[..self.count].iter().take_while(|value| value.0 < since).count();
        self.values.copy_within(old..self.count, 0);
        self.count -= old;
        let last = self.count.checked_sub(1).map(|index| self.values[index].0);
        if last.is_none_or(|last| at >= last.saturating_add(STEP_NS)) && self.count < VALUES {
            self.values[self.count] = (at, demand);
            self.count += 1;
        }
        let lowest = self.values[..self.count].iter().map(|value| value.1).min();
        let climb = demand.saturating_sub(lowest.unwrap_or(demand));
        if climb < least { 0 } else { climb }
    }
}

#[cfg(test)]
mod tests {
    use super::Climb;

    #[test]
    fn steps_add_up_over_a_second_and_are_forgotten_after_it() {
        let mut climb = Climb::default();
        let ms = 1_000_000;
        let mut last = 0;
        for tick in 0..300_u64 {
            // 10 bytes each 100 ms, for two seconds.
            last = climb.update(tick * 10 * ms, 10 * (tick / 10).min(20), 25);
            if tick == 25 {
                assert_eq!(last, 0, "20 are less than what counts");
            }
            if tick == 150 {
                assert_eq!(last, 100);
            }
        }
        assert!(last <= 10, "{last}");
        assert_eq!(climb.update(60_000 * ms, 500, 1), 0, "a second ago nothing was seen");
    }
}
