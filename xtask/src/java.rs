//! The tests of the Java parts: Maven runs them on real nodes, here they are counted. What Hadoop's
//! own suites leave out must be in `conformance/hadoop.toml` with its reason.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::environment;
use crate::outcome::Outcome;
use crate::process;

const REPORTS: &str = "java/hadoop/target/surefire-reports";
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
    /// `Class.test`, without package and outer class.
    test: String,
    reason: String,
}

/// Builds the native library and runs all Java tests.
pub fn run() -> Result<Vec<Outcome>> {
    let mut outcome = Outcome::new("java");
    let binary = environment::binary()?;
    environment::build_java_library()?;
    let text = std::fs::read_to_string(environment::checkout().join(LEFT_OUT))?;
    let accepted: Accepted = toml::from_str(&text).with_context(|| LEFT_OUT.to_owned())?;
    let reports = environment::checkout().join(REPORTS);
    if reports.exists() {
        std::fs::remove_dir_all(&reports)?;
    }
    let output = process::capture(&mut maven(&binary)?)?;
    let mut counted = Counted::default();
    for report in report_files(&reports)? {
        counted.add(&std::fs::read_to_string(report)?);
    }
    outcome.passed = counted.passed;
    outcome.failed = counted.failed;
    for (test, message) in &counted.skipped {
        let known = accepted.not_applicable.iter().find(|known| known.test == *test);
        match known {
            Some(known) => outcome.notes.push(format!("{test} does not apply: {}", known.reason)),
            None => outcome.skipped.push(format!("{test}: {message}")),
        }
    }
    for stale in &accepted.not_applicable {
        // What only some users leave out may run here.
        let may_run = stale.reason.starts_with("as root");
        if !may_run && !counted.skipped.contains_key(&stale.test) {
            let line = format!("{LEFT_OUT}: {} is left out no more; take it away", stale.test);
            outcome.failed.push(line);
        }
    }
    if !output.status.success() && outcome.failed.is_empty() {
        outcome.failed.push(format!("Maven ended with {}", output.status));
    }
    if !outcome.failed.is_empty() {
        print!("{}{}", text_of(&output.stdout), text_of(&output.stderr));
    }
    Ok(vec![outcome])
}

fn text_of(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn maven(binary: &Path) -> Result<std::process::Command> {
    let native = environment::target().join("release");
    let arguments = [
        "--batch-mode".to_owned(),
        "--no-transfer-progress".to_owned(),
        "--quiet".to_owned(),
        format!("-Dnative.dir={}", native.display()),
        format!("-Drevision={}", env!("CARGO_PKG_VERSION")),
        format!("-Dtidepool.binary={}", std::path::absolute(binary)?.display()),
        "test".to_owned(),
    ];
    let mut command = process::command("mvn", &arguments);
    command.current_dir(environment::checkout().join("java"));
    Ok(command)
}

fn report_files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    if !directory.is_dir() {
        bail!("Maven ran no test; there is nothing in {}", directory.display());
    }
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
        let mut rest = report;
        while let Some(at) = rest.find("<testcase ") {
            rest = &rest[at..];
            let head = &rest[..rest.find('>').map_or(rest.len(), |end| end + 1)];
            let body = if head.ends_with("/>") {
                ""
            } else {
                &rest[head.len()..rest.find("</testcase>").unwrap_or(rest.len())]
            };
            let class = attribute(head, "classname");
            let class = class.rsplit(['.', '$']).next().unwrap_or_default();
            let name = format!("{class}.{}", attribute(head, "name"));
            if let Some(at) = body.find("<skipped") {
                self.skipped.insert(name, attribute(&body[at..], "message").to_owned());
            } else if body.contains("<failure") || body.contains("<error") {
                self.failed.push(name);
            } else {
                self.passed += 1;
            }
            rest = &rest[head.len() + body.len()..];
        }
    }
}

fn attribute<'a>(element: &'a str, name: &str) -> &'a str {
    let head = &element[..element.find('>').unwrap_or(element.len())];
    let start = format!(" {name}=\"");
    let Some(at) = head.find(&start) else { return "" };
    let value = &head[at + start.len()..];
    &value[..value.find('"').unwrap_or(value.len())]
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
}
