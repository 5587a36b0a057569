//! TestDFSIO with a file on each node: what it says of a task's rate, written, read for the first
//! time after that, and read again.

use anyhow::{Context, Result};

use super::place::Place;
use super::rig::{ALIKE, NODES, POOR_LOCAL, Rig, Shaping};
use crate::bench::row::{Goal, Row};

const NAME: &str = "TestDFSIO";
/// Its directory.
const DIRECTORY: &str = "dfsio";

/// A way against another one, and the ratios of writing and of reading that are expected.
struct Pair {
    ours: usize,
    reference: usize,
    write: Goal,
    read: Goal,
}

/// MB/s of a task by place: written, read, read again.
type Figures = Vec<[Vec<f64>; 3]>;

/// Rows on disks that are alike, and on poor local ones.
pub fn run(rig: &mut Rig) -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    let alw = [Place::Mode("alw"), Place::Pfs, Place::Hdfs];
    let ratio = Goal::RatioAtLeast;
    let pair = |reference, write, read| Pair { ours: 0, reference, write, read };
    let pairs = [pair(2, ratio(3.0), ratio(8.0)), pair(1, ratio(1.5), ratio(8.0))];
    rows.extend(measure(rig, "disks alike", ALIKE, &alw, &pairs)?);
    let bld = [Place::Mode("bld"), Place::Pfs, Place::Hdfs];
    let pairs = [pair(2, ratio(30.0), ratio(15.0)), pair(1, Goal::Shown, Goal::Shown)];
    rows.extend(measure(rig, "poor local disks", POOR_LOCAL, &bld, &pairs)?);
    Ok(rows)
}

fn measure(
    rig: &mut Rig,
    on: &str,
    shaping: Shaping,
    places: &[Place],
    pairs: &[Pair],
) -> Result<Vec<Row>> {
    let title = format!("{NAME}, {on}");
    if !rig.wants(&title) {
        return Ok(Vec::new());
    }
    rig.start_services()?;
    let mut figures: Figures = places.iter().map(|_| Default::default()).collect();
    let mut owed = Vec::new();
    for round in 0..rig.scale.rounds {
        for turn in 0..places.len() {
            let at = (round + turn) % places.len();
            let (rates, seconds) = visit(rig, places[at], shaping)?;
            for (figures, rate) in figures[at].iter_mut().zip(rates) {
                figures.push(rate);
            }
            if places[at] == Place::Mode("alw") {
                owed.push(format!("{seconds:.0}"));
            }
        }
    }
    let megabytes = rig.scale.node_bytes >> 20;
    let mut note = format!(
        "{} files of {megabytes} MiB; disks of {} MB/s, below HDFS {}; two replicas",
        NODES.len(),
        shaping.pfs / 1_000_000,
        shaping.hdfs / 1_000_000
    );
    if !owed.is_empty() {
        note += &format!("; after the job it was owed to the PFS for {} s", owed.join(", "));
    }
    let mut rows = Vec::new();
    for Pair { ours, reference, write, read } in pairs {
        let goals = [("write", *write), ("first read", *read), ("second read", Goal::Shown)];
        for (step, (what, goal)) in goals.into_iter().enumerate() {
            let (one, other) = (places[*ours].name(), places[*reference].name());
            let name = format!("{title}: {what}, {one}; {other}");
            let both = (figures[*ours][step].clone(), figures[*reference][step].clone());
            rows.push(Row::rates(&name, "MB/s", both, goal).note(note.clone()));
        }
    }
    Ok(rows)
}

/// Writes, reads and reads again in one place; and how long bytes were owed after the first.
fn visit(rig: &mut Rig, place: Place, shaping: Shaping) -> Result<([f64; 3], f64)> {
    rig.shape_for(place, shaping)?;
    let write = step(rig, place, "-write")?;
    let owed_for = rig.settle()?;
    // What the data nodes keep in memory is not what is measured; what compute nodes keep is.
    rig.cluster.drop_caches()?;
    let read = step(rig, place, "-read")?;
    let again = step(rig, place, "-read")?;
    rig.remove(place, DIRECTORY)?;
    Ok(([write, read, again], owed_for))
}

fn step(rig: &mut Rig, place: Place, what: &str) -> Result<f64> {
    let (root, data) = (place.root(&rig.cluster)?, place.uri(&rig.cluster, DIRECTORY)?);
    let size = format!("{}MB", rig.scale.node_bytes >> 20);
    let files = NODES.len().to_string();
    let results = crate::environment::target().join("bench-logs/dfsio.txt");
    let mut words = vec!["testdfsio".to_owned()];
    for property in [
        format!("test.build.data={data}"),
        format!("fs.defaultFS={root}"),
        "dfs.replication=2".to_owned(),
    ] {
        words.extend(["-D".to_owned(), property]);
    }
    let tail = [what, "-nrFiles", &files, "-size", &size, "-resFile"];
    words.extend(tail.map(str::to_owned));
    words.push(results.display().to_string());
    let (ran, _) = rig.job(&words)?;
    let line = ran.text.lines().rev().find_map(|line| line.split("Throughput mb/sec:").nth(1));
    let said = line.context("TestDFSIO tells no rate")?.trim();
    // Its megabytes are 2^20 bytes.
    Ok(said.parse::<f64>().with_context(|| said.to_owned())? * 1.048_576)
}
