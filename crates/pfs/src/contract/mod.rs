//! A suite that a user runs on his own PFS: what it keeps of POSIX, how fast it is, and what
//! Tidepool does where something is missing. Works in one directory that it makes and removes.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use serde::{Deserialize, Serialize};

/// How a check ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// As POSIX has it.
    Ok,
    /// Works in part; Tidepool does something else instead and loses nothing that it promises.
    Degraded,
    /// Breaks something that Tidepool needs.
    Failed,
    /// Not run; the measured text says why.
    Skipped,
}

/// One check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckResult {
    /// Stable name, words joined by dashes.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// What was seen, in words and figures.
    pub measured: String,
    /// What Tidepool loses and does instead; empty where nothing is lost.
    pub consequence: String,
    /// Milliseconds it took.
    pub elapsed_ms: f64,
}

/// All checks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ContractReport {
    /// The directory examined.
    pub root: String,
    /// Type of the file system.
    pub fs_type: String,
    /// In the order in which they ran.
    pub checks: Vec<CheckResult>,
    /// Milliseconds in total.
    pub elapsed_ms: f64,
}

impl ContractReport {
    /// Number of checks that ended so.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.checks.iter().filter(|check| check.outcome == outcome).count()
    }
}

/// How to run the suite.
#[derive(Clone, Debug)]
pub struct ContractOptions {
    /// Bytes that each speed check may write; bounded to be polite on a shared PFS.
    pub speed_bytes: u64,
    /// Files of the small-file speed check.
    pub small_files: u32,
    /// Set it (from a Ctrl-C handler) to end early; what was made is removed all the same.
    pub cancel: Option<Arc<AtomicBool>>,
}

impl Default for ContractOptions {
    fn default() -> Self {
        ContractOptions { speed_bytes: 128 << 20, small_files: 500, cancel: None }
    }
}

/// Runs the suite in a new directory below `root` and removes it. Calls `progress` after each.
pub fn run(
    _root: &Path,
    _options: ContractOptions,
    _progress: &mut dyn FnMut(&CheckResult),
) -> ContractReport {
    todo!("being written")
}
