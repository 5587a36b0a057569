//! Reads of a resident file through the mount, against the same file on a raw tmpfs.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::Path;

use anyhow::{Context, Result};
use rustix::process::Pid;
use rustix::thread::CpuSet;

use super::row::{Goal, Row};
use super::{Bench, interleave, time};
use crate::node::Node;
use crate::random_file::write_file;

const SEQUENTIAL: &str = "warm sequential 1 MiB reads through the mount";
const RANDOM: &str = "warm random 4 KiB reads through the mount";
const HUGE: &str = ", against tmpfs in 2 MiB pages";

/// A way to serve reads.
struct Way {
    /// In the names of its rows.
    suffix: &'static str,
    arguments: &'static [&'static str],
    /// Reader and node share one processor: what the way costs without the wake-up of another one,
    /// which is dear where processors are virtual.
    one_processor: bool,
}

const WAYS: [Way; 3] = [
    Way { suffix: "", arguments: &[], one_processor: false },
    Way { suffix: ", no passthrough", arguments: &["--passthrough", "off"], one_processor: false },
    Way {
        suffix: ", no passthrough, reader and node on one processor",
        arguments: &["--passthrough", "off"],
        one_processor: true,
    },
];

/// Both rows of each way, against both kinds of tmpfs.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    if !bench.wants(SEQUENTIAL) && !bench.wants(RANDOM) {
        return Ok(Vec::new());
    }
    let lower = bench.lower.join("warm");
    write_file(&lower, bench.scale.warm_bytes)?;
    let mut rows = Vec::new();
    for way in &WAYS {
        rows.extend(rows_of(bench, way, &lower)?);
    }
    std::fs::remove_file(&lower)?;
    Ok(rows)
}

fn rows_of(bench: &Bench, way: &Way, lower: &Path) -> Result<Vec<Row>> {
    let bytes = bench.scale.warm_bytes;
    let node = bench.node(bytes * 5 / 2, way.arguments)?;
    let mount = node.mount.join("warm");
    load(&node, &mount)?;
    let passes = is_passed_through(&node, &mount)?;
    let _together = way.one_processor.then(|| Together::with(node.process_id()?)).transpose()?;
    let mut rows = Vec::new();
    let places = [("", Some(&bench.memory)), (HUGE, bench.huge_memory.as_ref())];
    for (against, place) in places {
        let Some(place) = place else { continue };
        let raw = place.join("warm");
        std::fs::copy(lower, &raw)?;
        let counts = against.is_empty() && !way.one_processor;
        if bench.wants(SEQUENTIAL) {
            let goal = if passes { 0.95 } else { 0.7 };
            let figures = interleave(
                bench.scale.rounds,
                || sequential(&mount, bytes),
                || sequential(&raw, bytes),
            )?;
            let name = format!("{SEQUENTIAL}{}{against}", way.suffix);
            rows.push(row(&name, "MB/s", figures, passes, counts.then_some(goal)));
        }
        if bench.wants(RANDOM) {
            let reads = bench.scale.random_reads;
            let figures = interleave(
                bench.scale.rounds,
                || random(&mount, bytes, reads),
                || random(&raw, bytes, reads),
            )?;
            let name = format!("{RANDOM}{}{against}", way.suffix);
            rows.push(row(&name, "reads/s", figures, passes, (counts && passes).then_some(0.75)));
        }
        std::fs::remove_file(&raw)?;
    }
    Ok(rows)
}

fn row(
    name: &str,
    unit: &'static str,
    figures: (Vec<f64>, Vec<f64>),
    passes: bool,
    goal: Option<f64>,
) -> Row {
    let how = if passes { "FUSE passthrough" } else { "answers of the daemon, no passthrough" };
    Row::rates(name, unit, figures, goal.map_or(Goal::Shown, Goal::RatioAtLeast)).note(how)
}

/// Keeps this thread and all threads of a process on one processor, until it is dropped.
struct Together {
    before: CpuSet,
}

impl Together {
    fn with(process_id: u32) -> Result<Self> {
        let before = rustix::thread::sched_getaffinity(None)?;
        let first = (0..CpuSet::MAX_CPU).find(|number| before.is_set(*number));
        let mut one = CpuSet::new();
        one.set(first.context("no processor")?);
        for entry in std::fs::read_dir(format!("/proc/{process_id}/task"))? {
            let thread: i32 = entry?.file_name().to_string_lossy().parse()?;
            // One that ended meanwhile needs no place.
            let _ = rustix::thread::sched_setaffinity(Pid::from_raw(thread), &one);
        }
        rustix::thread::sched_setaffinity(None, &one)?;
        Ok(Together { before })
    }
}

impl Drop for Together {
    fn drop(&mut self) {
        let _ = rustix::thread::sched_setaffinity(None, &self.before);
    }
}

/// Loads a file wholly, by its path.
pub fn load(node: &Node, path: &Path) -> Result<()> {
    node.ask(&[Path::new("load"), path]).map(drop)
}

/// Whether reads of an open reach the kernel alone: the daemon then counts none of them.
fn is_passed_through(node: &Node, path: &Path) -> Result<bool> {
    let served = |node: &Node| -> Result<u64> {
        node.status()?["served"]["store"].as_u64().context("status has no served.store")
    };
    let before = served(node)?;
    let mut buffer = vec![0; 1 << 20];
    let file = File::open(path)?;
    for index in 0..16 {
        file.read_exact_at(&mut buffer, index << 20)?;
    }
    drop(file);
    Ok(served(node)? - before < 8 << 20)
}

/// Megabytes a second of reading a file from start to end.
pub fn sequential(path: &Path, bytes: u64) -> Result<f64> {
    let mut buffer = vec![0; 1 << 20];
    let mut total = 0;
    let seconds = time(|| {
        let mut file = File::open(path)?;
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(()),
                count => total += count as u64,
            }
        }
    })?;
    anyhow::ensure!(total == bytes, "{} has {total} bytes instead of {bytes}", path.display());
    Ok(bytes as f64 / seconds / 1e6)
}

/// Megabytes a second of copying so many bytes of memory in each of some threads, 1 MiB at a time
/// to the same place: what a read of resident bytes cannot beat.
pub fn memory_copy(bytes: u64, threads: u64) -> Result<f64> {
    let mut places = Vec::new();
    for _ in 0..threads {
        places.push((vec![1_u8; usize::try_from(bytes)?], vec![0_u8; 1 << 20]));
    }
    let seconds = time(|| {
        std::thread::scope(|scope| {
            for (source, target) in &mut places {
                scope.spawn(move || {
                    for piece in source.chunks_exact(target.len()) {
                        target.copy_from_slice(piece);
                        std::hint::black_box(&target);
                    }
                });
            }
        });
        Ok(())
    })?;
    Ok((bytes * threads) as f64 / seconds / 1e6)
}

/// Reads a second at random places of a file.
fn random(path: &Path, bytes: u64, reads: u64) -> Result<f64> {
    let file = File::open(path)?;
    let mut buffer = [0; 4_096];
    let mut state = 0x9e37_79b9_7f4a_7c15u64;
    let seconds = time(|| {
        for _ in 0..reads {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            file.read_exact_at(&mut buffer, state % (bytes / 4_096) * 4_096)?;
        }
        Ok(())
    })?;
    Ok(reads as f64 / seconds)
}
