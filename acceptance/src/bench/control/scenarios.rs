//! The scenarios of the benchmark: each drives the demand, watches the node, and returns the
//! figures of one round.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::pool::Pool;
use super::recording::Recording;
use super::rig::Rig;
use crate::environment;
use crate::hog::now_ns;

const LEAD: Duration = Duration::from_millis(50);
/// Long enough for the policy of the paper to settle.
const TAIL: Duration = Duration::from_secs(3);
/// Shortest time between two steps, and the unit of what is added to it.
const STEP_PAUSE: Duration = Duration::from_millis(200);
const STEP_SHIFT: Duration = Duration::from_millis(1);
/// How long a store is watched before a step for what leaves unasked; longer than an answer takes.
pub const BEFORE: Duration = Duration::from_millis(20);

/// Figures of a burst; `None` where it never came.
#[derive(Clone, Copy, Debug, Default)]
pub struct Burst {
    /// Until the ledger showed the bytes gone.
    pub ledger_ms: Option<f64>,
    /// Until the kernel showed them available.
    pub available_ms: Option<f64>,
    /// Evicted by needed.
    pub evicted_ratio: Option<f64>,
    /// Until the store stayed near its last size, after the demand stood still.
    pub settling_ms: Option<f64>,
    /// Changes of direction after that.
    pub sign_changes: Option<usize>,
    /// Most bytes under the headroom.
    pub excess: u64,
    /// Most bytes in per-CPU lists of free pages; they count as available.
    pub hidden: u64,
}

/// One small step of demand.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// From the begin of the step until the first bytes had left the store; `None` where nothing
    /// did before the next step.
    pub first_ms: Option<f64>,
    /// Until a quarter of it had left.
    pub quarter_ms: Option<f64>,
    /// Bytes that left in [`BEFORE`] before the step, for what other programs took. Where that is
    /// much, the first bytes may not be an answer.
    pub unasked: u64,
}

/// Small steps of demand, each from the threshold on.
pub fn steps(rig: &Rig, pool: &mut Pool, count: u64, step: u64, slack: u64) -> Result<Vec<Answer>> {
    pool.demand(slack)?;
    std::thread::sleep(STEP_PAUSE * 2);
    let watch = rig.watch()?;
    let mut began = Vec::new();
    // The first one finds the threshold; it does not count.
    for index in 0..=count {
        // Every phase of an interval of 10 ms and of 100 ms comes equally often.
        std::thread::sleep(STEP_PAUSE + STEP_SHIFT * (index * 37 % 100) as u32);
        began.push(now_ns());
        pool.demand(slack + (index + 1) * step)?;
    }
    std::thread::sleep(STEP_PAUSE);
    began.push(now_ns());
    let recording = watch.finish()?;
    pool.demand(0)?;
    let of_step = |pair: &[u64]| {
        let until_next = recording.between(0, pair[1]);
        let before = recording.between(pair[0] - BEFORE.as_nanos() as u64, pair[0]);
        Answer {
            first_ms: until_next.given_ms(pair[0], 1),
            quarter_ms: until_next.given_ms(pair[0], step / 4),
            unasked: before.evicted(),
        }
    };
    Ok(began.windows(2).skip(1).map(of_step).collect())
}

/// Demand of `bytes` at `rate` bytes a second, or at once with 0.
pub fn burst(rig: &Rig, pool: &mut Pool, bytes: u64, rate: u64, slack: u64) -> Result<Burst> {
    let watch = rig.watch()?;
    std::thread::sleep(LEAD);
    if rate == 0 { pool.demand(bytes) } else { pool.ramp(bytes, rate) }?;
    let stands_ns = now_ns();
    std::thread::sleep(TAIL);
    let seen = watch.finish()?;
    judge(&seen, rig.headroom, bytes - slack, stands_ns)
}

fn judge(seen: &Recording, headroom: u64, needed: u64, stands_ns: u64) -> Result<Burst> {
    let settling = seen.settling(stands_ns, environment::memory_field("MemTotal")?);
    let evicted = seen.evicted();
    Ok(Burst {
        ledger_ms: seen.ledger_back_ms(headroom, needed),
        available_ms: seen.available_back_ms(headroom, needed),
        evicted_ratio: (evicted > 0).then(|| evicted as f64 / needed as f64),
        settling_ms: settling.filter(|_| evicted > 0).map(|(ms, _)| ms),
        sign_changes: settling.filter(|_| evicted > 0).map(|(_, changes)| changes),
        excess: seen.excess(headroom),
        hidden: seen.hidden_most(),
    })
}

/// Runs `work` while files are read into the store over and over.
pub fn while_reading<T>(rig: &Rig, work: impl FnOnce() -> Result<T>) -> Result<T> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| -> Result<()> {
            while !over.load(Ordering::Acquire) {
                rig.fill()?;
                std::thread::sleep(Duration::from_millis(20));
            }
            Ok(())
        });
        let result = work();
        over.store(true, Ordering::Release);
        match reader.join() {
            Ok(read) => read.and(result),
            Err(_) => anyhow::bail!("the reader panicked"),
        }
    })
}

/// Seconds from the end of the demand until the store holds nine tenths again, while it is read.
pub fn regrowth(rig: &Rig, pool: &mut Pool, limit: Duration) -> Result<Option<f64>> {
    let watch = rig.watch()?;
    pool.demand(0)?;
    let since = now_ns();
    let goal = rig.store_bytes / 10 * 9;
    while_reading(rig, || {
        let started = Instant::now();
        while started.elapsed() < limit {
            std::thread::sleep(Duration::from_millis(100));
            if rig.control()?["resident_bytes"].as_u64() >= Some(goal) {
                break;
            }
        }
        Ok(())
    })?;
    Ok(watch.finish()?.grown_s(since, goal))
}

/// What a sawtooth cost.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sawtooth {
    /// Bytes that had to leave because the capacity fell.
    pub taken: f64,
    /// Mean of what the store held, in bytes.
    pub mean_stored: f64,
}

/// Demand that comes and goes, while files are read.
pub fn sawtooth(
    rig: &Rig,
    pool: &mut Pool,
    height: u64,
    teeth: u32,
    rate: u64,
) -> Result<Sawtooth> {
    let watch = rig.watch()?;
    let began = now_ns();
    let ended = while_reading(rig, || {
        for _ in 0..teeth {
            pool.ramp(height, rate)?;
            pool.ramp(0, rate)?;
        }
        Ok(now_ns())
    })?;
    // The reader ends later, with the last of its files.
    let seen = watch.finish()?.between(began, ended);
    Ok(Sawtooth { taken: seen.taken() as f64, mean_stored: seen.mean_stored() })
}
