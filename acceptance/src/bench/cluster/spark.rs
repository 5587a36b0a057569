//! Benchmark of Spark over the nodes: a worker on each, a job that scans files of `tide://` again
//! and again. Whether its tasks run where their data is, and what comes from elsewhere.

use std::path::PathBuf;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::rig::{BLOCK, Content, LIMIT, NODES, Rig, names};
use crate::bench::row::{Goal, Row};
use crate::bench::wait_until;
use crate::environment;
use crate::jvm::artifacts;
use crate::jvm::daemon::Daemon;
use crate::jvm::hadoop::Hadoop;
use crate::jvm::java::{self, Java};
use crate::jvm::spark::SparkHome;
use crate::process;

const NAME: &str =
    "Spark on 4 nodes: tasks on the node that holds their data, from the second pass on";
const PORT: u16 = 7077;
const PASSES: usize = 4;
const FILES: usize = 16;

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
    let files = rig.write(&names("spark", FILES), bytes)?;
    let spark = Spark::start(rig)?;
    let passes = spark.scan(rig, &files)?;
    drop(spark);
    rig.remove(&files)?;
    rig.empty()?;
    let total = (FILES as u64 * bytes) as f64;
    let later = &passes[1..];
    let shares = later.iter().map(|pass| pass.local_tasks as f64 / pass.tasks as f64).collect();
    let from = |of: fn(&Pass) -> u64| {
        let each: Vec<f64> = later.iter().map(|pass| of(pass) as f64 / total).collect();
        format!("{each:.3?}")
    };
    let note = format!(
        "{} files of {} MiB; of each pass from other nodes {}, from the PFS {}; seconds {:.2?}",
        FILES,
        bytes >> 20,
        from(|pass| pass.peer_bytes),
        from(|pass| pass.pfs_bytes),
        passes.iter().map(|pass| pass.seconds).collect::<Vec<_>>(),
    );
    let row = Row::alone(NAME, "", shares, Goal::AtLeast(0.9)).note(note);
    Ok(vec![Row { larger_is_better: true, ..row }])
}

/// A pass over all files.
struct Pass {
    seconds: f64,
    tasks: u64,
    local_tasks: u64,
    peer_bytes: u64,
    pfs_bytes: u64,
}

/// Master and workers.
struct Spark {
    logs: PathBuf,
    _daemons: Vec<Daemon>,
    home: SparkHome,
    _hadoop: Hadoop,
}

/// A command line of Java on a node.
fn on(rig: &Rig, node: &str, java: &Java, main: &str, arguments: &[&str]) -> Result<Command> {
    let plain = java.command(main, arguments);
    let mut command = rig.cluster.command(node, "java")?;
    command.args(plain.get_args());
    for (name, value) in plain.get_envs() {
        value.map(|value| command.env(name, value));
    }
    command.env("SPARK_LOCAL_HOSTNAME", node).stdin(Stdio::null());
    Ok(command)
}

impl Spark {
    fn start(rig: &Rig) -> Result<Self> {
        let logs = environment::target().join("bench-logs");
        let mut hadoop = Hadoop::new(&environment::target().join("bench"), &logs)?;
        hadoop.add_jar(&artifacts::tide_jar()?);
        // The daemon's usual socket is each node's own.
        let home = SparkHome::new(&hadoop)?;
        let java = home.daemon("256m");
        let port = PORT.to_string();
        let master = ["--host", NODES[0], "--port", &port, "--webui-port", "0"];
        let mut command =
            on(rig, NODES[0], &java, "org.apache.spark.deploy.master.Master", &master)?;
        let mut daemons = vec![Daemon::start("spark-master", &mut command, &logs)?];
        let url = format!("spark://{}:{PORT}", NODES[0]);
        for node in NODES {
            let worker =
                ["--host", node, "--cores", "1", "--memory", "1g", "--webui-port", "0", &url];
            let mut command =
                on(rig, node, &java, "org.apache.spark.deploy.worker.Worker", &worker)?;
            daemons.push(Daemon::start(&format!("spark-{node}"), &mut command, &logs)?);
        }
        let master_log = logs.join("spark-master.log");
        wait_until("the workers of Spark to register", LIMIT, || {
            let text = std::fs::read_to_string(&master_log).unwrap_or_default();
            Ok(text.matches("Registering worker").count() == NODES.len())
        })?;
        Ok(Spark { home, logs, _daemons: daemons, _hadoop: hadoop })
    }

    /// All passes; what was read is compared with what was written.
    fn scan(&self, rig: &Rig, files: &[Content]) -> Result<Vec<Pass>> {
        let java = self
            .home
            .driver("512m", &format!("spark://{}:{PORT}", NODES[0]), "scan")
            .property("spark.driver.host", NODES[0])
            .property("spark.executor.memory", "700m")
            .property("spark.locality.wait", "10s")
            .property("spark.scheduler.minRegisteredResourcesRatio", "1.0")
            .property("passes.wait", true);
        let (record, passes) = (BLOCK.to_string(), PASSES.to_string());
        let arguments = ["tide:///spark-*", &record, &passes];
        let main = "io.tidepool.examples.SparkScan";
        let mut command = on(rig, NODES[0], &java, main, &arguments)?;
        let mut driver = java::Dialogue::of(&mut command, main, &self.logs.join("spark-scan.log"))?;
        let wanted: u64 = files.iter().map(Content::sum).sum();
        let read =
            || Ok::<_, anyhow::Error>((rig.sum("/peer_read_bytes")?, rig.sum("/pfs_read_bytes")?));
        let mut before = (0, 0);
        let mut all = Vec::new();
        while let Some(line) = driver.hear()? {
            if line.starts_with("READY ") {
                before = read()?;
                let _ = driver.say("");
            } else if let Some(pass) = line.strip_prefix("PASS ") {
                let facts: Value = serde_json::from_str(pass)?;
                let number = |name: &str| facts[name].as_u64().context("a pass lacks a number");
                let now = read()?;
                all.push(Pass {
                    seconds: facts["seconds"].as_f64().context("a pass lacks its time")?,
                    tasks: number("tasks")?,
                    local_tasks: number("local_tasks")?,
                    peer_bytes: now.0 - before.0,
                    pfs_bytes: now.1 - before.1,
                });
            } else if let Some(sum) = line.strip_prefix("SUM ") {
                ensure!(sum.trim().parse() == Ok(wanted), "Spark read wrong bytes");
            }
        }
        driver.end()?;
        ensure!(all.len() == PASSES, "Spark ended after {} passes", all.len());
        Ok(all)
    }
}
