//! One node: how long a sample takes to become the size of its store, and what its agent costs.

use std::path::PathBuf;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::Value;

use super::rig::Rig;
use super::{Bench, load};
use crate::bench::control::cost::{run_time_ns, wake_ups};
use crate::bench::control::recording::Recording;
use crate::bench::row::{Goal, Row};
use crate::hog::{Step, now_ns};

const PATH: &str = "plane-path: sample to store resized";
const COST: &str = "plane-agent: processor";
/// The paper's.
const GAIN: f64 = 0.5;
/// The default of the agent.
const BATCH: u32 = 10;
const SAMPLES_A_SECOND: f64 = 10.0;
const HOLD_MS: u64 = 1000;
/// Goals in milliseconds, at the median and at 99 of 100.
const GOALS_MS: [f64; 2] = [150.0, 400.0];
const GOAL_PERCENT: f64 = 0.1;
const PAPER: &str = "the paper has 0.3 to 1.0 % for collectd";

/// A ceiling: when its sample was taken and when it was decided, by the monotonic clock.
struct Ceiling {
    taken_ns: u64,
    decided_ns: u64,
    bytes: u64,
}

/// What one round of bursts gave, in milliseconds.
#[derive(Default)]
struct Times {
    /// Until the capacity of the store was the ceiling.
    ordered: Vec<f64>,
    /// Until the store held no more than that.
    resized: Vec<f64>,
    /// Until the job had decided.
    decided: Vec<f64>,
}

/// Whether any row is asked for.
pub fn is_wanted(bench: &Bench) -> bool {
    bench.wants(PATH) || bench.wants(COST)
}

/// All rows of one node.
pub fn run(bench: &Bench, rig: &mut Rig) -> Result<Vec<Row>> {
    if !is_wanted(bench) {
        return Ok(Vec::new());
    }
    rig.govern(GAIN, BATCH)?;
    let process = PathBuf::from(format!("/proc/{}", rig.agent()?));
    let mut rows = Vec::new();
    let mut percent = |rig: &Rig, what: &str, goal, work: &mut dyn FnMut(&Rig) -> Result<()>| {
        let (mut shares, mut sent) = (Vec::new(), Vec::new());
        for _ in 0..bench.scale.rounds {
            let samples = |rig: &Rig| Ok::<_, anyhow::Error>(rig.samples()?["sent"].as_f64());
            let (before, ran, began) = (samples(rig)?, run_time_ns(&process)?, Instant::now());
            work(rig)?;
            let seconds = began.elapsed().as_secs_f64();
            shares.push((run_time_ns(&process)? - ran) as f64 / 1e7 / seconds);
            let count = samples(rig)?.unwrap_or(0.0) - before.unwrap_or(0.0);
            sent.push(format!("{:.1}", count / seconds));
        }
        let name = format!("{COST}, {what}");
        let row = Row::alone(&name, "% of a core", shares, goal);
        let row = row.note(format!("{} samples a second; {PAPER}; {}", sent.join(", "), load()?));
        rows.push(row);
        Ok::<_, anyhow::Error>(())
    };
    if bench.wants(COST) {
        percent(rig, "at rest", Goal::AtMost(GOAL_PERCENT), &mut |_| {
            std::thread::sleep(bench.scale.rest);
            Ok(())
        })?;
    }
    let mut times = Vec::new();
    percent(rig, "while memory moves", Goal::Shown, &mut |rig| {
        times.push(bursts(rig, bench)?);
        Ok(())
    })?;
    if bench.wants(COST) {
        let empty = wake_ups(SAMPLES_A_SECOND, Duration::from_secs(10))?;
        let note = format!("a loop that only wakes up ten times a second takes {empty:.2} %");
        rows[0].notes.push(note);
    }
    rows.extend(path_rows(&times)?);
    rows.retain(|row| bench.wants(&row.name));
    Ok(rows)
}

/// A job that takes its memory and gives it back, again and again.
fn bursts(rig: &Rig, bench: &Bench) -> Result<Times> {
    let (listener, watch) = (rig.listen()?, rig.watch()?);
    rig.while_reading(|| {
        let mut job = rig.job()?;
        let bytes = bench.scale.burst_bytes;
        for _ in 0..bench.scale.bursts {
            let rate = bytes;
            let steps = [
                Step::Take { bytes, rate },
                Step::Hold(HOLD_MS),
                Step::Release(bytes),
                Step::Hold(HOLD_MS),
            ];
            steps.into_iter().try_for_each(|step| job.step(step))?;
        }
        job.finish()
    })?;
    let seen = watch.finish()?;
    let wall = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as i128;
    let ahead_ns = wall - i128::from(now_ns());
    let said = listener.said();
    Ok(judge(&seen, &ceilings(&said, ahead_ns)?))
}

/// The ceilings that differ from those before them.
fn ceilings(said: &str, ahead_ns: i128) -> Result<Vec<Ceiling>> {
    let mut ceilings: Vec<Ceiling> = Vec::new();
    let lines = said.lines().filter_map(|line| line.split_once(" {"));
    for (_, message) in lines {
        // The last line may be cut.
        let Ok(message) = serde_json::from_str::<Value>(&format!("{{{message}")) else { continue };
        let bytes = message["stores"][0]["ceiling_bytes"].as_u64().context("no ceiling")?;
        let monotonic = |field: &str| {
            let at_ms = message[field].as_i64().context("no time")?;
            Ok::<_, anyhow::Error>((i128::from(at_ms) * 1_000_000 - ahead_ns) as u64)
        };
        let ceiling = Ceiling {
            taken_ns: monotonic("sample_at_ms")?,
            decided_ns: monotonic("at_ms")?,
            bytes,
        };
        if ceilings.last().is_none_or(|last| last.bytes != bytes) {
            ceilings.push(ceiling);
        }
    }
    Ok(ceilings)
}

/// A ceiling that a later one overtook counts until that one is in force.
fn judge(seen: &Recording, ceilings: &[Ceiling]) -> Times {
    let mut times = Times::default();
    let ms = |from: u64, until: u64| until.saturating_sub(from) as f64 / 1e6;
    let mut next = 0;
    let mut falling: Vec<&Ceiling> = Vec::new();
    for sample in &seen.0 {
        let mut later = ceilings.iter().enumerate().skip(next);
        let is_it =
            |it: &Ceiling| it.bytes == sample.capacity && it.decided_ns <= sample.at_ns + 1_000_000;
        if let Some((index, _)) = later.find(|(_, it)| is_it(it)) {
            for ceiling in &ceilings[next..=index] {
                times.ordered.push(ms(ceiling.taken_ns, sample.at_ns));
                times.decided.push(ms(ceiling.taken_ns, ceiling.decided_ns));
                falling.push(ceiling);
            }
            next = index + 1;
        }
        if sample.stored <= sample.capacity {
            let done = falling.drain(..).map(|ceiling| ms(ceiling.taken_ns, sample.at_ns));
            times.resized.extend(done);
        }
    }
    times
}

/// A part of all values: a half, or 99 of 100.
fn part(values: &[f64], part: f64) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    Some(sorted[(last as f64 * part).round() as usize])
}

fn path_rows(rounds: &[Times]) -> Result<Vec<Row>> {
    let counts: Vec<String> = rounds.iter().map(|times| times.resized.len().to_string()).collect();
    let of = |values: fn(&Times) -> &Vec<f64>, share| -> Vec<f64> {
        rounds.iter().filter_map(|times| part(values(times), share)).collect()
    };
    let words = |values: fn(&Times) -> &Vec<f64>| {
        let text = |values: Vec<f64>| {
            let texts: Vec<String> = values.iter().map(|value| format!("{value:.0}")).collect();
            texts.join(", ")
        };
        format!("50 % in {} ms, 99 % in {} ms", text(of(values, 0.5)), text(of(values, 0.99)))
    };
    let mut rows = Vec::new();
    for ((name, share), goal) in [("50 %", 0.5), ("99 %", 0.99)].into_iter().zip(GOALS_MS) {
        let figures = of(|times| &times.resized, share);
        rows.push(Row::alone(&format!("{PATH}, {name}"), "ms", figures, Goal::AtMost(goal)));
    }
    rows[0].notes.extend([
        format!(
            "{} ceilings that changed, with the samples in a message that the agent has by itself",
            counts.join(", ")
        ),
        format!("until the job decided: {}", words(|times| &times.decided)),
        format!("until the store was told: {}; {}", words(|times| &times.ordered), load()?),
    ]);
    Ok(rows)
}

#[cfg(test)]
mod tests {
    use super::{Ceiling, judge, part};
    use crate::bench::control::recording::{Recording, Sample};

    #[test]
    fn a_ceiling_counts_until_the_store_has_the_size_of_it_or_of_a_later_one() {
        let ms = |ms: u64| ms * 1_000_000;
        let ceiling = |at, bytes| Ceiling { taken_ns: ms(at), decided_ns: ms(at + 5), bytes };
        let ceilings = [ceiling(100, 80), ceiling(200, 70), ceiling(300, 60)];
        let sample = |(at, capacity, stored)| Sample {
            at_ns: ms(at),
            capacity,
            stored,
            ..Sample::default()
        };
        let seen = [(90, 80, 80), (110, 80, 90), (120, 80, 80), (310, 60, 70), (330, 60, 60)];
        let times = judge(&Recording(seen.map(sample).to_vec()), &ceilings);
        assert_eq!(times.ordered, [10.0, 110.0, 10.0], "the second one was overtaken");
        assert_eq!(times.resized, [20.0, 130.0, 30.0]);
        assert_eq!(times.decided, [5.0; 3]);
        assert_eq!((part(&times.resized, 0.5), part(&[], 0.5)), (Some(30.0), None));
    }
}
