//! The tests run by `cargo test`, and what its text says of them.

use std::path::Path;
use std::process::Command;

use acceptance::outcome::Outcome;
use acceptance::{environment, process};
use anyhow::Result;

use super::{CLUSTER_OPERATIONS, MODEL_OPERATIONS, SKIP_MARKS, note_ignored, panics_of};

/// Runs all tests once.
pub fn run(binary: &Path, long: bool) -> Result<Outcome> {
    // The output of tests that passed is wanted too: it tells what they left out.
    let mut command = environment::cargo(&["test", "--workspace", "--no-fail-fast", "--"]);
    command.arg("--show-output").env("TIDEPOOL_BINARY", binary);
    if long {
        command.arg("--include-ignored").env(MODEL_OPERATIONS.0, MODEL_OPERATIONS.1);
        command.env(CLUSTER_OPERATIONS.0, CLUSTER_OPERATIONS.1);
    }
    counted(&mut command, long)
}

/// Runs the tests beside the code once: they need no node, no mount and no other program.
pub fn units() -> Result<Outcome> {
    let arguments = ["test", "--workspace", "--lib", "--bins", "--no-fail-fast", "--"];
    let mut outcome = counted(environment::cargo(&arguments).arg("--show-output"), false)?;
    outcome.name = "unit tests".to_owned();
    Ok(outcome)
}

fn counted(command: &mut Command, long: bool) -> Result<Outcome> {
    let (status, text) = process::follow(command)?;
    let mut outcome = count(&text, long);
    if !status.success() && outcome.failed.is_empty() {
        outcome.failed.push(format!("cargo test ended with {status}"));
    }
    outcome.output = said_by_failed(&text);
    Ok(outcome)
}

/// What the tests that failed printed, and the programs that did not compile.
fn said_by_failed(text: &str) -> String {
    let mut said = String::new();
    let mut wanted = false;
    for line in text.lines() {
        match line {
            "failures:" => wanted = true,
            "successes:" => wanted = false,
            _ if line.starts_with("test result: ") || line.starts_with("running ") => {
                wanted = false;
            }
            _ if line.starts_with("error") => wanted = true,
            _ => {}
        }
        if wanted {
            said.push_str(line);
            said.push('\n');
        }
    }
    said
}

/// What one test printed.
fn said_by<'a>(text: &'a str, name: &str) -> impl Iterator<Item = &'a str> {
    let begin = format!("---- {name} stdout ----");
    let said = text.lines().skip_while(move |line| *line != begin).skip(1);
    said.take_while(|line| !line.starts_with("---- "))
}

fn count(text: &str, long: bool) -> Outcome {
    let mut outcome = Outcome::new("tests");
    let mut programs = 0;
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("test result: ") {
            programs += 1;
            let number = rest.split("; ").find_map(|part| {
                let words: Vec<&str> = part.trim_end_matches(';').split_whitespace().collect();
                let place = words.iter().position(|word| *word == "passed")?;
                words[place.checked_sub(1)?].parse::<u64>().ok()
            });
            outcome.passed += number.unwrap_or(0);
        } else if SKIP_MARKS.iter().any(|mark| line.starts_with(mark)) {
            outcome.skipped.push(line.to_owned());
        } else if let Some(rest) = line.strip_prefix("test ") {
            if let Some(name) = rest.strip_suffix(" ... FAILED") {
                outcome.failed.push(format!("{rest} {}", panics_of(said_by(text, name))));
            } else if !long && let Some((name, reason)) = rest.split_once(" ... ignored") {
                note_ignored(&mut outcome, name, reason);
            }
        }
    }
    outcome.notes.push(format!("{programs} test programs"));
    outcome
}

#[cfg(test)]
mod tests {
    use super::{count, said_by_failed};

    #[test]
    fn counts_what_ran_and_names_what_did_not() {
        let text = "running 3 tests\ntest a::b ... ok\ntest a::c ... FAILED\n\
            test a::d ... ignored, needs two machines\ntest e ... ignored, long: an hour\n\
            test src/lib.rs - f (line 3) ... ignored\n\
            ---- a::c stdout ----\n\nthread 'a::c' (7) panicked at c.rs:3:9:\nit is wet\n\
            note: none\nthread 'two' (8) panicked at d.rs:1:1:\ncold\n\
            ---- a::g stdout ----\n\nthread 'a::g' (7) panicked at g.rs:3:9:\nfine\n\
            SKIPPED a::f: no loop devices\n\
            test result: FAILED. 1 passed; 1 failed; 2 ignored; 0 measured; 0 filtered out\n\
            test result: ok. 41 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out\n";
        let outcome = count(text, false);
        assert_eq!(outcome.passed, 42);
        assert_eq!(outcome.failed, ["a::c ... FAILED at c.rs:3:9: it is wet; at d.rs:1:1: cold"]);
        assert_eq!(outcome.skipped, ["a::d: needs two machines", "SKIPPED a::f: no loop devices"]);
        assert!(!outcome.is_good());
    }

    #[test]
    fn of_the_output_only_that_of_failures_is_shown() {
        let text = "running 2 tests\ntest a ... ok\ntest b ... FAILED\n\nsuccesses:\n\n\
            ---- a stdout ----\nfine\n\nsuccesses:\n    a\n\nfailures:\n\n---- b stdout ----\n\
            panicked at b\n\nfailures:\n    b\n\ntest result: FAILED. 1 passed\nrunning 1 test\n";
        let said = said_by_failed(text);
        assert!(said.contains("---- b stdout ----\npanicked at b\n"), "{said}");
        assert!(!said.contains("fine") && !said.contains("running"), "{said}");
        assert_eq!(said_by_failed("error: could not compile\n"), "error: could not compile\n");
    }
}
