//! Hands the commands of the laboratory (models, plans, calibration, benchmarks, the simulator of
//! memory control) over to a program of its own, `tidepool-lab`, so that nothing of it is linked
//! into the process that serves a node.

use std::io;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use tidepool_proto::{Error, ErrorKind, Result};
use tidepool_terminal::exit::Outcome;

/// Name of the program.
const PROGRAM: &str = "tidepool-lab";

/// Goes on as the laboratory, with the same arguments. Returns only if it is not there.
///
/// # Errors
/// `Unsupported` where it is not installed.
pub fn hand_over() -> Result<Outcome> {
    let program = beside().unwrap_or_else(|| PROGRAM.into());
    let error = Command::new(program).args(std::env::args_os().skip(1)).exec();
    let operation = format!("starting `{PROGRAM}`, which has this command");
    if error.kind() != io::ErrorKind::NotFound {
        return Err(Error::pfs(operation, error));
    }
    let detail = "it is neither beside `tidepool` nor in PATH";
    Err(Error::new(ErrorKind::Unsupported, operation, detail)
        .remedy("install it: package tidepool-lab, or `./x build` in the sources"))
}

/// The laboratory that was installed with this program.
fn beside() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.with_file_name(PROGRAM);
    path.is_file().then_some(path)
}

/// Whether arguments are better read by the laboratory, which knows the help of all commands.
pub fn knows_more() -> bool {
    let first = std::env::args_os().nth(1);
    first.is_some_and(|first| first == "help" || first == "generate") && beside().is_some()
}
