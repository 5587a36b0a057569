//! Tests that failed and then passed: the list that is kept of them, until their cause is mended.

use std::fmt;
use std::fs::OpenOptions;
use std::io::Write;

use acceptance::environment;
use anyhow::{Context, Result};

use super::{excerpt, panics_of};

/// The list, in the target directory; runs add to it.
pub const LIST: &str = "flaky.txt";

/// A test that passed only when it ran again.
#[derive(Debug)]
pub struct Flaky {
    name: String,
    why: String,
    seeds: Vec<String>,
}

impl Flaky {
    /// Reads where it failed, and the seeds, out of what its failed attempts printed; where they
    /// did not panic, `kind` says how they ended.
    pub fn of(name: &str, kind: &str, said: &str) -> Self {
        let seeds = said.lines().filter(|line| line.to_lowercase().contains("seed"));
        let mut seeds: Vec<String> = seeds.map(|line| excerpt(line.trim()).to_owned()).collect();
        seeds.dedup();
        seeds.truncate(3);
        let mut why = panics_of(said.lines());
        if why.is_empty() {
            why = kind.to_owned();
        }
        Flaky { name: name.to_owned(), why, seeds }
    }
}

impl fmt::Display for Flaky {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.name, self.why)?;
        self.seeds.iter().try_for_each(|seed| write!(f, "; {seed}"))
    }
}

/// Adds lines to the list.
pub fn keep(lines: &[String]) -> Result<()> {
    if lines.is_empty() {
        return Ok(());
    }
    let path = environment::target().join(LIST);
    let list = OpenOptions::new().create(true).append(true).open(&path);
    let mut list = list.with_context(|| path.display().to_string())?;
    lines.iter().try_for_each(|line| writeln!(list, "{line}"))?;
    Ok(())
}
