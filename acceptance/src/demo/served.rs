//! `Served`: the bytes that a job got from each level, and the counters of a node that tell it.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

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
    /// What a job got that read `read_bytes` between two looks at the counters.
    ///
    /// A byte that read-ahead fetched a moment before it was asked for counts as one from the lower
    /// level. What the kernel served by passthrough no counter of the daemon sees: it is what was
    /// read and is not counted otherwise.
    pub fn between(before: &Counters, after: &Counters, read_bytes: u64) -> Served {
        let pfs = after.fetched.saturating_sub(before.fetched).min(read_bytes);
        let asked = after.asked.saturating_sub(before.asked).clamp(pfs, read_bytes);
        Served { mapped: read_bytes - asked, store: asked - pfs, pfs }
    }

    /// All together.
    pub fn sum(parts: impl Iterator<Item = Served>) -> Served {
        parts.fold(Served::default(), |sum, part| Served {
            mapped: sum.mapped + part.mapped,
            store: sum.store + part.store,
            pfs: sum.pfs + part.pfs,
        })
    }

    /// Share of the bytes that came from memory.
    pub fn hit_ratio(&self) -> f64 {
        let total = self.mapped + self.store + self.pfs;
        if total == 0 { 0.0 } else { (self.mapped + self.store) as f64 / total as f64 }
    }
}

/// Counters of a node, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counters {
    /// What readers got from the daemon.
    pub asked: u64,
    /// What the daemon read from the lower level.
    pub fetched: u64,
}

impl Counters {
    /// The counters in a node's status.
    pub fn of(status: &Value) -> Result<Self> {
        let count =
            |name: &str| status[name].as_u64().with_context(|| format!("status has no {name}"));
        Ok(Counters { asked: count("asked_bytes")?, fetched: count("pfs_read_bytes")? })
    }
}
