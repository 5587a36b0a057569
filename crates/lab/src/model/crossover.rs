//! `tidepool model crossover`: from how many compute nodes on HDFS has the higher aggregate.

use serde::Serialize;
use tidepool_model::{Cluster, Crossover, Share, read_crossover, write_crossover};
use tidepool_proto::{Error, ErrorKind, Result};

use super::arguments::CrossoverArguments;
use super::{count, shares};
use crate::rates::Origin;
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::output;

/// One comparison. The names are stable.
#[derive(Debug, Serialize)]
struct Row {
    storage: &'static str,
    f: f64,
    #[serde(flatten)]
    crossover: Crossover,
}

#[derive(Debug, Serialize)]
struct Report {
    reads: Vec<Row>,
    writes: Crossover,
    inputs: Cluster,
    #[serde(skip_serializing_if = "Option::is_none")]
    calibration: Option<Origin>,
}

/// Runs `model crossover`.
pub fn crossover(arguments: &CrossoverArguments) -> Result<Outcome> {
    let inputs = arguments.inputs.inputs()?;
    let mut hits = shares(&arguments.hits, &[0.2, 0.5])?;
    if hits.first() != Some(&Share::NONE) {
        hits.insert(0, Share::NONE);
    }
    let row = |hits: Share| -> Result<Row> {
        let storage = if hits == Share::NONE { "pfs" } else { "two-level" };
        let crossover = checked(read_crossover(&inputs.cluster, hits)?)?;
        Ok(Row { storage, f: hits.get(), crossover })
    };
    let report = Report {
        reads: hits.into_iter().map(row).collect::<Result<_>>()?,
        writes: checked(write_crossover(&inputs.cluster)?)?,
        inputs: inputs.cluster.clone(),
        calibration: inputs.origin.clone(),
    };
    if arguments.json {
        output::json(&report)?;
    } else {
        print(&report);
    }
    Ok(Outcome::Done)
}

/// Two ways to the same number that differ are a bug, and no number is better than a wrong one.
fn checked(crossover: Crossover) -> Result<Crossover> {
    if !crossover.has_closed_form || crossover.nodes == crossover.closed_form {
        return Ok(crossover);
    }
    let (search, closed) = (count(crossover.nodes), count(crossover.closed_form));
    let detail = format!("the search finds {search} nodes, the closed form {closed}");
    Err(Error::new(ErrorKind::Internal, "computing a crossover", detail))
}

fn print(report: &Report) {
    let line = |what: String, crossover: &Crossover| {
        let rate = crossover.aggregate.map(|limit| limit.rate.to_string()).unwrap_or_default();
        let gain = crossover.gain_over_pfs.map(|gain| format!("{:+.1}%", gain * 100.0));
        vec![what, count(crossover.nodes), rate, gain.unwrap_or_default()]
    };
    let mut rows: Vec<Vec<String>> = report
        .reads
        .iter()
        .map(|row| match row.storage {
            "pfs" => line("reads, bare PFS".to_owned(), &row.crossover),
            _ => line(format!("reads, two-level with f = {}", row.f), &row.crossover),
        })
        .collect();
    rows.push(line("writes, PFS and two-level".to_owned(), &report.writes));
    let header = ["HDFS has the higher aggregate than", "from nodes", "which is", "over bare PFS"];
    output::table(&header, &[false, true, true, true], &rows);
}
