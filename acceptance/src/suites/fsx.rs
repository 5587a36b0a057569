//! The file system exerciser: random operations on one file, each read compared with what must be
//! there; on a node while its store is resized, emptied and switched.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use super::{Places, Subject, churn, conformance, tail};
use crate::environment;
use crate::outcome::Outcome;
use crate::process;

/// Kinds of file: below the packing limit, of a few blocks, grown and shrunk a lot.
const KINDS: [&str; 3] = ["small", "large", "resized"];
const SEEDS: [u64; 2] = [1, 20_260];
/// Time for each operation, many times what a busy machine needs: past it something hangs.
const LIMIT_PER_OPERATION: Duration = Duration::from_millis(15);
const LIMIT_LEAST: Duration = Duration::from_secs(120);

/// Runs every kind with every seed.
pub fn run(places: &Places) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    if places.wants_bare() {
        outcomes.push(places.on_bare("fsx", |subject| all(places, subject))?);
    }
    if places.wants_node() {
        outcomes.push(places.on_node("fsx", "256MiB", |subject| all(places, subject))?);
    }
    Ok(outcomes)
}

fn all(places: &Places, subject: &Subject<'_>) -> Result<Outcome> {
    let mut outcome = Outcome::new(format!("fsx on {}", subject.name));
    let seeds = match places.options.seed.as_slice() {
        [] => SEEDS.to_vec(),
        seeds => seeds.to_vec(),
    };
    let operations = places.options.operations;
    let mut commands = 0;
    for kind in KINDS {
        for &seed in &seeds {
            let name = format!("{kind}-{seed}");
            let file = subject.directory.join(&name);
            // By its path below the mount, which answers even if the node hangs.
            let lower = subject.lower.join(&name);
            let work = || exercise(&file, kind, seed, operations, None);
            let result = match subject.node {
                Some(node) => churn::during(node, &lower, work).map(|(_, count)| commands += count),
                None => work(),
            };
            outcome.check(result.is_ok(), || {
                let error = result.err().map(|error| format!("{error:#}"));
                format!("{kind}, seed {seed}: {}", error.unwrap_or_default())
            });
        }
    }
    outcome.notes.push(format!("{operations} operations each, {commands} commands meanwhile"));
    Ok(outcome)
}

/// One run of the exerciser. `inject` leaves out the operation of that number.
pub fn exercise(
    file: &Path,
    kind: &str,
    seed: u64,
    operations: u64,
    inject: Option<u64>,
) -> Result<()> {
    let artifacts = environment::target().join("suites/fsx-artifacts");
    std::fs::create_dir_all(&artifacts)?;
    let mut command = Command::new(environment::tool(environment::FSX)?);
    command.args(["-N", &operations.to_string(), "-S", &seed.to_string(), "-P"]).arg(artifacts);
    command.arg("-f").arg(conformance(&format!("fsx/{kind}.toml")));
    if let Some(step) = inject {
        command.args(["--inject", &step.to_string()]);
    }
    let limit = LIMIT_PER_OPERATION * u32::try_from(operations)?;
    let output = process::capture_within(command.arg(file), limit.max(LIMIT_LEAST))?;
    let said = [output.stdout, output.stderr].concat();
    // The words as well as the status: a run that ended early did not pass.
    if !output.status.success() || !String::from_utf8_lossy(&said).contains("A-OK") {
        bail!("ended with {}:\n        {}", output.status, tail(&said, 12));
    }
    Ok(())
}
