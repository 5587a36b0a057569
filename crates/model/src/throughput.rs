//! Throughput of one compute node, and of all together, for each storage: equations (1) to (7) of
//! the paper, (3-1) to (3-7) of the dissertation, with the extensions of [`Extensions`].
//!
//! Every result names the resource that limits it. Rates are in bytes per second, each averaged
//! over a large transfer; transient effects are not modelled.
//!
//! [`Extensions`]: crate::Extensions

use serde::{Deserialize, Serialize};
use tidepool_proto::Result;

use crate::cluster::{Cluster, Pfs};
use crate::quantity::{BytesPerSecond, NodeCount, Share};

/// Reading or writing.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// From storage.
    Read,
    /// To storage.
    Write,
}

/// A storage that a job may use.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Storage {
    /// HDFS on the disks of the compute nodes, reading blocks of the same node.
    HdfsLocal,
    /// HDFS, reading blocks of other nodes.
    HdfsRemote,
    /// The parallel file system alone.
    Pfs,
    /// Memory of the same node.
    MemoryLocal,
    /// Memory of other nodes.
    MemoryRemote,
    /// Memory over the parallel file system.
    TwoLevel {
        /// f: share of the read bytes that memory has.
        hits: Share,
    },
}

/// What holds a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Resource {
    /// Disks of the compute nodes.
    LocalDisk,
    /// Memory of the compute nodes.
    Memory,
    /// Network interface of the compute nodes.
    ComputeNetwork,
    /// Bisection of the network.
    Backplane,
    /// Network interfaces of the data nodes.
    DataNodeNetwork,
    /// Disks of the data nodes.
    DataNodeDisk,
    /// The parallel file system as a whole.
    Pfs,
    /// Latency of requests.
    Latency,
    /// Processors of the compute nodes.
    Processor,
}

impl Resource {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            Resource::LocalDisk => "disks of the compute nodes",
            Resource::Memory => "memory of the compute nodes",
            Resource::ComputeNetwork => "network of the compute nodes",
            Resource::Backplane => "bisection of the network",
            Resource::DataNodeNetwork => "network of the data nodes",
            Resource::DataNodeDisk => "disks of the data nodes",
            Resource::Pfs => "parallel file system",
            Resource::Latency => "latency of requests",
            Resource::Processor => "processors",
        }
    }
}

/// A throughput and what limits it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Limit {
    /// Bytes per second.
    pub rate: BytesPerSecond,
    /// What holds it there.
    pub resource: Resource,
}

impl Limit {
    pub(crate) fn new(rate: BytesPerSecond, resource: Resource) -> Self {
        Limit { rate, resource }
    }

    /// The lower of two; the first where they are equal.
    fn min(self, other: Limit) -> Limit {
        if other.rate < self.rate { other } else { self }
    }

    fn min_of(self, others: impl IntoIterator<Item = Limit>) -> Limit {
        others.into_iter().fold(self, Limit::min)
    }
}

/// q: throughput of one of `nodes` compute nodes that all do the same.
///
/// Fails only where the storage needs a part that the cluster lacks, or its inputs are not valid.
pub fn per_node(
    cluster: &Cluster,
    storage: Storage,
    direction: Direction,
    nodes: NodeCount,
) -> Result<Limit> {
    cluster.check()?;
    let limit = match (storage, direction) {
        (Storage::HdfsLocal, Direction::Read) => hdfs_read_local(cluster)?,
        (Storage::HdfsRemote, Direction::Read) => hdfs_read_remote(cluster, nodes)?,
        (Storage::HdfsLocal | Storage::HdfsRemote, Direction::Write) => hdfs_write(cluster, nodes)?,
        (Storage::Pfs, Direction::Read) => two_level_read(cluster, Share::NONE, nodes),
        (Storage::Pfs, Direction::Write) => pfs(cluster, Direction::Write, nodes),
        (Storage::MemoryLocal, Direction::Read) => memory_read_local(cluster),
        (Storage::MemoryRemote, Direction::Read) => memory_read_remote(cluster, nodes),
        (Storage::MemoryLocal | Storage::MemoryRemote, Direction::Write) => {
            memory_write(cluster, nodes)
        }
        (Storage::TwoLevel { hits }, Direction::Read) => two_level_read(cluster, hits, nodes),
        (Storage::TwoLevel { .. }, Direction::Write) => two_level_write(cluster, nodes),
    };
    Ok(match cluster.extensions.processing {
        Some(processing) => limit.min(Limit::new(processing, Resource::Processor)),
        None => limit,
    })
}

/// N × q: throughput of all `nodes` compute nodes together (section 4.5 of the paper, figure 2-7).
pub fn aggregate(
    cluster: &Cluster,
    storage: Storage,
    direction: Direction,
    nodes: NodeCount,
) -> Result<Limit> {
    let one = per_node(cluster, storage, direction, nodes)?;
    Ok(Limit::new(one.rate.times(nodes.as_f64()), one.resource))
}

/// Equation (1), local: q = μ.
fn hdfs_read_local(cluster: &Cluster) -> Result<Limit> {
    Ok(Limit::new(cluster.local_disk()?.read, Resource::LocalDisk))
}

/// Equation (1), remote: q = min(ρ, Φ/N, μ).
fn hdfs_read_remote(cluster: &Cluster, nodes: NodeCount) -> Result<Limit> {
    Ok(hdfs_read_local(cluster)?.min_of(network(cluster, nodes, 1)))
}

/// Equation (2): q = min(ρ/2, Φ/(2N), μ/3); with R replicas min(ρ/(R−1), Φ/((R−1)N), μ/R), and μ
/// for R = 1.
fn hdfs_write(cluster: &Cluster, nodes: NodeCount) -> Result<Limit> {
    let replicas = cluster.extensions.hdfs_replicas;
    let disk = cluster.local_disk()?.write.shared_by(f64::from(replicas));
    let disk = Limit::new(disk, Resource::LocalDisk);
    Ok(disk.min_of(network(cluster, nodes, replicas - 1)))
}

/// ρ/k and Φ/(kN): what the network leaves to a transfer whose bytes cross it `crossings` = k
/// times; nothing for 0.
fn network(cluster: &Cluster, nodes: NodeCount, crossings: u32) -> Vec<Limit> {
    if crossings == 0 {
        return Vec::new();
    }
    let crossings = f64::from(crossings);
    let interface = Limit::new(cluster.network.shared_by(crossings), Resource::ComputeNetwork);
    let backplane = cluster
        .backplane
        .map(|rate| Limit::new(rate.shared_by(crossings * nodes.as_f64()), Resource::Backplane));
    [Some(interface), backplane].into_iter().flatten().collect()
}

/// Equation (3): q = min(ρ, Φ/N, Mρ/N, Mμ'/N), or min(ρ, Φ/N, A/N) where the PFS is given as the
/// aggregate A.
///
/// Extensions: only min(M, reach × N) data nodes are busy, so M may be larger than N; the share
/// of the PFS that others take is missing from its part.
pub(crate) fn pfs(cluster: &Cluster, direction: Direction, nodes: NodeCount) -> Limit {
    let extensions = &cluster.extensions;
    let left = extensions.pfs_taken.rest().get();
    let of_all = |rate: BytesPerSecond, count: f64| rate.times(count * left / nodes.as_f64());
    let parts = match cluster.pfs {
        Pfs::Aggregate { read, write } => {
            let rate = if direction == Direction::Read { read } else { write };
            vec![Limit::new(of_all(rate, 1.0), Resource::Pfs)]
        }
        Pfs::DataNodes { count, network, disk_read, disk_write } => {
            let disk = if direction == Direction::Read { disk_read } else { disk_write };
            let reached = extensions.data_node_reach.map(|reach| f64::from(reach) * nodes.as_f64());
            let busy = reached.map_or(count.as_f64(), |reached| reached.min(count.as_f64()));
            vec![
                Limit::new(of_all(disk, busy), Resource::DataNodeDisk),
                Limit::new(of_all(network, busy), Resource::DataNodeNetwork),
            ]
        }
    };
    let interface = Limit::new(cluster.network, Resource::ComputeNetwork);
    interface.min_of(parts).min_of(network(cluster, nodes, 1))
}

/// Equation (4), local: q = ν.
fn memory_read_local(cluster: &Cluster) -> Limit {
    Limit::new(cluster.memory_read, Resource::Memory)
}

/// Equation (4), remote: q = min(ρ, Φ/N, ν).
fn memory_read_remote(cluster: &Cluster, nodes: NodeCount) -> Limit {
    memory_read_local(cluster).min_of(network(cluster, nodes, 1))
}

/// Equation (5): q = ν; with c copies on different nodes min(ν/c, ρ/(c−1), Φ/((c−1)N)).
fn memory_write(cluster: &Cluster, nodes: NodeCount) -> Limit {
    let copies = cluster.extensions.memory_copies;
    let memory = cluster.memory_write.shared_by(f64::from(copies));
    Limit::new(memory, Resource::Memory).min_of(network(cluster, nodes, copies - 1))
}

/// Equation (6): q = min(q of memory, q of the PFS); both are written at the same time.
fn two_level_write(cluster: &Cluster, nodes: NodeCount) -> Limit {
    pfs(cluster, Direction::Write, nodes).min(memory_write(cluster, nodes))
}

/// Equation (7): q = 1 / (f/ν + (1−f)/q_PFS).
///
/// Extensions: with a share r of the hits in other nodes' memory, 1/ν becomes (1−r)/ν + r/q_remote;
/// with a latency ℓ a request of b bytes, each level's 1/q grows by ℓ/b.
fn two_level_read(cluster: &Cluster, hits: Share, nodes: NodeCount) -> Limit {
    let latency = cluster.extensions.latency;
    let per_byte = |seconds: f64, request: f64| seconds / request;
    let (memory_wait, pfs_wait) = latency.map_or((0.0, 0.0), |latency| {
        let request = latency.request.get();
        (per_byte(latency.memory.get(), request), per_byte(latency.pfs.get(), request))
    });
    let hits = hits.get();
    let remote = cluster.extensions.remote_hits.get();
    let local_level = memory_read_local(cluster);
    let remote_level = memory_read_remote(cluster, nodes);
    let lower_level = pfs(cluster, Direction::Read, nodes);
    // Seconds of one byte, part by part; the longest part names the bottleneck.
    let parts = [
        (hits * (1.0 - remote) / local_level.rate.get(), local_level.resource),
        (hits * remote / remote_level.rate.get(), remote_level.resource),
        ((1.0 - hits) / lower_level.rate.get(), lower_level.resource),
        (hits * memory_wait + (1.0 - hits) * pfs_wait, Resource::Latency),
    ];
    in_turn(&parts)
}

/// The rate of a transfer whose parts follow each other; each part is the seconds it adds to one
/// byte, at least one of them above zero.
fn in_turn(parts: &[(f64, Resource)]) -> Limit {
    let seconds: f64 = parts.iter().map(|(seconds, _)| seconds).sum();
    let (_, resource) = parts
        .iter()
        .copied()
        .reduce(|longest, part| if part.0 > longest.0 { part } else { longest })
        .unwrap_or((0.0, Resource::Memory));
    let rate = BytesPerSecond::new(1.0 / seconds)
        .expect("every level has a finite rate above zero, so a byte takes some time");
    Limit::new(rate, resource)
}
