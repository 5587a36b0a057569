//! The commands, their arguments and help. Options of a node come from the table of options; all
//! names here are fixed, because scripts rely on them.

use std::path::PathBuf;

use clap::builder::{PossibleValuesParser, TypedValueParser};
use clap::{Args, Parser, Subcommand, ValueHint};
use tidepool_proto::MemorySize;
use tidepool_proto::files::{FILES_MAX, FileOrder};

use crate::commands::control::arguments::ControlCommand;
use crate::connection::SocketArgument;
pub use crate::facts::{Facts, LaboratoryArguments};
use crate::flags::NodeFlags;
use crate::plane::PlaneCommand;

const AFTER_HELP: &str = "Exit codes: 0 done, 1 failed, or the answer is no, 2 usage, \
    3 no node answers, 4 no such file, 5 permission denied, 6 in use, 130 interrupted.";

/// A memory level on this node over a parallel file system (PFS)
#[derive(Debug, Parser)]
#[command(name = "tidepool", version, after_help = AFTER_HELP, max_term_width = 100)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

impl Arguments {
    /// All commands with their help, but for the arguments of the laboratory's.
    pub fn command_tree() -> clap::Command {
        <Arguments as clap::CommandFactory>::command()
    }
}

/// All commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Start, stop and look after the node on this machine
    #[command(subcommand)]
    Node(NodeCommand),
    /// Show the state and counters of the node
    Status(StatusArguments),
    /// Live view of the node
    Top(TopArguments),
    /// Print requests as they are served: by what, how long, and how long they waited for the PFS
    Trace(TraceArguments),
    /// Show whether files are cached, which version, where, and why not
    Explain(ExplainArguments),
    /// Bring files into memory, and verify that they are there
    Load(SpreadArguments),
    /// Drop what is cached of files
    Evict(EvictArguments),
    /// Bring what is in memory or in burst buffers alone to the PFS, and wait until it is there
    Flush(FlushArguments),
    /// Load files and keep them resident
    Pin(LoadArguments),
    /// Let pinned files be evicted again
    Unpin(UnpinArguments),
    /// Set the capacity of the store
    Resize(ResizeArguments),
    /// Show or change the eviction policy
    Policy(PolicyArguments),
    /// Memory control: what it does and why, and how to change it
    #[command(subcommand)]
    Control(ControlCommand),
    /// The cluster plane of memory control: this node's part in it
    #[command(subcommand)]
    Plane(PlaneCommand),
    /// Check that cached reads take the fast path, and check this machine or a PFS directory
    Doctor(DoctorArguments),
    /// Effective configuration with units, origins and documentation
    Config(Box<ConfigArguments>),
    /// Measure side by side with tmpfs, page cache and bare PFS, or against the model
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Measure this machine for the models: memory, disk, PFS, network
    #[command(disable_help_flag = true)]
    Calibrate(LaboratoryArguments),
    /// Compute how fast storage can be: throughput, crossovers, MapReduce jobs
    #[command(disable_help_flag = true)]
    Model(LaboratoryArguments),
    /// Predict a workload on each storage, and what nodes and memory it needs
    #[command(disable_help_flag = true)]
    Plan(LaboratoryArguments),
    /// Print the metrics of the node in the text format of Prometheus
    Metrics(Facts),
    /// Print generated files: reference, man pages, completion
    #[command(hide = true, disable_help_flag = true)]
    Generate(LaboratoryArguments),
}

/// Commands for the daemon itself.
#[derive(Debug, Subcommand)]
pub enum NodeCommand {
    /// Start a node; without --foreground, returns once it serves and the mount answers
    Start(Box<StartArguments>),
    /// Write back what is dirty, unmount and end the node
    Stop(StopArguments),
    /// Whether a node answers, and where
    Status(Facts),
    /// Write back what is dirty and take no new opens
    Drain(DrainArguments),
}

/// Arguments of `node drain`.
#[derive(Args, Clone, Debug)]
pub struct DrainArguments {
    /// Take new opens again
    #[arg(long)]
    pub undo: bool,
    /// Have the other nodes take over what is in memory, hot files first, for so many seconds at
    /// most [default: 60]
    #[arg(long, value_name = "SECONDS", num_args = 0..=1, default_missing_value = "60")]
    #[arg(conflicts_with = "undo")]
    pub hand_on: Option<u64>,
    /// The node, and how to print.
    #[command(flatten)]
    pub facts: Facts,
}

/// Arguments of `node start`.
#[derive(Args, Debug)]
pub struct StartArguments {
    /// Options of the node.
    #[command(flatten)]
    pub flags: NodeFlags,
    /// Print what the node took as JSON
    #[arg(long)]
    pub json: bool,
    /// Descriptor to report readiness to; for the daemon that `node start` starts
    #[arg(long, hide = true, value_name = "NUMBER")]
    pub ready_descriptor: Option<i32>,
    /// --log-file is the default; for the daemon that `node start` starts
    #[arg(long, hide = true)]
    pub default_log: bool,
}

/// Arguments of `node stop`.
#[derive(Args, Debug)]
pub struct StopArguments {
    /// Where the node is.
    #[command(flatten)]
    pub socket: SocketArgument,
    /// Stop although programs use the mount; their open files fail
    #[arg(long)]
    pub force: bool,
    /// Seconds to wait for programs to leave the mount
    #[arg(long, value_name = "SECONDS", default_value_t = 10)]
    pub wait: u64,
    /// Seconds to wait until all is written and the node has ended
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub timeout: u64,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `top`.
#[derive(Args, Debug)]
pub struct TopArguments {
    /// Where the node is.
    #[command(flatten)]
    pub socket: SocketArgument,
    /// All nodes of the cluster, a line each, instead of this node
    #[arg(long, conflicts_with_all = ["files", "by"])]
    pub cluster: bool,
    /// Refresh interval in seconds
    #[arg(long, short, value_name = "SECONDS", default_value_t = 1.0)]
    pub interval: f64,
    /// Show this many cached files
    #[arg(long, value_name = "COUNT", default_value_t = 10,
          value_parser = clap::value_parser!(u32).range(0..=i64::from(FILES_MAX)))]
    pub files: u32,
    /// Which files come first: those with the most bytes resident, or those read most. The keys m
    /// and r change it in the live view
    #[arg(long, value_name = "ORDER", default_value_t, value_parser = file_order())]
    pub by: FileOrder,
    /// Print this many looks as lines of JSON instead of a live view
    #[arg(long, value_name = "COUNT")]
    pub json: Option<u64>,
}

/// Arguments of `trace`.
#[derive(Args, Debug)]
#[command(after_help = TRACE_HELP)]
pub struct TraceArguments {
    /// Only requests of a file (a path on the PFS, below the mount, or tide:///), of a process (a
    /// number), or for a time (5s, 2m). Without: all requests, until Ctrl-C
    #[arg(value_name = "FILE|PID|SECONDS", value_hint = ValueHint::AnyPath)]
    pub what: Vec<PathBuf>,
    /// Where the node is.
    #[command(flatten)]
    pub socket: SocketArgument,
    /// Print each request as a line of JSON, and the summary as the last one
    #[arg(long)]
    pub json: bool,
}

const TRACE_HELP: &str = "What an open shows as `passthrough` the kernel serves by itself: its \
    reads do not reach the node and are not shown. Users other than root and the node's owner see \
    their own requests only. Tracing ends with this command.";

fn file_order() -> impl TypedValueParser<Value = FileOrder> {
    let names = PossibleValuesParser::new(FileOrder::ALL.map(FileOrder::name));
    names.try_map(|name| name.parse::<FileOrder>())
}

/// Arguments of `explain`.
#[derive(Args, Debug)]
pub struct ExplainArguments {
    /// Files: paths on the PFS, below the mount, or tide:///
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub paths: Vec<PathBuf>,
    /// How much of all files below directories is cached, and why the rest is not
    #[arg(long, short)]
    pub recursive: bool,
    /// Where the node is and how to print.
    #[command(flatten)]
    pub facts: Facts,
}

/// Arguments of `status`.
#[derive(Args, Debug)]
pub struct StatusArguments {
    /// Files in burst buffers that the PFS does not have, of this node and those for which it
    /// answers, instead of the state
    #[arg(long, conflicts_with = "cluster")]
    pub owed: bool,
    /// All nodes of the cluster, a row each
    #[arg(long)]
    pub cluster: bool,
    /// Where the node is and how to print.
    #[command(flatten)]
    pub facts: Facts,
}

/// Arguments of `load` and `pin`.
#[derive(Args, Debug)]
pub struct LoadArguments {
    /// Files: paths on the PFS, below the mount, or tide:///
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub paths: Vec<PathBuf>,
    /// Take all files below directories
    #[arg(long, short)]
    pub recursive: bool,
    /// Files brought in at a time
    #[arg(long, short, value_name = "COUNT", default_value_t = 4,
          value_parser = clap::value_parser!(u16).range(1..=64))]
    pub jobs: u16,
    /// Where the node is and how to print.
    #[command(flatten)]
    pub facts: Facts,
}

/// Arguments of `load`.
#[derive(Args, Debug)]
pub struct SpreadArguments {
    /// Which files, and how.
    #[command(flatten)]
    pub load: LoadArguments,
    /// Bring each split of a file that no node has in memory into that of its owner among all
    /// nodes of the cluster, instead of the whole file into this node's
    #[arg(long)]
    pub spread: bool,
}

/// Arguments of `evict`.
#[derive(Args, Debug)]
pub struct EvictArguments {
    /// Files: paths on the PFS, below the mount, or tide:///
    #[arg(required_unless_present = "all", value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub paths: Vec<PathBuf>,
    /// Drop everything that may be dropped
    #[arg(long, conflicts_with = "paths")]
    pub all: bool,
    /// Take all files below directories
    #[arg(long, short)]
    pub recursive: bool,
    /// Where the node is and how to print.
    #[command(flatten)]
    pub facts: Facts,
}

/// Arguments of `flush`.
#[derive(Args, Debug)]
pub struct FlushArguments {
    /// Files: paths on the PFS, below the mount, or tide:///; without any, all files of the node
    #[arg(value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub paths: Vec<PathBuf>,
    /// Take all files below directories
    #[arg(long, short)]
    pub recursive: bool,
    /// Drop what burst buffers hold of files of other nodes that are nowhere to be found, because
    /// they were removed while those nodes and this one were away. One that was moved to another
    /// directory meanwhile is lost by this: open such files by their new names before. Where the
    /// node that wrote them only stands still, have it go on, or stop it, before this
    #[arg(long, conflicts_with = "paths")]
    pub forget_missing: bool,
    /// Where the node is and how to print.
    #[command(flatten)]
    pub facts: Facts,
}

/// Arguments of `unpin`.
#[derive(Args, Debug)]
pub struct UnpinArguments {
    /// Files: paths on the PFS, below the mount, or tide:///
    #[arg(required = true, value_name = "PATH", value_hint = ValueHint::AnyPath)]
    pub paths: Vec<PathBuf>,
    /// Take all files below directories
    #[arg(long, short)]
    pub recursive: bool,
    /// Where the node is and how to print.
    #[command(flatten)]
    pub facts: Facts,
}

/// Arguments of `resize`.
#[derive(Args, Debug)]
pub struct ResizeArguments {
    /// New capacity, such as 8GiB, 0, or 60% of the memory that the node may use
    #[arg(value_name = "SIZE", allow_negative_numbers = true)]
    pub size: MemorySize,
    /// Where the node is and how to print.
    #[command(flatten)]
    pub facts: Facts,
}

/// Arguments of `policy`.
#[derive(Args, Debug)]
pub struct PolicyArguments {
    /// New policy; without it, the present one is shown
    #[arg(value_name = "NAME", value_parser = policy_names())]
    pub name: Option<String>,
    /// Where the node is and how to print.
    #[command(flatten)]
    pub facts: Facts,
}

fn policy_names() -> clap::builder::PossibleValuesParser {
    let policies = tidepool_proto::option::POLICIES;
    policies.map(|(name, doc)| clap::builder::PossibleValue::new(name).help(doc)).into()
}

/// Arguments of `doctor`.
#[derive(Args, Debug)]
pub struct DoctorArguments {
    /// Examine this PFS directory instead: what it keeps of POSIX, and how fast it is
    #[arg(long, value_name = "DIR", value_hint = ValueHint::DirPath)]
    pub pfs: Option<PathBuf>,
    /// Examine the nodes of the cluster instead, and measure latency and rate of every pair
    #[arg(long, conflicts_with = "pfs")]
    pub cluster: bool,
    /// Bytes that each speed check of --pfs may write
    #[arg(long, value_name = "SIZE", default_value = "128MiB", requires = "pfs")]
    pub speed_bytes: tidepool_proto::ByteSize,
    /// Where the node is and how to print.
    #[command(flatten)]
    pub facts: Facts,
}

/// Arguments of `config`.
#[derive(Args, Debug)]
pub struct ConfigArguments {
    /// Check the given file, environment and flags without asking a node
    #[arg(long)]
    pub check: bool,
    /// Options of a node.
    #[command(flatten)]
    pub flags: NodeFlags,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Benchmarks.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Reading and writing by this node, tmpfs, page cache and bare PFS, side by side in one run
    #[command(disable_help_flag = true)]
    Compare(LaboratoryArguments),
    /// The storage mountain: read throughput over data size and skip, with the model's prediction
    #[command(disable_help_flag = true)]
    Mountain(LaboratoryArguments),
}
