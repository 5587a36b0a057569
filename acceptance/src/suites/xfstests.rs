//! xfstests, from a build that the user names: its quick generic tests on volumes of their own and
//! on nodes over such volumes, compared test by test. `conformance/xfstests` has the scripts.

use std::path::Path;
use std::process::Output;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use super::comparison::{Comparison, Judged};
use super::verdicts::{Rule, Verdict};
use super::{Places, conformance, need, place, tail};
use crate::environment;
use crate::outcome::Outcome;
use crate::process;
use crate::scratch::Scratch;

const FILE: &str = "xfstests.toml";
/// Of one test; most take seconds.
const BARE_LIMIT: Duration = Duration::from_secs(60);
/// Of one test on a node, which is asked by the kernel for every step.
const NODE_LIMIT: Duration = Duration::from_secs(120);
/// Tests at a time: many wait for a clock.
const JOBS: usize = 4;
/// Of each of the two volumes that a test has; the images are sparse.
const VOLUME_SIZE: &str = "4G";
/// Packages of Debian that a build needs.
const PACKAGES: &str = "build-essential automake libtool-bin pkgconf gawk xfslibs-dev uuid-dev \
    libacl1-dev libaio-dev libattr1-dev libgdbm-dev";
/// Programs that the tests call, and the packages of Debian that have them.
const PROGRAMS: [(&str, &str); 9] = [
    ("attr", "attr"),
    ("bc", "bc"),
    ("gawk", "gawk"),
    ("getcap", "libcap2-bin"),
    ("mkfs.ext4", "e2fsprogs"),
    ("mount.fuse3", "fuse3"),
    ("perl", "perl"),
    ("setfacl", "acl"),
    ("xfs_io", "xfsprogs"),
];

/// `conformance/xfstests.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Expectations {
    /// The group of tests that run.
    group: String,
    /// But for those that are in one of these groups.
    without: Vec<String>,
    /// And for tests that a node cannot end in time.
    #[serde(default)]
    too_long: Vec<Rule>,
    /// Tests that fail on a node although they pass on the file system below.
    #[serde(default)]
    deviation: Vec<Rule>,
}

/// Runs the tests where the options say and judges by comparison.
pub fn run(places: &Places) -> Result<Vec<Outcome>> {
    let root = place("XFSTESTS", "a build of xfstests", PACKAGES)?;
    if !environment::is_root() || places.options.pfs.is_some() {
        bail!("xfstests makes volumes of its own, so it needs root and takes no --pfs");
    }
    need(&PROGRAMS)?;
    let path = conformance(FILE);
    let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
    let expectations: Expectations = toml::from_str(&text)?;
    let groups = root.join("tests/generic/group.list");
    let groups = std::fs::read_to_string(&groups)
        .with_context(|| format!("{}: is it built?", groups.display()))?;
    let rules = (expectations.deviation.as_slice(), FILE);
    let mut tests = choose(&groups, &expectations);
    tests.retain(|test| !expectations.too_long.iter().any(|rule| rule.covers(test)));
    let mut suite = Comparison::new("xfstests".to_owned(), tests, rules);
    suite.jobs = JOBS;
    let mut suite = suite.only(places.options.only.as_deref());
    let mut outcomes = Vec::new();
    if places.wants_bare() {
        let run = |test: &str| read_result(run_one(&root, test, places, None));
        outcomes.push(suite.on_bare(run));
    }
    if places.wants_node() {
        let binary = environment::binary()?.canonicalize().context("the binary")?;
        let run = |test: &str| read_result(run_one(&root, test, places, Some(&binary)));
        let mut outcome = suite.on_node(run);
        let left_out = |rule: &Rule| format!("{}: {}", rule.test, rule.reason);
        outcome.skipped = expectations.too_long.iter().map(left_out).collect();
        outcomes.push(outcome);
    }
    Ok(outcomes)
}

/// The tests of the group, from a list with lines such as `001 rw auto quick`.
fn choose(groups: &str, expectations: &Expectations) -> Vec<String> {
    let lines = groups.lines().map(|line| line.split_whitespace());
    let tests = lines.filter_map(|mut words| {
        let number = words.next().filter(|word| word.parse::<u32>().is_ok())?;
        let groups: Vec<&str> = words.collect();
        let of = |group: &String| groups.contains(&group.as_str());
        (of(&expectations.group) && !expectations.without.iter().any(of))
            .then(|| format!("generic/{number}"))
    });
    tests.collect()
}

/// Runs one test; what it printed, and what it wrote why it does not run.
fn run_one(
    root: &Path,
    test: &str,
    places: &Places,
    binary: Option<&Path>,
) -> Result<(Output, Option<String>)> {
    let place = Scratch::below(places.images.path())?;
    let options = places.node_arguments();
    let mut command = process::command(
        "unshare",
        &["--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh"],
    );
    command.arg(conformance("xfstests/run.sh")).arg(test);
    command.env("PLACE", place.path()).env("XFSTESTS", root).env("SIZE", VOLUME_SIZE);
    command.env_remove("TIDEPOOL");
    // The node would take it for an option.
    command.env_remove("TIDEPOOL_BINARY");
    if let Some(binary) = binary {
        command.env("TIDEPOOL", binary).env("NODE_OPTIONS", options.join(" "));
    }
    let limit = if binary.is_some() { NODE_LIMIT } else { BARE_LIMIT };
    let output = process::capture_within(&mut command, limit)?;
    let why = place.path().join("results").join(format!("{test}.notrun"));
    Ok((output, std::fs::read_to_string(why).ok()))
}

fn read_result(result: Result<(Output, Option<String>)>) -> Judged {
    let verdict = match result {
        Err(error) => Verdict::Failed(format!("{error:#}")),
        Ok((_, Some(why))) => Verdict::Skipped(why.trim().to_owned()),
        Ok((output, None)) => {
            let said = [output.stdout, output.stderr].concat();
            let text = String::from_utf8_lossy(&said);
            if output.status.success() && text.contains("Passed all 1 tests") {
                Verdict::Passed
            } else {
                Verdict::Failed(differences(&text))
            }
        }
    };
    (verdict, 0)
}

/// The lines that were not as expected, or else the last ones.
fn differences(text: &str) -> String {
    const MOST: usize = 10;
    let differs = |line: &&str| {
        let line = line.trim_start();
        line.contains("[failed, exit status")
            || (line.starts_with(['+', '-'])
                && !line.starts_with("+++ ")
                && !line.starts_with("--- "))
    };
    let lines: Vec<&str> = text.lines().filter(differs).map(str::trim).take(MOST).collect();
    if lines.is_empty() { tail(text.as_bytes(), MOST) } else { lines.join("\n        ") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tests_of_the_group_are_chosen() {
        let text = std::fs::read_to_string(conformance(FILE)).unwrap();
        let expectations: Expectations = toml::from_str(&text).unwrap();
        let groups = "# comment\n\n001 rw auto quick\n002 auto\n003 quick shutdown\n";
        assert_eq!(choose(groups, &expectations), ["generic/001"]);
    }

    #[test]
    fn what_a_test_leaves_decides() {
        let run = |script: &str, why: Option<&str>| {
            let output = process::capture(&mut process::command("sh", &["-c", script])).unwrap();
            read_result(Ok((output, why.map(str::to_owned)))).0
        };
        assert_eq!(run("echo Passed all 1 tests", None), Verdict::Passed);
        assert_eq!(run("echo Passed all 1 tests", Some("no\n")), Verdict::Skipped("no".into()));
        let output = "echo '--- a'; echo '+++ b'; echo ' line'; echo '    +more'; exit 1";
        assert_eq!(run(output, None), Verdict::Failed("+more".into()));
        assert_eq!(
            run("echo Passed all 0 tests", None),
            Verdict::Failed("Passed all 0 tests".into())
        );
    }
}
