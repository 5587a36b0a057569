//! A job that takes, holds and gives back memory by a trace; and what it experienced: when it got
//! which bytes, and how long its page faults took.
//!
//! It never takes the last bytes of a machine: below a floor of available memory it waits, and
//! after a time it counts what it did not get as refused.

mod memory;
pub mod remote;

use std::io::BufRead;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use hdrhistogram::Histogram;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

use self::memory::Memory;
use crate::arguments::HogOptions;
use crate::environment;

/// The job looks at the machine before every part of this length.
const PART_BYTES: u64 = 16 << 20;
/// Unit in which memory is taken and logged.
pub const CHUNK_BYTES: u64 = 2 << 20;
/// Longer times count as this one.
const LONGEST_NS: u64 = 60_000_000_000;
/// How long the job waits for memory before it counts it as refused.
const PATIENCE: Duration = Duration::from_millis(500);

/// One step of a trace.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Step {
    /// Take these bytes, at a rate in bytes a second; 0 is as fast as the machine gives.
    Take {
        /// How many bytes.
        bytes: u64,
        /// Bytes a second.
        rate: u64,
    },
    /// Do nothing for so many milliseconds.
    Hold(u64),
    /// Give so many bytes back.
    Release(u64),
}

/// What a job says at its end.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Report {
    /// Time of the monotonic clock in nanoseconds, and bytes held from then on.
    pub held: Vec<(u64, u64)>,
    /// When each step began and ended.
    pub steps: Vec<(u64, u64)>,
    /// Bytes that were asked for and not given.
    pub refused_bytes: u64,
    /// Page faults, and how long they took.
    pub faults: Times,
    /// The time until the job had 16 MiB more, waiting included.
    pub parts: Times,
}

/// How long something took, in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Times {
    /// How many.
    pub count: u64,
    /// Half of them took at most this.
    pub p50_us: f64,
    /// 99 of 100 took at most this.
    pub p99_us: f64,
    /// None took longer.
    pub max_us: f64,
}

impl Times {
    fn of(times_ns: &Histogram<u64>) -> Self {
        let us = |ns: u64| ns as f64 / 1e3;
        Times {
            count: times_ns.len(),
            p50_us: us(times_ns.value_at_quantile(0.5)),
            p99_us: us(times_ns.value_at_quantile(0.99)),
            max_us: us(times_ns.max()),
        }
    }
}

/// Nanoseconds of the clock that all processes of a measurement share.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Reads a trace from the input, one JSON step a line, follows it and prints the report.
pub fn run(options: &HogOptions) -> Result<()> {
    let mut job = Job::new(options)?;
    for line in std::io::stdin().lock().lines() {
        job.follow(serde_json::from_str(&line?).context("a step of the trace")?)?;
    }
    println!("{}", serde_json::to_string(&job.finish())?);
    Ok(())
}

/// Follows a trace in this process.
pub fn follow(options: &HogOptions, trace: &[Step]) -> Result<Report> {
    let mut job = Job::new(options)?;
    trace.iter().try_for_each(|step| job.follow(*step))?;
    Ok(job.finish())
}

struct Job {
    memory: Memory,
    leave_bytes: u64,
    report: Report,
    fault_ns: Histogram<u64>,
    part_ns: Histogram<u64>,
}

impl Job {
    fn new(options: &HogOptions) -> Result<Self> {
        let times = || Histogram::new_with_bounds(1, LONGEST_NS, 3);
        let mut job = Job {
            memory: Memory::reserve(options.most, options.huge)?,
            leave_bytes: options.leave,
            report: Report::default(),
            fault_ns: times()?,
            part_ns: times()?,
        };
        job.log();
        Ok(job)
    }

    fn finish(self) -> Report {
        let (faults, parts) = (Times::of(&self.fault_ns), Times::of(&self.part_ns));
        Report { faults, parts, ..self.report }
    }

    fn follow(&mut self, step: Step) -> Result<()> {
        let began = now_ns();
        self.carry_out(step)?;
        self.report.steps.push((began, now_ns()));
        Ok(())
    }

    fn carry_out(&mut self, step: Step) -> Result<()> {
        match step {
            Step::Take { bytes, rate } => self.take(bytes, rate),
            Step::Hold(ms) => {
                std::thread::sleep(Duration::from_millis(ms));
                Ok(())
            }
            Step::Release(bytes) => {
                self.memory.release(bytes)?;
                self.log();
                Ok(())
            }
        }
    }

    fn take(&mut self, bytes: u64, rate: u64) -> Result<()> {
        let started = Instant::now();
        let mut taken = 0;
        let mut part_began = started;
        while taken < bytes {
            if taken % PART_BYTES == 0 {
                part_began = Instant::now();
                if !self.has_room()? {
                    self.report.refused_bytes += bytes - taken;
                    return Ok(());
                }
            }
            let chunk = CHUNK_BYTES.min(bytes - taken);
            self.memory.take(chunk, &mut self.fault_ns)?;
            taken += chunk;
            if taken % PART_BYTES == 0 || taken == bytes {
                self.part_ns.saturating_record(part_began.elapsed().as_nanos() as u64);
            }
            self.log();
            if rate > 0 {
                let due = Duration::from_secs_f64(taken as f64 / rate as f64);
                std::thread::sleep(due.saturating_sub(started.elapsed()));
            }
        }
        Ok(())
    }

    fn has_room(&self) -> Result<bool> {
        let started = Instant::now();
        while environment::memory_available_bytes()? < self.leave_bytes.saturating_add(PART_BYTES) {
            if started.elapsed() > PATIENCE {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(true)
    }

    fn log(&mut self) {
        self.report.held.push((now_ns(), self.memory.taken_bytes()));
    }
}

#[cfg(test)]
mod tests {
    use super::{Step, follow};
    use crate::arguments::HogOptions;

    #[test]
    fn a_job_takes_what_it_may_and_no_more() {
        const BYTES: u64 = 24 << 20;
        let trace = [Step::Take { bytes: BYTES, rate: 0 }, Step::Release(u64::MAX), Step::Hold(0)];
        let mut options = HogOptions { most: BYTES, leave: 0, huge: true };
        let report = follow(&options, &trace).unwrap();
        assert_eq!((report.refused_bytes, report.steps.len(), report.parts.count), (0, 3, 2));
        options.leave = u64::MAX;
        assert_eq!(follow(&options, &trace).unwrap().refused_bytes, BYTES);
    }
}
