//! The comparison of control policies: rounds of scenarios, in turns that change each round, and
//! the rows of the table. A part may be run alone. What a policy cannot do is printed as such; what
//! was not asked for is left out.

use anyhow::Result;

use super::super::row::{Goal, Row};
use super::pool::Pool;
use super::rig::{Contender, Rig};
use super::scenarios::{self, Answer, BEFORE, Burst, Sawtooth};
use super::sizes::{GIB, LEAVE_BYTES, Sizes};
use super::traces::{self, OfTrace};
use crate::hog::remote::{JobOptions, run_trace};
use crate::hog::{Report, Step};

/// One scenario.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// A job that touches its memory page by page.
    Job,
    /// All at once, and the growth after it.
    Burst,
    /// A burst of 10 GiB.
    Large,
    /// Demand that grows at a known rate.
    Ramps,
    /// Small steps beyond the threshold.
    Steps,
    /// Demand that comes and goes.
    Sawtooth,
    /// Hostile traces.
    Traces,
}

impl Part {
    /// Those that one node serves one after another.
    pub const ALL: [Part; 6] =
        [Part::Job, Part::Burst, Part::Ramps, Part::Steps, Part::Sawtooth, Part::Traces];

    /// The name by which it is asked for.
    pub fn name(self, kind: &str) -> String {
        let own = match self {
            Part::Job => "job",
            Part::Burst => "burst",
            Part::Large => "large",
            Part::Ramps => "ramps",
            Part::Steps => "steps",
            Part::Sawtooth => "sawtooth",
            Part::Traces => "traces",
        };
        format!("{kind}-{own}")
    }
}

/// Rates of the ramps in bytes a second.
const RAMPS: [u64; 2] = [5_000_000_000, 10_000_000_000];
/// Rate of the sawtooth.
const TOOTH_RATE: u64 = 2_000_000_000;
/// How much of the store a tooth takes: as in the scenario of the simulator, and far more. A store
/// that parks under deep teeth is smaller than one that follows each, whatever the policy.
const TEETH: [(&str, f64); 2] = [("sawtooth", 0.15), ("deep sawtooth", 0.4)];

/// What the rounds of one contender gave.
struct OfContender {
    contender: Contender,
    steps: Vec<Answer>,
    bursts: Vec<Burst>,
    ramps: [Vec<Burst>; 2],
    regrowth_s: Vec<Option<f64>>,
    teeth: [Vec<Sawtooth>; 2],
    traces: [Vec<OfTrace>; traces::ALL.len()],
    jobs: Vec<Report>,
}

/// One figure of a burst.
type Figure = fn(&Burst) -> Option<f64>;

/// One figure of a sawtooth.
type OfTeeth = fn(&Sawtooth) -> f64;

/// What all rounds on one kind of page gave.
pub struct Contest {
    parts: Vec<Part>,
    contenders: Vec<OfContender>,
}

impl Contest {
    /// Nothing measured yet.
    pub fn new(parts: Vec<Part>) -> Self {
        let of = |contender| OfContender {
            contender,
            steps: Vec::new(),
            bursts: Vec::new(),
            ramps: Default::default(),
            regrowth_s: Vec::new(),
            teeth: Default::default(),
            traces: Default::default(),
            jobs: Vec::new(),
        };
        Contest { parts, contenders: Contender::ALL.map(of).into() }
    }

    /// One round of every contender; another one begins each round.
    pub fn round(
        &mut self,
        rig: &mut Rig,
        pool: &mut Pool,
        sizes: &Sizes,
        round: usize,
    ) -> Result<()> {
        let count = self.contenders.len();
        for turn in 0..count {
            let of = &mut self.contenders[(turn + round) % count];
            eprintln!("x: control, round {}, {}", round + 1, of.contender.name());
            for part in &self.parts {
                of.part(*part, rig, pool, sizes)?;
            }
        }
        Ok(())
    }

    /// All rows.
    pub fn rows(&self, kind: &str, huge: bool, sizes: &Sizes) -> Vec<Row> {
        let of = |of: &OfContender| of.rows(&self.parts, kind, huge, sizes);
        let mut rows: Vec<Row> = self.contenders.iter().flat_map(of).collect();
        for (index, (name, share)) in TEETH.into_iter().enumerate() {
            let teeth = |of: usize| &self.contenders[of].teeth[index];
            let (ours, paper) = (teeth(0), teeth(1));
            if !ours.is_empty() {
                rows.extend(sawtooth_rows(name, kind, share, ours, paper));
            }
        }
        for (index, trace) in traces::ALL.into_iter().enumerate() {
            let runs = |of: &OfContender| (of.contender, of.traces[index].clone());
            let runs: Vec<_> = self.contenders.iter().map(runs).collect();
            rows.extend(traces::rows(trace, kind, &runs));
        }
        rows
    }
}

/// Churn and size of ours in shares of those of the paper's policy.
fn sawtooth_rows(
    name: &str,
    kind: &str,
    share: f64,
    ours: &[Sawtooth],
    paper: &[Sawtooth],
) -> [Row; 2] {
    let title = |what: &str| format!("control: {name} {what} against the paper's law, {kind}");
    let shares = |of: OfTeeth| -> Vec<f64> {
        let pairs = ours.iter().zip(paper).map(|(ours, paper)| (of(ours), of(paper)));
        pairs.filter(|(_, paper)| *paper > 0.0).map(|(ours, paper)| ours / paper).collect()
    };
    let list = |all: &[Sawtooth], of: OfTeeth| -> String {
        let each: Vec<String> = all.iter().map(|it| format!("{:.2}", of(it) / GIB)).collect();
        each.join(", ")
    };
    let taken: OfTeeth = |it| it.taken;
    let mean: OfTeeth = |it| it.mean_stored;
    let is_goal = share <= TEETH[0].1;
    let goal = |goal| if is_goal { goal } else { Goal::Shown };
    let churn =
        Row::alone(&title("churn"), "", shares(taken), goal(Goal::AtMost(0.33))).note(format!(
            "a tooth takes {:.0} % of the store; ours {} GiB, the paper's {} GiB",
            share * 100.0,
            list(ours, taken),
            list(paper, taken)
        ));
    let size = (shares(mean), vec![]);
    let size = Row::rates(&title("mean size"), "", size, goal(Goal::AtLeast(0.85))).note(format!(
        "ours {} GiB, the paper's {} GiB",
        list(ours, mean),
        list(paper, mean)
    ));
    [churn, size]
}

impl OfContender {
    fn part(&mut self, part: Part, rig: &mut Rig, pool: &mut Pool, sizes: &Sizes) -> Result<()> {
        let (bytes, slack, contender) = (sizes.burst, sizes.slack, self.contender);
        let is_law = matches!(contender, Contender::Tidepool | Contender::Dynims);
        let has_store = contender != Contender::PageCache;
        let long = !sizes.quick;
        match part {
            Part::Job => {
                rig.prepare(contender, slack)?;
                self.jobs.push(job(rig, sizes)?);
            }
            Part::Burst | Part::Large if has_store && (part == Part::Burst || is_law) => {
                rig.prepare(contender, slack)?;
                self.bursts.push(scenarios::burst(rig, pool, bytes, 0, slack)?);
                if part == Part::Burst && is_law && (long || contender == Contender::Tidepool) {
                    self.regrowth_s.push(scenarios::regrowth(rig, pool, sizes.regrowth)?);
                }
                pool.demand(0)?;
            }
            Part::Ramps if is_law && long => {
                for (rate, of_rate) in RAMPS.into_iter().zip(&mut self.ramps) {
                    rig.prepare(contender, slack)?;
                    of_rate.push(scenarios::burst(rig, pool, bytes, rate, slack)?);
                    pool.demand(0)?;
                }
            }
            Part::Steps if has_store && (long || contender == Contender::Tidepool) => {
                rig.prepare(contender, slack)?;
                // A fixed store answers none: a few show that.
                let count = if is_law { sizes.steps } else { sizes.steps / 4 };
                let steps = scenarios::steps(rig, pool, count, sizes.step, slack)?;
                self.steps.extend(steps);
            }
            Part::Sawtooth if is_law && (long || contender == Contender::Tidepool) => {
                let height = bytes / 2;
                for ((_, share), of_depth) in TEETH.into_iter().zip(&mut self.teeth) {
                    let cut = (sizes.store as f64 * share) as u64;
                    rig.prepare(contender, height.saturating_sub(cut))?;
                    of_depth.push(scenarios::sawtooth(rig, pool, height, sizes.teeth, TOOTH_RATE)?);
                }
            }
            Part::Traces if has_store && (long || contender == Contender::Tidepool) => {
                let wanted = if long { traces::ALL.len() } else { 1 };
                let all = traces::ALL.into_iter().zip(&mut self.traces).take(wanted);
                for (trace, of_trace) in all {
                    of_trace.push(traces::run(trace, contender, rig, pool, sizes)?);
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn row(&self, what: &str, unit: &'static str, kind: &str, figures: Vec<f64>, most: f64) -> Row {
        let ours = self.contender == Contender::Tidepool;
        let name = format!("control: {what}, {kind}, {}", self.contender.name());
        let goal = if ours { Goal::AtMost(most) } else { Goal::Shown };
        Row::alone(&name, unit, figures, goal)
    }

    fn rows(&self, parts: &[Part], kind: &str, huge: bool, sizes: &Sizes) -> Vec<Row> {
        let mut rows = Vec::new();
        if !self.steps.is_empty() {
            rows.extend(self.step_rows(kind, sizes));
        }
        if !self.bursts.is_empty() {
            rows.extend(self.burst_rows(kind, huge, sizes));
        }
        for (rate, of_rate) in RAMPS.iter().zip(&self.ramps).filter(|(_, all)| !all.is_empty()) {
            let excess = of_rate.iter().map(|burst| burst.excess as f64 / 1e9).collect();
            let what = format!("excess on a ramp of {} GB/s", rate / 1_000_000_000);
            let note = hidden_note(of_rate);
            rows.push(self.row(&what, "GB", kind, excess, 0.3).note(note));
        }
        if !self.regrowth_s.is_empty() {
            let grown: Vec<f64> = self.regrowth_s.iter().flatten().copied().collect();
            let note = format!(
                "came in {} of {} rounds within {:.0} s",
                grown.len(),
                self.regrowth_s.len(),
                sizes.regrowth.as_secs_f64()
            );
            rows.push(self.row("regrowth to 90 %", "s", kind, grown, 30.0).note(note));
        }
        if parts.contains(&Part::Job) {
            rows.push(self.job_row(kind));
        }
        rows
    }

    fn step_rows(&self, kind: &str, sizes: &Sizes) -> Vec<Row> {
        let answers = |of: fn(&Answer) -> Option<f64>| -> Vec<f64> {
            self.steps.iter().filter_map(of).collect()
        };
        let (first, quarter) = (answers(|step| step.first_ms), answers(|step| step.quarter_ms));
        let unasked: u64 = self.steps.iter().map(|step| step.unasked).sum();
        let note = format!(
            "answered {} of {} steps of {} MiB; in the {} ms before each {:.2} MiB left unasked",
            first.len(),
            self.steps.len(),
            sizes.step >> 20,
            BEFORE.as_millis(),
            unasked as f64 / self.steps.len() as f64 / f64::from(1 << 20)
        );
        let of = |(quantile, most): (f64, f64)| {
            let figure = quantile_of(&first, quantile).into_iter().collect();
            let what = format!("first byte back, p{:.0}", quantile * 100.0);
            let later = quantile_of(&quarter, quantile).unwrap_or(f64::NAN);
            let later = format!("a quarter of the step: {later:.1} ms");
            self.row(&what, "ms", kind, figure, most).note(&note).note(later)
        };
        [(0.5, 8.0), (0.99, 20.0)].map(of).into()
    }

    fn burst_rows(&self, kind: &str, huge: bool, sizes: &Sizes) -> Vec<Row> {
        let mut rows = Vec::new();
        let (some, all) = (sizes.burst as f64 / GIB, self.bursts.len());
        let large = sizes.burst > 8 << 30;
        // 4 GiB in 80 ms and 1 s; 10 GiB in 150 ms and 2 s.
        let most = match (large, huge) {
            (true, true) => 150.0,
            (true, false) => 2_000.0,
            (false, true) => 80.0 * some / 4.0,
            (false, false) => 1_000.0 * some / 4.0,
        };
        let each = |of: Figure| self.bursts.iter().filter_map(of).collect();
        let came = |figures: &Vec<f64>| format!("came back in {} of {all} rounds", figures.len());
        let figures: Vec<f64> = each(|burst| burst.ledger_ms);
        let note = came(&figures);
        let what = format!("{some:.2} GiB back: left the store");
        rows.push(self.row(&what, "ms", kind, figures, most).note(note));
        let figures: Vec<f64> = each(|burst| burst.available_ms);
        let note = format!("{}; {}", came(&figures), hidden_note(&self.bursts));
        let what = format!("{some:.2} GiB back: available");
        rows.push(self.row(&what, "ms", kind, figures, most).note(note));
        let suffix = if large { format!(", {some:.0} GiB") } else { String::new() };
        let mut add = |what: &str, unit, figures: Vec<f64>, most| {
            if !figures.is_empty() {
                rows.push(self.row(&format!("{what}{suffix}"), unit, kind, figures, most));
            }
        };
        add("evicted by needed", "", each(|burst| burst.evicted_ratio), 1.05);
        add("settling to 0.5 %", "ms", each(|burst| burst.settling_ms), 100.0);
        let turns = each(|burst| burst.sign_changes.map(|count| count as f64));
        add("changes of direction after it", "", turns, 0.0);
        rows
    }

    /// What the job itself saw: never a goal, because pages cost what the machine asks for them.
    fn job_row(&self, kind: &str) -> Row {
        let name = format!("control: a job's page faults, p99, {kind}, {}", self.contender.name());
        let faults = self.jobs.iter().map(|job| job.faults.p99_us).collect();
        let refused: u64 = self.jobs.iter().map(|job| job.refused_bytes).sum();
        let middle: Vec<String> =
            self.jobs.iter().map(|job| format!("{:.1}", job.faults.p50_us)).collect();
        Row::alone(&name, "µs", faults, Goal::Shown)
            .note(format!("p50 {} µs; {refused} bytes were refused", middle.join(", ")))
    }
}

/// How much of what counts as available was in per-CPU lists.
fn hidden_note(bursts: &[Burst]) -> String {
    let most = bursts.iter().map(|burst| burst.hidden).max().unwrap_or(0);
    format!("up to {} MiB of the available were in per-CPU lists", most >> 20)
}

/// A job that takes all of the burst page by page, as fast as the machine gives them.
fn job(rig: &Rig, sizes: &Sizes) -> Result<Report> {
    let bytes = sizes.burst / 2;
    let options = JobOptions { most_bytes: bytes, huge: rig.huge, leave_bytes: LEAVE_BYTES };
    run_trace(&options, &[Step::Take { bytes, rate: 0 }, Step::Hold(100), Step::Release(bytes)])
}

/// The figure that this share of all does not exceed.
fn quantile_of(figures: &[f64], quantile: f64) -> Option<f64> {
    let mut sorted = figures.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().checked_sub(1)?;
    sorted.get((last as f64 * quantile).ceil() as usize).copied()
}
