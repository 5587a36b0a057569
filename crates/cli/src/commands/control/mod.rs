//! `tidepool control`: the memory control of a node: runs the controller, shows its state and
//! decisions, changes its settings.

pub mod arguments;
mod decisions;
mod set;
pub(in crate::commands) mod status;

use tidepool_daemon::controller::{self, ControllerOptions};
use tidepool_proto::admin::{AdminReply, AdminRequest, ConfigEntry};
use tidepool_proto::control::ControlStatus;
use tidepool_proto::option::{OptionKind, option};
use tidepool_proto::{Error, ErrorKind, Result};

use crate::connection::Connection;
use crate::laboratory;
use arguments::{ControlCommand, RunArguments};
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::output;

/// Runs a command of the memory control.
pub fn control(command: &ControlCommand) -> Result<Outcome> {
    match command {
        ControlCommand::Status(facts) => status::status(facts),
        ControlCommand::Set(arguments) => set::set(arguments),
        ControlCommand::Decisions(arguments) => decisions::decisions(arguments),
        ControlCommand::Run(arguments) => run(arguments),
        ControlCommand::Simulate(_) | ControlCommand::Replay(_) | ControlCommand::Tune(_) => {
            laboratory::hand_over()
        }
    }
}

fn run(arguments: &RunArguments) -> Result<Outcome> {
    let options = ControllerOptions {
        socket: arguments.socket.path(),
        is_named: arguments.socket.socket.is_some(),
        stores_file: arguments.stores.clone(),
        journal: arguments.journal.clone(),
    };
    controller::run(&options).map(|()| Outcome::Done)
}

/// A setting as people read it: sizes with their unit.
fn setting(entry: &ConfigEntry) -> String {
    let kind = option(&entry.name).map(|spec| spec.kind);
    let is_size = matches!(kind, Some(OptionKind::Bytes { .. } | OptionKind::Memory));
    let value = match entry.value.parse::<u64>() {
        Ok(bytes) if is_size => output::size(bytes),
        _ => entry.value.clone(),
    };
    format!("{} = {value}", entry.name)
}

fn ask(node: &Connection) -> Result<ControlStatus> {
    match node.ask(AdminRequest::ControlStatus, None)? {
        AdminReply::Control(status) => Ok(*status),
        _ => Err(Error::new(ErrorKind::Protocol, "asking for the control", "the answer is none")
            .remedy("use the same release on both sides")),
    }
}
