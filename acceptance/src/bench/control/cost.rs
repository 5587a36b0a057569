//! Benchmark of the cost of memory control: processor and memory of the controller, and the
//! slowdown of jobs that live on memory bandwidth beside a full store, against no store.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::super::row::{Goal, Row, median};
use super::super::{Bench, time};
use super::rig::{Contender, Rig};
use crate::cleanup;
use crate::process;
use crate::scratch::Scratch;

const SLOWDOWN: &str = "control: speed beside a full store, against none";
/// Room before the threshold beside a job: so little that the controller decides at each interval.
const SLACK_BYTES: u64 = 256 << 20;
/// Passes of the triad in a slice: about a tenth of a second.
const SLICE_PASSES: u32 = 4;
/// The problem of HPCC: small, on two ranks.
const ORDER: u32 = 1_500;

/// The parts, by the names that they are asked for.
const PARTS: [&str; 3] = ["control-cost-idle", "control-cost-triad", "control-cost-hpcc"];

/// Whether any part is asked for.
pub fn is_wanted(bench: &Bench) -> bool {
    PARTS.iter().any(|part| bench.wants(part))
}

/// All rows of what it costs.
pub fn run(bench: &Bench, rig: &mut Rig, quick: bool) -> Result<Vec<Row>> {
    let rounds = bench.scale.rounds;
    let [idle_part, triad_part, hpcc_part] = PARTS;
    let mut rows = Vec::new();
    if bench.wants(idle_part) {
        rows.extend(idle(rig, rounds, Duration::from_secs(if quick { 1 } else { 10 }))?);
    }
    if bench.wants(triad_part) {
        let bytes = if quick { 16 << 20 } else { 128 << 20 };
        let mut triad = Triad::new(bytes);
        let (runs, passes) = if quick { (2, 2) } else { (24, 4) };
        let name = format!("{SLOWDOWN}: triad");
        let row = paired(rig, rounds, &name, "GB/s", || fast_ones(runs, || triad.run(passes)))?;
        rows.push(row);
        let slices = if quick { 2 } else { 60 };
        rows.push(in_slices(rig, rounds, slices, bytes)?);
    }
    if quick || !bench.wants(hpcc_part) {
        return Ok(rows);
    }
    let name = format!("{SLOWDOWN}: HPCC");
    if process::capture(Command::new("mpirun").arg("--version")).is_err()
        || process::capture(Command::new("which").arg("hpcc"))?.stdout.is_empty()
    {
        rows.push(Row::alone(&name, "", vec![], Goal::Shown).note("skipped: no package hpcc"));
        return Ok(rows);
    }
    let work = || fast_ones(8, || Ok(1.0 / time(hpcc)?));
    rows.push(paired(rig, rounds, &name, "runs/s", work)?);
    Ok(rows)
}

/// The upper quartile of the speeds of so many runs. What the host takes away makes single runs
/// slow and none fast; a controller that wakes up ten times in each run slows all of them.
fn fast_ones(runs: usize, mut run: impl FnMut() -> Result<f64>) -> Result<f64> {
    let mut speeds = (0..runs).map(|_| run()).collect::<Result<Vec<f64>>>()?;
    speeds.sort_by(f64::total_cmp);
    Ok(speeds[runs * 3 / 4])
}

/// Room before the threshold: of a node where nothing can happen soon, to one where all can.
const IDLE: [(&str, u64); 3] = [
    ("10 GiB from the threshold", 10 << 30),
    ("4 GiB from the threshold", 4 << 30),
    ("at the threshold", 8 << 20),
];

/// The controller beside a full store and no demand, and what this machine takes for as many empty
/// wake-ups.
fn idle(rig: &mut Rig, rounds: usize, length: Duration) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let mut memory = Vec::new();
    for (place, slack) in IDLE {
        rig.prepare(Contender::Tidepool, slack)?;
        let report = rig.control()?;
        let process_id = report["process_id"].as_u64().context("nobody governs")?;
        let directory = Path::new("/proc").join(process_id.to_string());
        let (mut shares, mut empty, mut decisions) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..rounds {
            // Asked anew: decisions were made beside the empty loop of the round before.
            let (made, before) = (decisions_of(&rig.control()?), run_time_ns(&directory)?);
            let seconds = time(|| {
                std::thread::sleep(length);
                Ok(())
            })?;
            shares.push((run_time_ns(&directory)? - before) as f64 / 1e7 / seconds);
            // The count begins anew with a controller that attached meanwhile.
            let rate = decisions_of(&rig.control()?).saturating_sub(made) as f64 / seconds;
            decisions.push(format!("{rate:.0}"));
            empty.push(wake_ups(rate, length)?);
            memory.push(resident_mib(&directory)?);
        }
        let empty: Vec<String> = empty.iter().map(|share| format!("{share:.2}")).collect();
        let name = format!("control: processor of the idle controller, {place}");
        rows.push(Row::alone(&name, "% of a core", shares, Goal::AtMost(0.2)).note(format!(
            "interval 10 ms, {} decisions a second; a loop that only wakes up as often takes {} %",
            decisions.join(", "),
            empty.join(", ")
        )));
    }
    rows.push(Row::alone("control: memory of the controller", "MiB", memory, Goal::AtMost(20.0)));
    Ok(rows)
}

fn decisions_of(control: &serde_json::Value) -> u64 {
    control["report"]["decisions"].as_u64().unwrap_or(0)
}

/// Memory of a process in MiB.
fn resident_mib(directory: &Path) -> Result<f64> {
    let status = std::fs::read_to_string(directory.join("status"))?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
    let kib: f64 = line.split_whitespace().nth(1).context("no VmRSS")?.parse()?;
    Ok(kib / 1024.0)
}

/// Percent of a processor for a thread that wakes up so often and does nothing.
pub fn wake_ups(rate: f64, length: Duration) -> Result<f64> {
    let pause = Duration::from_secs_f64(1.0 / rate.max(1.0));
    let empty = std::thread::spawn(move || -> Result<f64> {
        let directory = Path::new("/proc/thread-self");
        let (before, started) = (thread_time_ns(directory)?, Instant::now());
        while started.elapsed() < length {
            std::thread::sleep(pause);
        }
        let ran = thread_time_ns(directory)? - before;
        Ok(ran as f64 / 1e7 / started.elapsed().as_secs_f64())
    });
    empty.join().map_err(|_| anyhow::anyhow!("the empty loop panicked"))?
}

/// Time that all threads of a process ran.
pub fn run_time_ns(directory: &Path) -> Result<u64> {
    let mut total = 0;
    for task in std::fs::read_dir(directory.join("task"))? {
        total += thread_time_ns(&task?.path())?;
    }
    Ok(total)
}

/// Time that one thread ran.
fn thread_time_ns(directory: &Path) -> Result<u64> {
    let text = std::fs::read_to_string(directory.join("schedstat"))?;
    let word = text.split_whitespace().next().context("schedstat is empty")?;
    Ok(word.parse()?)
}

/// The same work beside a full, governed store and beside none, in turns.
fn paired(
    rig: &mut Rig,
    rounds: usize,
    name: &str,
    unit: &'static str,
    mut work: impl FnMut() -> Result<f64>,
) -> Result<Row> {
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let mut order = [Contender::Tidepool, Contender::PageCache];
        order.rotate_left(round % 2);
        for contender in order {
            rig.prepare(contender, SLACK_BYTES)?;
            let figures = if contender == Contender::Tidepool { &mut with } else { &mut without };
            figures.push(work()?);
        }
    }
    let pairs: Vec<String> = with
        .iter()
        .zip(&without)
        .map(|(with, without)| format!("{with:.3} and {without:.3}"))
        .collect();
    let row = Row::rates(name, unit, (with, without), Goal::RatioAtLeast(0.98));
    let note = "of each, the upper quartile of many short runs, for the host slows single ones";
    Ok(row.note(format!("pairs: {}", pairs.join("; "))).note(note))
}

/// The triad on every processor beside a full, governed store, in short slices: in every other one
/// node and controller are stopped. What the host takes away changes more slowly than that.
fn in_slices(rig: &mut Rig, rounds: usize, slices: usize, bytes: usize) -> Result<Row> {
    rig.prepare(Contender::Tidepool, SLACK_BYTES)?;
    let controller = rig.control()?["process_id"].as_u64().context("nobody governs")?;
    let processes = [rig.node.process_id()?, u32::try_from(controller)?];
    let all = move |signal| processes.iter().for_each(|id| process::signal(*id, signal));
    let _go_on = cleanup::guard(move || all(libc::SIGCONT));
    let processors = std::thread::available_parallelism()?.get();
    let mut triads: Vec<Triad> = (0..processors).map(|_| Triad::new(bytes)).collect();
    let mut slice = |running: bool| {
        all(if running { libc::SIGCONT } else { libc::SIGSTOP });
        time(|| {
            std::thread::scope(|scope| {
                let runs: Vec<_> = triads
                    .iter_mut()
                    .map(|triad| scope.spawn(|| triad.run(SLICE_PASSES)))
                    .collect();
                let runs = runs.into_iter().map(|run| run.join().expect("the triad ends"));
                runs.collect::<Result<Vec<f64>>>().map(drop)
            })
        })
    };
    let (mut with, mut without) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let (mut running, mut stopped) = (Vec::new(), Vec::new());
        for pair in 0..slices {
            // Both orders equally often.
            for is_running in [pair % 2 == 0, pair % 2 != 0] {
                let seconds = slice(is_running)?;
                let rates = if is_running { &mut running } else { &mut stopped };
                rates.push(1.0 / seconds);
            }
        }
        with.push(median(&running).context("no slice")?);
        without.push(median(&stopped).context("no slice")?);
    }
    let name = "control: triad on all processors, node and controller running against stopped";
    let row = Row::rates(name, "runs/s", (with, without), Goal::RatioAtLeast(0.98));
    Ok(row.note(format!("each figure is the median of {slices} slices, by turns")))
}

/// `a = b + s c` over arrays that no cache holds.
struct Triad {
    a: Vec<f64>,
    b: Vec<f64>,
    c: Vec<f64>,
}

impl Triad {
    fn new(bytes: usize) -> Self {
        let length = bytes / size_of::<f64>();
        Triad { a: vec![0.0; length], b: vec![1.0; length], c: vec![2.0; length] }
    }

    /// Gigabytes a second over so many passes.
    fn run(&mut self, passes: u32) -> Result<f64> {
        let seconds = time(|| {
            for pass in 0..passes {
                let scale = f64::from(pass);
                for ((a, b), c) in self.a.iter_mut().zip(&self.b).zip(&self.c) {
                    *a = b + scale * c;
                }
                std::hint::black_box(&self.a);
            }
            Ok(())
        })?;
        let last = f64::from(passes - 1);
        anyhow::ensure!(self.a.iter().all(|a| *a == 1.0 + last * 2.0), "the triad is wrong");
        Ok((3 * size_of::<f64>() * self.a.len()) as f64 * f64::from(passes) / seconds / 1e9)
    }
}

/// One run of HPL, PTRANS and STREAM by HPCC on two ranks; all its checks must pass.
fn hpcc() -> Result<()> {
    let directory = Scratch::short()?;
    std::fs::write(directory.path().join("hpccinf.txt"), hpcc_input())?;
    let mut command = Command::new("mpirun");
    command.args(["--allow-run-as-root", "--oversubscribe", "-np", "2", "hpcc"]);
    command.current_dir(directory.path());
    let output = process::capture_within(&mut command, Duration::from_secs(300))?;
    anyhow::ensure!(output.status.success(), "hpcc: {}", String::from_utf8_lossy(&output.stderr));
    let text = std::fs::read_to_string(directory.path().join("hpccoutf.txt"))?;
    anyhow::ensure!(text.contains("Success=1"), "hpcc reports a failure");
    Ok(())
}

/// The input of HPCC: HPL's form, then PTRANS.
fn hpcc_input() -> String {
    let values = [
        "HPLinpack input",
        "two ranks",
        "HPL.out output",
        "8 device",
        "1 N",
        &format!("{ORDER} Ns"),
        "1 NBs",
        "128 NB",
        "0 PMAP",
        "1 grids",
        "1 Ps",
        "2 Qs",
        "16.0 threshold",
        "1 PFACTs",
        "2 PFACT",
        "1 NBMINs",
        "4 NBMIN",
        "1 NDIVs",
        "2 NDIV",
        "1 RFACTs",
        "1 RFACT",
        "1 BCASTs",
        "1 BCAST",
        "1 DEPTHs",
        "1 DEPTH",
        "2 SWAP",
        "64 swapping",
        "0 L1",
        "0 U",
        "1 equilibration",
        "8 alignment",
        "##### PTRANS",
        "0 more sizes",
        "1200 N",
        "0 more blocks",
        "40 NB",
    ];
    values.join("\n") + "\n"
}
