//! What `tidepool doctor --cluster` asks for: latency and rate from each node to another one.
//!
//! A round is one shift of the list: each node measures the one that comes so many places after it,
//! all at the same time, so each node gives to one and takes from one. With n nodes, n - 1 rounds
//! measure all pairs. A node takes part in one round at a time.

use std::fs::File;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tidepool_cluster::NodeName;
use tidepool_peer::{Block, BlockRequest, Bytes, Refusal};
use tidepool_proto::cluster::PairReport;
use tidepool_proto::{Error, ErrorKind, Result};

use super::{Cluster, threads};
use crate::node::Node;

/// Questions of a measurement.
const QUESTIONS: usize = 11;
/// Streams, blocks of each, and the time after which none is asked for any more.
const STREAMS: usize = 4;
const BLOCKS: usize = 16;
const BLOCK_BYTES: usize = 1 << 20;
const TIME: Duration = Duration::from_millis(500);
/// Longest wait for what another node measures.
const LIMIT: Duration = Duration::from_secs(10);

/// What a node answers to a small question.
#[derive(Debug, Serialize, Deserialize)]
struct Pong {
    clock_ms: i64,
    release: String,
}

/// What is kept for measurements.
#[derive(Default)]
pub struct Measuring {
    /// Held while this node measures.
    under_way: Mutex<()>,
    /// Bytes to send, after the first question for them.
    block: Mutex<Option<Arc<std::os::fd::OwnedFd>>>,
}

impl Measuring {
    fn block(&self) -> std::io::Result<Arc<std::os::fd::OwnedFd>> {
        let mut block = self.block.lock();
        if let Some(block) = &*block {
            return Ok(block.clone());
        }
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let memory = rustix::fs::memfd_create("tidepool-measurement", flags)?;
        let mut file = File::from(memory);
        file.write_all(&vec![0x5a; BLOCK_BYTES])?;
        Ok(block.insert(Arc::new(file.into())).clone())
    }
}

fn clock_ms() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_millis() as i64
}

/// A question for a block of no file: no file has inode number 0.
fn request() -> BlockRequest {
    BlockRequest {
        file: [0, 0],
        version: [0; 3],
        offset: 0,
        length: BLOCK_BYTES as u32,
        may_fill: false,
    }
}

/// Whether a block is asked for to measure, and not of a file.
pub fn is_of_measurement(asked: &BlockRequest) -> bool {
    asked.file == [0, 0]
}

/// Answers a small question.
pub fn pong() -> Vec<u8> {
    let release = env!("CARGO_PKG_VERSION").to_owned();
    postcard::to_stdvec(&Pong { clock_ms: clock_ms(), release }).unwrap_or_default()
}

impl Cluster {
    /// Bytes for another node that measures.
    pub(super) fn measurement_block(&self, asked: &BlockRequest) -> Result<Block, Refusal> {
        if *asked != request() {
            return Err(Refusal::NotHeld);
        }
        let file = self.measuring.block().map_err(|_| Refusal::Busy)?;
        Ok(Block { bytes: Bytes::File { file, offset: 0 }, confirm: Box::new(|| true) })
    }

    /// What this node measures of another one.
    pub(super) fn measure_one(&self, to: &NodeName) -> PairReport {
        let pair = || PairReport {
            from: self.me.to_string(),
            to: to.to_string(),
            ..PairReport::default()
        };
        let Some(_alone) = self.measuring.under_way.try_lock() else {
            let error = Some("it measures for somebody else; ask again".to_owned());
            return PairReport { error, ..pair() };
        };
        let mut report = pair();
        if let Err(error) = self.measure_latency(to, &mut report) {
            return PairReport { error: Some(error), ..report };
        }
        match self.measure_rate(to) {
            Ok(rate) => report.rate_bytes_per_s = Some(rate),
            Err(error) => report.error = Some(error),
        }
        report
    }

    fn measure_latency(&self, to: &NodeName, report: &mut PairReport) -> Result<(), String> {
        let mut times = Vec::new();
        for _ in 0..QUESTIONS {
            let (began, clock_before) = (Instant::now(), clock_ms());
            let reply =
                self.transport.call(to.as_str(), &threads::about_clock(), self.config.peer_timeout);
            let reply = reply.map_err(|error| error.to_string())?;
            times.push(began.elapsed().as_micros() as u64);
            let pong: Pong = postcard::from_bytes(&reply)
                .map_err(|_| "it answers what this release does not understand".to_owned())?;
            let middle = clock_before.midpoint(clock_ms());
            report.clock_ahead_ms = Some(pong.clock_ms - middle);
            report.release = Some(pong.release);
        }
        times.sort_unstable();
        report.latency_us = Some(times[QUESTIONS / 2]);
        report.latency_us_max = times.last().copied();
        Ok(())
    }

    /// Bytes a second from the memory of another node.
    fn measure_rate(&self, to: &NodeName) -> Result<u64, String> {
        let (began, received) = (Instant::now(), AtomicU64::new(0));
        let stream = || {
            let mut into = vec![0; BLOCK_BYTES];
            for _ in 0..BLOCKS {
                if began.elapsed() > TIME {
                    break;
                }
                let timeout = self.config.peer_timeout;
                self.transport.fetch(to.as_str(), &request(), &mut into, timeout)?;
                received.fetch_add(BLOCK_BYTES as u64, Ordering::Relaxed);
            }
            Ok::<_, tidepool_peer::PeerError>(())
        };
        std::thread::scope(|scope| {
            let streams: Vec<_> = (0..STREAMS).map(|_| scope.spawn(stream)).collect();
            let join = |stream: std::thread::ScopedJoinHandle<'_, _>| {
                stream.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            streams.into_iter().try_for_each(join)
        })
        .map_err(|error: tidepool_peer::PeerError| error.to_string())?;
        let bytes = received.load(Ordering::Relaxed) as f64;
        Ok((bytes / began.elapsed().as_secs_f64()) as u64)
    }

    /// What another node measures of a third one.
    fn have_measured(&self, from: &NodeName, to: &NodeName) -> PairReport {
        if *from == self.me {
            return self.measure_one(to);
        }
        let reply = self.transport.call(from.as_str(), &threads::about_measurement(to), LIMIT);
        let reply = reply.map_err(|error| error.to_string());
        let unknown = || "it answers what this release does not understand".to_owned();
        let report = reply.and_then(|reply| serde_json::from_slice(&reply).map_err(|_| unknown()));
        report.unwrap_or_else(|error| PairReport {
            from: from.to_string(),
            to: to.to_string(),
            error: Some(format!("{from} was not asked: {error}")),
            ..PairReport::default()
        })
    }
}

impl Node {
    /// Has each node measure the one that comes `shift` places after it in the list.
    pub(crate) fn measure(&self, shift: u32) -> Result<Vec<PairReport>> {
        let what = "measuring between nodes";
        let cluster = self.core.cluster().ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, what, "this node stands alone")
                .remedy("start it with `cluster_nodes` and `cluster_key_file`")
        })?;
        let nodes: Vec<NodeName> =
            cluster.roster.read().members().iter().map(|member| member.name.clone()).collect();
        let shift = shift as usize;
        if shift == 0 || shift >= nodes.len() {
            let detail = format!("{shift} is not within 1 and {}", nodes.len() - 1);
            return Err(Error::new(ErrorKind::InvalidInput, what, detail));
        }
        let pairs = (0..nodes.len()).map(|at| (&nodes[at], &nodes[(at + shift) % nodes.len()]));
        Ok(std::thread::scope(|scope| {
            let asked: Vec<_> = pairs
                .map(|(from, to)| scope.spawn(move || cluster.have_measured(from, to)))
                .collect();
            asked.into_iter().filter_map(|thread| thread.join().ok()).collect()
        }))
    }
}
