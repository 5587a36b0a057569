//! What commands that take their time report when they are done.

use serde::{Deserialize, Serialize};

/// What a load did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LoadReport {
    /// Length of the file.
    pub size_bytes: u64,
    /// Bytes resident afterwards, counted in the store.
    pub resident_bytes: u64,
    /// Bytes that were not resident before.
    pub read_bytes: u64,
}

/// What became of a file that was to be spread.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpreadReport {
    /// Length of the file.
    pub size_bytes: u64,
    /// Bytes of splits that nodes had in memory already, or in a moment.
    pub held_bytes: u64,
    /// What each owner brought in.
    pub nodes: Vec<SpreadShare>,
}

/// What became of what a node has others bring in.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct HandOnReport {
    /// Bytes in this node's memory that others could take.
    pub held_bytes: u64,
    /// Those that they were asked to take within the time.
    pub asked_bytes: u64,
    /// Those of them that are in their memory now.
    pub resident_bytes: u64,
    /// Nodes that were to take them.
    pub nodes: u64,
    /// Why some did not, as far as is known; the first ones.
    pub errors: Vec<String>,
    /// Time that it took.
    pub elapsed_ms: u64,
}

/// The part of one node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct SpreadShare {
    /// Its name.
    pub node: String,
    /// Bytes of the splits that are its own and that nobody had.
    pub asked_bytes: u64,
    /// Bytes of these that it has now.
    pub resident_bytes: u64,
    /// Why that is less.
    pub error: Option<String>,
}

/// What an eviction or a resize freed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FreeReport {
    /// Bytes given back to the operating system.
    pub freed_bytes: u64,
    /// Bytes still resident.
    pub resident_bytes: u64,
    /// Capacity in force.
    pub capacity_bytes: u64,
    /// Bytes that could not be freed because they are pinned, open by passthrough or dirty.
    pub held_bytes: u64,
    /// Milliseconds it took.
    pub elapsed_ms: f64,
}

/// What a resize came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ResizeReport {
    /// Bytes that were asked for.
    pub asked_bytes: u64,
    /// Bytes in whole blocks: what the store may hold. A controller decides below it.
    pub ceiling_bytes: u64,
    /// The same before.
    pub ceiling_before_bytes: u64,
    /// Bytes given back to the operating system.
    pub freed_bytes: u64,
    /// Bytes still resident.
    pub resident_bytes: u64,
    /// Capacity in force.
    pub capacity_bytes: u64,
    /// Bytes that could not be freed because they are pinned, open by passthrough or dirty.
    pub held_bytes: u64,
    /// Milliseconds it took.
    pub elapsed_ms: f64,
}

/// What a flush brought to the PFS.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlushReport {
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files of other nodes that were nowhere to be found, and are dropped.
    pub forgotten: Vec<ForgottenFile>,
}

/// A file of another node that was nowhere to be found, and is dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForgottenFile {
    /// Its last name, below the PFS directory.
    pub path: String,
    /// The node that wrote it.
    pub node: String,
    /// Its bytes.
    pub bytes: u64,
}
