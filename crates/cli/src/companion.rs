//! [`Companion`]: a program that has commands of `tidepool`, so that what they need is not linked
//! into the process that serves a node. It is found beside this program or in PATH.

use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use tidepool_proto::{Error, ErrorKind, Result};
use tidepool_terminal::exit::Outcome;

/// A program with commands of `tidepool`.
pub struct Companion {
    /// Name of the program.
    pub program: &'static str,
    /// What to do where it is not there.
    pub remedy: &'static str,
}

impl Companion {
    /// Goes on as the other program, with the arguments from the one at `first` on. Returns only
    /// if it is not there.
    ///
    /// # Errors
    /// `Unsupported` where it is not installed, or what is installed as it is this program.
    pub fn hand_over(&self, first: usize) -> Result<Outcome> {
        let operation = || format!("starting `{}`, which has this command", self.program);
        let Some(program) = self.beside().or_else(|| self.in_path()) else {
            let detail = "it is neither beside `tidepool` nor in PATH";
            return Err(Error::new(ErrorKind::Unsupported, operation(), detail).remedy(self.remedy));
        };
        if is_this_program(&program) {
            let detail = format!("{} is `tidepool` itself", program.display());
            let remedy = self.remedy.replacen("install it", "install it again", 1);
            return Err(Error::new(ErrorKind::Unsupported, operation(), detail).remedy(remedy));
        }
        let error = Command::new(&program).args(std::env::args_os().skip(first)).exec();
        Err(Error::pfs(operation(), error))
    }

    /// Whether it was installed with this program.
    pub fn is_beside(&self) -> bool {
        self.beside().is_some_and(|program| !is_this_program(&program))
    }

    fn beside(&self) -> Option<PathBuf> {
        let path = std::env::current_exe().ok()?.with_file_name(self.program);
        path.is_file().then_some(path)
    }

    fn in_path(&self) -> Option<PathBuf> {
        let path = std::env::var_os("PATH")?;
        let mut programs = std::env::split_paths(&path).map(|it| it.join(self.program));
        let is_program = |path: &PathBuf| {
            path.metadata().is_ok_and(|facts| facts.is_file() && facts.mode() & 0o111 != 0)
        };
        programs.find(is_program)
    }
}

/// Whether a path leads to this program by another name: that would go on for ever.
fn is_this_program(path: &Path) -> bool {
    let id = |path: &Path| path.metadata().map(|facts| (facts.dev(), facts.ino())).ok();
    id(path).is_some_and(|found| Some(found) == id(Path::new("/proc/self/exe")))
}
