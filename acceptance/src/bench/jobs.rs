//! Jobs of Spark and MapReduce on `tide://`, on HDFS and on the bare directory with its page cache
//! empty and full, over one disk that is held to a rate for all of them.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use super::Bench;
use super::hadoop::middle;
use super::row::{Goal, Row};
use crate::arguments::{ExampleOptions, Storage};
use crate::environment;
use crate::examples::{self, Place, PlaceOptions, Spark, forget_tree, kmeans_data};
use crate::loop_volume::{LoopVolume, VolumeOptions};
use crate::scratch::Scratch;
use crate::shaping::{self, LOCAL_VOLUME, Shaping};

const SPARK: &str = "hadoop-spark-kmeans";
const DFSIO: &str = "hadoop-dfsio";
const TERASORT: &str = "hadoop-terasort";
/// Of one data node, as in the demo.
const RATE: u64 = 400_000_000;
const PASSES: usize = 4;

/// A way to keep the data of a job.
#[derive(Clone, Copy, Debug)]
struct Way {
    name: &'static str,
    storage: Storage,
    /// Whether the page cache is emptied before each pass.
    cold: bool,
    /// The least ratio of our speed to this way's.
    goal: Goal,
}

const WAYS: [Way; 5] = [
    Way { name: "tide://", storage: Storage::Tide, cold: true, goal: Goal::Shown },
    Way { name: "HDFS, warm", storage: Storage::Hdfs, cold: false, goal: Goal::RatioAtLeast(1.0) },
    Way { name: "HDFS, cold", storage: Storage::Hdfs, cold: true, goal: Goal::RatioAtLeast(1.0) },
    Way {
        name: "bare directory, cold",
        storage: Storage::Pfs,
        cold: true,
        goal: Goal::RatioAtLeast(1.0),
    },
    Way {
        name: "bare directory, warm page cache",
        storage: Storage::Pfs,
        cold: false,
        goal: Goal::RatioAtLeast(0.95),
    },
];

/// A held disk.
struct Disk {
    directory: PathBuf,
    how: String,
    // Dropped in this order: the limit, then the volume, then its image.
    _shaping: Shaping,
    _volume: LoopVolume,
    _images: Scratch,
    _mounts: Scratch,
}

impl Disk {
    fn make(bytes: u64) -> Result<Self> {
        let images = Scratch::below(&environment::target().join("bench"))?;
        let mounts = Scratch::short()?;
        let options = VolumeOptions { size_bytes: bytes, ..LOCAL_VOLUME };
        let volume = LoopVolume::create(images.path(), mounts.path(), &options)?;
        let shaping = shaping::hold(&volume, RATE)?;
        let Shaping::Device { how, .. } = &shaping else {
            anyhow::bail!("the kernel cannot hold a disk to a rate here; jobs need that");
        };
        let (directory, how) = (volume.mount.clone(), how.clone());
        Ok(Disk {
            directory,
            how,
            _shaping: shaping,
            _volume: volume,
            _images: images,
            _mounts: mounts,
        })
    }
}

/// All rows that are asked for by name.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    if bench.names(SPARK) {
        rows.extend(spark(bench)?);
    }
    if bench.names(DFSIO) {
        // It only reads, and starts a program for each file: the more bytes, the more it tells.
        let bytes = bench.scale.cold_bytes * 2;
        rows.extend(mapreduce(bench, DFSIO, ("dfsio", "read again"), bytes)?);
    }
    if bench.names(TERASORT) {
        let bytes = bench.scale.cold_bytes / 2;
        rows.extend(mapreduce(bench, TERASORT, ("terasort", "TeraSort"), bytes)?);
    }
    Ok(rows)
}

/// Seconds of the second and later passes of K-means.
fn spark(bench: &Bench) -> Result<Vec<Row>> {
    // Passes compute for longer than they read, so rounds are worth more than bytes.
    let bytes = bench.scale.cold_bytes / 2;
    let disk = Disk::make(bytes * 6)?;
    let mut figures: Vec<(Vec<f64>, Vec<f64>)> = vec![Default::default(); WAYS.len()];
    for round in 0..bench.scale.rounds {
        for turn in 0..WAYS.len() {
            let index = (turn + round) % WAYS.len();
            let (first, later) = kmeans(&disk.directory, WAYS[index], bytes)?;
            figures[index].0.push(first);
            figures[index].1.extend(later);
        }
    }
    let first = figures[0].0.clone();
    let note = format!("first pass from the lower level: {} s; {}", middle(&first), disk.how);
    Ok(rows_of(&format!("{SPARK}, second and later passes"), &figures, &note))
}

/// Ours beside each other way.
fn rows_of(name: &str, figures: &[(Vec<f64>, Vec<f64>)], note: &str) -> Vec<Row> {
    let load = environment::load().unwrap_or(f64::NAN);
    let pairs = WAYS.iter().zip(figures).skip(1);
    let rows = pairs.map(|(way, (first, later))| {
        let mut row =
            Row::alone(&format!("{name} / {}", way.name), "s", figures[0].1.clone(), way.goal);
        row.reference.clone_from(later);
        row.note(note).note(format!("its first: {} s; load {load:.1}", middle(first)))
    });
    rows.collect()
}

fn kmeans(disk: &Path, way: Way, bytes: u64) -> Result<(f64, Vec<f64>)> {
    let place = Place::new(&PlaceOptions {
        storage: way.storage,
        pfs: Some(disk.to_path_buf()),
        memory_bytes: bytes * 5 / 4,
        logs: environment::target().join("bench-logs/spark"),
        turmoil_seed: None,
        forget_before: None,
    })?;
    let (_, _, start) = kmeans_data(&place, bytes)?;
    forget_tree(disk)?;
    let spark = Spark::start(&place)?;
    let arguments = [place.uri("records"), start.display().to_string(), PASSES.to_string()];
    let seconds = RefCell::new(Vec::new());
    let before = |_| if way.cold { forget_tree(disk) } else { Ok(()) };
    spark.run("SparkKMeans", &arguments, before, |pass| {
        eprintln!("x: {}: {:.2} s", way.name, pass.seconds);
        seconds.borrow_mut().push(pass.seconds);
        Ok(())
    })?;
    let mut seconds = seconds.into_inner();
    anyhow::ensure!(seconds.len() == PASSES, "{} passes", seconds.len());
    let first = seconds.remove(0);
    Ok((first, seconds))
}

/// Seconds of the map tasks of one stage of an example, and how fast they read, where it says so.
fn mapreduce(
    bench: &Bench,
    name: &str,
    (example, stage): (&str, &str),
    bytes: u64,
) -> Result<Vec<Row>> {
    let disk = Disk::make(bytes * 8)?;
    let mut figures: Vec<(Vec<f64>, Vec<f64>)> = vec![Default::default(); WAYS.len()];
    let mut rates: Vec<Vec<f64>> = vec![Vec::new(); WAYS.len()];
    for round in 0..bench.scale.rounds {
        for turn in 0..WAYS.len() {
            let index = (turn + round) % WAYS.len();
            let way = WAYS[index];
            let report = examples::report(
                example,
                &ExampleOptions {
                    name: None,
                    size: Some(bytes),
                    storage: way.storage,
                    pfs: Some(disk.directory.clone()),
                    turmoil: false,
                    seed: None,
                    with: Vec::new(),
                    forget_before: way.cold.then(|| stage.to_owned()),
                    json: None,
                },
            )?;
            let found = report.stages.iter().find(|found| found.name == stage);
            let found = found.with_context(|| format!("{example} has no {stage}"))?;
            let seconds = found.task_seconds.context("no time of map tasks")?;
            eprintln!("x: {}: {seconds:.1} s", way.name);
            figures[index].0.push(found.seconds);
            figures[index].1.push(seconds);
            rates[index].extend(found.task_megabytes_s);
        }
    }
    let note = format!("time of all map tasks together; {}", disk.how);
    let mut rows = rows_of(&format!("{name}, map tasks of {stage}"), &figures, &note);
    if !rates[0].is_empty() {
        rows.extend(WAYS.iter().zip(&rates).skip(1).map(|(way, theirs)| {
            let name = format!("{name}, rate of {stage} / {}", way.name);
            let row = Row::rates(&name, "MB/s", (rates[0].clone(), theirs.clone()), way.goal);
            row.note("of one task, without the start of its program")
        }));
    }
    Ok(rows)
}
