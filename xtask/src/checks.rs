//! Every check that a change must pass, in one run, with counts. A check that was left out is
//! printed with its reason; where this machine could have run it, leaving it out is a failure.

use std::time::Instant;

use anyhow::{Context, Result};

use crate::arguments::{DemoOptions, ExampleOptions, Storage, SuiteOptions, TestOptions};
use crate::environment;
use crate::outcome::Outcome;
use crate::process;
use crate::{demo, examples, java, suites, tidy};

/// Random operations of the comparison with the reference model.
const MODEL_OPERATIONS: &str = "TIDEPOOL_MODEL_OPERATIONS";
/// What a test prints where it leaves something out, followed by the reason.
const SKIP_MARKS: [&str; 2] = ["SKIPPED", "skipped:"];

/// Of the reason of a failure, so much is put on its line.
const REASON_CHARACTERS: usize = 300;

type Step = (&'static str, fn(&TestOptions) -> Result<Vec<Outcome>>);

const STEPS: [Step; 9] = [
    ("format", format),
    ("build", |_| Ok(vec![Outcome::of("release build", environment::build_release())])),
    ("clippy", clippy),
    ("tests", cargo_tests),
    ("java", |_| java::test()),
    ("tidy", |_| Ok(vec![tidy::run()?])),
    ("suites", run_suites),
    ("examples", run_examples),
    ("demo", run_demo),
];

/// Runs every step, also after a failure, and prints what came of them.
pub fn run(options: &TestOptions) -> Result<()> {
    let complete = environment::is_root() && environment::has_fuse();
    let started = Instant::now();
    let mut outcomes = Vec::new();
    for (name, step) in STEPS {
        if options.only.as_ref().is_some_and(|only| !name.contains(only.as_str())) {
            continue;
        }
        eprintln!("x: {name}");
        let began = Instant::now();
        let new = step(options).unwrap_or_else(|error| vec![Outcome::of::<()>(name, Err(error))]);
        for mut outcome in new {
            if complete {
                // Root with FUSE can run everything, so nothing may be left out.
                let skipped = outcome.skipped.iter();
                outcome.failed.extend(skipped.map(|reason| format!("left out: {reason}")));
            }
            println!("{outcome}");
            outcomes.push(outcome);
        }
        eprintln!("x: {name}: {:.0} s", began.elapsed().as_secs_f64());
    }
    anyhow::ensure!(!outcomes.is_empty(), "no step has this name");
    summarise(&outcomes, started)
}

fn summarise(outcomes: &[Outcome], started: Instant) -> Result<()> {
    println!("\nSummary");
    for outcome in outcomes {
        println!("{}", outcome.line());
    }
    for outcome in outcomes.iter().filter(|outcome| !outcome.output.is_empty()) {
        println!("\nWhat failures of {} printed\n{}", outcome.name, outcome.output);
    }
    let passed: u64 = outcomes.iter().map(|outcome| outcome.passed).sum();
    let failed: usize = outcomes.iter().map(|outcome| outcome.failed.len()).sum();
    let skipped: usize = outcomes.iter().map(|outcome| outcome.skipped.len()).sum();
    println!(
        "{passed} passed, {failed} failed, {skipped} skipped, {:.1} minutes",
        started.elapsed().as_secs_f64() / 60.0
    );
    let bad = outcomes.iter().filter(|outcome| !outcome.is_good()).count();
    anyhow::ensure!(bad == 0, "{bad} of {} steps failed", outcomes.len());
    Ok(())
}

fn format(_: &TestOptions) -> Result<Vec<Outcome>> {
    let result = process::read(&mut environment::cargo(&["fmt", "--all", "--check"]));
    Ok(vec![Outcome::of("format", result.context("run `cargo fmt`"))])
}

fn clippy(_: &TestOptions) -> Result<Vec<Outcome>> {
    let arguments = ["clippy", "--workspace", "--all-targets", "--quiet", "--", "-D", "warnings"];
    Ok(vec![Outcome::of("clippy", process::read(&mut environment::cargo(&arguments)))])
}

/// All tests of the workspace; counts what the test programs say.
fn cargo_tests(options: &TestOptions) -> Result<Vec<Outcome>> {
    let binary = environment::binary()?;
    // The output of tests that passed is wanted too: it tells what they left out.
    let mut command = environment::cargo(&["test", "--workspace", "--no-fail-fast", "--"]);
    command.arg("--show-output").env("TIDEPOOL_BINARY", binary);
    if options.long {
        command.arg("--include-ignored").env(MODEL_OPERATIONS, "1000000");
    }
    let (status, text) = process::follow(&mut command)?;
    let mut outcome = count_tests(&text, options.long);
    if !status.success() && outcome.failed.is_empty() {
        outcome.failed.push(format!("cargo test ended with {status}"));
    }
    outcome.output = said_by_failed(&text);
    if !outcome.output.is_empty() {
        // Now as well as at the end: a run that is cut off still tells.
        println!("{}", outcome.output);
    }
    Ok(vec![outcome])
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

/// Where and why a test panicked, all of its threads, in one line.
fn panics_of(text: &str, name: &str) -> String {
    let begin = format!("---- {name} stdout ----");
    let said = text.lines().skip_while(|line| *line != begin).skip(1);
    let mut said = said.take_while(|line| !line.starts_with("---- ")).peekable();
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

fn count_tests(text: &str, long: bool) -> Outcome {
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
                outcome.failed.push(format!("{rest} {}", panics_of(text, name)));
            } else if !long && let Some((name, reason)) = rest.split_once(" ... ignored") {
                // Long ones run by command; their reason says so. A doc test marked `ignore`
                // is text, not a check.
                match reason.trim_start_matches(", ") {
                    "" if name.contains(" - ") => {}
                    // Started by another test as a process of its own.
                    reason if reason.starts_with("a part of") => {}
                    reason if reason.starts_with("long") => {
                        outcome.notes.push(format!("by `./x test --long`: {name}: {reason}"));
                    }
                    reason => outcome.skipped.push(format!("{name}: {reason}")),
                }
            }
        }
    }
    outcome.notes.push(format!("{programs} test programs"));
    outcome
}

fn run_suites(options: &TestOptions) -> Result<Vec<Outcome>> {
    let seed = if options.long { (1..=8).collect() } else { Vec::new() };
    let operations = if options.long { 200_000 } else { 20_000 };
    let names = Vec::new();
    suites::run(&SuiteOptions { names, on: "both".into(), pfs: None, seed, operations })
}

/// One job of Hadoop in turmoil; with `--long`, Spark and Flink too.
fn run_examples(options: &TestOptions) -> Result<Vec<Outcome>> {
    let names = ["terasort-local", "spark-kmeans", "flink"];
    let count = if options.long { names.len() } else { 1 };
    let run = |name: &&str| {
        let result = examples::report(
            name,
            &ExampleOptions {
                name: Some((*name).to_owned()),
                size: (!options.long).then_some(16 << 20),
                storage: Storage::Tide,
                pfs: None,
                turmoil: true,
                seed: None,
                forget_before: None,
                json: None,
            },
        );
        let notes = result
            .as_ref()
            .map_or(Vec::new(), |report| report.turmoil.clone().into_iter().collect());
        let mut outcome = Outcome::of(&format!("example {name}"), result);
        outcome.notes = notes;
        outcome
    };
    Ok(names[..count].iter().map(run).collect())
}

fn run_demo(options: &TestOptions) -> Result<Vec<Outcome>> {
    let report = tempfile::tempdir()?;
    let result = demo::run(&DemoOptions {
        pfs: None,
        size: if options.long { 3 << 30 } else { 256 << 20 },
        quick: !options.long,
        iterations: 10,
        rate: 400_000_000,
        from: None,
        report: Some(report.path().to_path_buf()),
    });
    Ok(vec![Outcome::of("demo", result)])
}

#[cfg(test)]
mod tests {
    use super::{count_tests, said_by_failed};

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
        let outcome = count_tests(text, false);
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
