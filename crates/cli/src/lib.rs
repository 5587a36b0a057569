//! The commands of `tidepool`: the operator's side of a node. Commands of the laboratory and of the
//! cluster plane are handed over to `tidepool-lab` and `tidepool-plane`, which use this crate for
//! all that concerns a node.

pub mod arguments;
mod busy;
mod commands;
mod companion;
pub mod connection;
pub mod facts;
mod flags;
mod laboratory;
pub mod plane;
pub mod target;

use tidepool_proto::Result;
use tidepool_terminal::exit::Outcome;

use arguments::{Arguments, BenchCommand, Command, NodeCommand};

/// Runs a command.
///
/// # Errors
/// Those of the command; the exit code follows from the kind.
pub fn run(arguments: Arguments) -> Result<Outcome> {
    use commands::{
        config, control, doctor, explain, files, load, metrics, node, spread, start, status, store,
        top, trace,
    };
    match arguments.command {
        Command::Node(NodeCommand::Start(arguments)) => start::start(*arguments),
        Command::Node(NodeCommand::Stop(arguments)) => node::stop(&arguments),
        Command::Node(NodeCommand::Status(facts)) => node::status(&facts),
        Command::Node(NodeCommand::Drain(facts)) => node::drain(&facts),
        Command::Status(facts) => status::status(&facts),
        Command::Top(arguments) => top::top(&arguments),
        Command::Trace(arguments) => trace::trace(&arguments),
        Command::Explain(arguments) => explain::explain(&arguments),
        Command::Load(arguments) if arguments.spread => spread::spread(&arguments.load),
        Command::Load(arguments) => load::load(&arguments.load, false),
        Command::Evict(arguments) => files::evict(&arguments),
        Command::Flush(arguments) => files::flush(&arguments),
        Command::Pin(arguments) => load::load(&arguments, true),
        Command::Unpin(arguments) => files::unpin(&arguments),
        Command::Resize(arguments) => store::resize(&arguments),
        Command::Policy(arguments) => store::policy(&arguments),
        Command::Control(command) => control::control(&command),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
        Command::Config(arguments) => config::config(&arguments),
        Command::Metrics(facts) => metrics::metrics(&facts),
        Command::Plane(_) => plane::hand_over(),
        Command::Bench(BenchCommand::Compare(_) | BenchCommand::Mountain(_))
        | Command::Calibrate(_)
        | Command::Generate(_)
        | Command::Model(_)
        | Command::Plan(_) => laboratory::hand_over(),
    }
}

/// The program `tidepool`.
pub fn main() -> std::process::ExitCode {
    // A node is started by the file that runs already; the kernel would call it `exe` in its log.
    let _ = rustix::thread::set_name(c"tidepool");
    if laboratory::knows_more() {
        // Where it fails, the shorter help is better than none.
        let _ = laboratory::hand_over();
    }
    tidepool_terminal::main(<Arguments as clap::Parser>::try_parse, run)
}
