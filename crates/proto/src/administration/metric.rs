//! The one table of metrics. A metric is a function of [`Status`], so that `tidepool status` and
//! the Prometheus endpoint can never disagree; the reference is made from the same table.
//!
//! Counters conserve bytes: `tidepool_read_bytes_asked_total` equals the sum over all levels of
//! `tidepool_read_bytes_served_total` plus `tidepool_read_bytes_failed_total`.

use std::fmt::Write;

use crate::admin::Status;
use crate::buffer::BufferStatus;
use crate::cluster::ClusterStatus;
use crate::control::{ALARMS, ControlReport};
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

/// A number of a node that is one of several; 0 where it stands alone.
fn of_cluster(status: &Status, value: fn(&ClusterStatus) -> u64) -> u64 {
    status.cluster.as_deref().map_or(0, value)
}

fn of_buffer(status: &Status, value: fn(&BufferStatus) -> u64) -> u64 {
    status.buffer.as_deref().map_or(0, value)
}

/// A number that a controller reported; 0 where none did.
fn reported(status: &Status, value: fn(&ControlReport) -> u64) -> u64 {
    status.control.report.as_ref().map_or(0, value)
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

const LABELLED: &[MetricSpec] = &[
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
    MetricSpec {
        name: "tidepool_control_alarm",
        kind: MetricKind::Gauge,
        unit: "",
        labels: &["alarm"],
        doc: "1 while the alarm of the memory control is up.",
        samples: |status| {
            let sample = |(name, _): (&str, &str)| Sample {
                label_values: vec![name.to_owned()],
                value: status.control.has_alarm(name).into(),
            };
            ALARMS.map(sample).to_vec()
        },
    },
];

const PLAIN: &[MetricSpec] = &metrics! {
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
    "tidepool_store_lingering_bytes" Gauge "bytes" |s| s.store.lingering_bytes,
        "Those of them that stay only for mappings of files that were closed.";
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
    "tidepool_peer_read_bytes_total" Counter "bytes" |s| s.peer_read_bytes,
        "Bytes read from other nodes' memory.";
    "tidepool_peer_served_bytes_total" Counter "bytes" |s| s.peer_served_bytes,
        "Bytes that other nodes read from this node's memory.";
    "tidepool_cluster_members_alive" Gauge ""
        |s| of_cluster(s, |cluster| cluster.alive() as u64),
        "Nodes of the cluster that are alive, this one among them; 0 where it stands alone.";
    "tidepool_peer_blocks_missed_total" Counter ""
        |s| of_cluster(s, |cluster| cluster.blocks_missed),
        "Blocks that other nodes were asked for and did not give.";
    "tidepool_peer_messages_rejected_total" Counter ""
        |s| of_cluster(s, |cluster| cluster.messages_rejected),
        "Messages at the peer port that were refused: garbage, replays, wrong keys.";
    "tidepool_peer_blocks_changed_total" Counter ""
        |s| of_cluster(s, |cluster| cluster.blocks_changed),
        "Blocks of other nodes that changed while they were sent, and were thrown away.";
    "tidepool_peer_queued_bytes" Gauge "bytes"
        |s| of_cluster(s, |cluster| cluster.queued_bytes),
        "Bytes of blocks in sockets that other nodes have not received yet.";
    "tidepool_cluster_members" Gauge ""
        |s| of_cluster(s, |cluster| cluster.members.len() as u64 + 1),
        "Nodes in the list of the cluster; 0 where it stands alone.";
    "tidepool_cluster_location_entries" Gauge ""
        |s| of_cluster(s, |cluster| cluster.location_entries),
        "Blocks whose holders this node keeps for others, as their home.";
    "tidepool_cluster_location_bytes" Gauge "bytes"
        |s| of_cluster(s, |cluster| cluster.location_bytes),
        "Memory of these entries.";
    "tidepool_copies_files" Gauge ""
        |s| of_cluster(s, |cluster| cluster.copies.files),
        "Memory-only files of this node that other nodes hold copies of.";
    "tidepool_copies_held" Gauge ""
        |s| of_cluster(s, |cluster| cluster.copies.held),
        "Copies that this node holds for others.";
    "tidepool_copies_held_bytes" Gauge "bytes"
        |s| of_cluster(s, |cluster| cluster.copies.held_bytes),
        "Memory of these copies.";
    "tidepool_copies_pushed_bytes_total" Counter "bytes"
        |s| of_cluster(s, |cluster| cluster.copies.pushed_bytes),
        "Bytes sent to holders of copies.";
    "tidepool_copies_missing_total" Counter ""
        |s| of_cluster(s, |cluster| cluster.copies.missing),
        "Files that were written back because a copy was not to be had.";
    "tidepool_copies_put_in_place_total" Counter ""
        |s| of_cluster(s, |cluster| cluster.copies.put_in_place),
        "Copies that were put in the place of the file, because its node was gone.";
    "tidepool_owed_files" Gauge ""
        |s| of_cluster(s, |cluster| cluster.copies.owed_files),
        "Files of this node whose bytes burst buffers owe to the PFS.";
    "tidepool_owed_bytes" Gauge "bytes"
        |s| of_cluster(s, |cluster| cluster.copies.owed_bytes),
        "Bytes of these files.";
    "tidepool_owed_oldest_seconds" Gauge "s"
        |s| of_cluster(s, |cluster| cluster.copies.owed_oldest_s.unwrap_or(0)),
        "How long the oldest of these files is owed.";
    "tidepool_owed_answered_for" Gauge ""
        |s| of_cluster(s, |cluster| cluster.copies.answered_for),
        "Files in burst buffers that this node would bring to the PFS if theirs went.";
    "tidepool_owed_write_back_bytes_per_second" Gauge "bytes_per_second"
        |s| of_cluster(s, |cluster| cluster.copies.write_back_bytes_per_s.unwrap_or(0)),
        "Rate that these files are brought to the PFS at, at most, while nobody waits for them; 0: \
         as fast as it takes them.";
    "tidepool_clean_copies_pushed_bytes_total" Counter "bytes"
        |s| of_cluster(s, |cluster| cluster.clean_copies.pushed_bytes),
        "Bytes written in mode `adw` or `bld` that this node sent to burst buffers.";
    "tidepool_clean_copies_fetched_bytes_total" Counter "bytes"
        |s| of_cluster(s, |cluster| cluster.clean_copies.fetched_bytes),
        "Bytes that this node had from burst buffers instead of from the PFS.";
    "tidepool_buffer_memory_bytes" Gauge "bytes"
        |s| of_buffer(s, |buffer| buffer.memory_bytes),
        "Memory of the burst buffer in use.";
    "tidepool_buffer_disk_bytes" Gauge "bytes"
        |s| of_buffer(s, |buffer| buffer.disk_bytes),
        "Bytes of the burst buffer's disk in use.";
    "tidepool_buffer_owed_blocks" Gauge ""
        |s| of_buffer(s, |buffer| buffer.owed_blocks),
        "Blocks on the burst buffer's disk that the PFS does not have.";
    "tidepool_buffer_owed_oldest_seconds" Gauge "s"
        |s| of_buffer(s, |buffer| buffer.owed_oldest_s.unwrap_or(0)),
        "Age of the oldest of these blocks.";
    "tidepool_buffer_waiting_writers" Gauge ""
        |s| of_buffer(s, |buffer| buffer.waiting_writers),
        "Writers that wait for room in the burst buffer.";
    "tidepool_buffer_failed_blocks" Gauge ""
        |s| of_buffer(s, |buffer| buffer.failed_blocks),
        "Blocks that take nothing more, as the disk failed or what was promised is broken.";
    "tidepool_clients" Gauge "" |s| s.clients,
        "Connected clients.";
    "tidepool_memory_only_files" Gauge "" |s| s.memory_only_files,
        "Files whose bytes exist in memory only.";
    "tidepool_memory_only_bytes" Gauge "bytes" |s| s.memory_only_bytes,
        "Bytes that exist in memory only.";
    "tidepool_dirty_bytes" Gauge "bytes" |s| s.dirty_bytes,
        "Bytes that the PFS has no durable copy of yet.";
    "tidepool_dirty_age_milliseconds" Gauge "milliseconds" |s| s.dirty_age_ms.unwrap_or(0),
        "Age of the oldest dirty byte; 0 where none is dirty.";
    "tidepool_fills_total" Counter "" |s| s.transfers.fills,
        "Blocks brought in, from the PFS or from other nodes.";
    "tidepool_fills_joined_total" Counter "" |s| s.transfers.fills_joined,
        "Requests for a block that joined a fill under way.";
    "tidepool_fills_discarded_total" Counter "" |s| s.transfers.fills_discarded,
        "Fills thrown away because the file changed meanwhile.";
    "tidepool_fills_not_admitted_total" Counter "" |s| s.transfers.fills_not_admitted,
        "Fills whose bytes the policy or a lack of room kept out of the store.";
    "tidepool_read_ahead_blocks_total" Counter "" |s| s.transfers.read_ahead_blocks,
        "Blocks asked for by read-ahead.";
    "tidepool_passthrough_opens_total" Counter "" |s| s.transfers.passthrough_opens,
        "Opens answered with a segment that the kernel reads by itself.";
    "tidepool_passthrough_bytes_total" Counter "bytes" |s| s.transfers.passthrough_bytes,
        "Length of the files behind those opens; how much of it is read the kernel tells nobody, \
         so it is in no count of bytes read.";
    "tidepool_reading_opens_total" Counter "" |s| s.reading_opens,
        "Opens of files for reading, those that the kernel reads by itself among them.";
    "tidepool_versions_invalidated_total" Counter "" |s| s.transfers.versions_invalidated,
        "Opens that found the cached version out of date.";
    "tidepool_written_back_bytes_total" Counter "bytes" |s| s.transfers.written_back_bytes,
        "Bytes of memory-only files written back to the PFS.";
    "tidepool_control_enabled" Gauge "" |s| s.control.enabled.into(),
        "1 if the node runs a controller of its memory.";
    "tidepool_control_governed" Gauge "" |s| (s.control.lease == "governed").into(),
        "1 while a controller governs the store.";
    "tidepool_control_demand_bytes" Gauge "bytes" |s| reported(s, |r| r.demand_bytes),
        "Memory demand of everything that is no store.";
    "tidepool_control_demand_slope_bytes_per_second" Gauge "bytes_per_second"
        |s| reported(s, |r| r.slope_bytes_per_s), "Growth of that demand.";
    "tidepool_control_target_bytes" Gauge "bytes" |s| reported(s, |r| r.target_bytes),
        "Bytes that all stores together may hold, as the controller decided.";
    "tidepool_control_headroom_bytes" Gauge "bytes" |s| reported(s, |r| r.headroom_bytes),
        "Bytes kept free for jobs above their demand.";
    "tidepool_control_guaranteed_bytes" Gauge "bytes" |s| s.control.guaranteed_bytes,
        "Guaranteed part of the store, never less than what is pinned.";
    "tidepool_control_write_back_bytes_per_second" Gauge "bytes_per_second"
        |s| s.control.write_back_bytes_per_s,
        "Measured rate at which memory-only bytes are written back; 0 before the first time.";
    "tidepool_control_lease_expirations_total" Counter "" |s| s.control.expirations,
        "Times a controller fell silent and the store fell to its guaranteed part.";
    "tidepool_control_ceiling_bytes" Gauge "bytes"
        |s| s.control.ceiling_in_force_bytes(),
        "Bytes that the store may hold at most: as configured, or by a leased ceiling.";
    "tidepool_control_ceiling_leased" Gauge "" |s| s.control.leased_ceiling.is_some().into(),
        "1 while a ceiling is leased, such as by the cluster plane.";
    "tidepool_control_ceiling_leases_total" Counter "" |s| s.control.ceiling_leases,
        "Times a ceiling was leased, the same again included.";
    "tidepool_control_ceiling_expirations_total" Counter "" |s| s.control.ceiling_expirations,
        "Times the lease of a ceiling ran out, and the store came back to its own limits.";
    "tidepool_control_restarts_total" Counter "" |s| s.control.restarts,
        "Starts of the node's controller after the first.";
    "tidepool_control_refusals_total" Counter "" |s| s.control.refusals,
        "Messages of controllers refused because another one governs.";
    "tidepool_control_foreign_changes_total" Counter "" |s| s.control.foreign_changes,
        "Times the capacity of a governed store was changed by somebody else.";
    "tidepool_degraded" Gauge "" |s| s.degraded.len() as u64,
        "Number of things that this machine lacks; `tidepool status` names them.";
    "tidepool_mounted" Gauge "" |s| u64::from(s.mount.is_some()),
        "1 if the node is mounted.";
    "tidepool_process_id" Gauge "" |s| u64::from(s.process_id),
        "Process id of the node.";
};

/// All metrics.
pub static METRICS: [MetricSpec; LABELLED.len() + PLAIN.len()] = {
    let mut all = [LABELLED[0]; LABELLED.len() + PLAIN.len()];
    let mut index = 0;
    while index < all.len() {
        all[index] = match index < LABELLED.len() {
            true => LABELLED[index],
            false => PLAIN[index - LABELLED.len()],
        };
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
    fn the_dashboards_ask_for_metrics_that_exist() {
        let nodes = include_str!("../../../../deploy/grafana/tidepool.json");
        let plane = include_str!("../../../../deploy/grafana/tidepool-plane.json");
        for (text, least) in [(nodes, 20), (plane, 15)] {
            let words = text.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
            // Those of the whole plane are of `tidepool plane site`, which looks for them itself.
            let is_ours =
                |word: &&str| word.starts_with("tidepool_") && !word.starts_with("tidepool_plane_");
            let asked: Vec<&str> = words.filter(is_ours).collect();
            assert!(asked.len() > least, "{asked:?}");
            for name in asked {
                assert!(METRICS.iter().any(|metric| metric.name == name), "no metric {name}");
            }
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
