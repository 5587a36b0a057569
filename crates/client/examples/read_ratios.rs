//! Prints reads of resident bytes through the library beside raw reads of tmpfs: random 4 KiB reads
//! with a histogram, and 1 MiB sequential reads. Both sides are measured in turns in one run, so
//! that whatever else the machine does meets both. It times, so it is no test.
//!
//! `cargo run --release -p tidepool-client --example read_ratios [-- FILE_MIB [SOCKET FILE]]`:
//! with a socket and a file, the node at that socket is measured instead of one in miniature.

use std::error::Error;
use std::fs::{File, OpenOptions};
use std::hint::black_box;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use hdrhistogram::Histogram;
use tidepool_client::{Client, ClientOptions};
use tidepool_fake_node as fake;
use tidepool_node::server::{Server, ServerLimits};

const SMALL_BYTES: usize = 4 << 10;
const LARGE_BYTES: usize = 1 << 20;
const ROUNDS: usize = 20;
const READS_PER_ROUND: usize = 20_000;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

struct Contest {
    raw: File,
    library: tidepool_client::File,
    length: u64,
    chance: u64,
}

impl Contest {
    fn offset(&mut self) -> u64 {
        self.chance ^= self.chance << 13;
        self.chance ^= self.chance >> 7;
        self.chance ^= self.chance << 17;
        self.chance % (self.length / SMALL_BYTES as u64) * SMALL_BYTES as u64
    }

    /// Seconds for a round of random reads, each recorded if there is a histogram.
    fn random(&mut self, raw: bool, mut histogram: Option<&mut Histogram<u64>>) -> Result<f64> {
        let mut buffer = vec![0; SMALL_BYTES];
        let offsets: Vec<u64> = (0..READS_PER_ROUND).map(|_| self.offset()).collect();
        let started = Instant::now();
        for offset in offsets {
            let before = histogram.is_some().then(Instant::now);
            if raw {
                self.raw.read_exact_at(&mut buffer, offset)?;
            } else {
                let outcome = self.library.read_at(offset, &mut buffer)?;
                assert_eq!(outcome.levels.mapped, SMALL_BYTES as u64, "measured hits alone");
            }
            black_box(&buffer);
            if let (Some(histogram), Some(before)) = (&mut histogram, before) {
                histogram.record(before.elapsed().as_nanos() as u64)?;
            }
        }
        Ok(started.elapsed().as_secs_f64())
    }

    fn sequential(&mut self, raw: bool) -> Result<f64> {
        let mut buffer = vec![0; LARGE_BYTES];
        let started = Instant::now();
        for offset in (0..self.length).step_by(LARGE_BYTES) {
            if raw {
                self.raw.read_exact_at(&mut buffer, offset)?;
            } else {
                self.library.read_at(offset, &mut buffer)?;
            }
            black_box(&buffer);
        }
        Ok(started.elapsed().as_secs_f64())
    }

    fn compare(
        &mut self,
        name: &str,
        bytes: f64,
        work: fn(&mut Self, bool) -> Result<f64>,
    ) -> Result<()> {
        let (mut raw, mut library) = (Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            raw.push(work(self, true)?);
            library.push(work(self, false)?);
        }
        let (raw, library) = (median(raw), median(library));
        let rate = |seconds: f64| bytes / seconds / 1e9;
        println!(
            "{name:<24} raw {:>6.2} GB/s   library {:>6.2} GB/s   ratio {:.3}",
            rate(raw),
            rate(library),
            raw / library
        );
        Ok(())
    }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn print_histogram(name: &str, histogram: &Histogram<u64>) {
    let at = |percentile| histogram.value_at_percentile(percentile) as f64 / 1e3;
    println!(
        "{name:<24} p50 {:.2}   p90 {:.2}   p99 {:.2}   p99.9 {:.2}   max {:.0} µs",
        at(50.0),
        at(90.0),
        at(99.0),
        at(99.9),
        histogram.max() as f64 / 1e3
    );
}

fn miniature(directory: &Path, length: u64) -> Result<(Server, PathBuf, PathBuf)> {
    let file = directory.join("measured");
    let mut bytes = vec![0; length as usize];
    bytes
        .chunks_mut(8)
        .enumerate()
        .for_each(|(at, chunk)| chunk.copy_from_slice(&at.to_le_bytes()));
    std::fs::write(&file, bytes)?;
    let node = fake::FakeNode::new();
    let service = Arc::new(fake::FakeService(node));
    let socket = directory.join("socket");
    let limits = ServerLimits::default();
    let server = Server::start(&socket, Arc::clone(&service) as _, service, limits)?;
    Ok((server, socket, file))
}

fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let length = arguments.first().map_or(Ok(512), |text| text.parse::<u64>())? << 20;
    let directory = tempfile::tempdir_in("/dev/shm")?;
    let (_server, socket, path) = match &arguments[..] {
        [_, socket, file] => (None, PathBuf::from(socket), PathBuf::from(file)),
        _ => {
            let (server, socket, file) = miniature(directory.path(), length)?;
            (Some(server), socket, file)
        }
    };
    let client = Client::connect(ClientOptions { socket: Some(socket), ..Default::default() });
    let library = client.open(&path, tidepool_client::OpenOptions::read())?;
    let length = library.size()? / LARGE_BYTES as u64 * LARGE_BYTES as u64;
    let raw_path = directory.path().join("raw");
    std::fs::copy(&path, &raw_path)?;
    let raw = OpenOptions::new().read(true).open(raw_path)?;
    let mut contest = Contest { raw, library, length, chance: 0x9e37_79b9_7f4a_7c15 };
    contest.sequential(false)?;

    let random = |contest: &mut Contest, raw: bool| contest.random(raw, None);
    let small = (READS_PER_ROUND * SMALL_BYTES) as f64;
    contest.compare("random 4 KiB", small, random)?;
    contest.compare("sequential 1 MiB", length as f64, Contest::sequential)?;
    for (name, raw) in [("raw 4 KiB", true), ("library 4 KiB", false)] {
        let mut histogram = Histogram::new(3)?;
        for _ in 0..ROUNDS {
            contest.random(raw, Some(&mut histogram))?;
        }
        print_histogram(name, &histogram);
    }
    Ok(())
}
