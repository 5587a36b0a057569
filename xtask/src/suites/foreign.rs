//! Suites that no package registry has: run from a copy that the user names.
//!
//! `conformance/README.md` says where their sources are and how to build them.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Places, Subject, tail};
use crate::outcome::Outcome;
use crate::process;

const LIMIT: Duration = Duration::from_secs(7_200);

/// The file system tests of the Linux Test Project, from an installation at `LTPROOT`.
pub fn ltp(places: &Places) -> Result<Vec<Outcome>> {
    let root = place("LTPROOT", "an installation of the Linux Test Project")?;
    on_both(places, "ltp", |subject| {
        let mut outcome = Outcome::new(format!("ltp fs on {}", subject.name));
        let list = std::fs::read_to_string(root.join("runtest/fs"))?;
        for line in list.lines().filter(|line| !line.starts_with('#')) {
            let mut words = line.split_whitespace();
            let Some(tag) = words.next() else { continue };
            let words: Vec<String> = words.map(|word| expand(word, subject, &root)).collect();
            let Some((program, arguments)) = words.split_first() else { continue };
            run_ltp(&root, tag, program, arguments, subject, &mut outcome)?;
        }
        Ok(outcome)
    })
}

fn run_ltp(
    root: &std::path::Path,
    tag: &str,
    program: &str,
    arguments: &[String],
    subject: &Subject<'_>,
    outcome: &mut Outcome,
) -> Result<()> {
    const PASSED: i32 = 0;
    const NOT_CONFIGURED: i32 = 32;
    let directory = subject.directory.join(tag);
    std::fs::create_dir_all(&directory)?;
    let binaries = root.join("testcases/bin");
    let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = process::command(binaries.join(program), arguments);
    command.current_dir(&directory).env("PATH", path).env("LTPROOT", root);
    command.env("TMPDIR", &directory).env("TMP", &directory);
    let output = process::capture_within(&mut command, LIMIT);
    match output.as_ref().map(|output| output.status.code()) {
        Ok(Some(PASSED)) => outcome.passed += 1,
        Ok(Some(NOT_CONFIGURED)) => outcome.skipped.push(format!("{tag}: not configured here")),
        Ok(code) => {
            let said = output.as_ref().map(|output| tail(&output.stderr, 4)).unwrap_or_default();
            outcome.failed.push(format!("{tag}: exit {code:?}: {said}"));
        }
        Err(error) => outcome.failed.push(format!("{tag}: {error:#}")),
    }
    let _ = std::fs::remove_dir_all(&directory);
    Ok(())
}

/// Lines of the list use these variables of the environment.
fn expand(word: &str, subject: &Subject<'_>, root: &std::path::Path) -> String {
    let here = subject.directory.to_string_lossy();
    let root = root.to_string_lossy();
    let word = word.replace("${TMPDIR}", &here).replace("$TMPDIR", &here);
    word.replace("${LTPROOT}", &root).replace("$LTPROOT", &root)
}

/// The POSIX test suite in its Perl form, from a built checkout at `PJDFSTEST`.
pub fn pjdfstest_perl(places: &Places) -> Result<Vec<Outcome>> {
    let root = place("PJDFSTEST", "a built checkout of pjdfstest")?;
    on_both(places, "pjdfstest-perl", |subject| {
        let mut outcome = Outcome::new(format!("pjdfstest (Perl) on {}", subject.name));
        let mut command = Command::new("prove");
        command.args(["--recurse", "--failures"]).arg(root.join("tests"));
        command.current_dir(&subject.directory);
        let output = process::capture_within(&mut command, LIMIT)?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let summary = text.lines().find(|line| line.starts_with("Files="));
        let summary = summary.with_context(|| tail(&output.stderr, 8))?;
        let total = summary.split("Tests=").nth(1).and_then(|rest| rest.split(',').next());
        outcome.passed = total.and_then(|text| text.trim().parse().ok()).unwrap_or(0);
        for line in text.lines().filter(|line| line.contains("Failed: ")) {
            outcome.failed.push(line.trim().to_owned());
        }
        Ok(outcome)
    })
}

/// Runs on both and takes what fails on the bare file system out of the node's failures.
fn on_both(
    places: &Places,
    name: &str,
    suite: impl Fn(&Subject<'_>) -> Result<Outcome>,
) -> Result<Vec<Outcome>> {
    let mut outcomes = Vec::new();
    let mut excused = Vec::new();
    if places.wants_bare() {
        let mut bare = places.on_bare(name, &suite)?;
        excused = std::mem::take(&mut bare.failed);
        bare.notes.extend(excused.iter().map(|line| format!("fails here itself: {line}")));
        outcomes.push(bare);
    }
    if places.wants_node() {
        let mut node = places.on_node(name, "256MiB", &suite)?;
        let key = |line: &str| line.split(':').next().unwrap_or(line).to_owned();
        let excused: Vec<String> = excused.iter().map(|line| key(line)).collect();
        node.failed.retain(|line| !excused.contains(&key(line)));
        outcomes.push(node);
    }
    Ok(outcomes)
}

fn place(variable: &str, what: &str) -> Result<PathBuf> {
    let Some(path) = std::env::var_os(variable) else {
        bail!("set {variable} to {what}; conformance/README.md says how to get one");
    };
    PathBuf::from(path).canonicalize().with_context(|| format!("{variable} names no directory"))
}
