//! Measures memory as the store serves it: resident bytes of a real node, read through the client
//! library by one thread and by all, and bytes written in mode `memory`. The node is started for
//! this and ended again.

use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use tidepool_client::{Client, File, OpenOptions};
use tidepool_proto::{Error, ErrorKind, Result, WriteMode};

use super::file::{Measured, median};
use crate::mountain::own_node::{OwnNode, Scratch};
use tidepool_cli::connection::Connection;
use tidepool_cli::target::Target;
use tidepool_terminal::interruption::check;

/// Bytes of a read: the upper buffer of the papers.
const REQUEST_BYTES: usize = 1 << 20;
const SMALL_BYTES: usize = 4096;
/// Small reads in one timing.
const SMALL_READS: u32 = 2_000;
/// Time of one repeat.
const SPAN: Duration = Duration::from_millis(300);

/// What was found.
#[derive(Clone, Debug)]
pub struct Memory {
    /// Reads by all threads.
    pub all: Measured,
    /// Reads by one thread.
    pub one: Measured,
    /// Writes by one thread.
    pub write: Measured,
    /// Time of a small read in microseconds.
    pub latency_us: f64,
}

/// Measures with a file of `bytes` below `directory`, by up to `streams` threads.
pub fn measure(
    directory: &Path,
    bytes: u64,
    streams: u32,
    repeats: u32,
    interrupted: &AtomicBool,
) -> Result<Memory> {
    super::volume::check_room(directory, 2 * bytes, |most_bytes| {
        let fewer = super::volume::at_most("--memory-bytes", most_bytes / 2);
        format!("{fewer}; TMPDIR names another directory")
    })?;
    let pfs = Scratch::below(directory)?;
    // Room for the file that is read and the one that is written.
    let node = OwnNode::start(pfs.path(), 3 * bytes, false, &[])?;
    let connection = node.connect();
    let path = pfs.path().join("resident");
    fill(&path, bytes)?;
    load(&connection, &path)?;
    let client = connection.client();
    let rate = |threads: u32| -> Result<Vec<f64>> {
        let mut rates = Vec::new();
        for _ in 0..repeats {
            check(interrupted)?;
            rates.push(read_all(client, &path, bytes, threads)?);
        }
        Ok(rates)
    };
    let how = "client library, resident bytes, reads of 1 MiB";
    let one = Measured::of(rate(1)?, 1, how);
    let all = Measured::of(rate(streams)?, streams, how);
    let mut writes = Vec::new();
    for _ in 0..repeats {
        check(interrupted)?;
        writes.push(write_once(client, &pfs.path().join("written"), bytes)?);
    }
    let write = Measured::of(writes, 1, "client library, write mode memory");
    let latency_us = small_reads(&open(client, &path)?, repeats)?;
    Ok(Memory { all, one, write, latency_us })
}

/// Writes a file of bytes that are not all equal.
pub fn fill(path: &Path, bytes: u64) -> Result<()> {
    use std::io::Write;
    let failed = |source| Error::pfs(format!("writing {}", path.display()), source);
    let mut file = std::fs::File::create_new(path).map_err(failed)?;
    let part: Vec<u8> = (0..REQUEST_BYTES).map(|index| (index % 251) as u8).collect();
    let mut left = bytes;
    while left > 0 {
        let length = left.min(part.len() as u64);
        file.write_all(&part[..length as usize]).map_err(failed)?;
        left -= length;
    }
    file.sync_all().map_err(failed)
}

/// Brings a file in and makes sure that it stays.
pub fn load(connection: &Connection, path: &Path) -> Result<()> {
    let target = Target::open(path)?;
    // Stamps of a file just written may still be in motion, and then nothing is kept.
    for _ in 0..40 {
        connection.load(target.descriptor())?;
        let facts = connection.explain(target.descriptor())?;
        if facts.current && facts.resident_bytes == facts.size_bytes {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    let detail = format!("{} does not stay resident", path.display());
    Err(Error::new(ErrorKind::NotResident, "loading the file to measure with", detail))
}

fn open(client: &Client, path: &Path) -> Result<File> {
    client.open(path, OpenOptions::read())
}

/// Reads by `threads` at a time for a moment; bytes per second.
fn read_all(client: &Client, path: &Path, bytes: u64, threads: u32) -> Result<f64> {
    let files: Vec<File> = (0..threads).map(|_| open(client, path)).collect::<Result<_>>()?;
    let begun = Instant::now();
    let total = std::thread::scope(|scope| {
        let readers: Vec<_> = files
            .iter()
            .enumerate()
            .map(|(number, file)| {
                // Each begins elsewhere, so that they do not share what a processor caches.
                let start = bytes / u64::from(threads) * number as u64;
                scope.spawn(move || read_span(file, start, bytes, begun))
            })
            .collect();
        let parts = readers.into_iter().map(|reader| {
            reader.join().unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Internal, "reading memory", "a thread failed"))
            })
        });
        parts.sum::<Result<u64>>()
    })?;
    Ok(total as f64 / begun.elapsed().as_secs_f64())
}

fn read_span(file: &File, start: u64, bytes: u64, begun: Instant) -> Result<u64> {
    let mut buffer = vec![0; REQUEST_BYTES];
    let mut offset = start / REQUEST_BYTES as u64 * REQUEST_BYTES as u64;
    let mut total = 0;
    while begun.elapsed() < SPAN {
        let outcome = file.read_at(offset % bytes, &mut buffer)?;
        if outcome.levels.pfs > 0 {
            let detail = "bytes came from the PFS that should be resident";
            return Err(Error::new(ErrorKind::NotResident, "reading memory", detail)
                .remedy("measure with less, as --memory-bytes 64MiB"));
        }
        total += outcome.bytes as u64;
        offset += REQUEST_BYTES as u64;
    }
    Ok(total)
}

fn write_once(client: &Client, path: &Path, bytes: u64) -> Result<f64> {
    let options = OpenOptions { write_mode: Some(WriteMode::Memory), ..OpenOptions::write() };
    let file = client.open(path, options)?;
    let part = vec![7; REQUEST_BYTES];
    let begun = Instant::now();
    let mut offset = 0;
    while offset < bytes {
        file.write_at(offset, &part)?;
        offset += REQUEST_BYTES as u64;
    }
    let rate = bytes as f64 / begun.elapsed().as_secs_f64();
    file.close()?;
    std::fs::remove_file(path)
        .map_err(|source| Error::pfs(format!("removing {}", path.display()), source))?;
    Ok(rate)
}

/// Median time of a small read in microseconds.
pub fn small_reads(file: &File, repeats: u32) -> Result<f64> {
    let mut buffer = vec![0; SMALL_BYTES];
    let mut times = Vec::new();
    for _ in 0..repeats.max(1) {
        let begun = Instant::now();
        for number in 0..u64::from(SMALL_READS) {
            file.read_at(number % 16 * SMALL_BYTES as u64, &mut buffer)?;
        }
        times.push(begun.elapsed().as_secs_f64() * 1e6 / f64::from(SMALL_READS));
    }
    times.sort_by(f64::total_cmp);
    Ok(median(&times))
}
