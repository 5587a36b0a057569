//! Benchmark of repeated scans: a set 1.33 times as large as the store, read again and again, under
//! each eviction policy.

use anyhow::{Context, Result};
use serde_json::Value;

use super::row::{Goal, Row};
use super::{Bench, warm};
use crate::random_file::write_file;

const NAME: &str = "cyclic scan of 1.33 times the capacity, hit ratio";
const POLICIES: [(&str, Goal); 4] = [
    ("cyclic", Goal::AtLeast(0.71)),
    ("s3fifo", Goal::Shown),
    ("lfu", Goal::Shown),
    ("lru", Goal::Shown),
];
const PASSES: u64 = 5;
const FILES: u64 = 16;

/// One row a policy.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    if !bench.wants(NAME) {
        return Ok(Vec::new());
    }
    let capacity = bench.scale.scan_capacity_bytes;
    // Whole blocks, so that the ends of files take no room of their own.
    let file_bytes = (capacity * 4 / 3 / FILES) >> 22 << 22;
    let names: Vec<String> = (0..FILES).map(|index| format!("scan-{index}")).collect();
    for name in &names {
        write_file(&bench.lower.join(name), file_bytes)?;
    }
    let mut rows = Vec::new();
    for (policy, goal) in POLICIES {
        let node = bench.node(capacity, &["--policy", policy])?;
        let sweep = || -> Result<()> {
            for name in &names {
                warm::sequential(&node.mount.join(name), file_bytes)?;
            }
            Ok(())
        };
        // The first sweep only fills.
        sweep()?;
        let before = pfs_bytes(&node.status()?)?;
        for _ in 0..PASSES {
            sweep()?;
        }
        let missed = pfs_bytes(&node.status()?)? - before;
        let asked = PASSES * FILES * file_bytes;
        let ratio = 1.0 - missed as f64 / asked as f64;
        let row = Row::rates(&format!("{NAME}, {policy}"), "", (vec![ratio], vec![]), goal);
        rows.push(row.note(format!(
            "set {} MiB, capacity {} MiB, {PASSES} passes after the first; misses counted as \
             bytes read from the lower level; optimum {:.2}",
            (FILES * file_bytes) >> 20,
            capacity >> 20,
            capacity as f64 / (FILES * file_bytes) as f64
        )));
    }
    for name in &names {
        std::fs::remove_file(bench.lower.join(name))?;
    }
    Ok(rows)
}

fn pfs_bytes(status: &Value) -> Result<u64> {
    status["pfs_read_bytes"].as_u64().context("status has no pfs_read_bytes")
}
