//! Runs of the real program: usage, exit codes, generated files, and a node from start to stop.

mod answers;
mod control;
mod data_sets;
mod failing;
mod logging;
mod node;
mod place;
mod plain_user;
mod slurm;
mod stopping;
mod trace;
mod usage;

use std::process::{Command, Output};

/// The program, cut off from the caller's own configuration.
fn tidepool() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tidepool"));
    for (name, _) in std::env::vars_os() {
        if name.as_encoded_bytes().starts_with(b"TIDEPOOL_") {
            command.env_remove(name);
        }
    }
    command
}

/// Runs the program with `arguments`.
fn run(arguments: &[&str]) -> Output {
    tidepool().args(arguments).output().expect("the program runs")
}

fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
