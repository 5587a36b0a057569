//! Benchmark of MapReduce over the nodes: a node manager on each, a job that reads files of
//! `tide://`, again and again. Whether YARN runs its tasks where their data is.

use std::process::Stdio;

use anyhow::{Context, Result, ensure};

use super::rig::{BLOCK, NODES, Rig, names};
use crate::arguments::ClusterService;
use crate::bench::row::{Goal, Row};
use crate::environment;
use crate::jvm::java::Ran;
use crate::process;

const NAME: &str =
    "YARN on 4 nodes: maps on the node that holds their data, from the second pass on";
const PASSES: usize = 3;
const FILES: usize = 8;

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
    rig.cluster.start_service(ClusterService::Yarn)?;
    let mut shares = Vec::new();
    for pass in 0..PASSES {
        let share = read(rig, pass, FILES as u64 * bytes)?;
        if pass > 0 {
            shares.push(share);
        }
    }
    rig.cluster.stop_service(ClusterService::Yarn)?;
    rig.remove(&files)?;
    rig.empty()?;
    let note = format!("{FILES} files of {} MiB", bytes >> 20);
    let row = Row::alone(NAME, "", shares, Goal::AtLeast(0.9)).note(note);
    Ok(vec![Row { larger_is_better: true, ..row }])
}

/// Reads all files by a job; the share of its maps that ran where their data is.
fn read(rig: &Rig, pass: usize, bytes: u64) -> Result<f64> {
    let logs = environment::target().join("bench-logs");
    std::fs::create_dir_all(&logs)?;
    let output = rig.cluster.plan().directory.join(format!("out-{pass}"));
    let main = "org.apache.hadoop.examples.Grep";
    let output = format!("file://{}", output.display());
    let words = [main, "tide:///yarn-*", &output, "no such text"];
    let mut command = rig.cluster.command(NODES[0], "hadoop")?;
    command.args(words).stdin(Stdio::null());
    let ran = Ran::of(&mut command, main, &logs.join(format!("yarn-job-{pass}.log")))?;
    // It runs two jobs, and sorts in the second one what it found in the first.
    let text = ran.text.split("Running job").nth(1).unwrap_or_default().to_owned();
    let first = Ran { text };
    let counter = |name: &str| first.counter(name);
    let read = counter("Bytes Read").context("the job tells no bytes")?;
    ensure!(read >= bytes, "the job read {read} bytes of {bytes}");
    let maps = counter("Launched map tasks").context("the job tells no tasks")?;
    Ok(counter("Data-local map tasks").unwrap_or(0) as f64 / maps as f64)
}
