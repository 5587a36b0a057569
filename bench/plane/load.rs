//! Simulated nodes. A node has a store that is always full, and a demand that stands still with
//! some noise or goes as a recorded trace does. It sends what an agent would send, when an agent
//! would, and its store follows its ceilings.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Args;
use hdrhistogram::Histogram;
use serde_json::{Value, json};
use tidepool_plane::meminfo::MachineMemory;
use tidepool_plane::rhythm::Rhythm;
use tidepool_plane::sample::{ObservedState, Origin, Sample, SampleWriter};

use crate::wire::Connection;
use crate::{follow, wall_clock_ns};

const SAMPLES: &str = "tidepool-samples";
const GIB: u64 = 1 << 30;
const TOTAL_BYTES: u64 = 128 * GIB;
const STORE_BYTES: u64 = 64 * GIB;
const BLOCK_BYTES: u64 = 64 << 20;
const REST_BYTES: u64 = 40 * GIB;
/// From the lowest to the highest demand of a trace.
const SPAN_BYTES: u64 = 44 * GIB;
/// What moves all the time, and is less than an agent sends a message for.
const NOISE_BYTES: u64 = 40 << 20;
/// Samples whose times are kept for an answer.
const KEPT: usize = 512;
const LONGEST_US: u64 = 60_000_000;
const STACK_BYTES: usize = 128 << 10;
/// Steps of the generator of noise: a multiplicative one.
const NOISE_STEP: u64 = 6_364_136_223_846_793_005;

/// How much is sent.
#[derive(Args, Clone, Debug)]
pub struct LoadOptions {
    /// The broker.
    #[arg(long)]
    kafka: String,
    /// How many nodes.
    #[arg(long)]
    nodes: u32,
    /// Time between two samples of a node.
    #[arg(long)]
    interval_ms: u64,
    /// Samples in a message, while nothing moves.
    #[arg(long)]
    batch: u64,
    /// Of a hundred nodes so many go as the traces do.
    #[arg(long)]
    moving: u32,
    /// Traces of demand: time in seconds and bytes.
    #[arg(long)]
    traces: Vec<PathBuf>,
    /// Partitions of the topics of samples and of ceilings.
    #[arg(long, num_args = 2)]
    partitions: Vec<u32>,
    /// Time before and in which is measured.
    #[arg(long, num_args = 2)]
    seconds: Vec<u64>,
}

/// What all nodes write into.
struct Figures {
    measuring: AtomicBool,
    messages: AtomicU64,
    samples: AtomicU64,
    ceilings: AtomicU64,
    /// From the sample, and from the message with it, to the ceiling.
    since_us: Mutex<[Histogram<u64>; 2]>,
}

/// What the two threads of a node share.
struct Shared {
    capacity_bytes: AtomicU64,
    /// When the last ceiling came, and for how long it holds.
    lease: Mutex<Option<(Instant, u64)>>,
    /// Number of a sample, when it was taken, and when it was sent.
    times: Mutex<VecDeque<(u64, Instant, Instant)>>,
}

/// Runs all nodes for the time, and prints what was measured.
pub fn run(options: &LoadOptions) -> Result<()> {
    let traces = options.traces.iter().map(trace).collect::<Result<Vec<_>>>()?;
    let histogram = || Histogram::new_with_bounds(1, LONGEST_US, 3);
    let figures = Arc::new(Figures {
        measuring: AtomicBool::new(false),
        messages: AtomicU64::new(0),
        samples: AtomicU64::new(0),
        ceilings: AtomicU64::new(0),
        since_us: Mutex::new([histogram()?, histogram()?]),
    });
    for number in 0..options.nodes {
        start(number, options, &traces, &figures)?;
    }
    let [before, measured] = [0, 1].map(|at| options.seconds.get(at).copied().unwrap_or(0));
    std::thread::sleep(Duration::from_secs(before));
    figures.measuring.store(true, Ordering::Relaxed);
    println!("measuring");
    std::thread::sleep(Duration::from_secs(measured));
    figures.measuring.store(false, Ordering::Relaxed);
    println!("measured");
    println!("{}", figures.said());
    // Threads that wait for the broker end with the process.
    std::process::exit(0)
}

impl Figures {
    fn count(&self, counter: &AtomicU64, count: u64) {
        if self.measuring.load(Ordering::Relaxed) {
            counter.fetch_add(count, Ordering::Relaxed);
        }
    }

    fn said(&self) -> Value {
        let since_us = self.since_us.lock().unwrap_or_else(PoisonError::into_inner);
        let ms = |at: usize, part| since_us[at].value_at_quantile(part) as f64 / 1e3;
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        json!({
            "messages": count(&self.messages), "samples": count(&self.samples),
            "ceilings": count(&self.ceilings),
            "taken_ms": [ms(0, 0.5), ms(0, 0.99)], "sent_ms": [ms(1, 0.5), ms(1, 0.99)],
        })
    }
}

/// Starts the threads of a node. A node that lost its broker ends the program.
fn start(
    number: u32,
    options: &LoadOptions,
    traces: &[Vec<(f64, f64)>],
    figures: &Arc<Figures>,
) -> Result<()> {
    let moves = u64::from(number) * 61 % 100 < u64::from(options.moving);
    let trace = traces.get(number as usize % traces.len().max(1)).filter(|_| moves);
    let shared = Arc::new(Shared {
        capacity_bytes: AtomicU64::new(STORE_BYTES),
        lease: Mutex::new(None),
        times: Mutex::new(VecDeque::with_capacity(KEPT)),
    });
    let node = format!("node{number}");
    let mut sender = Sender {
        options: options.clone(),
        number,
        node: node.clone(),
        trace: trace.cloned(),
        noise: u64::from(number) * 2 + 1,
        shared: Arc::clone(&shared),
        figures: Arc::clone(figures),
    };
    let builder = || std::thread::Builder::new().stack_size(STACK_BYTES);
    builder().spawn(move || die(sender.run()))?;
    let (options, figures) = (options.clone(), Arc::clone(figures));
    builder().spawn(move || {
        let [_, partitions] = [0, 1].map(|at| options.partitions[at]);
        die(follow(&options.kafka, &node, partitions, |message| shared.take(message, &figures)));
    })?;
    Ok(())
}

fn die(ended: Result<()>) {
    if let Err(error) = ended {
        eprintln!("{error:#}");
        std::process::exit(1);
    }
}

impl Shared {
    fn take(&self, message: &[u8], figures: &Figures) -> Result<()> {
        let now = Instant::now();
        let ceiling: Value = serde_json::from_slice(message)?;
        let number = ceiling["sample_number"].as_u64().context("no number")?;
        let bytes = ceiling["stores"][0]["ceiling_bytes"].as_u64().context("no ceiling")?;
        let lease_ms = ceiling["lease_ms"].as_u64().context("no lease")?;
        self.capacity_bytes.store(bytes, Ordering::Relaxed);
        *self.lease.lock().unwrap_or_else(PoisonError::into_inner) = Some((now, lease_ms));
        figures.count(&figures.ceilings, 1);
        let times = self.times.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((_, taken, sent)) = times.iter().find(|it| it.0 == number).copied() else {
            return Ok(());
        };
        drop(times);
        if figures.measuring.load(Ordering::Relaxed) {
            let mut since_us = figures.since_us.lock().unwrap_or_else(PoisonError::into_inner);
            for (histogram, since) in since_us.iter_mut().zip([taken, sent]) {
                histogram.saturating_record((now - since).as_micros() as u64);
            }
        }
        Ok(())
    }
}

impl Shared {
    /// Lease of the ceiling that holds.
    fn lease_ms(&self) -> Option<u64> {
        let (since, lease_ms) = (*self.lease.lock().unwrap_or_else(PoisonError::into_inner))?;
        (since.elapsed() < Duration::from_millis(lease_ms)).then_some(lease_ms)
    }
}

struct Sender {
    options: LoadOptions,
    number: u32,
    node: String,
    trace: Option<Vec<(f64, f64)>>,
    noise: u64,
    shared: Arc<Shared>,
    figures: Arc<Figures>,
}

impl Sender {
    fn run(&mut self) -> Result<()> {
        let interval = Duration::from_millis(self.options.interval_ms);
        // Nodes are not in step.
        let part = f64::from(self.number) / f64::from(self.options.nodes);
        let lag = interval.mul_f64(self.options.batch as f64 * part);
        std::thread::sleep(lag);
        let rhythm = Rhythm::new(self.options.interval_ms, None, Some(self.options.batch))?;
        let mut connection = Connection::open(&self.options.kafka)?;
        let partition = (self.number % self.options.partitions[0]) as i32;
        let mut writer = SampleWriter::new(&Origin {
            cluster: "bench".into(),
            node: self.node.clone(),
            rack: Some(format!("rack{}", self.number / 32)),
            start: format!("start{}", wall_clock_ns()),
            step_ms: self.options.interval_ms,
        });
        let (began, mut next) = (Instant::now(), Instant::now());
        let (mut waiting, mut taken, mut last) = (Vec::new(), Vec::new(), Sample::default());
        for number in 1.. {
            next += interval;
            std::thread::sleep(next.saturating_duration_since(Instant::now()));
            let sample = self.sample(number, began.elapsed().as_secs_f64() + part * 60.0);
            waiting.push(sample.clone());
            taken.push(Instant::now());
            let movement = sample.movement(&last);
            if waiting.len() as u64 >= rhythm.message_samples(movement, self.shared.lease_ms()) {
                self.remember(&waiting, &taken);
                connection.produce(SAMPLES, partition, &self.node, writer.message(&waiting))?;
                self.figures.count(&self.figures.messages, 1);
                self.figures.count(&self.figures.samples, waiting.len() as u64);
                last = sample;
                waiting.clear();
                taken.clear();
            }
        }
        Ok(())
    }

    fn remember(&self, samples: &[Sample], taken: &[Instant]) {
        let sent = Instant::now();
        let mut times = self.shared.times.lock().unwrap_or_else(PoisonError::into_inner);
        for (sample, taken) in samples.iter().zip(taken) {
            if times.len() == KEPT {
                times.pop_front();
            }
            times.push_back((sample.number, *taken, sent));
        }
    }

    fn sample(&mut self, number: u64, time_s: f64) -> Sample {
        self.noise = self.noise.wrapping_mul(NOISE_STEP).wrapping_add(1);
        let noise_bytes = (self.noise >> 33) % NOISE_BYTES;
        let share = self.trace.as_ref().map_or(0.0, |trace| share_at(trace, time_s));
        let demand_bytes = REST_BYTES + noise_bytes + (share * SPAN_BYTES as f64) as u64;
        let capacity_bytes = self.shared.capacity_bytes.load(Ordering::Relaxed);
        let available = TOTAL_BYTES.saturating_sub(demand_bytes + capacity_bytes);
        let memory = MachineMemory { total_bytes: TOTAL_BYTES, available_bytes: Some(available) };
        let store = ObservedState {
            capacity_bytes,
            resident_bytes: capacity_bytes,
            max_bytes: STORE_BYTES,
            block_bytes: BLOCK_BYTES,
            ..ObservedState::default()
        };
        Sample {
            number,
            at_ms: wall_clock_ns() / 1_000_000,
            memory,
            store: Some(store),
            ..Sample::default()
        }
    }
}

/// Times in seconds from 0, and parts of the way from the lowest to the highest demand.
fn trace(path: &PathBuf) -> Result<Vec<(f64, f64)>> {
    let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
    let point = |line: &str| {
        let (time, bytes) = line.split_once(',')?;
        Some((time.parse::<f64>().ok()?, bytes.trim().parse::<f64>().ok()?))
    };
    let mut points: Vec<(f64, f64)> = text.lines().filter_map(point).collect();
    let bytes = || points.iter().map(|point| point.1);
    let (low, high) = (bytes().fold(f64::INFINITY, f64::min), bytes().fold(0.0, f64::max));
    for point in &mut points {
        point.1 = (point.1 - low) / (high - low).max(1.0);
    }
    anyhow::ensure!(!points.is_empty(), "{} has no points", path.display());
    Ok(points)
}

/// The last point at or before a time; behind its end a trace begins anew.
fn share_at(trace: &[(f64, f64)], time_s: f64) -> f64 {
    let length_s = trace.last().map_or(1.0, |point| point.0).max(1.0);
    let time_s = time_s % length_s;
    let behind = trace.partition_point(|point| point.0 <= time_s);
    trace[behind.saturating_sub(1)].1
}
