//! Measures fairness between users: one user takes all it can of one resource of the node, while
//! another user opens, reads and closes files. The attacker also takes processor time from
//! everybody, so the victim visits libfuse's pass-through example and a tmpfs in turns, in the same
//! seconds: what these lose is not caused by the node.

use std::fs;
use std::io::BufRead;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::ValueEnum;

use super::pass_through::PassThrough;
use super::row::{Goal, Row, median};
use super::visitor::{BIG, SMALL};
use super::{Bench, open_to_all, warm};
use crate::arguments::Taken;
use crate::node::Node;
use crate::random_file::write_file;
use crate::{cleanup, environment, process};

const NAME: &str = "hostile-user";
const CAPACITY_BYTES: u64 = 256 << 20;
/// Less than what one user's borrows must leave to others.
const BIG_BYTES: u64 = 16 << 20;
/// Median beside the attack against alone.
const GOAL: f64 = 2.0;
/// The attacker, and the user that only reads.
const ATTACKER: u32 = 65_534;
const OTHER: u32 = 54_321;
/// Files of the attacker that the kernel may read by itself.
const LOANED_FILES: u32 = 64;

/// How long a killed program may take to end.
const END_LIMIT: Duration = Duration::from_secs(5);

/// What the other one saw: open + read + close and a read of 1 MiB, in microseconds.
type Seen = Vec<[f64; 2]>;

/// A row of each thing that is taken, for opens and for reads.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let named = |what: &Taken| (*what, format!("{NAME}: {}", name_of(*what)));
    let mut kinds: Vec<(Taken, String)> = Taken::value_variants().iter().map(named).collect();
    kinds.retain(|(_, name)| bench.wants(name));
    if kinds.is_empty() {
        return Ok(Vec::new());
    }
    for directory in [&bench.lower, &bench.memory] {
        open_to_all(directory)?;
    }
    let mut rows = Vec::new();
    for (what, name) in kinds {
        // A node of its own: what one attack leaves must not count as the next one's.
        rows.extend(rows_of(bench, what, &name)?);
    }
    Ok(rows)
}

fn name_of(what: Taken) -> String {
    what.to_possible_value().map(|name| name.get_name().to_owned()).unwrap_or_default()
}

fn rows_of(bench: &Bench, what: Taken, name: &str) -> Result<Vec<Row>> {
    let scene = Scene::new(bench)?;
    scene.furnish_attacker(bench, what)?;
    let times = (bench.scale.random_reads / 500).max(50);
    let (mut alone, mut beside) = (Vec::new(), Vec::new());
    for _ in 0..bench.scale.rounds {
        alone.push(scene.visit(times)?);
        let attack = scene.attack(what)?;
        beside.push(scene.visit(times)?);
        drop(attack);
    }
    drop(scene);
    Ok(["open + read 4 KiB + close", "read of 1 MiB"]
        .iter()
        .enumerate()
        .map(|(column, operation)| row(&format!("{name}, {operation}"), column, &alone, &beside))
        .collect())
}

fn row(name: &str, column: usize, alone: &[Seen], beside: &[Seen]) -> Row {
    let of = |seen: &[Seen], place: usize| -> Vec<f64> {
        seen.iter().map(|seen| seen[place][column]).collect()
    };
    let slower = |place| -> Vec<f64> {
        of(beside, place)
            .iter()
            .zip(of(alone, place))
            .map(|(beside, alone)| beside / alone)
            .collect()
    };
    let middle = |values: Vec<f64>| median(&values).unwrap_or(f64::NAN);
    let row = Row::rates(name, "times", (slower(0), slower(1)), Goal::AtMost(GOAL));
    Row { larger_is_better: false, ..row }.note(format!(
        "median {:.1} µs beside the attack, {:.1} alone; reference: libfuse's pass-through in the \
         same seconds; tmpfs {:.2} times",
        middle(of(beside, 0)),
        middle(of(alone, 0)),
        middle(slower(2)),
    ))
}

/// A node, what it is compared with, and the files of both users.
struct Scene {
    node: Node,
    // The mount, libfuse's example, the tmpfs.
    places: [PathBuf; 3],
    lower: PathBuf,
    memory: PathBuf,
    // Before the directories go.
    example: Option<PassThrough>,
}

impl Scene {
    fn new(bench: &Bench) -> Result<Self> {
        let (lower, memory) = (bench.lower.join("hostile"), bench.memory.join("hostile"));
        for directory in [&lower, &memory] {
            fs::create_dir(directory)?;
            write_file(&directory.join(SMALL), 4_096)?;
            write_file(&directory.join(BIG), BIG_BYTES)?;
        }
        let node = bench.node(CAPACITY_BYTES, &[])?;
        let example = PassThrough::mount(&lower)?;
        for mount in [&node.mount, &example.mount] {
            open_to_all(mount.parent().context("a mount lies in a directory")?)?;
        }
        let mount = node.mount.join("hostile");
        for file in [SMALL, BIG] {
            warm::load(&node, &mount.join(file))?;
        }
        let places = [mount, example.mount.clone(), memory.clone()];
        Ok(Scene { node, places, lower, memory, example: Some(example) })
    }

    /// Files that belong to the attacker, in a directory that does.
    fn furnish_attacker(&self, bench: &Bench, what: Taken) -> Result<()> {
        let own = self.lower.join("attacker");
        fs::create_dir(&own)?;
        let mut files = vec![("leased".to_owned(), 4_096), ("locked".to_owned(), 4_096)];
        let more_than_fits = what == Taken::Memory && bench.scale.warm_bytes > CAPACITY_BYTES;
        let large = if more_than_fits { 3 * CAPACITY_BYTES } else { BIG_BYTES };
        files.push(("large".to_owned(), large));
        files.extend((0..LOANED_FILES).map(|number| (format!("file-{number}"), 1 << 20)));
        for (name, bytes) in files {
            write_file(&own.join(&name), bytes)?;
            chown(own.join(&name), Some(ATTACKER), Some(ATTACKER))?;
        }
        Ok(chown(&own, Some(ATTACKER), Some(ATTACKER))?)
    }

    fn visit(&self, times: u64) -> Result<Seen> {
        let mut visit = visitor(OTHER)?;
        visit.args(["visit", "read", "--times", &times.to_string()]);
        for place in &self.places {
            visit.arg("--directory").arg(place);
        }
        serde_json::from_str(&process::read(&mut visit)?).context("x visit read")
    }

    fn attack(&self, what: Taken) -> Result<Attack> {
        let mut visit = visitor(ATTACKER)?;
        visit.args(["visit", "take", "--what", &name_of(what), "--directory"]);
        visit.arg(self.places[0].join("attacker")).arg("--pfs").arg(self.lower.join("attacker"));
        Attack::start(visit.arg("--socket").arg(&self.node.socket))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.example = None;
        for directory in [&self.lower, &self.memory] {
            if let Err(error) = fs::remove_dir_all(directory) {
                eprintln!("x: {}: {error}", directory.display());
            }
        }
    }
}

/// A program that takes until it is killed.
struct Attack {
    child: Child,
    kill: Option<cleanup::Guard>,
}

impl Attack {
    fn start(command: &mut Command) -> Result<Self> {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let process_id = child.id();
        let kill = cleanup::guard(move || process::signal(process_id, libc::SIGKILL));
        let output = child.stdout.take().context("its output is a pipe")?;
        let attack = Attack { child, kill: Some(kill) };
        let mut line = String::new();
        std::io::BufReader::new(output).read_line(&mut line)?;
        anyhow::ensure!(line == "taken\n", "the attack ended early");
        Ok(attack)
    }
}

impl Drop for Attack {
    fn drop(&mut self) {
        self.kill = None;
        let started = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) {
            if started.elapsed() > END_LIMIT {
                // The end of its node ends it as well.
                return eprintln!("x: the attack lives {END_LIMIT:?} after it was killed");
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// This program as another user, with the product found as it was found here.
fn visitor(user: u32) -> Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.uid(user).gid(user).env("TIDEPOOL_BINARY", environment::binary()?);
    Ok(command)
}
