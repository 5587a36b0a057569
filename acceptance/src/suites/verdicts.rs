//! Verdicts of the tests of a suite, and how those on a node are judged by those on the bare file
//! system.

use std::collections::{BTreeMap, BTreeSet};

use serde::Deserialize;

use crate::outcome::Outcome;

/// A deviation of some tests, and why.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rule {
    /// Name of the test; a `*` at the end stands for any rest.
    pub test: String,
    /// What the test says then, somewhere in its words.
    #[serde(default)]
    pub says: String,
    /// Why.
    pub reason: String,
}

impl Rule {
    /// Whether the rule is about `test`.
    pub fn covers(&self, test: &str) -> bool {
        match self.test.strip_suffix('*') {
            Some(start) => test.starts_with(start),
            None => test == self.test,
        }
    }

    /// Whether the rule is about `test` with these words.
    pub fn excuses(&self, test: &str, detail: &str) -> bool {
        self.covers(test) && detail.contains(&self.says)
    }
}

/// What came of one test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// All well.
    Passed,
    /// And what it said.
    Failed(String),
    /// It judged that it cannot run; and why.
    Skipped(String),
}

impl Verdict {
    /// For people.
    pub fn word(&self) -> &'static str {
        match self {
            Verdict::Passed => "passed",
            Verdict::Failed(_) => "failed",
            Verdict::Skipped(_) => "skipped",
        }
    }

    /// What the test said, if it did not pass.
    pub fn complaint(&self) -> Option<&str> {
        match self {
            Verdict::Passed => None,
            Verdict::Failed(detail) | Verdict::Skipped(detail) => Some(detail),
        }
    }
}

/// By the name of the test.
pub type Verdicts = BTreeMap<String, Verdict>;

/// Judges the tests of a node by those of the file system below it.
///
/// What does not pass below is not counted. What passes there and not on the node, a test that
/// skips itself included, is a failure unless a rule of `file` in `conformance/` declares it. With
/// `whole`, a rule that excused nothing is a failure as well.
pub fn judge(
    name: &str,
    below: &Verdicts,
    node: &Verdicts,
    (rules, file): (&[Rule], &str),
    whole: bool,
) -> Outcome {
    let mut outcome = Outcome::new(name);
    let mut used = BTreeSet::new();
    let counted: Vec<&String> =
        below.iter().filter(|(_, verdict)| **verdict == Verdict::Passed).map(|(t, _)| t).collect();
    for test in &counted {
        let Some(verdict) = node.get(*test) else {
            outcome.failed.push(format!("{test}: did not run"));
            continue;
        };
        let Some(detail) = verdict.complaint() else {
            outcome.passed += 1;
            continue;
        };
        match rules.iter().position(|rule| rule.excuses(test, detail)) {
            Some(index) => {
                outcome.declared += 1;
                used.insert(index);
                outcome.notes.push(format!("deviation: {test}: {}", rules[index].reason));
            }
            None if matches!(verdict, Verdict::Skipped(_)) => {
                outcome.failed.push(format!("{test}: skips what runs below: {detail}"));
            }
            None => outcome.failed.push(format!("{test}: {detail}")),
        }
    }
    for (index, rule) in rules.iter().enumerate().filter(|(index, _)| !used.contains(index)) {
        let counts = counted.iter().any(|test| rule.covers(test));
        if counts && (whole || !rule.test.ends_with('*')) {
            let Rule { test, says, .. } = &rules[index];
            let says = if says.is_empty() { String::new() } else { format!(" (`{says}`)") };
            outcome
                .failed
                .push(format!("{test}{says} deviates no more: take it out of conformance/{file}"));
        }
    }
    outcome.not_counted = (below.len() - counted.len()) as u64;
    let Outcome { declared, not_counted, .. } = outcome;
    outcome.notes.push(format!("{declared} declared, {not_counted} not counted"));
    outcome
}

#[cfg(test)]
mod tests {
    use super::*;

    fn failed(detail: &str) -> Verdict {
        Verdict::Failed(detail.into())
    }

    fn of(verdicts: &[(&str, Verdict)]) -> Verdicts {
        verdicts.iter().map(|(test, verdict)| ((*test).to_owned(), verdict.clone())).collect()
    }

    fn rule(test: &str, says: &str) -> Rule {
        Rule { test: test.into(), says: says.into(), reason: "known".into() }
    }

    #[test]
    fn only_what_passes_below_counts_and_only_a_rule_excuses() {
        let below = of(&[
            ("a1", Verdict::Passed),
            ("a2", Verdict::Passed),
            ("a3", Verdict::Passed),
            ("b", failed("x")),
        ]);
        let skipped = Verdict::Skipped("no room".into());
        let node = of(&[("a1", Verdict::Passed), ("a2", skipped), ("b", failed("x"))]);
        let outcome = judge("t", &below, &node, (&[], "f"), true);
        assert_eq!(outcome.passed, 1);
        assert_eq!(
            outcome.failed,
            ["a2: skips what runs below: no room", "a3: did not run"],
            "a skip on the node alone and a test that never ran are failures"
        );
        assert_eq!(outcome.notes, ["0 declared, 1 not counted"]);
        let excused = judge("t", &below, &node, (&[rule("a*", "no room")], "f"), true);
        assert_eq!(excused.failed, ["a3: did not run"]);
        let other_words = judge("t", &below, &node, (&[rule("a2", "no time")], "f"), true);
        assert_eq!(other_words.failed.len(), 3, "{other_words}");
    }

    #[test]
    fn a_deviation_that_is_none_fails() {
        let all = of(&[("a1", Verdict::Passed)]);
        let judged = |test, whole| judge("t", &all, &all, (&[rule(test, "")], "f"), whole).failed;
        assert_eq!(judged("a1", false), ["a1 deviates no more: take it out of conformance/f"]);
        assert_eq!(judged("a*", true).len(), 1);
        assert_eq!(judged("a*", false).len(), 0, "others that it covers may not have run");
        assert_eq!(judged("b", true).len(), 0, "a test that does not count says nothing");
    }
}
