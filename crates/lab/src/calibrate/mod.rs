//! `tidepool calibrate`: measures what the models need to know of this machine, with repeats and
//! their spread, and writes it into a file. Never fills a shared file system: it asks, or takes
//! `--bytes-max`, and never more than a tenth of what is free.

pub mod arguments;
pub mod file;
pub mod machine;
pub mod memory;
mod network;
pub mod volume;

use std::io::{IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use tidepool_proto::{Error, ErrorKind, Result};
use tidepool_report::bustle::Watch;

use self::arguments::CalibrateArguments;
use self::file::{Calibration, Measured, SPREAD_MAX, VERSION, Volume};
use self::volume::Bounds;
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::interruption;
use tidepool_terminal::output;

/// Runs `calibrate`.
pub fn calibrate(arguments: &CalibrateArguments) -> Result<Outcome> {
    if let Some(address) = arguments.network_listen {
        network::listen(address, &*interruption::watch()?)?;
        return Ok(Outcome::Done);
    }
    if let Some(path) = &arguments.output {
        writable(path)?;
    }
    let bounds = bounds(arguments)?;
    // All refusals come before the first byte.
    for directory in [&arguments.pfs, &arguments.disk].into_iter().flatten() {
        volume::check_room(directory, bounds.bytes, volume::fewer_bytes)?;
        permitted(directory, bounds.bytes, arguments.bytes_max.is_some())?;
    }
    // Only now: at the question Ctrl-C ends the program at once.
    let found = measure(arguments, bounds, &*interruption::watch()?)?;
    if let Some(path) = &arguments.output {
        found.write(path)?;
    }
    print(&found, arguments)?;
    Ok(Outcome::Done)
}

fn bounds(arguments: &CalibrateArguments) -> Result<Bounds> {
    let cautious = arguments.cautious;
    let seconds = arguments.seconds_max.unwrap_or(if cautious { 5.0 } else { 20.0 });
    let time_max = Duration::try_from_secs_f64(seconds).ok().filter(|time| !time.is_zero());
    let time_max = time_max.ok_or_else(|| {
        Error::new(ErrorKind::InvalidInput, "reading --seconds-max", "it is no time above zero")
    })?;
    let usual = if cautious { 256 << 20 } else { 1 << 30 };
    let bytes = arguments.bytes_max.map_or(usual, |size| size.0);
    if bytes < 4 << 20 {
        return Err(Error::new(ErrorKind::InvalidInput, "reading --bytes-max", "less than 4MiB")
            .remedy("one transfer has 4MiB"));
    }
    let repeats = arguments.repeats.unwrap_or(if cautious { 3 } else { 5 });
    Ok(Bounds { bytes, streams: arguments.streams, repeats, time_max })
}

/// Fails now if the result could not be written in the end.
fn writable(path: &Path) -> Result<()> {
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let directory = directory.unwrap_or(Path::new("."));
    let operation = || format!("preparing the calibration file {}", path.display());
    rustix::fs::access(directory, rustix::fs::Access::WRITE_OK)
        .map_err(|source| Error::pfs(operation(), std::io::Error::from(source)))?;
    if path.is_dir() {
        return Err(Error::new(ErrorKind::InvalidInput, operation(), "it is a directory"));
    }
    Ok(())
}

/// Asks before anything is written to a file system that others use.
fn permitted(directory: &Path, bytes: u64, bounded: bool) -> Result<()> {
    let kind = volume::file_system(directory);
    if bounded || !volume::is_shared(&kind) {
        return Ok(());
    }
    let asked = output::size(bytes);
    let what = format!("{} is {kind}, which others may use", directory.display());
    if !std::io::stdin().is_terminal() || !std::io::stderr().is_terminal() {
        return Err(Error::new(ErrorKind::InvalidInput, "preparing to calibrate", what)
            .remedy(format!("allow it with --bytes-max {asked}, or less")));
    }
    let mut stderr = std::io::stderr();
    let failed = |source| Error::pfs("asking", source);
    write!(stderr, "{what}. Write {asked} there several times? [y/N] ").map_err(failed)?;
    stderr.flush().map_err(failed)?;
    let mut answer = String::new();
    std::io::stdin().read_line(&mut answer).map_err(failed)?;
    if answer.trim().eq_ignore_ascii_case("y") {
        return Ok(());
    }
    Err(Error::new(ErrorKind::InvalidInput, "preparing to calibrate", "you said no"))
}

fn measure(
    arguments: &CalibrateArguments,
    bounds: Bounds,
    interrupted: &AtomicBool,
) -> Result<Calibration> {
    let machine = machine::describe();
    let watch = Watch::start();
    let announce = |what: &str| output::note(&format!("measuring {what} ..."));
    let mut found = Calibration {
        version: VERSION,
        taken_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs()),
        tidepool: env!("CARGO_PKG_VERSION").to_owned(),
        warnings: Vec::new(),
        busy: false,
        machine,
        memory: None,
        memory_one_stream: None,
        memory_write: None,
        memory_latency_us: None,
        disk: None,
        pfs: None,
        network: None,
    };
    if arguments.memory {
        announce("memory");
        let directory = std::env::temp_dir();
        let threads = found.machine.processors.min(arguments.streams);
        let bytes = memory_bytes(arguments.memory_bytes.0)?;
        let memory = memory::measure(&directory, bytes, threads, bounds.repeats, interrupted)?;
        found.memory = Some(memory.all);
        found.memory_one_stream = Some(memory.one);
        found.memory_write = Some(memory.write);
        found.memory_latency_us = Some(memory.latency_us);
    }
    for (directory, name, slot) in [
        (&arguments.disk, "the local disk", &mut found.disk),
        (&arguments.pfs, "the PFS", &mut found.pfs),
    ] {
        if let Some(directory) = directory {
            announce(name);
            *slot = Some(volume::measure(directory, bounds, interrupted)?);
        }
    }
    if let Some(address) = arguments.network_to {
        announce("the network");
        let span = bounds.time_max.min(Duration::from_secs(2));
        let (streams, repeats) = (bounds.streams, bounds.repeats);
        found.network = Some(network::measure(address, streams, repeats, span, interrupted)?);
    }
    let busy = watch.end().note();
    found.busy = busy.is_some();
    found.warnings = busy.into_iter().chain(doubts(&found)).collect();
    Ok(found)
}

/// Refuses what this machine's memory cannot hold beside its other work.
fn memory_bytes(bytes: u64) -> Result<u64> {
    const MIB: u64 = 1 << 20;
    const BYTES_MIN: u64 = 16 * MIB;
    let refuse = |detail: String, remedy: String| {
        Err(Error::new(ErrorKind::InvalidInput, "reading --memory-bytes", detail).remedy(remedy))
    };
    let most = tidepool_daemon::machine::available_bytes().unwrap_or_default() / 8;
    if bytes > most {
        let free = output::size(most);
        let detail = format!("{} asked for, {free} may be used", output::size(bytes));
        return refuse(
            detail,
            match most / MIB * MIB {
                0..BYTES_MIN => "end programs that use memory first".to_owned(),
                most => format!("give --memory-bytes {} or less", output::size(most)),
            },
        );
    }
    if bytes < BYTES_MIN {
        return refuse(
            "less than 16MiB".to_owned(),
            "caches of processors hold as much".to_owned(),
        );
    }
    // Whole requests make the arithmetic of reading around the file simple.
    Ok(bytes / MIB * MIB)
}

fn named(found: &Calibration) -> Vec<(String, &Measured)> {
    let single = [
        ("memory, all threads, read", found.memory.as_ref()),
        ("memory, one thread, read", found.memory_one_stream.as_ref()),
        ("memory, one thread, write", found.memory_write.as_ref()),
        ("network", found.network.as_ref()),
    ];
    let mut all: Vec<(String, &Measured)> = single
        .into_iter()
        .filter_map(|(name, measured)| Some((name.to_owned(), measured?)))
        .collect();
    for (name, volume) in [("local disk", &found.disk), ("PFS", &found.pfs)] {
        if let Some(volume) = volume {
            all.push((format!("{name}, read"), &volume.read));
            all.push((format!("{name}, write"), &volume.write));
        }
    }
    all
}

/// What makes figures doubtful.
fn doubts(found: &Calibration) -> Vec<String> {
    let noisy = named(found).into_iter().filter(|(_, measured)| measured.spread() > SPREAD_MAX);
    let mut doubts: Vec<String> = noisy
        .map(|(name, measured)| {
            let spread = measured.spread() * 100.0;
            format!("{name}: noisy, the repeats spread over {spread:.0}% of the median")
        })
        .collect();
    let cached = |volume: &Volume| {
        let place = &volume.directory;
        (!volume.direct).then(|| format!("{place}: no direct I/O there, so caches may show"))
    };
    doubts.extend([&found.disk, &found.pfs].into_iter().flatten().filter_map(cached));
    doubts
}

fn print(found: &Calibration, arguments: &CalibrateArguments) -> Result<()> {
    if arguments.json {
        return output::json(found);
    }
    let rows: Vec<Vec<String>> = named(found)
        .into_iter()
        .map(|(name, measured)| {
            let rate =
                |rate: f64| tidepool_model::BytesPerSecond::new(rate).map(|rate| rate.to_string());
            Ok(vec![
                name,
                rate(measured.bytes_per_second)?,
                rate(measured.lowest)?,
                rate(measured.highest)?,
                measured.repeats.to_string(),
                measured.how.clone(),
            ])
        })
        .collect::<Result<_>>()?;
    let header = ["what", "median", "lowest", "highest", "repeats", "how"];
    output::table(&header, &[false, true, true, true, true, false], &rows);
    let latencies = [
        ("memory, 4 KiB read", found.memory_latency_us),
        ("local disk, 4 KiB read", found.disk.as_ref().map(|volume| volume.latency_us)),
        ("PFS, 4 KiB read", found.pfs.as_ref().map(|volume| volume.latency_us)),
    ];
    for (name, latency) in latencies {
        if let Some(latency) = latency {
            output::line(&format!("latency of {name}: {latency:.1} µs"));
        }
    }
    for warning in &found.warnings {
        output::note(&format!("warning: {warning}"));
    }
    match &arguments.output {
        Some(path) => output::line(&format!("written: {}", path.display())),
        None => output::note("not kept; --output FILE writes it for `model` and `plan`"),
    }
    Ok(())
}
