//! `tidepool doctor`: examines this machine, checks the read path of a hit through the running
//! node, measures between the nodes of its cluster, or runs the contract suite on a PFS directory.
//! Changes nothing but probe files that it removes.

mod cluster;
mod hit_path;
mod host_name;
mod machine_checks;
mod mounts;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use serde::Serialize;
use tidepool_pfs::contract::{self, CheckResult, ContractOptions, Outcome as Found};
use tidepool_proto::{Error, ErrorKind, Result};

use crate::arguments::DoctorArguments;
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::interruption;
use tidepool_terminal::output::{self, Colour, coloured};

/// All findings about machine and node.
#[derive(Serialize)]
struct Report {
    /// Whether nothing failed and the way of a hit is proven.
    healthy: bool,
    /// Level that served the probe to the mount and to the library; absent where not proven.
    mount_served_by: Option<String>,
    library_served_by: Option<String>,
    checks: Vec<CheckResult>,
}

/// Collects findings and prints each as it comes.
pub struct Findings {
    print: bool,
    checks: Vec<CheckResult>,
    interrupted: Arc<AtomicBool>,
}

impl Findings {
    /// Runs a check; its answer is the outcome, what was seen, and what it means. Not once somebody
    /// wants the end.
    pub fn check(&mut self, name: &str, run: impl FnOnce() -> (Found, String, String)) {
        if self.is_interrupted() {
            return;
        }
        let begun = Instant::now();
        let (outcome, measured, consequence) = run();
        let check = CheckResult {
            name: name.to_owned(),
            outcome,
            measured,
            consequence,
            elapsed_ms: begun.elapsed().as_secs_f64() * 1e3,
        };
        if self.print {
            print(&check);
        }
        self.checks.push(check);
    }

    /// Whether somebody wants the end.
    pub fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// What turns true then.
    pub fn interrupted(&self) -> &AtomicBool {
        &self.interrupted
    }

    fn has(&self, outcome: Found) -> bool {
        self.checks.iter().any(|check| check.outcome == outcome)
    }
}

fn print(check: &CheckResult) {
    let (mark, colour) = match check.outcome {
        Found::Ok => ("ok      ", Colour::Good),
        Found::Degraded => ("degraded", Colour::Warning),
        Found::Failed => ("failed  ", Colour::Bad),
        Found::Skipped => ("skipped ", Colour::Faint),
    };
    let head = format!("{}  {:<26}  ", coloured(mark, colour), check.name);
    output::hanging(&head, &check.measured);
    if !check.consequence.is_empty() {
        output::hanging(&" ".repeat(38), &coloured(&check.consequence, Colour::Faint));
    }
}

/// Runs `doctor`.
pub fn doctor(arguments: &DoctorArguments) -> Result<Outcome> {
    match &arguments.pfs {
        Some(directory) => examine_pfs(directory, arguments),
        None if arguments.cluster => cluster::examine(arguments),
        None => examine_node(arguments),
    }
}

fn examine_node(arguments: &DoctorArguments) -> Result<Outcome> {
    let interrupted = interruption::watch()?;
    let mut findings = Findings { print: !arguments.facts.json, checks: Vec::new(), interrupted };
    machine_checks::run(&mut findings);
    mounts::run(&mut findings);
    host_name::run(&mut findings);
    let (proof, unreachable) = match hit_path::prove(&arguments.facts.socket, &mut findings) {
        Ok(proof) => (proof, None),
        Err(error) if error.kind() == ErrorKind::NodeUnavailable => {
            findings.check("hit-path", || (Found::Skipped, error.to_string(), start_or_name()));
            (hit_path::Proof::default(), Some(error))
        }
        Err(error) => {
            findings.check("hit-path", || (Found::Failed, error.to_string(), String::new()));
            (hit_path::Proof::default(), None)
        }
    };
    // A node that the user names is examined; without one, and where the environment says where a
    // node is to be, only the machine can be examined.
    let named = arguments.facts.socket.socket.as_ref();
    let usual = std::env::var_os("TIDEPOOL_SOCKET").map(PathBuf::from);
    let unreachable = unreachable.filter(|_| named.is_some() && named != usual.as_ref());
    let is_interrupted = findings.is_interrupted();
    let healthy = !findings.has(Found::Failed) && unreachable.is_none();
    if arguments.facts.json {
        output::json(&Report {
            healthy,
            mount_served_by: proof.mount,
            library_served_by: proof.library,
            checks: findings.checks,
        })?;
    } else {
        summarise(&findings.checks);
    }
    if is_interrupted {
        output::note("interrupted: what was not checked is not known");
        return Ok(Outcome::Interrupted);
    }
    match unreachable {
        Some(error) => Err(error),
        None => Ok(if healthy { Outcome::Done } else { Outcome::NotSo }),
    }
}

/// What to do where no node answers.
fn start_or_name() -> String {
    "start a node, or name its socket by --socket, to prove the way".to_owned()
}

fn summarise(checks: &[CheckResult]) {
    let count = |outcome| checks.iter().filter(|check| check.outcome == outcome).count();
    output::line(&format!(
        "{} ok, {} degraded, {} failed, {} skipped",
        count(Found::Ok),
        count(Found::Degraded),
        count(Found::Failed),
        count(Found::Skipped)
    ));
}

/// Whether changes of another node show: what the node that serves the directory found out of it.
fn second_node(directory: &Path, arguments: &DoctorArguments) -> CheckResult {
    let begun = Instant::now();
    let skipped = |why: &str| {
        let remedy = "start nodes on two machines with `cluster_nodes`, and run it there: clients \
                      that remember attributes show at a second machine alone";
        (Found::Skipped, why.to_owned(), remedy.to_owned())
    };
    let serves = |status: &tidepool_proto::admin::Status| {
        let real = |path: &Path| std::fs::canonicalize(path).ok();
        real(Path::new(&status.pfs)).is_some_and(|root| real(directory) == Some(root))
    };
    let (outcome, measured, consequence) = match arguments.facts.socket.connect().status() {
        Ok(status) if serves(&status) => {
            let shown = status.cluster.and_then(|cluster| cluster.changes_shown);
            shown.map_or_else(
                || skipped("the node has not looked at another one"),
                |shown| cluster::changes(&shown),
            )
        }
        _ => skipped("no node serves this directory"),
    };
    CheckResult {
        name: "changes-of-another-node".to_owned(),
        outcome,
        measured,
        consequence,
        elapsed_ms: begun.elapsed().as_secs_f64() * 1e3,
    }
}

fn examine_pfs(directory: &Path, arguments: &DoctorArguments) -> Result<Outcome> {
    let metadata = std::fs::metadata(directory)
        .map_err(|source| Error::pfs(format!("looking at {}", directory.display()), source))?;
    if !metadata.is_dir() {
        let operation = format!("looking at {}", directory.display());
        return Err(Error::new(ErrorKind::InvalidInput, operation, "it is no directory"));
    }
    let cancel = interruption::watch()?;
    let options = ContractOptions {
        speed_bytes: arguments.speed_bytes.0,
        cancel: Some(Arc::clone(&cancel)),
        ..ContractOptions::default()
    };
    let json = arguments.facts.json;
    let mut progress = |check: &CheckResult| {
        if !json {
            print(check);
        }
    };
    let mut report = contract::run(directory, options, &mut progress);
    let second = second_node(directory, arguments);
    if !json {
        print(&second);
    }
    report.checks.push(second);
    if json {
        output::json(&report)?;
    } else {
        output::line(&format!("{} ({})", report.root, report.fs_type));
        summarise(&report.checks);
    }
    if cancel.load(Ordering::Relaxed) {
        output::note("interrupted: what was skipped is not known");
        return Ok(Outcome::Interrupted);
    }
    Ok(if report.count(Found::Failed) == 0 { Outcome::Done } else { Outcome::NotSo })
}
