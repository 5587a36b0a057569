//! Style as a test: every finding names file, line and remedy.
//!
//! Limits ratchet: `xtask/tidy.toml` holds the exceptions that exist, each with its present size;
//! one that grows fails, one that shrinks must be entered with the smaller size. It judges form
//! only; what the compiler and clippy see is theirs.

mod documents;
mod layers;
mod limits;
mod promises;
mod reach;
mod source;
mod text;

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};

use acceptance::outcome::Outcome;
use acceptance::{environment, process};
use anyhow::Result;

/// One thing to repair.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Finding {
    /// Path in the checkout.
    pub file: PathBuf,
    /// Line, from 1 on; 0 for the file as a whole.
    pub line: usize,
    /// What is wrong, and what to do.
    pub what: String,
}

impl Finding {
    /// A finding at a line.
    pub fn at(file: &Path, line: usize, what: impl Into<String>) -> Self {
        Finding { file: file.to_path_buf(), line, what: what.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}", self.file.display(), self.line, self.what)
    }
}

/// Runs every check and counts the files that are in order. `binary` generates the documents.
pub fn run(binary: &Path) -> Result<Outcome> {
    let root = environment::checkout();
    let files = tracked_files(&root)?;
    let workspaces = layers::workspaces(&root, &files)?;
    let reached = reach::from_targets(&root.canonicalize()?, &workspaces)?;
    let limits = limits::Limits::load(&root.join("xtask/tidy.toml"))?;

    let mut findings = Vec::new();
    for file in &files {
        findings.extend(text::check(&root, file)?);
    }
    let sources = files.iter().filter(|file| is_rust(file));
    for file in sources.clone() {
        match reached.get(file) {
            Some(&in_tests) => findings.extend(source::check(&root, file, in_tests, &limits)?),
            None => findings.push(Finding::at(
                file,
                0,
                "no crate includes this file; name it with `mod`, or delete it",
            )),
        }
    }
    let table = layers::Layers::read(&root)?;
    let workspace = workspaces.first();
    findings.extend(workspace.map(|it| layers::check(&table, &root, it)).unwrap_or_default());
    findings.extend(promises::missing(&root, &files)?);
    findings.extend(limits.unused());
    let stale = documents::stale(binary);
    let mut outcome = Outcome::new("tidy");
    match stale {
        Ok(stale) => findings.extend(stale),
        Err(error) => outcome.failed.push(format!("generated documents: {error:#}")),
    }

    findings.sort();
    findings.dedup();
    let bad: BTreeSet<&PathBuf> = findings.iter().map(|finding| &finding.file).collect();
    outcome.passed = files.iter().filter(|file| !bad.contains(file)).count() as u64;
    outcome.failed.extend(findings.iter().map(Finding::to_string));
    outcome.notes.push(format!("{} files, {} of them Rust", files.len(), sources.count()));
    Ok(outcome)
}

fn is_rust(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "rs")
}

/// Files under version control, and new ones that are not ignored.
fn tracked_files(root: &Path) -> Result<Vec<PathBuf>> {
    let mut list =
        process::command("git", &["ls-files", "-z", "--cached", "--others", "--exclude-standard"]);
    let names = process::read(list.current_dir(root))?;
    let mut files: Vec<PathBuf> =
        names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect();
    files.retain(|file| root.join(file).is_file());
    files.sort();
    files.dedup();
    Ok(files)
}
