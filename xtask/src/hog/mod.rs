//! A job that takes memory, holds it and gives it back, by a trace; and what it experienced: when
//! it got which bytes, and how long its page faults took.
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
    /// Page faults, and how long they took in microseconds.
    pub faults: Faults,
}

/// Times of page faults in microseconds.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Faults {
    /// How many.
    pub count: u64,
    /// Half of them took at most this.
    pub p50_us: f64,
    /// 99 of 100 took at most this.
    pub p99_us: f64,
    /// None took longer.
    pub max_us: f64,
}

/// Nanoseconds of the clock that all processes of a measurement share.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

/// Reads a trace from the input, one JSON step a line, follows it and prints the report.
pub fn run(options: &HogOptions) -> Result<()> {
    let mut job = Job {
        memory: Memory::reserve(options.most, options.huge)?,
        leave_bytes: options.leave,
        report: Report::default(),
        latency: Histogram::new_with_bounds(1, 60_000_000_000, 3)?,
    };
    job.log();
    for line in std::io::stdin().lock().lines() {
        let step: Step = serde_json::from_str(&line?).context("a step of the trace")?;
        let began = now_ns();
        job.follow(step)?;
        job.report.steps.push((began, now_ns()));
    }
    let us = |ns: u64| ns as f64 / 1e3;
    job.report.faults = Faults {
        count: job.latency.len(),
        p50_us: us(job.latency.value_at_quantile(0.5)),
        p99_us: us(job.latency.value_at_quantile(0.99)),
        max_us: us(job.latency.max()),
    };
    println!("{}", serde_json::to_string(&job.report)?);
    Ok(())
}

struct Job {
    memory: Memory,
    leave_bytes: u64,
    report: Report,
    latency: Histogram<u64>,
}

impl Job {
    fn follow(&mut self, step: Step) -> Result<()> {
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
        while taken < bytes {
            if taken % PART_BYTES == 0 && !self.has_room()? {
                self.report.refused_bytes += bytes - taken;
                return Ok(());
            }
            let chunk = CHUNK_BYTES.min(bytes - taken);
            self.memory.take(chunk, &mut self.latency)?;
            taken += chunk;
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
        while environment::memory_available_bytes()? < self.leave_bytes + PART_BYTES {
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
