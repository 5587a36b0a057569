//! The POSIX test suite, on the bare file system and on a node, compared test by test.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::verdicts::{Rule, Verdict, Verdicts};
use super::{Places, Subject, conformance, other_file_system, tail};
use crate::environment;
use crate::outcome::Outcome;
use crate::process;

const LIMIT: Duration = Duration::from_secs(600);

/// `conformance/pjdfstest.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expectations {
    /// Features of Linux file systems that the suite asks to be told of.
    features: Vec<String>,
    /// Tests that cannot be asked of a mount, although they run on the file system below.
    #[serde(default)]
    not_applicable: Vec<Rule>,
    /// Tests that fail on a node although they pass on the file system below.
    #[serde(default)]
    deviation: Vec<Rule>,
}

/// Which tests run: those that remount the file system read-only, or the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Remount {
    Never,
    Alone,
}

/// Runs the suite where the options say and judges by comparison.
pub fn run(places: &Places) -> Result<Vec<Outcome>> {
    let path = conformance("pjdfstest.toml");
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let expectations: Expectations = toml::from_str(&text)?;
    let mut outcomes = Vec::new();
    let mut bare = Verdicts::new();
    if places.wants_bare() {
        bare = places.on_bare("pjdfstest", |subject| suite(places, &expectations, subject))?;
        outcomes.push(judge("pjdfstest on bare", &bare, None, &expectations));
    }
    if places.wants_node() {
        let node = places
            .on_node("pjdfstest", "64MiB", |subject| suite(places, &expectations, subject))?;
        outcomes.push(judge("pjdfstest on node", &node, Some(&bare), &expectations));
    }
    Ok(outcomes)
}

fn suite(places: &Places, expectations: &Expectations, on: &Subject<'_>) -> Result<Verdicts> {
    let features = &expectations.features;
    let mut verdicts = in_directory(&on.directory, features, Remount::Never)?;
    if places.private {
        // Apart: other tests leave files open for writing, and then nothing can be remounted.
        verdicts.extend(in_directory(&on.directory, features, Remount::Alone)?);
    }
    Ok(verdicts)
}

/// Number of tests that failed in `directory`.
pub fn failures_in(directory: &Path) -> Result<usize> {
    let features = ["utimensat".to_owned()];
    let verdicts = in_directory(directory, &features, Remount::Never)?;
    Ok(verdicts.values().filter(|verdict| matches!(verdict, Verdict::Failed(_))).count())
}

fn in_directory(directory: &Path, features: &[String], remount: Remount) -> Result<Verdicts> {
    let other = other_file_system()?;
    let state = tempfile::tempdir()?;
    let configuration = state.path().join("pjdfstest.toml");
    std::fs::write(&configuration, configure(features, remount)?)?;
    let mut command = Command::new(environment::tool(environment::PJDFSTEST)?);
    command.arg("--configuration-file").arg(&configuration).arg("--path").arg(directory);
    command.arg("--secondary-fs").arg(other.path()).env("NO_COLOR", "1");
    if remount == Remount::Alone {
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", conformance("mount-internal").display());
        command.arg("erofs").env("PATH", path);
    }
    let output = process::capture_within(&mut command, LIMIT)?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    if !text.contains("Summary") {
        let said = [output.stdout, output.stderr].concat();
        bail!("pjdfstest ended early, {}:\n        {}", output.status, tail(&said, 12));
    }
    let verdicts = read_verdicts(&text);
    let total = text.lines().last().and_then(|line| {
        line.rsplit(", ").next()?.split_whitespace().next()?.parse::<usize>().ok()
    });
    if total != Some(verdicts.len()) {
        bail!("understood {} of {total:?} verdicts of pjdfstest", verdicts.len());
    }
    Ok(verdicts)
}

fn configure(features: &[String], remount: Remount) -> Result<String> {
    let mut text = String::from("[features]\n");
    for feature in features {
        text.push_str(&format!("{feature} = {{}}\n"));
    }
    let may = remount == Remount::Alone;
    text.push_str(&format!("[settings]\nnaptime = 0.02\nallow_remount = {may}\n"));
    let mut entries = Vec::new();
    for user in ["nobody", "tests"] {
        let group = process::read(&mut process::command("id", &["-gn", user]))
            .with_context(|| format!("no user `{user}`; start this through ./x"))?;
        entries.push(format!("[\"{user}\", \"{}\"]", group.trim()));
    }
    text.push_str(&format!("[dummy_auth]\nentries = [{}]\n", entries.join(", ")));
    Ok(text)
}

fn read_verdicts(text: &str) -> Verdicts {
    let mut verdicts = Verdicts::new();
    let mut latest = String::new();
    for line in text.lines() {
        if let Some(detail) = line.strip_prefix('\t') {
            match verdicts.get_mut(&latest) {
                Some(Verdict::Failed(text) | Verdict::Skipped(text)) if text.is_empty() => {
                    *text = detail.trim().to_owned();
                }
                _ => {}
            }
            continue;
        }
        let mut words = line.split_whitespace();
        let (Some(name), Some(word), None) = (words.next(), words.next(), words.next()) else {
            continue;
        };
        let verdict = match word {
            "ok" => Verdict::Passed,
            "FAILED" => Verdict::Failed(String::new()),
            "skipped" => Verdict::Skipped(String::new()),
            _ => continue,
        };
        latest = name.to_owned();
        verdicts.insert(latest.clone(), verdict);
    }
    verdicts
}

fn judge(
    name: &str,
    verdicts: &Verdicts,
    bare: Option<&Verdicts>,
    expectations: &Expectations,
) -> Outcome {
    let mut outcome = Outcome::new(name);
    let mut deviations = BTreeSet::new();
    for (test, verdict) in verdicts {
        match verdict {
            Verdict::Passed => outcome.passed += 1,
            Verdict::Skipped(reason) => {
                let rules = &expectations.not_applicable;
                match rules.iter().find(|rule| bare.is_some() && rule.covers(test)) {
                    Some(rule) => {
                        outcome.declared += 1;
                        outcome.notes.push(format!("not applicable: {test}: {}", rule.reason));
                    }
                    None => outcome.skipped.push(format!("{test}: {reason}")),
                }
            }
            Verdict::Failed(detail) => match (bare, bare.and_then(|bare| bare.get(test))) {
                (None, _) => {
                    outcome.not_counted += 1;
                    outcome.notes.push(format!("fails here itself: {test}: {detail}"));
                }
                (_, Some(Verdict::Failed(_))) => {
                    outcome.not_counted += 1;
                    outcome.notes.push(format!("fails on the file system below, too: {test}"));
                }
                _ => match expectations.deviation.iter().position(|rule| rule.covers(test)) {
                    Some(index) => {
                        deviations.insert(index);
                        outcome.declared += 1;
                        let reason = &expectations.deviation[index].reason;
                        outcome.notes.push(format!("deviation: {test}: {reason}"));
                    }
                    None => outcome.failed.push(format!("{test}: {detail}")),
                },
            },
        }
    }
    if bare.is_some() {
        for (index, rule) in expectations.deviation.iter().enumerate() {
            if !deviations.contains(&index) {
                outcome.failed.push(format!(
                    "{} does not fail: take its deviation out of conformance/pjdfstest.toml",
                    rule.test
                ));
            }
        }
    }
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "chmod::a   ok\nchmod::b   FAILED\n\tassertion failed\nopen::c skipped\n\
        \trequires features: chflags\n\nSummary: 1 failed, 1 skipped, 1 passed, 3 total";

    fn expectations(deviation: Vec<Rule>) -> Expectations {
        Expectations { features: vec![], not_applicable: vec![], deviation }
    }

    #[test]
    fn verdicts_are_read_with_their_details() {
        let verdicts = read_verdicts(TEXT);
        assert_eq!(verdicts.len(), 3);
        assert_eq!(verdicts["chmod::b"], Verdict::Failed("assertion failed".into()));
        assert_eq!(verdicts["open::c"], Verdict::Skipped("requires features: chflags".into()));
    }

    #[test]
    fn only_the_file_system_below_or_a_reason_excuses() {
        let node = read_verdicts(TEXT);
        let passing: Verdicts = [("chmod::b".to_owned(), Verdict::Passed)].into();
        let failing: Verdicts = [("chmod::b".to_owned(), Verdict::Failed(String::new()))].into();
        let rule = || Rule { test: "chmod::b".into(), says: String::new(), reason: "known".into() };
        assert_eq!(judge("t", &node, Some(&passing), &expectations(vec![])).failed.len(), 1);
        assert_eq!(judge("t", &node, Some(&failing), &expectations(vec![])).failed.len(), 0);
        assert_eq!(judge("t", &node, Some(&passing), &expectations(vec![rule()])).failed.len(), 0);
        let stale = judge("t", &passing, Some(&passing), &expectations(vec![rule()]));
        assert_eq!(stale.failed.len(), 1, "a deviation that is none fails: {stale}");
    }
}
