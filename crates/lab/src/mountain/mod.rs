//! `tidepool bench mountain`: the storage mountain (figures 2-9 to 2-11). Measures read throughput
//! over data size and skip on a node of its own or a given one, and puts the model's prediction
//! beside every point. Evicts nothing but its own files, and keeps results after every point.

pub mod arguments;
pub mod own_node;
mod pictures;
mod reading;
mod results;
mod shares;
mod surface;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressStyle};
use tidepool_model::{BytesPerSecond, predict};
use tidepool_proto::admin::Status;
use tidepool_proto::{Error, ErrorKind, Result};
use tidepool_report::bustle::Watch;

use self::arguments::{MountainArguments, Via};
use self::own_node::{OwnNode, Scratch};
use self::reading::{REQUEST_BYTES, Reader, probe};
use self::results::{Point, Results, Settings, ShareCheck, VERSION, median_error};
use self::shares::Readers;
use crate::calibrate::file::median;
use crate::calibrate::{machine, memory, volume};
use tidepool_cli::connection::SocketArgument;
use tidepool_cli::target::Roots;
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::interruption;
use tidepool_terminal::output;

const MIB: u64 = 1 << 20;
/// Least capacity of the store.
const CAPACITY_MIN: u64 = 32 * MIB;
/// Data sizes in eighths of the capacity.
const SIZES: [u64; 9] = [1, 2, 4, 7, 8, 10, 12, 16, 32];
const SIZES_QUICK: [u64; 6] = [2, 4, 8, 10, 16, 32];
const SKIPS: [u64; 9] =
    [0, 4 << 10, 64 << 10, 256 << 10, MIB, 4 * MIB, 16 * MIB, 32 * MIB, 64 * MIB];
const SKIPS_QUICK: [u64; 6] = [0, 64 << 10, MIB, 4 * MIB, 16 * MIB, 64 * MIB];
/// Largest file of the probe and of a reader of the share check.
const PROBE_BYTES: u64 = 64 * MIB;

/// Where it is measured.
struct Site {
    reader: Reader,
    status: Status,
    /// Fields drop in order: the node ends before the directory below it goes.
    own: Option<OwnNode>,
    scratch: Scratch,
}

/// Runs `bench mountain`.
pub fn mountain(arguments: &MountainArguments) -> Result<Outcome> {
    let interrupted = interruption::watch()?;
    let directory = &arguments.output;
    let site = Site::open(arguments)?;
    let settings = settings(arguments, &site)?;
    let largest = settings.sizes.iter().copied().max().unwrap_or_default();
    let total = largest.max(settings.capacity_bytes) + PROBE_BYTES;
    volume::check_room(site.scratch.path(), total, |_| match &site.own {
        Some(_) => "give less --memory, or smaller --sizes".to_owned(),
        None => "give smaller --sizes, or make the store of the node smaller".to_owned(),
    })?;
    // Not before it is known that there will be results, and what was there is not lost for none.
    let is_new = !directory.exists();
    std::fs::create_dir_all(directory)
        .map_err(|source| Error::pfs(format!("making {}", directory.display()), source))?;
    if arguments.fresh {
        remove_earlier(directory)?;
    }
    let earlier = Results::resume(directory, &settings)?;
    let outcome = run(arguments, &site, settings, earlier, &interrupted);
    if is_new && outcome.is_err() {
        // Fails where there are results.
        let _ = std::fs::remove_dir(directory);
    }
    match outcome {
        Ok(results) => {
            let paths = pictures::draw(&results, directory)?;
            print(&results, &paths, arguments.json)?;
            Ok(Outcome::Done)
        }
        Err(error) if interrupted.load(Ordering::Relaxed) && Results::path(directory).exists() => {
            let kept = Results::path(directory);
            output::note(&format!("interrupted; {} has the points so far", kept.display()));
            output::note("run the same command again to go on");
            Err(error)
        }
        Err(error) => Err(error),
    }
}

fn remove_earlier(directory: &Path) -> Result<()> {
    let path = Results::path(directory);
    match std::fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(Error::pfs(format!("removing {}", path.display()), error))
        }
        _ => Ok(()),
    }
}

impl Site {
    fn open(arguments: &MountainArguments) -> Result<Site> {
        if let Some(pfs) = &arguments.pfs {
            let usual = if arguments.quick { 256 * MIB } else { 1 << 30 };
            let capacity = arguments.memory.map_or(usual, |size| size.0);
            large_enough(capacity, "give it more with --memory")?;
            has_memory(capacity)?;
            let scratch = Scratch::below(pfs)?;
            let mut options = Vec::new();
            if let Some(rate) = arguments.pfs_rate {
                options.extend(["--fault".to_owned(), format!("io:rate={:.0}B/s", rate.get())]);
            }
            if let Some(farthest) = arguments.read_ahead {
                options.extend(["--read-ahead-bytes-max".to_owned(), farthest.0.to_string()]);
            }
            let mounted = arguments.via == Via::Mount;
            let node = OwnNode::start(scratch.path(), capacity, mounted, &options)?;
            let mount = node.mount().map(Path::to_path_buf);
            let connection = node.connect();
            let status = connection.status()?;
            let root = scratch.path().to_owned();
            let reader = Reader { connection, via: arguments.via, mount, root };
            return Ok(Site { reader, status, scratch, own: Some(node) });
        }
        let connection = SocketArgument { socket: arguments.socket.clone() }.connect();
        let status = connection.status()?;
        let roots = Roots::of(&status);
        let scratch = Scratch::below(&roots.pfs)?;
        let reader = Reader { connection, via: arguments.via, mount: roots.mount, root: roots.pfs };
        Ok(Site { reader, status, scratch, own: None })
    }
}

/// Refuses a store that is too small to have a mountain.
fn large_enough(capacity: u64, remedy: &str) -> Result<()> {
    if capacity >= CAPACITY_MIN {
        return Ok(());
    }
    let least = output::size(CAPACITY_MIN);
    let detail = format!("the store holds less than {least}");
    Err(Error::new(ErrorKind::InvalidInput, "preparing the mountain", detail).remedy(remedy))
}

/// Refuses a store that would push other work out of memory.
fn has_memory(capacity: u64) -> Result<()> {
    let available = tidepool_daemon::machine::available_bytes().unwrap_or(u64::MAX);
    if capacity <= available / 2 {
        return Ok(());
    }
    let asked = output::size(capacity);
    let detail = format!("{asked} asked for, {} available", output::size(available));
    Err(Error::new(ErrorKind::InvalidInput, "reading --memory", detail).remedy(
        match available / 2 / MIB * MIB {
            0..CAPACITY_MIN => "end programs that use memory first".to_owned(),
            most => format!("give --memory {} or less", output::size(most)),
        },
    ))
}

fn settings(arguments: &MountainArguments, site: &Site) -> Result<Settings> {
    let capacity_bytes = site.status.store.capacity_bytes;
    let refuse = |detail: &str, remedy: &str| {
        Err(Error::new(ErrorKind::InvalidInput, "preparing the mountain", detail).remedy(remedy))
    };
    large_enough(capacity_bytes, "enlarge it with `tidepool resize`")?;
    let parts: &[u64] = if arguments.quick { &SIZES_QUICK } else { &SIZES };
    let usual_skips: &[u64] = if arguments.quick { &SKIPS_QUICK } else { &SKIPS };
    let given = |list: &[tidepool_proto::ByteSize]| list.iter().map(|size| size.0).collect();
    let mut sizes: Vec<u64> = match arguments.sizes.as_slice() {
        [] if arguments.shares_only => Vec::new(),
        [] => parts.iter().map(|part| capacity_bytes / 8 * part / MIB * MIB).collect(),
        list => given(list),
    };
    let mut skips: Vec<u64> = match arguments.skips.as_slice() {
        [] if arguments.shares_only => Vec::new(),
        [] => usual_skips.to_vec(),
        list => given(list),
    };
    for list in [&mut sizes, &mut skips] {
        list.sort_unstable();
        list.dedup();
    }
    if sizes.first().is_some_and(|size| *size < REQUEST_BYTES) {
        return refuse("a data size below one read", "data sizes start at 1MiB");
    }
    Ok(Settings {
        version: VERSION,
        pfs: arguments
            .pfs
            .as_ref()
            .map_or(site.status.pfs.clone(), |pfs| pfs.display().to_string()),
        pfs_rate: arguments.pfs_rate.map(BytesPerSecond::get),
        read_ahead_bytes: arguments.read_ahead.map(|size| size.0),
        capacity_bytes,
        sizes,
        skips,
        request_bytes: REQUEST_BYTES,
        repeats: arguments.repeats.unwrap_or(if arguments.quick { 3 } else { 5 }),
        via: arguments.via,
    })
}

fn run(
    arguments: &MountainArguments,
    site: &Site,
    settings: Settings,
    earlier: Option<Results>,
    interrupted: &AtomicBool,
) -> Result<Results> {
    let directory = &arguments.output;
    let mut results = match earlier {
        Some(earlier) => {
            output::note(&format!("going on after {} points", earlier.points.len()));
            earlier
        }
        None => first(site, settings, interrupted)?,
    };
    let mut watch = Watch::start();
    if site.own.is_none() {
        watch.begin(site.status.process_id);
    }
    results.write(directory)?;
    points(arguments, site, &mut results, interrupted)?;
    if !arguments.no_shares && results.shares.is_empty() {
        if site.own.is_some() && results.settings.via == Via::Library {
            output::note("checking equation (7) ...");
            results.shares = shares(arguments, site, &results, interrupted)?;
            results.write(directory)?;
        } else {
            output::note("equation (7) is checked with --pfs and --via library only");
        }
    }
    if site.own.is_none() {
        watch.finish(site.status.process_id);
    }
    if let Some(busy) = watch.end().note() {
        results.warnings.push(busy);
        results.write(directory)?;
    }
    Ok(results)
}

/// Results without points: the probe alone.
fn first(site: &Site, settings: Settings, interrupted: &AtomicBool) -> Result<Results> {
    output::note("measuring memory and PFS for the predictions ...");
    let path = site.scratch.path().join("probe");
    let size = PROBE_BYTES.min(settings.capacity_bytes / 2 / MIB * MIB);
    memory::fill(&path, size)?;
    let probe = probe(&site.reader, &path, size, &site.status, interrupted)?;
    site.reader.evict(&path)?;
    remove(&path)?;
    let machine = machine::describe();
    let (points, shares, warnings) = (Vec::new(), Vec::new(), Vec::new());
    Ok(Results { settings, machine, probe, points, shares, warnings })
}

fn remove(path: &Path) -> Result<()> {
    std::fs::remove_file(path)
        .map_err(|source| Error::pfs(format!("removing {}", path.display()), source))
}

fn points(
    arguments: &MountainArguments,
    site: &Site,
    results: &mut Results,
    interrupted: &AtomicBool,
) -> Result<()> {
    let settings = results.settings.clone();
    let all = settings
        .sizes
        .iter()
        .flat_map(|size| settings.skips.iter().map(move |skip| (*size, *skip)));
    let missing: Vec<(u64, u64)> =
        all.filter(|(size, skip)| results.point(*size, *skip).is_none()).collect();
    let passes = f64::from(settings.repeats) + 1.0;
    let expected = |size: u64, skip: u64| -> Result<u64> {
        let point = predict(&results.probe, size, skip)?;
        let milliseconds = point.useful.get() / point.rate.get() * passes * 1e3;
        Ok(milliseconds.min(arguments.seconds_max as f64 * 1e3) as u64 + 1)
    };
    let expected: Vec<u64> =
        missing.iter().map(|(size, skip)| expected(*size, *skip)).collect::<Result<_>>()?;
    let bar = progress(expected.iter().sum());
    let mut data: Option<(u64, PathBuf)> = None;
    for ((size, skip), expected) in missing.into_iter().zip(expected) {
        bar.set_message(format!("{} skip {}", output::size(size), output::size(skip)));
        let path = match data.take() {
            Some((present, path)) if present == size => path,
            // A file of exactly this size, or reading ahead would go beyond it.
            other => renew(site, other, size)?,
        };
        let point = point(arguments, site, results, &path, (size, skip), interrupted)?;
        data = Some((size, path));
        results.points.push(point);
        results.write(&arguments.output)?;
        bar.inc(expected);
    }
    bar.finish_and_clear();
    if let Some((_, path)) = data {
        site.reader.evict(&path)?;
        remove(&path)?;
    }
    Ok(())
}

/// Removes the last file, if there was one, and makes one of `size` bytes.
fn renew(site: &Site, last: Option<(u64, PathBuf)>, size: u64) -> Result<PathBuf> {
    if let Some((_, path)) = last {
        site.reader.evict(&path)?;
        remove(&path)?;
    }
    let path = site.scratch.path().join(format!("data-{size}"));
    memory::fill(&path, size)?;
    Ok(path)
}

/// A bar whose length is the expected time, so that what remains is told well.
fn progress(milliseconds: u64) -> ProgressBar {
    let bar = ProgressBar::new(milliseconds);
    let style = ProgressStyle::with_template("{bar:30} {percent}%  {msg}  {eta} left");
    bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.enable_steady_tick(Duration::from_millis(250));
    bar
}

fn point(
    arguments: &MountainArguments,
    site: &Site,
    results: &Results,
    path: &Path,
    (size, skip): (u64, u64),
    interrupted: &AtomicBool,
) -> Result<Point> {
    let settings = &results.settings;
    let begun = Instant::now();
    site.reader.evict(path)?;
    // One pass brings in what will stay; it is not counted.
    site.reader.pass(path, size, skip, interrupted)?;
    let (mut rates, mut hits) = (Vec::new(), Vec::new());
    for _ in 0..settings.repeats {
        let before = site.reader.pfs_read_bytes()?;
        let pass = site.reader.timed(path, size, skip, interrupted)?;
        let read = site.reader.pfs_read_bytes()?.saturating_sub(before);
        rates.push(pass.rate());
        hits.push((1.0 - read as f64 / pass.bytes.max(1) as f64).max(0.0));
        if begun.elapsed().as_secs() >= arguments.seconds_max {
            break;
        }
    }
    let mut sorted = rates.clone();
    sorted.sort_by(f64::total_cmp);
    hits.sort_by(f64::total_cmp);
    let predicted = predict(&results.probe, size, skip)?;
    let bytes_per_second = median(&sorted);
    Ok(Point {
        size_bytes: size,
        skip_bytes: skip,
        passes: rates,
        bytes_per_second,
        hits: (skip == 0).then(|| median(&hits)),
        predicted: predicted.rate.get(),
        predicted_hits: predicted.hits.get(),
        error: predicted.rate.get() / bytes_per_second - 1.0,
    })
}

fn shares(
    arguments: &MountainArguments,
    site: &Site,
    results: &Results,
    interrupted: &AtomicBool,
) -> Result<Vec<ShareCheck>> {
    let count = results.machine.processors.clamp(1, 4);
    let block = results.probe.block.get() as u64;
    // A part of the store stays free for what is on its way.
    let total = results.settings.capacity_bytes / 8 * 7;
    let readers = Readers::make(&site.scratch, count, total, block)?;
    let known = arguments.pfs_rate.unwrap_or(results.probe.pfs);
    shares::check_all(&site.reader, &readers, known, interrupted)
}

fn print(results: &Results, paths: &[PathBuf], json: bool) -> Result<()> {
    for warning in &results.warnings {
        output::note(&format!("warning: {warning}"));
    }
    if json {
        return output::json(results);
    }
    let gb = |rate: f64| format!("{:.2}", rate / 1e9);
    let percent = |share: f64| format!("{:+.0}%", share * 100.0);
    let rows: Vec<Vec<String>> = results
        .points
        .iter()
        .map(|point| {
            vec![
                output::size(point.size_bytes),
                output::size(point.skip_bytes),
                gb(point.bytes_per_second),
                gb(point.predicted),
                percent(point.error),
                point.hits.map_or_else(|| "-".to_owned(), |hits| format!("{hits:.2}")),
                format!("{:.2}", point.predicted_hits),
            ]
        })
        .collect();
    if !rows.is_empty() {
        let header = ["data", "skip", "GB/s", "predicted", "error", "f", "predicted f"];
        output::table(&header, &[true; 7], &rows);
    }
    if let Some(error) = median_error(results.points.iter().map(|point| point.error)) {
        output::line(&format!("median error of the prediction: {:.1}%", error * 100.0));
    }
    if !results.shares.is_empty() {
        output::line("equation (7), all readers together");
        let rows: Vec<Vec<String>> = results
            .shares
            .iter()
            .map(|check| {
                let counted = format!("{:.2}", check.counted);
                let rates = [gb(check.bytes_per_second), gb(check.predicted)];
                let [measured, predicted] = rates;
                vec![format!("{:.2}", check.f), counted, measured, predicted, percent(check.error)]
            })
            .collect();
        output::table(&["f", "counted f", "GB/s", "predicted", "error"], &[true; 5], &rows);
        if let Some(error) = median_error(results.shares.iter().map(|check| check.error)) {
            output::line(&format!("median error: {:.1}%", error * 100.0));
        }
    }
    for path in paths {
        output::line(&format!("picture: {}", path.display()));
    }
    Ok(())
}
