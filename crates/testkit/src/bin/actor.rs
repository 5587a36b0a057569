//! Child process of the model test; see `tidepool_testkit::model::actor`.

use clap::Parser;
use tidepool_testkit::model::actor::{ActorOptions, run};

#[derive(Debug, Parser)]
struct Arguments {
    #[command(flatten)]
    options: ActorOptions,
}

fn main() -> std::process::ExitCode {
    match run(&Arguments::parse().options) {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("actor: {error}");
            std::process::ExitCode::FAILURE
        }
    }
}
