//! The list of checks that a machine is known to leave out. It decides what is a failure there;
//! without a list, what is left out is counted and named.

use std::path::{Path, PathBuf};

use acceptance::outcome::Outcome;
use anyhow::{Context, Result};

/// The list, and which of its lines were needed so far.
#[derive(Debug)]
pub struct ExpectedSkips {
    path: PathBuf,
    lines: Vec<(String, bool)>,
}

impl ExpectedSkips {
    /// Reads a list: the beginnings of the lines that name what is left out. `#` begins a comment.
    pub fn read(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        Ok(Self::of(path, &text))
    }

    fn of(path: &Path, text: &str) -> Self {
        let lines = text.lines().map(str::trim);
        let lines = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        let lines = lines.map(|line| (line.to_owned(), false)).collect();
        ExpectedSkips { path: path.to_path_buf(), lines }
    }

    /// Makes failures of what was left out and is not in the list.
    pub fn judge(&mut self, outcome: &mut Outcome) {
        for skipped in &outcome.skipped {
            let known = self.lines.iter_mut().find(|(line, _)| skipped.starts_with(line.as_str()));
            match known {
                Some((_, needed)) => *needed = true,
                None => outcome.failed.push(format!("left out: {skipped}")),
            }
        }
    }

    /// The lines that nothing needed.
    pub fn missed(&self) -> Option<Outcome> {
        let list = self.path.display();
        let mut outcome = Outcome::new("expected skips");
        for (line, _) in self.lines.iter().filter(|(_, needed)| !needed) {
            outcome.failed.push(format!("{list}: `{line}` is left out no more; take it away"));
        }
        (!outcome.failed.is_empty()).then_some(outcome)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_in_the_list_may_not_be_left_out() {
        let text = "# why\n\np::b a: SKIPPED: no loop\np::b gone\n";
        let mut skips = ExpectedSkips::of(Path::new("list"), text);
        let mut outcome = Outcome::new("tests");
        outcome.skipped = vec!["p::b a: SKIPPED: no loop devices".into(), "p::b z: new".into()];
        skips.judge(&mut outcome);
        assert_eq!(outcome.failed, ["left out: p::b z: new"]);
        let missed = skips.missed().unwrap();
        assert_eq!(missed.failed, ["list: `p::b gone` is left out no more; take it away"]);
    }
}
