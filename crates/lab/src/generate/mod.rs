//! Prints what is made from the tables and the command tree: the reference, an example
//! configuration, man pages and completion scripts.

mod java;
mod reference;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use clap_complete::Shell;
use tidepool_proto::{Error, Result};

use tidepool_terminal::exit::Outcome;

/// What `generate` prints.
#[derive(Debug, Subcommand)]
pub enum GenerateCommand {
    /// Write the reference and the example configuration below DIRECTORY
    Docs {
        /// Top of the source tree.
        directory: PathBuf,
    },
    /// Write a man page a command into DIRECTORY
    Man {
        /// Where to.
        directory: PathBuf,
    },
    /// Print the completion script of a shell
    Completion {
        /// The shell.
        shell: Shell,
    },
}

/// Runs `generate` for the commands of `tree`.
///
/// # Errors
/// Where a file cannot be written.
pub fn generate(what: &GenerateCommand, tree: &clap::Command) -> Result<Outcome> {
    match what {
        GenerateCommand::Docs { directory } => {
            for (name, text) in reference::files(tree) {
                write(&directory.join(name), text.as_bytes())?;
            }
        }
        GenerateCommand::Man { directory } => man(directory, tree)?,
        GenerateCommand::Completion { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut tree.clone(), "tidepool", &mut text);
            tidepool_terminal::output::text(String::from_utf8_lossy(&text).trim_end());
        }
    }
    Ok(Outcome::Done)
}

fn man(directory: &Path, tree: &clap::Command) -> Result<()> {
    std::fs::create_dir_all(directory)
        .map_err(|source| Error::pfs(format!("creating {}", directory.display()), source))?;
    clap_mangen::generate_to(tree.clone(), directory)
        .map_err(|source| Error::pfs("writing man pages", source))
}

fn write(path: &Path, text: &[u8]) -> Result<()> {
    let failed = |source| Error::pfs(format!("writing {}", path.display()), source);
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(failed)?;
    }
    std::fs::write(path, text).map_err(failed)
}
