//! Alluxio under the plane: a real worker with files in its memory, on a node whose agent takes
//! ceilings from Kafka and whose controller carries them out. Measured is the time from a ceiling,
//! sent as the job would, until the worker's memory has lost a GiB, and from a higher one until the
//! worker has that room again.
//!
//! The files lie in the store below Alluxio before it reads them: blocks that it was given to write
//! stay until they are persisted.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use super::site::{CLUSTER, Site};
use super::{Bench, load};
use crate::bench::row::{Goal, Row};
use crate::bench::wait_until;
use crate::environment;
use crate::jvm::alluxio::Alluxio;
use crate::jvm::artifacts;
use crate::jvm::daemon::Daemon;
use crate::jvm::java::{self, Dialogue, Java};
use crate::jvm::talk::Talk;
use crate::node::{Node, NodeOptions};
use crate::scratch::Scratch;

const NAME: &str = "plane-alluxio";
const CEILINGS: &str = "tidepool-ceilings";
const NODE: &str = "node2";
const STORE: &str = "alluxio";
/// A block of the worker.
const FILE_BYTES: u64 = 64 << 20;
/// Files that stay when a GiB goes, and all.
const KEPT_FILES: u64 = 4;
const FILES: u64 = 20;
const KEPT_BYTES: u64 = KEPT_FILES * FILE_BYTES;
/// Room for a few more: a block takes its place before another one that leaves has given it back.
const WORKER_BYTES: u64 = (FILES + 2) * FILE_BYTES;
/// By itself a worker that is nearly full caches only some of what is read.
const CACHE_ALL: &str =
    "alluxio.worker.reviewer.class=alluxio.worker.block.reviewer.AcceptingReviewer";
/// What the node's controller does below the ceilings: nothing.
const POLICY: &str = "static";
/// Of the number of a block, the bits that number the blocks of one file.
const BLOCK_SHIFT: u32 = 24;
/// Most of a second each.
const GOAL_MS: f64 = 1000.0;
/// Times that all files are read until all are cached, and the time for that.
const PASSES_MAX: u32 = 5;
const CACHING: Duration = Duration::from_secs(3);
const LIMIT: Duration = Duration::from_secs(60);
const LEASE_MS: u64 = 60_000;
/// Of Tidepool's own store, which plays no part.
const OWN_BYTES: u64 = 64 << 20;

/// A worker under control, and who speaks to it.
struct Rig {
    number: u64,
    reader: Dialogue,
    /// Sends ceilings to the node.
    sender: Talk,
    agent: Daemon,
    node: Node,
    alluxio: Alluxio,
    _site: Site,
    _lower: Scratch,
}

/// Both rows.
pub fn run(bench: &Bench, pfs: Option<&Path>) -> Result<Vec<Row>> {
    if !bench.wants(NAME) {
        return Ok(Vec::new());
    }
    let mut rig = Rig::start(pfs)?;
    let (mut evicted, mut allocated) = (Vec::new(), Vec::new());
    for _ in 0..bench.scale.rounds {
        rig.fill()?;
        evicted.push(rig.evict()?);
        allocated.push(rig.allocate()?);
    }
    // The room can be used.
    rig.fill()?;
    let row = |what: &str, figures| {
        Row::alone(&format!("{NAME}: {what} 1 GiB"), "ms", figures, Goal::AtMost(GOAL_MS))
    };
    let evict_note = "from the ceiling's message until the worker's memory has lost the bytes, \
                      those of the files that were used longest ago";
    let allocate_note = "from the ceiling's message until the worker has dropped what was \
                         reserved; \
                         the files were read into the room again after that";
    Ok(vec![
        row("evict", evicted).note(evict_note).note(load()?),
        row("allocate", allocated).note(allocate_note),
    ])
}

impl Rig {
    fn start(pfs: Option<&Path>) -> Result<Rig> {
        let default = environment::target().join("bench");
        let lower = Scratch::below(pfs.unwrap_or(&default))?;
        for file in 0..FILES {
            // All holes: what counts is what they are in the worker's memory.
            std::fs::File::create(lower.path().join(name(file)))?.set_len(FILE_BYTES)?;
        }
        let site = Site::start(1)?;
        let alluxio = Alluxio::start_with(lower.path(), WORKER_BYTES, &[CACHE_ALL], &site.logs)?;
        let node = start_node(&site, &alluxio, lower.path())?;
        let mut command = node.command(&["plane", "agent", "--name", NODE, "--no-samples"]);
        command.args(["--cluster", CLUSTER, "--kafka", &site.kafka.address()]);
        let agent = Daemon::start("plane-agent", &mut command, &site.logs)?;
        let sender = site.kafka.talk()?;
        let jar = artifacts::project("hadoop")?.jar.display().to_string();
        let java = Java::new(java::class_path(&[&alluxio.class_path, &jar]), "256m").light();
        let none: [&str; 0] = [];
        let log = site.logs.join("plane-alluxio-read.log");
        let reader = java.talk("io.tidepool.examples.FsBench", &none, &log)?;
        let (_site, _lower) = (site, lower);
        let mut rig = Rig { number: 0, reader, sender, agent, node, alluxio, _site, _lower };
        // An agent that has just started may not read the topic yet.
        wait_until("the first ceiling", LIMIT, || {
            rig.send(WORKER_BYTES)?;
            std::thread::sleep(Duration::from_millis(500));
            let ceilings = &rig.node.status()?["control"]["other_ceilings"];
            Ok(ceilings[0]["ceiling_bytes"] == WORKER_BYTES)
        })
        .with_context(|| rig.agent.said())?;
        Ok(rig)
    }

    /// The message of a ceiling, as the job sends it.
    fn send(&mut self, ceiling_bytes: u64) -> Result<()> {
        self.number += 1;
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis() as u64;
        let message = json!({
            "form": 1, "cluster": CLUSTER, "node": NODE, "plane": NAME, "number": self.number,
            "sample_start": "", "sample_number": 0, "sample_at_ms": now_ms, "at_ms": now_ms,
            "lease_ms": LEASE_MS, "policy": "dynims",
            "stores": [
                {"name": "tidepool", "ceiling_bytes": OWN_BYTES},
                {"name": STORE, "ceiling_bytes": ceiling_bytes},
            ],
        });
        self.sender.send(CEILINGS, NODE, &[message.to_string()])
    }

    /// Milliseconds from the message of a ceiling until `holds`.
    fn until(&mut self, ceiling_bytes: u64, what: &str, holds: Holds<'_>) -> Result<f64> {
        let begun = Instant::now();
        self.send(ceiling_bytes)?;
        wait_until(what, LIMIT, || holds(&self.alluxio))?;
        Ok(begun.elapsed().as_secs_f64() * 1e3)
    }

    /// A GiB less; what was used last stays.
    fn evict(&mut self) -> Result<f64> {
        let gone: Holds<'_> = &|alluxio| Ok(alluxio.resident_bytes()? <= KEPT_BYTES);
        let ms = self.until(KEPT_BYTES, "a GiB to go", gone)?;
        let left = self.resident_files()?;
        ensure!(left == (0..KEPT_FILES).collect::<Vec<_>>(), "these files were left: {left:?}");
        Ok(ms)
    }

    /// A GiB more.
    fn allocate(&mut self) -> Result<f64> {
        let free: Holds<'_> = &|alluxio| Ok(alluxio.reservations()? == 0);
        self.until(WORKER_BYTES, "the room to be free", free)
    }

    /// Reads all files until they are in memory, then again those that are to stay.
    fn fill(&mut self) -> Result<()> {
        let all = FILES * FILE_BYTES;
        for _ in 0..PASSES_MAX {
            (0..FILES).try_for_each(|file| self.read(file))?;
            // A worker caches beside those who read.
            let is_full = || Ok(self.alluxio.resident_bytes()? == all);
            if wait_until("all files", CACHING, is_full).is_ok() {
                return (0..KEPT_FILES).try_for_each(|file| self.read(file));
            }
        }
        bail!("only {} of {all} bytes came into memory", self.alluxio.resident_bytes()?)
    }

    /// Reads a file.
    fn read(&mut self, file: u64) -> Result<()> {
        let path = format!("{}/{}", self.alluxio.uri, name(file));
        let answer = self.reader.ask(&format!("sequential-heap path={path}"))?;
        ensure!(answer.starts_with("RATE"), "{path}: {answer}");
        Ok(())
    }

    /// Numbers of the files in memory: the master gives them blocks in the order in which they were
    /// first read.
    fn resident_files(&self) -> Result<Vec<u64>> {
        let mut files: Vec<u64> =
            self.alluxio.blocks()?.into_iter().map(|block| (block >> BLOCK_SHIFT) - 1).collect();
        files.sort_unstable();
        Ok(files)
    }
}

/// Whether the worker is as it should be.
type Holds<'a> = &'a dyn Fn(&Alluxio) -> Result<bool>;

fn name(file: u64) -> String {
    format!("file-{file}")
}

/// A node without a store to speak of, whose controller governs the worker.
fn start_node(site: &Site, alluxio: &Alluxio, lower: &Path) -> Result<Node> {
    let text = format!(
        "[[store]]\nkind = \"alluxio\"\nname = \"{STORE}\"\nramdisk = \"{}\"\n\
         capacity_min_bytes = 0\ncapacity_max_bytes = {WORKER_BYTES}\n\
         java = {{ class_path = \"{}\", jar = \"{}\" }}\n",
        alluxio.memory.display(),
        alluxio.class_path,
        artifacts::stores_jar()?.display(),
    );
    let file = site.file("stores.toml", &text)?;
    let arguments = [
        ["--control", "on"],
        ["--control-policy", POLICY],
        ["--memory-min", "8MiB"],
        ["--controlled-stores", &file],
    ];
    let node = Node::start_unmounted(&NodeOptions {
        pfs: lower.to_owned(),
        memory: OWN_BYTES.to_string(),
        arguments: arguments.as_flattened().iter().map(ToString::to_string).collect(),
    })?;
    wait_until("the worker to be governed", LIMIT, || {
        let status = node.status()?;
        let stores = status["control"]["report"]["stores"].as_array().cloned().unwrap_or_default();
        let is_it = |store: &Value| store["name"] == STORE && store["failed"] == false;
        Ok(stores.iter().any(is_it))
    })?;
    Ok(node)
}
