//! Benchmark of Spark over the nodes: a worker on each, a job that scans files of `tide://` again
//! and again. Whether its tasks run where their data is, and what comes from elsewhere.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::rig::{BLOCK, Content, NODES, Rig, names};
use crate::arguments::ClusterService;
use crate::bench::row::{Goal, Row};
use crate::environment;
use crate::jvm::java;
use crate::process;

const NAME: &str =
    "Spark on 4 nodes: tasks on the node that holds their data, from the second pass on";
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
    rig.cluster.start_service(ClusterService::Spark)?;
    let passes = scan(rig, &files)?;
    rig.cluster.stop_service(ClusterService::Spark)?;
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

/// All passes; what was read is compared with what was written.
fn scan(rig: &Rig, files: &[Content]) -> Result<Vec<Pass>> {
    let logs = environment::target().join("bench-logs");
    std::fs::create_dir_all(&logs)?;
    let settings = [
        "spark.executor.memory=700m",
        "spark.locality.wait=10s",
        "spark.scheduler.minRegisteredResourcesRatio=1.0",
        "passes.wait=true",
    ];
    let main = "io.tidepool.examples.SparkScan";
    let mut command = rig.cluster.command(NODES[0], "spark")?;
    command.args(settings.map(|setting| format!("-D{setting}")));
    command.args([main, "tide:///spark-*", &BLOCK.to_string(), &PASSES.to_string()]);
    let mut driver = java::Dialogue::of(&mut command, main, &logs.join("spark-scan.log"))?;
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
