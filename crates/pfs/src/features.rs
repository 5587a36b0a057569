//! [`Features`]: the capabilities of a mounted file system, as found by probing and from what is
//! known of its type. Says nothing that was neither measured nor documented by the file system's
//! makers.

use serde::{Deserialize, Serialize};

/// Alignment that direct I/O needs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DirectIo {
    /// Of the buffer in memory.
    pub memory_alignment_bytes: u32,
    /// Of offset and length in the file.
    pub offset_alignment_bytes: u32,
}

/// How far `fsync` is known to carry bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum FsyncReach {
    /// To durable storage, as documented for this type of file system.
    Storage,
    /// To the memory of a server: a power failure there loses bytes.
    ServerCache,
    /// Nowhere: memory is all there is, or the call is an empty stub.
    Nothing,
    /// Not known for this type of file system.
    #[default]
    Unknown,
}

/// Granularity of time stamps that is assumed where nothing could be measured, in nanoseconds.
pub const GRANULARITY_SAFE_NS: u64 = 2_000_000_000;

/// What a mount offers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Features {
    /// Name of the file system type as the mount table has it (`ext4`, `lustre`, `fuse.mfs`).
    pub fs_type: String,
    /// Source of the mount (device, server or volume).
    pub source: String,
    /// Magic number that `statfs(2)` reports.
    pub fs_magic: u64,
    /// Bytes come over a network, and other machines may change them.
    pub remote: bool,
    /// The directory cannot be written by this process.
    pub read_only: bool,
    /// Width of the tick of time stamps in nanoseconds; 0: every observed change gets a new stamp.
    pub timestamp_granularity_ns: u64,
    /// A write moves the time stamps of its file, as seen or as known of the file system; `None`
    /// where neither is so. Where it is false, no change of equal length can be seen.
    pub writes_move_stamps: Option<bool>,
    /// Extended attributes `user.*` work on files.
    pub xattr: bool,
    /// Alignment of direct I/O; `None` where it is refused.
    pub direct_io: Option<DirectIo>,
    /// How far `fsync` carries bytes.
    pub fsync_reach: FsyncReach,
    /// `fsync` of one open carries what was written by that open alone, as where a client in user
    /// space gathers writes for each open.
    pub fsync_is_per_open: bool,
    /// The page cache may hold bytes of before another machine's change after an open has seen that
    /// change, as where a client in user space decides what the kernel keeps.
    pub keeps_stale_pages: bool,
    /// Shared memory mappings work.
    pub shared_mmap: bool,
    /// Record locks work.
    pub locks: bool,
    /// Hard links work, and link counts are kept.
    pub hard_links: bool,
    /// Files without a name can be created.
    pub o_tmpfile: bool,
    /// `fallocate(2)` works.
    pub fallocate: bool,
    /// One line for each thing that is missing or was assumed, and what is done instead.
    pub notes: Vec<String>,
}
