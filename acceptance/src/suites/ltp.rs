//! The Linux Test Project, from an installation that the user names, on the bare file system and on
//! a node, compared test by test. `conformance/ltp.toml` says which tests are about files.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::comparison::{Comparison, Judged};
use super::verdicts::{Rule, Verdict};
use super::{Places, conformance, place, tail};
use crate::outcome::Outcome;
use crate::process;

const FILE: &str = "ltp.toml";
/// Of one test of the list `fs`; the longest take two minutes of a free machine.
const FS_LIMIT: Duration = Duration::from_secs(1_200);
/// Of one test of the list `syscalls`; the longest take two and a half minutes.
const SYSCALLS_LIMIT: Duration = Duration::from_secs(600);
/// Tests at a time: most of them wait for their time to be over.
const JOBS: usize = 6;
/// A test that opens as many files as it may must leave descriptors of the node to those beside it.
const OPEN_FILES: u32 = 1_024;
/// Packages of Debian that a build needs.
const PACKAGES: &str = "build-essential autoconf automake m4 bison flex pkgconf libacl1-dev \
    libaio-dev libcap-dev libnuma-dev";
/// How often the suite multiplies its own limits, which are made for a free machine.
const PATIENCE: &str = "4";
/// What its library says where a test makes a file system of its own.
const OWN_DEVICE: &str = "Using test device LTP_DEV";

/// `conformance/ltp.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expectations {
    /// The calls whose tests of the list `syscalls` are about files: a name without its number.
    calls: Vec<String>,
    /// Tests whose subject is not the directory that they run in.
    other_subject: Vec<Rule>,
    /// Tests that fail on a node although they pass on the file system below.
    #[serde(default)]
    deviation: Vec<Rule>,
}

/// A line of a list: a name, what a shell runs, and how long it may take.
#[derive(Clone, Debug)]
struct Test {
    tag: String,
    script: String,
    limit: Duration,
}

/// Runs the tests of the chosen list where the options say and judges by comparison.
pub fn run(places: &Places) -> Result<Vec<Outcome>> {
    let root = place("LTPROOT", "an installation of the Linux Test Project", PACKAGES)?;
    let list = places.options.list.as_str();
    if !["fs", "syscalls"].contains(&list) {
        bail!("--list takes fs or syscalls, not `{list}`");
    }
    let path = conformance(FILE);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let expectations: Expectations = toml::from_str(&text)?;
    let lines = root.join("runtest").join(list);
    let lines = std::fs::read_to_string(&lines).with_context(|| lines.display().to_string())?;
    let tests = choose(&lines, list, &expectations);
    let names = tests.iter().map(|test| test.tag.clone()).collect();
    let rules = (expectations.deviation.as_slice(), FILE);
    let mut suite = Comparison::new(format!("ltp {list}"), names, rules);
    suite.jobs = JOBS;
    let mut suite = suite.only(places.options.only.as_deref());
    let one = |tag: &str, directory: &Path| {
        let test = tests.iter().find(|test| test.tag == tag).context("a test of the list");
        read_result(test.and_then(|test| run_one(&root, test, directory)))
    };
    let mut outcomes = Vec::new();
    if places.wants_bare() {
        outcomes.push(
            places
                .on_bare("ltp", |subject| Ok(suite.on_bare(|tag| one(tag, &subject.directory))))?,
        );
    }
    if places.wants_node() {
        outcomes.push(places.on_node("ltp", "256MiB", |subject| {
            Ok(suite.on_node(|tag| one(tag, &subject.directory)))
        })?);
    }
    Ok(outcomes)
}

/// The tests of a list that are about the directory they run in.
fn choose(lines: &str, list: &str, expectations: &Expectations) -> Vec<Test> {
    let about_files = |tag: &str| {
        expectations.calls.iter().any(|call| {
            tag.strip_prefix(call.as_str()).is_some_and(|rest| {
                rest.is_empty() || rest.starts_with(|first: char| first.is_ascii_digit())
            })
        })
    };
    let limit = if list == "fs" { FS_LIMIT } else { SYSCALLS_LIMIT };
    let lines = lines.lines().map(str::trim).filter(|line| !line.starts_with('#'));
    lines
        .filter_map(|line| line.split_once(char::is_whitespace))
        .filter(|(tag, _)| list == "fs" || about_files(tag))
        .filter(|(tag, _)| !expectations.other_subject.iter().any(|rule| rule.covers(tag)))
        .map(|(tag, script)| Test { tag: tag.to_owned(), script: script.trim().to_owned(), limit })
        .collect()
}

/// Runs one line of the list as its own runner does, by a shell. In name spaces of its own: what a
/// test mounts or leaves running goes away with it.
fn run_one(root: &Path, test: &Test, parent: &Path) -> Result<Output> {
    let directory = parent.join(&test.tag);
    std::fs::create_dir_all(&directory)?;
    // Some tests are other users from the beginning.
    std::fs::set_permissions(&directory, Permissions::from_mode(0o777))?;
    let binaries = root.join("testcases/bin");
    let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = process::command(
        "unshare",
        &["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c"],
    );
    // The second command keeps the shell: a test does not expect to be the first process.
    command.arg(format!("ulimit -n {OPEN_FILES}; {}\nexit $?", test.script));
    command.current_dir(&directory).env("PATH", path).env("LTPROOT", root);
    command.env("TMPDIR", &directory).env("TMP", &directory);
    command.env("LTP_TIMEOUT_MUL", PATIENCE).env("LTP_COLORIZE_OUTPUT", "n");
    // No block device: a test that makes a file system tests that one, and ends early here.
    command.env("LTP_DEV", "/dev/null");
    let output = process::capture_within(&mut command, test.limit);
    let _ = std::fs::remove_dir_all(&directory);
    output
}

fn read_result(output: Result<Output>) -> Judged {
    const PASSED: i32 = 0;
    const NOT_CONFIGURED: i32 = 32;
    let output = match output {
        Ok(output) => output,
        Err(error) => return (Verdict::Failed(format!("{error:#}")), 0),
    };
    let said = [output.stdout, output.stderr].concat();
    let text = String::from_utf8_lossy(&said);
    let left_out = text.lines().filter(|line| line.contains("TCONF")).count();
    let verdict = match output.status.code() {
        _ if text.contains(OWN_DEVICE) => {
            Verdict::Skipped("makes a file system of its own".to_owned())
        }
        Some(PASSED) => Verdict::Passed,
        Some(NOT_CONFIGURED) => Verdict::Skipped(complaints(&text, &["TCONF"])),
        code => {
            let words = complaints(&text, &["TFAIL", "TBROK", "TWARN", "FAIL"]);
            Verdict::Failed(format!("exit {code:?}: {words}"))
        }
    };
    (verdict, left_out)
}

/// The lines with one of the words, or else the last ones.
fn complaints(text: &str, words: &[&str]) -> String {
    const MOST: usize = 6;
    let tells = |line: &&str| words.iter().any(|word| line.contains(word));
    let lines: Vec<&str> = text.lines().filter(tells).take(MOST).collect();
    if lines.is_empty() { tail(text.as_bytes(), MOST) } else { lines.join("\n        ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expectations() -> Expectations {
        let text = std::fs::read_to_string(conformance(FILE)).unwrap();
        toml::from_str(&text).unwrap()
    }

    #[test]
    fn the_tests_about_files_are_chosen_by_the_name_of_the_call() {
        let lines = "#open99 x\nopen01 open01\nopenat201 a -b\nreboot01 r\nstatmount01 s\n\
            stat01_64 s\n\nopen1";
        let tags = |list| {
            let tests = choose(lines, list, &expectations());
            tests
                .into_iter()
                .map(|test| format!("{}={}", test.tag, test.script))
                .collect::<Vec<_>>()
        };
        assert_eq!(tags("syscalls"), ["open01=open01", "openat201=a -b", "stat01_64=s"]);
        assert_eq!(tags("fs").len(), 5);
    }

    #[test]
    fn what_a_test_says_decides_with_its_exit_status() {
        let run = |script: &str| {
            read_result(process::capture(&mut process::command("sh", &["-c", script])))
        };
        assert_eq!(run("echo TCONF: no; exit 0"), (Verdict::Passed, 1));
        assert_eq!(run("echo a TCONF; echo b; exit 32").0, Verdict::Skipped("a TCONF".into()));
        let failed = Verdict::Failed("exit Some(3): t TFAIL: wrong".into());
        assert_eq!(run("echo t TFAIL: wrong; echo end; exit 3").0, failed);
        let device = run(&format!("echo {OWN_DEVICE}; exit 2")).0;
        assert!(matches!(device, Verdict::Skipped(_)), "{device:?}");
    }
}
