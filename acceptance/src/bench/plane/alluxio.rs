//! Alluxio under the plane: a real worker that is full, on a node whose controller holds it below
//! the ceilings of the job. Measured is the time from the job's decision until its memory has lost
//! a GiB, and until it may have that again.

use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use serde_json::Value;

use super::site::{CLUSTER, Site, player};
use super::{Bench, load};
use crate::bench::row::{Goal, Row};
use crate::bench::wait_until;
use crate::environment;
use crate::jvm::alluxio::Alluxio;
use crate::jvm::artifacts;
use crate::jvm::daemon::Daemon;
use crate::jvm::java::{self, Java};
use crate::node::{Node, NodeOptions};
use crate::scratch::Scratch;

const NAME: &str = "plane-alluxio";
const NODE: &str = "node2";
/// What is asked back, and may come again.
const MOVED_BYTES: u64 = 1 << 30;
/// What the worker keeps.
const KEPT_BYTES: u64 = 256 << 20;
const FILE_BYTES: u64 = 64 << 20;
/// Most of a second each.
const GOAL_MS: f64 = 1000.0;
const LIMIT: Duration = Duration::from_secs(120);
const SETTLE: Duration = Duration::from_secs(5);
/// Shares of used memory that are too little, and enough, for the stores.
const SHORT: &str = "0.01";
const PLENTY: &str = "0.999";

/// Whether it is asked for by its name: it downloads Alluxio.
pub fn is_wanted(bench: &Bench) -> bool {
    bench.only.as_ref().is_some_and(|only| only.contains("alluxio"))
}

/// Both rows.
pub fn run(bench: &Bench, pfs: Option<&Path>) -> Result<Vec<Row>> {
    if !is_wanted(bench) {
        return Ok(Vec::new());
    }
    let default = environment::target().join("bench");
    let lower = Scratch::below(pfs.unwrap_or(&default))?;
    let mut site = Site::start(1)?;
    let memory_bytes = MOVED_BYTES + KEPT_BYTES;
    let alluxio = Alluxio::start(lower.path(), memory_bytes, &site.logs)?;
    let node = start_node(&site, &alluxio, lower.path())?;
    let (mut evicted, mut allocated) = (Vec::new(), Vec::new());
    for _ in 0..bench.scale.rounds {
        fill(&site, &alluxio, memory_bytes / FILE_BYTES)?;
        evicted.push(evict(&mut site, &node, &alluxio)?);
        allocated.push(allocate(&mut site, &node)?);
    }
    let row = |what: &str, figures| {
        Row::alone(&format!("{NAME}, {what} of 1 GiB"), "ms", figures, Goal::AtMost(GOAL_MS))
    };
    let note = "from the job's decision until the memory file system has lost the bytes";
    let grown = "from the job's decision until the node says that the worker may have them; that \
                 comes up to 0.1 s later";
    Ok(vec![
        row("evict", evicted).note(format!("{note}; {}", load()?)),
        row("allocate", allocated).note(grown),
    ])
}

/// A node without a store to speak of, whose controller governs the worker.
fn start_node(site: &Site, alluxio: &Alluxio, lower: &Path) -> Result<Node> {
    let text = format!(
        "[[store]]\nkind = \"alluxio\"\nname = \"alluxio\"\nramdisk = \"{}\"\n\
         capacity_min_bytes = {KEPT_BYTES}\ncapacity_max_bytes = {}\n\
         java = {{ class_path = \"{}\", jar = \"{}\" }}\n",
        alluxio.memory.display(),
        MOVED_BYTES + KEPT_BYTES,
        alluxio.class_path,
        artifacts::stores_jar()?.display(),
    );
    let file = site.file("stores.toml", &text)?;
    let arguments = ["--control", "on", "--memory-min", "8MiB", "--controlled-stores", &file];
    let node = Node::start_unmounted(&NodeOptions {
        pfs: lower.to_owned(),
        memory: "64MiB".to_owned(),
        arguments: arguments.iter().map(ToString::to_string).collect(),
    })?;
    wait_until("the worker to be governed", LIMIT, || Ok(!store(&node)?["name"].is_null()))?;
    Ok(node)
}

/// What the controller says of the worker.
fn store(node: &Node) -> Result<Value> {
    let status = node.status()?;
    let stores = status["control"]["report"]["stores"].as_array().cloned().unwrap_or_default();
    let is_it = |store: &Value| store["name"] == "alluxio" && store["failed"] == false;
    Ok(stores.into_iter().find(is_it).unwrap_or_default())
}

/// Files until its memory is full.
fn fill(site: &Site, alluxio: &Alluxio, files: u64) -> Result<()> {
    let project = artifacts::project("hadoop")?;
    let jar = project.jar.display().to_string();
    let java = Java::new(java::class_path(&[&alluxio.class_path, &jar]), "512m");
    let log = site.logs.join("plane-alluxio-fill.log");
    let none: [&str; 0] = [];
    let mut writer = java.talk("io.tidepool.examples.FsBench", &none, &log)?;
    for file in 0..files {
        let path = format!("{}/file-{file}", alluxio.uri);
        let answer = writer.ask(&format!("write path={path} bytes={FILE_BYTES}"))?;
        anyhow::ensure!(answer.starts_with("RATE"), "{path}: {answer}");
    }
    let used = used_bytes(&alluxio.memory)?;
    anyhow::ensure!(used >= MOVED_BYTES, "only {used} bytes are in its memory");
    Ok(())
}

/// The job finds the node short of memory: milliseconds until the bytes are gone.
fn evict(site: &mut Site, node: &Node, alluxio: &Alluxio) -> Result<f64> {
    let until = |_: &Node| Ok(used_bytes(&alluxio.memory)? <= KEPT_BYTES);
    under(site, node, (SHORT, KEPT_BYTES), &until)
}

/// The job finds room: milliseconds until the worker may have all again.
fn allocate(site: &mut Site, node: &Node) -> Result<f64> {
    let most_bytes = MOVED_BYTES + KEPT_BYTES;
    let until = |node: &Node| Ok(store(node)?["capacity_bytes"] == most_bytes);
    under(site, node, (PLENTY, most_bytes), &until)
}

/// Starts job and agent, and answers the milliseconds from the first decision for `ceiling_bytes`
/// until it is so. They go on for a moment, and end.
fn under(
    site: &mut Site,
    node: &Node,
    (used_share, ceiling_bytes): (&str, u64),
    until: &dyn Fn(&Node) -> Result<bool>,
) -> Result<f64> {
    let mut command = player(site, "listen")?;
    command.args(["--node", NODE, "--partitions", &site.partitions.to_string()]);
    command.stdin(std::process::Stdio::piped());
    let listener = Daemon::start("plane-listen", &mut command, &site.logs)?;
    listener.wait_for("its first line", || listener.said().contains("listening"))?;
    let arguments = ["--policy", "dynims", "--used-share", used_share];
    site.start_job(&arguments.map(str::to_owned))?;
    let mut command = node.command(&["plane", "agent", "--name", NODE]);
    command.args(["--cluster", CLUSTER, "--kafka", &site.kafka.address()]);
    let agent = Daemon::start("plane-agent", &mut command, &site.logs)?;
    wait_until("the worker to follow", LIMIT, || until(node))?;
    let done_ms = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs_f64() * 1e3;
    std::thread::sleep(SETTLE);
    let decided_ms = decided_ms(&listener.said(), ceiling_bytes).context("no such ceiling came")?;
    drop(agent);
    site.job = None;
    Ok(done_ms - decided_ms)
}

/// When the job first said that the worker may hold so much.
fn decided_ms(said: &str, ceiling_bytes: u64) -> Option<f64> {
    let messages = said.lines().filter_map(|line| line.split_once(" {"));
    let mut messages =
        messages.filter_map(|(_, it)| serde_json::from_str::<Value>(&format!("{{{it}")).ok());
    let is_it = |store: &Value| {
        store["name"] == "alluxio" && store["ceiling_bytes"].as_u64() == Some(ceiling_bytes)
    };
    let first = messages.find(|message| {
        message["stores"].as_array().is_some_and(|stores| stores.iter().any(is_it))
    });
    first?["at_ms"].as_f64()
}

fn used_bytes(memory: &Path) -> Result<u64> {
    let facts = rustix::fs::statvfs(memory)?;
    Ok((facts.f_blocks - facts.f_bfree) * facts.f_frsize)
}
