//! Benchmark of both buffers of the two-level design: the upper one, in which applications read
//! (`read_buffer_bytes`, 1 MiB), and the lower one, in which the node reads the PFS
//! (`transfer_bytes`, 4 MiB), each beside sizes from 64 KiB to 16 MiB.

use std::fs::File;
use std::io::Read;
use std::path::Path;

use anyhow::Result;

use super::row::{Goal, Row};
use super::{Bench, forget, hadoop, interleave, time, warm};
use crate::random_file::write_file;

const UPPER: &str = "upper buffer";
const LOWER: &str = "lower buffer";
const SIZES: [(&str, u64); 5] = [
    ("64 KiB", 64 << 10),
    ("256 KiB", 256 << 10),
    ("1 MiB", 1 << 20),
    ("4 MiB", 4 << 20),
    ("16 MiB", 16 << 20),
];
const UPPER_DEFAULT: u64 = 1 << 20;
const LOWER_DEFAULT: u64 = 4 << 20;
/// Largest request that every kernel with FUSE takes.
const KERNEL_LIMIT: &str = "/proc/sys/fs/fuse/max_pages_limit";

/// All rows: `ours` is the size in the name, the reference is the default.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    if bench.names(UPPER) {
        rows.extend(upper(bench)?);
        rows.extend(hadoop::buffers(bench, UPPER, &SIZES)?);
    }
    if bench.names(LOWER) {
        rows.extend(lower(bench)?);
    }
    Ok(rows)
}

/// A resident file through the mount, in reads of 4 MiB that the kernel cuts into requests.
fn upper(bench: &Bench) -> Result<Vec<Row>> {
    let bytes = bench.scale.warm_bytes / 4;
    let path = bench.lower.join("upper");
    write_file(&path, bytes)?;
    let node = |size: u64| {
        let size = size.to_string();
        let node =
            bench.node(bytes * 2, &["--passthrough", "off", "--read-buffer-bytes", &size])?;
        warm::load(&node, &node.mount.join("upper"))?;
        Ok::<_, anyhow::Error>(node)
    };
    let usual = node(UPPER_DEFAULT)?;
    let mut rows = Vec::new();
    for (words, size) in SIZES.into_iter().filter(|(_, size)| *size != UPPER_DEFAULT) {
        let other = node(size)?;
        let figures = interleave(
            bench.scale.rounds,
            || in_large_reads(&other.mount.join("upper"), bytes),
            || in_large_reads(&usual.mount.join("upper"), bytes),
        )?;
        let name = format!("{UPPER} of {words} beside 1 MiB: mount without passthrough");
        let limit = std::fs::read_to_string(KERNEL_LIMIT).unwrap_or_else(|_| "256".into());
        let note = format!("the kernel takes {} pages a request at most", limit.trim());
        rows.push(Row::rates(&name, "MB/s", figures, Goal::Shown).note(note));
    }
    drop(usual);
    std::fs::remove_file(&path)?;
    Ok(rows)
}

/// A file read from the lower level through the mount.
fn lower(bench: &Bench) -> Result<Vec<Row>> {
    let bytes = bench.scale.cold_bytes;
    let path = bench.lower.join("lower");
    write_file(&path, bytes)?;
    let node = |size: u64| {
        let (transfer, block) = (size.to_string(), size.max(LOWER_DEFAULT).to_string());
        bench.node(bytes * 2, &["--transfer-bytes", &transfer, "--block-bytes", &block])
    };
    let usual = node(LOWER_DEFAULT)?;
    let mut rows = Vec::new();
    for (words, size) in SIZES.into_iter().filter(|(_, size)| *size != LOWER_DEFAULT) {
        let other = node(size)?;
        let cold = |node: &crate::node::Node| {
            node.ask(&["evict", "--all"])?;
            forget(&path)?;
            warm::sequential(&node.mount.join("lower"), bytes)
        };
        let figures = interleave(bench.scale.rounds, || cold(&other), || cold(&usual))?;
        let name = format!("{LOWER} of {words} beside 4 MiB: cold reads through the mount");
        rows.push(Row::rates(&name, "MB/s", figures, Goal::Shown));
    }
    drop(usual);
    std::fs::remove_file(&path)?;
    Ok(rows)
}

/// Megabytes a second of reading a file in pieces of 4 MiB.
fn in_large_reads(path: &Path, bytes: u64) -> Result<f64> {
    let mut buffer = vec![0; 4 << 20];
    let seconds = time(|| {
        let mut file = File::open(path)?;
        while file.read(&mut buffer)? > 0 {}
        Ok(())
    })?;
    Ok(bytes as f64 / seconds / 1e6)
}
