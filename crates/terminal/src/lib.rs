//! What all programs of the command line share: tables and JSON, exit codes, messages of failures,
//! and the handling of Ctrl-C.

pub mod exit;
pub mod failure;
pub mod failures;
pub mod interruption;
pub mod output;

use std::process::ExitCode;

use tidepool_proto::Result;

use exit::Outcome;

/// Reads the arguments by `parse`, runs `run` on them, and turns its end into an exit code.
/// Arguments that cannot be read end the program.
pub fn main<Arguments>(
    parse: impl FnOnce() -> std::result::Result<Arguments, clap::Error>,
    run: impl FnOnce(Arguments) -> Result<Outcome>,
) -> ExitCode {
    let arguments = parse().unwrap_or_else(|error| {
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
    let ended = run(arguments);
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
