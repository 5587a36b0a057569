//! The program `tidepool-lab`: the models of the papers, planning, calibration, benchmarks side by
//! side, and the simulator of memory control. `tidepool` hands its commands over, so users type
//! `tidepool model`.

mod arguments;
mod calibrate;
mod compare;
mod control;
mod generate;
mod model;
mod mountain;
mod pictures;
mod plan;
mod rates;

use std::process::ExitCode;

use tidepool_proto::Result;
use tidepool_terminal::exit::Outcome;

use arguments::{BenchCommand, Command, ControlCommand};

fn main() -> ExitCode {
    tidepool_terminal::main(arguments::parse, run)
}

fn run(command: Command) -> Result<Outcome> {
    match command {
        Command::Bench(BenchCommand::Compare(arguments)) => compare::compare(&arguments),
        Command::Bench(BenchCommand::Mountain(arguments)) => mountain::mountain(&arguments),
        Command::Calibrate(arguments) => calibrate::calibrate(&arguments),
        Command::Control(ControlCommand::Simulate(arguments)) => control::simulate(&arguments),
        Command::Control(ControlCommand::Replay(arguments)) => control::replay(&arguments),
        Command::Control(ControlCommand::Tune(arguments)) => control::tune(&arguments),
        Command::Model(command) => model::model(&command),
        Command::Plan(arguments) => plan::plan(&arguments),
        Command::Generate(what) => generate::generate(&what, &arguments::tree()),
    }
}
