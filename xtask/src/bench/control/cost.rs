//! What the control costs: processor and memory of the controller, and the slowdown of jobs that
//! live on memory bandwidth beside a full store, against no store.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::super::row::{Goal, Row};
use super::super::time;
use super::rig::{Contender, Rig};
use crate::process;
use crate::scratch::Scratch;

const SLOWDOWN: &str = "control: speed beside a full store, against none";
/// The problem of HPCC: small, on two ranks.
const ORDER: u32 = 1_500;

/// All rows of what it costs.
pub fn run(rig: &mut Rig, rounds: usize, quick: bool) -> Result<Vec<Row>> {
    rig.prepare(Contender::Tidepool, 256 << 20)?;
    let mut rows = idle(rig, rounds, Duration::from_secs(if quick { 1 } else { 10 }))?;
    let bytes = if quick { 16 << 20 } else { 128 << 20 };
    let mut triad = Triad::new(bytes);
    let passes = if quick { 2 } else { 40 };
    let name = format!("{SLOWDOWN}: triad");
    rows.push(paired(rig, rounds, &name, "GB/s", || triad.run(passes))?);
    if quick {
        return Ok(rows);
    }
    let name = format!("{SLOWDOWN}: HPCC");
    if process::capture(Command::new("mpirun").arg("--version")).is_err()
        || process::capture(Command::new("which").arg("hpcc"))?.stdout.is_empty()
    {
        rows.push(Row::alone(&name, "", vec![], Goal::Shown).note("skipped: no package hpcc"));
        return Ok(rows);
    }
    rows.push(paired(rig, rounds, &name, "runs/s", || Ok(1.0 / time(hpcc)?))?);
    Ok(rows)
}

/// The controller beside a full store and no demand.
fn idle(rig: &Rig, rounds: usize, length: Duration) -> Result<Vec<Row>> {
    let process_id = rig.control()?["process_id"].as_u64().context("nobody governs")?;
    let directory = Path::new("/proc").join(process_id.to_string());
    let (mut shares, mut memory) = (Vec::new(), Vec::new());
    for _ in 0..rounds {
        let before = run_time_ns(&directory)?;
        let seconds = time(|| {
            std::thread::sleep(length);
            Ok(())
        })?;
        shares.push((run_time_ns(&directory)? - before) as f64 / 1e7 / seconds);
        let status = std::fs::read_to_string(directory.join("status"))?;
        let line = status.lines().find(|line| line.starts_with("VmRSS:")).context("no VmRSS")?;
        let kib: f64 = line.split_whitespace().nth(1).context("no VmRSS")?.parse()?;
        memory.push(kib / 1024.0);
    }
    let decisions = &rig.control()?["report"]["decisions"];
    Ok(vec![
        Row::alone("control: processor of the idle controller", "% of a core", shares, {
            Goal::AtMost(0.2)
        })
        .note(format!("interval 10 ms; {decisions} decisions so far")),
        Row::alone("control: memory of the controller", "MiB", memory, Goal::AtMost(20.0)),
    ])
}

/// Time that all threads of a process ran.
fn run_time_ns(directory: &Path) -> Result<u64> {
    let mut total = 0;
    for task in std::fs::read_dir(directory.join("task"))? {
        let text = std::fs::read_to_string(task?.path().join("schedstat"))?;
        let word = text.split_whitespace().next().context("schedstat is empty")?;
        total += word.parse::<u64>()?;
    }
    Ok(total)
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
            rig.prepare(contender, 256 << 20)?;
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
    Ok(row.note(format!("pairs: {}", pairs.join("; "))))
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
