//! The files expected after a power loss: the content of every file that was closed without an
//! error.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::outcome::Outcome;

/// Files by their path below the root, with their bytes.
#[derive(Debug, Default)]
pub struct Ledger(BTreeMap<PathBuf, Vec<u8>>);

impl Ledger {
    /// From now on the file must have these bytes.
    pub fn enter(&mut self, path: &Path, bytes: Vec<u8>) {
        self.0.insert(path.to_path_buf(), bytes);
    }

    /// Number of files.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Compares every file below `root` with the ledger.
    pub fn check(&self, moment: &str, root: &Path, outcome: &mut Outcome) {
        for (path, expected) in &self.0 {
            let found = std::fs::read(root.join(path));
            let same = found.as_ref().is_ok_and(|found| found == expected);
            outcome.check(same, || {
                format!("{moment}: {}: {}", path.display(), difference(expected, &found))
            });
        }
    }
}

fn difference(expected: &[u8], found: &std::io::Result<Vec<u8>>) -> String {
    match found {
        Err(error) => error.to_string(),
        Ok(found) => {
            let first = expected.iter().zip(found).position(|(left, right)| left != right);
            format!(
                "{} bytes instead of {}, first wrong byte {first:?}",
                found.len(),
                expected.len()
            )
        }
    }
}
