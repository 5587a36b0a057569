//! Benchmark of the costs of a node without readers: giving memory back, starting, and idling.

use std::fs;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::row::{Goal, Row};
use super::{Bench, wait_until, warm};
use crate::random_file::write_file;
use crate::{environment, process};

const FREEING: &str = "freeing by resize until the memory is back";
const KEEPING: &str = "bookkeeping of a resident block";
const STARTING: &str = "start of a node to the first byte";
const IDLE: &str = "memory of an idle daemon";
const HUGE_GOAL_MS: f64 = 60.0;
const SMALL_PAGES_GOAL_MS: f64 = 1_000.0;
/// The rest may be other programs' doing.
const BACK: f64 = 0.95;

/// Freeing, with 2 MiB pages and without, and the bookkeeping of blocks.
pub fn freeing(bench: &Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    if !bench.wants(FREEING) && !bench.wants(KEEPING) {
        return Ok(rows);
    }
    let bytes = bench.scale.free_bytes;
    let file_bytes = 1 << 30;
    let files: Vec<String> =
        (0..bytes.div_ceil(file_bytes)).map(|index| format!("free-{index}")).collect();
    for name in &files {
        write_file(&bench.lower.join(name), file_bytes.min(bytes))?;
    }
    for (pages, goal) in [("auto", HUGE_GOAL_MS), ("off", SMALL_PAGES_GOAL_MS)] {
        rows.extend(free_once(bench, pages, goal, &files)?);
    }
    for name in &files {
        fs::remove_file(bench.lower.join(name))?;
    }
    rows.retain(|row| bench.wants(&row.name));
    Ok(rows)
}

fn free_once(bench: &Bench, pages: &str, goal_ms: f64, files: &[String]) -> Result<Vec<Row>> {
    let bytes = bench.scale.free_bytes;
    let node = bench.node(bytes + (64 << 20), &["--huge-pages", pages])?;
    let status = node.status()?;
    let huge = status["store"]["huge_pages"].as_bool().unwrap_or(false);
    if pages == "auto" && !huge {
        let goal = Goal::Shown;
        let row = Row::alone(&format!("{FREEING}, 2 MiB pages"), "ms", vec![], goal);
        return Ok(vec![row.note("this machine gives no 2 MiB pages for shared memory")]);
    }
    let kept_before = status["store"]["bookkeeping_bytes"].as_f64().unwrap_or(0.0);
    let (mut times, mut reported, mut back) = (Vec::new(), Vec::new(), Vec::new());
    let mut kept = 0.0;
    for _ in 0..bench.scale.rounds {
        node.ask(&["resize", &(bytes + (64 << 20)).to_string()])?;
        for name in files {
            warm::load(&node, &node.mount.join(name))?;
        }
        let store = node.status()?["store"].clone();
        let resident = store["resident_bytes"].as_f64().context("no store.resident_bytes")?;
        let block = store["block_bytes"].as_f64().context("no store.block_bytes")?;
        kept = (store["bookkeeping_bytes"].as_f64().unwrap_or(0.0) - kept_before)
            / (resident / block).max(1.0);
        // Of shared memory, because other programs move the free memory meanwhile.
        let wanted = environment::memory_field("Shmem")?.saturating_sub((resident * BACK) as u64);
        let free_before = environment::memory_field("MemFree")? as f64;
        let started = Instant::now();
        let answer = node.ask(&["resize", "0", "--json"])?;
        wait_until("the memory to come back", Duration::from_secs(20), || {
            Ok(environment::memory_field("Shmem")? <= wanted)
        })?;
        times.push(started.elapsed().as_secs_f64() * 1e3);
        back.push((environment::memory_field("MemFree")? as f64 - free_before) / resident);
        let answer: serde_json::Value = serde_json::from_str(&answer)?;
        reported.extend(answer["elapsed_ms"].as_f64());
    }
    let kind = if huge { "2 MiB pages" } else { "4 KiB pages" };
    let said = super::row::median(&reported).unwrap_or(f64::NAN);
    let back = super::row::median(&back).unwrap_or(f64::NAN) * 100.0;
    let row = Row::alone(&format!("{FREEING}, {kind}"), "ms", times, Goal::AtMost(goal_ms)).note(
        format!(
            "{} MiB; the node itself says {said:.1} ms; free memory rose by {back:.0} % of it",
            bytes >> 20
        ),
    );
    let kept = Row::alone(&format!("{KEEPING}, {kind}"), "B", vec![kept], Goal::AtMost(64.0));
    Ok(vec![row, kept])
}

/// Starting and idling.
pub fn starting(bench: &Bench) -> Result<Vec<Row>> {
    if !bench.wants(STARTING) && !bench.wants(IDLE) {
        return Ok(Vec::new());
    }
    let name = "first";
    fs::write(bench.lower.join(name), b"byte")?;
    let (mut times, mut memory) = (Vec::new(), Vec::new());
    for _ in 0..bench.scale.rounds {
        let started = Instant::now();
        let node = bench.node(1 << 30, &[])?;
        anyhow::ensure!(fs::read(node.mount.join(name))? == b"byte", "wrong bytes");
        times.push(started.elapsed().as_secs_f64() * 1e3);
        std::thread::sleep(Duration::from_millis(300));
        memory.push(process::resident_bytes(node.process_id()?)? as f64 / f64::from(1 << 20));
    }
    fs::remove_file(bench.lower.join(name))?;
    let rows = [
        Row::alone(STARTING, "ms", times, Goal::AtMost(500.0)),
        Row::alone(IDLE, "MiB", memory, Goal::AtMost(30.0)),
    ];
    Ok(rows.into_iter().filter(|row| bench.wants(&row.name)).collect())
}
