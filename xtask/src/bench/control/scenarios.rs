//! The scenarios: each drives the demand, watches, and returns plain figures of one round.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::Result;

use super::pool::Pool;
use super::recording::Recording;
use super::rig::Rig;
use crate::environment;
use crate::hog::now_ns;

const LEAD: Duration = Duration::from_millis(50);
/// Long enough for the law of the paper to settle.
const TAIL: Duration = Duration::from_secs(3);
const STEP_PAUSE: Duration = Duration::from_millis(250);

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
}

/// Small steps of demand, each beyond the threshold: the time to the first byte of each.
pub fn steps(rig: &Rig, pool: &mut Pool, count: u64, step: u64, slack: u64) -> Result<Vec<f64>> {
    pool.demand(slack)?;
    std::thread::sleep(STEP_PAUSE * 2);
    let watch = rig.watch()?;
    let mut began = Vec::new();
    for index in 1..=count {
        std::thread::sleep(STEP_PAUSE);
        began.push(now_ns());
        pool.demand(slack + index * step)?;
    }
    std::thread::sleep(STEP_PAUSE);
    began.push(now_ns());
    let recording = watch.finish()?;
    pool.demand(0)?;
    let mut times = Vec::new();
    for pair in began.windows(2) {
        let seen = recording.between(pair[0], pair[1]);
        // A step counts only where it is the one that crosses the threshold.
        if seen.0.first().is_some_and(|first| first.available >= rig.headroom) {
            times.extend(seen.first_byte_ms(rig.headroom));
        }
    }
    Ok(times)
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

/// Demand that comes and goes: bytes evicted, and the mean size of the store, while it is read.
pub fn sawtooth(
    rig: &Rig,
    pool: &mut Pool,
    height: u64,
    teeth: u32,
    rate: u64,
) -> Result<(f64, f64)> {
    let watch = rig.watch()?;
    while_reading(rig, || {
        for _ in 0..teeth {
            pool.ramp(height, rate)?;
            pool.ramp(0, rate)?;
        }
        Ok(())
    })?;
    let seen = watch.finish()?;
    Ok((seen.evicted() as f64, seen.mean_stored()))
}
