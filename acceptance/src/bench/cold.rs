//! Benchmark of reads with all caches empty and of writes until durable, through the mount and on
//! the bare lower level.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use anyhow::Result;

use super::row::{Goal, Row};
use super::{Bench, forget, interleave, time, warm};
use crate::random_file::write_file;

const READ: &str = "cold sequential read through the mount";
const WRITE: &str = "through write with close";

/// Both rows.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    if bench.wants(READ) {
        rows.push(reading(bench)?);
    }
    if bench.wants(WRITE) {
        rows.push(writing(bench)?);
    }
    Ok(rows)
}

fn reading(bench: &Bench) -> Result<Row> {
    let bytes = bench.scale.cold_bytes;
    let lower = bench.lower.join("cold");
    write_file(&lower, bytes)?;
    let node = bench.node(bytes * 2, &[])?;
    let mount = node.mount.join("cold");
    let figures = interleave(
        bench.scale.rounds,
        || {
            node.ask(&["evict", "--all"])?;
            forget(&lower)?;
            warm::sequential(&mount, bytes)
        },
        || {
            forget(&lower)?;
            warm::sequential(&lower, bytes)
        },
    )?;
    drop(node);
    std::fs::remove_file(&lower)?;
    Ok(Row::rates(READ, "MB/s", figures, Goal::RatioAtLeast(0.95)))
}

fn writing(bench: &Bench) -> Result<Row> {
    let bytes = bench.scale.write_bytes;
    let node = bench.node(bytes * 2, &[])?;
    let mut number = 0;
    let mut next = || {
        number += 1;
        format!("written-{number}")
    };
    let mut names: Vec<String> = Vec::new();
    let mut other_names: Vec<String> = Vec::new();
    for _ in 0..bench.scale.rounds {
        names.push(next());
        other_names.push(next());
    }
    let (mut ours, mut others) = (names.into_iter(), other_names.into_iter());
    let figures = interleave(
        bench.scale.rounds,
        || write(&node.mount, &ours.next().unwrap_or_default(), bytes, false),
        || write(&bench.lower, &others.next().unwrap_or_default(), bytes, true),
    )?;
    drop(node);
    let row = Row::rates(WRITE, "MB/s", figures, Goal::RatioAtLeast(0.95));
    Ok(row.note("reference: write, fsync of file and directory"))
}

/// Megabytes a second of writing a new file until it is durable; the file is removed again.
fn write(directory: &Path, name: &str, bytes: u64, sync: bool) -> Result<f64> {
    let path = directory.join(name);
    let piece = vec![0x5a; 1 << 20];
    let seconds = time(|| {
        let mut file = File::create(&path)?;
        for _ in 0..bytes >> 20 {
            file.write_all(&piece)?;
        }
        if sync {
            file.sync_all()?;
            File::open(directory)?.sync_all()?;
        }
        drop(file);
        Ok(())
    })?;
    std::fs::remove_file(&path)?;
    Ok(bytes as f64 / seconds / 1e6)
}
