//! Arguments of `tidepool plan`.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use serde::Deserialize;
use tidepool_model::{Bytes, NodeCount, Policy};

use crate::model::arguments::policy;
use crate::model::inputs::InputArguments;

/// The workload, each part optional. The same names are flags and keys of the workload file.
#[derive(Args, Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[command(next_help_heading = "Workload")]
pub struct WorkloadArguments {
    /// Size of the data set, all nodes together
    #[arg(long, value_name = "SIZE")]
    pub set: Option<Bytes>,
    /// How often the set is gone through [default: 1]
    #[arg(long, value_name = "COUNT")]
    pub passes: Option<u32>,
    /// Reads follow Zipf's law with this exponent; without it, each pass is a loop over the set
    #[arg(long, value_name = "EXPONENT")]
    pub zipf: Option<f64>,
    /// Bytes read in a pass over the size of the set [default: 1]
    #[arg(long, value_name = "RATIO")]
    pub read_share: Option<f64>,
    /// Bytes written in a pass, all nodes together [default: 0B]
    #[arg(long, value_name = "SIZE")]
    pub written_per_pass: Option<Bytes>,
    /// Processor seconds for a GB (10^9 bytes) read [default: 0]
    #[arg(long, value_name = "SECONDS")]
    pub cpu_seconds_per_gb: Option<f64>,
    /// Processors of a node [default: those of the calibration, else of this machine]
    #[arg(long, value_name = "COUNT")]
    pub processors: Option<u32>,
    /// Compute nodes [default: 1]
    #[arg(long, value_name = "COUNT")]
    pub nodes: Option<NodeCount>,
    /// Memory of a node that store and jobs share [default: that of the calibration, else of this
    /// machine]
    #[arg(long, value_name = "SIZE")]
    pub memory_per_node: Option<Bytes>,
    /// Memory of a node that jobs take [default: 0B]
    #[arg(long, value_name = "SIZE", conflicts_with = "jobs_trace")]
    pub memory_of_jobs: Option<Bytes>,
    /// Memory that jobs take over time, lines of `seconds,bytes`, as a controller records it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub jobs_trace: Option<PathBuf>,
    /// Time to meet in seconds
    #[arg(long, value_name = "SECONDS")]
    pub target_seconds: Option<f64>,
}

/// Arguments of `plan`.
#[derive(Args, Debug)]
pub struct PlanArguments {
    /// The workload as flags.
    #[command(flatten)]
    pub workload: WorkloadArguments,
    /// TOML file with the same names, words joined by underscores; flags win
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath, help_heading = "Workload")]
    pub workload_file: Option<PathBuf>,
    /// Rates.
    #[command(flatten)]
    pub inputs: InputArguments,
    /// Eviction policy of the store
    #[arg(long, value_name = "NAME", default_value = "cyclic", value_parser = policy)]
    pub policy: Policy,
    /// Block size of the store
    #[arg(long, value_name = "SIZE", default_value = "4MiB")]
    pub block: Bytes,
    /// The mount of the PFS keeps nothing in the kernel's page cache
    #[arg(long)]
    pub no_page_cache: bool,
    /// A gain below this share is not worth a memory level
    #[arg(long, value_name = "SHARE", default_value_t = 0.1)]
    pub worth: f64,
    /// Write a one-page report with pictures into this HTML file
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub report: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

impl WorkloadArguments {
    /// What `self` leaves open, taken from `other`.
    pub fn or(self, other: WorkloadArguments) -> WorkloadArguments {
        // Constant demand and a trace exclude each other; the first that gives one wins.
        let has_demand = self.memory_of_jobs.is_some() || self.jobs_trace.is_some();
        WorkloadArguments {
            set: self.set.or(other.set),
            passes: self.passes.or(other.passes),
            zipf: self.zipf.or(other.zipf),
            read_share: self.read_share.or(other.read_share),
            written_per_pass: self.written_per_pass.or(other.written_per_pass),
            cpu_seconds_per_gb: self.cpu_seconds_per_gb.or(other.cpu_seconds_per_gb),
            processors: self.processors.or(other.processors),
            nodes: self.nodes.or(other.nodes),
            memory_per_node: self.memory_per_node.or(other.memory_per_node),
            memory_of_jobs: self.memory_of_jobs.or(other.memory_of_jobs.filter(|_| !has_demand)),
            jobs_trace: self.jobs_trace.or(other.jobs_trace.filter(|_| !has_demand)),
            target_seconds: self.target_seconds.or(other.target_seconds),
        }
    }
}
