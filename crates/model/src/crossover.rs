//! The crossover: the number of compute nodes from which HDFS is faster than a storage whose
//! aggregate is bounded. It is found by search over whole node counts, and in closed form; the
//! tests check the two against each other.

use serde::{Deserialize, Serialize};
use tidepool_proto::Result;

use crate::cluster::{Cluster, Extensions, Pfs};
use crate::quantity::{BytesPerSecond, NodeCount, Share};
use crate::throughput::{Direction, Limit, Storage, aggregate, per_node};

/// HDFS counts as faster where it is faster by this share, so that rounding decides nothing.
pub const GREATER_BY: f64 = 1e-9;

/// Where HDFS overtakes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Crossover {
    /// Fewest compute nodes for which the aggregate of HDFS is the greater one, found by search;
    /// nothing if there is no such number.
    pub nodes: Option<NodeCount>,
    /// The same in closed form; nothing where there is no such number, or no closed form.
    pub closed_form: Option<NodeCount>,
    /// Whether the closed form covers the inputs: it does for those of the papers.
    pub has_closed_form: bool,
    /// Aggregate of the other storage at the crossover in bytes per second.
    pub aggregate: Option<Limit>,
    /// That aggregate over the one of the bare PFS for the same nodes, less 1.
    pub gain_over_pfs: Option<f64>,
}

/// Reads: HDFS (local) against two-level storage with the share `hits` in memory; 0 is the bare
/// PFS.
///
/// Smallest N with N·μ > N·q(N), q of equation (7). In closed form, with A the least of Φ, Mρ and
/// Mμ' and X = (1/μ − f/ν) / (1 − f): N = 1 if X < 1/ρ, else ⌊A·X⌋ + 1. For f = 0 that is
/// ⌊A/μ⌋ + 1.
pub fn read_crossover(cluster: &Cluster, hits: Share) -> Result<Crossover> {
    let other = Storage::TwoLevel { hits };
    let nodes = search(cluster, other, Direction::Read)?;
    let has_closed_form = covers(&cluster.extensions);
    let closed_form = match has_closed_form {
        true => closed_read(cluster, hits.get())?,
        false => None,
    };
    finish(cluster, other, Direction::Read, nodes, closed_form, has_closed_form)
}

/// Writes: HDFS against the PFS, and so against two-level storage, equation (6).
///
/// Smallest N with N·min(a, B/N) > N·min(ρ, A/N, ν), where a = min(ρ/2, μ/3) and B = Φ/2 for three
/// replicas: N = 1 if HDFS is faster there, none if B ≤ A, else ⌊A/a⌋ + 1.
pub fn write_crossover(cluster: &Cluster) -> Result<Crossover> {
    let other = Storage::TwoLevel { hits: Share::NONE };
    let nodes = search(cluster, other, Direction::Write)?;
    let has_closed_form = covers(&cluster.extensions);
    let closed_form = match has_closed_form {
        true => closed_write(cluster)?,
        false => None,
    };
    finish(cluster, other, Direction::Write, nodes, closed_form, has_closed_form)
}

fn finish(
    cluster: &Cluster,
    other: Storage,
    direction: Direction,
    nodes: Option<NodeCount>,
    closed_form: Option<NodeCount>,
    has_closed_form: bool,
) -> Result<Crossover> {
    let at = |storage| nodes.map(|nodes| aggregate(cluster, storage, direction, nodes)).transpose();
    let aggregate = at(other)?;
    let pfs = at(Storage::Pfs)?;
    let gain_over_pfs = aggregate.zip(pfs).map(|(one, pfs)| one.rate.get() / pfs.rate.get() - 1.0);
    Ok(Crossover { nodes, closed_form, has_closed_form, aggregate, gain_over_pfs })
}

/// By trying: HDFS loses nothing per node as nodes are added, or no more than the other storage
/// does, so the numbers where it wins begin somewhere and go on.
fn search(cluster: &Cluster, other: Storage, direction: Direction) -> Result<Option<NodeCount>> {
    let wins = |nodes: u32| -> Result<bool> {
        let nodes = NodeCount::new(nodes)?;
        let hdfs = per_node(cluster, Storage::HdfsLocal, direction, nodes)?.rate.get();
        let other = per_node(cluster, other, direction, nodes)?.rate.get();
        Ok(hdfs > other * (1.0 + GREATER_BY))
    };
    let mut high = 1_u32;
    while !wins(high)? {
        let Some(next) = high.checked_mul(2) else { return Ok(None) };
        high = next;
    }
    let mut low = high / 2;
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if wins(middle)? { high = middle } else { low = middle }
    }
    NodeCount::new(high).map(Some)
}

/// Whether only extensions are on that leave the form of the equations.
fn covers(extensions: &Extensions) -> bool {
    let Extensions {
        hdfs_replicas: _,
        memory_copies,
        remote_hits,
        processing,
        data_node_reach,
        pfs_taken: _,
        latency,
        shuffle_crosses_network: _,
    } = extensions;
    *memory_copies == 1
        && remote_hits.get() == 0.0
        && processing.is_none()
        && data_node_reach.is_none()
        && latency.is_none()
}

/// A: what all compute nodes together get at most, the least of Φ, Mρ, Mμ' or the given aggregate.
fn bound(cluster: &Cluster, direction: Direction) -> f64 {
    let left = cluster.extensions.pfs_taken.rest().get();
    let own = match cluster.pfs {
        Pfs::Aggregate { read, write } => {
            if direction == Direction::Read {
                read.get()
            } else {
                write.get()
            }
        }
        Pfs::DataNodes { count, network, disk_read, disk_write } => {
            let disk = if direction == Direction::Read { disk_read } else { disk_write };
            count.as_f64() * disk.min(network).get()
        }
    };
    (own * left).min(cluster.backplane.map_or(f64::INFINITY, BytesPerSecond::get))
}

/// ⌊quotient⌋ + 1, allowing for [`GREATER_BY`]; nothing beyond the largest node count.
fn first_above(quotient: f64) -> Option<NodeCount> {
    let count = (quotient * (1.0 + GREATER_BY)).floor() + 1.0;
    (count <= f64::from(1_u32 << 31)).then(|| NodeCount::new(count as u32).ok()).flatten()
}

fn closed_read(cluster: &Cluster, hits: f64) -> Result<Option<NodeCount>> {
    let disk = cluster.local_disk()?.read.get() / (1.0 + GREATER_BY);
    let memory = cluster.memory_read.get();
    if hits >= 1.0 {
        return Ok((disk > memory).then_some(NodeCount::ONE));
    }
    // Seconds that a byte of the PFS takes where both storages are equally fast.
    let even = (1.0 / disk - hits / memory) / (1.0 - hits);
    let at_one = (1.0 / cluster.network.get()).max(1.0 / bound(cluster, Direction::Read));
    if at_one > even {
        return Ok(Some(NodeCount::ONE));
    }
    Ok(first_above(bound(cluster, Direction::Read) * even / (1.0 + GREATER_BY)))
}

fn closed_write(cluster: &Cluster) -> Result<Option<NodeCount>> {
    let replicas = f64::from(cluster.extensions.hdfs_replicas);
    let disk = cluster.local_disk()?.write.get() / replicas;
    let crossings = replicas - 1.0;
    let backplane = cluster.backplane.map_or(f64::INFINITY, BytesPerSecond::get);
    let own = disk.min(cluster.network.get() / crossings);
    let together = backplane / crossings;
    let bound = bound(cluster, Direction::Write);
    let one = cluster.network.min(cluster.memory_write).get().min(bound);
    if own.min(together) > one * (1.0 + GREATER_BY) {
        return Ok(Some(NodeCount::ONE));
    }
    if together <= bound * (1.0 + GREATER_BY) {
        return Ok(None);
    }
    Ok(first_above(bound / own))
}
