//! `tidepool bench`: reads the same bytes by several ways in one interleaved run and prints them
//! side by side with their spread. Loads one probe file into the node and removes it afterwards.

mod ways;

use std::path::{Path, PathBuf};

use serde::Serialize;
use tidepool_proto::{Error, ErrorKind, Result};

use crate::arguments::{Access, BenchArguments};
use crate::connection::Connection;
use crate::exit::Outcome;
use crate::output;
use crate::target::{Roots, Target};
use ways::{Files, Way};

/// Smallest file that makes sense to time.
const SIZE_BYTES_MIN: u64 = 1 << 20;

/// One way of reading, over all rounds.
#[derive(Clone, Debug, Serialize)]
struct Row {
    access: &'static str,
    way: &'static str,
    median_bytes_per_s: f64,
    min_bytes_per_s: f64,
    max_bytes_per_s: f64,
    reads_per_s: f64,
    ratio_to_tmpfs: Option<f64>,
    ratio_to_bare_pfs: Option<f64>,
}

#[derive(Serialize)]
struct Report {
    size_bytes: u64,
    rounds: u32,
    rows: Vec<Row>,
    skipped: Vec<String>,
}

/// Runs `bench`.
pub fn bench(arguments: &BenchArguments) -> Result<Outcome> {
    let size_bytes = arguments.size.0;
    if size_bytes < SIZE_BYTES_MIN {
        return Err(Error::new(ErrorKind::InvalidInput, "reading --size", "it is less than 1MiB"));
    }
    let node = arguments.facts.socket.connect();
    let roots = Roots::of(&node.status()?);
    let files = Files::create(&roots, size_bytes)?;
    load(&node, &files.pfs)?;
    let mut rows = Vec::new();
    for access in [Access::Sequential, Access::Random] {
        if arguments.access.is_none_or(|only| only == access) {
            let sequential = access == Access::Sequential;
            rows.extend(measure(&node, &files, sequential, arguments.rounds)?);
        }
    }
    let report =
        Report { size_bytes, rounds: arguments.rounds, rows, skipped: files.skipped.clone() };
    if arguments.facts.json {
        output::json(&report)?;
    } else {
        print(&report);
    }
    Ok(Outcome::Done)
}

fn load(node: &Connection, path: &Path) -> Result<()> {
    let target = Target::open(path)?;
    // Stamps of a file just written may still be in motion, and then nothing is kept.
    for _ in 0..40 {
        node.load(target.descriptor(), false)?;
        let facts = node.explain(target.descriptor())?;
        if facts.current && facts.resident_bytes == facts.size_bytes {
            return Ok(());
        }
        std::thread::sleep(std::time::Duration::from_millis(100));
    }
    let detail = format!("{} does not stay resident", path.display());
    Err(Error::new(ErrorKind::StoreFull, "loading the file to measure", detail)
        .remedy("choose a smaller --size, or enlarge the store"))
}

/// Every way once a round, in an order that changes from round to round.
fn measure(node: &Connection, files: &Files, sequential: bool, rounds: u32) -> Result<Vec<Row>> {
    let ways = files.ways();
    let mut rates = vec![Vec::with_capacity(rounds as usize); ways.len()];
    for round in 0..rounds as usize {
        for turn in 0..ways.len() {
            let index = (round + turn) % ways.len();
            let rate = ways::rate(ways[index], files, node, sequential, round as u64)?;
            rates[index].push(rate);
        }
    }
    let medians: Vec<f64> = rates.iter_mut().map(|rates| median(rates)).collect();
    let of = |way: Way| ways.iter().position(|other| *other == way).map(|index| medians[index]);
    let (tmpfs, bare) = (of(Way::Tmpfs), of(Way::BarePfs));
    let read_bytes = ways::read_bytes(sequential) as f64;
    let row = |(index, way): (usize, &Way)| Row {
        access: if sequential { "sequential 1MiB" } else { "random 4KiB" },
        way: way.name(),
        median_bytes_per_s: medians[index],
        min_bytes_per_s: rates[index].first().copied().unwrap_or(0.0),
        max_bytes_per_s: rates[index].last().copied().unwrap_or(0.0),
        reads_per_s: medians[index] / read_bytes,
        ratio_to_tmpfs: tmpfs.map(|tmpfs| medians[index] / tmpfs),
        ratio_to_bare_pfs: bare.map(|bare| medians[index] / bare),
    };
    Ok(ways.iter().enumerate().map(row).collect())
}

/// Sorts, and takes the middle.
fn median(rates: &mut [f64]) -> f64 {
    rates.sort_by(f64::total_cmp);
    let middle = rates.len() / 2;
    if rates.len() % 2 == 1 { rates[middle] } else { (rates[middle - 1] + rates[middle]) / 2.0 }
}

fn print(report: &Report) {
    output::line(&format!(
        "{} read in each of {} rounds; medians, and the spread from slowest to fastest",
        output::size(report.size_bytes),
        report.rounds
    ));
    let megabytes = |rate: f64| format!("{:.0}", rate / 1e6);
    let ratio = |ratio: Option<f64>| ratio.map_or("-".to_owned(), |ratio| format!("{ratio:.2}"));
    let row = |row: &Row| {
        vec![
            row.access.to_owned(),
            row.way.to_owned(),
            megabytes(row.median_bytes_per_s),
            format!("{}-{}", megabytes(row.min_bytes_per_s), megabytes(row.max_bytes_per_s)),
            format!("{:.0}", row.reads_per_s),
            ratio(row.ratio_to_tmpfs),
            ratio(row.ratio_to_bare_pfs),
        ]
    };
    let header = ["access", "way", "MB/s", "spread", "reads/s", "of tmpfs", "of bare PFS"];
    let rows: Vec<Vec<String>> = report.rows.iter().map(row).collect();
    output::table(&header, &[false, false, true, true, true, true, true], &rows);
    for skipped in &report.skipped {
        output::note(&format!("not measured: {skipped}"));
    }
}

/// A file that goes when this drops.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        // It may be gone already; a leftover is told by its name.
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians_are_in_the_middle() {
        assert_eq!(median(&mut [3.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&mut [4.0, 1.0, 2.0, 3.0]), 2.5);
    }
}
