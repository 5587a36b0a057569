//! Prints what is made from the tables and the command tree: the reference, an example
//! configuration, man pages and completion scripts.

mod java;
mod reference;

use std::path::Path;

use clap::CommandFactory;
use tidepool_proto::{Error, Result};

use crate::arguments::{Arguments, GenerateCommand};
use crate::exit::Outcome;

/// Runs `generate`.
pub fn generate(what: &GenerateCommand) -> Result<Outcome> {
    match what {
        GenerateCommand::Docs { directory } => {
            for (name, text) in reference::files() {
                write(&directory.join(name), text.as_bytes())?;
            }
        }
        GenerateCommand::Man { directory } => man(directory)?,
        GenerateCommand::Completion { shell } => {
            let mut text = Vec::new();
            clap_complete::generate(*shell, &mut Arguments::command(), "tidepool", &mut text);
            crate::output::text(String::from_utf8_lossy(&text).trim_end());
        }
    }
    Ok(Outcome::Done)
}

fn man(directory: &Path) -> Result<()> {
    std::fs::create_dir_all(directory)
        .map_err(|source| Error::pfs(format!("creating {}", directory.display()), source))?;
    clap_mangen::generate_to(Arguments::command(), directory)
        .map_err(|source| Error::pfs("writing man pages", source))
}

fn write(path: &Path, text: &[u8]) -> Result<()> {
    let failed = |source| Error::pfs(format!("writing {}", path.display()), source);
    if let Some(directory) = path.parent() {
        std::fs::create_dir_all(directory).map_err(failed)?;
    }
    std::fs::write(path, text).map_err(failed)
}
