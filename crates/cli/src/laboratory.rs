//! Hands the commands of the laboratory (models, plans, calibration, benchmarks, the simulator of
//! memory control) over to a program of its own, `tidepool-lab`, so that nothing of it is linked
//! into the process that serves a node.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidepool_proto::{Error, ErrorKind, Result};
use tidepool_terminal::exit::Outcome;

/// Name of the program.
const PROGRAM: &str = "tidepool-lab";

/// Goes on as the laboratory, with the same arguments. Returns only if it is not there.
///
/// # Errors
/// `Unsupported` where it is not installed, or what is installed as it is this program.
pub fn hand_over() -> Result<Outcome> {
    let operation = || format!("starting `{PROGRAM}`, which has this command");
    let Some(program) = beside().or_else(in_path) else {
        let detail = "it is neither beside `tidepool` nor in PATH";
        return Err(Error::new(ErrorKind::Unsupported, operation(), detail)
            .remedy("install it: package tidepool-lab, or `./x build` in the sources"));
    };
    if is_this_program(&program) {
        let detail = format!("{} is `tidepool` itself", program.display());
        return Err(Error::new(ErrorKind::Unsupported, operation(), detail)
            .remedy("install it again: package tidepool-lab, or `./x build` in the sources"));
    }
    let error = Command::new(&program).args(std::env::args_os().skip(1)).exec();
    Err(Error::pfs(operation(), error))
}

/// The laboratory that was installed with this program.
fn beside() -> Option<PathBuf> {
    let path = std::env::current_exe().ok()?.with_file_name(PROGRAM);
    path.is_file().then_some(path)
}

fn in_path() -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    let programs = std::env::split_paths(&path).map(|directory| directory.join(PROGRAM));
    let is_program = |path: &PathBuf| {
        path.metadata().is_ok_and(|facts| facts.is_file() && facts.mode() & 0o111 != 0)
    };
    programs.into_iter().find(is_program)
}

/// Whether a path leads to this program by another name: that would go on for ever.
fn is_this_program(path: &Path) -> bool {
    let id = |path: &Path| path.metadata().map(|facts| (facts.dev(), facts.ino())).ok();
    id(path).is_some_and(|found| Some(found) == id(Path::new("/proc/self/exe")))
}

/// Whether arguments are better read by the laboratory, which knows the help of all commands.
pub fn knows_more() -> bool {
    let first = std::env::args_os().nth(1);
    first.is_some_and(|first| first == "help")
        && beside().is_some_and(|program| !is_this_program(&program))
}
