//! Runs the tests of a suite side by side, on the bare file system and then on a node, and judges
//! the second by the first.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::verdicts::{Rule, Verdict, Verdicts, judge};
use crate::outcome::Outcome;

/// What came of a test, and how many of its parts it left out.
pub type Judged = (Verdict, usize);
type Results = BTreeMap<String, Judged>;

/// A suite and what is known of its tests.
#[derive(Debug)]
pub struct Comparison<'a> {
    /// For people.
    pub name: String,
    /// Names of the tests that are left to run.
    pub tests: Vec<String>,
    /// Tests at a time.
    pub jobs: usize,
    /// Declared deviations, and the file of `conformance/` that has them.
    pub rules: (&'a [Rule], &'a str),
    /// All tests of the suite are among those.
    pub whole: bool,
    /// What came of them below.
    below: Results,
}

impl<'a> Comparison<'a> {
    /// Without a run below, all are taken to pass there.
    pub fn new(name: String, tests: Vec<String>, rules: (&'a [Rule], &'a str)) -> Self {
        let passes = |test: &String| (test.clone(), (Verdict::Passed, usize::MAX));
        let below = tests.iter().map(passes).collect();
        Comparison { name, tests, jobs: 1, rules, whole: true, below }
    }

    /// Keeps the tests whose name contains the text.
    pub fn only(mut self, text: Option<&str>) -> Self {
        let Some(text) = text else { return self };
        self.whole = false;
        self.tests.retain(|test| test.contains(text));
        self.below.retain(|test, _| test.contains(text));
        self
    }

    /// Runs all on the bare file system. What does not pass there is not run again.
    pub fn on_bare(&mut self, run: impl Fn(&str) -> Judged + Sync) -> Outcome {
        let mut outcome = Outcome::new(format!("{} on bare", self.name));
        self.below = self.run_all("bare", &[], &run, &mut outcome.flaky);
        for (test, (verdict, _)) in &self.below {
            match verdict.complaint() {
                None => outcome.passed += 1,
                Some(why) => outcome.notes.push(format!("not counted: {test}: {why}")),
            }
        }
        self.tests.retain(|test| self.below[test].0 == Verdict::Passed);
        outcome
    }

    /// Runs on a node what is left, and judges.
    pub fn on_node(&self, run: impl Fn(&str) -> Judged + Sync) -> Outcome {
        let mut flaky = Vec::new();
        let node = self.run_all("node", self.rules.0, &run, &mut flaky);
        let node = compare_parts(node, &self.below);
        let below = self.below.iter().map(|(test, (verdict, _))| (test.clone(), verdict.clone()));
        let name = format!("{} on node", self.name);
        let mut outcome = judge(&name, &below.collect(), &node, self.rules, self.whole);
        outcome.flaky = flaky;
        outcome
    }

    /// Runs the tests side by side, and those that failed undeclared once more, alone.
    fn run_all(
        &self,
        place: &str,
        declared: &[Rule],
        run: &(dyn Fn(&str) -> Judged + Sync),
        flaky: &mut Vec<String>,
    ) -> Results {
        let title = format!("{} on {place}", self.name);
        let mut results = side_by_side(&title, self.tests.clone(), run, self.jobs);
        let again = self.tests.iter().filter(|test| match &results[*test].0 {
            Verdict::Failed(detail) => !declared.iter().any(|rule| rule.excuses(test, detail)),
            _ => false,
        });
        for (test, result) in side_by_side(&title, again.cloned().collect(), run, 1) {
            let passed = result.0 == Verdict::Passed;
            let first = results.insert(test.clone(), result);
            if let (true, Some((Verdict::Failed(detail), _))) = (passed, first) {
                flaky.push(format!("{test}: passed alone, failed beside others: {detail}"));
            }
        }
        results
    }
}

fn side_by_side(
    title: &str,
    tests: Vec<String>,
    run: &(dyn Fn(&str) -> Judged + Sync),
    jobs: usize,
) -> Results {
    let of = tests.len();
    let waiting = Mutex::new(VecDeque::from(tests));
    let results = Mutex::new(Results::new());
    let work = || {
        while let Some(test) = { locked(&waiting).pop_front() } {
            let began = Instant::now();
            let result = run(&test);
            let time = began.elapsed().as_secs_f64();
            let mut results = locked(&results);
            let (at, word) = (results.len() + 1, result.0.word());
            let why = result.0.complaint().map(|why| format!(": {why}")).unwrap_or_default();
            eprintln!("x: {title}: {at}/{of} {test}: {word}, {time:.1} s{why}");
            results.insert(test, result);
        }
    };
    std::thread::scope(|scope| (0..jobs).for_each(|_| drop(scope.spawn(work))));
    results.into_inner().unwrap_or_else(PoisonError::into_inner)
}

fn locked<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A test that leaves out more of its parts than it does below did not pass.
fn compare_parts(node: Results, below: &Results) -> Verdicts {
    let judged = |(test, (verdict, left_out)): (String, Judged)| {
        let more = left_out.saturating_sub(below.get(&test).map_or(0, |(_, left_out)| *left_out));
        let verdict = match verdict {
            Verdict::Passed if more > 0 => Verdict::Skipped(format!("{more} of its parts")),
            verdict => verdict,
        };
        (test, verdict)
    };
    node.into_iter().map(judged).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_test_that_leaves_out_more_than_below_did_not_pass() {
        let results = |left_out| Results::from([("t".to_owned(), (Verdict::Passed, left_out))]);
        assert_eq!(compare_parts(results(1), &results(1))["t"], Verdict::Passed);
        let more = compare_parts(results(2), &results(1));
        assert_eq!(more["t"], Verdict::Skipped("1 of its parts".into()));
    }

    #[test]
    fn what_fails_below_is_not_asked_of_the_node_and_what_fails_beside_others_runs_alone() {
        let names = ["bad", "good", "shy"].map(String::from).to_vec();
        let mut suite = Comparison::new("t".to_owned(), names, (&[], "f"));
        suite.jobs = 2;
        let bare = suite.on_bare(|test| match test {
            "bad" => (Verdict::Failed("x".into()), 0),
            _ => (Verdict::Passed, 0),
        });
        assert_eq!((bare.passed, bare.notes.len()), (2, 1), "{bare}");
        let asked = Mutex::new(Vec::new());
        let node = suite.on_node(|test| {
            locked(&asked).push(test.to_owned());
            let times = locked(&asked).iter().filter(|other| *other == test).count();
            let verdict = match (test, times) {
                ("shy", 1) => Verdict::Failed("too many here".into()),
                _ => Verdict::Passed,
            };
            (verdict, 0)
        });
        assert_eq!((node.passed, node.failed.len(), node.flaky.len()), (2, 0, 1), "{node}");
        assert!(!locked(&asked).contains(&"bad".to_owned()));
    }
}
