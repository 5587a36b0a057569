//! The samples of a scenario, and the quantities computed from them. Pure arithmetic.

use super::super::row::median;

/// Share of the memory of the machine within which a store counts as settled.
const SETTLED_SHARE: f64 = 0.005;
/// Share of what is missing that may be other programs' doing.
const NOISE_SHARE: f64 = 0.05;

/// One look at machine and store.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Sample {
    /// Time of the monotonic clock in nanoseconds.
    pub at_ns: u64,
    /// Bytes available to jobs: what the kernel says, and free pages in per-CPU lists, which it
    /// leaves out though it hands them out.
    pub available: u64,
    /// Its part in per-CPU lists.
    pub hidden: u64,
    /// Free bytes.
    pub free: u64,
    /// Bytes of files and of shared memory.
    pub cached: u64,
    /// Bytes that the store holds.
    pub stored: u64,
    /// Bytes that the store may hold.
    pub capacity: u64,
}

/// Samples in the order of time.
#[derive(Clone, Debug, Default)]
pub struct Recording(pub Vec<Sample>);

impl Recording {
    /// Reads the lines of the watcher; what is no sample is left out.
    pub fn parse(text: &str) -> Self {
        let sample = |line: &str| {
            let words: Vec<u64> =
                line.split_whitespace().map_while(|word| word.parse().ok()).collect();
            let [at_ns, kernel, free, cached, stored, capacity, hidden] = words.try_into().ok()?;
            let available = kernel + hidden;
            Some(Sample { at_ns, available, hidden, free, cached, stored, capacity })
        };
        Recording(text.lines().filter_map(sample).collect())
    }

    /// What was seen from one time until another.
    pub fn between(&self, from_ns: u64, until_ns: u64) -> Recording {
        let within = |sample: &&Sample| (from_ns..until_ns).contains(&sample.at_ns);
        Recording(self.0.iter().filter(within).copied().collect())
    }

    /// When the available memory first went under the headroom.
    pub fn crossing_ns(&self, headroom: u64) -> Option<u64> {
        self.0.iter().find(|sample| sample.available < headroom).map(|sample| sample.at_ns)
    }

    /// Milliseconds from `since_ns` until the store had given at least `bytes`; `None` where it
    /// never did, or held nothing that it could have given.
    pub fn given_ms(&self, since_ns: u64, bytes: u64) -> Option<f64> {
        let before = self.0.iter().take_while(|sample| sample.at_ns <= since_ns).last()?.stored;
        let goal = before.checked_sub(bytes)?;
        let mut later = self.0.iter().filter(|sample| sample.at_ns > since_ns);
        let given = later.find(|sample| sample.stored <= goal)?;
        Some((given.at_ns - since_ns) as f64 / 1e6)
    }

    /// Milliseconds from the crossing until the store gave all but a little of `needed` bytes.
    pub fn ledger_back_ms(&self, headroom: u64, needed: u64) -> Option<f64> {
        let first = self.0.first()?;
        let crossing = self.crossing_ns(headroom)?;
        let goal = first.stored.saturating_sub(needed - share(needed, NOISE_SHARE));
        let back = self.0.iter().find(|sample| sample.stored <= goal)?;
        Some(back.at_ns.saturating_sub(crossing) as f64 / 1e6)
    }

    /// Milliseconds from the crossing until the kernel shows them as available as well.
    pub fn available_back_ms(&self, headroom: u64, needed: u64) -> Option<f64> {
        let crossing = self.crossing_ns(headroom)?;
        let lowest = self.0.iter().min_by_key(|sample| sample.available)?;
        let goal = headroom.saturating_sub(share(needed, NOISE_SHARE));
        let mut later = self.0.iter().filter(|sample| sample.at_ns >= lowest.at_ns);
        let back = later.find(|sample| sample.available >= goal)?;
        Some(back.at_ns.saturating_sub(crossing) as f64 / 1e6)
    }

    /// Most bytes by which the available memory was under the headroom.
    pub fn excess(&self, headroom: u64) -> u64 {
        let least = self.0.iter().map(|sample| sample.available).min().unwrap_or(headroom);
        headroom.saturating_sub(least)
    }

    /// Bytes that left the store, again and again.
    pub fn evicted(&self) -> u64 {
        self.0.windows(2).map(|pair| pair[0].stored.saturating_sub(pair[1].stored)).sum()
    }

    /// Bytes that came back into the store after its capacity had fallen, again and again. What a
    /// full store replaces for a reader goes and comes at the same capacity, and counts as nothing.
    pub fn refilled(&self) -> u64 {
        let Some(first) = self.0.first() else { return 0 };
        // What the store may have held since its last fill without a byte that came back.
        let (mut held, mut refilled) = (first.stored, 0);
        for sample in &self.0 {
            held = held.min(sample.capacity.max(sample.stored));
            refilled += sample.stored.saturating_sub(held);
            held = held.max(sample.stored);
        }
        refilled
    }

    /// How long the available memory was more than `spread` bytes under the headroom each time, in
    /// milliseconds. So much may be other programs' doing.
    pub fn missing_ms(&self, headroom: u64, spread: u64) -> Vec<f64> {
        let least = headroom.saturating_sub(spread);
        let mut times = Vec::new();
        let mut since = None;
        for sample in &self.0 {
            match since {
                None if sample.available < least => since = Some(sample.at_ns),
                Some(from) if sample.available >= least => {
                    times.push(sample.at_ns.saturating_sub(from) as f64 / 1e6);
                    since = None;
                }
                _ => {}
            }
        }
        let last = self.0.last().map(|sample| sample.at_ns);
        let open = since.zip(last).map(|(from, last)| last.saturating_sub(from) as f64 / 1e6);
        times.extend(open);
        times
    }

    /// Bytes that had to leave because the capacity fell below what was stored. What a full store
    /// replaces for a reader is no part of it: that depends on the reader, not on the policy.
    pub fn taken(&self) -> u64 {
        let forced = |pair: &[Sample]| {
            let (before, after) = (pair[0], pair[1]);
            // What was above the capacity before was counted when the capacity fell below it.
            before.stored.min(before.capacity).saturating_sub(after.capacity)
        };
        self.0.windows(2).map(forced).sum()
    }

    /// Most bytes that were in per-CPU lists at once.
    pub fn hidden_most(&self) -> u64 {
        self.0.iter().map(|sample| sample.hidden).max().unwrap_or(0)
    }

    /// Mean of what the store held, in bytes.
    pub fn mean_stored(&self) -> f64 {
        self.0.iter().map(|sample| sample.stored as f64).sum::<f64>() / self.0.len().max(1) as f64
    }

    /// Milliseconds from `since_ns` until what is stored stays near its last value, and how often
    /// it changed its direction by more than that after.
    pub fn settling(&self, since_ns: u64, memory_total: u64) -> Option<(f64, usize)> {
        let last = self.0.last()?.stored;
        let band = share(memory_total, SETTLED_SHARE);
        let outside = self.0.iter().rposition(|sample| sample.stored.abs_diff(last) > band);
        let after = &self.0[outside.map_or(0, |at| at + 1)..];
        let settled = after.first()?.at_ns.saturating_sub(since_ns) as f64 / 1e6;
        let moves: Vec<bool> = after
            .windows(2)
            .filter(|pair| pair[0].stored != pair[1].stored)
            .map(|pair| pair[1].stored > pair[0].stored)
            .collect();
        Some((settled, moves.windows(2).filter(|pair| pair[0] != pair[1]).count()))
    }

    /// Seconds from `since_ns` until the store held `bytes`.
    pub fn grown_s(&self, since_ns: u64, bytes: u64) -> Option<f64> {
        let mut later = self.0.iter().filter(|sample| sample.at_ns >= since_ns);
        let grown = later.find(|sample| sample.stored >= bytes)?;
        Some((grown.at_ns - since_ns) as f64 / 1e9)
    }

    /// The middle of the available memory.
    pub fn available(&self) -> u64 {
        let all: Vec<f64> = self.0.iter().map(|sample| sample.available as f64).collect();
        median(&all).unwrap_or(0.0) as u64
    }
}

fn share(bytes: u64, share: f64) -> u64 {
    (bytes as f64 * share) as u64
}

#[cfg(test)]
mod tests {
    use super::{Recording, Sample};

    /// One sample a millisecond of what is available and stored.
    fn recording(samples: &[(u64, u64)]) -> Recording {
        let sample = |(ms, (available, stored)): (usize, &(u64, u64))| Sample {
            at_ns: ms as u64 * 1_000_000,
            available: *available,
            stored: *stored,
            ..Sample::default()
        };
        Recording(samples.iter().enumerate().map(sample).collect())
    }

    #[test]
    fn a_burst_is_measured_from_the_crossing() {
        let burst = recording(&[(120, 500), (80, 500), (70, 490), (85, 440), (100, 400)]);
        assert_eq!(burst.crossing_ns(100), Some(1_000_000));
        assert_eq!(burst.ledger_back_ms(100, 100), Some(3.0));
        assert_eq!(burst.available_back_ms(100, 100), Some(3.0));
        assert_eq!((burst.excess(100), burst.evicted()), (30, 100));
        assert_eq!(burst.ledger_back_ms(50, 100), None, "no crossing, nothing to wait for");
        assert_eq!(burst.missing_ms(100, 5), [3.0]);
        assert_eq!(burst.missing_ms(130, 5), [4.0], "it never ends");
        let fixed = recording(&[(120, 500), (80, 500)]);
        assert_eq!(fixed.ledger_back_ms(100, 9), None);
    }

    #[test]
    fn a_step_is_measured_from_its_begin_to_a_part_of_it() {
        let step = recording(&[(0, 500), (0, 500), (0, 496), (0, 470), (0, 440)]);
        assert_eq!(step.given_ms(1_000_000, 30), Some(2.0), "a block that drifted is no answer");
        assert_eq!(step.given_ms(1_500_000, 4), Some(0.5));
        assert_eq!(step.given_ms(0, 100), None);
        assert_eq!(step.given_ms(0, 501), None, "more than it held");
    }

    #[test]
    fn only_what_a_falling_capacity_took_counts_as_refilled() {
        let sample = |(stored, capacity)| Sample { stored, capacity, ..Sample::default() };
        let of =
            |all: &[(u64, u64)]| Recording(all.iter().copied().map(sample).collect()).refilled();
        assert_eq!(of(&[(100, 100), (60, 100), (100, 100), (84, 100)]), 0, "replaced for a reader");
        assert_eq!(of(&[(100, 100), (100, 50), (70, 50), (50, 50), (50, 100), (80, 100)]), 30);
        let again = [(100, 100), (50, 50), (100, 100), (90, 100), (50, 50), (20, 50), (60, 100)];
        assert_eq!(of(&again), 60, "again and again");
        assert_eq!(of(&[]), 0);
    }

    #[test]
    fn only_a_falling_capacity_takes_bytes() {
        let sample = |(stored, capacity)| Sample { stored, capacity, ..Sample::default() };
        let of = |all: &[(u64, u64)]| Recording(all.iter().copied().map(sample).collect()).taken();
        assert_eq!(of(&[(90, 100), (84, 100), (90, 100)]), 0, "replaced for a reader");
        assert_eq!(of(&[(90, 100), (90, 95), (84, 95)]), 0, "unused room");
        assert_eq!(of(&[(90, 90), (90, 50), (70, 50), (50, 50), (50, 40)]), 50);
        assert_eq!(of(&[(90, 90), (90, 50), (80, 40), (40, 40)]), 50, "two commands under way");
    }

    #[test]
    fn settling_counts_what_turns_back() {
        let calm = recording(&[(0, 500), (0, 450), (0, 400), (0, 400)]);
        assert_eq!(calm.settling(0, 2_000), Some((2.0, 0)));
        let ringing = recording(&[(0, 500), (0, 400), (0, 405), (0, 398), (0, 400)]);
        assert_eq!(ringing.settling(0, 2_000), Some((1.0, 2)));
        assert_eq!(ringing.grown_s(2_000_000, 400), Some(0.0));
        assert_eq!(calm.mean_stored(), 437.5);
    }

    #[test]
    fn lines_that_are_no_samples_are_left_out() {
        let read = Recording::parse("watching\n1 2 3 4 5 6 7\n1 2 3 4 5 6\n1 2\n");
        assert_eq!(read.0.len(), 1);
        assert_eq!((read.0[0].stored, read.0[0].capacity), (5, 6));
        assert_eq!((read.0[0].available, read.0[0].hidden), (9, 7), "lists are available");
    }
}
