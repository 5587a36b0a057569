//! `tidepool model mapreduce`: equations (3-8) to (3-13) for a job on each storage.

use serde::Serialize;
use tidepool_model::{Cluster, Job, JobCost, PhaseCost, Share, Storage, job_cost};
use tidepool_proto::Result;
use tidepool_report::axis::Axis;
use tidepool_report::chart::{self, Arrangement, Figure, Panel, Picture};

use super::arguments::MapreduceArguments;
use super::throughput::storages;
use super::{display_name, shares, time};
use crate::pictures;
use crate::rates::Origin;
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::output;

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
        display_name(self.storage, self.f)
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
        report.pictures = pictures::write(directory, "mapreduce", &picture(&report))?;
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
fn picture(report: &Report) -> Picture {
    let phase = |index: usize, name| {
        let seconds = report.rows.iter().map(|row| row.phases()[index].1.total().get());
        (name, index + 1, seconds.collect::<Vec<_>>())
    };
    let most = report.rows.iter().map(|row| row.total_s).fold(0.0, f64::max);
    let by_time = |one: &&Row, other: &&Row| one.total_s.total_cmp(&other.total_s);
    let told = |row: Option<&Row>| {
        row.map_or_else(String::new, |row| format!("{} ({})", row.name(), time(row.total_s)))
    };
    let title = format!(
        "MapReduce job on {} nodes: fastest {}, slowest {}",
        report.nodes,
        told(report.rows.iter().min_by(by_time)),
        told(report.rows.iter().max_by(by_time))
    );
    let names = report.rows.iter().map(Row::name).collect();
    let y = Axis::from_zero("seconds", most * 1.08);
    let mut panel = Panel::new(title, Axis::cases("", names), y);
    panel.bars = chart::stacked(&[phase(0, "map"), phase(1, "shuffle"), phase(2, "reduce")]);
    let figure = |(case, row): (u32, &Row)| Figure {
        at: (f64::from(case), row.total_s),
        text: time(row.total_s),
    };
    panel.figures = (0..).zip(&report.rows).map(figure).collect();
    Picture::of(&[panel.note("Lower is better. By the model, not measured.")], Arrangement::Below)
}
