//! Benchmark of eviction policies: the default one beside all others, on the patterns in which jobs
//! iterate over a set of which two thirds fit, with read-ahead on, through the mount, the library
//! and Hadoop. Hits are the bytes asked for less the bytes read from the lower level, whatever a
//! policy counts itself.

mod readers;

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde_json::Value;
use tidepool_patterns::{Pattern, Random, Set};

use self::readers::{BLOCK_BYTES, FILE_BLOCKS, Readers};
use super::row::{Goal, Row};
use super::{Bench, open_to_all};
use crate::jvm::artifacts;
use crate::jvm::hadoop::Hadoop;
use crate::node::{Node, NodeOptions};
use crate::random_file::write_file;
use crate::{environment, process};

const NAME: &str = "eviction";
/// The default, and what it is compared with.
const DEFAULT: &str = "adaptive";
const OTHERS: [&str; 5] = ["lru", "lfu", "s3fifo", "cyclic", "fixed"];
/// Least share of the best one's hits.
const GOAL: f64 = 0.95;
/// Two passes that do not count, and as many that do in which sweeps forth and back come in pairs.
const WARM_UP: u64 = 2;
const MEASURED: u64 = 6;
/// A way to the bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Mount,
    /// Without passthrough.
    Daemon,
    Library,
    Hadoop,
}

const WAYS: [(&str, Way); 4] = [
    ("mount", Way::Mount),
    ("mount without passthrough", Way::Daemon),
    ("library", Way::Library),
    ("Hadoop", Way::Hadoop),
];

/// What all runs share.
struct Scene<'a> {
    bench: &'a Bench,
    files: u64,
    capacity_bytes: u64,
    /// Of `tide://`, where Hadoop reads.
    jar: Option<PathBuf>,
}

/// Hits of one policy, and what it says of itself.
struct Outcome {
    ratio: f64,
    said: String,
}

/// A row for each way and pattern, only where named: together they read some hundred gigabytes.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut wanted: Vec<(String, Way, Pattern)> = Vec::new();
    for (words, way) in WAYS {
        let row = |pattern: Pattern| (format!("{NAME}, {words}, {}", pattern.name()), way, pattern);
        wanted.extend(Pattern::ALL.map(row));
    }
    wanted.retain(|(name, ..)| bench.names(name));
    let mut jar = None;
    if wanted.iter().any(|(_, way, _)| *way == Way::Hadoop) {
        match has_java() {
            true => jar = Some(artifacts::tide_jar()?),
            false => {
                eprintln!("x: rows of Hadoop are left out: they need a JDK and Maven");
                wanted.retain(|(_, way, _)| *way != Way::Hadoop);
            }
        }
    }
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let build =
        ["build", "--quiet", "--release", "--package", "acceptance", "--features", "library"];
    process::show(environment::cargo(&build).args(["--bin", "bench-ranges"]))?;
    let capacity_bytes = bench.scale.scan_capacity_bytes / 3;
    let files = (capacity_bytes * 3 / 2 / (FILE_BLOCKS * BLOCK_BYTES)).max(6) / 6 * 6;
    let capacity_bytes = files * FILE_BLOCKS * BLOCK_BYTES * 2 / 3;
    let scene = Scene { bench, files, capacity_bytes, jar };
    for file in 0..files {
        write_file(&bench.lower.join(readers::name(file)), FILE_BLOCKS * BLOCK_BYTES)?;
    }
    let mut rows = Vec::new();
    for (name, way, pattern) in wanted {
        let row = scene.row(&name, way, pattern).with_context(|| name.clone())?;
        eprintln!("{row}");
        rows.push(row);
    }
    for file in 0..files {
        std::fs::remove_file(bench.lower.join(readers::name(file)))?;
    }
    Ok(rows)
}

impl Scene<'_> {
    fn row(&self, name: &str, way: Way, pattern: Pattern) -> Result<Row> {
        let ours = self.measure(way, pattern, DEFAULT)?;
        let mut others = Vec::new();
        for policy in OTHERS {
            others.push((policy, self.measure(way, pattern, policy)?.ratio));
        }
        let best = others.iter().map(|(_, ratio)| *ratio).fold(f64::MIN, f64::max);
        let words: Vec<_> = others.iter().map(|(it, ratio)| format!("{it} {ratio:.3}")).collect();
        let goal = Goal::RatioAtLeast(GOAL);
        let said = format!("{}; {DEFAULT} {:.3} ({})", words.join(", "), ours.ratio, ours.said);
        Ok(Row::rates(name, "", (vec![ours.ratio], vec![best]), goal).note(said).note(format!(
            "set {} MiB, capacity {} MiB, {MEASURED} passes after {WARM_UP}; load of the machine \
             {:.1}",
            (self.files * FILE_BLOCKS * BLOCK_BYTES) >> 20,
            self.capacity_bytes >> 20,
            environment::load().unwrap_or(f64::NAN)
        )))
    }

    fn measure(&self, way: Way, pattern: Pattern, policy: &str) -> Result<Outcome> {
        let mut arguments = vec!["--policy".to_owned(), policy.to_owned()];
        if way == Way::Daemon {
            arguments.extend(["--passthrough", "off"].map(String::from));
        }
        let pfs = self.bench.lower.clone();
        let options = NodeOptions { pfs, memory: self.capacity_bytes.to_string(), arguments };
        let node = match way {
            Way::Mount | Way::Daemon => Node::start(&options)?,
            Way::Library | Way::Hadoop => Node::start_unmounted(&options)?,
        };
        let state = node.socket.parent().context("a socket lies in a directory")?;
        open_to_all(&self.bench.lower)?;
        open_to_all(state)?;
        let (mut readers, _hadoop) = self.readers(way, &node)?;
        let set = Set { files: self.files, file_blocks: FILE_BLOCKS };
        let mut random = Random(7);
        let (mut before, mut asked) = (0, 0);
        for number in 0..WARM_UP + MEASURED {
            if number == WARM_UP {
                before = pfs_bytes(&node.status()?)?;
                asked = 0;
            }
            asked += readers.read(&pattern.pass(number, set, &mut random))?;
        }
        let missed = pfs_bytes(&node.status()?)? - before;
        drop(readers);
        let said = node.ask(&["policy"])?.trim().to_owned();
        Ok(Outcome { ratio: 1.0 - missed as f64 / asked as f64, said })
    }

    fn readers(&self, way: Way, node: &Node) -> Result<(Readers, Option<Hadoop>)> {
        let lower = &self.bench.lower;
        Ok(match way {
            Way::Mount | Way::Daemon => (Readers::native(&node.mount, None)?, None),
            Way::Library => (Readers::native(lower, Some(&node.socket))?, None),
            Way::Hadoop => {
                let logs = environment::target().join("bench-logs");
                let mut hadoop = Hadoop::new(&environment::target().join("bench"), &logs)?;
                hadoop.add_jar(self.jar.as_ref().context("the jar was built before")?);
                hadoop.site.set("fs.tide.socket", node.socket.display());
                hadoop.site.set("fs.tide.pfs", lower.display());
                let none: [&str; 0] = [];
                let java = hadoop.java()?.light();
                let mut command = java.command("io.tidepool.examples.FsBench", &none);
                let log = std::fs::File::create(hadoop.logs.join("eviction.log"))?;
                (Readers::hadoop(command.stderr(log))?, Some(hadoop))
            }
        })
    }
}

fn has_java() -> bool {
    let runs = |program: &str| process::read(&mut process::command(program, &["-version"])).is_ok();
    runs("java") && runs("mvn")
}

fn pfs_bytes(status: &Value) -> Result<u64> {
    status["pfs_read_bytes"].as_u64().context("status has no pfs_read_bytes")
}
