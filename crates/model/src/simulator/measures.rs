//! Measures of a simulated run: the figures in which policies are compared.
//!
//! All are taken from what was true on the node, never from what its sensors said.

use super::Run;

/// What a run is measured against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Goal {
    /// Bytes that demand and stores together should not exceed.
    pub used_target_bytes: u64,
    /// When demand came to rest, in nanoseconds; settling and oscillation count from there.
    pub rest_ns: u64,
    /// End of the time in which settling and oscillation are looked for, in nanoseconds.
    pub rest_end_ns: u64,
}

/// The figures of a run. Times are nanoseconds; `None` where it never happened.
#[derive(Clone, Debug, Default, PartialEq, serde::Serialize)]
pub struct Measures {
    /// From the first crossing of the target to the first byte that the system got back.
    pub first_byte_back_ns: Option<u64>,
    /// From the first crossing of the target until use is at or below it for good, or until the
    /// next crossing.
    pub released_after_ns: Option<u64>,
    /// Highest excess of use above the target in bytes.
    pub excess_peak_bytes: u64,
    /// Time above the node's memory in nanoseconds.
    pub over_memory_ns: u64,
    /// Bytes that the stores gave back.
    pub evicted_bytes: u64,
    /// Bytes that they had to give back at least, had they never grown.
    pub needed_bytes: u64,
    /// Bytes that the stores took.
    pub filled_bytes: u64,
    /// Time from the rest of the demand until the stores stay within 0.5 % of the node's memory.
    pub settling_ns: Option<u64>,
    /// Turns of the stores' size after they settled.
    pub sign_changes: u32,
    /// Mean size of the stores over the run in bytes.
    pub stored_mean_bytes: u64,
    /// Standard deviation of the stores' size after they settled, in bytes.
    pub stored_deviation_bytes: u64,
    /// From the rest of the demand until the stores have 90 % of what they may have.
    pub regrowth_ns: Option<u64>,
    /// Time in which some task waited for memory, in nanoseconds.
    pub stalled_some_ns: u64,
    /// Time in which all tasks waited for memory, in nanoseconds.
    pub stalled_full_ns: u64,
    /// Times that memory ran out, where the kernel kills a process.
    pub shortages: u64,
    /// Bytes swapped out.
    pub swapped_out_bytes: u64,
    /// Changes of a capacity.
    pub commands: u64,
}

/// Share of the node's memory within which the stores' size has settled: 1 of this many.
const SETTLED_DIVISOR: u64 = 200;
/// Share of the node's memory below which a turn is none: 1 of this many.
const TURN_DIVISOR: u64 = 2000;

impl Measures {
    /// The figures of a run.
    pub fn of(run: &Run, goal: &Goal) -> Measures {
        let Some(last) = run.samples.last() else { return Measures::default() };
        let first = &run.samples[0];
        let stored = run.samples.iter().map(|sample| u128::from(sample.truth.stored_bytes));
        let mean = stored.sum::<u128>() / run.samples.len() as u128;
        let mut measures = Measures {
            evicted_bytes: last.truth.evicted_bytes,
            filled_bytes: last.truth.filled_bytes,
            stored_mean_bytes: mean as u64,
            stalled_some_ns: last.truth.stalled_some_ns,
            stalled_full_ns: last.truth.stalled_full_ns,
            shortages: last.truth.shortages,
            swapped_out_bytes: last.truth.swapped_out_bytes,
            commands: run.commands,
            ..Measures::default()
        };
        let least_room = run
            .samples
            .iter()
            .map(|sample| goal.used_target_bytes.saturating_sub(sample.truth.demand_bytes));
        let least_room = least_room.min().unwrap_or(0);
        measures.needed_bytes = first.truth.stored_bytes.saturating_sub(least_room);
        measures.burst(run, goal);
        measures.rest(run, goal);
        measures
    }

    fn burst(&mut self, run: &Run, goal: &Goal) {
        let used = |index: usize| {
            run.samples[index].truth.demand_bytes + run.samples[index].truth.stored_bytes
        };
        let mut crossed: Option<(u64, u64)> = None;
        for (index, sample) in run.samples.iter().enumerate() {
            let excess = used(index).saturating_sub(goal.used_target_bytes);
            self.excess_peak_bytes = self.excess_peak_bytes.max(excess);
            let step_ns = index.checked_sub(1).map_or(0, |i| sample.at_ns - run.samples[i].at_ns);
            if used(index) > sample.truth.memory_total_bytes {
                self.over_memory_ns += step_ns;
            }
            match crossed {
                None if excess > 0 => crossed = Some((sample.at_ns, sample.truth.evicted_bytes)),
                Some((at_ns, evicted)) => {
                    if self.first_byte_back_ns.is_none() && sample.truth.evicted_bytes > evicted {
                        self.first_byte_back_ns = Some(sample.at_ns - at_ns);
                    }
                    if self.released_after_ns.is_none() && excess == 0 {
                        self.released_after_ns = Some(sample.at_ns - at_ns);
                    }
                }
                None => {}
            }
        }
    }

    fn rest(&mut self, run: &Run, goal: &Goal) {
        let at_rest = run
            .samples
            .iter()
            .filter(|sample| (goal.rest_ns..=goal.rest_end_ns).contains(&sample.at_ns));
        let rest: Vec<(u64, u64)> =
            at_rest.clone().map(|sample| (sample.at_ns, sample.truth.stored_bytes)).collect();
        let Some(&(_, last)) = rest.last() else { return };
        let total = run.samples[0].truth.memory_total_bytes;
        let near = |bytes: u64| bytes.abs_diff(last) <= total / SETTLED_DIVISOR;
        let settled = rest.iter().rposition(|(_, bytes)| !near(*bytes)).map_or(0, |far| far + 1);
        self.settling_ns = rest.get(settled).map(|(at_ns, _)| at_ns - goal.rest_ns);
        let settled = &rest[settled..];
        self.sign_changes = turns(settled.iter().map(|(_, bytes)| *bytes), total / TURN_DIVISOR);
        self.stored_deviation_bytes = deviation(settled.iter().map(|(_, bytes)| *bytes as f64));
        let capacity_max = run.capacity_max_bytes;
        let grown = at_rest.clone().find(|sample| {
            let room = goal.used_target_bytes.saturating_sub(sample.truth.demand_bytes);
            sample.truth.stored_bytes >= room.min(capacity_max) / 10 * 9
        });
        self.regrowth_ns = grown.map(|sample| sample.at_ns - goal.rest_ns);
    }
}

/// How often a series turns by more than `least`.
fn turns(values: impl Iterator<Item = u64>, least: u64) -> u32 {
    let (mut count, mut rising, mut extreme) = (0, None, None);
    for value in values {
        let Some(best) = extreme else {
            extreme = Some(value);
            continue;
        };
        if value.abs_diff(best) <= least {
            if rising.is_some_and(|rising| rising == (value > best)) {
                extreme = Some(value);
            }
            continue;
        }
        let rises = value > best;
        count += u32::from(rising.is_some_and(|rising| rising != rises));
        rising = Some(rises);
        extreme = Some(value);
    }
    count
}

fn deviation(values: impl Iterator<Item = f64> + Clone) -> u64 {
    let count = values.clone().count().max(1) as f64;
    let mean = values.clone().sum::<f64>() / count;
    let square = values.map(|value| (value - mean).powi(2)).sum::<f64>() / count;
    square.sqrt() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::simulator::{Sample, Truth};

    fn run(points: &[(u64, u64, u64)]) -> Run {
        let mut evicted_bytes = 0;
        let mut before = points[0].2;
        let mut samples = Vec::new();
        for (index, (at_ns, demand_bytes, stored_bytes)) in points.iter().copied().enumerate() {
            evicted_bytes += if index == 0 { 0 } else { before.saturating_sub(stored_bytes) };
            before = stored_bytes;
            let truth = Truth {
                memory_total_bytes: 10_000,
                demand_bytes,
                stored_bytes,
                evicted_bytes,
                ..Truth::default()
            };
            samples.push(Sample { at_ns, truth, capacity_bytes: 0, target_bytes: 0 });
        }
        Run { samples, capacity_max_bytes: 5_000, ..Run::default() }
    }

    #[test]
    fn figures_of_a_burst() {
        let run = run(&[
            (0, 4_000, 5_000),
            (10, 5_000, 5_000),
            (20, 6_000, 5_000),
            (30, 6_000, 4_000),
            (40, 6_000, 3_000),
            (50, 6_000, 3_000),
        ]);
        let goal = Goal { used_target_bytes: 9_500, rest_ns: 20, rest_end_ns: 50 };
        let measures = Measures::of(&run, &goal);
        assert_eq!(measures.first_byte_back_ns, Some(20), "crossed at 10, freed at 30");
        assert_eq!(measures.released_after_ns, Some(30));
        assert_eq!((measures.excess_peak_bytes, measures.over_memory_ns), (1_500, 10));
        assert_eq!((measures.evicted_bytes, measures.needed_bytes), (2_000, 1_500));
        assert_eq!((measures.settling_ns, measures.sign_changes), (Some(20), 0));
        assert_eq!(measures.stored_mean_bytes, 25_000 / 6);
        assert_eq!(measures.stored_deviation_bytes, 0);
        assert_eq!(measures.regrowth_ns, Some(0), "3150 would do, it still has 5000");
    }

    #[test]
    fn turns_are_counted_above_noise_only() {
        let series = [100, 103, 99, 104, 120, 119, 130, 100, 98, 130];
        assert_eq!(turns(series.into_iter(), 10), 2);
        assert_eq!(turns(series.into_iter(), 1000), 0);
        assert_eq!(turns([].into_iter(), 10), 0);
    }
}
