//! The measurements of the demo, kept as JSON beside the report, from which the report can be
//! written again.

use serde::{Deserialize, Serialize};
use tidepool_report::bustle::Bustle;

use super::contention::Contention;
use super::mountain::Mountain;
use super::served::Served;

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
    use super::super::served::{Counters, Served};
    use super::{Iteration, Measurement, Side};

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
