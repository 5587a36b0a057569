//! What a node tells of its burst buffer.

use serde::{Deserialize, Serialize};

/// The burst buffer of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BufferStatus {
    /// Most bytes in its memory.
    pub memory_limit_bytes: u64,
    /// Bytes of these in use.
    pub memory_bytes: u64,
    /// Bytes in memory that are owed to the PFS.
    pub memory_owed_bytes: u64,
    /// Writers that wait for room.
    pub waiting_writers: u64,
    /// Most bytes on its disk; `None` where it is in memory alone, and what it owes is lost when
    /// the node ends.
    pub disk_limit_bytes: Option<u64>,
    /// Bytes of these in use.
    pub disk_bytes: u64,
    /// Blocks on its disk that are owed to the PFS.
    pub owed_blocks: u64,
    /// Bytes of these.
    pub owed_bytes: u64,
    /// Age of the oldest one in seconds.
    pub owed_oldest_s: Option<u64>,
    /// Those that take nothing more, as the disk failed or what was promised is broken.
    pub failed_blocks: u64,
    /// Where it listens for programs of its machine, if it does.
    pub address: Option<String>,
}

/// A file in burst buffers that the PFS does not have.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwedFile {
    /// Path below the PFS directory, as far as it is known.
    pub path: String,
    /// Its length; of a file of another node, that of its last sync.
    pub bytes: u64,
    /// How long it is owed, or answered for, in seconds.
    pub age_s: u64,
    /// The node that has it in memory, and is to write it to the PFS.
    pub node: String,
    /// The node that would do so otherwise.
    pub answered_by: String,
    /// The nodes with its blocks.
    pub servers: Vec<String>,
    /// Why it did not come to the PFS at the last try, if there was one.
    #[serde(default)]
    pub stays_because: Option<String>,
}
