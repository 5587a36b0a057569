//! Arguments of `tidepool model`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};
use tidepool_model::{Bytes, BytesPerSecond, NodeCount, Share};

use super::inputs::InputArguments;

/// What `model` computes.
#[derive(Debug, Subcommand)]
pub enum ModelCommand {
    /// Read and write throughput of one node and of all, for each storage, and what limits it
    Throughput(Box<ThroughputArguments>),
    /// Throughput of all nodes over their number, as a table and a picture
    Aggregate(Box<AggregateArguments>),
    /// From how many nodes on HDFS is faster than the PFS and than two-level storage
    Crossover(Box<CrossoverArguments>),
    /// Time of the phases of a MapReduce job on each storage
    Mapreduce(Box<MapreduceArguments>),
}

/// Arguments of `model throughput`.
#[derive(Args, Debug)]
pub struct ThroughputArguments {
    /// Rates.
    #[command(flatten)]
    pub inputs: InputArguments,
    /// Share of the read bytes that memory has; may be given several times [default: 0.2, 0.5]
    #[arg(long = "f", value_name = "SHARE")]
    pub hits: Vec<Share>,
    /// Where f comes from if it is not given.
    #[command(flatten)]
    pub derived: DerivedHits,
    /// Compute nodes
    #[arg(long, value_name = "COUNT", default_value = "16")]
    pub nodes: NodeCount,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// f from capacity, set, policy and access.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Share in memory, computed")]
pub struct DerivedHits {
    /// Capacity of the store of a node; computes f together with --set
    #[arg(long, value_name = "SIZE", requires = "set", conflicts_with = "hits")]
    pub capacity: Option<Bytes>,
    /// Size of the data set, all nodes together
    #[arg(long, value_name = "SIZE", requires = "capacity")]
    pub set: Option<Bytes>,
    /// Eviction policy
    #[arg(long, value_name = "NAME", default_value = "cyclic", value_parser = policy)]
    pub policy: tidepool_model::Policy,
    /// Reads follow Zipf's law with this exponent; without it, the set is read in a loop
    #[arg(long, value_name = "EXPONENT")]
    pub zipf: Option<f64>,
    /// Block size of the store
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    pub block: Bytes,
}

/// Reads the name of a policy.
pub fn policy(text: &str) -> Result<tidepool_model::Policy, String> {
    let all = tidepool_model::Policy::ALL;
    let found = all.into_iter().find(|policy| policy.name() == text);
    let names = all.map(tidepool_model::Policy::name).join(", ");
    found.ok_or_else(|| format!("is none of {names}"))
}

/// Arguments of `model aggregate`.
#[derive(Args, Debug)]
pub struct AggregateArguments {
    /// Rates.
    #[command(flatten)]
    pub inputs: InputArguments,
    /// Share of the read bytes that memory has; may be given several times [default: 0.2, 0.5]
    #[arg(long = "f", value_name = "SHARE")]
    pub hits: Vec<Share>,
    /// A further PFS of this rate in the same table and picture; may be given several times
    #[arg(long, value_name = "RATE")]
    pub also_pfs: Vec<BytesPerSecond>,
    /// Largest number of compute nodes [default: a little beyond the last crossover]
    #[arg(long, value_name = "COUNT")]
    pub nodes_max: Option<NodeCount>,
    /// Write the pictures into this directory, as SVG and PNG
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub pictures: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `model crossover`.
#[derive(Args, Debug)]
pub struct CrossoverArguments {
    /// Rates.
    #[command(flatten)]
    pub inputs: InputArguments,
    /// Share of the read bytes that memory has; may be given several times [default: 0.2, 0.5]
    #[arg(long = "f", value_name = "SHARE")]
    pub hits: Vec<Share>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `model mapreduce`.
#[derive(Args, Debug)]
pub struct MapreduceArguments {
    /// Rates.
    #[command(flatten)]
    pub inputs: InputArguments,
    /// Share of the read bytes that memory has; may be given several times [default: 0.5, 1]
    #[arg(long = "f", value_name = "SHARE")]
    pub hits: Vec<Share>,
    /// Compute nodes
    #[arg(long, value_name = "COUNT", default_value = "16")]
    pub nodes: NodeCount,
    /// Input of the job
    #[arg(long, value_name = "SIZE")]
    pub input_size: Bytes,
    /// What the map phase spills [default: as much as the input, which sorting does]
    #[arg(long, value_name = "SIZE")]
    pub map_output: Option<Bytes>,
    /// What the shuffle phase materialises [default: as much as the map phase spills]
    #[arg(long, value_name = "SIZE")]
    pub shuffle_output: Option<Bytes>,
    /// Output of the job [default: as much as its input]
    #[arg(long, value_name = "SIZE")]
    pub output: Option<Bytes>,
    /// Write a picture into this directory, as SVG and PNG
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub pictures: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}
