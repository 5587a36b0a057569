//! Planning: how long a workload takes on each storage, what holds it, whether a memory level is
//! worth having, and how few nodes or how little memory meet a target time. All from the models;
//! nothing is measured here.
//!
//! Assumes what the papers assume (equal nodes, evenly divided work, reading overlapped with
//! computing) and that a node reads the same part of the set in every pass, so that its own memory
//! serves it. Data that the workload writes is assumed to displace nothing.

use serde::{Deserialize, Serialize};
use tidepool_proto::{Error, ErrorKind, Result};

use crate::cluster::Cluster;
use crate::crossover::{Crossover, read_crossover, write_crossover};
use crate::hit_ratio::{Policy, hit_ratio};
use crate::plan_advice::{Advice, advise};
use crate::quantity::{Bytes, BytesPerSecond, NodeCount, Seconds, Share};
use crate::throughput::{Direction, Storage, per_node};
use crate::workload::{Choice, Demand, Phase, PlanInput, StorageChoice, Workload, left_memory};

/// What a target time takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct TargetAnswer {
    /// Fewest nodes with the given memory each; nothing if no number will do.
    pub nodes: Option<NodeCount>,
    /// Least memory a node, jobs included, for the given nodes; nothing if no amount will do.
    pub memory_per_node: Option<Bytes>,
    /// Fewest nodes on the bare PFS; nothing if no number will do.
    pub nodes_on_pfs: Option<NodeCount>,
    /// The time that no number of nodes with the given memory beats.
    pub shortest: Seconds,
}

/// A target time and what it takes.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// The time to meet.
    pub time: Seconds,
    /// What it takes.
    pub answer: TargetAnswer,
}

/// The outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The workload on each storage that the cluster has.
    pub choices: Vec<Choice>,
    /// What to do.
    pub advice: Advice,
    /// Memory of a node that the store gets, averaged over time.
    pub store_memory: Bytes,
    /// Where HDFS overtakes the bare PFS for reads; only with local disks.
    pub hdfs_over_pfs: Option<Crossover>,
    /// Where HDFS overtakes two levels with the f of the later passes.
    pub hdfs_over_two_level: Option<Crossover>,
    /// Where HDFS overtakes both for writes.
    pub hdfs_writes: Option<Crossover>,
    /// The target, if one was given.
    pub target: Option<Target>,
}

/// Node counts beyond this are not searched.
pub const NODES_MAX: u32 = 1 << 20;
const GB: f64 = 1e9;

/// Makes a plan.
pub fn plan(input: &PlanInput) -> Result<Plan> {
    check(input)?;
    let mut storages = vec![StorageChoice::Pfs];
    storages.extend(input.page_cache.then_some(StorageChoice::PageCache));
    storages.extend(input.cluster.disk.map(|_| StorageChoice::Hdfs));
    storages.push(StorageChoice::TwoLevel);
    let choices: Vec<Choice> =
        storages.into_iter().map(|storage| choice(input, storage)).collect::<Result<_>>()?;
    let two_level = choices.last().expect("two-level storage was pushed last");
    let hits = two_level.hits;
    let has_disk = input.cluster.disk.is_some();
    let crossover = |hits| has_disk.then(|| read_crossover(&input.cluster, hits)).transpose();
    Ok(Plan {
        advice: advise(input, &choices),
        store_memory: left_memory(&input.workload),
        hdfs_over_pfs: crossover(Share::NONE)?,
        hdfs_over_two_level: crossover(hits)?,
        hdfs_writes: has_disk.then(|| write_crossover(&input.cluster)).transpose()?,
        target: input.target.map(|time| meet(input, time)).transpose()?,
        choices,
    })
}

fn check(input: &PlanInput) -> Result<()> {
    let workload = &input.workload;
    let refuse = |detail: &str, remedy: &str| {
        Err(Error::new(ErrorKind::InvalidInput, "making a plan", detail).remedy(remedy))
    };
    let amount = |value: f64| value.is_finite() && value >= 0.0;
    if workload.set.get() == 0.0 {
        return refuse("a set of 0 bytes", "give the size of the data, as 256GiB");
    }
    if workload.passes == 0 {
        return refuse("0 passes", "a workload goes through its data at least once");
    }
    if !amount(workload.read_share) {
        return refuse("a negative share of reads", "1 reads the whole set in each pass");
    }
    if !amount(workload.processor_seconds_per_gb) || workload.processors_per_node == 0 {
        return refuse("processor time that is negative, or no processors", "0 s/GB is I/O only");
    }
    if !amount(input.worth) {
        return refuse("a negative gain", "0.1 asks for a gain of a tenth");
    }
    if input.target.is_some_and(|time| time.get() == 0.0) {
        return refuse("a target of 0 s", "give a time above zero");
    }
    input.cluster.check()
}

/// f of the later passes of one node.
pub(crate) fn later_hits(input: &PlanInput, storage: StorageChoice) -> Result<Share> {
    let workload = &input.workload;
    let policy = match storage {
        StorageChoice::Pfs | StorageChoice::Hdfs => return Ok(Share::NONE),
        StorageChoice::PageCache => Policy::Lru,
        StorageChoice::TwoLevel => input.policy,
    };
    let part = workload.set * (1.0 / workload.nodes.as_f64());
    let (memory, block, access) = (workload.memory_per_node, input.block, workload.access);
    match &workload.jobs {
        Demand::Constant(taken) => hit_ratio(memory.less(*taken), part, block, policy, access),
        Demand::Trace(trace) => trace.hit_ratio(memory, part, block, policy, access),
    }
}

/// The workload on one storage.
pub(crate) fn choice(input: &PlanInput, storage: StorageChoice) -> Result<Choice> {
    let workload = &input.workload;
    let hits = later_hits(input, storage)?;
    let (first, later) = match storage {
        StorageChoice::Hdfs => (Storage::HdfsLocal, Storage::HdfsLocal),
        StorageChoice::Pfs => (Storage::Pfs, Storage::Pfs),
        StorageChoice::PageCache | StorageChoice::TwoLevel => {
            (Storage::Pfs, Storage::TwoLevel { hits })
        }
    };
    let writing = match storage {
        StorageChoice::Hdfs => Storage::HdfsLocal,
        // The page cache only puts writing off.
        StorageChoice::Pfs | StorageChoice::PageCache => Storage::Pfs,
        StorageChoice::TwoLevel => Storage::TwoLevel { hits },
    };
    let read = workload.set * workload.read_share;
    let passes = f64::from(workload.passes);
    let parts = [
        ("first pass", first, Direction::Read, read),
        ("later passes", later, Direction::Read, read * (passes - 1.0)),
        ("writes", writing, Direction::Write, workload.written_per_pass * passes),
    ];
    let mut phases = Vec::new();
    for (name, storage, direction, bytes) in parts {
        if bytes.get() == 0.0 {
            continue;
        }
        let cluster = with_processors(input, direction);
        let limit = per_node(&cluster, storage, direction, workload.nodes)?;
        let time = bytes / limit.rate.times(workload.nodes.as_f64());
        let (name, bottleneck) = (name.to_owned(), limit.resource);
        phases.push(Phase { name, time, bottleneck, bytes });
    }
    let total = phases.iter().map(|phase| phase.time).sum();
    Ok(Choice { storage, hits, phases, total })
}

/// The cluster with the processors' limit on reads; writing needs none of them.
fn with_processors(input: &PlanInput, direction: Direction) -> Cluster {
    let mut cluster = input.cluster.clone();
    let workload = &input.workload;
    if direction == Direction::Read && workload.processor_seconds_per_gb > 0.0 {
        let rate = f64::from(workload.processors_per_node) * GB / workload.processor_seconds_per_gb;
        // So slow a rate that it is no number is none that a person gave.
        cluster.extensions.processing = BytesPerSecond::new(rate).ok();
    }
    cluster
}

fn total_with(
    input: &PlanInput,
    storage: StorageChoice,
    change: impl FnOnce(&mut Workload),
) -> Result<Seconds> {
    let mut input = input.clone();
    change(&mut input.workload);
    Ok(choice(&input, storage)?.total)
}

/// Smallest number from 1 to `most` that is `enough`, where all larger ones are enough as well.
fn smallest(most: u64, enough: impl Fn(u64) -> Result<bool>) -> Result<Option<u64>> {
    if !enough(most)? {
        return Ok(None);
    }
    let (mut low, mut high) = (0, most);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if enough(middle)? { high = middle } else { low = middle }
    }
    Ok(Some(high))
}

/// More nodes and more memory never make a workload slower, so both are found by bisection.
fn meet(input: &PlanInput, time: Seconds) -> Result<Target> {
    let nodes_for = |storage| -> Result<Option<NodeCount>> {
        let enough = |nodes: u64| -> Result<bool> {
            let nodes = NodeCount::new(u32::try_from(nodes).unwrap_or(NODES_MAX))?;
            Ok(total_with(input, storage, |workload| workload.nodes = nodes)? <= time)
        };
        let found = smallest(u64::from(NODES_MAX), enough)?;
        found.map(|nodes| NodeCount::new(u32::try_from(nodes).unwrap_or(NODES_MAX))).transpose()
    };
    let many = NodeCount::new(NODES_MAX)?;
    let answer = TargetAnswer {
        nodes: nodes_for(StorageChoice::TwoLevel)?,
        memory_per_node: least_memory(input, time)?,
        nodes_on_pfs: nodes_for(StorageChoice::Pfs)?,
        shortest: total_with(input, StorageChoice::TwoLevel, |workload| workload.nodes = many)?,
    };
    Ok(Target { time, answer })
}

fn least_memory(input: &PlanInput, time: Seconds) -> Result<Option<Bytes>> {
    let workload = &input.workload;
    let with = |memory: Bytes| {
        total_with(input, StorageChoice::TwoLevel, |workload| workload.memory_per_node = memory)
    };
    if with(Bytes::default())? <= time {
        return Ok(Some(Bytes::default()));
    }
    let taken = match &workload.jobs {
        Demand::Constant(taken) => *taken,
        Demand::Trace(trace) => trace.most(),
    };
    let part = workload.set * (1.0 / workload.nodes.as_f64());
    let blocks = |size: Bytes| (size.get() / input.block.get()).ceil() as u64;
    // With this much, a node holds its part beside the jobs, and more changes nothing.
    let most = blocks(part) + blocks(taken) + 1;
    let found = smallest(most, |count| Ok(with(input.block * count as f64)? <= time))?;
    Ok(found.map(|count| input.block * count as f64))
}
