//! I/O cost of the phases of a MapReduce job on each storage: equations (3-8) to (3-13), and the
//! whole job as their sum. Phases follow each other; overlap of map and shuffle is not modelled,
//! nor is scheduling.

use serde::{Deserialize, Serialize};
use tidepool_proto::{Error, ErrorKind, Result};

use crate::cluster::Cluster;
use crate::quantity::{Bytes, BytesPerSecond, NodeCount, Seconds};
use crate::throughput::{Direction, Limit, Resource, Storage, per_node};

/// Data of a job, all nodes together; each node has an equal part.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Job {
    /// D: input.
    pub input: Bytes,
    /// I_M: what the map phase spills.
    pub map_output: Bytes,
    /// I_S: what the shuffle phase materialises.
    pub shuffle_output: Bytes,
    /// O_R: what the reduce phase writes.
    pub output: Bytes,
}

/// Cost of one phase.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct PhaseCost {
    /// Seconds of reading.
    pub read: Seconds,
    /// What limits reading.
    pub read_limit: Resource,
    /// Seconds of writing.
    pub write: Seconds,
    /// What limits writing.
    pub write_limit: Resource,
}

impl PhaseCost {
    /// Seconds of the phase: reading and writing follow each other.
    pub fn total(&self) -> Seconds {
        self.read + self.write
    }

    /// What limits the longer part.
    pub fn bottleneck(&self) -> Resource {
        if self.write > self.read { self.write_limit } else { self.read_limit }
    }
}

/// Cost of a job.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct JobCost {
    /// Reads the input, spills I_M.
    pub map: PhaseCost,
    /// Pulls I_M, materialises I_S.
    pub shuffle: PhaseCost,
    /// Reads I_S, writes the output.
    pub reduce: PhaseCost,
}

impl JobCost {
    /// Seconds of the job.
    pub fn total(&self) -> Seconds {
        self.map.total() + self.shuffle.total() + self.reduce.total()
    }
}

/// Cost of `job` on `nodes` compute nodes.
///
/// With everything per node:
/// * map: D/q_read + I_M/μ on HDFS and the PFS (3-8), D/q_read + I_M/ν on memory and two levels
///   (3-9);
/// * shuffle: I_M/μ + I_S/μ (3-10), I_M/ν + I_S/ν (3-11);
/// * reduce: I_S/μ + O_R/q_write (3-12), I_S/ν + O_R/q_write (3-13).
///
/// The dissertation's text names the reads and writes of (3-10) to (3-13); their printed form was
/// not at hand and is put together from that text. It names local devices only for the shuffle;
/// with the extension `shuffle_crosses_network` the pull is held by min(ρ, Φ/N) as well.
pub fn job_cost(
    cluster: &Cluster,
    storage: Storage,
    job: &Job,
    nodes: NodeCount,
) -> Result<JobCost> {
    let part = |bytes: Bytes| bytes * (1.0 / nodes.as_f64());
    let read = per_node(cluster, storage, Direction::Read, nodes)?;
    let write = per_node(cluster, storage, Direction::Write, nodes)?;
    let (local_read, local_write) = local_rates(cluster, storage)?;
    let pulled = if cluster.extensions.shuffle_crosses_network {
        across_network(cluster, local_read, nodes)
    } else {
        local_read
    };
    let phase = |from: (Bytes, Limit), to: (Bytes, Limit)| PhaseCost {
        read: part(from.0) / from.1.rate,
        read_limit: from.1.resource,
        write: part(to.0) / to.1.rate,
        write_limit: to.1.resource,
    };
    Ok(JobCost {
        map: phase((job.input, read), (job.map_output, local_write)),
        shuffle: phase((job.map_output, pulled), (job.shuffle_output, local_write)),
        reduce: phase((job.shuffle_output, local_read), (job.output, write)),
    })
}

/// Where intermediate data lives: disks for HDFS and the PFS, memory for the others.
fn local_rates(cluster: &Cluster, storage: Storage) -> Result<(Limit, Limit)> {
    let on_disk = match storage {
        Storage::HdfsLocal | Storage::HdfsRemote | Storage::Pfs => true,
        Storage::MemoryLocal | Storage::MemoryRemote | Storage::TwoLevel { .. } => false,
    };
    if !on_disk {
        let memory = |rate: BytesPerSecond| Limit::new(rate, Resource::Memory);
        return Ok((memory(cluster.memory_read), memory(cluster.memory_write)));
    }
    let disk = cluster.disk.ok_or_else(|| {
        let detail = "intermediate data on HDFS and the PFS lies on disks of the compute nodes";
        Error::new(ErrorKind::InvalidInput, "estimating a MapReduce job", detail)
            .remedy("give --disk-read and --disk-write")
    })?;
    let disk_limit = |rate: BytesPerSecond| Limit::new(rate, Resource::LocalDisk);
    Ok((disk_limit(disk.read), disk_limit(disk.write)))
}

fn across_network(cluster: &Cluster, local: Limit, nodes: NodeCount) -> Limit {
    let mut limit = local;
    if cluster.network < limit.rate {
        limit = Limit::new(cluster.network, Resource::ComputeNetwork);
    }
    if let Some(backplane) = cluster.backplane.map(|rate| rate.shared_by(nodes.as_f64()))
        && backplane < limit.rate
    {
        limit = Limit::new(backplane, Resource::Backplane);
    }
    limit
}
