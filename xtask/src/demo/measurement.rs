//! What the demo measured: the JSON beside the report, from which the report can be written again.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// A whole run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// What was run on what, in words.
    pub setting: String,
    /// Bytes that every iteration reads.
    pub data_bytes: u64,
    /// Capacity of the store in bytes.
    pub store_bytes: u64,
    /// Limit of the lower level in bytes a second, if it has one.
    pub rate: Option<u64>,
    /// Without a node.
    pub bare: Side,
    /// Through a node.
    pub tidepool: Side,
    /// Eviction policy of the node.
    pub policy: String,
    /// Most bytes that the store held.
    pub resident_bytes_peak: u64,
    /// The hit ratio as the daemon counts it, which does not see reads that need no daemon.
    pub daemon_hit_ratio: Option<f64>,
    /// Both sides came to the same centroids, bit by bit.
    pub same_result: bool,
}

/// One side of the comparison.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Side {
    /// In order.
    pub iterations: Vec<Iteration>,
}

/// One iteration.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Iteration {
    /// Seconds from the first open to the last sum.
    pub seconds: f64,
    /// Bytes by the level that served them.
    pub served: Served,
    /// Bytes that came off the lower level's block device meanwhile, where that is known.
    pub device_bytes: Option<u64>,
}

/// Bytes by level.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Served {
    /// From memory without asking the daemon.
    pub mapped: u64,
    /// From memory through the daemon.
    pub store: u64,
    /// From the lower level.
    pub pfs: u64,
}

impl Served {
    /// The counters of a node's status.
    pub fn of(status: &Value) -> Result<Self> {
        let level = |name: &str| {
            status["served"][name].as_u64().with_context(|| format!("status has no served.{name}"))
        };
        Ok(Served { mapped: level("mapped")?, store: level("store")?, pfs: level("pfs")? })
    }

    /// What came since `before`.
    pub fn less(&self, before: &Served) -> Served {
        Served {
            mapped: self.mapped.saturating_sub(before.mapped),
            store: self.store.saturating_sub(before.store),
            pfs: self.pfs.saturating_sub(before.pfs),
        }
    }

    /// With the bytes that the kernel served from the store by passthrough, which no counter of
    /// the daemon sees: what was read and is not counted otherwise.
    pub fn completed(&self, read_bytes: u64) -> Served {
        let counted = self.mapped + self.store + self.pfs;
        Served { mapped: self.mapped + read_bytes.saturating_sub(counted), ..*self }
    }

    /// Share of the bytes that came from memory.
    pub fn hit_ratio(&self) -> f64 {
        let total = self.mapped + self.store + self.pfs;
        if total == 0 { 0.0 } else { (self.mapped + self.store) as f64 / total as f64 }
    }
}

impl Side {
    /// Seconds of all iterations.
    pub fn total_seconds(&self) -> f64 {
        self.iterations.iter().map(|iteration| iteration.seconds).sum()
    }

    /// Share of all bytes that came from memory.
    pub fn hit_ratio(&self) -> f64 {
        let mut total = Served::default();
        for iteration in &self.iterations {
            total.mapped += iteration.served.mapped;
            total.store += iteration.served.store;
            total.pfs += iteration.served.pfs;
        }
        total.hit_ratio()
    }
}

impl Measurement {
    /// How many times faster the iterations after the first are; absent with fewer than two.
    pub fn gain_after_first(&self) -> Option<f64> {
        let rest = |side: &Side| -> f64 {
            side.iterations.iter().skip(1).map(|iteration| iteration.seconds).sum()
        };
        let several = self.tidepool.iterations.len() > 1;
        several.then(|| rest(&self.bare) / rest(&self.tidepool))
    }
}
