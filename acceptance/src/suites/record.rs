//! Results of suites that are kept: a file of `conformance/results` for the latest recorded run of
//! each, and `conformance/RESULTS.md`, made of these files and of the declared deviations.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::conformance;
use super::verdicts::Rule;
use crate::arguments::SuiteOptions;
use crate::environment;
use crate::outcome::Outcome;
use crate::process;

/// A suite that can be recorded.
struct Suite {
    /// The name of its file of results.
    name: &'static str,
    /// For people.
    title: &'static str,
    command: &'static str,
    /// Its file of declared deviations, if it has one.
    declared: Option<&'static str>,
}

const SUITES: [Suite; 9] = [
    Suite {
        name: "pjdfstest",
        title: "The POSIX suite pjdfstest, its edition in Rust",
        command: "./x suites pjdfstest",
        declared: Some("pjdfstest.toml"),
    },
    Suite {
        name: "fsx",
        title: "Random operations while the store is resized, emptied and given other policies",
        command: "./x suites fsx",
        declared: None,
    },
    Suite {
        name: "fio",
        title: "Checksums of random writers by fio, before and after the store is emptied",
        command: "./x suites fio",
        declared: None,
    },
    Suite {
        name: "crash",
        title: "Loss of power when `close` returns, and kill -9 of the node",
        command: "./x suites crash",
        declared: None,
    },
    Suite {
        name: "proof",
        title: "Planted errors that the suites must find",
        command: "./x suites proof",
        declared: None,
    },
    Suite {
        name: "ltp-fs",
        title: "Linux Test Project, list `fs`",
        command: "LTPROOT=/opt/ltp ./x suites ltp",
        declared: None,
    },
    Suite {
        name: "ltp-syscalls",
        title: "Linux Test Project, list `syscalls`, calls about files",
        command: "LTPROOT=/opt/ltp ./x suites ltp --list syscalls",
        declared: Some("ltp.toml"),
    },
    Suite {
        name: "xfstests",
        title: "Of xfstests the generic tests of the group `quick`",
        command: "XFSTESTS=$PWD ./x suites xfstests",
        declared: Some("xfstests.toml"),
    },
    Suite {
        name: "hadoop",
        title: "Java tests of `tide://`, with Hadoop's own contract suites",
        command: "./x test --only java",
        declared: Some("hadoop.toml"),
    },
];

/// One run of a suite.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Record {
    /// Version of the suite.
    version: String,
    /// Which part of it ran, in words.
    slice: String,
    /// Day of the run in UTC.
    date: String,
    /// Release of the kernel.
    kernel: String,
    results: Vec<Counts>,
}

/// What came of a suite in one place.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Counts {
    name: String,
    passed: u64,
    /// Failed as declared.
    declared: u64,
    /// Say nothing here: they fail on the file system below as well.
    not_counted: u64,
    /// Failed otherwise, one line each.
    failed: Vec<String>,
    /// Left out: how many by each reason.
    skipped: BTreeMap<String, u64>,
}

impl From<&Outcome> for Counts {
    fn from(outcome: &Outcome) -> Self {
        let mut skipped = BTreeMap::new();
        for line in &outcome.skipped {
            let reason = line.split_once(": ").map_or(line.as_str(), |(_, reason)| reason);
            *skipped.entry(reason.to_owned()).or_default() += 1;
        }
        let Outcome { name, passed, declared, not_counted, failed, .. } = outcome.clone();
        Counts { name, passed, declared, not_counted, failed, skipped }
    }
}

/// The name that results of a suite are kept by.
///
/// # Errors
/// The suite is none of those that are recorded, or only a part of it was asked for.
pub fn check(suite: &str, options: &SuiteOptions) -> Result<String> {
    let name = if suite == "ltp" { format!("ltp-{}", options.list) } else { suite.to_owned() };
    anyhow::ensure!(SUITES.iter().any(|suite| suite.name == name), "{name} is not recorded");
    anyhow::ensure!(options.only.is_none(), "--record keeps whole suites, not --only");
    Ok(name)
}

/// Keeps what came of a suite.
///
/// # Errors
/// As [`check`], or the file cannot be written.
pub fn keep(suite: &str, options: &SuiteOptions, outcomes: &[Outcome]) -> Result<()> {
    let name = check(suite, options)?;
    let record = Record {
        version: version(suite)?,
        slice: slice(suite, options),
        date: process::read(&mut process::command("date", &["-u", "+%F"]))?.trim().to_owned(),
        kernel: kernel(),
        results: outcomes.iter().map(Counts::from).collect(),
    };
    let path = file_of(&environment::checkout(), &name);
    let text = format!("# The latest run with `--record`.\n\n{}", toml::to_string(&record)?);
    std::fs::write(&path, text).with_context(|| path.display().to_string())
}

/// The release of the kernel without what its maker added.
fn kernel() -> String {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    release.split('-').next().unwrap_or(&release).to_owned()
}

fn file_of(checkout: &Path, suite: &str) -> PathBuf {
    checkout.join("conformance/results").join(format!("{suite}.toml"))
}

fn version(suite: &str) -> Result<String> {
    let of_checkout = |variable: &str| {
        let place = std::env::var(variable).with_context(|| variable.to_owned())?;
        let arguments = ["-C", place.as_str(), "rev-parse", "--short", "HEAD"];
        process::read(&mut process::command("git", &arguments))
    };
    let version = match suite {
        "pjdfstest" => environment::PJDFSTEST.version.to_owned(),
        "fsx" => environment::FSX.version.to_owned(),
        "fio" => process::read(&mut process::command("fio", &["--version"]))?,
        "ltp" => {
            let place = PathBuf::from(std::env::var("LTPROOT").context("LTPROOT")?);
            std::fs::read_to_string(place.join("Version")).or_else(|_| of_checkout("LTPROOT"))?
        }
        "xfstests" => of_checkout("XFSTESTS")?,
        _ => env!("CARGO_PKG_VERSION").to_owned(),
    };
    Ok(version.trim().to_owned())
}

fn slice(suite: &str, options: &SuiteOptions) -> String {
    let mut words = vec![match (suite, options.seed.as_slice()) {
        ("fsx", []) => format!("{} operations a seed", options.operations),
        ("fsx", seeds) => format!("{} operations a seed, seeds {seeds:?}", options.operations),
        _ => "whole".to_owned(),
    }];
    words.extend((options.on != "both").then(|| format!("on {} alone", options.on)));
    words.extend(options.node_option.iter().map(|option| format!("nodes with {option}")));
    if options.pfs.is_some() {
        words.push("over a directory that was named".to_owned());
    }
    words.join(", ")
}

/// The text of `conformance/RESULTS.md`.
///
/// # Errors
/// A file of results or of deviations cannot be understood.
pub fn page() -> Result<String> {
    let mut page = "# Results of suites from elsewhere\n\n\
        *For people who doubt a promise. Made by `cargo x docs` from `results/`, where `--record` \
        keeps the latest run,\nand from the deviations that are declared.*\n\n\
        How the suites run and what counts: [suites](README.md). *Declared* failed or did not run \
        on the node, for a reason\nbelow. *Not counted* does not pass on the file system below \
        either. Each run names its day, its kernel and its part\nof the suite.\n\n\
        | suite | version | run | passed | failed | declared | not counted | left out |\n\
        |---|---|---|--:|--:|--:|--:|--:|\n"
        .to_owned();
    let mut details = String::new();
    for suite in &SUITES {
        let record = read(suite)?;
        match &record {
            Some(record) => rows(&mut page, suite, record)?,
            None => writeln!(page, "| {} | | no run recorded | | | | | |", suite.name)?,
        }
        section(&mut details, suite, record.as_ref())?;
    }
    Ok(page + &details)
}

fn read(suite: &Suite) -> Result<Option<Record>> {
    let path = file_of(&environment::checkout(), suite.name);
    if !path.is_file() {
        return Ok(None);
    }
    let text = std::fs::read_to_string(&path)?;
    toml::from_str(&text).with_context(|| path.display().to_string()).map(Some)
}

fn rows(page: &mut String, suite: &Suite, record: &Record) -> Result<()> {
    let Record { version, slice, date, kernel, results } = record;
    for counts in results {
        let name = if results.len() == 1 { suite.name } else { counts.name.as_str() };
        let Counts { passed, declared, not_counted, failed, skipped, .. } = counts;
        let (failed, skipped) = (failed.len(), skipped.values().sum::<u64>());
        writeln!(
            page,
            "| {name} | {version} | {date}, Linux {kernel}, {slice} | {passed} | {failed} | \
             {declared} | {not_counted} | {skipped} |"
        )?;
    }
    Ok(())
}

/// What a suite is, how to run it, what failed or was left out, and what is declared.
fn section(page: &mut String, suite: &Suite, record: Option<&Record>) -> Result<()> {
    let Suite { name, title, command, .. } = suite;
    writeln!(page, "\n## {name}\n\n{title}.\n\n    {command}")?;
    for counts in record.iter().flat_map(|record| &record.results) {
        for line in &counts.failed {
            writeln!(page, "\nFailed, {}: {}", counts.name, one_line(line))?;
        }
        if !counts.skipped.is_empty() {
            writeln!(page, "\nLeft out, {}:\n\n| tests | why |\n|--:|---|", counts.name)?;
        }
        for (reason, tests) in &counts.skipped {
            writeln!(page, "| {tests} | {} |", one_line(reason))?;
        }
    }
    let rules = suite.declared.map(declared).transpose()?.unwrap_or_default();
    if !rules.is_empty() {
        writeln!(page, "\nDeclared:\n\n| tests | that say | why |\n|---|---|---|")?;
    }
    for (reason, rules) in rules {
        let list = |text: fn(&Rule) -> &String| {
            let mut all: Vec<&str> = rules.iter().map(|rule| text(rule).as_str()).collect();
            all.dedup();
            all.iter().map(|it| one_line(it)).collect::<Vec<_>>().join(", ")
        };
        let (tests, says) = (list(|rule| &rule.test), list(|rule| &rule.says));
        writeln!(page, "| {tests} | {says} | {} |", one_line(&reason))?;
    }
    Ok(())
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ").replace('|', "\\|").replace('*', "\\*")
}

/// What a file of `conformance/` declares, by the reason, in the order of the file.
fn declared(file: &str) -> Result<Vec<(String, Vec<Rule>)>> {
    #[derive(Deserialize)]
    struct Declared {
        #[serde(default)]
        not_applicable: Vec<Rule>,
        #[serde(default)]
        too_long: Vec<Rule>,
        #[serde(default)]
        deviation: Vec<Rule>,
    }
    let text = std::fs::read_to_string(conformance(file)).with_context(|| file.to_owned())?;
    let Declared { not_applicable, too_long, deviation } =
        toml::from_str(&text).with_context(|| file.to_owned())?;
    let mut by_reason: Vec<(String, Vec<Rule>)> = Vec::new();
    for rule in not_applicable.into_iter().chain(too_long).chain(deviation) {
        match by_reason.iter_mut().find(|(reason, _)| *reason == rule.reason) {
            Some((_, rules)) => rules.push(rule),
            None => by_reason.push((rule.reason.clone(), vec![rule])),
        }
    }
    Ok(by_reason)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outcome_becomes_counts_by_reason() {
        let mut outcome = Outcome::new("x on node");
        (outcome.passed, outcome.declared) = (7, 1);
        outcome.skipped = ["a: no chflags", "b: no chflags", "c: as root"].map(String::from).into();
        let counts = Counts::from(&outcome);
        assert_eq!(counts.skipped["no chflags"], 2);
        let text = toml::to_string(&counts).unwrap();
        assert_eq!(toml::from_str::<Counts>(&text).unwrap().skipped.len(), 2);
    }

    #[test]
    fn the_page_names_every_suite_with_its_declared_deviations() {
        let page = page().unwrap();
        for suite in &SUITES {
            assert!(page.contains(&format!("## {}\n", suite.name)), "{}", suite.name);
        }
        assert!(page.contains("| fcntl17, fcntl17_64 | deadlock not detected |"), "{page}");
    }
}
