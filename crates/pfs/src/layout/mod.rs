//! Striping of files over the data servers of a PFS: what it is, and hints for new files.

use serde::{Deserialize, Serialize};

/// Wishes for the striping of new files. Empty fields leave the choice to the file system.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LayoutHints {
    /// Bytes on one server before the next one's turn.
    pub stripe_size_bytes: Option<u64>,
    /// Number of servers of a file.
    pub stripe_count: Option<u32>,
    /// The servers (targets, pools) in order, as the file system names them.
    pub servers: Vec<String>,
}

impl LayoutHints {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        self.stripe_size_bytes.is_none() && self.stripe_count.is_none() && self.servers.is_empty()
    }
}

/// What became of hints.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum LayoutOutcome {
    /// All hints are in force.
    Applied,
    /// Some hints are in force; the text says which are not and why.
    Partly(String),
    /// No hint is in force; the text says why.
    Ignored(String),
}

/// Striping of one file, or of the files that will be made in a directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Layout {
    /// Type of the file system.
    pub fs_type: String,
    /// Bytes on one server before the next one's turn; `None` where unknown.
    pub stripe_size_bytes: Option<u64>,
    /// Number of servers; `None` where unknown.
    pub stripe_count: Option<u32>,
    /// The servers in the order of stripes; empty where unknown.
    pub servers: Vec<String>,
    /// Pool or storage class, if there is one.
    pub pool: Option<String>,
    /// Why something is unknown, or what else is to be said.
    pub note: Option<String>,
}

impl Layout {
    /// The layout in words, for `explain`.
    pub fn describe(&self) -> String {
        todo!("being written")
    }
}
