//! The `tidepool` program: the node and everything to talk to it. This file only chooses the
//! command and turns its end into an exit code.

mod arguments;
mod busy;
mod commands;
mod connection;
mod daemon;
mod exit;
mod failure;
mod failures;
mod generate;
mod interruption;
mod machine;
mod output;
mod pictures;
mod settings;
mod target;

use std::process::ExitCode;

use clap::Parser;

use arguments::{Arguments, BenchCommand, Command, NodeCommand};
use exit::Outcome;

fn main() -> ExitCode {
    // A node is started by the file that runs already; the kernel would call it `exe` in its log.
    let _ = rustix::thread::set_name(c"tidepool");
    let arguments = Arguments::try_parse().unwrap_or_else(|error| {
        // Help and version come this way, too.
        if error.use_stderr() {
            failure::tell_usage(&error);
        }
        match error.print() {
            Err(unheard) if unheard.kind() != std::io::ErrorKind::BrokenPipe => {
                output::note(&format!("tidepool: while printing the answer: {unheard}"));
                std::process::exit(1)
            }
            _ => std::process::exit(error.exit_code()),
        }
    });
    let ended = run(arguments.command);
    // Nobody is told more where the answer was not taken.
    if let Some(code) = output::unheard() {
        return ExitCode::from(code);
    }
    match ended {
        Ok(outcome) => outcome.into(),
        Err(error) => {
            failure::tell(&error);
            let interrupted = interruption::came();
            ExitCode::from(if interrupted { interruption::EXIT_CODE } else { exit::code(&error) })
        }
    }
}

fn run(command: Command) -> tidepool_proto::Result<Outcome> {
    use commands::{
        calibrate, compare, config, control, doctor, explain, files, load, metrics, model,
        mountain, node, plan, status, store, top, trace,
    };
    match command {
        Command::Node(NodeCommand::Start(arguments)) => daemon::start(*arguments),
        Command::Node(NodeCommand::Stop(arguments)) => node::stop(&arguments),
        Command::Node(NodeCommand::Status(facts)) => node::status(&facts),
        Command::Node(NodeCommand::Drain(facts)) => node::drain(&facts),
        Command::Status(facts) => status::status(&facts),
        Command::Top(arguments) => top::top(&arguments),
        Command::Trace(arguments) => trace::trace(&arguments),
        Command::Explain(arguments) => explain::explain(&arguments),
        Command::Load(arguments) => load::load(&arguments, false),
        Command::Evict(arguments) => files::evict(&arguments),
        Command::Pin(arguments) => load::load(&arguments, true),
        Command::Unpin(arguments) => files::unpin(&arguments),
        Command::Resize(arguments) => store::resize(&arguments),
        Command::Policy(arguments) => store::policy(&arguments),
        Command::Control(command) => control::control(&command),
        Command::Doctor(arguments) => doctor::doctor(&arguments),
        Command::Config(arguments) => config::config(&arguments),
        Command::Bench(BenchCommand::Compare(arguments)) => compare::compare(&arguments),
        Command::Bench(BenchCommand::Mountain(arguments)) => mountain::mountain(&arguments),
        Command::Calibrate(arguments) => calibrate::calibrate(&arguments),
        Command::Model(command) => model::model(&command),
        Command::Plan(arguments) => plan::plan(&arguments),
        Command::Metrics(facts) => metrics::metrics(&facts),
        Command::Generate(what) => generate::generate(&what),
    }
}
