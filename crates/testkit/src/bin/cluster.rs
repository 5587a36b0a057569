//! Random operations of many nodes, for as long as one likes. See `docs/design/testing.md`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::Parser;
use tidepool_testkit::cluster::run::{Finding, Plan, load, random, replay, save, shrink};
use tidepool_testkit::machine;

/// Many nodes over one PFS directory, used, changed and killed at random, and checked.
#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// Operations of each seed.
    #[arg(long, default_value_t = 20_000)]
    operations: u64,
    /// Go on until so many nodes were killed, instead, most of them amid what they write.
    #[arg(long, value_name = "COUNT")]
    kills: Option<u64>,
    /// First seed; by default one that was not used before.
    #[arg(long)]
    seed: Option<u64>,
    /// Seeds to try, one after the other.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Nodes, up to 6.
    #[arg(long, default_value_t = 3)]
    nodes: usize,
    /// Directory below which the PFS directory is made; the temporary one without it.
    #[arg(long)]
    pfs: Option<PathBuf>,
    /// No mounts, so without root: the client library alone.
    #[arg(long)]
    without_mounts: bool,
    /// Encrypt what goes between the nodes.
    #[arg(long)]
    tls: bool,
    /// Nodes have burst buffers: modes `alw` and `bld` instead of copies in memory and `through`.
    #[arg(long)]
    buffers: bool,
    /// Replay a log instead.
    #[arg(long, value_name = "LOG")]
    replay: Option<PathBuf>,
    /// Where the log of a failure goes.
    #[arg(long, value_name = "LOG", default_value = "cluster-failure.jsonl")]
    log: PathBuf,
    /// Seconds spent on making the log of a failure shorter.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    shrink: u64,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if !arguments.without_mounts
        && let Err(machine::Missing(reason)) = machine::can_mount()
    {
        eprintln!("cluster: no mounts here: {reason}; or add --without-mounts");
        return ExitCode::from(2);
    }
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("cluster: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> std::io::Result<bool> {
    let first = arguments.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    for seed in first..first + arguments.seeds {
        let plan = Plan {
            seed,
            operations: arguments.operations,
            kills: arguments.kills,
            nodes: arguments.nodes,
            pfs: arguments.pfs.clone(),
            are_mounted: !arguments.without_mounts,
            is_encrypted: arguments.tls,
            has_buffers: arguments.buffers,
        };
        let started = Instant::now();
        let result = match &arguments.replay {
            Some(log) => replay(&plan, &load(log)?)?,
            None => random(&plan)?,
        };
        match result {
            Ok(tally) => println!(
                "seed {seed}: nothing wrong in {:.1} s\n{tally}",
                started.elapsed().as_secs_f64()
            ),
            Err(finding) => {
                report(arguments, &plan, *finding)?;
                return Ok(false);
            }
        }
    }
    Ok(true)
}

fn report(arguments: &Arguments, plan: &Plan, finding: Finding) -> std::io::Result<()> {
    println!("{}\n{}", finding.node_logs, finding.describe(plan, 20));
    save(&finding.log, &arguments.log)?;
    let batches = finding.log.len();
    let shorter = shrink(plan, finding, Duration::from_secs(arguments.shrink));
    if shorter.log.len() < batches {
        save(&shorter.log, &arguments.log)?;
        println!("{} batches are left:\n{}", shorter.log.len(), shorter.describe(plan, 60));
    }
    println!("replay with: cluster --nodes {} --replay {}", plan.nodes, arguments.log.display());
    Ok(())
}
