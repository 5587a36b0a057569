//! Memory control on a real node: how fast memory is back when jobs want it, how much too much
//! goes, and what the controller costs. The law of Tidepool, that of the DynIMS paper, a fixed
//! store and no store meet the same demand in turns. It takes sizes as shares of the memory that
//! is available and leaves a floor to others; it prints, and judges no test.

mod cost;
mod pool;
mod recording;
mod rig;
mod scenarios;

use std::time::Duration;

use anyhow::Result;

use self::pool::Pool;
use self::rig::{Contender, Rig};
use self::scenarios::Burst;
use super::row::{Goal, Row};
use super::{Bench, Scale};
use crate::environment;
use crate::hog::remote::{JobOptions, run_trace};
use crate::hog::{Report, Step};

/// What is never taken from others.
const LEAVE_BYTES: u64 = 4 << 30;
const GIB: f64 = (1_u64 << 30) as f64;

/// Sizes of one run.
#[derive(Clone, Copy, Debug)]
struct Sizes {
    /// What a job takes at once.
    burst: u64,
    /// What the store holds before.
    store: u64,
    /// Room before the threshold is crossed.
    slack: u64,
    steps: u64,
    step: u64,
    teeth: u32,
    regrowth: Duration,
    quick: bool,
}

impl Sizes {
    fn of(scale: &Scale) -> Result<Self> {
        let quick = scale.free_bytes < 1 << 30;
        if quick {
            let regrowth = Duration::from_secs(1);
            let (burst, store) = (128 << 20, 256 << 20);
            let slack = 16 << 20;
            return Ok(Sizes {
                burst,
                store,
                slack,
                steps: 3,
                step: 32 << 20,
                teeth: 1,
                regrowth,
                quick,
            });
        }
        // A fixed store stays while the job takes: both must fit beside the floor.
        let room = environment::memory_available_bytes()?.saturating_sub(LEAVE_BYTES + (1 << 30));
        let burst = scale.free_bytes.min(room * 2 / 5) >> 22 << 22;
        let regrowth = Duration::from_secs(40);
        let (slack, step) = (256 << 20, 64 << 20);
        let store = burst + (512 << 20);
        Ok(Sizes { burst, store, slack, steps: 32, step, teeth: 4, regrowth, quick })
    }
}

/// The laws on a store in 2 MiB pages; `--only control-2MiB`.
pub fn large_pages(bench: &Bench) -> Result<Vec<Row>> {
    laws(bench, "control-2MiB", "auto")
}

/// The laws on a store in 4 KiB pages; `--only control-4KiB`.
pub fn small_pages(bench: &Bench) -> Result<Vec<Row>> {
    laws(bench, "control-4KiB", "off")
}

/// What the controller costs; `--only control-cost`.
pub fn costs(bench: &Bench) -> Result<Vec<Row>> {
    if !bench.wants("control-cost") {
        return Ok(Vec::new());
    }
    let sizes = Sizes::of(&bench.scale)?;
    let mut rows = vec![machine(&sizes)?];
    let mut rig = Rig::start(bench, sizes.store, "auto")?;
    rows.extend(cost::run(&mut rig, bench.scale.rounds, sizes.quick)?);
    Ok(rows)
}

fn laws(bench: &Bench, name: &str, pages: &str) -> Result<Vec<Row>> {
    let sizes = Sizes::of(&bench.scale)?;
    if !bench.wants(name) || (sizes.quick && pages == "off") {
        return Ok(Vec::new());
    }
    let skipped = |why: &str| vec![Row::alone(name, "", vec![], Goal::Shown).note(why)];
    if !environment::is_root() {
        return Ok(skipped("skipped: demand at a known rate needs root, for the huge page pool"));
    }
    let Some(mut pool) = Pool::open(LEAVE_BYTES) else {
        return Ok(skipped("skipped: this kernel has no pool of 2 MiB pages that can be changed"));
    };
    let mut rig = Rig::start(bench, sizes.store, pages)?;
    if pages == "auto" && !rig.huge && !sizes.quick {
        return Ok(skipped("skipped: this machine gives no 2 MiB pages for shared memory"));
    }
    let kind = if rig.huge { "2 MiB pages" } else { "4 KiB pages" };
    let mut rows = vec![machine(&sizes)?];
    let mut figures = Figures::new();
    for round in 0..bench.scale.rounds {
        figures.round(&mut rig, &mut pool, &sizes, round)?;
    }
    rows.extend(figures.rows(kind, rig.huge, &sizes));
    Ok(rows)
}

/// The machine and its load, without which no figure means anything.
fn machine(sizes: &Sizes) -> Result<Row> {
    let load = std::fs::read_to_string("/proc/loadavg")?;
    let load: Vec<f64> = load.split(' ').take(3).filter_map(|word| word.parse().ok()).collect();
    let kernel = rustix::system::uname();
    let cores = std::thread::available_parallelism()?;
    let gib = |bytes: u64| bytes as f64 / GIB;
    Ok(Row::alone("control: load of the machine", "", load, Goal::Shown).note(format!(
        "{cores} cores, {:.1} GiB of which {:.1} available, Linux {}; store {:.2} GiB, demand \
         {:.2} GiB, {:.2} GiB before the threshold; {:.0} GiB are left to others; demand at a \
         known rate is made by the huge page pool",
        gib(environment::memory_field("MemTotal")?),
        gib(environment::memory_available_bytes()?),
        kernel.release().to_string_lossy(),
        gib(sizes.store),
        gib(sizes.burst),
        gib(sizes.slack),
        gib(LEAVE_BYTES),
    )))
}

/// What the rounds of one contender gave.
struct OfContender {
    contender: Contender,
    first_byte_ms: Vec<f64>,
    bursts: Vec<Burst>,
    ramps: [Vec<Burst>; 2],
    regrowth_s: Vec<Option<f64>>,
    churn: Vec<f64>,
    mean_stored: Vec<f64>,
    jobs: Vec<Report>,
}

/// One figure of a burst.
type Figure = fn(&Burst) -> Option<f64>;

/// What all rounds on one kind of page gave.
struct Figures(Vec<OfContender>);

/// Rates of the ramps in bytes a second.
const RAMPS: [u64; 2] = [5_000_000_000, 10_000_000_000];

impl Figures {
    fn new() -> Self {
        let of = |contender| OfContender {
            contender,
            first_byte_ms: Vec::new(),
            bursts: Vec::new(),
            ramps: [Vec::new(), Vec::new()],
            regrowth_s: Vec::new(),
            churn: Vec::new(),
            mean_stored: Vec::new(),
            jobs: Vec::new(),
        };
        Figures(Contender::ALL.map(of).into())
    }

    fn round(&mut self, rig: &mut Rig, pool: &mut Pool, sizes: &Sizes, round: usize) -> Result<()> {
        let count = self.0.len();
        for turn in 0..count {
            // Another one begins each round.
            let of = &mut self.0[(turn + round) % count];
            eprintln!("x: control, round {}, {}", round + 1, of.contender.name());
            of.round(rig, pool, sizes)?;
        }
        Ok(())
    }

    fn rows(&self, kind: &str, huge: bool, sizes: &Sizes) -> Vec<Row> {
        let mut rows: Vec<Row> = self.0.iter().flat_map(|of| of.rows(kind, huge, sizes)).collect();
        let (ours, paper) = (&self.0[0], &self.0[1]);
        let name = |what: &str| format!("control: {what} against the paper's law, {kind}");
        let share = |ours: &[f64], paper: &[f64]| -> Vec<f64> {
            let pairs = ours.iter().zip(paper).filter(|(_, paper)| **paper > 0.0);
            pairs.map(|(ours, paper)| ours / paper).collect()
        };
        let churn = share(&ours.churn, &paper.churn);
        rows.push(Row::alone(&name("sawtooth churn"), "", churn, Goal::AtMost(0.33)));
        let mean = share(&ours.mean_stored, &paper.mean_stored);
        let goal = Goal::AtLeast(0.85);
        rows.push(Row::rates(&name("sawtooth mean size"), "", (mean, vec![]), goal));
        rows
    }
}

impl OfContender {
    fn round(&mut self, rig: &mut Rig, pool: &mut Pool, sizes: &Sizes) -> Result<()> {
        let (bytes, slack) = (sizes.burst, sizes.slack);
        let contender = self.contender;
        rig.prepare(contender, slack)?;
        self.jobs.push(job(rig, sizes)?);
        if contender == Contender::PageCache {
            return Ok(());
        }
        if !sizes.quick {
            rig.prepare(contender, slack)?;
        }
        self.bursts.push(scenarios::burst(rig, pool, bytes, 0, slack)?);
        if contender == Contender::Fixed || sizes.quick && contender != Contender::Tidepool {
            pool.demand(0)?;
            return Ok(());
        }
        self.regrowth_s.push(scenarios::regrowth(rig, pool, sizes.regrowth)?);
        let ramps = if sizes.quick { 0 } else { RAMPS.len() };
        for (rate, of_rate) in RAMPS.into_iter().zip(&mut self.ramps).take(ramps) {
            rig.prepare(contender, slack)?;
            of_rate.push(scenarios::burst(rig, pool, bytes, rate, slack)?);
            pool.demand(0)?;
        }
        rig.prepare(contender, slack)?;
        let (count, step) = (sizes.steps, sizes.step);
        self.first_byte_ms.extend(scenarios::steps(rig, pool, count, step, slack)?);
        rig.prepare(contender, slack)?;
        let (churn, mean) = scenarios::sawtooth(rig, pool, bytes / 2, sizes.teeth, 2_000_000_000)?;
        self.churn.push(churn);
        self.mean_stored.push(mean);
        Ok(())
    }

    fn rows(&self, kind: &str, huge: bool, sizes: &Sizes) -> Vec<Row> {
        let ours = self.contender == Contender::Tidepool;
        let row = |what: &str, unit, figures: Vec<f64>, most: f64| {
            let name = format!("control: {what}, {kind}, {}", self.contender.name());
            let goal = if ours && !figures.is_empty() { Goal::AtMost(most) } else { Goal::Shown };
            Row::alone(&name, unit, figures, goal)
        };
        let mut rows = Vec::new();
        for (quantile, most) in [(0.5, 8.0), (0.99, 20.0)] {
            let figure = quantile_of(&self.first_byte_ms, quantile).into_iter().collect();
            let what = format!("first byte back, p{:.0}", quantile * 100.0);
            rows.push(
                row(&what, "ms", figure, most)
                    .note(format!("{} steps of demand", self.first_byte_ms.len())),
            );
        }
        let per_4_gib = if huge { 80.0 } else { 1_000.0 } * sizes.burst as f64 / (4.0 * GIB);
        let (some, all) = (sizes.burst as f64 / GIB, self.bursts.len());
        let each = |of: Figure| self.bursts.iter().filter_map(of).collect();
        let came = |figures: &Vec<f64>| format!("came back in {} of {all} rounds", figures.len());
        let back: [(_, Figure); 2] = [
            ("left the store", |burst| burst.ledger_ms),
            ("available", |burst| burst.available_ms),
        ];
        for (where_seen, of) in back {
            let figures: Vec<f64> = each(of);
            let note = came(&figures);
            let what = format!("{some:.2} GiB back: {where_seen}");
            rows.push(row(&what, "ms", figures, per_4_gib).note(note));
        }
        rows.push(row("evicted by needed", "", each(|burst| burst.evicted_ratio), 1.05));
        rows.push(row("settling to 0.5 %", "ms", each(|burst| burst.settling_ms), 100.0));
        let turns = each(|burst| burst.sign_changes.map(|count| count as f64));
        rows.push(row("changes of direction after it", "", turns, 0.0));
        for (rate, of_rate) in RAMPS.iter().zip(&self.ramps) {
            let excess = of_rate.iter().map(|burst| burst.excess as f64 / 1e9).collect();
            let what = format!("excess on a ramp of {} GB/s", rate / 1_000_000_000);
            rows.push(row(&what, "GB", excess, 0.3));
        }
        let grown: Vec<f64> = self.regrowth_s.iter().flatten().copied().collect();
        let note = format!(
            "came in {} of {} rounds within {:.0} s",
            grown.len(),
            self.regrowth_s.len(),
            sizes.regrowth.as_secs_f64()
        );
        rows.push(row("regrowth to 90 %", "s", grown, 30.0).note(note));
        rows.push(self.job_row(kind));
        // What a contender cannot do at all is told by one row, what it never tried by none.
        let tried = |row: &Row| !row.ours.is_empty() || row.name.contains("GiB back");
        rows.retain(|row| tried(row) && !self.jobs.is_empty());
        if self.contender == Contender::PageCache {
            rows.retain(|row| !row.ours.is_empty());
        }
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
