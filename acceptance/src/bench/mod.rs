//! Measurements side by side in one run: the product, and what it must keep up with. Interleaved
//! rounds, medians, ratios with their spread. It prints; it never judges a test by time.

mod bare;
mod buffers;
mod bursts;
mod cluster;
mod cold;
mod control;
mod eviction;
mod hadoop;
mod hostile_user;
mod jobs;
mod library;
mod many_files;
mod mapped;
mod node_facts;
mod open_read_close;
mod pass_through;
mod plane;
pub mod row;
mod scan;
mod small_files;
mod stopped_node;
pub mod visitor;
mod warm;

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use row::Row;
use tidepool_report::bustle::Bustle;

use crate::arguments::{BenchOptions, BenchSuite};
use crate::environment;
use crate::loop_volume::unmount_hard;
use crate::node::{Node, NodeOptions};
use crate::scratch::Scratch;
use crate::{cleanup, process};

/// How much is measured.
#[derive(Clone, Copy, Debug)]
pub struct Scale {
    /// Rounds of every measurement.
    pub rounds: usize,
    /// Bytes of the file that is read from memory.
    pub warm_bytes: u64,
    /// Reads at random places in a round.
    pub random_reads: u64,
    /// Bytes of the file that is read from disk.
    pub cold_bytes: u64,
    /// Bytes of the file that is written.
    pub write_bytes: u64,
    /// Bytes that are freed at once.
    pub free_bytes: u64,
    /// Small files.
    pub small_files: u64,
    /// Capacity under the cyclic scan.
    pub scan_capacity_bytes: u64,
}

const FULL: Scale = Scale {
    rounds: 5,
    warm_bytes: 2 << 30,
    random_reads: 200_000,
    cold_bytes: 1 << 30,
    write_bytes: 512 << 20,
    free_bytes: 4 << 30,
    small_files: 100_000,
    scan_capacity_bytes: 768 << 20,
};

const QUICK: Scale = Scale {
    rounds: 2,
    warm_bytes: 64 << 20,
    random_reads: 5_000,
    cold_bytes: 64 << 20,
    write_bytes: 32 << 20,
    free_bytes: 128 << 20,
    small_files: 1_000,
    scan_capacity_bytes: 48 << 20,
};

/// What the measurements share.
pub struct Bench {
    /// How much is measured.
    pub scale: Scale,
    /// Directory of the lower level.
    pub lower: PathBuf,
    /// A plain tmpfs.
    pub memory: PathBuf,
    /// The same with 2 MiB pages, where the machine has them.
    pub huge_memory: Option<PathBuf>,
    only: Option<String>,
    _mounts: Vec<cleanup::Guard>,
    _directories: Vec<Scratch>,
}

/// Runs the rows that the options ask for, prints the table and writes the JSON.
pub fn run(options: &BenchOptions) -> Result<()> {
    match options.suite {
        Some(BenchSuite::Cluster) => return cluster::run(options),
        Some(BenchSuite::Bursts) => return bursts::run(options),
        Some(BenchSuite::Plane) => return plane::run(options),
        None => {}
    }
    let mut scale = if options.quick { QUICK } else { FULL };
    scale.rounds = options.rounds.unwrap_or(scale.rounds).max(1);
    environment::binary()?;
    let bench = Bench::new(options, scale)?;
    let mut rows = Vec::new();
    for measure in [
        warm::run,
        library::run,
        cold::run,
        node_facts::freeing,
        mapped::run,
        small_files::run,
        open_read_close::run,
        many_files::run,
        hostile_user::run,
        scan::run,
        eviction::run,
        node_facts::starting,
        control::large_pages,
        control::small_pages,
        control::costs,
        hadoop::run,
        buffers::run,
        stopped_node::run,
        jobs::run,
    ] {
        for row in measure(&bench)? {
            println!("{row}");
            rows.push(row);
        }
    }
    tell(options, &rows, "bench.json", None)
}

/// Prints the table, and whether the machine was busy, and writes the JSON.
fn tell(
    options: &BenchOptions,
    rows: &[Row],
    file_name: &str,
    machine: Option<&Bustle>,
) -> Result<()> {
    anyhow::ensure!(!rows.is_empty(), "no row has this name");
    println!("\n{}", row::table(rows));
    if let Some(note) = machine.and_then(Bustle::note) {
        println!("{note}");
    }
    let default = || environment::target().join(file_name);
    let path = options.json.clone().unwrap_or_else(default);
    std::fs::write(&path, serde_json::to_string_pretty(rows)?)?;
    println!("figures: {}", path.display());
    Ok(())
}

impl Bench {
    fn new(options: &BenchOptions, scale: Scale) -> Result<Self> {
        let base = match &options.pfs {
            Some(directory) => directory.canonicalize().context("--pfs")?,
            None => environment::target().join("bench"),
        };
        let lower = Scratch::below(&base)?;
        let memory = Scratch::below(Path::new("/dev/shm"))?;
        let huge = Scratch::short()?;
        let mut mounts = Vec::new();
        let mut mount = process::command("mount", &["-t", "tmpfs", "-o", "huge=always", "tmpfs"]);
        let huge_memory = process::read(mount.arg(huge.path())).ok().map(|_| {
            let path = huge.path().to_path_buf();
            mounts.push(cleanup::guard({
                let path = path.clone();
                move || unmount_hard(&path)
            }));
            path
        });
        Ok(Bench {
            scale,
            lower: lower.path().to_path_buf(),
            memory: memory.path().to_path_buf(),
            huge_memory,
            only: options.only.clone(),
            _mounts: mounts,
            _directories: vec![lower, memory, huge],
        })
    }

    /// Whether the row is asked for.
    pub fn wants(&self, name: &str) -> bool {
        self.only.as_ref().is_none_or(|only| name.contains(only.as_str()))
    }

    /// Whether the row is asked for by its name; for rows that need more than this machine has.
    pub fn names(&self, name: &str) -> bool {
        self.only.as_ref().is_some_and(|only| name.contains(only.as_str()))
    }

    /// A node over the lower level.
    pub fn node(&self, memory_bytes: u64, arguments: &[&str]) -> Result<Node> {
        let options = NodeOptions {
            pfs: self.lower.clone(),
            memory: memory_bytes.to_string(),
            arguments: arguments.iter().map(ToString::to_string).collect(),
        };
        Node::start(&options)
    }
}

/// Seconds that `work` takes.
pub fn time(work: impl FnOnce() -> Result<()>) -> Result<f64> {
    let started = Instant::now();
    work()?;
    Ok(started.elapsed().as_secs_f64())
}

/// Measures both ways in every round, in changing order. Returns the figures of both.
pub fn interleave(
    rounds: usize,
    mut ours: impl FnMut() -> Result<f64>,
    mut reference: impl FnMut() -> Result<f64>,
) -> Result<(Vec<f64>, Vec<f64>)> {
    let (mut of_ours, mut of_reference) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        if round % 2 == 0 {
            of_reference.push(reference()?);
            of_ours.push(ours()?);
        } else {
            of_ours.push(ours()?);
            of_reference.push(reference()?);
        }
    }
    Ok((of_ours, of_reference))
}

/// Measures in every place in every round, in an order that changes. Returns the figures of each
/// place.
pub fn in_turns<P>(
    rounds: usize,
    places: &[P],
    mut measure: impl FnMut(&P) -> Result<f64>,
) -> Result<Vec<Vec<f64>>> {
    let mut figures = vec![Vec::new(); places.len()];
    for round in 0..rounds {
        for turn in 0..places.len() {
            let index = (round + turn) % places.len();
            figures[index].push(measure(&places[index])?);
        }
    }
    Ok(figures)
}

/// Lets other users find what is below a directory.
fn open_to_all(directory: &Path) -> Result<()> {
    Ok(std::fs::set_permissions(directory, std::fs::Permissions::from_mode(0o755))?)
}

/// Drops the kernel's page cache of a file.
pub fn forget(path: &Path) -> Result<()> {
    let file = std::fs::File::open(path)?;
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
    Ok(())
}

/// Waits until `condition` holds; the error names what was waited for.
pub fn wait_until(
    what: &str,
    limit: Duration,
    mut condition: impl FnMut() -> Result<bool>,
) -> Result<()> {
    let started = Instant::now();
    while !condition()? {
        anyhow::ensure!(started.elapsed() < limit, "waited {limit:?} for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
    Ok(())
}
