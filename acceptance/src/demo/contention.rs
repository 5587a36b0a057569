//! Part of the demo: the same K-means beside a job that takes memory in bursts, once with a store
//! of fixed size and once with memory control. It uses a part of the free memory only, and is left
//! out where that would leave too little to other programs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use tidepool_report::bustle::Watch;

use super::served::{Counters, Served};
use super::stage::{Stage, size};
use crate::arguments::HogOptions;
use crate::bench::row::median;
use crate::environment;
use crate::hog::{self, Step};
use crate::kmeans::cluster::Centroids;
use crate::kmeans::pass;
use crate::node::Node;

/// Programs of an idle machine come and go with about this much.
const SLACK_BYTES_MIN: u64 = 128 << 20;
/// Available memory that is never touched.
const LEFT_BYTES: u64 = 3 << 30;
/// Room in the store beside the data: part blocks at the ends of files.
const SPARE_BYTES: u64 = 64 << 20;
const SAMPLE_EVERY: Duration = Duration::from_millis(150);

/// How much memory plays which part.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shares {
    /// Memory that store and job have together, of what was available.
    pub pool_bytes: u64,
    /// Available memory before.
    pub available_bytes: u64,
    /// What the job takes in a burst.
    pub burst_bytes: u64,
    /// A store that holds all of the data.
    pub whole_bytes: u64,
    /// A store that leaves room for a burst at any time.
    pub small_bytes: u64,
    /// Below this available memory the job waits, then goes without.
    pub floor_bytes: u64,
    /// What the memory control keeps free.
    pub headroom_bytes: u64,
}

/// What all sizings brought.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Contention {
    /// Memory of the store and of the job over time.
    pub shares: Shares,
    /// One for each sizing.
    pub cases: Vec<Case>,
}

/// One sizing of the store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Case {
    /// Which.
    pub name: String,
    /// K-means.
    pub iterations: Vec<TimedIteration>,
    /// The other job.
    pub job: Job,
    /// Memory over time.
    pub samples: Vec<Sample>,
}

/// An iteration beside the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TimedIteration {
    /// Seconds since the start.
    pub started_s: f64,
    /// How long it took.
    pub seconds: f64,
    /// Bytes by the level that served them.
    pub served: Served,
}

/// What the job experienced.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// Bytes of all bursts.
    pub asked_bytes: u64,
    /// Those that it did not get in time.
    pub refused_bytes: u64,
    /// Seconds that each burst took until it had what it got.
    pub burst_seconds: Vec<f64>,
    /// When each burst was, and what it got.
    #[serde(default)]
    pub bursts: Vec<Burst>,
    /// Milliseconds until it had 16 MiB more, waiting included: half took at most these.
    pub part_ms_median: f64,
    /// 99 of 100 took at most these.
    pub part_ms_p99: f64,
    /// The longest.
    pub part_ms_max: f64,
    /// Pages that the machine swapped out meanwhile.
    pub pages_swapped_out: u64,
}

/// A burst of the job.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Burst {
    /// Seconds since the start.
    pub started_s: f64,
    /// Seconds until it had what it got.
    pub seconds: f64,
    /// What it got.
    pub got_bytes: u64,
}

/// Memory at one moment, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// Seconds since the start.
    pub at_s: f64,
    /// Taken by everything but the store since the start.
    pub demand_bytes: u64,
    /// Held by the job.
    #[serde(default)]
    pub job_bytes: u64,
    /// Held by the store.
    pub store_bytes: u64,
    /// What the store may hold.
    pub target_bytes: u64,
    /// Free for the job.
    pub free_bytes: u64,
}

impl Shares {
    /// Divides the memory that is available for a data set; says why where it does not suffice.
    fn of(data_bytes: u64, available_bytes: u64) -> std::result::Result<Shares, String> {
        let whole_bytes = data_bytes + data_bytes / 16 + SPARE_BYTES;
        let small_bytes = data_bytes / 4 + SPARE_BYTES;
        let pool_bytes = whole_bytes + data_bytes / 4;
        // Between what the control keeps free and what the job insists on: what the job may take
        // while the store gives way, and what other programs come and go with.
        let slack_bytes = (data_bytes / 8).max(SLACK_BYTES_MIN);
        let needed_bytes = pool_bytes + slack_bytes + LEFT_BYTES;
        if available_bytes < needed_bytes {
            let (needed, available) = (size(needed_bytes), size(available_bytes));
            return Err(format!("{needed} of free memory needed, {available} available"));
        }
        let headroom_bytes = available_bytes - pool_bytes;
        Ok(Shares {
            pool_bytes,
            available_bytes,
            burst_bytes: pool_bytes - small_bytes,
            whole_bytes,
            small_bytes,
            floor_bytes: headroom_bytes - slack_bytes,
            headroom_bytes,
        })
    }
}

/// Runs all sizings; the error within says why nothing was run.
pub fn run(
    stage: &Stage,
    first: &Centroids,
    quick: bool,
    watch: &mut Watch,
) -> Result<std::result::Result<Contention, String>> {
    let data_bytes = stage.data.bytes;
    let shares = match Shares::of(data_bytes, environment::memory_available_bytes()?) {
        Ok(shares) => shares,
        Err(why) => return Ok(Err(why)),
    };
    println!(
        "\nBeside a job that takes {} at a time; {} of {} available memory are in play.",
        size(shares.burst_bytes),
        size(shares.pool_bytes),
        size(shares.available_bytes)
    );
    let mut cases = Vec::new();
    for (name, memory_bytes, is_fixed) in [
        ("small fixed store", shares.small_bytes, true),
        ("large fixed store", shares.whole_bytes, true),
        ("store that follows", shares.whole_bytes, false),
    ] {
        // Anew, because other programs may have come or gone since.
        let shares = match Shares::of(data_bytes, environment::memory_available_bytes()?) {
            Ok(shares) => shares,
            Err(why) => return Ok(Err(why)),
        };
        let arguments = match is_fixed {
            true => vec!["--control".to_owned(), "off".to_owned()],
            false => vec![
                "--control".to_owned(),
                "on".to_owned(),
                "--memory-min".to_owned(),
                SPARE_BYTES.to_string(),
                "--control-headroom-bytes".to_owned(),
                shares.headroom_bytes.to_string(),
            ],
        };
        let node = stage.start_node(memory_bytes, arguments)?;
        let case = beside_job(stage, &node, first, (name, shares, quick)).context(name)?;
        watch.finish(node.process_id()?);
        announce(&case);
        cases.push(case);
    }
    Ok(Ok(Contention { shares, cases }))
}

/// Bursts of so many bytes: seconds before each, seconds that it is held, and the seconds after
/// the last one.
fn trace(burst_bytes: u64, quick: bool) -> Vec<Step> {
    let (bursts, after_s): (&[(u64, u64)], u64) =
        if quick { (&[(1, 2)], 5) } else { (&[(4, 5), (9, 3)], 8) };
    let hold = |seconds: u64| Step::Hold(seconds * 1000);
    let burst = |&(before_s, held_s): &(u64, u64)| {
        let take = Step::Take { bytes: burst_bytes, rate: 0 };
        [hold(before_s), take, hold(held_s), Step::Release(u64::MAX)]
    };
    bursts.iter().flat_map(burst).chain([hold(after_s)]).collect()
}

fn beside_job(
    stage: &Stage,
    node: &Node,
    first: &Centroids,
    (name, shares, quick): (&str, Shares, bool),
) -> Result<Case> {
    let data = stage.data.seen_at(&node.mount);
    // Brings in what the store may hold.
    pass::run(&data, first, stage.threads, None)?;
    let trace = trace(shares.burst_bytes, quick);
    let swapped_before = swapped_out()?;
    let (started, started_ns) = (Instant::now(), hog::now_ns());
    let now_s = || started.elapsed().as_secs_f64();
    let (iterations, report, mut samples) = std::thread::scope(|scope| {
        let options =
            HogOptions { most: shares.burst_bytes, leave: shares.floor_bytes, huge: true };
        let trace = &trace;
        let job = scope.spawn(move || hog::follow(&options, trace));
        let sampler = scope.spawn(|| {
            let mut samples = Vec::new();
            while !job.is_finished() {
                samples.push(sample(node, &shares, now_s())?);
                std::thread::sleep(SAMPLE_EVERY);
            }
            let joined = job.join().map_err(|_| anyhow::anyhow!("the job panicked"))?;
            anyhow::Ok((joined?, samples))
        });
        let mut iterations = Vec::new();
        let mut centroids = first.clone();
        while !sampler.is_finished() {
            let before = Counters::of(&node.status()?)?;
            let started_s = now_s();
            centroids = pass::run(&data, &centroids, stage.threads, None)?.means(&centroids);
            let seconds = now_s() - started_s;
            let after = Counters::of(&node.status()?)?;
            let served = Served::between(&before, &after, data.bytes);
            iterations.push(TimedIteration { started_s, seconds, served });
        }
        let (report, samples) =
            sampler.join().map_err(|_| anyhow::anyhow!("the sampler panicked"))??;
        anyhow::Ok((iterations, report, samples))
    })?;
    for sample in &mut samples {
        sample.job_bytes = held_at(&report, started_ns + (sample.at_s * 1e9) as u64);
    }
    let bursts = bursts(&trace, &report, started_ns);
    let burst_seconds: Vec<f64> = bursts.iter().map(|burst| burst.seconds).collect();
    let job = Job {
        asked_bytes: burst_seconds.len() as u64 * shares.burst_bytes,
        refused_bytes: report.refused_bytes,
        burst_seconds,
        bursts,
        part_ms_median: report.parts.p50_us / 1e3,
        part_ms_p99: report.parts.p99_us / 1e3,
        part_ms_max: report.parts.max_us / 1e3,
        pages_swapped_out: swapped_out()? - swapped_before,
    };
    Ok(Case { name: name.to_owned(), iterations, job, samples })
}

/// The takes of a trace, as they came out.
fn bursts(trace: &[Step], report: &hog::Report, started_ns: u64) -> Vec<Burst> {
    let takes = trace.iter().zip(&report.steps);
    let takes = takes.filter(|(step, _)| matches!(step, Step::Take { .. }));
    let burst = |(_, (began, ended)): (&Step, &(u64, u64))| Burst {
        started_s: began.saturating_sub(started_ns) as f64 / 1e9,
        seconds: (ended - began) as f64 / 1e9,
        got_bytes: held_at(report, *ended),
    };
    takes.map(burst).collect()
}

/// What the job held at a time in nanoseconds.
fn held_at(report: &hog::Report, at_ns: u64) -> u64 {
    report.held.iter().rev().find(|(since, _)| *since <= at_ns).map_or(0, |(_, bytes)| *bytes)
}

fn sample(node: &Node, shares: &Shares, at_s: f64) -> Result<Sample> {
    let text = node.ask(&["control", "status", "--json"])?;
    let status: serde_json::Value = serde_json::from_str(&text).context("control status")?;
    let available_bytes = environment::memory_available_bytes()?;
    let store_bytes = status["resident_bytes"].as_u64().context("no resident_bytes")?;
    let capacity_bytes = status["capacity_bytes"].as_u64().context("no capacity_bytes")?;
    let target_bytes = status["report"]["target_bytes"].as_u64().unwrap_or(capacity_bytes);
    let used_bytes = shares.available_bytes.saturating_sub(available_bytes);
    Ok(Sample {
        at_s,
        demand_bytes: used_bytes.saturating_sub(store_bytes),
        job_bytes: 0,
        store_bytes,
        target_bytes,
        free_bytes: available_bytes.saturating_sub(shares.floor_bytes),
    })
}

/// Pages swapped out since the machine started.
fn swapped_out() -> Result<u64> {
    let text = std::fs::read_to_string("/proc/vmstat")?;
    let value = text.lines().find_map(|line| line.strip_prefix("pswpout "));
    Ok(value.context("no pswpout in /proc/vmstat")?.parse()?)
}

fn announce(case: &Case) {
    println!(
        "{:<25} {:>2} iterations, median {:>5.2} s, {:>5.1} % from memory; the job got {} of {}",
        case.name,
        case.iterations.len(),
        case.seconds().1,
        case.hit_ratio() * 100.0,
        size(case.job.asked_bytes - case.job.refused_bytes),
        size(case.job.asked_bytes),
    );
}

impl Case {
    /// Shortest, median and longest iteration in seconds.
    pub fn seconds(&self) -> (f64, f64, f64) {
        let seconds: Vec<f64> = self.iterations.iter().map(|iteration| iteration.seconds).collect();
        let shortest = seconds.iter().copied().fold(f64::INFINITY, f64::min);
        let longest = seconds.iter().copied().fold(0.0, f64::max);
        (shortest, median(&seconds).unwrap_or_default(), longest)
    }

    /// Share of all bytes that came from memory.
    pub fn hit_ratio(&self) -> f64 {
        Served::sum(self.iterations.iter().map(|iteration| iteration.served)).hit_ratio()
    }

    /// Least and most bytes that the store held.
    pub fn store_bytes(&self) -> (u64, u64) {
        let held = || self.samples.iter().map(|sample| sample.store_bytes);
        (held().min().unwrap_or(0), held().max().unwrap_or(0))
    }

    /// Iterations a minute.
    pub fn iterations_per_minute(&self) -> f64 {
        let end = self.iterations.last().map_or(0.0, |last| last.started_s + last.seconds);
        if end > 0.0 { self.iterations.len() as f64 * 60.0 / end } else { 0.0 }
    }
}

#[cfg(test)]
pub mod tests {
    use super::{
        Burst, Case, Contention, Job, LEFT_BYTES, Sample, Shares, Step, TimedIteration, bursts,
        held_at, hog,
    };

    /// A small store that lets the job have a part, and one that follows it.
    pub fn example() -> Contention {
        const MIB: u64 = 1 << 20;
        let shares =
            Shares { burst_bytes: 1024 * MIB, pool_bytes: 2048 * MIB, ..Shares::default() };
        let case = |name: &str, got_bytes: u64, every_s: f64| Case {
            name: name.to_owned(),
            iterations: (0..(20.0 / every_s) as u32)
                .map(|number| TimedIteration {
                    started_s: f64::from(number) * every_s,
                    seconds: every_s,
                    ..TimedIteration::default()
                })
                .collect(),
            job: Job {
                asked_bytes: 2048 * MIB,
                refused_bytes: 1024 * MIB - got_bytes,
                bursts: vec![
                    Burst { started_s: 4.0, seconds: 0.03, got_bytes: 1024 * MIB },
                    Burst { started_s: 12.0, seconds: 0.5, got_bytes },
                ],
                ..Job::default()
            },
            samples: (0..200_u32)
                .map(|number| Sample {
                    at_s: f64::from(number) / 10.0,
                    // Others take more than all that is in play.
                    demand_bytes: 4096 * MIB,
                    job_bytes: if number > 40 { 1024 * MIB } else { 0 },
                    store_bytes: if number > 41 { 400 * MIB } else { 1300 * MIB },
                    target_bytes: if number > 40 { 420 * MIB } else { 1400 * MIB },
                    free_bytes: 100 * MIB,
                })
                .collect(),
        };
        let cases = vec![
            case("small fixed store", 512 * MIB, 10.0),
            case("store that follows", 1024 * MIB, 20.0 / 6.0),
        ];
        Contention { shares, cases }
    }

    #[test]
    fn a_burst_knows_what_it_got() {
        let take = Step::Take { bytes: 8, rate: 0 };
        let report = hog::Report {
            held: vec![(100, 0), (1_000_000_200, 4), (2_000_000_200, 8), (3_000_000_000, 0)],
            steps: vec![(100, 1_000_000_100), (1_000_000_100, 2_000_000_300), (2_000_000_300, 0)],
            ..hog::Report::default()
        };
        let found = bursts(&[Step::Hold(1000), take, Step::Release(8)], &report, 100);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].started_s, found[0].got_bytes), (1.0, 8));
        let held: Vec<u64> = [50, 150, 1_000_000_300, 3_000_000_001]
            .into_iter()
            .map(|at_ns| held_at(&report, at_ns))
            .collect();
        assert_eq!(held, [0, 0, 4, 0]);
    }

    #[test]
    fn what_others_need_is_left_to_them() {
        for data_bytes in [256 << 20, 3 << 30] {
            for available_bytes in (1..64).map(|gib| gib << 30) {
                let Ok(shares) = Shares::of(data_bytes, available_bytes) else { continue };
                assert!(shares.floor_bytes >= LEFT_BYTES);
                assert!(shares.floor_bytes < shares.headroom_bytes);
                assert!(shares.small_bytes + shares.burst_bytes <= shares.pool_bytes);
                let free = shares.available_bytes - shares.whole_bytes - shares.floor_bytes;
                assert!(free < shares.burst_bytes, "a whole store leaves too little to the job");
            }
        }
        assert!(Shares::of(3 << 30, 4 << 30).is_err());
        assert!(Shares::of(3 << 30, 20 << 30).is_ok());
    }
}
