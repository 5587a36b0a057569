//! Results of steps: what passed, what failed and why, what was left out and why.
//!
//! A check that was left out never counts as passed.

use std::fmt;

/// Failures of one step that are printed; a step that fails wholly need not flood the screen.
const FAILURES_SHOWN: usize = 60;

/// Result of one step.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Name of the step.
    pub name: String,
    /// Number of checks that passed.
    pub passed: u64,
    /// Checks that failed, one line each.
    pub failed: Vec<String>,
    /// Checks that did not run, one line each, with the reason.
    pub skipped: Vec<String>,
    /// Checks that failed as `conformance/` declares, with the reason there.
    pub declared: u64,
    /// Checks that say nothing here, such as those that fail on the file system below as well.
    pub not_counted: u64,
    /// Checks that passed only when they ran again, one line each, with where they failed first.
    pub flaky: Vec<String>,
    /// Other facts worth a line.
    pub notes: Vec<String>,
    /// What the checks that failed printed; shown at the end of a run, where it is looked for.
    pub output: String,
}

impl Outcome {
    /// An outcome without checks yet.
    pub fn new(name: impl Into<String>) -> Self {
        Outcome { name: name.into(), ..Outcome::default() }
    }

    /// Counts one check.
    pub fn check(&mut self, ok: bool, what: impl FnOnce() -> String) {
        if ok {
            self.passed += 1;
        } else {
            self.failed.push(what());
        }
    }

    /// Counts a step that either worked or ended with an error.
    pub fn of<T>(name: &str, result: anyhow::Result<T>) -> Self {
        let mut outcome = Outcome::new(name);
        outcome.check(result.is_ok(), || match result {
            Err(error) => format!("{error:#}"),
            Ok(_) => String::new(),
        });
        outcome
    }

    /// Name, verdict and counts.
    pub fn line(&self) -> String {
        let verdict = if self.is_good() { "ok" } else { "FAILED" };
        let (failed, skipped) = (self.failed.len(), self.skipped.len());
        let Outcome { name, passed, .. } = self;
        format!(
            "{name:<28} {verdict:<7} {passed:>6} passed {failed:>4} failed {skipped:>4} skipped"
        )
    }

    /// Whether something ran and nothing failed.
    pub fn is_good(&self) -> bool {
        self.failed.is_empty() && self.passed > 0
    }
}

impl fmt::Display for Outcome {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.line())?;
        for note in &self.notes {
            write!(f, "\n    note: {note}")?;
        }
        for reason in &self.skipped {
            write!(f, "\n    skipped: {reason}")?;
        }
        for line in &self.flaky {
            write!(f, "\n    FLAKY: {line}")?;
        }
        for failure in self.failed.iter().take(FAILURES_SHOWN) {
            write!(f, "\n    failed: {failure}")?;
        }
        if self.failed.len() > FAILURES_SHOWN {
            write!(f, "\n    failed: and {} more", self.failed.len() - FAILURES_SHOWN)?;
        }
        if self.passed == 0 && self.failed.is_empty() {
            write!(f, "\n    failed: nothing ran")?;
        }
        Ok(())
    }
}
