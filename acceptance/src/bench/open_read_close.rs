//! Opening a resident file, reading 4 KiB of it and closing it: the time, and how often the kernel
//! asks. Beside it libfuse's pass-through example and the bare directory.

use std::path::Path;

use anyhow::{Context, Result};

use super::pass_through::PassThrough;
use super::row::{Goal, Row, median};
use super::visitor::{self, BIG, SMALL};
use super::{Bench, in_turns, warm};
use crate::process;
use crate::random_file::write_file;

const NAME: &str = "open-read-close";
const BIG_BYTES: u64 = 4 << 20;
/// The request that counts, as `perf` names it.
const EVENT: &str = "fuse:fuse_request_send";

/// A packed file and one with a segment.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    if !bench.wants(NAME) {
        return Ok(Vec::new());
    }
    let lower = bench.lower.join("opens");
    std::fs::create_dir(&lower)?;
    write_file(&lower.join(SMALL), 4_096)?;
    write_file(&lower.join(BIG), BIG_BYTES)?;
    let node = bench.node(256 << 20, &[])?;
    let example = PassThrough::mount(&lower)?;
    let mount = node.mount.join("opens");
    let mut rows = Vec::new();
    for (file, what) in [(SMALL, "a file of 4 KiB"), (BIG, "a file of 4 MiB")] {
        warm::load(&node, &mount.join(file))?;
        let places = [mount.join(file), example.mount.join(file), lower.join(file)];
        let times = (bench.scale.random_reads / 20).max(100);
        let one = |place: &Path| -> Result<f64> {
            let figures = (0..times).map(|_| visitor::open_read_close_us(place));
            median(&figures.collect::<Result<Vec<f64>>>()?).context("at least one")
        };
        let mut figures = in_turns(bench.scale.rounds, &places, |place| one(place))?;
        let bare = figures.pop().and_then(|bare| median(&bare)).unwrap_or(f64::NAN);
        let reference = figures.pop().unwrap_or_default();
        let ours = figures.pop().unwrap_or_default();
        let row = Row {
            larger_is_better: false,
            ..Row::rates(
                &format!("{NAME}: {what}"),
                "µs",
                (ours, reference),
                Goal::RatioAtLeast(1.0),
            )
        };
        rows.push(
            row.note(format!("reference: libfuse's pass-through; bare directory {bare:.1} µs"))
                .note(requests(&places[0], &places[1])),
        );
    }
    drop((node, example));
    std::fs::remove_dir_all(&lower)?;
    Ok(rows)
}

/// How many requests the kernel sends, through the mount and through the example.
fn requests(ours: &Path, example: &Path) -> String {
    let count = |path: &Path| -> Result<f64> {
        const TIMES: u32 = 500;
        let mut perf = process::command("perf", &["stat", "--field-separator", ",", "--event"]);
        perf.args([EVENT, "--"]).arg(std::env::current_exe()?);
        perf.args(["visit", "open", "--times", &TIMES.to_string(), "--file"]).arg(path);
        let output = process::capture(&mut perf)?;
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        let line = text.lines().find(|line| line.contains(EVENT)).context("no such event")?;
        let number: f64 = line.split(',').next().unwrap_or_default().parse()?;
        Ok(number / f64::from(TIMES))
    };
    match (count(ours), count(example)) {
        (Ok(ours), Ok(example)) => {
            format!("requests of the kernel: {ours:.2}, through libfuse's {example:.2}")
        }
        (Err(error), _) | (_, Err(error)) => format!("requests were not counted: {error:#}"),
    }
}
