//! `tidepool control simulate`: what policies would do with a recorded demand, in virtual time.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Serialize;
use tidepool_control_policy::{JournalBytes, JournalWriter, NodeFacts, Parameters, headroom_bytes};
use tidepool_model::Bytes;
use tidepool_model::simulator::{
    Goal, Measures, PlantConfig, Run, Simulation, StoreConfig, Trace, simulate_observed,
};
use tidepool_proto::{Error, ErrorKind, Result};

use super::arguments::{SimulateArguments, policy_name, with_settings};
use super::pictures::{self, Course, Moment};
use crate::calibrate::machine;
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::output;

/// Steps of a run at most; a longer trace gets longer steps.
const STEPS: u64 = 2_000_000;
/// The longest step: beyond it nothing is left of what a controller does between two of them.
const STEP_MAX: Duration = Duration::from_secs(1);
/// Moments of the time line that JSON has at most.
const MOMENTS: usize = 1_000;

/// One policy's run. The names are stable.
#[derive(Serialize)]
struct Report {
    policy: String,
    parameters: Parameters,
    used_target_bytes: u64,
    measures: Measures,
    /// Bytes that the store took, by the bytes that jobs asked for as the demand rose.
    filled_by_asked: f64,
    /// Decisions with each alarm.
    alarms: BTreeMap<String, u64>,
    timeline: Vec<Moment>,
}

/// Runs `control simulate`.
pub fn simulate(arguments: &SimulateArguments) -> Result<Outcome> {
    let text = std::fs::read_to_string(&arguments.trace)
        .map_err(|source| Error::pfs(format!("reading {}", arguments.trace.display()), source))?;
    let trace = Trace::parse(&text)?;
    let plant = plant(arguments)?;
    let policies = if arguments.policies.is_empty() {
        vec![Parameters::default().policy]
    } else {
        arguments.policies.clone()
    };
    let mut reports = Vec::new();
    let mut courses = Vec::new();
    for (index, policy) in policies.into_iter().enumerate() {
        let interval_ms = policy.interval_ms();
        let parameters = Parameters { policy, interval_ms, ..Parameters::default() };
        let parameters = with_settings(&parameters, &arguments.settings)?;
        parameters.check(&facts(&plant))?;
        let simulation = with_steps(Simulation::new(plant.clone(), trace.clone(), parameters))?;
        let (run, log) = run(&simulation)?;
        if let Some(path) = arguments.log.as_ref().filter(|_| index == 0) {
            std::fs::write(path, log)
                .map_err(|source| Error::pfs(format!("writing {}", path.display()), source))?;
        }
        let moments = moments(&run);
        let report = report(&simulation, &run, pictures::thinned(moments.clone(), MOMENTS));
        courses.push(Course {
            title: title(&report.policy, &report.measures),
            memory_bytes: simulation.plant.memory_total.demand_bytes(0),
            moments,
        });
        reports.push(report);
    }
    if let Some(path) = &arguments.picture {
        pictures::write(path, courses)?;
    }
    if arguments.json {
        output::json(&reports)?;
    } else {
        print(&reports);
    }
    Ok(Outcome::Done)
}

fn plant(arguments: &SimulateArguments) -> Result<PlantConfig> {
    let memory = match arguments.memory {
        Some(memory) => memory.get() as u64,
        None => machine::describe().memory_bytes,
    };
    let store = arguments.store.map_or(memory / 2, |store| store.get() as u64);
    let store_min = arguments.store_min.get() as u64;
    if memory == 0 || store > memory || store_min > store {
        let detail = format!(
            "a store of {} to {} on a node of {}",
            Bytes::whole(store_min),
            Bytes::whole(store),
            Bytes::whole(memory)
        );
        return Err(Error::new(ErrorKind::InvalidInput, "describing the node", detail)
            .remedy("give --memory, --store and --store-min, from large to small"));
    }
    let mut plant = PlantConfig::node(memory, store);
    plant.sensor_noise_bytes = arguments.sensor_noise.get() as u64;
    plant.stores[0] = StoreConfig {
        capacity_min_bytes: store_min,
        release_bytes_per_s: arguments.release.get() as u64,
        actuation_delay: Duration::from_millis(arguments.delay_ms),
        small_pages: arguments.small_pages,
        ..StoreConfig::tidepool(store)
    };
    Ok(plant)
}

/// Steps of a millisecond, or as long as makes no more of them than memory can take.
fn with_steps(simulation: Simulation) -> Result<Simulation> {
    let duration_ms = u64::try_from(simulation.duration.as_millis()).unwrap_or(u64::MAX);
    let step = Duration::from_millis(duration_ms.div_ceil(STEPS).max(1));
    if step > STEP_MAX {
        let longest_s = STEPS * STEP_MAX.as_secs();
        let detail = format!("it takes {} s, of at most {longest_s}", duration_ms / 1000);
        return Err(Error::new(ErrorKind::InvalidInput, "simulating a trace", detail)
            .remedy("cut the trace into shorter ones; its times are in seconds"));
    }
    Ok(Simulation { step, ..simulation })
}

/// What the check of the parameters can know of the node.
fn facts(plant: &PlantConfig) -> NodeFacts {
    NodeFacts {
        memory_total_bytes: plant.memory_total.demand_bytes(0),
        capacity_min_bytes: plant.stores.iter().map(|store| store.capacity_min_bytes).sum(),
        capacity_max_bytes: plant.stores.iter().map(|store| store.capacity_max_bytes).sum(),
        ..NodeFacts::default()
    }
}

/// The run and its log of decisions.
fn run(simulation: &Simulation) -> Result<(Run, Vec<u8>)> {
    let mut writer = JournalWriter::new(usize::MAX);
    let mut log = Ok(Vec::new());
    let run = simulate_observed(simulation, &mut |snapshot, parameters, decision| {
        let written = writer.write(snapshot, parameters, decision);
        match (&mut log, written) {
            (Ok(log), Ok(JournalBytes::Begin(bytes) | JournalBytes::Append(bytes))) => {
                log.extend(bytes);
            }
            (Ok(_), Err(error)) => log = Err(error),
            (Err(_), _) => {}
        }
    });
    Ok((run, log?))
}

fn moments(run: &Run) -> Vec<Moment> {
    let moment = |sample: &tidepool_model::simulator::Sample| Moment {
        time_s: sample.at_ns as f64 / 1e9,
        demand_bytes: sample.truth.demand_bytes,
        stored_bytes: sample.truth.stored_bytes,
        target_bytes: sample.target_bytes,
        free_bytes: sample.truth.free_bytes,
    };
    run.samples.iter().map(moment).collect()
}

fn report(simulation: &Simulation, run: &Run, timeline: Vec<Moment>) -> Report {
    let total = simulation.plant.memory_total.demand_bytes(0);
    let parameters = &simulation.parameters;
    let kept = headroom_bytes(total, parameters) + simulation.plant.watermark_bytes;
    let used_target_bytes = total.saturating_sub(kept);
    let rest_ns = simulation.demand.last_change_ns();
    let goal = Goal { used_target_bytes, rest_ns, rest_end_ns: u64::MAX };
    let mut alarms = BTreeMap::new();
    for alarm in run.decisions.iter().flat_map(|decided| &decided.decision.alarms) {
        let name = serde_json::to_value(alarm).unwrap_or_default();
        *alarms.entry(name.as_str().unwrap_or_default().to_owned()).or_default() += 1;
    }
    let measures = Measures::of(run, &goal);
    let asked = simulation.demand.asked_bytes();
    Report {
        policy: policy_name(parameters.policy),
        parameters: parameters.clone(),
        used_target_bytes,
        filled_by_asked: measures.filled_bytes as f64 / asked.max(1) as f64,
        measures,
        alarms,
        timeline,
    }
}

/// A run in one sentence.
fn title(policy: &str, measures: &Measures) -> String {
    format!(
        "Policy {policy}: {} above the node's memory; store of {} on average, {} filled anew",
        milliseconds(Some(measures.over_memory_ns)),
        size(measures.stored_mean_bytes),
        size(measures.filled_bytes)
    )
}

/// One line of the table: what it is, and its value for a run.
type Row = (&'static str, fn(&Report) -> String);

const ROWS: [Row; 15] = [
    ("use above memory", |r| milliseconds(Some(r.measures.over_memory_ns))),
    ("highest excess above the target", |r| size(r.measures.excess_peak_bytes)),
    ("first byte back", |r| milliseconds(r.measures.first_byte_back_ns)),
    ("evicted", |r| size(r.measures.evicted_bytes)),
    ("needed for the highest demand", |r| size(r.measures.needed_bytes)),
    ("filled", |r| size(r.measures.filled_bytes)),
    ("filled by asked for by jobs", |r| format!("{:.3}", r.filled_by_asked)),
    ("mean size of the store", |r| size(r.measures.stored_mean_bytes)),
    ("settled after the last change", |r| milliseconds(r.measures.settling_ns)),
    ("turns after that", |r| r.measures.sign_changes.to_string()),
    ("back at 90 % of its room", |r| milliseconds(r.measures.regrowth_ns)),
    ("tasks waited for memory", |r| milliseconds(Some(r.measures.stalled_some_ns))),
    ("memory ran out, a process is killed", |r| r.measures.shortages.to_string()),
    ("commands", |r| r.measures.commands.to_string()),
    ("alarms", |r| {
        let names: Vec<&str> = r.alarms.keys().map(String::as_str).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }),
];

fn size(bytes: u64) -> String {
    Bytes::whole(bytes).to_string()
}

fn milliseconds(time_ns: Option<u64>) -> String {
    time_ns.map_or_else(|| "never".to_owned(), |ns| format!("{} ms", ns / 1_000_000))
}

fn print(reports: &[Report]) {
    let mut header = vec![""];
    header.extend(reports.iter().map(|report| report.policy.as_str()));
    let row = |(name, value): &Row| {
        std::iter::once((*name).to_owned()).chain(reports.iter().map(value)).collect()
    };
    let rows: Vec<Vec<String>> = ROWS.iter().map(row).collect();
    let mut right = vec![true; header.len()];
    right[0] = false;
    output::table(&header, &right, &rows);
}
