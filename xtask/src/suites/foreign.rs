//! Suites that no package registry has: run from a copy that the user names.
//!
//! `conformance/README.md` says where their sources are and how to build them.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, bail};

use super::{Places, Subject, tail};
use crate::outcome::Outcome;
use crate::process;

const LIMIT: Duration = Duration::from_secs(7_200);
/// Of one test of the Linux Test Project; the longest take two minutes of a free machine.
const LTP_LIMIT: Duration = Duration::from_secs(1_200);

/// Tests of the list whose subject is not the directory that they run in.
const OTHER_SUBJECTS: [(&str, &str); 6] = [
    ("proc01", "/proc"),
    ("read_all", "/dev, /proc and /sys"),
    ("quota_remount", "quotas of a file system of its own"),
    ("isofs", "ISO images"),
    ("binfmt_misc", "formats of programs"),
    ("squashfs", "SquashFS images"),
];
/// Tests at a time: most of them wait for their time to be over.
const LTP_JOBS: usize = 6;

/// The file system tests of the Linux Test Project, from an installation at `LTPROOT`.
pub fn ltp(places: &Places) -> Result<Vec<Outcome>> {
    let root = place("LTPROOT", "an installation of the Linux Test Project")?;
    let list = std::fs::read_to_string(root.join("runtest/fs"))?;
    let mut tests: Vec<(&str, &str)> = Vec::new();
    let mut others: Vec<String> = Vec::new();
    for line in list.lines().map(str::trim).filter(|line| !line.starts_with('#')) {
        let Some((tag, script)) = line.split_once(char::is_whitespace) else { continue };
        match OTHER_SUBJECTS.iter().find(|(start, _)| tag.starts_with(start)) {
            Some((_, what)) => others.push(format!("{tag}: tests {what}")),
            None => tests.push((tag, script)),
        }
    }
    on_both(places, "ltp", |subject| {
        let waiting = Mutex::new(tests.iter());
        let outcome = Mutex::new(Outcome::new(format!("ltp fs on {}", subject.name)));
        let work = || {
            while let Some((tag, script)) = take_next(&waiting) {
                let result = run_ltp(&root, tag, script, &subject.directory);
                note_ltp(tag, result, &mut outcome.lock().unwrap_or_else(PoisonError::into_inner));
            }
        };
        std::thread::scope(|scope| (0..LTP_JOBS).for_each(|_| drop(scope.spawn(work))));
        let mut outcome = outcome.into_inner().unwrap_or_else(PoisonError::into_inner);
        outcome.notes.extend(others.iter().map(|line| format!("left out: {line}")));
        Ok(outcome)
    })
}

fn take_next<'a, T>(waiting: &Mutex<std::slice::Iter<'a, T>>) -> Option<&'a T> {
    waiting.lock().unwrap_or_else(PoisonError::into_inner).next()
}

/// Runs one line of the list as its own runner does, by a shell.
fn run_ltp(root: &Path, tag: &str, script: &str, parent: &Path) -> Result<Output> {
    eprintln!("x: ltp: {tag}");
    let directory = parent.join(tag);
    std::fs::create_dir_all(&directory)?;
    let binaries = root.join("testcases/bin");
    let path = format!("{}:{}", binaries.display(), std::env::var("PATH").unwrap_or_default());
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(&directory);
    command.env("PATH", path).env("LTPROOT", root);
    command.env("TMPDIR", &directory).env("TMP", &directory);
    let output = process::capture_within(&mut command, LTP_LIMIT);
    let _ = std::fs::remove_dir_all(&directory);
    output
}

fn note_ltp(tag: &str, result: Result<Output>, outcome: &mut Outcome) {
    const PASSED: i32 = 0;
    const NOT_CONFIGURED: i32 = 32;
    match result {
        Ok(output) => match output.status.code() {
            Some(PASSED) => outcome.passed += 1,
            Some(NOT_CONFIGURED) => {
                let said = tail(&[output.stdout, output.stderr].concat(), 4);
                outcome.skipped.push(format!("{tag}: not configured here: {said}"));
            }
            code => {
                let said = tail(&[output.stdout, output.stderr].concat(), 12);
                outcome.failed.push(format!("{tag}: exit {code:?}: {said}"));
            }
        },
        Err(error) => outcome.failed.push(format!("{tag}: {error:#}")),
    }
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
        // Files are also listed where tests that were expected to fail passed.
        let failed = |line: &&str| line.contains("Failed: ") && !line.contains("Failed: 0)");
        for line in text.lines().filter(failed) {
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
