//! The requests of the command line to a node, and their answers. The JSON of every command is one
//! of these structures, so their field names are the stable keys.

use serde::{Deserialize, Serialize};

use crate::buffer::{BufferStatus, OwedFile};
use crate::cluster::{ClusterStatus, PairReport};
use crate::control::{CeilingLease, CeilingLeased, ControlStatus, Govern, Governed};
pub use crate::entry::ConfigEntry;
use crate::error::{ErrorKind, Result};
pub use crate::explanation::{ExplainedStripe, Explanation, SplitOwner};
use crate::files::{CachedFile, FileOrder};
use crate::level::BytesByLevel;
use crate::locality::{Locality, SplitRange};
pub use crate::report::{
    FlushReport, ForgottenFile, FreeReport, HandOnReport, LoadReport, ResizeReport, SpreadReport,
    SpreadShare,
};
use crate::size::MemorySize;
use crate::trace::{TraceBatch, TraceRequest};

/// A request of the command line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AdminRequest {
    /// Facts and counters of the node.
    Status,
    /// Everything known of one file; the descriptor of the file comes with the message.
    Explain,
    /// Brings the file in; its descriptor comes with the message.
    Load,
    /// Drops what is cached of the file; its descriptor comes with the message.
    Evict,
    /// Drops everything that may be dropped.
    EvictAll,
    /// Loads the file and keeps it resident; its descriptor comes with the message.
    Pin,
    /// Lets the file be evicted again; its descriptor comes with the message.
    Unpin,
    /// Sets the capacity of the store.
    Resize {
        /// New capacity; a share is one of the memory that the node may use.
        size: MemorySize,
    },
    /// Changes the eviction policy, by name.
    SetPolicy {
        /// One of the policy names.
        policy: String,
    },
    /// Effective configuration.
    Config,
    /// Make dirty bytes durable, refuse new opens, and stop if asked to.
    Drain {
        /// Stop the node when nothing is dirty any more.
        stop: bool,
    },
    /// The metrics, in the Prometheus text format.
    Metrics,
    /// A controller attaches, renews its lease, sets the capacity, reports.
    Govern(Govern),
    /// The memory control of the node.
    ControlStatus,
    /// Changes a setting of the control.
    SetControl {
        /// Name of the option.
        name: String,
        /// New value, in the grammar of the option.
        value: String,
    },
    /// The files that come first in an order, among those that the user may know of.
    Files {
        /// The order.
        order: FileOrder,
        /// How many, up to [`FILES_MAX`](crate::files::FILES_MAX).
        count: u32,
    },
    /// Takes new opens again after a drain.
    Resume,
    /// Facts and counters of all nodes of the cluster.
    ClusterStatus,
    /// Has all nodes of the cluster measure latency and rate, each of the one that comes so many
    /// places after it in the list.
    MeasureNodes {
        /// Places, from 1.
        shift: u32,
    },
    /// Has each split of a file that nobody has in memory brought in by its owner among the nodes;
    /// its descriptor comes with the message.
    Spread,
    /// Where splits of a file are; the descriptor of the file comes with the message.
    Locate(SplitRange),
    /// Watches requests, for as long as the connection is there. The descriptor of the file comes
    /// with the message where only requests of one are watched.
    Trace(TraceRequest),
    /// Has other nodes bring in what this one holds, what is hot first.
    HandOn {
        /// Longest time for it.
        limit_ms: u64,
    },
    /// Brings what is in memory or in burst buffers alone of a file to the PFS, and returns when it
    /// is there; its descriptor comes with the message.
    Flush,
    /// The same of all files of the node, and of those of nodes that are gone for which it answers.
    FlushAll {
        /// What burst buffers have of files that are nowhere to be found is dropped.
        forgets_missing: bool,
    },
    /// Files in burst buffers that the PFS does not have: those of the node, and those for which it
    /// answers.
    Owed,
    /// A view of the control page for somebody who only looks. Answer: `Observed`.
    Observe,
    /// Holds the store below a ceiling for the time of a lease.
    LeaseCeiling(CeilingLease),
}

impl AdminRequest {
    /// Whether what is pinned matters to it.
    pub fn is_of_pins(&self) -> bool {
        matches!(self, AdminRequest::Pin | AdminRequest::Unpin | AdminRequest::EvictAll)
    }

    /// What it changes for everybody, in words; `None` where it changes nothing.
    pub fn change(&self) -> Option<String> {
        Some(match self {
            AdminRequest::EvictAll => "evict all".to_owned(),
            AdminRequest::Resize { size } => format!("resize to {size}"),
            AdminRequest::SetPolicy { policy } => format!("policy {policy}"),
            AdminRequest::Drain { stop: false } => "drain".to_owned(),
            AdminRequest::Drain { stop: true } => "stop".to_owned(),
            AdminRequest::SetControl { name, value } => format!("{name} = {value}"),
            AdminRequest::Resume => "end of the drain".to_owned(),
            AdminRequest::FlushAll { forgets_missing: false } => "flush of all".to_owned(),
            AdminRequest::FlushAll { forgets_missing: true } => {
                "flush of all, and what is missing is forgotten".to_owned()
            }
            AdminRequest::HandOn { .. } => "handing on what is in memory".to_owned(),
            AdminRequest::MeasureNodes { .. } => "measurement between nodes".to_owned(),
            _ => return None,
        })
    }
}

/// The answer to a request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum AdminReply {
    /// To `Status`.
    Status(Box<Status>),
    /// To `Explain`.
    Explain(Box<Explanation>),
    /// To `Load` and `Pin`.
    Loaded(LoadReport),
    /// To `Evict` and `EvictAll`.
    Freed(FreeReport),
    /// To `Resize`.
    Resized(ResizeReport),
    /// To `Config`.
    Config(Vec<ConfigEntry>),
    /// To `Metrics`.
    Metrics(String),
    /// To `Govern`; the descriptors of the control page and of the heartbeat come along at
    /// attachment.
    Governed(Box<Governed>),
    /// To `ControlStatus`.
    Control(Box<ControlStatus>),
    /// To `Files`.
    Files(Vec<CachedFile>),
    /// To `ClusterStatus`, this node first.
    Cluster(Vec<NodeReport>),
    /// To `MeasureNodes`, a pair for each node.
    Measured(Vec<PairReport>),
    /// To `Spread`.
    Spread(SpreadReport),
    /// To `Locate`.
    Located(Locality),
    /// To requests without facts to report.
    Done,
    /// The request failed.
    Failed {
        /// What went wrong.
        kind: ErrorKind,
        /// One line: operation, cause and remedy.
        message: String,
        /// The errno behind it.
        errno: i32,
    },
    /// To `Unpin`: whether the file was pinned.
    Unpinned(bool),
    /// To `Trace` that asks for what comes next.
    Traced(TraceBatch),
    /// To `HandOn`.
    HandedOn(HandOnReport),
    /// To `Flush` and `FlushAll`.
    Flushed(FlushReport),
    /// To `Owed`, the oldest first.
    Owed(Vec<OwedFile>),
    /// To `Observe`; a read-only descriptor of the control page comes along.
    Observed,
    /// To `LeaseCeiling`.
    CeilingLeased(CeilingLeased),
}

/// What one node of a cluster says of itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeReport {
    /// Its name.
    pub node: String,
    /// How the node that was asked sees it: `self`, or as in
    /// [`MemberStatus::state`](crate::cluster::MemberStatus::state).
    pub state: String,
    /// Its facts; absent where it did not answer.
    pub status: Option<Box<Status>>,
    /// Why it did not.
    pub error: Option<String>,
}

/// Facts and counters of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// Release of the node.
    pub version: String,
    /// Process id of the node.
    pub process_id: u32,
    /// Seconds since the start.
    pub uptime_s: u64,
    /// The PFS directory.
    pub pfs: String,
    /// File system type of the PFS directory.
    pub pfs_type: String,
    /// Mount point, if the node is mounted.
    pub mount: Option<String>,
    /// Path of the socket.
    pub socket: String,
    /// The six-mode defaults of the mount.
    pub read_mode: String,
    /// Default write mode.
    pub write_mode: String,
    /// Directories with a rule of their own; `tidepool config` has the rules.
    pub directory_rules: u64,
    /// Users with a quota; `tidepool config` has the quotas.
    pub user_quotas: u64,
    /// The store.
    pub store: StoreStatus,
    /// Bytes served to readers, by level.
    pub served: BytesByLevel,
    /// Bytes that readers asked for: served plus failed.
    pub asked_bytes: u64,
    /// Bytes of reads that ended in an error.
    pub failed_bytes: u64,
    /// Least share of what was read that did not come from the PFS, by [`HitRatio`].
    pub hit_ratio_at_least: Option<f64>,
    /// The share by an estimate, see [`HitRatio`].
    pub hit_ratio_estimated: Option<f64>,
    /// Opens of files for reading, those among them too that the kernel reads by itself.
    pub reading_opens: u64,
    /// Reads of `tidepool doctor`, which no other counter of reads has.
    pub probes: ProbeStatus,
    /// Traces of requests under way.
    pub traces: u64,
    /// The node takes no new opens: it was drained.
    pub draining: bool,
    /// Bytes written by clients.
    pub written_bytes: u64,
    /// Bytes read from the PFS by fills and bypassing reads.
    pub pfs_read_bytes: u64,
    /// Bytes read from other nodes' memory.
    pub peer_read_bytes: u64,
    /// Bytes that other nodes read from this one's memory.
    pub peer_served_bytes: u64,
    /// Bytes written to the PFS.
    pub pfs_written_bytes: u64,
    /// Open handles.
    pub open_files: u64,
    /// Connected clients.
    pub clients: u64,
    /// Bytes that exist in memory only, by file count and bytes.
    pub memory_only_files: u64,
    /// Bytes in memory only.
    pub memory_only_bytes: u64,
    /// Dirty bytes: the PFS has no durable copy of them yet.
    pub dirty_bytes: u64,
    /// Age of the oldest dirty byte in milliseconds.
    pub dirty_age_ms: Option<u64>,
    /// What happened to transfers since the start.
    pub transfers: TransferStatus,
    /// The memory control.
    pub control: ControlStatus,
    /// The nodes that share their memory, where this one is of a cluster.
    pub cluster: Option<Box<ClusterStatus>>,
    /// Its burst buffer, where it has one.
    #[serde(default)]
    pub buffer: Option<Box<BufferStatus>>,
    /// What this machine lacks, one line each.
    pub degraded: Vec<String>,
}

/// What is known of the share of read bytes that did not come from the PFS. What the kernel reads
/// by itself of wholly resident files it tells nobody, so there is a bound and an estimate. Both
/// are the exact share where no file was opened so, and absent before the first read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct HitRatio {
    /// The share of the counted bytes: what the kernel read by itself can only raise it.
    pub hit_ratio_at_least: Option<f64>,
    /// The share had each of those opens read its file once.
    pub hit_ratio_estimated: Option<f64>,
}

impl Status {
    /// What is known of the hit ratio since the start.
    pub fn hits(&self) -> HitRatio {
        HitRatio {
            hit_ratio_at_least: self.hit_ratio_at_least,
            hit_ratio_estimated: self.hit_ratio_estimated,
        }
    }
}

impl HitRatio {
    /// By what the levels served, and the length of the files behind opens that the kernel reads
    /// by itself, `passthrough_bytes` together.
    pub fn of(served: &BytesByLevel, passthrough_bytes: u64) -> HitRatio {
        let share = |all: u64| 1.0 - served.pfs as f64 / all.max(1) as f64;
        let (counted, all) = (served.total(), served.total() + passthrough_bytes);
        let known = |share: f64| (all > 0).then_some(share);
        HitRatio {
            hit_ratio_at_least: known(share(counted)),
            hit_ratio_estimated: known(share(all)),
        }
    }
}

/// Begin of the names of files with which `tidepool doctor` examines a node.
pub const PROBE_PREFIX: &str = ".tidepool-doctor-";

/// What became of reads of files whose names begin with [`PROBE_PREFIX`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProbeStatus {
    /// Bytes served, by level.
    pub served: BytesByLevel,
    /// Opens answered with a segment that the kernel reads by itself.
    pub passthrough_opens: u64,
}

/// What happened to transfers of a node since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransferStatus {
    /// Blocks brought in, from the PFS or from other nodes.
    pub fills: u64,
    /// Requests for a block that joined a fill under way.
    pub fills_joined: u64,
    /// Fills thrown away because the file changed meanwhile.
    pub fills_discarded: u64,
    /// Fills whose bytes the policy or a lack of room kept out of the store.
    pub fills_not_admitted: u64,
    /// Blocks asked for by read-ahead.
    pub read_ahead_blocks: u64,
    /// Opens answered with a segment that the kernel reads by itself.
    pub passthrough_opens: u64,
    /// Length of the files behind those opens; what was read of them is not reported to the node.
    /// The estimate of the hit ratio takes each as read once.
    pub passthrough_bytes: u64,
    /// Opens that found the cached version out of date.
    pub versions_invalidated: u64,
    /// Bytes of memory-only files written back to the PFS.
    pub written_back_bytes: u64,
}

/// The store of a node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct StoreStatus {
    /// Bytes the store may hold.
    pub capacity_bytes: u64,
    /// Bytes it holds.
    pub resident_bytes: u64,
    /// Highest number of bytes it ever held.
    pub resident_bytes_peak: u64,
    /// Bytes that cannot be evicted now: pinned, borrowed or open by passthrough.
    pub pinned_bytes: u64,
    /// The part of `pinned_bytes` that stays only because programs have it mapped still, after
    /// they closed the files: it goes with their last mapping.
    pub lingering_bytes: u64,
    /// Bytes of bookkeeping beside the data.
    pub bookkeeping_bytes: u64,
    /// Files with a segment of their own.
    pub segments: u64,
    /// Packed small files.
    pub small_files: u64,
    /// Name of the eviction policy.
    pub policy: String,
    /// What the policy `adaptive` follows at present; absent with others.
    pub policy_choice: Option<PolicyChoice>,
    /// Block size in bytes.
    pub block_bytes: u64,
    /// Whether memory comes in 2 MiB pages.
    pub huge_pages: bool,
    /// What segments are made of: `memfd` or `tmpfs`.
    pub backing: String,
    /// Blocks evicted since the start.
    pub evicted_blocks: u64,
}

/// Shares of hits that differ by less are the same to a reader.
const RATIOS_DIFFER: f64 = 0.005;

/// Which policy `adaptive` follows, and what each would have hit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicyChoice {
    /// Name of the one that decides.
    pub chosen: String,
    /// Every candidate.
    pub candidates: Vec<PolicyRatio>,
    /// Reads of a sample of the blocks that the ratios are of; older ones count less. What is read
    /// again before 32 other blocks were read is in no ratio: every policy has it still.
    pub compared_reads: u64,
}

impl PolicyChoice {
    /// What was chosen and what the others would have hit, on one line, the best one first.
    pub fn words(&self) -> String {
        let chosen = &self.chosen;
        if self.compared_reads == 0 {
            return format!("follows {chosen}; nothing to compare was read yet");
        }
        let ratios = || self.candidates.iter().map(|it| it.would_hit_ratio);
        let (lowest, highest) = (ratios().fold(1.0, f64::min), ratios().fold(0.0, f64::max));
        if highest - lowest < RATIOS_DIFFER {
            return format!("follows {chosen}; every policy would have hit the same so far");
        }
        let percent = |it: &PolicyRatio| format!("{:.0}%", it.would_hit_ratio * 100.0);
        let own = self.candidates.iter().find(|it| it.policy == *chosen);
        let mut others: Vec<&PolicyRatio> =
            self.candidates.iter().filter(|it| it.policy != *chosen).collect();
        others.sort_by(|a, b| b.would_hit_ratio.total_cmp(&a.would_hit_ratio));
        let others: Vec<String> =
            others.into_iter().map(|it| format!("{} {}", it.policy, percent(it))).collect();
        format!(
            "follows {chosen}, which would have hit {} of the latest reads ({})",
            own.map_or("-".into(), percent),
            others.join(", ")
        )
    }
}

/// A policy and its share of hits.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PolicyRatio {
    /// Name of the policy.
    pub policy: String,
    /// Share of the compared reads that would have hit, from 0 to 1, by a sample of the blocks.
    pub would_hit_ratio: f64,
}

/// What a node answers to the command line. `descriptor` is the file that path requests bring.
pub trait AdminService: Send + Sync + 'static {
    /// The directory of the parallel file system that the node serves. Clients hear it as soon as
    /// they connect, also those that are turned away.
    fn pfs_root(&self) -> std::path::PathBuf;

    /// Answers one request of the user `user_id`. What takes long asks `go_on` now and then, and
    /// gives up where nobody waits for the answer any more.
    fn admin_while(
        &self,
        request: AdminRequest,
        descriptor: Option<std::os::fd::OwnedFd>,
        user_id: u32,
        go_on: &dyn Fn() -> bool,
    ) -> Result<AdminReply>;

    /// As [`admin_while`](Self::admin_while), for somebody who waits however long it takes.
    fn admin(
        &self,
        request: AdminRequest,
        descriptor: Option<std::os::fd::OwnedFd>,
        user_id: u32,
    ) -> Result<AdminReply> {
        self.admin_while(request, descriptor, user_id, &|| true)
    }

    /// For the controller that attached and got `fence`: a read-only descriptor of the control
    /// page, and one of the heartbeat that it writes.
    fn control_pages(&self, fence: u64) -> Result<[std::os::fd::OwnedFd; 2]> {
        let detail = format!("this node has no control page (fence {fence})");
        Err(crate::Error::new(ErrorKind::Unsupported, "governing the store", detail))
    }

    /// For somebody who only looks: a read-only descriptor of the control page.
    fn observed_page(&self) -> Result<std::os::fd::OwnedFd> {
        let detail = "this node has no control page";
        Err(crate::Error::new(ErrorKind::Unsupported, "observing the store", detail))
    }
}

#[cfg(test)]
mod tests {
    use super::{HitRatio, PolicyChoice, PolicyRatio};
    use crate::level::BytesByLevel;

    #[test]
    fn a_hit_ratio_is_exact_or_bounded() {
        let of = |store, pfs, lent| {
            let found = HitRatio::of(&BytesByLevel { store, pfs, ..Default::default() }, lent);
            found.hit_ratio_at_least.zip(found.hit_ratio_estimated)
        };
        assert_eq!(of(0, 0, 0), None);
        assert_eq!(of(3, 1, 0), Some((0.75, 0.75)), "all is counted");
        assert_eq!(of(0, 1, 3), Some((0.0, 0.75)));
        assert_eq!(of(0, 0, 3), Some((1.0, 1.0)), "nothing came from the PFS");
    }

    #[test]
    fn policies_that_would_have_hit_the_same_are_not_told_apart() {
        // Five passes over a few blocks that fit: only their first reads are compared.
        let candidates = ["cyclic", "lru", "fixed"]
            .map(|policy| PolicyRatio { policy: policy.to_owned(), would_hit_ratio: 0.0 });
        let choice = PolicyChoice {
            chosen: "cyclic".into(),
            candidates: candidates.to_vec(),
            compared_reads: 25,
        };
        assert_eq!(choice.words(), "follows cyclic; every policy would have hit the same so far");
    }

    #[test]
    fn a_choice_reads_as_a_sentence() {
        let ratio = |policy: &str, would_hit_ratio| PolicyRatio {
            policy: policy.to_owned(),
            would_hit_ratio,
        };
        let choice = PolicyChoice {
            chosen: "cyclic".into(),
            candidates: vec![ratio("cyclic", 0.664), ratio("lru", 0.0), ratio("fixed", 0.655)],
            compared_reads: 90,
        };
        assert_eq!(
            choice.words(),
            "follows cyclic, which would have hit 66% of the latest reads (fixed 66%, lru 0%)"
        );
        let fresh = PolicyChoice { compared_reads: 0, ..choice };
        assert_eq!(fresh.words(), "follows cyclic; nothing to compare was read yet");
    }
}
