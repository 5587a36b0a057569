//! `tidepool model aggregate`: the curves of figure 2-7, for reads and writes.

use plotters::chart::SeriesLabelPosition;
use serde::Serialize;
use tidepool_model::{
    BytesPerSecond, Cluster, Direction, NodeCount, Pfs, Share, Storage, aggregate as all_nodes,
    read_crossover, write_crossover,
};
use tidepool_proto::Result;

use super::arguments::AggregateArguments;
use super::chart::{self, Axis, Panel, Series, Stroke};
use super::inputs::Origin;
use super::shares;
use crate::exit::Outcome;
use crate::output;

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
        let svg = picture(&report.sides)?;
        report.pictures = chart::write(directory, "aggregate-throughput", &svg)?.to_vec();
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
    let mut curves = Vec::new();
    let mut add = |name: String, pfs, kind, cluster: &Cluster, storage| -> Result<()> {
        let rate = |count: &u32| -> Result<f64> {
            Ok(all_nodes(cluster, storage, direction, NodeCount::new(*count)?)?.rate.get())
        };
        let bytes_per_second = nodes.iter().map(rate).collect::<Result<_>>()?;
        curves.push(Curve { name, pfs, kind, bytes_per_second });
        Ok(())
    };
    if clusters[0].disk.is_some() {
        add("HDFS".to_owned(), 0, 0, &clusters[0], Storage::HdfsLocal)?;
    }
    for (index, cluster) in clusters.iter().enumerate() {
        let label = pfs_label(&cluster.pfs, direction)?;
        if direction == Direction::Write {
            add(format!("PFS {label}, two-level"), index, 1, cluster, Storage::Pfs)?;
            continue;
        }
        add(format!("PFS {label}"), index, 1, cluster, Storage::Pfs)?;
        for (kind, hits) in hits.iter().enumerate() {
            let name = format!("two-level {label}, f = {}", chart::number(hits.get()));
            add(name, index, kind + 2, cluster, Storage::TwoLevel { hits: *hits })?;
        }
    }
    Ok(Side { direction, nodes, curves })
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
    Ok(format!("{} GB/s", chart::number(rate.get() / 1e9)))
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

fn picture(sides: &[Side]) -> Result<String> {
    let panels: Vec<Panel> = sides.iter().map(panel).collect();
    chart::panels(&panels, (1400, 600))
}

fn panel(side: &Side) -> Panel {
    let what = if side.direction == Direction::Read { "read" } else { "write" };
    let series: Vec<Series> = side
        .curves
        .iter()
        .map(|curve| Series {
            name: curve.name.clone(),
            points: points(&side.nodes, &curve.bytes_per_second),
            colour: curve.kind,
            // The second PFS has the same colours, dashed.
            stroke: if curve.pfs % 2 == 0 { Stroke::Solid } else { Stroke::Dashed },
        })
        .collect();
    let most = series.iter().flat_map(|one| &one.points).map(|(_, y)| *y).fold(0.0, f64::max);
    let nodes = side.nodes.last().map_or(1.0, |last| f64::from(*last));
    Panel {
        title: format!("Aggregate {what} throughput"),
        x: Axis::linear("compute nodes", 0.0..nodes),
        y: Axis::linear("GB/s", 0.0..Panel::room_above(most, series.len())),
        bars: Vec::new(),
        series,
        legend: SeriesLabelPosition::UpperLeft,
    }
}

fn points(nodes: &[u32], rates: &[f64]) -> Vec<(f64, f64)> {
    nodes.iter().zip(rates).map(|(count, rate)| (f64::from(*count), rate / 1e9)).collect()
}

fn print(side: &Side) {
    let what = if side.direction == Direction::Read { "reads" } else { "writes" };
    output::line(&format!("aggregate of {what} in GB/s"));
    let mut header = vec!["nodes"];
    header.extend(side.curves.iter().map(|curve| curve.name.as_str()));
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
