//! The storage mountain of the demo's lower level: measured by the product's own benchmark on a
//! small store, with the model's prediction beside it.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::stage::Stage;
use crate::bench::row::median;
use crate::{cleanup, environment, process};

/// Directory of results and pictures below that of the report.
pub const DIRECTORY: &str = "mountain";
/// Small, so that it is climbed in less than a minute.
const CAPACITY: &str = "64MiB";
const SECONDS_A_POINT: &str = "2";
/// How long it may take to clean up after itself.
const PATIENCE: Duration = Duration::from_secs(10);

/// What it came to.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mountain {
    /// Points measured.
    pub points: usize,
    /// Median error of their predictions, without sign.
    pub error_median: f64,
    /// Aggregate throughput by share in memory.
    pub shares: Vec<ShareRow>,
}

/// Aggregate read throughput with a share of the data in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ShareRow {
    /// Share in memory.
    pub f: f64,
    /// Measured.
    pub bytes_per_second: f64,
    /// By equation (7).
    pub predicted: f64,
    /// Prediction over measurement, less 1.
    pub error: f64,
}

impl Mountain {
    /// Median error of equation (7), without sign.
    pub fn share_error_median(&self) -> f64 {
        let errors: Vec<f64> = self.shares.iter().map(|share| share.error.abs()).collect();
        median(&errors).unwrap_or_default()
    }
}

/// Measures it; results and pictures go below `report`.
pub fn run(stage: &Stage, report: &Path) -> Result<Mountain> {
    let output = report.join(DIRECTORY);
    let mut command = Command::new(environment::binary()?);
    command.args(["bench", "mountain", "--quick", "--fresh", "--json", "--repeats", "1"]);
    command.args(["--memory", CAPACITY, "--seconds-max", SECONDS_A_POINT]);
    command.arg("--pfs").arg(&stage.data.directory).arg("--output").arg(&output);
    if stage.shaping.is_some() {
        // A known rate for the check of equation (7), however else it is held.
        command.arg("--pfs-rate").arg(format!("{}B/s", stage.rate));
    }
    println!("\nStorage mountain, about a minute.");
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .with_context(|| format!("starting `{}`", process::describe(&command)))?;
    let process_id = child.id();
    // It is asked to end, not killed: it has a node and files to clean up.
    let end = cleanup::guard(move || {
        process::signal(process_id, libc::SIGTERM);
        let asked = Instant::now();
        while Path::new(&format!("/proc/{process_id}")).exists() && asked.elapsed() < PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
    });
    let finished = child.wait_with_output();
    cleanup::forget(end);
    let finished = finished?;
    if !finished.status.success() {
        bail!("`{}` ended with {}", process::describe(&command), finished.status);
    }
    let found: Value = serde_json::from_slice(&finished.stdout).context("bench mountain")?;
    summary(&found)
}

fn summary(found: &Value) -> Result<Mountain> {
    let points = found["points"].as_array().context("no points")?;
    let errors: Vec<f64> =
        points.iter().filter_map(|point| point["error"].as_f64()).map(f64::abs).collect();
    let shares = serde_json::from_value(found["shares"].clone()).context("no shares")?;
    Ok(Mountain { points: points.len(), error_median: median(&errors).unwrap_or_default(), shares })
}

#[cfg(test)]
mod tests {
    use super::summary;

    #[test]
    fn errors_count_without_their_signs() {
        let found = serde_json::json!({
            "points": [{"error": -0.3}, {"error": 0.1}, {"error": 0.2}],
            "shares": [{"f": 0.5, "counted": 0.5, "bytes_per_second": 2.0, "predicted": 1.0,
                        "error": -0.5}],
        });
        let mountain = summary(&found).unwrap();
        assert_eq!((mountain.points, mountain.error_median), (3, 0.2));
        assert_eq!(mountain.share_error_median(), 0.5);
        assert!(summary(&serde_json::json!({})).is_err());
    }
}
