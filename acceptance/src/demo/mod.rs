//! The main job on real input: K-means that reads a data set again and again, first from the lower
//! level alone, then through a node over the same directory. Both read the same files, at the same
//! limit if there is one, and must come to the same result bit by bit. Then the same job beside one
//! that wants the memory, and what the model says of the machine.

mod contention;
mod measurement;
mod mountain;
mod pictures;
mod report;
mod served;
mod stage;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail};
use tidepool_report::bustle::Watch;

use self::measurement::{Iteration, Measurement};
use self::served::{Counters, Served};
use self::stage::{Stage, size};
use crate::arguments::DemoOptions;
use crate::cleanup;
use crate::environment;
use crate::kmeans::cluster::Centroids;
use crate::kmeans::data::DataSet;
use crate::kmeans::pass;
use crate::loop_volume::{LoopVolume, VolumeOptions};
use crate::scratch::Scratch;
use crate::shaping::{self, LOCAL_VOLUME, Shaping, TokenBucket};

const QUICK_BYTES: u64 = 256 << 20;
const QUICK_ITERATIONS: u32 = 3;
/// Room on a volume of our own beside the data: what other measurements write, with what they want
/// to be left free.
const VOLUME_SPARE_BYTES: u64 = 6 << 30;
const FILE_BYTES: u64 = 128 << 20;
const SEED: u64 = 2_018;
/// Room in the store beside the data: part blocks at the ends of files.
const SPARE_BYTES: u64 = 256 << 20;

/// Runs the demo and says where its report is.
pub fn run(options: &DemoOptions) -> Result<PathBuf> {
    let (bytes, iterations) = match options.quick {
        true => (options.size.min(QUICK_BYTES), options.iterations.min(QUICK_ITERATIONS)),
        false => (options.size, options.iterations),
    };
    if iterations == 0 {
        bail!("--iterations takes 1 or more");
    }
    let directory = match &options.report {
        Some(directory) => directory.clone(),
        None => environment::target().join("demo"),
    };
    environment::binary()?;
    let started = Instant::now();
    let stage = prepare(options, bytes)?;
    let memory_bytes = store_bytes(stage.data.bytes)?;
    let mut measurement = describe(&stage, options, iterations, memory_bytes);
    println!("{}\n", measurement.setting);

    let mut watch = Watch::start();
    let first = pass::start(&stage.data)?;
    let bare_end = run_bare(&stage, &first, iterations, &mut measurement)?;
    let tide_end = run_tidepool(&stage, &first, memory_bytes, &mut measurement, &mut watch)?;
    if bare_end != tide_end {
        bail!("the two sides came to different results: bytes are not the same");
    }
    measurement.same_result = true;
    println!("{}", report::table(&measurement));
    std::fs::create_dir_all(&directory)?;
    match contention::run(&stage, &first, options.quick, &mut watch)? {
        Ok(contention) => measurement.contention = Some(contention),
        Err(why) => measurement.skip("static and dynamic sizing", &why),
    }
    match options.quick {
        true => measurement.skip("storage mountain", "--quick leaves it out"),
        false => measurement.mountain = Some(mountain::run(&stage, &directory)?),
    }
    measurement.load.1 = environment::load()?;
    measurement.bustle = Some(watch.end());
    println!("{}\n{}", report::further(&measurement), report::quietness(&measurement));
    let page = report::write(&measurement, &directory)?;
    println!("\n{:.1} minutes; report: {}", started.elapsed().as_secs_f64() / 60.0, page.display());
    Ok(page)
}

/// Writes a report again from the measurements of an earlier run.
pub fn report_from(json: &Path) -> Result<PathBuf> {
    let text = std::fs::read_to_string(json)?;
    let directory = json.parent().context("a file has a directory")?;
    report::write(&serde_json::from_str(&text)?, directory)
}

fn prepare(options: &DemoOptions, bytes: u64) -> Result<Stage> {
    let threads = 2 * std::thread::available_parallelism()?.get();
    let mut directories = Vec::new();
    let mut made = None;
    let (lower, volume) = match &options.pfs {
        Some(pfs) => {
            let own = pfs.join(format!("tidepool-demo-{}", std::process::id()));
            std::fs::create_dir(&own).with_context(|| own.display().to_string())?;
            let remove = own.clone();
            made = Some(cleanup::guard(move || {
                if let Err(error) = std::fs::remove_dir_all(&remove) {
                    eprintln!("x: {}: {error}", remove.display());
                }
            }));
            (own, None)
        }
        None => local_lower(bytes, &mut directories)?,
    };
    println!("x: generating {} in {}", size(bytes), lower.display());
    let data = DataSet::generate(&lower, bytes, FILE_BYTES.min(bytes / 4), SEED)?;
    let shaping = match (&options.pfs, &volume) {
        (Some(_), _) => None,
        (None, Some(volume)) => Some(shaping::hold(volume, options.rate)?),
        (None, None) => Some(Shaping::Buckets),
    };
    let rate = options.rate;
    Ok(Stage { data, shaping, rate, threads, volume, _directories: directories, _made: made })
}

type Lower = (PathBuf, Option<LoopVolume>);

fn local_lower(bytes: u64, directories: &mut Vec<Scratch>) -> Result<Lower> {
    let base = environment::target().join("demo-data");
    let images = Scratch::below(&base)?;
    let mounts = Scratch::short()?;
    let (image_path, mount_path) = (images.path().to_path_buf(), mounts.path().to_path_buf());
    directories.extend([images, mounts]);
    if environment::is_root() {
        let options =
            VolumeOptions { size_bytes: bytes + bytes / 8 + VOLUME_SPARE_BYTES, ..LOCAL_VOLUME };
        match LoopVolume::create(&image_path, &mount_path, &options) {
            Ok(volume) => return Ok((volume.mount.clone(), Some(volume))),
            Err(error) => eprintln!("x: no loop volume ({error:#}); using a plain directory"),
        }
    }
    let lower = image_path.join("lower");
    std::fs::create_dir(&lower)?;
    Ok((lower, None))
}

fn store_bytes(data_bytes: u64) -> Result<u64> {
    let wanted = data_bytes + data_bytes / 16 + SPARE_BYTES;
    let most = environment::memory_available_bytes()? * 7 / 10;
    if wanted > most {
        println!(
            "x: the data does not fit the free memory: the store gets {} of {}",
            size(most),
            size(wanted)
        );
    }
    Ok(wanted.min(most))
}

fn describe(stage: &Stage, options: &DemoOptions, iterations: u32, memory: u64) -> Measurement {
    let limit = match &stage.shaping {
        None => format!("{} as it is, without a limit", stage.data.directory.display()),
        Some(Shaping::Device { how, .. }) => format!(
            "a local ext4 volume, held to {} MB/s for both sides alike by a {how}",
            stage.rate / 1_000_000
        ),
        Some(Shaping::Buckets) => format!(
            "a local directory, held to {} MB/s for each side by a token bucket of the same rate",
            stage.rate / 1_000_000
        ),
    };
    let setting = format!(
        "K-means, 27 dimensions, 10 clusters, {iterations} iterations over {} in {} files, {} \
         threads.\nLower level: {limit}.\nBare: page cache dropped before each iteration. \
         Tidepool: a node with {} of memory, started empty.",
        size(stage.data.bytes),
        stage.data.names.len(),
        stage.threads,
        size(memory),
    );
    Measurement {
        setting,
        data_bytes: stage.data.bytes,
        store_bytes: memory,
        rate: options.pfs.is_none().then_some(stage.rate),
        load: (environment::load().unwrap_or_default(), 0.0),
        ..Measurement::default()
    }
}

fn run_bare(
    stage: &Stage,
    first: &Centroids,
    iterations: u32,
    into: &mut Measurement,
) -> Result<Centroids> {
    let bucket = matches!(stage.shaping, Some(Shaping::Buckets));
    let bucket = bucket.then(|| TokenBucket::new(stage.rate));
    let mut centroids = first.clone();
    for number in 1..=iterations {
        stage.data.drop_page_cache()?;
        let before = device_bytes(stage)?;
        let started = Instant::now();
        let sums = pass::run(&stage.data, &centroids, stage.threads, bucket.as_ref())?;
        let seconds = started.elapsed().as_secs_f64();
        centroids = sums.means(&centroids);
        let lower = device_bytes(stage)?.zip(before).map(|(after, before)| after - before);
        let served = Served { pfs: stage.data.bytes, ..Served::default() };
        let iteration = Iteration { seconds, served, device_bytes: lower };
        announce("bare PFS", number, &iteration, into.data_bytes);
        into.bare.iterations.push(iteration);
    }
    Ok(centroids)
}

fn run_tidepool(
    stage: &Stage,
    first: &Centroids,
    memory_bytes: u64,
    into: &mut Measurement,
    watch: &mut Watch,
) -> Result<Centroids> {
    let iterations = into.bare.iterations.len();
    let node = stage.start_node(memory_bytes, Vec::new())?;
    let data = stage.data.seen_at(&node.mount);
    let mut centroids = first.clone();
    let mut before = Counters::of(&node.status()?)?;
    for number in 1..=iterations {
        let device_before = device_bytes(stage)?;
        let started = Instant::now();
        let sums = pass::run(&data, &centroids, stage.threads, None)?;
        let seconds = started.elapsed().as_secs_f64();
        centroids = sums.means(&centroids);
        let after = Counters::of(&node.status()?)?;
        let lower = device_bytes(stage)?.zip(device_before).map(|(after, before)| after - before);
        let served = Served::between(&before, &after, into.data_bytes);
        before = after;
        let iteration = Iteration { seconds, served, device_bytes: lower };
        announce("Tidepool", number as u32, &iteration, into.data_bytes);
        into.tidepool.iterations.push(iteration);
    }
    let status = node.status()?;
    watch.finish(node.process_id()?);
    into.resident_bytes_peak = status["store"]["resident_bytes_peak"].as_u64().unwrap_or(0);
    into.policy = status["store"]["policy"].as_str().unwrap_or("?").to_owned();
    into.daemon_hit_ratio = status["hit_ratio_at_least"].as_f64();
    Ok(centroids)
}

fn announce(side: &str, number: u32, iteration: &Iteration, data_bytes: u64) {
    println!(
        "{side:<9} iteration {number:>2}: {:>7.2} s, {:>6.0} MB/s, {:>5.1} % from memory",
        iteration.seconds,
        data_bytes as f64 / iteration.seconds / 1e6,
        iteration.served.hit_ratio() * 100.0
    );
}

fn device_bytes(stage: &Stage) -> Result<Option<u64>> {
    stage.volume.as_ref().map(|volume| Ok(volume.traffic()?.read_bytes)).transpose()
}
