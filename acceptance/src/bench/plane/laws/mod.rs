//! One recorded demand under several laws: that of the paper decided by the plane, the node's own
//! copy of it, and Tidepool's policy alone and below ceilings of the plane. Figures stand side by
//! side, and a picture shows what was available.

mod demand;
mod figures;
mod picture;

use anyhow::{Context, Result};

use self::demand::Demand;
use self::figures::Figures;
use super::rig::Rig;
use super::{Bench, load};
use crate::bench::control::recording::Recording;
use crate::bench::control::rig::{Contender, govern};
use crate::bench::row::{Goal, Row, median};
use crate::environment;

const NAME: &str = "plane-laws";
const TRACE: &str = "bench/traces/hpcc.csv";
/// The paper's.
const GAIN: f64 = 0.5;
/// Each sample is sent at once, as the paper's collectd did.
const BATCH: u32 = 1;
/// Of the store, what the demand takes at its highest.
const PEAK_SHARE: f64 = 0.75;
/// What job and agent of the plane take of the machine once they run.
const PLANE_BYTES: u64 = 350 << 20;
const GOAL_MS: f64 = 20.0;
/// What others may take and give while the demand is played.
const CALM_MIB: f64 = 256.0;
/// Runs until one is calm enough; else the calmest counts.
const TRIES: u32 = 3;

/// Who decides how much the store holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Law {
    /// The paper's law in the plane; the node decides nothing.
    Plane,
    /// The node's copy of the paper's law.
    Copy,
    /// Tidepool's policy.
    Tidepool,
    /// The same, below ceilings of the paper's law in the plane.
    Both,
}

impl Law {
    const ALL: [Law; 4] = [Law::Plane, Law::Copy, Law::Tidepool, Law::Both];

    fn name(self) -> &'static str {
        match self {
            Law::Plane => "dynims in the plane",
            Law::Copy => "dynims on the node",
            Law::Tidepool => "tidepool",
            Law::Both => "tidepool below the plane",
        }
    }

    fn has_plane(self) -> bool {
        matches!(self, Law::Plane | Law::Both)
    }

    fn on_the_node(self) -> Contender {
        match self {
            Law::Plane => Contender::Fixed,
            Law::Copy => Contender::Dynims,
            Law::Tidepool | Law::Both => Contender::Tidepool,
        }
    }

    fn goal(self) -> Goal {
        if self.on_the_node() == Contender::Tidepool { Goal::AtMost(GOAL_MS) } else { Goal::Shown }
    }
}

/// What one run under one law gave.
struct Run {
    figures: Figures,
    seen: Recording,
    /// Bytes that the demand had from a time on.
    held: Vec<(u64, u64)>,
    headroom: u64,
}

/// One line of the table: what it is, its unit, and where its value is.
type Metric = (&'static str, &'static str, fn(&Figures) -> Option<f64>);

const METRICS: [Metric; 10] = [
    ("lowest available beyond the headroom", "GiB", |it| Some(it.lowest_gib)),
    ("1st percentile of available beyond the headroom", "GiB", |it| Some(it.low_gib)),
    ("below the headroom", "s", |it| Some(it.below_s)),
    ("excess, mean", "GiB", |it| Some(it.excess_gib)),
    ("churn: evicted", "GiB", |it| Some(it.evicted_gib)),
    ("churn: grown", "GiB", |it| Some(it.grown_gib)),
    ("churn: changes of the size", "", |it| Some(it.changes)),
    ("size of the store, mean", "GiB", |it| Some(it.store_gib)),
    ("first byte, 50 %", "ms", |it| it.first_ms(0.5)),
    (FIRST_BYTE, "ms", |it| it.first_ms(0.99)),
];
const FIRST_BYTE: &str = "first byte, 99 %";

/// Whether the rows are asked for.
pub fn is_wanted(bench: &Bench) -> bool {
    bench.wants(NAME)
}

/// All rows, and the picture.
pub fn run(bench: &Bench, rig: &mut Rig) -> Result<Vec<Row>> {
    if !is_wanted(bench) {
        return Ok(Vec::new());
    }
    let peak_bytes = bench.scale.store_bytes as f64 * PEAK_SHARE;
    let path = environment::checkout().join(TRACE);
    let demand = Demand::read(&path, peak_bytes as u64, bench.scale.trace_s)?;
    let mut all = Law::ALL.map(|law| (law, Vec::new()));
    for round in 0..bench.scale.rounds {
        for turn in 0..all.len() {
            let (law, runs) = &mut all[(round + turn) % Law::ALL.len()];
            runs.push(calm(rig, *law, &demand)?);
        }
    }
    println!("{}", table(&all));
    let last = all.iter().filter_map(|(law, runs)| Some((law.name(), runs.last()?)));
    let picture = picture::draw(&last.collect::<Vec<_>>());
    let path = environment::target().join("bench-plane-laws.svg");
    std::fs::write(&path, picture.wide)?;
    println!("picture: {}", path.display());
    rows(&all)
}

/// Plays the demand until others keep calm: what they take and give is demand as well.
fn calm(rig: &mut Rig, law: Law, demand: &Demand) -> Result<Run> {
    let mut calmest: Option<Run> = None;
    for _ in 0..TRIES {
        let run = play(rig, law, demand)?;
        let others_mib = run.figures.others_mib;
        eprintln!("x: {NAME}: {}: {}; {}", law.name(), run.figures.words(), load()?);
        if calmest.as_ref().is_none_or(|best| others_mib < best.figures.others_mib) {
            calmest = Some(run);
        }
        if others_mib < CALM_MIB {
            break;
        }
    }
    calmest.context("no run")
}

/// Plays the demand under a law, on a full store.
fn play(rig: &mut Rig, law: Law, demand: &Demand) -> Result<Run> {
    let plane_bytes = if law.has_plane() { PLANE_BYTES } else { 0 };
    let headroom = rig.rest()?.saturating_sub(rig.slack_bytes + plane_bytes);
    govern(&rig.node, law.on_the_node(), headroom)?;
    if law.has_plane() {
        let total = environment::memory_field("MemTotal")? as f64;
        rig.start_plane(1.0 - headroom as f64 / total, GAIN, BATCH)?;
    }
    let watch = rig.watch()?;
    let (report, [began, ended]) = rig.while_reading(|| demand.play(rig))?;
    let seen = watch.finish()?.between(began, ended);
    let figures = Figures::of(&seen, headroom, &report.held).context("nothing was seen")?;
    Ok(Run { figures, seen, held: report.held, headroom })
}

/// A column for each law, the medians of its runs.
fn table(all: &[(Law, Vec<Run>)]) -> String {
    let names = all.iter().map(|(law, _)| law.name()).collect::<Vec<_>>().join(" | ");
    let mut text = format!("\n| {NAME} | {names} |\n|---|{}\n", "--:|".repeat(all.len()));
    for (what, unit, value) in METRICS {
        let cell = |(_, runs): &(Law, Vec<Run>)| {
            let values: Vec<f64> = runs.iter().filter_map(|run| value(&run.figures)).collect();
            median(&values).map_or("-".to_owned(), |value| format!("{value:.2} {unit}"))
        };
        let cells: Vec<String> = all.iter().map(cell).collect();
        text.push_str(&format!("| {what} | {} |\n", cells.join(" | ")));
    }
    text
}

/// A row for each figure and law, the laws below each other.
fn rows(all: &[(Law, Vec<Run>)]) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (what, unit, value) in METRICS {
        for (law, runs) in all {
            let figures = runs.iter().filter_map(|run| value(&run.figures)).collect();
            let goal = if what == FIRST_BYTE { law.goal() } else { Goal::Shown };
            let mut row =
                Row::alone(&format!("{NAME}: {what}, {}", law.name()), unit, figures, goal);
            if what == FIRST_BYTE {
                row.notes = runs.iter().map(|run| run.figures.words()).collect();
                row.notes.push(load()?);
            }
            rows.push(row);
        }
    }
    Ok(rows)
}
