//! The POSIX test suite in its Perl form, which no package registry has: run from a copy that the
//! user names. `conformance/README.md` says where its source is and how to build it.

use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};

use super::{Places, Subject, place, tail};
use crate::outcome::Outcome;
use crate::process;

const LIMIT: Duration = Duration::from_secs(7_200);

/// The POSIX test suite in its Perl form, from a built checkout at `PJDFSTEST`.
pub fn pjdfstest_perl(places: &Places) -> Result<Vec<Outcome>> {
    let packages = "build-essential autoconf automake perl";
    let root = place("PJDFSTEST", "a built checkout of pjdfstest", packages)?;
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
