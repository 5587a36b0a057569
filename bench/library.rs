//! Times positioned reads of 4 KiB by the client library and by the system call on another file,
//! in turns. Prints one JSON object; judges nothing.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use hdrhistogram::Histogram;
use serde_json::json;
use tidepool_client::{Client, ClientOptions, OpenOptions};
use tidepool_proto::BytesByLevel;

const READ_BYTES: usize = 4_096;

/// Times small reads of a resident file.
#[derive(Debug, Parser)]
struct Arguments {
    /// Socket of the node.
    #[arg(long)]
    socket: PathBuf,
    /// The file on the lower level, resident in the node.
    #[arg(long)]
    file: PathBuf,
    /// A copy of it on a tmpfs.
    #[arg(long)]
    raw: PathBuf,
    /// Reads in a round.
    #[arg(long)]
    reads: u64,
    /// Rounds.
    #[arg(long)]
    rounds: u32,
}

/// Figures of one way to read, a value a round.
#[derive(Default)]
struct Figures {
    reads_per_s: Vec<f64>,
    p50_us: Vec<f64>,
    p99_us: Vec<f64>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let options = ClientOptions { socket: Some(arguments.socket), ..ClientOptions::default() };
    let client = Client::connect(options);
    let file = client.open(&arguments.file, OpenOptions::read())?;
    let raw = File::open(&arguments.raw)?;
    let blocks = raw.metadata()?.len() / READ_BYTES as u64;
    let mut levels = BytesByLevel::default();
    let mut ours = |offset: u64, buffer: &mut [u8]| -> Result<()> {
        let outcome = file.read_at(offset, buffer)?;
        anyhow::ensure!(outcome.bytes == buffer.len(), "short read at {offset}");
        levels.merge(&outcome.levels);
        Ok(())
    };
    let mut theirs =
        |offset: u64, buffer: &mut [u8]| raw.read_exact_at(buffer, offset).context("raw read");

    compare(blocks, &mut ours, &mut theirs)?;
    let (mut of_ours, mut of_raw) = (Figures::default(), Figures::default());
    let mut histogram = Histogram::<u64>::new(3)?;
    for round in 0..u64::from(arguments.rounds) {
        let seed = round + 1;
        let (rate, latencies) = measure(blocks, arguments.reads, seed, &mut ours)?;
        of_ours.enter(rate, &latencies);
        histogram.add(&latencies)?;
        let (rate, latencies) = measure(blocks, arguments.reads, seed, &mut theirs)?;
        of_raw.enter(rate, &latencies);
    }
    let result = json!({
        "reads_per_s": of_ours.reads_per_s,
        "p50_us": of_ours.p50_us,
        "p99_us": of_ours.p99_us,
        "raw_reads_per_s": of_raw.reads_per_s,
        "raw_p50_us": of_raw.p50_us,
        "raw_p99_us": of_raw.p99_us,
        "histogram": draw(&histogram),
        "levels": levels,
    });
    println!("{result}");
    Ok(())
}

type Read<'a> = dyn FnMut(u64, &mut [u8]) -> Result<()> + 'a;

/// Both files must hold the same bytes, or the comparison means nothing.
fn compare(blocks: u64, ours: &mut Read<'_>, theirs: &mut Read<'_>) -> Result<()> {
    let (mut left, mut right) = ([0; READ_BYTES], [0; READ_BYTES]);
    for block in (0..blocks).step_by(97) {
        ours(block * READ_BYTES as u64, &mut left)?;
        theirs(block * READ_BYTES as u64, &mut right)?;
        anyhow::ensure!(left == right, "block {block} differs");
    }
    Ok(())
}

/// Reads a second without a clock between them, then the latency of each with one.
fn measure(
    blocks: u64,
    reads: u64,
    seed: u64,
    read: &mut Read<'_>,
) -> Result<(f64, Histogram<u64>)> {
    let mut buffer = [0; READ_BYTES];
    let started = Instant::now();
    for offset in offsets(blocks, reads, seed) {
        read(offset, &mut buffer)?;
    }
    let rate = reads as f64 / started.elapsed().as_secs_f64();
    let mut latencies = Histogram::<u64>::new(3)?;
    for offset in offsets(blocks, reads, seed) {
        let started = Instant::now();
        read(offset, &mut buffer)?;
        latencies.saturating_record(started.elapsed().as_nanos() as u64);
    }
    Ok((rate, latencies))
}

fn offsets(blocks: u64, reads: u64, seed: u64) -> impl Iterator<Item = u64> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..reads).map(move |_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % blocks * READ_BYTES as u64
    })
}

impl Figures {
    fn enter(&mut self, rate: f64, latencies: &Histogram<u64>) {
        let at = |quantile| latencies.value_at_quantile(quantile) as f64 / 1e3;
        self.reads_per_s.push(rate);
        self.p50_us.push(at(0.5));
        self.p99_us.push(at(0.99));
    }
}

/// A histogram for people: powers of two of microseconds.
fn draw(histogram: &Histogram<u64>) -> String {
    const WIDTH: f64 = 50.0;
    let mut lines = vec!["latency of a read".to_owned()];
    for bucket in histogram.iter_log(250, 2.0) {
        let share = bucket.count_since_last_iteration() as f64 / histogram.len() as f64;
        if share > 0.0 {
            let bar = "#".repeat((share * WIDTH).ceil() as usize);
            let most_us = bucket.value_iterated_to() as f64 / 1e3;
            lines.push(format!("to {most_us:>8.2} µs {:>7.3} % {bar}", share * 100.0));
        }
    }
    lines.join("\n")
}
