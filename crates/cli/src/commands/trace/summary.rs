//! [`Summary`]: requests by operation and level, with counts, bytes and percentiles of their time.

use std::collections::BTreeMap;

use serde::Serialize;
use tidepool_proto::trace::{Operation, ServedBy, TraceRecord};

use tidepool_terminal::output;

/// Steps of the scale of times in each doubling; below as many microseconds it is exact.
const STEPS: u64 = 32;

/// How often requests took how long, in steps of a thirtieth.
#[derive(Clone, Debug, Default)]
struct Times {
    counts: BTreeMap<u64, u64>,
    total: u64,
}

impl Times {
    fn add(&mut self, us: u64) {
        *self.counts.entry(step_of(us)).or_default() += 1;
        self.total += 1;
    }

    /// The time that this share of the requests did not exceed, in microseconds.
    fn at(&self, share: f64) -> u64 {
        let wanted = (share * self.total as f64).ceil() as u64;
        let mut seen = 0;
        let reached = self.counts.iter().find(|(_, count)| {
            seen += **count;
            seen >= wanted
        });
        reached.map_or(0, |(step, _)| longest_in(*step))
    }
}

/// The step that a time falls into; each is as long as the one before, and after so many of them
/// twice as long.
fn step_of(us: u64) -> u64 {
    let doublings = u64::from((us / STEPS).checked_ilog2().map_or(0, |log| log + 1));
    let shift = doublings.saturating_sub(1);
    shift * STEPS + (us >> shift)
}

/// The longest time in a step.
fn longest_in(step: u64) -> u64 {
    let shift = (step / STEPS).saturating_sub(1);
    let start = (step - shift * STEPS) << shift;
    start + ((1 << shift) - 1)
}

#[derive(Clone, Debug, Default)]
struct Group {
    times: Times,
    bytes: u64,
    pfs_us: u64,
    failed: u64,
}

/// What came so far.
#[derive(Debug, Default)]
pub(super) struct Summary {
    groups: BTreeMap<(Operation, ServedBy), Group>,
    dropped: u64,
}

/// The summary for people and programs.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// How long it was watched, in seconds.
    seconds: f64,
    /// Requests that were shown.
    requests: u64,
    /// Requests that came faster than they were taken.
    dropped: u64,
    /// By operation and what served them.
    operations: Vec<Row>,
}

/// Requests of one operation that were served alike.
#[derive(Debug, Serialize)]
struct Row {
    operation: Operation,
    level: ServedBy,
    requests: u64,
    failed: u64,
    bytes: u64,
    /// Half of them took no longer, in microseconds.
    p50_us: u64,
    /// All but a hundredth took no longer, in microseconds.
    p99_us: u64,
    /// What they waited for the parallel file system together, in microseconds.
    pfs_us: u64,
}

impl Summary {
    pub fn add(&mut self, record: &TraceRecord) {
        let group = self.groups.entry((record.operation, record.level)).or_default();
        group.times.add(record.elapsed_us);
        group.bytes = group.bytes.saturating_add(record.bytes);
        group.pfs_us = group.pfs_us.saturating_add(record.pfs_us);
        group.failed += u64::from(record.errno != 0);
    }

    pub fn note_dropped(&mut self, requests: u64) {
        self.dropped = self.dropped.saturating_add(requests);
    }

    pub fn report(&self, elapsed_us: u64) -> Report {
        let row = |((operation, level), group): (&(Operation, ServedBy), &Group)| Row {
            operation: *operation,
            level: *level,
            requests: group.times.total,
            failed: group.failed,
            bytes: group.bytes,
            p50_us: group.times.at(0.5),
            p99_us: group.times.at(0.99),
            pfs_us: group.pfs_us,
        };
        Report {
            seconds: elapsed_us as f64 / 1e6,
            requests: self.groups.values().map(|group| group.times.total).sum(),
            dropped: self.dropped,
            operations: self.groups.iter().map(row).collect(),
        }
    }
}

impl Report {
    pub fn print(&self) {
        if self.requests > 0 {
            output::line("");
            self.print_table();
        }
        let missing = match self.dropped {
            0 => String::new(),
            dropped => format!("; {dropped} more came too fast to be shown"),
        };
        let requests = output::count(self.requests, "request");
        output::line(&format!("{requests} in {:.1} s{missing}", self.seconds));
    }

    fn print_table(&self) {
        let header =
            ["OPERATION", "SERVED BY", "REQUESTS", "FAILED", "BYTES", "p50 µs", "p99 µs", "PFS"];
        let right = [false, false, true, true, true, true, true, true];
        let rows: Vec<Vec<String>> = self
            .operations
            .iter()
            .map(|row| {
                let level = if row.level == ServedBy::Other { "-" } else { row.level.name() };
                vec![
                    row.operation.name().to_owned(),
                    level.to_owned(),
                    row.requests.to_string(),
                    row.failed.to_string(),
                    output::size(row.bytes),
                    row.p50_us.to_string(),
                    row.p99_us.to_string(),
                    format!("{:.1} ms", row.pfs_us as f64 / 1e3),
                ]
            })
            .collect();
        output::table(&header, &right, &rows);
    }
}

#[cfg(test)]
mod tests {
    use tidepool_proto::trace::Front;

    use super::*;

    #[test]
    fn a_step_holds_its_times_and_is_narrow() {
        for us in (0..5_000).chain([u64::from(u32::MAX), 1 << 40, u64::MAX]) {
            let longest = longest_in(step_of(us));
            assert!(longest >= us && longest - us <= us / STEPS, "{us}: {longest}");
            assert!(us == 0 || step_of(us) >= step_of(us - 1));
        }
    }

    #[test]
    fn percentiles_are_of_their_operation_and_level() {
        let mut summary = Summary::default();
        for us in 1..=100 {
            let record = TraceRecord {
                elapsed_us: us,
                pfs_us: 1,
                bytes: 10,
                errno: i32::from(us == 7),
                level: ServedBy::Pfs,
                ..TraceRecord::begun(Front::Mount, Operation::Read, 0, 1)
            };
            summary.add(&TraceRecord { level: ServedBy::Memory, elapsed_us: 3, ..record.clone() });
            summary.add(&record);
        }
        summary.note_dropped(5);
        let report = summary.report(2_000_000);
        assert_eq!((report.requests, report.dropped), (200, 5));
        let [memory, pfs] = &report.operations[..] else { panic!("{report:?}") };
        assert_eq!((memory.p50_us, memory.p99_us), (3, 3));
        assert!((50..=51).contains(&pfs.p50_us) && (99..=103).contains(&pfs.p99_us), "{pfs:?}");
        assert_eq!((pfs.requests, pfs.failed, pfs.bytes, pfs.pfs_us), (100, 1, 1000, 100));
    }
}
