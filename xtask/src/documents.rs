//! Generated documents: the reference, man pages and completions from the binary's own tables, the
//! list of libraries of others, and the results of suites.

use std::path::{Path, PathBuf};

use acceptance::{environment, process, suites};
use anyhow::{Context, Result, bail};

use crate::third_party;

const SHELLS: [&str; 3] = ["bash", "zsh", "fish"];

/// Writes the reference into the checkout.
pub fn write() -> Result<()> {
    generate(&environment::binary()?, &environment::checkout())
}

/// Writes man pages and completions below the target directory, and says where.
pub fn write_man_pages() -> Result<()> {
    let binary = environment::binary()?;
    let pages = environment::target().join("man");
    let completions = environment::target().join("completions");
    std::fs::create_dir_all(&pages)?;
    std::fs::create_dir_all(&completions)?;
    process::read(process::command(&binary, &["generate", "man"]).arg(&pages))?;
    for shell in SHELLS {
        let script =
            process::read(&mut process::command(&binary, &["generate", "completion", shell]))?;
        std::fs::write(completions.join(format!("tidepool.{shell}")), script)?;
    }
    println!("man pages in {}", pages.display());
    println!("completions in {}", completions.display());
    Ok(())
}

/// Generated files that are missing in the checkout or differ from what the binary generates, by
/// their path in it.
pub fn differences(binary: &Path) -> Result<Vec<PathBuf>> {
    let fresh = tempfile::tempdir()?;
    generate(binary, fresh.path())?;
    let mut files = Vec::new();
    list(fresh.path(), &mut files)?;
    if files.is_empty() {
        bail!("the binary generated no document");
    }
    let mut different = Vec::new();
    for file in files {
        let name = file.strip_prefix(fresh.path()).context("listed below it")?;
        let committed = std::fs::read(environment::checkout().join(name)).unwrap_or_default();
        if committed != std::fs::read(&file)? {
            different.push(name.to_path_buf());
        }
    }
    Ok(different)
}

fn generate(binary: &Path, directory: &Path) -> Result<()> {
    process::read(process::command(binary, &["generate", "docs"]).arg(directory))?;
    std::fs::write(directory.join("THIRD-PARTY.md"), third_party::page()?)?;
    let results = directory.join("conformance");
    std::fs::create_dir_all(&results)?;
    std::fs::write(results.join("RESULTS.md"), suites::record::page()?)?;
    Ok(())
}

fn list(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            list(&path, files)?;
        } else {
            files.push(path);
        }
    }
    Ok(())
}
