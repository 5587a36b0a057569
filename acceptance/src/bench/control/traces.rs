//! Hostile traces of demand: jobs that start and end at once, that take their memory in steps, that
//! leak. Each runs on the pool of huge pages beside a reader that brings evicted bytes back. The
//! figures are the time for which jobs lacked memory, the bytes brought back, and the processes
//! that the kernel killed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::super::row::{Goal, Row};
use super::pool::Pool;
use super::rig::{Contender, Rig};
use super::scenarios::while_reading;
use super::sizes::{GIB, Sizes};
use crate::hog::now_ns;

/// What a job takes of the burst that the machine has room for.
const BURST_MOST: u64 = 900 << 20;
/// What comes and goes by others' doing.
const SPREAD_BYTES: u64 = 32 << 20;
/// Bursts that come sooner than a hold is over.
const SHORT: Duration = Duration::from_secs(1);
const STEP_BYTES: u64 = 64 << 20;
const STEP_EVERY: Duration = Duration::from_millis(100);
const LEAK_BYTES: u64 = 2 << 20;
const LEAK_EVERY: Duration = Duration::from_millis(200);

/// A demand over time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trace {
    /// All at once, kept for half of the time between two of them, and given back at once.
    Bursts(Duration),
    /// 64 MiB each 100 ms, all kept.
    Steps,
    /// 10 MB/s.
    Leak,
}

/// All, in the order of the rows.
pub const ALL: [Trace; 5] = [
    Trace::Bursts(Duration::from_millis(300)),
    Trace::Bursts(Duration::from_millis(500)),
    Trace::Bursts(Duration::from_secs(7)),
    Trace::Steps,
    Trace::Leak,
];

/// What one run of a trace gave.
#[derive(Clone, Debug, Default)]
pub struct OfTrace {
    /// Each time that memory was missing from the headroom, in milliseconds.
    missing_ms: Vec<f64>,
    /// Bytes that the jobs asked for in all.
    asked: u64,
    /// Bytes that came back into the store after they had to leave.
    refilled: u64,
    /// Mean of what the store held, in bytes.
    mean_stored: f64,
    /// Processes that the kernel killed.
    killed: u64,
}

impl Trace {
    fn name(self) -> String {
        match self {
            Trace::Bursts(every) if every < SHORT => {
                format!("bursts each {} ms", every.as_millis())
            }
            Trace::Bursts(every) => format!("bursts each {} s", every.as_secs()),
            Trace::Steps => "64 MiB each 100 ms".to_owned(),
            Trace::Leak => "a leak of 10 MB/s".to_owned(),
        }
    }

    /// Makes the demand and returns the bytes that it asked for.
    fn make(self, pool: &mut Pool, burst: u64, quick: bool) -> Result<u64> {
        let began = Instant::now();
        let until = |at: Duration| std::thread::sleep(at.saturating_sub(began.elapsed()));
        let mut asked = 0;
        match self {
            Trace::Bursts(every) => {
                let whole = if every < SHORT { 24 } else { 28 };
                let rounds = Duration::from_secs(whole).div_duration_f64(every) as u32;
                for round in 0..if quick { 3 } else { rounds } {
                    until(every * round);
                    asked += pool.about(burst)?;
                    until(every * round + every / 2);
                    pool.about(0)?;
                }
            }
            Trace::Steps | Trace::Leak => {
                let (step, every) = match self {
                    Trace::Steps => (STEP_BYTES, STEP_EVERY),
                    _ => (LEAK_BYTES, LEAK_EVERY),
                };
                let most = if self == Trace::Steps { burst } else { burst.min(256 << 20) };
                let steps = if quick { 3 } else { (most / step) as u32 };
                for index in 1..=steps {
                    until(every * index);
                    asked = pool.about(step * u64::from(index))?;
                }
                std::thread::sleep(Duration::from_millis(500));
                pool.about(0)?;
            }
        }
        Ok(asked)
    }
}

/// Runs a trace from a full store, a tenth of the burst before its threshold.
pub fn run(
    trace: Trace,
    contender: Contender,
    rig: &mut Rig,
    pool: &mut Pool,
    sizes: &Sizes,
) -> Result<OfTrace> {
    let burst = BURST_MOST.min(sizes.burst / 2);
    rig.prepare(contender, burst / 10)?;
    let killed = kills()?;
    let watch = rig.watch()?;
    let began = now_ns();
    let (asked, ended) = while_reading(rig, || {
        let made = trace.make(pool, burst, sizes.quick);
        let ended = now_ns();
        // Never left behind, whatever happened.
        pool.about(0)?;
        Ok((made?, ended))
    })?;
    let seen = watch.finish()?.between(began, ended);
    Ok(OfTrace {
        missing_ms: seen.missing_ms(rig.headroom, SPREAD_BYTES),
        asked,
        refilled: seen.refilled(),
        mean_stored: seen.mean_stored(),
        killed: kills()? - killed,
    })
}

fn kills() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/vmstat")?;
    let line = text.lines().find_map(|line| line.strip_prefix("oom_kill "));
    Ok(line.context("the kernel counts no kills")?.trim().parse()?)
}

/// The rows of one trace, the contenders below each other.
pub fn rows(trace: Trace, kind: &str, all: &[(Contender, Vec<OfTrace>)]) -> Vec<Row> {
    let title = |what: &str, contender: Contender| {
        format!("control: {}, {what}, {kind}, {}", trace.name(), contender.name())
    };
    let ran = || all.iter().filter(|(_, runs)| !runs.is_empty());
    let longest = |run: &OfTrace| run.missing_ms.iter().copied().fold(0.0, f64::max);
    let missing = ran().map(|(contender, runs)| {
        let counts: Vec<String> = runs.iter().map(|run| run.missing_ms.len().to_string()).collect();
        let sums: Vec<String> =
            runs.iter().map(|run| format!("{:.0}", run.missing_ms.iter().sum::<f64>())).collect();
        let figures = runs.iter().map(longest).collect();
        let note = format!("{} times, {} ms in all", counts.join(", "), sums.join(", "));
        Row::alone(&title("time to memory, longest", *contender), "ms", figures, Goal::Shown)
            .note(note)
    });
    let refilled = ran().map(|(contender, runs)| {
        let goal = match (trace, contender) {
            // A long pause fills the store once, whatever the policy.
            (Trace::Bursts(every), Contender::Tidepool) if every < SHORT => Goal::AtMost(0.2),
            _ => Goal::Shown,
        };
        let figures = runs.iter().map(|run| run.refilled as f64 / run.asked as f64).collect();
        let each = |of: fn(&OfTrace) -> f64| {
            let each: Vec<String> =
                runs.iter().map(|run| format!("{:.2}", of(run) / GIB)).collect();
            each.join(", ")
        };
        let killed: u64 = runs.iter().map(|run| run.killed).sum();
        Row::alone(&title("refilled by asked", *contender), "", figures, goal).note(format!(
            "{} of {} GiB; store {} GiB in the mean; {killed} processes killed",
            each(|run| run.refilled as f64),
            each(|run| run.asked as f64),
            each(|run| run.mean_stored),
        ))
    });
    missing.chain(refilled).collect()
}
