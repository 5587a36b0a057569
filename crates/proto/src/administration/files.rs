//! The list of cached files that `tidepool top` shows: what it holds and how it is ordered. Packed
//! small files are counted, not listed.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind};

/// Longest list that a node answers.
pub const FILES_MAX: u32 = 1000;

/// Which files come first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FileOrder {
    /// Those with the most resident bytes.
    #[default]
    Resident,
    /// Those of which the most bytes were read, as far as that is known.
    Read,
}

impl FileOrder {
    /// All of them.
    pub const ALL: [FileOrder; 2] = [FileOrder::Resident, FileOrder::Read];

    /// The stable name.
    pub fn name(self) -> &'static str {
        match self {
            FileOrder::Resident => "resident",
            FileOrder::Read => "read",
        }
    }

    /// What a file is ordered by, in bytes.
    pub fn key(self, file: &CachedFile) -> u64 {
        match self {
            FileOrder::Resident => file.resident_bytes,
            FileOrder::Read => file.read_bytes + file.passthrough_bytes,
        }
    }
}

impl fmt::Display for FileOrder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for FileOrder {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        FileOrder::ALL.into_iter().find(|order| order.name() == text).ok_or_else(|| {
            let detail = format!("`{text}` is no order of files");
            Error::new(ErrorKind::InvalidInput, "ordering files", detail)
                .remedy("one of: resident, read")
        })
    }
}

/// A file with bytes in the store.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct CachedFile {
    /// Path below the PFS directory by which it was opened last; it may have another by now.
    pub path: String,
    /// Device.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Bytes resident.
    pub resident_bytes: u64,
    /// Bytes read of it since it is cached, whichever level served them; what the kernel reads by
    /// itself is not reported to the node.
    pub read_bytes: u64,
    /// What the kernel read by itself had each such open read the whole file once.
    pub passthrough_bytes: u64,
    /// Open handles.
    pub open_handles: u64,
    /// Pinned by `tidepool pin`.
    pub pinned: bool,
    /// Its bytes exist in memory only.
    pub memory_only: bool,
}
