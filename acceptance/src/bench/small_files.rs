//! Many small files: reading all of them through the mount, against the same on a local tmpfs.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::row::{Goal, Row};
use super::{Bench, interleave, time};

const NAME: &str = "small files of 4 KiB, open, read, close";
const LOADING: &str = "small files of 4 KiB, loading";
const KEEPING: &str = "bookkeeping of a cached small file";
const FILE_BYTES: usize = 4_096;
const FILES_PER_DIRECTORY: u64 = 1_000;

/// Reading, loading and bookkeeping.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    if ![NAME, LOADING, KEEPING].iter().any(|name| bench.wants(name)) {
        return Ok(Vec::new());
    }
    let count = bench.scale.small_files;
    let lower = bench.lower.join("small");
    let raw = bench.memory.join("small");
    write(&lower, count)?;
    write(&raw, count)?;
    let node = bench.node(count * 3 * FILE_BYTES as u64 + (256 << 20), &[])?;
    let kept = |name: &str| -> Result<f64> {
        node.status()?["store"][name].as_f64().with_context(|| format!("no store.{name}"))
    };
    let kept_before = kept("bookkeeping_bytes")?;
    let mount = node.mount.join("small");
    let loading = time(|| {
        node.ask(&[Path::new("load"), Path::new("--recursive"), &mount])?;
        Ok(())
    })?;
    let cached = kept("small_files")?;
    let each = (kept("bookkeeping_bytes")? - kept_before) / cached.max(1.0);
    let paths = |root: &Path| -> Vec<PathBuf> { (0..count).map(|i| path(root, i)).collect() };
    let (ours, theirs) = (paths(&mount), paths(&raw));
    let figures = interleave(bench.scale.rounds, || read(&ours), || read(&theirs))?;
    let request_us = request_us(&node.mount)?;
    let raw_us = 1e6 / figures.1.iter().copied().reduce(f64::max).unwrap_or(f64::NAN);
    drop(node);
    fs::remove_dir_all(&lower)?;
    fs::remove_dir_all(&raw)?;
    Ok(vec![
        Row::rates(NAME, "files/s", figures, Goal::RatioAtLeast(0.3))
            .note(format!("{count} files, {cached:.0} of them cached as small files"))
            .note(format!(
                "one request through the mount takes {request_us:.1} us here, a whole file on \
                 tmpfs {raw_us:.1} us: with one request a file the ratio could be {:.2} at most",
                raw_us / request_us
            )),
        Row::rates(LOADING, "files/s", (vec![count as f64 / loading], vec![]), Goal::Shown),
        Row::alone(KEEPING, "B", vec![each], Goal::AtMost(300.0)),
    ])
}

/// Microseconds of the shortest request that the mount answers: attributes of its root. Opening,
/// reading and closing a file takes four of them (look-up, open, read, release).
fn request_us(mount: &Path) -> Result<f64> {
    const REQUESTS: u32 = 20_000;
    let seconds = time(|| {
        for _ in 0..REQUESTS {
            fs::metadata(mount)?;
        }
        Ok(())
    })?;
    Ok(seconds * 1e6 / f64::from(REQUESTS))
}

fn path(root: &Path, index: u64) -> PathBuf {
    root.join(format!("{:04}", index / FILES_PER_DIRECTORY)).join(format!("{index:07}"))
}

fn write(root: &Path, count: u64) -> Result<()> {
    for index in 0..count {
        let path = path(root, index);
        if index % FILES_PER_DIRECTORY == 0 {
            fs::create_dir_all(path.parent().unwrap_or(root))?;
        }
        fs::write(&path, [index as u8; FILE_BYTES])?;
    }
    Ok(())
}

/// Files a second.
fn read(paths: &[PathBuf]) -> Result<f64> {
    let mut buffer = Vec::with_capacity(FILE_BYTES);
    let seconds = time(|| {
        for (index, path) in paths.iter().enumerate() {
            buffer.clear();
            std::io::Read::read_to_end(&mut fs::File::open(path)?, &mut buffer)?;
            let whole = buffer.len() == FILE_BYTES && buffer[FILE_BYTES - 1] == index as u8;
            anyhow::ensure!(whole, "{}: wrong bytes", path.display());
        }
        Ok(())
    })?;
    Ok(paths.len() as f64 / seconds)
}
