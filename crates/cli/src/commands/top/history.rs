//! Samples of a node over time, and the rates between them.

use std::collections::VecDeque;
use std::time::Instant;

use serde::Serialize;
use tidepool_proto::admin::Status;
use tidepool_proto::{BytesByLevel, Level};

/// Samples kept for the curves.
const SAMPLES_MAX: usize = 512;

/// What happened between two looks, per second where the name says so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Rates {
    /// Seconds between the looks.
    pub interval_s: f64,
    /// Bytes served by each level.
    pub served_bytes_per_s: BytesByLevel,
    /// Share of the bytes served since the last look that did not come from the PFS.
    pub hit_ratio: Option<f64>,
    /// Bytes read from the PFS.
    pub pfs_read_bytes_per_s: u64,
    /// Bytes written to the PFS.
    pub pfs_written_bytes_per_s: u64,
    /// Bytes written by programs.
    pub written_bytes_per_s: u64,
    /// Blocks evicted.
    pub evicted_blocks_per_s: u64,
    /// Bytes resident at this look.
    pub resident_bytes: u64,
    /// Capacity at this look.
    pub capacity_bytes: u64,
    /// Memory demand of everything that is no store, at this look; absent without a controller.
    pub demand_bytes: Option<u64>,
    /// Bytes that the controller wants the stores to hold at most; absent without one.
    pub target_bytes: Option<u64>,
    /// Bytes owed to the PFS at this look.
    pub dirty_bytes: u64,
}

/// The latest status and the rates up to it.
pub struct History {
    status: Status,
    taken: Instant,
    rates: VecDeque<Rates>,
}

impl History {
    /// Begins with a first look.
    pub fn new(status: Status, taken: Instant) -> History {
        History { status, taken, rates: VecDeque::new() }
    }

    /// Adds a look. A node that was restarted begins anew.
    pub fn add(&mut self, status: Status, taken: Instant) {
        let seconds = taken.duration_since(self.taken).as_secs_f64().max(1e-6);
        if status.process_id == self.status.process_id {
            self.rates.push_back(rates(&self.status, &status, seconds));
            if self.rates.len() > SAMPLES_MAX {
                self.rates.pop_front();
            }
        }
        (self.status, self.taken) = (status, taken);
    }

    /// The latest status.
    pub fn status(&self) -> &Status {
        &self.status
    }

    /// The latest rates; zeros before the second look.
    pub fn latest(&self) -> Rates {
        self.rates.back().copied().unwrap_or_default()
    }

    /// The last `count` values of a rate, oldest first.
    pub fn curve(&self, count: usize, value: impl Fn(&Rates) -> u64) -> Vec<u64> {
        let skipped = self.rates.len().saturating_sub(count);
        self.rates.iter().skip(skipped).map(value).collect()
    }
}

fn rates(before: &Status, after: &Status, seconds: f64) -> Rates {
    let per_second =
        |before: u64, after: u64| (after.saturating_sub(before) as f64 / seconds).round() as u64;
    let mut served = BytesByLevel::default();
    for level in Level::ALL {
        served.add(level, per_second(before.served.get(level), after.served.get(level)));
    }
    let all = after.served.total().saturating_sub(before.served.total());
    let control = &after.control;
    let governed = control.report.as_ref().filter(|_| control.lease == "governed");
    let missed = after.served.pfs.saturating_sub(before.served.pfs);
    Rates {
        interval_s: seconds,
        served_bytes_per_s: served,
        hit_ratio: (all > 0).then(|| 1.0 - missed as f64 / all as f64),
        pfs_read_bytes_per_s: per_second(before.pfs_read_bytes, after.pfs_read_bytes),
        pfs_written_bytes_per_s: per_second(before.pfs_written_bytes, after.pfs_written_bytes),
        written_bytes_per_s: per_second(before.written_bytes, after.written_bytes),
        evicted_blocks_per_s: per_second(before.store.evicted_blocks, after.store.evicted_blocks),
        resident_bytes: after.store.resident_bytes,
        capacity_bytes: after.store.capacity_bytes,
        demand_bytes: governed.map(|report| report.demand_bytes),
        target_bytes: governed.map(|report| report.target_bytes),
        dirty_bytes: after.dirty_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn status(store: u64, pfs: u64) -> Status {
        let served = BytesByLevel { store, pfs, ..BytesByLevel::default() };
        Status { process_id: 7, served, ..Status::default() }
    }

    #[test]
    fn rates_are_differences_over_time() {
        let begun = Instant::now();
        let mut history = History::new(status(100, 100), begun);
        history.add(status(400, 200), begun + Duration::from_secs(2));
        let rates = history.latest();
        assert_eq!((rates.served_bytes_per_s.store, rates.served_bytes_per_s.pfs), (150, 50));
        assert_eq!(rates.hit_ratio, Some(0.75));
        history.add(status(400, 200), begun + Duration::from_secs(3));
        assert_eq!(history.latest().hit_ratio, None, "nothing was read");
        assert_eq!(history.curve(10, |rates| rates.served_bytes_per_s.store), [150, 0]);
        assert_eq!(history.curve(1, |rates| rates.served_bytes_per_s.store), [0]);
    }

    #[test]
    fn a_restarted_node_gives_no_rates_of_its_own_past() {
        let begun = Instant::now();
        let mut history = History::new(status(1 << 40, 0), begun);
        let restarted = Status { process_id: 8, ..status(10, 0) };
        history.add(restarted, begun + Duration::from_secs(1));
        assert_eq!(history.latest(), Rates::default());
        assert_eq!(history.status().process_id, 8);
    }
}
