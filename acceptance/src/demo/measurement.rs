//! The measurements of the demo, kept as JSON beside the report, from which the report can be
//! written again.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use tidepool_report::bustle::Bustle;

use super::contention::Contention;
use super::mountain::Mountain;

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
    /// The hit ratio of what the daemon counts, which does not see reads that need no daemon.
    pub daemon_hit_ratio: Option<f64>,
    /// Both sides came to the same centroids, bit by bit.
    pub same_result: bool,
    /// Processes that wanted a processor in the minute before, and in the last one.
    #[serde(default)]
    pub load: (f64, f64),
    /// What the machine did meanwhile.
    #[serde(default)]
    pub bustle: Option<Bustle>,
    /// Beside a job that takes memory.
    #[serde(default)]
    pub contention: Option<Contention>,
    /// The storage mountain.
    #[serde(default)]
    pub mountain: Option<Mountain>,
    /// Parts that did not run, with the reason.
    #[serde(default)]
    pub skipped: Vec<String>,
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

impl Side {
    /// Seconds of all iterations.
    pub fn total_seconds(&self) -> f64 {
        self.iterations.iter().map(|iteration| iteration.seconds).sum()
    }

    /// Share of all bytes that came from memory.
    pub fn hit_ratio(&self) -> f64 {
        Served::sum(self.iterations.iter().map(|iteration| iteration.served)).hit_ratio()
    }
}

impl Measurement {
    /// Notes a part that does not run.
    pub fn skip(&mut self, part: &str, why: &str) {
        println!("skipped: {part}: {why}");
        self.skipped.push(format!("{part}: {why}"));
    }

    /// How many times faster the iterations after the first are; absent with fewer than two.
    pub fn gain_after_first(&self) -> Option<f64> {
        let rest = |side: &Side| -> f64 {
            side.iterations.iter().skip(1).map(|iteration| iteration.seconds).sum()
        };
        let several = self.tidepool.iterations.len() > 1;
        several.then(|| rest(&self.bare) / rest(&self.tidepool))
    }
}

#[cfg(test)]
pub mod tests {
    use super::{Counters, Iteration, Measurement, Served, Side};

    /// Three iterations that Tidepool makes four times as fast after the first.
    pub fn example() -> Measurement {
        let side = |seconds: [f64; 3], served: [Served; 3]| {
            let iterations = seconds.into_iter().zip(served);
            let iterations = iterations.map(|(seconds, served)| Iteration {
                seconds,
                served,
                device_bytes: Some(9),
            });
            Side { iterations: iterations.collect() }
        };
        let pfs = Served { pfs: 1 << 30, ..Served::default() };
        let memory = Served { mapped: 1 << 30, ..Served::default() };
        Measurement {
            setting: "a < b".into(),
            data_bytes: 1 << 30,
            bare: side([2.0; 3], [pfs; 3]),
            tidepool: side([2.0, 0.5, 0.5], [pfs, memory, memory]),
            same_result: true,
            ..Measurement::default()
        }
    }

    #[test]
    fn every_byte_read_is_counted_once() {
        let zero = Counters { asked: 0, fetched: 0 };
        for (asked, fetched) in [(0, 0), (100, 100), (40, 0), (40, 60), (120, 300), (100, 30)] {
            let served = Served::between(&zero, &Counters { asked, fetched }, 100);
            assert_eq!(served.mapped + served.store + served.pfs, 100, "{asked} {fetched}");
        }
        let warm = Served::between(&zero, &Counters { asked: 10, fetched: 0 }, 100);
        assert_eq!((warm.mapped, warm.store, warm.pfs), (90, 10, 0));
    }
}
