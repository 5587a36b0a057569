//! Benchmark of MapReduce over the nodes: a node manager on each, a job that reads files of
//! `tide://`, again and again. Whether YARN runs its tasks where their data is.

use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};

use super::rig::{BLOCK, LIMIT, NODES, Rig, names};
use crate::bench::row::{Goal, Row};
use crate::bench::wait_until;
use crate::environment;
use crate::jvm::artifacts;
use crate::jvm::daemon::Daemon;
use crate::jvm::hadoop::Hadoop;
use crate::jvm::java::{Java, Ran};
use crate::process;

const NAME: &str =
    "YARN on 4 nodes: maps on the node that holds their data, from the second pass on";
const PASSES: usize = 3;
const FILES: usize = 8;
/// Variable that has a node's name.
const NODE: &str = "TIDEPOOL_NODE";
/// Where the resource manager is.
const MANAGER: &str = NODES[0];

/// The row, where there is Java.
pub fn run(rig: &mut Rig) -> Result<Vec<Row>> {
    if !rig.wants(NAME) {
        return Ok(Vec::new());
    }
    if process::capture(&mut process::command("mvn", &["-v"])).is_err() {
        eprintln!("x: left out, as there is no Maven here: {NAME}");
        return Ok(Vec::new());
    }
    rig.empty()?;
    let bytes = rig.scale.scan_file_bytes / BLOCK * BLOCK;
    let files = rig.write(&names("yarn", FILES), bytes)?;
    let yarn = Yarn::start(rig)?;
    let mut shares = Vec::new();
    for pass in 0..PASSES {
        let share = yarn.read(rig, pass, FILES as u64 * bytes)?;
        if pass > 0 {
            shares.push(share);
        }
    }
    drop(yarn);
    rig.remove(&files)?;
    rig.empty()?;
    let note = format!("{FILES} files of {} MiB", bytes >> 20);
    let row = Row::alone(NAME, "", shares, Goal::AtLeast(0.9)).note(note);
    Ok(vec![Row { larger_is_better: true, ..row }])
}

/// The managers.
struct Yarn {
    hadoop: Hadoop,
    _daemons: Vec<Daemon>,
}

/// A command line of Java on a node.
fn on(rig: &Rig, node: &str, java: &Java, main: &str, arguments: &[String]) -> Result<Command> {
    let plain = java.command(main, arguments);
    let mut command = rig.cluster.command(node, "java")?;
    command.args(plain.get_args()).stdin(Stdio::null());
    for (name, value) in plain.get_envs() {
        value.map(|value| command.env(name, value));
    }
    // The configuration names directories by it.
    command.env(NODE, node);
    Ok(command)
}

impl Yarn {
    fn start(rig: &Rig) -> Result<Self> {
        let logs = environment::target().join("bench-logs");
        let mut hadoop = Hadoop::new(&environment::target().join("bench"), &logs)?;
        hadoop.add_jar(&artifacts::tide_jar()?);
        hadoop.spread_over_nodes(MANAGER, NODE)?;
        let manager = "org.apache.hadoop.yarn.server.resourcemanager.ResourceManager";
        let java = hadoop.server()?;
        let mut command = on(rig, MANAGER, &java, manager, &[])?;
        let mut daemons = vec![Daemon::start("yarn-manager", &mut command, &logs)?];
        let worker = "org.apache.hadoop.yarn.server.nodemanager.NodeManager";
        for node in NODES {
            let mut command = on(rig, node, &java, worker, &[])?;
            daemons.push(Daemon::start(&format!("yarn-{node}"), &mut command, &logs)?);
        }
        let all = format!("Total Nodes:{}", NODES.len());
        wait_until("the node managers to register", LIMIT, || {
            let main = "org.apache.hadoop.yarn.client.cli.NodeCLI";
            let java = hadoop.java()?.light();
            let mut command = on(rig, MANAGER, &java, main, &["-list".to_owned()])?;
            let ran = Ran::of(&mut command, main, &logs.join("yarn-nodes.log"));
            Ok(ran.is_ok_and(|ran| ran.text.contains(&all)))
        })?;
        Ok(Yarn { hadoop, _daemons: daemons })
    }

    /// Reads all files by a job; the share of its maps that ran where their data is.
    fn read(&self, rig: &Rig, pass: usize, bytes: u64) -> Result<f64> {
        let output = self.hadoop.work().join(format!("out-{pass}"));
        let words = ["tide:///yarn-*", &format!("file://{}", output.display()), "no such text"];
        let arguments: Vec<String> = words.iter().map(ToString::to_string).collect();
        let main = "org.apache.hadoop.examples.Grep";
        let java = self.hadoop.java()?.light();
        let mut command = on(rig, MANAGER, &java, main, &arguments)?;
        let log = self.hadoop.logs.join(format!("yarn-job-{pass}.log"));
        let ran = Ran::of(&mut command, main, &log)?;
        // It runs two jobs, and sorts in the second one what it found in the first.
        let text = ran.text.split("Running job").nth(1).unwrap_or_default().to_owned();
        let first = Ran { text };
        let counter = |name: &str| first.counter(name);
        let read = counter("Bytes Read").context("the job tells no bytes")?;
        ensure!(read >= bytes, "the job read {read} bytes of {bytes}");
        let maps = counter("Launched map tasks").context("the job tells no tasks")?;
        Ok(counter("Data-local map tasks").unwrap_or(0) as f64 / maps as f64)
    }
}
