//! `tidepool model throughput`: equations (1) to (7) for a number of nodes, and what each input is
//! worth.

use serde::Serialize;
use tidepool_model::{
    Access, Bytes, Cluster, Direction, Limit, Sensitivity, Share, Storage, hit_ratio, per_node,
    sensitivities,
};
use tidepool_proto::Result;

use super::arguments::{DerivedHits, ThroughputArguments};
use super::{display_name, shares};
use crate::rates::Origin;
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::output;

/// One storage and direction. The names are stable.
#[derive(Debug, Serialize)]
struct Row {
    storage: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    f: Option<f64>,
    direction: Direction,
    per_node: Limit,
    aggregate_bytes_per_second: f64,
}

#[derive(Debug, Serialize)]
struct Sensitive {
    f: f64,
    inputs: Vec<Sensitivity>,
}

#[derive(Debug, Serialize)]
struct Report {
    nodes: u32,
    rows: Vec<Row>,
    sensitivities: Vec<Sensitive>,
    inputs: Cluster,
    #[serde(skip_serializing_if = "Option::is_none")]
    calibration: Option<Origin>,
}

/// Runs `model throughput`.
pub fn throughput(arguments: &ThroughputArguments) -> Result<Outcome> {
    let inputs = arguments.inputs.inputs()?;
    let cluster = &inputs.cluster;
    let nodes = arguments.nodes;
    let hits = match derived(&arguments.derived, nodes.as_f64())? {
        Some(derived) => vec![derived],
        None => shares(&arguments.hits, &[0.2, 0.5])?,
    };
    let mut rows = Vec::new();
    for (name, hits, storage) in storages(cluster, &hits) {
        for direction in [Direction::Read, Direction::Write] {
            let limit = per_node(cluster, storage, direction, nodes)?;
            rows.push(Row {
                storage: name.to_owned(),
                f: hits.map(Share::get),
                direction,
                per_node: limit,
                aggregate_bytes_per_second: limit.rate.get() * nodes.as_f64(),
            });
        }
    }
    let of = |hits: Share| -> Result<Sensitive> {
        Ok(Sensitive { f: hits.get(), inputs: sensitivities(cluster, hits, nodes)? })
    };
    let report = Report {
        nodes: nodes.get(),
        rows,
        sensitivities: hits.iter().copied().map(of).collect::<Result<_>>()?,
        inputs: cluster.clone(),
        calibration: inputs.origin.clone(),
    };
    if arguments.json {
        output::json(&report)?;
    } else {
        print(&report);
    }
    Ok(Outcome::Done)
}

/// f of one node's part of the set, if capacity and set are given.
fn derived(from: &DerivedHits, nodes: f64) -> Result<Option<Share>> {
    let (Some(capacity), Some(set)) = (from.capacity, from.set) else { return Ok(None) };
    let access = from.zipf.map_or(Access::Cyclic, |exponent| Access::Zipf { exponent });
    let part = Bytes::new(set.get() / nodes)?;
    hit_ratio(capacity, part, from.block, from.policy, access).map(Some)
}

/// All storages that the cluster has, with their names.
pub fn storages(cluster: &Cluster, hits: &[Share]) -> Vec<(&'static str, Option<Share>, Storage)> {
    let hdfs = [("hdfs-local", Storage::HdfsLocal), ("hdfs-remote", Storage::HdfsRemote)];
    let hdfs = hdfs.into_iter().filter(|_| cluster.disk.is_some());
    let others = [
        ("pfs", Storage::Pfs),
        ("memory-local", Storage::MemoryLocal),
        ("memory-remote", Storage::MemoryRemote),
    ];
    let single = hdfs.chain(others).map(|(name, storage)| (name, None, storage));
    let two_level = |hits: &Share| ("two-level", Some(*hits), Storage::TwoLevel { hits: *hits });
    single.chain(hits.iter().map(two_level)).collect()
}

fn print(report: &Report) {
    let rows: Vec<Vec<String>> = report
        .rows
        .iter()
        .map(|row| {
            let aggregate = tidepool_model::BytesPerSecond::new(row.aggregate_bytes_per_second);
            vec![
                display_name(&row.storage, row.f),
                if row.direction == Direction::Read { "read" } else { "write" }.to_owned(),
                row.per_node.rate.to_string(),
                aggregate.map(|rate| rate.to_string()).unwrap_or_default(),
                row.per_node.resource.name().to_owned(),
            ]
        })
        .collect();
    let all = format!("{} nodes", report.nodes);
    let header = ["storage", "direction", "one node", &all, "limited by"];
    output::table(&header, &[false, false, true, true, false], &rows);
    for sensitive in &report.sensitivities {
        output::line("");
        output::line(&format!("reads by {}:", display_name("two-level", Some(sensitive.f))));
        let rows: Vec<Vec<String>> = sensitive
            .inputs
            .iter()
            .map(|one| {
                let elasticity = format!("{:.2}%", one.elasticity);
                let doubled = format!("{:.2} times", one.gain_if_doubled);
                vec![one.input.name().to_owned(), elasticity, doubled]
            })
            .collect();
        let header = ["input", "1% more gives", "twice (share in memory: half-way to all) gives"];
        output::table(&header, &[false, true, true], &rows);
    }
}
