//! Sensitivity of the aggregate read throughput of two-level storage to each input: the elasticity,
//! percent of throughput for one percent of the input. 1 means that the input alone decides, 0 that
//! more of it gains nothing.

use serde::{Deserialize, Serialize};
use tidepool_proto::Result;

use crate::cluster::{Cluster, Pfs};
use crate::quantity::{BytesPerSecond, NodeCount, Share};
use crate::throughput::{Direction, Storage, aggregate};

/// An input of equation (7).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Input {
    /// ρ, network interface.
    Network,
    /// Φ, bisection.
    Backplane,
    /// ν, memory.
    Memory,
    /// The PFS as a whole: its aggregate, or its data nodes' disks and network.
    Pfs,
    /// f, share in memory.
    Hits,
}

impl Input {
    const ALL: [Input; 5] =
        [Input::Network, Input::Backplane, Input::Memory, Input::Pfs, Input::Hits];

    /// In words, with the symbol.
    pub fn name(self) -> &'static str {
        match self {
            Input::Network => "network of a node, rho",
            Input::Backplane => "bisection, phi",
            Input::Memory => "memory of a node, nu",
            Input::Pfs => "parallel file system",
            Input::Hits => "share in memory, f",
        }
    }
}

/// One input and its effect.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sensitivity {
    /// Which input.
    pub input: Input,
    /// d ln(throughput) / d ln(input).
    pub elasticity: f64,
    /// Throughput with twice the input over the present one; f is taken half-way to 1 instead.
    pub gain_if_doubled: f64,
}

/// The step of the difference quotient: small against any input, large against rounding.
const STEP: f64 = 1e-4;

/// The inputs in falling order of elasticity. Inputs that the cluster does not have are left out.
pub fn sensitivities(cluster: &Cluster, hits: Share, nodes: NodeCount) -> Result<Vec<Sensitivity>> {
    let rate = |cluster: &Cluster, hits: Share| -> Result<f64> {
        let limit = aggregate(cluster, Storage::TwoLevel { hits }, Direction::Read, nodes)?;
        Ok(limit.rate.get())
    };
    let base = rate(cluster, hits)?;
    let mut found = Vec::new();
    for input in Input::ALL {
        if input == Input::Backplane && cluster.backplane.is_none() {
            continue;
        }
        let changed = |factor: f64| -> Result<f64> {
            if input == Input::Hits {
                return rate(cluster, Share::clamped(hits.get() * factor));
            }
            rate(&scaled(cluster, input, factor), hits)
        };
        let (less, more) = (changed(1.0 - STEP)?, changed(1.0 + STEP)?);
        let elasticity = match input {
            Input::Hits if hits.get() == 0.0 => 0.0,
            // f does not go beyond 1, so at 1 the step is one-sided.
            Input::Hits => {
                let most = (hits.get() * (1.0 + STEP)).min(1.0);
                (more / less).ln() / (most / (hits.get() * (1.0 - STEP))).ln()
            }
            Input::Network | Input::Backplane | Input::Memory | Input::Pfs => {
                (more / less).ln() / ((1.0 + STEP) / (1.0 - STEP)).ln()
            }
        };
        let doubled = match input {
            Input::Hits => rate(cluster, Share::clamped(f64::midpoint(hits.get(), 1.0)))?,
            Input::Network | Input::Backplane | Input::Memory | Input::Pfs => changed(2.0)?,
        };
        found.push(Sensitivity { input, elasticity, gain_if_doubled: doubled / base });
    }
    found.sort_by(|one, other| other.elasticity.total_cmp(&one.elasticity));
    Ok(found)
}

fn scaled(cluster: &Cluster, input: Input, factor: f64) -> Cluster {
    let times = |rate: BytesPerSecond| rate.times(factor);
    let mut cluster = cluster.clone();
    match input {
        Input::Network => cluster.network = times(cluster.network),
        Input::Backplane => cluster.backplane = cluster.backplane.map(times),
        Input::Memory => cluster.memory_read = times(cluster.memory_read),
        Input::Hits => {}
        Input::Pfs => match &mut cluster.pfs {
            Pfs::Aggregate { read, .. } => *read = times(*read),
            Pfs::DataNodes { network, disk_read, .. } => {
                (*network, *disk_read) = (times(*network), times(*disk_read));
            }
        },
    }
    cluster
}
