//! Benchmark of memory control on a real node: how fast memory is back when jobs want it, how much
//! too much is evicted, and what the controller costs. The policy `tidepool`, that of the DynIMS
//! paper, a fixed store and no store meet the same demand in turns. Sizes are shares of the memory
//! that is available, and leave a floor to other programs. It prints, and judges no test.

mod contest;
pub mod cost;
mod pool;
pub mod recording;
pub mod rig;
mod scenarios;
mod sizes;
mod traces;

use anyhow::Result;

use self::contest::{Contest, Part};
use self::pool::Pool;
use self::rig::Rig;
use self::sizes::{GIB, Sizes};
use super::Bench;
use super::row::{Goal, Row};
use crate::environment;

/// The same while the largest demand is made, which the store has to give.
const LEAVE_LEAST_BYTES: u64 = 2 << 30;
/// The largest demand, where the memory is enough for it.
const LARGE_BYTES: u64 = 10 << 30;
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
    if !cost::is_wanted(bench) {
        return Ok(Vec::new());
    }
    let sizes = Sizes::of(&bench.scale)?;
    let mut rows = vec![machine(&sizes)?];
    let mut rig = Rig::start(bench, sizes.store, "auto")?;
    rows.extend(cost::run(bench, &mut rig, sizes.quick)?);
    Ok(rows)
}

fn laws(bench: &Bench, name: &str, pages: &str) -> Result<Vec<Row>> {
    let sizes = Sizes::of(&bench.scale)?;
    if sizes.quick && pages == "off" {
        return Ok(Vec::new());
    }
    let parts = Part::ALL.into_iter().filter(|part| bench.wants(&part.name(name))).collect();
    let mut rows = contest(bench, name, pages, &sizes, parts)?;
    let large = Part::Large.name(name);
    if !sizes.quick && bench.names(&large) {
        // The kernel may not find as many large pages; what was measured before stays.
        rows.extend(largest(bench, &large, pages).unwrap_or_else(|error| {
            let why = format!("not measured: {error:#}");
            vec![Row::alone(&large, "", vec![], Goal::Shown).note(why)]
        }));
    }
    Ok(rows)
}

/// The largest demand that this machine can have, for the laws that give memory back.
fn largest(bench: &Bench, name: &str, pages: &str) -> Result<Vec<Row>> {
    let sizes = Sizes::of(&bench.scale)?;
    let (burst, store) = (LARGE_BYTES, LARGE_BYTES + (256 << 20));
    let available = environment::memory_available_bytes()?;
    if available < burst + store + LEAVE_LEAST_BYTES {
        let needed = (burst + store + LEAVE_LEAST_BYTES) as f64 / GIB;
        let why = format!(
            "skipped: a store and a demand of 10 GiB need {needed:.1} GiB, {:.1} are available",
            available as f64 / GIB
        );
        return Ok(vec![Row::alone(name, "", vec![], Goal::Shown).note(why)]);
    }
    let sizes = Sizes { burst, store, leave: LEAVE_LEAST_BYTES, ..sizes };
    contest(bench, name, pages, &sizes, vec![Part::Large])
}

/// These parts in as many rounds as asked for.
fn contest(
    bench: &Bench,
    name: &str,
    pages: &str,
    sizes: &Sizes,
    parts: Vec<Part>,
) -> Result<Vec<Row>> {
    if parts.is_empty() {
        return Ok(Vec::new());
    }
    let skipped = |why: &str| vec![Row::alone(name, "", vec![], Goal::Shown).note(why)];
    if !environment::is_root() {
        return Ok(skipped("skipped: demand at a known rate needs root, for the huge page pool"));
    }
    let Some(mut pool) = Pool::open(sizes.leave) else {
        return Ok(skipped("skipped: this kernel has no pool of 2 MiB pages that can be changed"));
    };
    let mut rig = Rig::start(bench, sizes.store, pages)?;
    if pages == "auto" && !rig.huge && !sizes.quick {
        return Ok(skipped("skipped: this machine gives no 2 MiB pages for shared memory"));
    }
    let kind = if rig.huge { "2 MiB pages" } else { "4 KiB pages" };
    let mut rows = vec![machine(sizes)?];
    let mut contest = Contest::new(parts);
    let mut stolen = Vec::new();
    for round in 0..bench.scale.rounds {
        let before = processor_time()?;
        contest.round(&mut rig, &mut pool, sizes, round)?;
        let after = processor_time()?;
        let all = (after.0 - before.0).max(1) as f64;
        stolen.push((after.1 - before.1) as f64 / all * 100.0);
    }
    let note = "while it has them, nothing here runs: single late answers are its doing";
    let name = "control: processor time that the host kept";
    rows.push(Row::alone(name, "%", stolen, Goal::Shown).note(note));
    rows.extend(contest.rows(kind, rig.huge, sizes));
    Ok(rows)
}

/// Ticks of all processors since boot, and those of them that the host of a virtual machine gave to
/// others.
fn processor_time() -> Result<(u64, u64)> {
    let text = std::fs::read_to_string("/proc/stat")?;
    let words = text.lines().next().unwrap_or("").split_ascii_whitespace().skip(1).take(8);
    let ticks: Vec<u64> = words.filter_map(|word| word.parse().ok()).collect();
    Ok((ticks.iter().sum(), ticks.get(7).copied().unwrap_or(0)))
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
        gib(sizes.leave),
    )))
}
