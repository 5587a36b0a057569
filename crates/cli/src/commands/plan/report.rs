//! The report of a plan: one HTML page with its pictures inside, that prints on one sheet.

use std::fmt::Write;

use plotters::chart::SeriesLabelPosition;
use tidepool_model::{Access, Bytes, Demand, Plan, PlanInput, StorageChoice, plan as make};
use tidepool_proto::Result;

use super::{HEADER, remarks, rows};
use crate::commands::model::chart::{self, Axis, Bar, Panel, Series, Stroke};
use crate::commands::model::inputs::Origin;
use crate::commands::model::time;

/// Points of the curve over memory.
const POINTS: u32 = 48;

const STYLE: &str = "body{font:14px/1.45 sans-serif;max-width:1000px;margin:24px auto;color:#222}\
    h1{font-size:22px;margin:0 0 6px}.advice{background:#eef4f8;border-left:5px solid #0072b2;\
    padding:10px 14px;font-size:16px}.warning{background:#fdf1e3;border-left:5px solid #d55e00;\
    padding:4px 14px;margin:4px 0}table{border-collapse:collapse;width:100%;margin:14px 0}\
    th,td{border-bottom:1px solid #ccc;padding:5px 8px;text-align:right}th:first-child,\
    td:first-child{text-align:left}svg{width:100%;height:auto}.small{color:#555;font-size:12px}\
    @media print{body{margin:0;font-size:11px}@page{size:A4;margin:12mm}}";

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

/// The page.
pub fn page(input: &PlanInput, found: &Plan, origin: Option<&Origin>) -> Result<String> {
    let mut html = format!(
        "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Tidepool plan</title>\
         <style>{STYLE}</style>\n<h1>Tidepool plan</h1>\n"
    );
    let mut put = |text: String| {
        // Writing to a string cannot fail.
        let _ = writeln!(html, "{text}");
    };
    for note in origin.iter().flat_map(|origin| &origin.notes) {
        put(format!("<p class=\"warning\">Calibration: {}.</p>", escaped(note)));
    }
    put(format!("<p>{}</p>", escaped(&workload(input))));
    put(format!("<p class=\"advice\">{}</p>", escaped(&found.advice.text)));
    put(table(found));
    put(chart::panels(&[totals(found), over_memory(input)?], (1200, 460))?);
    for line in remarks(input, found) {
        put(format!("<p>{}</p>", escaped(&line)));
    }
    put(format!("<p class=\"small\">{}</p>", escaped(&inputs(input, origin))));
    html.push_str("</html>\n");
    Ok(html)
}

fn workload(input: &PlanInput) -> String {
    let workload = &input.workload;
    let access = match workload.access {
        Access::Cyclic => "in a loop".to_owned(),
        Access::Zipf { exponent } => format!("by Zipf's law with exponent {exponent}"),
    };
    let jobs = match &workload.jobs {
        Demand::Constant(taken) => format!("{taken}"),
        Demand::Trace(trace) => {
            let left = trace.mean_left(workload.memory_per_node);
            format!("{} on average, as recorded", workload.memory_per_node.less(left))
        }
    };
    format!(
        "{} read {} times {access} on {} nodes of {} memory each, of which jobs take {jobs}; {} \
         written in a pass; {} processor seconds a GB on {} processors a node.",
        workload.set,
        workload.passes,
        workload.nodes,
        workload.memory_per_node,
        workload.written_per_pass,
        workload.processor_seconds_per_gb,
        workload.processors_per_node,
    )
}

fn table(found: &Plan) -> String {
    let row = |tag: &str, cells: Vec<String>| {
        let cells = cells.iter().map(|cell| format!("<{tag}>{}</{tag}>", escaped(cell)));
        format!("<tr>{}</tr>", cells.collect::<String>())
    };
    let header = row("th", HEADER.map(str::to_owned).to_vec());
    let body: String = rows(found).into_iter().map(|cells| row("td", cells)).collect();
    format!("<table>{header}{body}</table>")
}

/// The phases of each storage as stacked bars.
fn totals(found: &Plan) -> Panel {
    const NAMES: [&str; 3] = ["first pass", "later passes", "writes"];
    let mut bars = Vec::new();
    for (case, choice) in found.choices.iter().enumerate() {
        let mut from = 0.0;
        for phase in &choice.phases {
            let place = NAMES.iter().position(|name| *name == phase.name).unwrap_or_default();
            let to = from + phase.time.get();
            bars.push(Bar { case, from, to, colour: place + 1 });
            from = to;
        }
    }
    let entry = |(colour, name): (usize, &str)| Series {
        name: name.to_owned(),
        points: Vec::new(),
        colour,
        stroke: Stroke::Solid,
    };
    let most = found.choices.iter().map(|choice| choice.total.get()).fold(0.0, f64::max);
    let short = |storage: StorageChoice| match storage {
        StorageChoice::Pfs => "bare PFS",
        StorageChoice::PageCache => "page cache",
        StorageChoice::Hdfs => "HDFS",
        StorageChoice::TwoLevel => "Tidepool",
    };
    let cases = found.choices.iter().map(|choice| short(choice.storage).to_owned()).collect();
    Panel {
        title: "Time on each storage".to_owned(),
        x: Axis::cases("storage", cases),
        y: Axis::linear("seconds", 0.0..Panel::room_above(most, NAMES.len())),
        bars,
        series: (1..).zip(NAMES).map(entry).collect(),
        legend: SeriesLabelPosition::UpperRight,
    }
}

/// The total over the memory of a node, from none to what holds a node's part beside the jobs.
fn over_memory(input: &PlanInput) -> Result<Panel> {
    let workload = &input.workload;
    let part = workload.set.get() / workload.nodes.as_f64();
    let taken = match &workload.jobs {
        Demand::Constant(taken) => taken.get(),
        Demand::Trace(trace) => trace.most().get(),
    };
    let most = (1.15 * (part + taken)).max(workload.memory_per_node.get());
    let mut lines: Vec<Series> = Vec::new();
    for step in 0..=POINTS {
        let memory = most * f64::from(step) / f64::from(POINTS);
        let mut at = input.clone();
        at.workload.memory_per_node = Bytes::new(memory)?;
        at.target = None;
        for (index, choice) in make(&at)?.choices.iter().enumerate() {
            if lines.len() <= index {
                lines.push(Series {
                    name: choice.storage.name().to_owned(),
                    points: Vec::new(),
                    colour: index,
                    stroke: if choice.storage == StorageChoice::TwoLevel {
                        Stroke::Solid
                    } else {
                        Stroke::Dashed
                    },
                });
            }
            lines[index].points.push((memory / 1e9, choice.total.get()));
        }
    }
    let highest = lines.iter().flat_map(|line| &line.points).map(|(_, y)| *y).fold(0.0, f64::max);
    let entries = lines.len() + 1;
    // The present memory, as a line from bottom to top.
    let here = workload.memory_per_node.get() / 1e9;
    lines.push(Series {
        name: "memory given".to_owned(),
        points: vec![(here, 0.0), (here, highest)],
        colour: 7,
        stroke: Stroke::Solid,
    });
    Ok(Panel {
        title: "Time over memory".to_owned(),
        x: Axis::linear("memory of a node in GB, jobs included", 0.0..most / 1e9),
        y: Axis::linear("seconds", 0.0..Panel::room_above(highest, entries)),
        bars: Vec::new(),
        series: lines,
        legend: SeriesLabelPosition::UpperRight,
    })
}

fn inputs(input: &PlanInput, origin: Option<&Origin>) -> String {
    let cluster = &input.cluster;
    let mut text = format!(
        "Rates: network {} a node, memory {} read and {} written a node, ",
        cluster.network, cluster.memory_read, cluster.memory_write
    );
    match cluster.pfs {
        tidepool_model::Pfs::Aggregate { read, write } => {
            text += &format!("PFS {read} read and {write} written. ");
        }
        tidepool_model::Pfs::DataNodes { count, disk_read, disk_write, .. } => {
            text += &format!("{count} data nodes of {disk_read} read and {disk_write} written. ");
        }
    }
    if let Some(disk) = cluster.disk {
        text += &format!("Local disks {} read, {} written. ", disk.read, disk.write);
    }
    if let Some(origin) = origin {
        text += &format!("Calibrated on {}. ", origin.host);
    }
    let worth = input.worth * 100.0;
    text += &format!("Policy {}. A gain below {worth:.0}% is not worth it.", input.policy.name());
    if let Some(target) = input.target {
        text += &format!(" Target {}.", time(target.get()));
    }
    text
}
