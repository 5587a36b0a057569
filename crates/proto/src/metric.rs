//! The one table of metrics. A metric is a function of [`Status`], so that `tidepool status` and
//! the Prometheus endpoint can never disagree; the reference is made from the same table.
//!
//! Counters conserve bytes: `tidepool_read_bytes_asked_total` equals the sum over all levels of
//! `tidepool_read_bytes_served_total` plus `tidepool_read_bytes_failed_total`.

use std::fmt::Write;

use crate::admin::Status;
use crate::level::Level;

/// How a metric moves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Only grows while the node runs.
    Counter,
    /// Goes up and down.
    Gauge,
}

impl MetricKind {
    /// The name that Prometheus uses.
    pub fn name(self) -> &'static str {
        match self {
            MetricKind::Counter => "counter",
            MetricKind::Gauge => "gauge",
        }
    }
}

/// One value of a metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sample {
    /// Values of the labels, in the order of [`MetricSpec::labels`].
    pub label_values: Vec<String>,
    /// The value, in the unit of the metric.
    pub value: u64,
}

/// One metric.
#[derive(Clone, Copy, Debug)]
pub struct MetricSpec {
    /// Name, with unit and `_total` as Prometheus wants them.
    pub name: &'static str,
    /// How it moves.
    pub kind: MetricKind,
    /// Unit, or empty for plain numbers.
    pub unit: &'static str,
    /// Names of the labels.
    pub labels: &'static [&'static str],
    /// One sentence of documentation.
    pub doc: &'static str,
    /// Takes the values out of the facts of a node.
    pub samples: fn(&Status) -> Vec<Sample>,
}

fn one(value: u64) -> Vec<Sample> {
    vec![Sample { label_values: Vec::new(), value }]
}

macro_rules! metrics {
    ($($name:literal $kind:ident $unit:literal $value:expr, $doc:literal;)+) => {
        [$(MetricSpec {
            name: $name,
            kind: MetricKind::$kind,
            unit: $unit,
            labels: &[],
            doc: $doc,
            samples: |status| { let value: fn(&Status) -> u64 = $value; one(value(status)) },
        }),+]
    };
}

const LABELLED: [MetricSpec; 2] = [
    MetricSpec {
        name: "tidepool_node_info",
        kind: MetricKind::Gauge,
        unit: "",
        labels: &["version", "pfs_type", "policy", "backing"],
        doc: "Always 1; the labels say what runs.",
        samples: |status| {
            let store = &status.store;
            let labels = [&status.version, &status.pfs_type, &store.policy, &store.backing];
            vec![Sample { label_values: labels.map(String::clone).to_vec(), value: 1 }]
        },
    },
    MetricSpec {
        name: "tidepool_read_bytes_served_total",
        kind: MetricKind::Counter,
        unit: "bytes",
        labels: &["level"],
        doc: "Bytes that readers got, by the level that served them.",
        samples: |status| {
            let sample = |level: Level| Sample {
                label_values: vec![level.name().to_owned()],
                value: status.served.get(level),
            };
            Level::ALL.map(sample).to_vec()
        },
    },
];

const PLAIN: [MetricSpec; 25] = metrics! {
    "tidepool_read_bytes_asked_total" Counter "bytes" |s| s.asked_bytes,
        "Bytes that readers asked for: those served by any level plus those that failed.";
    "tidepool_read_bytes_failed_total" Counter "bytes" |s| s.failed_bytes,
        "Bytes of reads that ended in an error.";
    "tidepool_written_bytes_total" Counter "bytes" |s| s.written_bytes,
        "Bytes that clients wrote.";
    "tidepool_pfs_read_bytes_total" Counter "bytes" |s| s.pfs_read_bytes,
        "Bytes read from the PFS by fills, read-ahead and bypassing reads.";
    "tidepool_pfs_written_bytes_total" Counter "bytes" |s| s.pfs_written_bytes,
        "Bytes written to the PFS.";
    "tidepool_evicted_blocks_total" Counter "" |s| s.store.evicted_blocks,
        "Blocks evicted.";
    "tidepool_uptime_seconds" Gauge "seconds" |s| s.uptime_s,
        "Time since the start.";
    "tidepool_store_capacity_bytes" Gauge "bytes" |s| s.store.capacity_bytes,
        "Bytes that the store may hold.";
    "tidepool_store_resident_bytes" Gauge "bytes" |s| s.store.resident_bytes,
        "Bytes that the store holds.";
    "tidepool_store_resident_bytes_peak" Gauge "bytes" |s| s.store.resident_bytes_peak,
        "Most bytes that the store ever held; never more than its capacity at that time.";
    "tidepool_store_pinned_bytes" Gauge "bytes" |s| s.store.pinned_bytes,
        "Bytes that cannot be evicted now: pinned, lent, or open by passthrough.";
    "tidepool_store_bookkeeping_bytes" Gauge "bytes" |s| s.store.bookkeeping_bytes,
        "Bytes of bookkeeping beside the data.";
    "tidepool_store_block_bytes" Gauge "bytes" |s| s.store.block_bytes,
        "Size of a block.";
    "tidepool_store_segments" Gauge "" |s| s.store.segments,
        "Files with a segment of their own.";
    "tidepool_store_small_files" Gauge "" |s| s.store.small_files,
        "Packed small files.";
    "tidepool_store_huge_pages" Gauge "" |s| u64::from(s.store.huge_pages),
        "1 if the store is held in 2 MiB pages.";
    "tidepool_open_files" Gauge "" |s| s.open_files,
        "Open handles.";
    "tidepool_clients" Gauge "" |s| s.clients,
        "Connected clients.";
    "tidepool_memory_only_files" Gauge "" |s| s.memory_only_files,
        "Files whose bytes exist in memory only.";
    "tidepool_memory_only_bytes" Gauge "bytes" |s| s.memory_only_bytes,
        "Bytes that exist in memory only.";
    "tidepool_dirty_bytes" Gauge "bytes" |s| s.dirty_bytes,
        "Bytes whose durable copy is owed to the PFS.";
    "tidepool_dirty_age_milliseconds" Gauge "milliseconds" |s| s.dirty_age_ms.unwrap_or(0),
        "Age of the oldest owed byte; 0 where none is owed.";
    "tidepool_degraded" Gauge "" |s| s.degraded.len() as u64,
        "Number of things that this machine lacks; `tidepool status` names them.";
    "tidepool_mounted" Gauge "" |s| u64::from(s.mount.is_some()),
        "1 if the node is mounted.";
    "tidepool_process_id" Gauge "" |s| u64::from(s.process_id),
        "Process id of the node.";
};

/// All metrics.
pub static METRICS: [MetricSpec; 27] = {
    let mut all = [LABELLED[0]; 27];
    all[1] = LABELLED[1];
    let mut index = 0;
    while index < PLAIN.len() {
        all[LABELLED.len() + index] = PLAIN[index];
        index += 1;
    }
    all
};

/// The facts of a node in the text format of Prometheus (version 0.0.4).
pub fn render(status: &Status) -> String {
    let mut text = String::new();
    for metric in &METRICS {
        let (name, kind) = (metric.name, metric.kind.name());
        // Writing to a string cannot fail.
        let _ = writeln!(text, "# HELP {name} {}\n# TYPE {name} {kind}", metric.doc);
        for sample in (metric.samples)(status) {
            let _ = writeln!(text, "{name}{} {}", labels(metric, &sample), sample.value);
        }
    }
    text
}

fn labels(metric: &MetricSpec, sample: &Sample) -> String {
    if metric.labels.is_empty() {
        return String::new();
    }
    let pair = |(name, value): (&&str, &String)| {
        let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
        format!("{name}=\"{value}\"")
    };
    let pairs: Vec<String> = metric.labels.iter().zip(&sample.label_values).map(pair).collect();
    format!("{{{}}}", pairs.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::level::BytesByLevel;

    #[test]
    fn names_are_unique_and_say_their_kind_and_unit() {
        for (index, metric) in METRICS.iter().enumerate() {
            let name = metric.name;
            assert!(METRICS[..index].iter().all(|other| other.name != name), "{name} twice");
            assert!(name.starts_with("tidepool_"), "{name}");
            assert_eq!(name.ends_with("_total"), metric.kind == MetricKind::Counter, "{name}");
            assert!(name.contains(metric.unit), "{name} names {}", metric.unit);
            assert!(metric.doc.ends_with('.'), "{name}");
        }
    }

    #[test]
    fn every_sample_has_its_labels() {
        for metric in &METRICS {
            for sample in (metric.samples)(&Status::default()) {
                assert_eq!(sample.label_values.len(), metric.labels.len(), "{}", metric.name);
            }
        }
    }

    #[test]
    fn the_rendered_counters_conserve_bytes() {
        let served = BytesByLevel { mapped: 1, store: 20, peer: 300, buffer: 4000, pfs: 50_000 };
        let status = Status {
            served,
            failed_bytes: 7,
            asked_bytes: served.total() + 7,
            pfs_type: "a \"quoted\" one".to_owned(),
            ..Status::default()
        };
        let text = render(&status);
        let sum = |prefix: &str| -> u64 {
            let lines = text.lines().filter(|line| line.starts_with(prefix));
            lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
        };
        let served = sum("tidepool_read_bytes_served_total");
        assert_eq!(served, 54_321);
        let failed = sum("tidepool_read_bytes_failed_total");
        assert_eq!(sum("tidepool_read_bytes_asked_total"), served + failed);
        assert!(text.contains(r#"pfs_type="a \"quoted\" one""#), "{text}");
    }
}
