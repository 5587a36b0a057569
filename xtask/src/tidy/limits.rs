//! Sizes that must not be exceeded, and the exceptions that exist.

use std::cell::RefCell;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::Deserialize;

use super::Finding;

/// Lines of a function, from its signature to its last brace.
pub const FUNCTION_LINES: usize = 70;
/// Lines of a file without its tests.
pub const FILE_LINES: usize = 600;
/// Lines of a file that no exception can raise.
const FILE_LINES_HARD: usize = 1_000;

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(default)]
    exception: Vec<Exception>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exception {
    /// Path in the checkout.
    file: PathBuf,
    /// Name of a function, or `file`.
    item: String,
    /// Its lines now.
    lines: usize,
    /// Why it may be so long.
    reason: String,
}

/// The limits with their exceptions.
#[derive(Debug)]
pub struct Limits {
    path: PathBuf,
    exceptions: Vec<Exception>,
    used: RefCell<Vec<usize>>,
}

impl Limits {
    /// Reads the exceptions.
    pub fn load(path: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let file: File = toml::from_str(&text).context("xtask/tidy.toml")?;
        Ok(Limits {
            path: "xtask/tidy.toml".into(),
            exceptions: file.exception,
            used: RefCell::default(),
        })
    }

    /// Judges an item of a file.
    pub fn judge(&self, file: &Path, line: usize, item: &str, lines: usize) -> Option<Finding> {
        let limit = if item == "file" { FILE_LINES } else { FUNCTION_LINES };
        if lines <= limit {
            return None;
        }
        let index = self
            .exceptions
            .iter()
            .position(|exception| exception.file == file && exception.item == item);
        let Some(index) = index else {
            return Some(Finding::at(
                file,
                line,
                format!("`{item}` has {lines} lines, more than {limit}; split it"),
            ));
        };
        self.used.borrow_mut().push(index);
        let allowed = self.exceptions[index].lines;
        let hard = item == "file" && lines > FILE_LINES_HARD;
        if hard || lines > allowed {
            let most = if hard { FILE_LINES_HARD } else { allowed };
            return Some(Finding::at(
                file,
                line,
                format!("`{item}` grew to {lines} lines, more than {most}; split it"),
            ));
        }
        (lines < allowed).then(|| {
            let what =
                format!("{}: `{item}` has {lines} lines now; lower its limit", file.display());
            Finding::at(&self.path, 0, what)
        })
    }

    /// Exceptions that nothing needs, or that give no reason.
    pub fn unused(&self) -> Vec<Finding> {
        let used = self.used.borrow();
        let mut findings = Vec::new();
        for (index, exception) in self.exceptions.iter().enumerate() {
            let name = format!("{}: `{}`", exception.file.display(), exception.item);
            if !used.contains(&index) {
                findings.push(Finding::at(
                    &self.path,
                    0,
                    format!("{name} needs no exception any more; delete it"),
                ));
            }
            if exception.reason.trim().is_empty() {
                findings.push(Finding::at(&self.path, 0, format!("{name} gives no reason")));
            }
        }
        findings
    }
}

#[cfg(test)]
mod tests {
    use super::{Exception, Limits};
    use std::cell::RefCell;
    use std::path::Path;

    #[test]
    fn limits_only_ever_shrink() {
        let exception = Exception {
            file: "a.rs".into(),
            item: "long".into(),
            lines: 80,
            reason: "a table".into(),
        };
        let limits =
            Limits { path: "t".into(), exceptions: vec![exception], used: RefCell::default() };
        let judge = |item: &str, lines| limits.judge(Path::new("a.rs"), 1, item, lines);
        assert_eq!(limits.unused().len(), 1);
        assert!(judge("other", 70).is_none());
        assert!(judge("other", 71).is_some());
        assert!(judge("long", 80).is_none());
        assert!(judge("long", 81).is_some());
        assert!(judge("long", 79).is_some(), "the exception must be lowered");
        assert!(limits.unused().is_empty());
    }
}
