//! Counts the Java tests in Maven's reports. Tests that Hadoop's own suites leave out must be in
//! `conformance/hadoop.toml` with their reason. Runs nothing.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use acceptance::environment;
use acceptance::outcome::Outcome;
use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::junit;

const REPORTS: [&str; 3] = [
    "java/hadoop/target/surefire-reports",
    "java/plane/target/surefire-reports",
    "java/stores/target/surefire-reports",
];
const LEFT_OUT: &str = "conformance/hadoop.toml";

/// The list of tests that say by themselves that they do not apply.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct Accepted {
    not_applicable: Vec<NotApplicable>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct NotApplicable {
    /// `Class.test`, without package and outer class; one `*` stands for any text.
    test: String,
    reason: String,
}

impl NotApplicable {
    fn is_of(&self, test: &str) -> bool {
        match self.test.split_once('*') {
            None => self.test == test,
            Some((start, end)) => {
                test.len() >= start.len() + end.len()
                    && test.starts_with(start)
                    && test.ends_with(end)
            }
        }
    }
}

/// Takes the reports of an earlier run away.
pub fn clear() -> Result<()> {
    for reports in REPORTS.map(|reports| environment::checkout().join(reports)) {
        if reports.exists() {
            std::fs::remove_dir_all(&reports).with_context(|| reports.display().to_string())?;
        }
    }
    Ok(())
}

/// Adds what the reports say to an outcome.
pub fn count(outcome: &mut Outcome) -> Result<()> {
    let text = std::fs::read_to_string(environment::checkout().join(LEFT_OUT))?;
    let accepted: Accepted = toml::from_str(&text).with_context(|| LEFT_OUT.to_owned())?;
    let mut counted = Counted::default();
    for reports in REPORTS {
        for report in report_files(&environment::checkout().join(reports))? {
            counted.add(&std::fs::read_to_string(report)?);
        }
    }
    outcome.passed += counted.passed;
    outcome.failed.append(&mut counted.failed);
    for (test, message) in &counted.skipped {
        if !accepted.not_applicable.iter().any(|known| known.is_of(test)) {
            outcome.skipped.push(format!("{test}: {message}"));
        }
    }
    for known in &accepted.not_applicable {
        let tests = counted.skipped.keys().filter(|test| known.is_of(test)).count();
        outcome.declared += tests as u64;
        if tests > 0 {
            outcome.notes.push(format!("{}: {tests} do not apply: {}", known.test, known.reason));
        } else if !known.reason.starts_with("as root") {
            let line = format!("{LEFT_OUT}: {} is left out no more; take it away", known.test);
            outcome.failed.push(line);
        }
    }
    Ok(())
}

fn report_files(directory: &Path) -> Result<Vec<PathBuf>> {
    if !directory.is_dir() {
        bail!("Maven ran no test: there is nothing in {}", directory.display());
    }
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        if path.is_dir() {
            files.extend(report_files(&path)?);
        } else if path.extension().is_some_and(|extension| extension == "xml") {
            files.push(path);
        }
    }
    Ok(files)
}

/// What reports say. The same test of several modes counts several times.
#[derive(Debug, Default, PartialEq)]
struct Counted {
    passed: u64,
    failed: Vec<String>,
    skipped: BTreeMap<String, String>,
}

impl Counted {
    /// Adds a report in the form that Maven writes: one element a test, with what befell it inside.
    fn add(&mut self, report: &str) {
        for case in junit::cases(report) {
            let class = case.class();
            let class = class.rsplit(['.', '$']).next().unwrap_or_default();
            let name = format!("{class}.{}", case.name());
            if let Some(at) = case.body.find("<skipped") {
                let message = junit::attribute(&case.body[at..], "message").to_owned();
                self.skipped.insert(name, message);
            } else if case.has("failure") || case.has("error") {
                self.failed.push(name);
            } else {
                self.passed += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_are_counted() {
        let report = r#"<testsuite tests="4"><properties/>
            <testcase name="works" classname="io.tidepool.TestContract$Open" time="0.1"/>
            <testcase name="fails" classname="io.tidepool.TestContract$Open" time="0">
              <failure message="no">at X</failure></testcase>
            <testcase name="breaks" classname="io.tidepool.TestA" time="0"><error/></testcase>
            <testcase name="waits" classname="io.tidepool.TestContract$Seek" time="0">
              <skipped message="not here"/></testcase>
            <testcase name="prints" classname="a.B" time="0"><system-out>x</system-out></testcase>
            </testsuite>"#;
        let mut counted = Counted::default();
        counted.add(report);
        assert_eq!(counted.passed, 2);
        assert_eq!(counted.failed, ["Open.fails", "TestA.breaks"]);
        assert_eq!(counted.skipped["Seek.waits"], "not here");
    }

    #[test]
    fn lists_of_what_does_not_apply_have_places_for_any_text() {
        let of = |test: &str| NotApplicable { test: test.into(), reason: String::new() };
        assert!(of("A.one").is_of("A.one") && !of("A.one").is_of("A.one[x]"));
        assert!(of("A.one*").is_of("A.one[x]") && of("A.*[x]").is_of("A.two[x]"));
        assert!(!of("A.*[x]").is_of("A.two[y]") && !of("ab*ba").is_of("aba"));
    }
}
