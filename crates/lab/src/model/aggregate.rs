//! `tidepool model aggregate`: the curves of figure 2-7, for reads and writes.

use serde::Serialize;
use tidepool_model::{
    BytesPerSecond, Cluster, Direction, NodeCount, Pfs, Share, Storage, aggregate as all_nodes,
    read_crossover, write_crossover,
};
use tidepool_proto::Result;
use tidepool_report::axis::Axis;
use tidepool_report::chart::{Arrangement, Line, Panel, Picture, Stroke};
use tidepool_report::text::number;

use super::arguments::AggregateArguments;
use super::{display_name, shares};
use crate::pictures;
use crate::rates::Origin;
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::output;

/// Points of a curve.
const POINTS: u32 = 200;
/// Rows of the table.
const ROWS: usize = 12;
/// Room to the right of the last crossover.
const BEYOND: f64 = 1.2;

/// One curve. The names are stable.
#[derive(Clone, Debug, Serialize)]
struct Curve {
    name: String,
    /// What people read.
    #[serde(skip)]
    label: String,
    /// Which PFS of several; 0 for storages without one.
    #[serde(skip)]
    pfs: usize,
    #[serde(skip)]
    kind: usize,
    bytes_per_second: Vec<f64>,
}

#[derive(Debug, Serialize)]
struct Side {
    direction: Direction,
    nodes: Vec<u32>,
    curves: Vec<Curve>,
    /// Where HDFS overtakes which storage, one sentence for each PFS.
    #[serde(skip)]
    crossings: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Report {
    sides: Vec<Side>,
    inputs: Vec<Cluster>,
    #[serde(skip_serializing_if = "Option::is_none")]
    calibration: Option<Origin>,
    pictures: Vec<std::path::PathBuf>,
}

/// Runs `model aggregate`.
pub fn aggregate(arguments: &AggregateArguments) -> Result<Outcome> {
    let inputs = arguments.inputs.inputs()?;
    let hits = shares(&arguments.hits, &[0.2, 0.5])?;
    let more = arguments.also_pfs.iter().map(|rate| Cluster {
        pfs: Pfs::Aggregate { read: *rate, write: *rate },
        ..inputs.cluster.clone()
    });
    let clusters: Vec<Cluster> = std::iter::once(inputs.cluster.clone()).chain(more).collect();
    let sides = [Direction::Read, Direction::Write]
        .map(|direction| side(&clusters, &hits, direction, arguments.nodes_max));
    let [read, write] = sides;
    let mut report = Report {
        sides: vec![read?, write?],
        inputs: clusters,
        calibration: inputs.origin.clone(),
        pictures: Vec::new(),
    };
    if let Some(directory) = &arguments.pictures {
        let picture = picture(&report.sides);
        report.pictures = pictures::write(directory, "aggregate-throughput", &picture)?;
    }
    if arguments.json {
        output::json(&report)?;
    } else {
        report.sides.iter().for_each(print);
        for path in &report.pictures {
            output::line(&format!("picture: {}", path.display()));
        }
    }
    Ok(Outcome::Done)
}

fn side(
    clusters: &[Cluster],
    hits: &[Share],
    direction: Direction,
    nodes_max: Option<NodeCount>,
) -> Result<Side> {
    let most = match nodes_max {
        Some(most) => most.get(),
        None => interesting(clusters, hits, direction)?,
    };
    let mut nodes: Vec<u32> = (0..=POINTS)
        .map(|step| (u64::from(most) * u64::from(step) / u64::from(POINTS)) as u32)
        .collect();
    nodes[0] = 1;
    nodes.dedup();
    nodes.retain(|count| *count > 0);
    let curves = curves(clusters, hits, direction, &nodes)?;
    let crossings = clusters.iter().filter(|cluster| cluster.disk.is_some());
    let crossings = crossings.map(|cluster| crossing(cluster, hits, direction));
    Ok(Side { direction, nodes, curves, crossings: crossings.collect::<Result<_>>()? })
}

fn curves(
    clusters: &[Cluster],
    hits: &[Share],
    direction: Direction,
    nodes: &[u32],
) -> Result<Vec<Curve>> {
    let mut curves = Vec::new();
    let mut add = |names: (String, String), pfs, kind, cluster: &Cluster, storage| -> Result<()> {
        let rate = |count: &u32| -> Result<f64> {
            Ok(all_nodes(cluster, storage, direction, NodeCount::new(*count)?)?.rate.get())
        };
        let bytes_per_second = nodes.iter().map(rate).collect::<Result<_>>()?;
        let (name, label) = names;
        curves.push(Curve { name, label, pfs, kind, bytes_per_second });
        Ok(())
    };
    if clusters[0].disk.is_some() {
        let names = ("HDFS".to_owned(), "HDFS on local disks".to_owned());
        add(names, 0, 0, &clusters[0], Storage::HdfsLocal)?;
    }
    for (index, cluster) in clusters.iter().enumerate() {
        let rate = pfs_label(&cluster.pfs, direction)?;
        if direction == Direction::Write {
            let label = format!("PFS of {rate}, bare and with Tidepool");
            let names = (format!("PFS {rate}, two-level"), label);
            add(names, index, 1, cluster, Storage::Pfs)?;
            continue;
        }
        let names = (format!("PFS {rate}"), format!("bare PFS of {rate}"));
        add(names, index, 1, cluster, Storage::Pfs)?;
        for (kind, hits) in hits.iter().enumerate() {
            let share = number(hits.get() * 100.0);
            let label = match clusters.len() {
                1 => display_name("two-level", Some(hits.get())),
                _ => format!("Tidepool on PFS of {rate}, {share} % in memory"),
            };
            let names = (format!("two-level {rate}, f = {}", number(hits.get())), label);
            add(names, index, kind + 2, cluster, Storage::TwoLevel { hits: *hits })?;
        }
    }
    Ok(curves)
}

/// From how many nodes on HDFS is faster than a PFS and than Tidepool over it.
fn crossing(cluster: &Cluster, hits: &[Share], direction: Direction) -> Result<String> {
    let rate = pfs_label(&cluster.pfs, direction)?;
    let from = |nodes: Option<NodeCount>| match nodes {
        Some(nodes) => format!("from {nodes} nodes on"),
        None => "never".to_owned(),
    };
    if direction == Direction::Write {
        let nodes = from(write_crossover(cluster)?.nodes);
        return Ok(format!("HDFS is faster than a PFS of {rate}, bare or with Tidepool, {nodes}"));
    }
    let nodes = from(read_crossover(cluster, Share::NONE)?.nodes);
    let mut text = format!("HDFS is faster than a bare PFS of {rate} {nodes}");
    for (index, hits) in hits.iter().enumerate() {
        let nodes = from(read_crossover(cluster, *hits)?.nodes);
        let than = if index == 0 { ", than Tidepool with" } else { ", with" };
        text += &format!("{than} {} % in memory {nodes}", number(hits.get() * 100.0));
    }
    Ok(text)
}

fn pfs_label(pfs: &Pfs, direction: Direction) -> Result<String> {
    let rate = match pfs {
        Pfs::Aggregate { read, write } => {
            if direction == Direction::Read {
                *read
            } else {
                *write
            }
        }
        Pfs::DataNodes { count, network, disk_read, disk_write } => {
            let disk = if direction == Direction::Read { disk_read } else { disk_write };
            BytesPerSecond::new(disk.min(*network).get() * count.as_f64())?
        }
    };
    Ok(format!("{} GB/s", number(rate.get() / 1e9)))
}

/// Nodes up to a little beyond the last crossover, or 64 where there is none.
fn interesting(clusters: &[Cluster], hits: &[Share], direction: Direction) -> Result<u32> {
    let mut last = 0;
    for cluster in clusters.iter().filter(|cluster| cluster.disk.is_some()) {
        let found = match direction {
            Direction::Write => vec![write_crossover(cluster)?],
            Direction::Read => {
                let all = std::iter::once(Share::NONE).chain(hits.iter().copied());
                all.map(|hits| read_crossover(cluster, hits)).collect::<Result<_>>()?
            }
        };
        let nodes = found.iter().filter_map(|one| one.nodes).map(NodeCount::get);
        last = nodes.fold(last, u32::max);
    }
    let most = f64::from(last) * BEYOND;
    Ok(if last < 2 { 64 } else { most.ceil() as u32 })
}

fn picture(sides: &[Side]) -> Picture {
    let panels: Vec<Panel> = sides.iter().map(panel).collect();
    Picture::of(&panels, Arrangement::Below)
}

fn panel(side: &Side) -> Panel {
    let what = if side.direction == Direction::Read { "Reading" } else { "Writing" };
    let lines: Vec<Line> = side
        .curves
        .iter()
        .map(|curve| Line {
            name: curve.label.clone(),
            points: points(&side.nodes, &curve.bytes_per_second),
            colour: curve.kind,
            // The second PFS has the same colours, dashed.
            stroke: if curve.pfs % 2 == 0 { Stroke::Solid } else { Stroke::Dashed },
        })
        .collect();
    let most = lines.iter().flat_map(|one| &one.points).map(|(_, y)| *y).fold(0.0, f64::max);
    let nodes = side.nodes.last().map_or(1.0, |last| f64::from(*last));
    let title = match side.crossings.first() {
        Some(first) => format!("{what} with all nodes: {first}"),
        None => format!("{what} with all nodes at the same time, without local disks"),
    };
    let x = Axis::from_zero("compute nodes", nodes).whole();
    let mut panel = Panel::new(title, x, Axis::from_zero("GB/s of all nodes together", most));
    panel.lines = lines;
    panel.notes = side.crossings.iter().skip(1).map(|text| format!("{text}.")).collect();
    panel.note("Higher is better. By the model, not measured.")
}

fn points(nodes: &[u32], rates: &[f64]) -> Vec<(f64, f64)> {
    nodes.iter().zip(rates).map(|(count, rate)| (f64::from(*count), rate / 1e9)).collect()
}

fn print(side: &Side) {
    let what = if side.direction == Direction::Read { "reads" } else { "writes" };
    output::line(&format!("aggregate of {what} in GB/s"));
    let mut header = vec!["nodes"];
    header.extend(side.curves.iter().map(|curve| curve.label.as_str()));
    let step = side.nodes.len().div_ceil(ROWS).max(1);
    let last = side.nodes.len() - 1;
    let rows: Vec<Vec<String>> = side
        .nodes
        .iter()
        .enumerate()
        .filter(|(index, _)| index % step == 0 || *index == last)
        .map(|(index, nodes)| {
            let rates = side.curves.iter().map(|curve| curve.bytes_per_second[index] / 1e9);
            std::iter::once(nodes.to_string())
                .chain(rates.map(|rate| format!("{rate:.2}")))
                .collect()
        })
        .collect();
    output::table(&header, &vec![true; header.len()], &rows);
    output::line("");
}
