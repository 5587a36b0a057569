//! `fio` with verified random writers: on a node once while writing, once more after its store was
//! emptied and its daemon killed, and once on the lower level itself.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail};

use super::{Places, Subject, conformance, tail};
use crate::outcome::Outcome;
use crate::process;

const LIMIT: Duration = Duration::from_secs(600);

/// Runs the writers and all their verifications.
pub fn run(places: &Places) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    if places.wants_bare() {
        outcomes.push(places.on_bare("fio", all)?);
    }
    if places.wants_node() {
        outcomes.push(places.on_node("fio", "128MiB", all)?);
    }
    Ok(outcomes)
}

fn all(subject: &Subject<'_>) -> Result<Outcome> {
    let mut outcome = Outcome::new(format!("fio verify on {}", subject.name));
    let mut step = |name: &str, result: Result<()>| {
        outcome.check(result.is_ok(), || match result {
            Err(error) => format!("{name}: {error:#}"),
            Ok(()) => String::new(),
        });
    };
    step("write and verify", fio(&subject.directory, false));
    step("verify again", fio(&subject.directory, true));
    if let Some(node) = subject.node {
        step("verify on the lower level", fio(&subject.lower, true));
        let emptied = node.ask(&["resize", "0"]).and_then(|_| node.ask(&["resize", "1GiB"]));
        step("empty the store", emptied.map(drop));
        step("verify after emptying the store", fio(&subject.directory, true));
        step("verify from memory", fio(&subject.directory, true));
    }
    Ok(outcome)
}

/// Runs the jobs in `directory`, or only verifies what an earlier run left there.
pub fn fio(directory: &Path, verify_only: bool) -> Result<()> {
    let mut command = Command::new("fio");
    command.arg("--directory").arg(directory).arg(conformance("verify.fio"));
    if verify_only {
        command.arg("--verify_only=1");
    }
    // Its state files land in the working directory.
    let states = tempfile::tempdir()?;
    command.current_dir(states.path());
    let output = process::capture_within(&mut command, LIMIT)?;
    if !output.status.success() {
        let said = [output.stdout, output.stderr].concat();
        bail!("ended with {}:\n        {}", output.status, tail(&said, 12));
    }
    Ok(())
}
