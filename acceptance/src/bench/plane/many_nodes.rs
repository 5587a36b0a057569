//! Simulated nodes, each with connections of its own, on the real broker and the real job: what
//! both cost, and how long a sample takes to come back as a ceiling.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::{ChildStdout, Stdio};
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::site::{SAMPLES_PARTITIONS, Site, player};
use super::{Bench, load};
use crate::bench::row::{Goal, Row};
use crate::{cleanup, environment, process};

/// Of a hundred nodes so many have demand that moves.
const MOVING: u32 = 25;
const TRACES: [&str; 5] = [
    "bursts-7-s.csv",
    "steps-64-mib.csv",
    "leak-10-mb.csv",
    "bursts-500-ms.csv",
    "bursts-300-ms.csv",
];

/// Nodes and what they send.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    nodes: u32,
    interval_ms: u64,
    /// Samples in a message while nothing moves, as an agent's `--batch`.
    batch: u32,
    policy: &'static str,
    /// The job takes together what comes within this time: Kafka costs by the request.
    gather_ms: u64,
    /// How long a ceiling holds; it is sent anew at half of that.
    lease_ms: u64,
    /// Of the topic of ceilings: a node reads those of the others in its own as well.
    partitions: u32,
    goal_cores: Option<f64>,
    /// What the paper needed.
    paper_cores: Option<f64>,
}

/// From this time between two samples on they are called summaries.
const SUMMARY_MS: u64 = 1_000;
/// As the job has it.
const LEASE_MS: u64 = 5_000;
/// As the job has it.
const GATHER_MS: u64 = 10;

/// 256 nodes, as the paper had them.
const fn paper(
    interval_ms: u64,
    gather_ms: u64,
    goal_cores: Option<f64>,
    paper_cores: Option<f64>,
) -> Case {
    Case {
        nodes: 256,
        interval_ms,
        batch: 10,
        policy: "dynims",
        gather_ms,
        lease_ms: LEASE_MS,
        partitions: 256,
        goal_cores,
        paper_cores,
    }
}

/// 1,000 nodes with a summary a second.
const fn summaries(
    policy: &'static str,
    gather_ms: u64,
    batch: u32,
    lease_ms: u64,
    partitions: u32,
) -> Case {
    Case {
        nodes: 1000,
        interval_ms: 1000,
        batch,
        policy,
        gather_ms,
        lease_ms,
        partitions,
        goal_cores: Some(0.2),
        paper_cores: None,
    }
}

/// Those that the goals are of, and beside them ways that cost more or less.
pub const CASES: [Case; 8] = [
    paper(10, GATHER_MS, None, None),
    paper(25, GATHER_MS, Some(1.0), Some(17.3)),
    paper(100, 0, Some(0.5), Some(4.8)),
    paper(100, GATHER_MS, Some(0.5), Some(4.8)),
    summaries("dynims", GATHER_MS, 1, LEASE_MS, 1024),
    summaries("dynims", 100, 5, 20_000, 1024),
    summaries("follow", 100, 1, LEASE_MS, 64),
    summaries("follow", 100, 5, LEASE_MS, 64),
];

/// What one round gave.
struct Seen {
    /// Of broker, job and the program that plays the nodes.
    cores: [f64; 3],
    /// Of broker and job.
    resident_mib: [f64; 2],
    /// Counts and times of the program.
    said: Value,
}

/// The rows of a case.
pub fn run(bench: &Bench, case: &Case) -> Result<Vec<Row>> {
    let nodes = bench.scale.nodes.unwrap_or(case.nodes);
    let paper_cores = case.paper_cores.filter(|_| nodes == case.nodes);
    let case = Case { nodes, paper_cores, ..*case };
    let what = if case.interval_ms >= SUMMARY_MS {
        format!("{} nodes with {} ms summaries", case.nodes, case.interval_ms)
    } else {
        format!("{} nodes at {} ms", case.nodes, case.interval_ms)
    };
    let name = format!("plane-many: {what}, {}{}", case.policy, case.how());
    if !bench.wants(&name) {
        return Ok(Vec::new());
    }
    let mut rounds = Vec::new();
    for _ in 0..bench.scale.rounds {
        rounds.push(round(bench, &case)?);
    }
    let cores: Vec<f64> = rounds.iter().map(|seen| seen.cores[0] + seen.cores[1]).collect();
    let reference = case.paper_cores.map(|paper| vec![paper; cores.len()]).unwrap_or_default();
    let goal = case.goal_cores.map_or(Goal::Shown, Goal::AtMost);
    let mut row = Row::alone(&format!("{name}: broker and job"), "cores", cores, goal);
    row.reference = reference;
    for seen in &rounds {
        row.notes.push(seen.note(bench.scale.load_s[1] as f64));
    }
    row.notes.push(format!(
        "of a hundred nodes {MOVING} have demand that moves; the reference is the paper's; {}",
        load()?
    ));
    let mut rows = vec![row];
    if case.policy == "follow" {
        return Ok(rows);
    }
    let sources = [("sample to ceiling", "taken_ms"), ("message to ceiling", "sent_ms")];
    for (words, field) in sources {
        for (at, part) in ["50 %", "99 %"].into_iter().enumerate() {
            let figures = rounds.iter().filter_map(|seen| seen.said[field][at].as_f64()).collect();
            rows.push(Row::alone(&format!("{name}: {words}, {part}"), "ms", figures, Goal::Shown));
        }
    }
    Ok(rows)
}

impl Case {
    /// What is not as it is by itself.
    fn how(&self) -> String {
        let mut how = String::new();
        match self.gather_ms {
            0 => how.push_str(", each at once"),
            GATHER_MS => {}
            gather_ms => how.push_str(&format!(", {gather_ms} ms together")),
        }
        if self.interval_ms >= SUMMARY_MS && self.batch > 1 {
            how.push_str(&format!(", {} in a message at rest", self.batch));
        }
        if self.lease_ms != LEASE_MS {
            how.push_str(&format!(", leases of {} s", self.lease_ms / 1000));
        }
        how
    }
}

impl Seen {
    fn note(&self, seconds: f64) -> String {
        let a_second = |field: &str| self.said[field].as_f64().unwrap_or(0.0) / seconds;
        let ([broker, job, player], [broker_mib, job_mib]) = (self.cores, self.resident_mib);
        format!(
            "broker {broker:.2} cores, {broker_mib:.0} MiB; job {job:.2} cores, {job_mib:.0} MiB; \
             the program that plays the nodes {player:.2} cores; a second {:.0} messages with \
             {:.0} samples, {:.0} ceilings",
            a_second("messages"),
            a_second("samples"),
            a_second("ceilings")
        )
    }
}

fn round(bench: &Bench, case: &Case) -> Result<Seen> {
    let mut site = Site::start(case.partitions)?;
    let interval = case.interval_ms.to_string();
    let [lease, gather] = [case.lease_ms, case.gather_ms].map(|ms| ms.to_string());
    let mut arguments = vec!["--policy", case.policy, "--interval-ms", &interval];
    arguments.extend(["--lease-ms", &lease, "--gather-ms", &gather]);
    site.start_job(&arguments.into_iter().map(str::to_owned).collect::<Vec<_>>())?;
    let mut command = player(&site, "load")?;
    command.args(["--nodes", &case.nodes.to_string(), "--interval-ms", &interval]);
    command.args(["--batch", &case.batch.to_string(), "--moving", &MOVING.to_string()]);
    command
        .arg("--partitions")
        .args([SAMPLES_PARTITIONS, site.partitions].map(|it| it.to_string()));
    command.arg("--seconds").args(bench.scale.load_s.map(|seconds| seconds.to_string()));
    for trace in TRACES {
        command.arg("--traces").arg(environment::checkout().join("bench/traces").join(trace));
    }
    let log = site.logs.join("plane-load.log");
    let mut child = command.stdout(Stdio::piped()).stderr(File::create(&log)?).spawn()?;
    let id = child.id();
    let kill = cleanup::guard(move || process::signal(id, libc::SIGKILL));
    let mut output = BufReader::new(child.stdout.take().context("the output is a pipe")?);
    let [broker, job] = site.processes()?;
    let all = [broker, job, id];
    next(&mut output, "measuring")?;
    let (before, began) = (processor_seconds(all)?, Instant::now());
    next(&mut output, "measured")?;
    let (after, seconds) = (processor_seconds(all)?, began.elapsed().as_secs_f64());
    let resident = [process::resident_bytes(broker)?, process::resident_bytes(job)?];
    let said = serde_json::from_str(&next(&mut output, "{")?)?;
    child.wait()?;
    cleanup::forget(kill);
    Ok(Seen {
        cores: [0, 1, 2].map(|at| (after[at] - before[at]) / seconds),
        resident_mib: resident.map(|bytes| bytes as f64 / f64::from(1 << 20)),
        said,
    })
}

fn processor_seconds([broker, job, player]: [u32; 3]) -> Result<[f64; 3]> {
    let of = process::processor_seconds;
    Ok([of(broker)?, of(job)?, of(player)?])
}

/// The next line, which begins so.
fn next(output: &mut BufReader<ChildStdout>, beginning: &str) -> Result<String> {
    let mut line = String::new();
    output.read_line(&mut line)?;
    ensure!(line.starts_with(beginning), "the nodes ended early: bench-logs/plane-load.log");
    Ok(line)
}
