//! Arguments of `tidepool control`.

use std::ffi::OsStr;
use std::path::PathBuf;

use clap::builder::{PossibleValue, StringValueParser, TypedValueParser};
use clap::{Args, Subcommand, ValueHint};
use tidepool_proto::control::{LEASE_OPTION, parameter_options};
use tidepool_proto::option::OPTIONS;

use crate::connection::SocketArgument;
use crate::facts::{Facts, LaboratoryArguments};

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
    #[command(disable_help_flag = true)]
    Simulate(LaboratoryArguments),
    /// Decide a log of decisions again: the same must come out
    #[command(disable_help_flag = true)]
    Replay(LaboratoryArguments),
    /// Recommend parameters from what was measured, and say what the present ones risk
    #[command(disable_help_flag = true)]
    Tune(LaboratoryArguments),
}

/// Takes any name, so that the node may refuse it with a remedy, and completes those there are.
#[derive(Clone, Debug)]
pub struct SettingName;

impl TypedValueParser for SettingName {
    type Value = String;

    fn parse_ref(
        &self,
        command: &clap::Command,
        argument: Option<&clap::Arg>,
        value: &OsStr,
    ) -> Result<String, clap::Error> {
        StringValueParser::new().parse_ref(command, argument, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        let settings = OPTIONS.iter().filter(|spec| {
            ["control", "memory_min", LEASE_OPTION].contains(&spec.name)
                || parameter_options().any(|parameter| parameter.name == spec.name)
        });
        Some(Box::new(settings.map(|spec| PossibleValue::new(spec.name).help(spec.doc))))
    }
}

/// Arguments of `control set`.
#[derive(Args, Debug)]
pub struct SetArguments {
    /// Name of the setting: control, memory_min, or a parameter such as gain or control_gain
    #[arg(value_name = "NAME", value_parser = SettingName, hide_possible_values = true)]
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
    /// Other stores to govern too, one `[[store]]` each (TOML)
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub stores: Option<PathBuf>,
    /// Keep a log of decisions here, for `control replay`; at most 8 MiB in two files
    #[arg(long, value_name = "PATH", value_hint = ValueHint::FilePath)]
    pub journal: Option<PathBuf>,
}
