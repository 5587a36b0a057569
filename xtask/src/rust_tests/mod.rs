//! The Rust tests of the workspace: run, counted, and what was left out named with its reason.
//!
//! nextest runs them, each in a process of its own and again where one fails. Where it cannot be
//! had, `cargo test` does, once each.

mod cargo;
mod flaky;
mod nextest;

use acceptance::environment;
use acceptance::outcome::Outcome;
use anyhow::Result;

pub use flaky::LIST as FLAKY_LIST;

use crate::arguments::TestOptions;

/// Random operations of the comparison with the reference model.
const MODEL_OPERATIONS: (&str, &str) = ("TIDEPOOL_MODEL_OPERATIONS", "1000000");
/// The same of many nodes.
const CLUSTER_OPERATIONS: (&str, &str) = ("TIDEPOOL_CLUSTER_OPERATIONS", "100000");
/// What a test prints where it leaves something out, followed by the reason.
const SKIP_MARKS: [&str; 2] = ["SKIPPED", "skipped:"];
/// Of the reason of a failure, so much is put on its line.
const REASON_CHARACTERS: usize = 300;

/// All tests of the workspace.
pub fn run(options: &TestOptions) -> Result<Vec<Outcome>> {
    let binary = environment::binary()?;
    let outcome = match environment::python_tool(&nextest::TOOL) {
        Ok(runner) => nextest::run(&runner, &binary, options.long)?,
        Err(error) => {
            println!("x: tests run by `cargo test`, once each: no nextest: {error:#}");
            cargo::run(&binary, options.long)?
        }
    };
    if !outcome.output.is_empty() {
        // Now as well as at the end: a run that is cut off still tells.
        println!("{}", outcome.output);
    }
    Ok(vec![outcome])
}

/// Those beside the code.
pub fn units() -> Result<Vec<Outcome>> {
    let outcome = cargo::units()?;
    if !outcome.output.is_empty() {
        println!("{}", outcome.output);
    }
    Ok(vec![outcome])
}

/// Notes a line of a test program about a test that did not run.
fn note_ignored(outcome: &mut Outcome, name: &str, reason: &str) {
    match reason.trim_start_matches(", ") {
        // A doc test marked `ignore` is text, not a check.
        "" if name.contains(" - ") => {}
        // Started by another test as a process of its own.
        reason if reason.starts_with("a part of") => {}
        // Long ones run by command; their reason says so.
        reason if reason.starts_with("long") => {
            outcome.notes.push(format!("by `./x test --long`: {name}: {reason}"));
        }
        reason => outcome.skipped.push(format!("{name}: {reason}")),
    }
}

/// Where and why a test panicked, all of its threads, in one line.
fn panics_of<'a>(lines: impl Iterator<Item = &'a str>) -> String {
    let mut said = lines.peekable();
    let mut panics = Vec::new();
    while let Some(line) = said.next() {
        if let Some((_, place)) = line.split_once(" panicked at ") {
            let reason = said.peek().copied().unwrap_or_default();
            panics.push(format!("at {place} {}", excerpt(reason)));
        }
    }
    panics.join("; ")
}

fn excerpt(line: &str) -> &str {
    let end = line.char_indices().nth(REASON_CHARACTERS).map_or(line.len(), |(at, _)| at);
    &line[..end]
}
