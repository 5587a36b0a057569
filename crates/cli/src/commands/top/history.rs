//! Samples of a node over time for `tidepool top`, and the rates between them.

use std::collections::VecDeque;
use std::time::Instant;

use serde::Serialize;
use tidepool_proto::admin::{HitRatio, Status};
use tidepool_proto::files::CachedFile;
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
    /// Opens since the last look that the kernel reads by itself.
    pub passthrough_opens_per_s: u64,
    /// Length of the files of these opens; how much is read of them is not known.
    pub passthrough_bytes_per_s: u64,
    /// Share of the bytes read since the last look that did not come from the PFS.
    #[serde(flatten)]
    pub hits: HitRatio,
    /// Bytes read from the PFS.
    pub pfs_read_bytes_per_s: u64,
    /// Bytes given to other nodes.
    pub peer_served_bytes_per_s: u64,
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
    /// Dirty bytes at this look.
    pub dirty_bytes: u64,
}

/// A cached file, and how fast it is read.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct FileRate {
    /// The file.
    #[serde(flatten)]
    pub file: CachedFile,
    /// Bytes read of it per second since the last look; absent where the last look did not have it.
    pub read_bytes_per_s: Option<u64>,
    /// The same of its `passthrough_bytes`.
    pub passthrough_bytes_per_s: Option<u64>,
}

/// What the node answered at one moment.
pub struct Look {
    /// Facts and counters.
    pub status: Status,
    /// The files that come first.
    pub files: Vec<CachedFile>,
    /// When.
    pub taken: Instant,
}

/// The latest look and the rates up to it.
pub struct History {
    status: Status,
    files: Vec<FileRate>,
    taken: Instant,
    rates: VecDeque<Rates>,
}

impl History {
    /// Begins with a first look.
    pub fn new(look: Look) -> History {
        let Look { status, files, taken } = look;
        let files = files.into_iter().map(|file| file_rate(&[], file, 1.0)).collect();
        History { status, files, taken, rates: VecDeque::new() }
    }

    /// Adds a look. A node that was restarted begins anew.
    pub fn add(&mut self, look: Look) {
        let Look { status, files, taken } = look;
        let seconds = taken.duration_since(self.taken).as_secs_f64().max(1e-6);
        let is_same_node = status.process_id == self.status.process_id;
        let known = if is_same_node { std::mem::take(&mut self.files) } else { Vec::new() };
        self.files = files.into_iter().map(|file| file_rate(&known, file, seconds)).collect();
        if is_same_node {
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

    /// The files that come first at the latest look.
    pub fn files(&self) -> &[FileRate] {
        &self.files
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

fn per_second(before: u64, after: u64, seconds: f64) -> u64 {
    (after.saturating_sub(before) as f64 / seconds).round() as u64
}

fn file_rate(known: &[FileRate], file: CachedFile, seconds: f64) -> FileRate {
    let is_it = |one: &&FileRate| (one.file.device, one.file.inode) == (file.device, file.inode);
    let before = known.iter().find(is_it).map(|one| &one.file);
    let rate = |bytes: fn(&CachedFile) -> u64| {
        before.map(|before| per_second(bytes(before), bytes(&file), seconds))
    };
    let (read_bytes_per_s, passthrough_bytes_per_s) =
        (rate(|it| it.read_bytes), rate(|it| it.passthrough_bytes));
    FileRate { file, read_bytes_per_s, passthrough_bytes_per_s }
}

/// What happened between two looks at one process.
pub fn rates(before: &Status, after: &Status, seconds: f64) -> Rates {
    let per_second = |before: u64, after: u64| per_second(before, after, seconds);
    let mut served = BytesByLevel::default();
    for level in Level::ALL {
        served.add(level, per_second(before.served.get(level), after.served.get(level)));
    }
    let control = &after.control;
    let governed = control.report.as_ref().filter(|_| control.lease == "governed");
    let lent = |status: &Status| status.transfers.passthrough_bytes;
    let opens = |status: &Status| status.transfers.passthrough_opens;
    let mut since = BytesByLevel::default();
    for level in Level::ALL {
        since.add(level, after.served.get(level).saturating_sub(before.served.get(level)));
    }
    Rates {
        interval_s: seconds,
        served_bytes_per_s: served,
        passthrough_opens_per_s: per_second(opens(before), opens(after)),
        passthrough_bytes_per_s: per_second(lent(before), lent(after)),
        hits: HitRatio::of(&since, lent(after).saturating_sub(lent(before))),
        pfs_read_bytes_per_s: per_second(before.pfs_read_bytes, after.pfs_read_bytes),
        peer_served_bytes_per_s: per_second(before.peer_served_bytes, after.peer_served_bytes),
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

    fn look(store: u64, pfs: u64, taken: Instant) -> Look {
        let served = BytesByLevel { store, pfs, ..BytesByLevel::default() };
        let status = Status { process_id: 7, served, ..Status::default() };
        Look { status, files: Vec::new(), taken }
    }

    #[test]
    fn rates_of_files_follow_them_from_place_to_place() {
        let begun = Instant::now();
        let file = |inode, read_bytes| CachedFile { inode, read_bytes, ..CachedFile::default() };
        let at =
            |seconds, files| Look { files, ..look(0, 0, begun + Duration::from_secs(seconds)) };
        let mut history = History::new(at(0, vec![file(1, 100), file(2, 50)]));
        history.add(at(2, vec![file(2, 250), file(3, 120), file(1, 100)]));
        let rates: Vec<_> = history.files().iter().map(|file| file.read_bytes_per_s).collect();
        assert_eq!(rates, [Some(100), None, Some(0)]);
        let mut other = at(3, vec![file(2, 10)]);
        other.status.process_id = 8;
        history.add(other);
        assert_eq!(history.files()[0].read_bytes_per_s, None, "another node");
    }

    #[test]
    fn rates_are_differences_over_time() {
        let begun = Instant::now();
        let mut history = History::new(look(100, 100, begun));
        history.add(look(400, 200, begun + Duration::from_secs(2)));
        let rates = history.latest();
        assert_eq!((rates.served_bytes_per_s.store, rates.served_bytes_per_s.pfs), (150, 50));
        assert_eq!(rates.hits.hit_ratio_at_least, Some(0.75));
        history.add(look(400, 200, begun + Duration::from_secs(3)));
        assert_eq!(history.latest().hits, HitRatio::default(), "nothing was read");
        assert_eq!(history.curve(10, |rates| rates.served_bytes_per_s.store), [150, 0]);
        assert_eq!(history.curve(1, |rates| rates.served_bytes_per_s.store), [0]);
    }

    #[test]
    fn a_restarted_node_gives_no_rates_of_its_own_past() {
        let begun = Instant::now();
        let mut history = History::new(look(1 << 40, 0, begun));
        let mut restarted = look(10, 0, begun + Duration::from_secs(1));
        restarted.status.process_id = 8;
        history.add(restarted);
        assert_eq!(history.latest(), Rates::default());
        assert_eq!(history.status().process_id, 8);
    }
}
