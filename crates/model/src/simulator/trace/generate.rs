//! Generated demand: the shapes that tests, examples and comparisons share. The same arguments give
//! the same trace.

use std::time::Duration;

use super::{SECOND_NS, Trace, TracePoint};
use crate::simulator::random::Random;

fn ns(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Time in which a step happens: a page fault, not nothing, so that times rise.
const STEP_NS: u64 = 1_000;

/// Jobs that start and end all the time.
#[derive(Clone, Debug)]
pub struct Storm {
    /// Starts a minute.
    pub jobs_per_minute: u32,
    /// Memory of a job: from, to; in bytes.
    pub job_bytes: (u64, u64),
    /// Life of a job: from, to.
    pub life: (Duration, Duration),
    /// Time in which a job takes its memory.
    pub rise: Duration,
    /// Time of the last start.
    pub duration: Duration,
}

/// Runs of a program like High-Performance Linpack: takes nearly all at once, keeps it while it
/// computes, gives it back at its end.
#[derive(Clone, Debug)]
pub struct Bursts {
    /// Demand between runs in bytes.
    pub low_bytes: u64,
    /// Demand of a run in bytes.
    pub high_bytes: u64,
    /// Growth while a run takes its memory, in bytes per second; above zero.
    pub rate_bytes_per_s: u64,
    /// Time of a run after it has its memory.
    pub run: Duration,
    /// Time between runs.
    pub pause: Duration,
    /// Number of runs.
    pub runs: u32,
}

/// Points in rising order; a point at or before the last moves behind it.
#[derive(Default)]
struct Builder {
    points: Vec<TracePoint>,
}

impl Builder {
    fn put(&mut self, at_ns: u64, demand_bytes: u64) -> u64 {
        let last = self.points.last().copied().filter(|last| at_ns <= last.at_ns);
        if let Some(last) = last.filter(|last| last.demand_bytes == demand_bytes) {
            return last.at_ns;
        }
        let at_ns = last.map_or(at_ns, |last| last.at_ns + 1);
        self.points.push(TracePoint { at_ns, demand_bytes });
        at_ns
    }

    fn trace(self) -> Trace {
        Trace { points: self.points }
    }
}

/// Time to move `bytes` at `rate` in nanoseconds.
fn time_ns(bytes: u64, rate_bytes_per_s: u64) -> u64 {
    let exact = u128::from(bytes) * u128::from(SECOND_NS) / u128::from(rate_bytes_per_s.max(1));
    u64::try_from(exact).unwrap_or(u64::MAX).max(STEP_NS)
}

impl Trace {
    /// The same demand all the time.
    pub fn constant(demand_bytes: u64, duration: Duration) -> Trace {
        let mut points = Builder::default();
        points.put(0, demand_bytes);
        points.put(ns(duration), demand_bytes);
        points.trace()
    }

    /// One step at a moment.
    pub fn step(from_bytes: u64, to_bytes: u64, at: Duration, duration: Duration) -> Trace {
        let mut points = Builder::default();
        points.put(0, from_bytes);
        let start = points.put(ns(at), from_bytes);
        points.put(start + STEP_NS, to_bytes);
        points.put(ns(duration), to_bytes);
        points.trace()
    }

    /// Even growth, or fall, between two sizes at a rate in bytes per second.
    pub fn ramp(
        from_bytes: u64,
        to_bytes: u64,
        rate_bytes_per_s: u64,
        at: Duration,
        duration: Duration,
    ) -> Trace {
        let mut points = Builder::default();
        points.put(0, from_bytes);
        let start = points.put(ns(at), from_bytes);
        let time = time_ns(from_bytes.abs_diff(to_bytes), rate_bytes_per_s);
        points.put(start.saturating_add(time), to_bytes);
        points.put(ns(duration), to_bytes);
        points.trace()
    }

    /// Growth without end from the start on, as of a program that forgets to free.
    pub fn leak(from_bytes: u64, rate_bytes_per_s: u64, duration: Duration) -> Trace {
        let grown = u128::from(rate_bytes_per_s) * u128::from(ns(duration)) / 1_000_000_000;
        let to_bytes = from_bytes.saturating_add(u64::try_from(grown).unwrap_or(u64::MAX));
        Trace::ramp(from_bytes, to_bytes, rate_bytes_per_s, Duration::ZERO, duration)
    }

    /// Up and down between two sizes, half of the period each.
    pub fn sawtooth(
        low_bytes: u64,
        high_bytes: u64,
        period: Duration,
        duration: Duration,
    ) -> Trace {
        let (half, end) = ((ns(period) / 2).max(1), ns(duration));
        let mut points = Builder::default();
        let mut at = points.put(0, low_bytes);
        for turn in 1_u64.. {
            if at >= end {
                break;
            }
            at = points.put(turn * half, if turn % 2 == 1 { high_bytes } else { low_bytes });
        }
        points.trace()
    }

    /// A new size each `step`, evenly spread over `mean_bytes` ± `amplitude_bytes`.
    pub fn noise(
        seed: u64,
        mean_bytes: u64,
        amplitude_bytes: u64,
        step: Duration,
        duration: Duration,
    ) -> Trace {
        let mut random = Random::new(seed);
        let (step, end) = (ns(step).max(1), ns(duration));
        let low = mean_bytes.saturating_sub(amplitude_bytes);
        let mut points = Builder::default();
        for index in 0..=end / step {
            points.put(index * step, random.between(low, mean_bytes + amplitude_bytes));
        }
        points.trace()
    }

    /// Jobs that start and end all the time, without the first bytes of anything else.
    pub fn storm(seed: u64, storm: &Storm) -> Trace {
        let mut random = Random::new(seed);
        let gap = 60 * SECOND_NS / u64::from(storm.jobs_per_minute.max(1));
        let mut changes: Vec<(u64, i128)> = Vec::new();
        let mut start = random.between(0, gap);
        while start < ns(storm.duration) {
            let bytes = random.between(storm.job_bytes.0, storm.job_bytes.1);
            let life = random.between(ns(storm.life.0), ns(storm.life.1)).max(ns(storm.rise) + 1);
            // Taken in ten parts, given back at once.
            let parts = 10;
            for part in 0..parts {
                let at = start + ns(storm.rise) * part / parts;
                let taken = bytes * (part + 1) / parts - bytes * part / parts;
                changes.push((at, i128::from(taken)));
            }
            changes.push((start + life, -i128::from(bytes)));
            start += random.between(gap / 2, gap * 3 / 2).max(1);
        }
        changes.sort_unstable();
        let mut points = Builder::default();
        let mut now: i128 = 0;
        points.put(0, 0);
        for (at, change) in changes {
            let before = u64::try_from(now).unwrap_or(0);
            now += change;
            points.put(at, before);
            points.put(at + STEP_NS, u64::try_from(now).unwrap_or(0));
        }
        points.trace()
    }

    /// Runs of a program like High-Performance Linpack.
    pub fn bursts(bursts: &Bursts) -> Trace {
        let rise = time_ns(bursts.high_bytes.abs_diff(bursts.low_bytes), bursts.rate_bytes_per_s);
        let mut points = Builder::default();
        let mut at = points.put(0, bursts.low_bytes);
        for _ in 0..bursts.runs {
            at = points.put(at + ns(bursts.pause), bursts.low_bytes);
            at = points.put(at + rise, bursts.high_bytes);
            at = points.put(at + ns(bursts.run), bursts.high_bytes);
            at = points.put(at + STEP_NS, bursts.low_bytes);
        }
        points.put(at + ns(bursts.pause), bursts.low_bytes);
        points.trace()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: Duration = Duration::from_secs(1);

    #[test]
    fn shapes_are_what_their_names_say() {
        let at = |trace: &Trace, s: f64| trace.demand_bytes((s * 1e9) as u64);
        let step = Trace::step(10, 90, 2 * S, 5 * S);
        assert_eq!([at(&step, 1.9), at(&step, 2.1), at(&step, 9.0)], [10, 90, 90]);
        let ramp = Trace::ramp(0, 1000, 500, S, 10 * S);
        assert_eq!([at(&ramp, 1.0), at(&ramp, 2.0), at(&ramp, 3.5)], [0, 500, 1000]);
        let saw = Trace::sawtooth(0, 100, 2 * S, 7 * S);
        assert_eq!([at(&saw, 1.0), at(&saw, 2.0), at(&saw, 3.0), at(&saw, 4.5)], [100, 0, 100, 50]);
        let leak = Trace::leak(5, 10, 60 * S);
        assert_eq!(at(&leak, 60.0), 605);
        let bursts = Bursts {
            low_bytes: 1,
            high_bytes: 101,
            rate_bytes_per_s: 100,
            run: 3 * S,
            pause: S,
            runs: 2,
        };
        let bursts = Trace::bursts(&bursts);
        assert_eq!([at(&bursts, 0.5), at(&bursts, 3.0), at(&bursts, 5.5)], [1, 101, 1]);
        assert_eq!((at(&bursts, 8.0), bursts.duration_ns()), (101, 11 * SECOND_NS + 2 * STEP_NS));
    }

    #[test]
    fn chance_comes_from_the_seed_alone_and_stays_within_bounds() {
        let noise = |seed| Trace::noise(seed, 1000, 10, S / 100, 2 * S);
        assert_eq!(noise(1), noise(1));
        assert_ne!(noise(1), noise(2));
        let within = |point: &TracePoint| (990..=1010).contains(&point.demand_bytes);
        assert!(noise(3).points().iter().all(within));
        let storm = Storm {
            jobs_per_minute: 50,
            job_bytes: (100, 200),
            life: (S, 5 * S),
            rise: S / 10,
            duration: 60 * S,
        };
        let storm = Trace::storm(4, &storm);
        assert_eq!(storm.points().last().unwrap().demand_bytes, 0, "all jobs ended");
        assert!((100..=200 * 20).contains(&storm.peak_bytes()), "{}", storm.peak_bytes());
        assert_eq!(Trace::new(storm.points().to_vec()).unwrap(), storm, "times rise");
    }
}
