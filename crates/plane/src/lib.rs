//! The program `tidepool-plane` as a library: the part of a node in the cluster plane of memory
//! control. It sends samples to Kafka and leases the ceilings that come back of the node, and shows
//! what the job says of the whole site.
//! `tidepool` hands the commands over, so users type `tidepool plane`.
//!
//! The node never waits for it, and goes on by itself where any part of the plane is away.

mod agent;
mod ceiling;
mod ceilings;
mod consumer;
mod follow;
pub mod jobs;
mod kafka;
pub mod meminfo;
pub mod others;
pub mod partition;
mod properties;
pub mod rhythm;
pub mod sample;
mod samples;
mod shared;
mod site;
mod status;

use std::process::ExitCode;

use clap::Parser;
use tidepool_cli::plane::PlaneCommand;
use tidepool_proto::Result;
use tidepool_terminal::exit::Outcome;

/// This node's part in the cluster plane of memory control
#[derive(Debug, Parser)]
#[command(name = "tidepool plane", version, max_term_width = 100)]
struct Arguments {
    #[command(subcommand)]
    command: PlaneCommand,
}

/// The program.
pub fn main() -> ExitCode {
    tidepool_terminal::main(Arguments::try_parse, run)
}

fn run(arguments: Arguments) -> Result<Outcome> {
    match arguments.command {
        PlaneCommand::Agent(arguments) => agent::agent(&arguments),
        PlaneCommand::Status(facts) => status::status(&facts),
        PlaneCommand::Site(arguments) => site::site(&arguments),
    }
}
