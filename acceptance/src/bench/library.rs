//! Benchmark of small positioned reads by the client library, against the system call on a raw
//! tmpfs. It runs as a program of its own, because the tasks must not wait for the product to be
//! built.

use anyhow::{Context, Result};
use serde_json::Value;

use super::row::{Goal, Row, median};
use super::{Bench, warm};
use crate::random_file::write_file;
use crate::{environment, process};

const NAME: &str = "library, resident 4 KiB positioned reads";

/// The rate row and the latency rows.
pub fn run(bench: &Bench) -> Result<Vec<Row>> {
    if !bench.wants(NAME) {
        return Ok(Vec::new());
    }
    let build =
        ["build", "--quiet", "--release", "--package", "acceptance", "--features", "library"];
    process::show(environment::cargo(&build).args(["--bin", "bench-library"]))?;
    let bytes = bench.scale.warm_bytes / 2;
    let lower = bench.lower.join("library");
    write_file(&lower, bytes)?;
    let raw = bench.memory.join("library");
    std::fs::copy(&lower, &raw)?;
    let node = bench.node(bytes * 5 / 2, &[])?;
    warm::load(&node, &lower)?;

    let mut command =
        std::process::Command::new(environment::target().join("release/bench-library"));
    command.arg("--socket").arg(&node.socket).arg("--file").arg(&lower).arg("--raw").arg(&raw);
    command.args(["--reads", &bench.scale.random_reads.to_string()]);
    command.args(["--rounds", &bench.scale.rounds.to_string()]);
    let text = process::read(&mut command)?;
    let result: Value = serde_json::from_str(&text).context("bench-library")?;
    drop(node);
    std::fs::remove_file(&lower)?;
    std::fs::remove_file(&raw)?;

    let list = |name: &str| -> Result<Vec<f64>> {
        serde_json::from_value(result[name].clone()).with_context(|| format!("no {name}"))
    };
    let rates = (list("reads_per_s")?, list("raw_reads_per_s")?);
    let levels = result["levels"].to_string();
    let mut rows = vec![Row::rates(NAME, "reads/s", rates, Goal::RatioAtLeast(0.8)).note(levels)];
    for (quantile, goal_us) in [("p50_us", 3.0), ("p99_us", 20.0)] {
        let ours = list(quantile)?;
        let raw = median(&list(&format!("raw_{quantile}"))?).unwrap_or(0.0);
        let name = format!("{NAME}, {}", quantile.trim_end_matches("_us"));
        let row = Row::alone(&name, "µs", ours, Goal::AtMost(goal_us));
        rows.push(row.note(format!("raw pread of tmpfs: {raw:.2} µs")));
    }
    if let Some(histogram) = result["histogram"].as_str() {
        let last = rows.pop().context("rows were made above")?;
        rows.push(last.note(histogram.replace('\n', "\n    ")));
    }
    Ok(rows)
}
