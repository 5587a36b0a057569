//! The commands of the laboratory. What each is for stands in the command tree of `tidepool`, whose
//! places for them are filled in here; so help, man pages and completion of all commands come from
//! one tree.

use clap::{FromArgMatches, Subcommand};
use tidepool_cli::arguments::Arguments;

use crate::calibrate::arguments::CalibrateArguments;
use crate::compare::arguments::CompareArguments;
use crate::control::arguments::{ReplayArguments, SimulateArguments, TuneArguments};
use crate::generate::GenerateCommand;
use crate::model::arguments::ModelCommand;
use crate::mountain::arguments::MountainArguments;
use crate::plan::arguments::PlanArguments;

#[derive(Debug, Subcommand)]
pub enum Command {
    #[command(subcommand)]
    Bench(BenchCommand),
    Calibrate(Box<CalibrateArguments>),
    #[command(subcommand)]
    Control(ControlCommand),
    #[command(subcommand)]
    Model(ModelCommand),
    Plan(Box<PlanArguments>),
    #[command(subcommand)]
    Generate(GenerateCommand),
}

#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    Compare(Box<CompareArguments>),
    Mountain(Box<MountainArguments>),
}

#[derive(Debug, Subcommand)]
pub enum ControlCommand {
    Simulate(Box<SimulateArguments>),
    Replay(ReplayArguments),
    Tune(Box<TuneArguments>),
}

/// All commands of `tidepool` with all their arguments.
pub fn tree() -> clap::Command {
    let own = Command::augment_subcommands(clap::Command::new("tidepool"));
    with_commands_of(Arguments::command_tree(), &own)
}

/// `tree` with the arguments of the commands of `own`, which keep their place and purpose.
fn with_commands_of(tree: clap::Command, own: &clap::Command) -> clap::Command {
    let mut order = 0;
    tree.mut_subcommands(|place| {
        order += 1;
        let place = place.display_order(order);
        let Some(command) = own.find_subcommand(place.get_name()) else { return place };
        if place.has_subcommands() {
            return with_commands_of(place, command);
        }
        let about = place.get_about().cloned().unwrap_or_default();
        command.clone().about(about).hide(place.is_hide_set()).display_order(order)
    })
}

/// The command that this program was started with.
///
/// # Errors
/// Help and what is wrong with the arguments, to be printed.
pub fn parse() -> Result<Command, clap::Error> {
    let mut tree = tree();
    // By the name that users type.
    let arguments = std::iter::once("tidepool".into()).chain(std::env::args_os().skip(1));
    let matches = tree.try_get_matches_from_mut(arguments)?;
    Command::from_arg_matches(&matches).map_err(|error| error.format(&mut tree))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(tree: &clap::Command, own: &clap::Command) {
        for command in own.get_subcommands() {
            let place = tree.find_subcommand(command.get_name()).expect("a place in the tree");
            assert!(place.get_about().is_some(), "{}: what it is for", place.get_name());
            let names = |command: &clap::Command| {
                command.get_arguments().map(|it| it.get_id().clone()).collect::<Vec<_>>()
            };
            assert_eq!(names(place), names(command));
            check(place, command);
        }
    }

    #[test]
    fn every_command_has_its_place_in_the_tree_of_tidepool() {
        let tree = tree();
        check(&tree, &Command::augment_subcommands(clap::Command::new("tidepool")));
        tree.debug_assert();
    }
}
