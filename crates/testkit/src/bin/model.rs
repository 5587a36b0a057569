//! Random operations against the reference model, for as long as one likes. See
//! `docs/design/testing.md`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Parser;
use tidepool_testkit::machine;
use tidepool_testkit::model::generator::Cast;
use tidepool_testkit::model::run::{Finding, Plan, load, random, replay, save, shrink};
use tidepool_testkit::model::{defects::Defect, operation};
use tidepool_testkit::product::{Node, NodeSpec, PlainDirectory, Subject, end_of_log};

/// Compares a node with a plain model, by random operations of several processes.
#[derive(Clone, Debug, Parser)]
struct Arguments {
    /// Operations of each seed.
    #[arg(long, default_value_t = 100_000)]
    operations: u64,
    /// First seed; by default one that was not used before.
    #[arg(long)]
    seed: Option<u64>,
    /// Seeds to try, one after the other.
    #[arg(long, default_value_t = 1)]
    seeds: u64,
    /// Seconds after which a seed ends even if operations are left.
    #[arg(long, value_name = "SECONDS")]
    time: Option<u64>,
    /// Processes on the mount.
    #[arg(long, default_value_t = 3)]
    mounts: u8,
    /// Processes with the client library.
    #[arg(long, default_value_t = 3)]
    libraries: u8,
    /// Capacity of the node in MiB.
    #[arg(long, default_value_t = 64)]
    memory_mib: u64,
    /// The PFS directory; a temporary one without it.
    #[arg(long)]
    pfs: Option<PathBuf>,
    /// Further argument of `node start`; may be repeated.
    #[arg(long = "node-argument", allow_hyphen_values = true)]
    node_arguments: Vec<String>,
    /// Replay a log instead.
    #[arg(long, value_name = "LOG")]
    replay: Option<PathBuf>,
    /// Where the log of a failure goes.
    #[arg(long, value_name = "LOG", default_value = "model-failure.jsonl")]
    log: PathBuf,
    /// Seconds spent on making the log of a failure shorter.
    #[arg(long, value_name = "SECONDS", default_value_t = 120)]
    shrink: u64,
    /// No product: a plain directory in its place, to try the test itself.
    #[arg(long)]
    plain: bool,
    /// With `--plain`: processes misbehave like this.
    #[arg(long)]
    defect: Option<Defect>,
}

impl Arguments {
    fn subject(&self) -> std::io::Result<Box<dyn Subject>> {
        if self.plain {
            return Ok(Box::new(PlainDirectory::create(self.defect)?));
        }
        let spec = NodeSpec {
            memory: format!("{}MiB", self.memory_mib),
            configuration: operation::configuration(),
            arguments: self.node_arguments.clone(),
            pfs: self.pfs.clone(),
            ..NodeSpec::default()
        };
        Ok(Box::new(Node::start(spec)?))
    }

    fn plan(&self, seed: u64) -> Plan {
        let here = std::env::current_exe().unwrap_or_default();
        Plan {
            seed,
            operations: self.operations,
            time_limit: self.time.map(Duration::from_secs),
            cast: Cast {
                mounts: self.mounts,
                libraries: self.libraries,
                administration: !self.plain,
            },
            capacity_bytes: self.memory_mib << 20,
            actor: here.with_file_name("actor"),
        }
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if !arguments.plain
        && let Err(machine::Missing(reason)) = machine::can_mount()
    {
        eprintln!("model: cannot run here: {reason}");
        return ExitCode::from(2);
    }
    match run(&arguments) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("model: {error}");
            ExitCode::from(2)
        }
    }
}

fn run(arguments: &Arguments) -> std::io::Result<bool> {
    let first = arguments.seed.unwrap_or_else(|| fastrand::u64(..1 << 32));
    for seed in first..first + arguments.seeds {
        let plan = arguments.plan(seed);
        let started = std::time::Instant::now();
        let mut subject = arguments.subject()?;
        let result = match &arguments.replay {
            Some(log) => replay(&plan, &mut *subject, &load(log)?),
            None => random(&plan, &mut *subject),
        };
        let node_log = subject.log();
        drop(subject);
        match result {
            Ok(tally) => println!(
                "seed {seed}: {} operations in {:.1} s, no mismatch ({} passed over) {:?}",
                tally.applied,
                started.elapsed().as_secs_f64(),
                tally.passed_over,
                tally.kinds
            ),
            Err(finding) => {
                println!("log of the node:\n{}", end_of_log(&node_log));
                report(arguments, &plan, *finding)?;
                return Ok(false);
            }
        }
    }
    Ok(true)
}

fn report(arguments: &Arguments, plan: &Plan, finding: Finding) -> std::io::Result<()> {
    println!("{}", finding.describe(plan, 8));
    let limit = Duration::from_secs(arguments.shrink);
    let shorter = shrink(plan, finding, limit, &mut || arguments.subject());
    save(&shorter.log, &arguments.log)?;
    println!("{} operations are left:\n{}", shorter.log.len(), shorter.describe(plan, 40));
    println!("replay with: model --replay {}", arguments.log.display());
    Ok(())
}
