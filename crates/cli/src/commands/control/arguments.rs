//! Arguments of `tidepool control`.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueHint};

use super::simulation_arguments::{ReplayArguments, SimulateArguments, TuneArguments};
use crate::arguments::Facts;
use crate::connection::SocketArgument;

/// Commands of the memory control.
#[derive(Debug, Subcommand)]
pub enum ControlCommand {
    /// Demand, target, headroom, alarms and settings of the memory control
    Status(Facts),
    /// Change a setting of the memory control while it runs
    Set(SetArguments),
    /// Latest decisions that changed something, with their reasons
    Decisions(DecisionsArguments),
    /// Govern the store of a node from this process; the node starts this by itself
    Run(RunArguments),
    /// Run policies over a recorded demand in virtual time, and measure them
    Simulate(Box<SimulateArguments>),
    /// Decide a log of decisions again: the same must come out
    Replay(ReplayArguments),
    /// Recommend parameters from what was measured, and say what the present ones risk
    Tune(Box<TuneArguments>),
}

/// Arguments of `control set`.
#[derive(Args, Debug)]
pub struct SetArguments {
    /// Name of the setting: control, memory_min, or a parameter such as gain or control_gain
    #[arg(value_name = "NAME")]
    pub name: String,
    /// New value, in the grammar of the option
    #[arg(value_name = "VALUE")]
    pub value: String,
    /// Where the node is and how to print.
    #[command(flatten)]
    pub facts: Facts,
}

/// Arguments of `control decisions`.
#[derive(Args, Debug)]
pub struct DecisionsArguments {
    /// Print this many of the latest
    #[arg(long, short, value_name = "COUNT", default_value_t = 64)]
    pub count: usize,
    /// Where the node is and how to print.
    #[command(flatten)]
    pub facts: Facts,
}

/// Arguments of `control run`.
#[derive(Args, Debug)]
pub struct RunArguments {
    /// Where the node is.
    #[command(flatten)]
    pub socket: SocketArgument,
    /// Other stores to govern too, one [[store]] each (TOML)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub stores: Option<PathBuf>,
    /// Keep a log of decisions here, for `control replay`; at most 8 MiB in two files
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub journal: Option<PathBuf>,
}
