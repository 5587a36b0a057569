//! Benchmark of memory that only a mapping keeps: the time from the last `munmap` until the store
//! has it back.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::row::{Goal, Row};
use super::{Bench, wait_until, warm};
use crate::node::Node;
use crate::process;
use crate::random_file::write_file;

const NAME: &str = "mapped memory, from the last munmap until it is free";
const GOAL_MS: f64 = 1_000.0;
/// Whatever is not done by then has failed.
const PATIENCE: Duration = Duration::from_secs(30);

/// The row; empty figures where the kernel reads no segments by itself, so that no mapping keeps
/// memory of the store.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    if !bench.wants(NAME) {
        return Ok(Vec::new());
    }
    let bytes = bench.scale.free_bytes / 16;
    let lower = bench.lower.join("mapped");
    write_file(&lower, bytes)?;
    let node = bench.node(bytes * 2, &[])?;
    let path = node.mount.join("mapped");
    let (mut times, mut held) = (Vec::new(), 0);
    for _ in 0..bench.scale.rounds {
        node.ask(&["resize", &(bytes * 2).to_string()])?;
        warm::load(&node, &path)?;
        let mapping = Mapping::of_all(&path, bytes)?;
        // The node notices that a mapping is all that is left of an open.
        let lingers = wait_until("the mapping to be told as held", Duration::from_secs(5), || {
            held = told(&node, "lingering_bytes")?;
            Ok(held > 0)
        });
        if lingers.is_err() {
            break;
        }
        // It says that something is held, as an error.
        process::capture(&mut node.command(&["resize", "0"]))?;
        drop(mapping);
        let started = Instant::now();
        wait_until(
            "the memory to come back",
            PATIENCE,
            || Ok(told(&node, "resident_bytes")? == 0),
        )?;
        times.push(started.elapsed().as_secs_f64() * 1e3);
    }
    drop(node);
    std::fs::remove_file(&lower)?;
    let note = match times.is_empty() {
        true => "no mapping keeps memory of the store on this kernel".to_owned(),
        false => {
            format!("{} MiB; told as held while it was mapped: {} MiB", bytes >> 20, held >> 20)
        }
    };
    let goal = if times.is_empty() { Goal::Shown } else { Goal::AtMost(GOAL_MS) };
    Ok(vec![Row::alone(NAME, "ms", times, goal).note(note)])
}

fn told(node: &Node, name: &str) -> Result<u64> {
    node.status()?["store"][name].as_u64().with_context(|| format!("no store.{name}"))
}

/// A file mapped wholly, all of it looked at, its descriptor closed.
struct Mapping {
    base: *mut std::ffi::c_void,
    length: usize,
}

impl Mapping {
    fn of_all(path: &Path, bytes: u64) -> Result<Self> {
        let file = File::open(path)?;
        let length = usize::try_from(bytes)?;
        let flags = MapFlags::SHARED | MapFlags::POPULATE;
        // SAFETY: the kernel chooses an unused range, so no memory of the process is replaced.
        let base = unsafe { mmap(std::ptr::null_mut(), length, ProtFlags::READ, flags, &file, 0)? };
        Ok(Mapping { base, length })
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: the range that was mapped, to which nobody has a reference.
        let _ = unsafe { munmap(self.base, self.length) };
    }
}
