//! `tidepool plan`: from a workload and rates, the time on each storage, what holds it, and how few
//! nodes or how little memory meet a target. Says plainly where a memory level is not worth it.
//! Plans in the crate of the models; reads, prints and draws here.

pub mod arguments;
mod report;

use serde::Serialize;
use tidepool_model::{
    Access, Bytes, Demand, DemandTrace, NodeCount, Plan, PlanInput, Seconds, Workload,
    plan_in_doubt,
};
use tidepool_proto::{Error, ErrorKind, Result};

use self::arguments::{PlanArguments, WorkloadArguments};
use super::calibrate::machine;
use super::model::inputs::Inputs;
use super::model::time;
use super::rates::{Origin, read_toml};
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::output;

#[derive(Serialize)]
struct Facts<'a> {
    #[serde(flatten)]
    plan: &'a Plan,
    workload: &'a Workload,
    inputs: &'a tidepool_model::Cluster,
    #[serde(skip_serializing_if = "Option::is_none")]
    calibration: Option<&'a Origin>,
}

/// Runs `plan`.
pub fn plan(arguments: &PlanArguments) -> Result<Outcome> {
    let inputs = arguments.inputs.inputs()?;
    let mut given = arguments.workload.clone();
    if let Some(path) = &arguments.workload_file {
        given = given.or(read_toml(path, "workload file")?);
    }
    let input = PlanInput {
        workload: workload(&given, &inputs)?,
        cluster: inputs.cluster.clone(),
        policy: arguments.policy,
        block: arguments.block,
        page_cache: !arguments.no_page_cache,
        worth: arguments.worth,
        target: given.target_seconds.map(Seconds::new).transpose()?,
    };
    let found = plan_in_doubt(&input, &inputs.doubts, &inputs.contradictions)?;
    if let Some(path) = &arguments.report {
        let page = report::page(&input, &found, inputs.origin.as_ref())?;
        std::fs::write(path, page)
            .map_err(|source| Error::pfs(format!("writing {}", path.display()), source))?;
    }
    if arguments.json {
        output::json(&Facts {
            plan: &found,
            workload: &input.workload,
            inputs: &input.cluster,
            calibration: inputs.origin.as_ref(),
        })?;
    } else {
        print(&input, &found);
        if let Some(path) = &arguments.report {
            output::line(&format!("report: {}", path.display()));
        }
    }
    Ok(Outcome::Done)
}

fn workload(given: &WorkloadArguments, inputs: &Inputs) -> Result<Workload> {
    let set = given.set.ok_or_else(|| {
        Error::new(ErrorKind::InvalidInput, "reading the workload", "its set is not given")
            .remedy("give --set, or a --workload-file with `set`")
    })?;
    let here =
        inputs.calibration.as_ref().map_or_else(machine::describe, |found| found.machine.clone());
    let jobs = match &given.jobs_trace {
        Some(path) => {
            let text = std::fs::read_to_string(path)
                .map_err(|source| Error::pfs(format!("reading {}", path.display()), source))?;
            Demand::Trace(DemandTrace::parse(&text)?)
        }
        None => Demand::Constant(given.memory_of_jobs.unwrap_or_default()),
    };
    let access = given.zipf.map_or(Access::Cyclic, |exponent| Access::Zipf { exponent });
    Ok(Workload {
        set,
        passes: given.passes.unwrap_or(1),
        access,
        read_share: given.read_share.unwrap_or(1.0),
        written_per_pass: given.written_per_pass.unwrap_or_default(),
        processor_seconds_per_gb: given.cpu_seconds_per_gb.unwrap_or(0.0),
        processors_per_node: given.processors.unwrap_or(here.processors),
        nodes: given.nodes.unwrap_or(NodeCount::ONE),
        memory_per_node: given.memory_per_node.unwrap_or(Bytes::whole(here.memory_bytes)),
        jobs,
    })
}

/// Rows of the table of phases: storage, phases, total, f, bottleneck of each phase.
pub fn rows(found: &Plan) -> Vec<Vec<String>> {
    found
        .choices
        .iter()
        .map(|choice| {
            let phase = |name: &str| choice.phases.iter().find(|phase| phase.name == name);
            let mut cells = vec![choice.storage.name().to_owned()];
            for name in ["first pass", "later passes", "writes"] {
                cells.push(phase(name).map_or_else(
                    || "-".to_owned(),
                    |phase| format!("{} ({})", time(phase.time.get()), phase.bottleneck.name()),
                ));
            }
            cells.push(format!("{:.0}%", choice.hits.get() * 100.0));
            cells.push(time(choice.total.get()));
            cells
        })
        .collect()
}

/// Heads of these rows.
pub const HEADER: [&str; 6] =
    ["storage", "first pass", "later passes", "writes", "from memory later", "total"];

/// Lines about the target and the crossovers. None where the rates are in doubt, from which they
/// follow as the advice would.
pub fn remarks(input: &PlanInput, found: &Plan) -> Vec<String> {
    let mut lines = Vec::new();
    if found.advice.worth_it.is_none() {
        return lines;
    }
    let nodes = |count: Option<NodeCount>| {
        count.map_or_else(|| "no number of nodes".to_owned(), |count| format!("{count} nodes"))
    };
    if let Some(target) = &found.target {
        let answer = &target.answer;
        let memory = answer.memory_per_node.map_or_else(
            || "no amount of memory will do".to_owned(),
            |memory| format!("{memory} of memory a node will do, jobs included"),
        );
        lines.push(format!(
            "Target of {}: with {} of memory a node, {}; with {} nodes, {memory}; on the bare PFS, \
             {}.",
            time(target.time.get()),
            input.workload.memory_per_node,
            nodes(answer.nodes),
            input.workload.nodes,
            nodes(answer.nodes_on_pfs),
        ));
        if answer.nodes.is_none() {
            lines.push(format!(
                "Never below {} with this PFS, however many nodes.",
                time(answer.shortest.get())
            ));
        }
    }
    let crossovers = [
        ("the bare PFS for reads", &found.hdfs_over_pfs),
        ("Tidepool for the later reads", &found.hdfs_over_two_level),
        ("both for writes", &found.hdfs_writes),
    ];
    for (what, crossover) in crossovers {
        if let Some(crossover) = crossover {
            let text = match crossover.nodes {
                Some(count) if count.get() == 1 => {
                    format!("HDFS on local disks is ahead of {what} from one node on.")
                }
                Some(count) => {
                    format!("HDFS on local disks overtakes {what} from {count} nodes on.")
                }
                None => format!("HDFS on local disks never overtakes {what}."),
            };
            lines.push(text);
        }
    }
    lines
}

fn print(input: &PlanInput, found: &Plan) {
    output::line(&output::coloured(&found.advice.text, output::Colour::Strong));
    output::line("");
    let right = [false, true, true, true, true, true];
    output::table(&HEADER, &right, &rows(found));
    output::line("");
    if found.advice.worth_it.is_none() {
        output::line("The rates below these times are in doubt.");
    }
    for line in remarks(input, found) {
        output::line(&line);
    }
}
