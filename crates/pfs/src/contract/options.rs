//! `ContractOptions` and `Outcome`: how the suite is run, and how a check ends.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

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

impl ContractOptions {
    /// Whether the suite shall end early.
    pub(super) fn cancelled(&self) -> bool {
        self.cancel.as_ref().is_some_and(|cancel| cancel.load(Ordering::Relaxed))
    }
}
