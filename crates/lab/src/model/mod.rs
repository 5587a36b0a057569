//! `tidepool model`: the papers' equations with the user's own numbers, as tables, JSON and
//! pictures. Computes in the crate of the models; prints and draws here.

mod aggregate;
pub mod arguments;
mod crossover;
mod doubts;
pub mod inputs;
mod mapreduce;
mod throughput;

use tidepool_model::{NodeCount, Share};
use tidepool_proto::Result;
use tidepool_report::text::number;

use arguments::ModelCommand;
use tidepool_terminal::exit::Outcome;

/// Runs `model`.
pub fn model(command: &ModelCommand) -> Result<Outcome> {
    match command {
        ModelCommand::Throughput(arguments) => throughput::throughput(arguments),
        ModelCommand::Aggregate(arguments) => aggregate::aggregate(arguments),
        ModelCommand::Crossover(arguments) => crossover::crossover(arguments),
        ModelCommand::Mapreduce(arguments) => mapreduce::mapreduce(arguments),
    }
}

/// The given shares, or the usual ones, without repeats and in rising order.
fn shares(given: &[Share], usual: &[f64]) -> Result<Vec<Share>> {
    let mut shares = match given {
        [] => usual.iter().map(|share| Share::new(*share)).collect::<Result<Vec<_>>>()?,
        given => given.to_vec(),
    };
    shares.sort_by(|one, other| one.get().total_cmp(&other.get()));
    shares.dedup();
    Ok(shares)
}

/// What people call a storage of the models, with f spelled out.
fn display_name(storage: &str, hits: Option<f64>) -> String {
    let name = match storage {
        "hdfs-local" => "HDFS, local blocks",
        "hdfs-remote" => "HDFS, remote blocks",
        "pfs" => "bare PFS",
        "memory-local" => "memory alone, local",
        "memory-remote" => "memory alone, remote",
        "two-level" => "Tidepool",
        other => other,
    };
    match hits {
        Some(hits) => format!("{name}, {} % in memory", number(hits * 100.0)),
        None => name.to_owned(),
    }
}

/// A number of nodes for a table.
fn count(nodes: Option<NodeCount>) -> String {
    nodes.map_or_else(|| "never".to_owned(), |nodes| nodes.to_string())
}

/// Seconds as people read them.
pub fn time(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 100.0 => format!("{seconds:.1} s"),
        // Seconds up to ten hours, so that times beside each other can be compared.
        seconds if seconds < 36_000.0 => format!("{seconds:.0} s"),
        seconds => format!("{:.1} h", seconds / 3600.0),
    }
}
