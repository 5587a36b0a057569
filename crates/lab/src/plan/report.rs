//! The report of a plan: one HTML page with its pictures inside, that prints on one sheet.

use tidepool_model::{Access, Bytes, Demand, Plan, PlanInput, StorageChoice, plan as make};
use tidepool_proto::Result;
use tidepool_report::axis::Axis;
use tidepool_report::chart::{self, Arrangement, Figure, Line, Mark, Panel, Picture, Side, Stroke};
use tidepool_report::page;
use tidepool_report::text::number;

use super::{HEADER, remarks, rows};
use crate::model::time;
use crate::rates::Origin;

/// Points of the curve over memory.
const POINTS: u32 = 48;

/// The page.
pub fn page(input: &PlanInput, found: &Plan, origin: Option<&Origin>) -> Result<String> {
    let mut body = String::new();
    for note in origin.iter().flat_map(|origin| &origin.notes) {
        body += &page::warning(&format!("Calibration: {}.", note.trim_end_matches('.')));
    }
    body += &page::main_sentence(&page::escaped(&found.advice.text));
    body += &paragraph("", &workload(input));
    body += &page::figure(&Picture::of(&[totals(found)], Arrangement::Below));
    body += &page::table(&HEADER.map(str::to_owned), &rows(found));
    body += &page::figure(&Picture::of(&[over_memory(input)?], Arrangement::Below));
    for line in remarks(input, found) {
        body += &paragraph("", &line);
    }
    body += &paragraph(" class=\"small\"", &inputs(input, origin));
    Ok(page::page("Tidepool plan", &body))
}

fn paragraph(class: &str, text: &str) -> String {
    format!("<p{class}>{}</p>\n", page::escaped(text))
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

/// What fits below a bar.
fn short(storage: StorageChoice) -> &'static str {
    match storage {
        StorageChoice::Pfs => "bare PFS",
        StorageChoice::PageCache => "page cache",
        StorageChoice::Hdfs => "HDFS",
        StorageChoice::TwoLevel => "Tidepool",
    }
}

/// The phases of each storage as stacked bars.
fn totals(found: &Plan) -> Panel {
    let choices = &found.choices;
    let phase = |index: usize, name: &'static str| {
        let seconds = choices.iter().map(|choice| {
            let phase = choice.phases.iter().find(|phase| phase.name == name);
            phase.map_or(0.0, |phase| phase.time.get())
        });
        (name, index, seconds.collect::<Vec<_>>())
    };
    let most = choices.iter().map(|choice| choice.total.get()).fold(0.0, f64::max);
    let told = choices
        .iter()
        .map(|choice| format!("{} {}", short(choice.storage), time(choice.total.get())));
    let title = format!("Time on each storage: {}", told.collect::<Vec<_>>().join(", "));
    let names = choices.iter().map(|choice| short(choice.storage).to_owned()).collect();
    let y = Axis::from_zero("seconds", most * 1.08);
    let mut panel = Panel::new(title, Axis::cases("", names), y);
    panel.bars =
        chart::stacked(&[phase(1, "first pass"), phase(2, "later passes"), phase(3, "writes")]);
    let figure =
        |(case, total): (u32, f64)| Figure { at: (f64::from(case), total), text: time(total) };
    panel.figures =
        (0..).zip(choices.iter().map(|choice| choice.total.get())).map(figure).collect();
    panel.note(match found.advice.worth_it {
        Some(_) => "Lower is better. By the model, not measured.",
        None => "Lower is better, but the rates below these times are in doubt.",
    })
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
    let mut lines: Vec<Line> = Vec::new();
    for step in 0..=POINTS {
        let memory = most * f64::from(step) / f64::from(POINTS);
        let mut at = input.clone();
        at.workload.memory_per_node = Bytes::new(memory)?;
        at.target = None;
        for (index, choice) in make(&at)?.choices.iter().enumerate() {
            if lines.len() <= index {
                lines.push(Line {
                    name: short(choice.storage).to_owned(),
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
    let x = Axis::linear("memory of a node in GB, jobs included", 0.0..most / 1e9);
    let title = format!(
        "Time over the memory of a node: Tidepool {}",
        lines.iter().find(|line| line.name == "Tidepool").map_or_else(String::new, |line| {
            let ends = line.points.first().zip(line.points.last());
            ends.map_or_else(String::new, |(first, last)| {
                format!(
                    "{} with none, {} with {} GB",
                    time(first.1),
                    time(last.1),
                    number(last.0.round())
                )
            })
        })
    );
    let mut panel = Panel::new(title, x, Axis::from_zero("seconds", highest));
    panel.lines = lines;
    let holds = (part + taken) / 1e9;
    panel.marks = vec![
        Mark {
            at: workload.memory_per_node.get() / 1e9,
            text: format!("as planned: {}", workload.memory_per_node),
            side: Side::Middle,
        },
        Mark {
            at: holds,
            text: format!("a node's part fits: {}", Bytes::new(part + taken)?),
            side: Side::Middle,
        },
    ];
    Ok(panel.note("Lower is better. By the model, not measured."))
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
