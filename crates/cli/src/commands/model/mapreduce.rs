//! `tidepool model mapreduce`: equations (3-8) to (3-13) for a job on each storage.

use plotters::chart::SeriesLabelPosition;
use serde::Serialize;
use tidepool_model::{Cluster, Job, JobCost, PhaseCost, Share, Storage, job_cost};
use tidepool_proto::Result;

use super::arguments::MapreduceArguments;
use super::chart::{self, Axis, Bar, Panel, Series, Stroke};
use super::inputs::Origin;
use super::throughput::storages;
use super::{shares, time};
use crate::exit::Outcome;
use crate::output;

/// A job on one storage. The names are stable.
#[derive(Debug, Serialize)]
struct Row {
    storage: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    f: Option<f64>,
    cost: JobCost,
    total_s: f64,
}

impl Row {
    fn name(&self) -> String {
        match self.f {
            Some(hits) => format!("{}, f = {}", self.storage, chart::number(hits)),
            None => self.storage.to_owned(),
        }
    }

    fn phases(&self) -> [(&'static str, PhaseCost); 3] {
        [("map", self.cost.map), ("shuffle", self.cost.shuffle), ("reduce", self.cost.reduce)]
    }
}

#[derive(Debug, Serialize)]
struct Report {
    nodes: u32,
    job: Job,
    rows: Vec<Row>,
    inputs: Cluster,
    #[serde(skip_serializing_if = "Option::is_none")]
    calibration: Option<Origin>,
    pictures: Vec<std::path::PathBuf>,
}

/// Runs `model mapreduce`.
pub fn mapreduce(arguments: &MapreduceArguments) -> Result<Outcome> {
    let inputs = arguments.inputs.inputs()?;
    let cluster = &inputs.cluster;
    let hits = shares(&arguments.hits, &[0.5, 1.0])?;
    let map_output = arguments.map_output.unwrap_or(arguments.input_size);
    let job = Job {
        input: arguments.input_size,
        map_output,
        shuffle_output: arguments.shuffle_output.unwrap_or(map_output),
        output: arguments.output.unwrap_or(arguments.input_size),
    };
    // Without local disks there is no place for intermediate data beside memory.
    let possible = |storage: &Storage| cluster.disk.is_some() || *storage != Storage::Pfs;
    let mut rows = Vec::new();
    for (name, hits, storage) in storages(cluster, &hits) {
        if !possible(&storage) {
            output::note(
                "no --disk-read: a job on the bare PFS has no place for its intermediate data",
            );
            continue;
        }
        let cost = job_cost(cluster, storage, &job, arguments.nodes)?;
        let total_s = cost.total().get();
        rows.push(Row { storage: name, f: hits.map(Share::get), cost, total_s });
    }
    let mut report = Report {
        nodes: arguments.nodes.get(),
        job,
        rows,
        inputs: cluster.clone(),
        calibration: inputs.origin.clone(),
        pictures: Vec::new(),
    };
    if let Some(directory) = &arguments.pictures {
        let svg = picture(&report)?;
        report.pictures = chart::write(directory, "mapreduce", &svg)?.to_vec();
    }
    if arguments.json {
        output::json(&report)?;
    } else {
        print(&report);
    }
    Ok(Outcome::Done)
}

fn print(report: &Report) {
    let rows: Vec<Vec<String>> = report
        .rows
        .iter()
        .map(|row| {
            let mut cells = vec![row.name()];
            cells.extend(row.phases().map(|(_, phase)| time(phase.total().get())));
            cells.push(time(row.total_s));
            let longest = row
                .phases()
                .into_iter()
                .max_by(|one, other| one.1.total().get().total_cmp(&other.1.total().get()));
            cells.push(longest.map_or_else(String::new, |(name, phase)| {
                format!("{} ({name})", phase.bottleneck().name())
            }));
            cells
        })
        .collect();
    let header = ["storage", "map", "shuffle", "reduce", "job", "bottleneck of the longest phase"];
    output::table(&header, &[false, true, true, true, true, false], &rows);
    for path in &report.pictures {
        output::line(&format!("picture: {}", path.display()));
    }
}

/// A bar a storage, stacked from the phases.
fn picture(report: &Report) -> Result<String> {
    let mut bars = Vec::new();
    for (case, row) in report.rows.iter().enumerate() {
        let mut from = 0.0;
        for (colour, (_, phase)) in (1..).zip(row.phases()) {
            let to = from + phase.total().get();
            bars.push(Bar { case, from, to, colour });
            from = to;
        }
    }
    let entry = |(name, colour): (&str, usize)| Series {
        name: name.to_owned(),
        points: Vec::new(),
        colour,
        stroke: Stroke::Solid,
    };
    let series: Vec<Series> = [("map", 1), ("shuffle", 2), ("reduce", 3)].map(entry).to_vec();
    let most = report.rows.iter().map(|row| row.total_s).fold(0.0, f64::max);
    let panel = Panel {
        title: format!("MapReduce job on {} nodes", report.nodes),
        x: Axis::cases("storage", report.rows.iter().map(Row::name).collect()),
        y: Axis::linear("seconds", 0.0..most * 1.05),
        bars,
        series,
        legend: SeriesLabelPosition::UpperRight,
    };
    chart::panels(&[panel], (1200, 560))
}
