//! The flags of a node, made from the table of options.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches};
use tidepool_proto::option::{OPTIONS, OptionKind, OptionSpec, Origin, RawOptions, Setting};

/// Flags of `node start`: all options of the table, and the configuration file.
#[derive(Clone, Debug, Default)]
pub struct NodeFlags {
    /// Options that were given as flags.
    pub options: RawOptions,
    /// The configuration file.
    pub config: Option<PathBuf>,
}

/// Options that a first look at the help should find; the others follow under their own heading.
const FIRST: [&str; 8] =
    ["pfs", "memory", "mount", "socket", "foreground", "policy", "read_mode", "write_mode"];

fn help(spec: &OptionSpec) -> String {
    let mut help = spec.doc.trim_end_matches('.').to_owned();
    if let (Some(default), false) = (spec.default, spec.kind == OptionKind::Switch) {
        help += &format!(" [default: {default}]");
    }
    if let OptionKind::Choice(names) = spec.kind {
        help += &format!(" [{}]", names.join("|"));
    }
    help
}

/// Refused here, so that the option is named.
fn text(value: OsString) -> Result<String, &'static str> {
    value.into_string().map_err(|_| "it is no text in UTF-8")
}

fn argument(spec: &'static OptionSpec) -> Arg {
    let arg = Arg::new(spec.name)
        .long(spec.flag())
        .help(help(spec))
        .value_name(if spec.name == "pfs" || spec.name == "mount" {
            "DIR"
        } else {
            spec.kind.placeholder()
        })
        // Refused by the grammar of the option, which says more than clap could.
        .allow_negative_numbers(true)
        .value_parser(OsStringValueParser::new().try_map(text))
        .action(ArgAction::Set);
    let arg = match spec.kind {
        OptionKind::Switch => {
            arg.num_args(0..=1).require_equals(true).default_missing_value("true")
        }
        OptionKind::Path => arg.value_hint(clap::ValueHint::AnyPath),
        _ => arg,
    };
    if FIRST.contains(&spec.name) { arg } else { arg.help_heading("More options") }
}

impl Args for NodeFlags {
    fn augment_args(command: Command) -> Command {
        let config = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .env("TIDEPOOL_CONFIG")
            .hide_env_values(true)
            .value_parser(clap::value_parser!(PathBuf))
            .help("Configuration file (TOML); flags and environment override it");
        let (first, more): (Vec<_>, Vec<_>) =
            OPTIONS.iter().partition(|spec| FIRST.contains(&spec.name));
        let command = command.args(first.into_iter().map(argument)).arg(config);
        command.args(more.into_iter().map(argument))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for NodeFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = NodeFlags::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for spec in OPTIONS {
            if let Some(text) = matches.get_one::<String>(spec.name) {
                let origin = Origin::CommandLine(spec.flag());
                *self.options.slot(spec.name).expect("every option has a slot") =
                    Some(Setting { text: text.clone(), origin });
            }
        }
        self.config = matches.get_one::<PathBuf>("config").cloned();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flags_from(arguments: &[String]) -> NodeFlags {
        let command = NodeFlags::augment_args(Command::new("test").no_binary_name(true));
        NodeFlags::from_arg_matches(&command.get_matches_from(arguments)).unwrap()
    }

    #[test]
    fn every_option_comes_by_flag() {
        for spec in OPTIONS {
            let given = if spec.kind == OptionKind::Switch { "true" } else { "as it is" };
            let flags = flags_from(&[format!("--{}={given}", spec.flag())]);
            let setting = flags.options.get(spec.name).expect("it was given");
            assert_eq!(setting.text, given, "--{}", spec.flag());
            assert_eq!(setting.origin, Origin::CommandLine(spec.flag()));
        }
    }

    #[test]
    fn a_switch_needs_no_value() {
        let on = flags_from(&["--foreground".to_owned()]);
        assert_eq!(on.options.foreground.unwrap().text, "true");
        let off = flags_from(&["--foreground=false".to_owned()]);
        assert_eq!(off.options.foreground.unwrap().text, "false");
    }
}
