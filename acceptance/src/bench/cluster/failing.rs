//! Benchmark of reads whose holder is paused or killed meanwhile: the longest read, beside the
//! longest of a cold file of the same size, and when the others know.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Context, Result};
use serde_json::Value;

use super::rig::{BLOCK, Content, LIMIT, NODES, Rig, Way, names};
use crate::bench::row::{Goal, Row, median};
use crate::bench::wait_until;

const NAME: &str = "the holder fails while its file is read";
const HOLDER: &str = "c1";
const READER: &str = "c2";
/// Silence of a peer that is borne, in seconds.
const DEADLINE_S: f64 = 0.5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Failure {
    Paused,
    Killed,
}

/// Longest reads, and the time of detection.
pub fn run(rig: &mut Rig) -> Result<Vec<Row>> {
    if !rig.wants(NAME) {
        return Ok(Vec::new());
    }
    let (mut cold, mut detected) = (Vec::new(), Vec::new());
    let mut longest = [const { Vec::new() }; 2];
    for round in 0..rig.scale.rounds {
        rig.empty()?;
        let bytes = rig.scale.failing_bytes;
        let files = rig.write(&names(&format!("failing-{round}"), 3), bytes)?;
        rig.cluster.drop_caches()?;
        cold.push(rig.read(READER, Way::Tide, &files[2])?.longest_s);
        for (at, failure) in [Failure::Paused, Failure::Killed].into_iter().enumerate() {
            rig.read(HOLDER, Way::Tide, &files[at])?;
            rig.cluster.drop_caches()?;
            let (slowest, seen_s) = fail(rig, &files[at], failure)?;
            longest[at].push(slowest);
            detected.extend(seen_s);
            rig.wait_joined(&NODES)?;
        }
        rig.remove(&files)?;
    }
    let goal = Goal::AtMost(median(&cold).unwrap_or_default() + DEADLINE_S);
    let [paused, killed] = longest;
    let row = |what: &str, ours, reference, goal| Row {
        larger_is_better: false,
        ..Row::rates(&format!("{NAME}: {what}"), "s", (ours, reference), goal)
    };
    let reads = "longest read of 1 MiB; of a cold file";
    Ok(vec![
        row(&format!("paused, {reads}"), paused, cold.clone(), goal),
        row(&format!("killed, {reads}"), killed, cold, goal),
        row("killed, until the reader knows", detected, Vec::new(), Goal::AtMost(3.0)),
    ])
}

/// Lets the holder fail when a quarter was read. Returns the longest read of all, and where it was
/// killed the seconds until it was missed.
fn fail(rig: &Rig, file: &Content, failure: Failure) -> Result<(f64, Option<f64>)> {
    let (done, ended) = (AtomicU64::new(0), AtomicBool::new(false));
    let blocks = file.bytes / BLOCK;
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| {
            let reading = rig.read_blocks(READER, Way::Tide, file, 0..blocks, &done);
            ended.store(true, Ordering::Release);
            reading
        });
        wait_until("a quarter to be read", LIMIT, || {
            Ok(done.load(Ordering::Relaxed) >= blocks / 4 || ended.load(Ordering::Acquire))
        })?;
        let failed = Instant::now();
        match failure {
            Failure::Paused => rig.cluster.pause(HOLDER, false)?,
            Failure::Killed => rig.cluster.kill(HOLDER, false)?,
        }
        let mut seen_s = None;
        if failure == Failure::Killed {
            wait_until("the reader to know", LIMIT, || Ok(!is_alive(rig)?))?;
            seen_s = Some(failed.elapsed().as_secs_f64());
        }
        let reading = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        match failure {
            Failure::Paused => rig.cluster.resume(HOLDER)?,
            Failure::Killed => rig.cluster.start(HOLDER)?,
        }
        Ok((reading?.longest_s, seen_s))
    })
}

fn is_alive(rig: &Rig) -> Result<bool> {
    let status = rig.status(READER)?;
    let members = status.pointer("/cluster/members").and_then(Value::as_array);
    let members = members.context("the node is of no cluster")?;
    Ok(members.iter().any(|it| it["node"] == HOLDER && it["state"] != "down"))
}
