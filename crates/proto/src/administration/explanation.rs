//! What a node knows of one file, for `tidepool explain`.

use serde::{Deserialize, Serialize};

use crate::admin::PolicyChoice;
use crate::cluster::HolderRun;
use crate::residency::ResidencyRun;

/// Everything the node knows of one file.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Explanation {
    /// Path below the PFS directory.
    pub path: String,
    /// Device and inode.
    pub device: u64,
    /// Inode number.
    pub inode: u64,
    /// Length in bytes.
    pub size_bytes: u64,
    /// Change times in nanoseconds since the epoch, as decimal text.
    pub modified_ns: String,
    /// See `modified_ns`.
    pub changed_ns: String,
    /// `none`, `segment`, `packed` or `memory-only`; `elsewhere` where the bytes are in the memory
    /// of other nodes alone, `away` where copies were promised and none who has them is there, and
    /// `lost` where they are nowhere.
    pub cached_as: String,
    /// Whether what is cached is of the file's present version.
    pub current: bool,
    /// Bytes resident.
    pub resident_bytes: u64,
    /// Block size in bytes.
    pub block_bytes: u64,
    /// The states of all blocks in order; empty where nothing of the file is cached.
    pub residency_runs: Vec<ResidencyRun>,
    /// Nodes that hold blocks, this one first; on one node: this host.
    pub holders: Vec<String>,
    /// Which blocks they hold, in order; empty where the node stands alone.
    pub holder_runs: Vec<HolderRun>,
    /// Splits of Hadoop's default length of which nobody has half in memory, and who is to read
    /// each, in order; empty where the node stands alone.
    pub split_owners: Vec<SplitOwner>,
    /// Pinned by `tidepool pin`.
    pub pinned: bool,
    /// Open handles.
    pub open_handles: u64,
    /// Dirty bytes of this file.
    pub dirty_bytes: u64,
    /// Name of the policy.
    pub policy: String,
    /// What the policy `adaptive` follows at present; absent with others.
    pub policy_choice: Option<PolicyChoice>,
    /// How near to eviction, from 0 (next) to 1 (last); absent where the policy cannot say.
    pub policy_rank: Option<f64>,
    /// Read mode that applies.
    pub read_mode: String,
    /// Write mode that applies.
    pub write_mode: String,
    /// Striping of the file on the PFS, in words.
    pub layout: String,
    /// The first stripes of it, in order; empty where their length is not known.
    #[serde(default)]
    pub stripes: Vec<ExplainedStripe>,
    /// Where the next read would be served from.
    pub next_read: String,
    /// Why it is not cached, or not faster, in words.
    pub why_not: Vec<String>,
}

/// A stripe of a file, or its part at the end of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ExplainedStripe {
    /// Its number.
    pub stripe: u64,
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Length in bytes.
    pub length: u64,
    /// The block of the store that holds its first byte.
    pub first_block: u64,
    /// The data server that has it, by name or by its place in the order; absent where stripes are
    /// placed by hash.
    pub server: Option<String>,
}

/// Who is to read a split that nobody has in memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SplitOwner {
    /// Number of the split.
    pub split: u64,
    /// Name of the node.
    pub node: String,
}
