//! Real applications on the mount while the store is resized and emptied every two seconds, each
//! checked by its own means. Their times on the bare directory stand beside.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::{Places, Subject, conformance, tail};
use crate::environment;
use crate::node::Node;
use crate::outcome::Outcome;
use crate::process;

/// Those that take seconds.
const SHORT: [&str; 7] = ["moments", "git", "lld", "jvm", "arrow", "epochs", "attributes"];
/// Those by command alone.
const LONG: [&str; 6] = ["cargo", "numbers", "sqlite", "netcdf", "mpi", "postgresql"];
/// Names and versions of the Python packages.
const PACKAGES: [&str; 8] = [
    "pyarrow==21.0.0",
    "numpy==2.3.3",
    "pandas==2.3.2",
    "h5py==3.14.0",
    "zarr==3.1.2",
    "duckdb==1.3.2",
    "lmdb==1.7.3",
    "setuptools",
];
const PACKAGES_SHORT: usize = 2;
const LIMIT: Duration = Duration::from_secs(600);
const BREATH: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(50);
/// A grow and shrink cycle of the store: small, empty, large.
const BREATHS: [&[&str]; 3] = [&["resize", "64MiB"], &["evict", "--all"], &["resize", "1GiB"]];
/// What a script exits with where the machine lacks its application.
const LACKING: i32 = 77;

/// Runs the applications: those that take seconds, or all.
pub fn run(places: &Places, all: bool) -> Result<Vec<Outcome>> {
    let mut names = SHORT.to_vec();
    if all {
        names.extend(LONG);
    }
    names.retain(|name| places.options.only.as_ref().is_none_or(|only| name.contains(only)));
    let packages = if all { &PACKAGES[..] } else { &PACKAGES[..PACKAGES_SHORT] };
    let tools = Tools::prepare(places, packages, all)?;
    let mut outcomes = Vec::new();
    let mut bare_times = Vec::new();
    if places.wants_bare() {
        outcomes.push(places.on_bare("applications", |subject| {
            let mut outcome = Outcome::new("applications on bare");
            for name in &names {
                bare_times.push(tools.run(name, subject, &mut outcome));
            }
            Ok(outcome)
        })?);
    }
    if places.wants_node() {
        outcomes.push(places.on_node("applications", "1GiB", |subject| {
            let mut outcome = Outcome::new("applications on node");
            let Some(node) = subject.node else { bail!("there is no node") };
            for (at, name) in names.iter().enumerate() {
                let time = breathing(node, || tools.run(name, subject, &mut outcome))?;
                let of = |time: Option<Duration>| {
                    time.map_or("none".to_owned(), |time| format!("{:.1} s", time.as_secs_f64()))
                };
                let bare = of(bare_times.get(at).copied().flatten());
                let line = format!("{name}: {}, bare {bare}", of(time));
                outcome.notes.push(line);
            }
            Ok(outcome)
        })?);
    }
    Ok(outcomes)
}

/// What the scripts use.
struct Tools {
    moments: PathBuf,
    packages: Option<PathBuf>,
    scratch: PathBuf,
}

impl Tools {
    fn prepare(places: &Places, packages: &[&str], all: bool) -> Result<Self> {
        let directory = environment::target().join("tools");
        std::fs::create_dir_all(&directory)?;
        let moments = directory.join("moments");
        let mut compiler = process::command("cc", &["-O1", "-static", "-o"]);
        process::read(compiler.arg(&moments).arg(conformance("moments.c")))?;
        let name = if all { "python-applications" } else { "python-arrow" };
        let packages = environment::python_packages(name, packages);
        if let Err(error) = &packages {
            println!("x: no Python packages: {error:#}");
        }
        let scratch = places.images.path().join("applications");
        Ok(Tools { moments, packages: packages.ok(), scratch })
    }

    /// Runs one application in a directory of its own; how long it took, if it went well.
    fn run(&self, name: &str, subject: &Subject<'_>, outcome: &mut Outcome) -> Option<Duration> {
        eprintln!("x: application {name} on {}", subject.name);
        let began = Instant::now();
        match self.capture(name, subject) {
            Ok(output) if output.status.success() => {
                outcome.passed += 1;
                return Some(began.elapsed());
            }
            Ok(output) if output.status.code() == Some(LACKING) => {
                outcome.skipped.push(format!("application {name}: {}", tail(&output.stdout, 1)));
            }
            Ok(output) => {
                let said = tail(&[output.stdout, output.stderr].concat(), 12);
                outcome.failed.push(format!("{name}: {}: {said}", output.status));
            }
            Err(error) => outcome.failed.push(format!("{name}: {error:#}")),
        }
        None
    }

    fn capture(&self, name: &str, subject: &Subject<'_>) -> Result<std::process::Output> {
        let directory = subject.directory.join(name);
        std::fs::create_dir(&directory)?;
        let scratch = self.scratch.join(name);
        let _ = std::fs::remove_dir_all(&scratch);
        std::fs::create_dir_all(&scratch)?;
        let script = conformance(&format!("applications/{name}.sh"));
        let mut command = Command::new("sh");
        command.arg(&script).current_dir(&directory);
        command.env("SCRATCH", &scratch).env("MOMENTS", &self.moments);
        command.env("EVICT", evict(subject.node));
        command.env("PYTHON_PACKAGES", self.packages.as_deref().unwrap_or(Path::new("")));
        let output = process::capture_within(&mut command, LIMIT);
        let _ = std::fs::remove_dir_all(&directory);
        output
    }
}

/// The command that empties the store, for programs that choose the moment.
fn evict(node: Option<&Node>) -> String {
    node.map_or("true".to_owned(), |node| process::describe(&node.command(&["evict", "--all"])))
}

/// Runs `work` while the store grows and shrinks.
fn breathing<T>(node: &Node, work: impl FnOnce() -> T) -> Result<T> {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let breath = scope.spawn(|| {
            for step in BREATHS.iter().cycle() {
                // What is in use may stay, and the exit status says so.
                process::capture_within(&mut node.command(step), LIMIT)?;
                let next = Instant::now() + BREATH / BREATHS.len() as u32;
                while Instant::now() < next {
                    if over.load(Ordering::Acquire) {
                        return process::capture_within(
                            &mut node.command(&["resize", "1GiB"]),
                            LIMIT,
                        )
                        .map(drop);
                    }
                    std::thread::sleep(POLL);
                }
            }
            Ok(())
        });
        let result = work();
        over.store(true, Ordering::Release);
        let breath = breath.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the breath panicked")));
        breath.map(|()| result)
    })
}
