//! What a plan is asked for and compares: a workload, the storages it may run on, and its time on
//! each.

use serde::{Deserialize, Serialize};

use crate::cluster::Cluster;
use crate::demand::DemandTrace;
use crate::hit_ratio::{Access, Policy};
use crate::quantity::{Bytes, NodeCount, Seconds, Share};
use crate::throughput::Resource;

/// What is to be done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Workload {
    /// Size of the set, all nodes together.
    pub set: Bytes,
    /// How often it is gone through, at least once.
    pub passes: u32,
    /// In which order.
    pub access: Access,
    /// Bytes read in a pass over the size of the set.
    pub read_share: f64,
    /// Bytes written in a pass, all nodes together.
    pub written_per_pass: Bytes,
    /// Processor seconds for 10^9 bytes read, one processor busy for one second being 1.
    pub processor_seconds_per_gb: f64,
    /// Processors of a node.
    pub processors_per_node: u32,
    /// Compute nodes.
    pub nodes: NodeCount,
    /// Memory of a node that the store and the jobs share.
    pub memory_per_node: Bytes,
    /// Memory of a node that jobs take.
    pub jobs: Demand,
}

/// Memory of a node that jobs take.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Demand {
    /// Always the same.
    Constant(Bytes),
    /// As recorded.
    Trace(DemandTrace),
}

/// All that a plan is made from.
#[derive(Clone, Debug, PartialEq)]
pub struct PlanInput {
    /// Rates of the cluster.
    pub cluster: Cluster,
    /// What is to be done.
    pub workload: Workload,
    /// Policy of the store.
    pub policy: Policy,
    /// Block size of the store.
    pub block: Bytes,
    /// Whether the PFS mount uses the kernel's page cache between opens.
    pub page_cache: bool,
    /// A gain below this share is not worth another level.
    pub worth: f64,
    /// Time to meet.
    pub target: Option<Seconds>,
}

/// Where the data may be served from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum StorageChoice {
    /// Every read goes to the PFS.
    Pfs,
    /// PFS and the page cache of each node, which evicts about as LRU does.
    PageCache,
    /// HDFS on the disks of the compute nodes.
    Hdfs,
    /// Memory level over the PFS.
    TwoLevel,
}

impl StorageChoice {
    /// In words.
    pub fn name(self) -> &'static str {
        match self {
            StorageChoice::Pfs => "bare PFS",
            StorageChoice::PageCache => "PFS with page cache",
            StorageChoice::Hdfs => "HDFS on local disks",
            StorageChoice::TwoLevel => "Tidepool over the PFS",
        }
    }
}

/// A part of the workload.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Phase {
    /// `first pass`, `later passes` or `writes`.
    pub name: String,
    /// How long it takes.
    pub time: Seconds,
    /// What holds it.
    pub bottleneck: Resource,
    /// Bytes of all nodes together.
    pub bytes: Bytes,
}

/// The workload on one storage.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// Which storage.
    pub storage: StorageChoice,
    /// f in the later passes.
    pub hits: Share,
    /// Its parts, in order; parts without bytes are left out.
    pub phases: Vec<Phase>,
    /// How long all of it takes.
    pub total: Seconds,
}

impl Choice {
    /// What holds the longest phase.
    pub fn bottleneck(&self) -> Option<Resource> {
        let longest =
            self.phases.iter().max_by(|one, other| one.time.get().total_cmp(&other.time.get()));
        longest.map(|phase| phase.bottleneck)
    }
}

/// Memory of a node that is left to the store, averaged over time.
pub(crate) fn left_memory(workload: &Workload) -> Bytes {
    match &workload.jobs {
        Demand::Constant(taken) => workload.memory_per_node.less(*taken),
        Demand::Trace(trace) => trace.mean_left(workload.memory_per_node),
    }
}
