//! What a node knows of the others that share their memory with it.

use serde::{Deserialize, Serialize};

/// A node as one of a cluster.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClusterStatus {
    /// Name of the cluster.
    pub cluster: String,
    /// Name of this node in it.
    pub node: String,
    /// Whether connections between nodes are encrypted.
    #[serde(default)]
    pub encrypted: bool,
    /// All members of the list, this node left out.
    pub members: Vec<MemberStatus>,
    /// Blocks that came from other nodes.
    pub blocks_fetched: u64,
    /// Blocks that other nodes were asked for and did not give: read from the PFS instead.
    pub blocks_missed: u64,
    /// Blocks of other nodes that changed while they were sent, and were thrown away.
    pub blocks_changed: u64,
    /// Blocks given to other nodes.
    pub blocks_served: u64,
    /// Blocks read from the PFS because another node asked for them.
    pub blocks_filled_for_peers: u64,
    /// Messages that were refused: garbage, replays, wrong keys.
    pub messages_rejected: u64,
    /// Blocks whose holders this node keeps for others, as their home.
    pub location_entries: u64,
    /// Memory of these entries in bytes.
    pub location_bytes: u64,
    /// Bytes of blocks that sockets hold and other nodes have not received yet. Memory that the
    /// store frees meanwhile is free only after that.
    #[serde(default)]
    pub queued_bytes: u64,
    /// Copies of memory-only files on other nodes.
    #[serde(default)]
    pub copies: CopiesStatus,
    /// Clean copies in burst buffers.
    #[serde(default)]
    pub clean_copies: CleanCopiesStatus,
    /// Whether changes of another node show here, once that was looked at.
    #[serde(default)]
    pub changes_shown: Option<ChangesShown>,
}

/// Copies of memory-only files, here and elsewhere.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CopiesStatus {
    /// Files of this node that other nodes hold copies of.
    pub files: u64,
    /// Copies that this node holds for others.
    pub held: u64,
    /// Memory of these in bytes.
    pub held_bytes: u64,
    /// Bytes sent to holders of copies.
    pub pushed_bytes: u64,
    /// Files that were written back because a copy was not to be had.
    pub missing: u64,
    /// Copies that were put in the place of the file, because its node was gone.
    pub put_in_place: u64,
    /// Files of this node whose bytes burst buffers owe to the PFS.
    #[serde(default)]
    pub owed_files: u64,
    /// Bytes of these.
    #[serde(default)]
    pub owed_bytes: u64,
    /// How long the oldest one is owed, in seconds.
    #[serde(default)]
    pub owed_oldest_s: Option<u64>,
    /// Files of other nodes for which this one answers, beside `held`.
    #[serde(default)]
    pub answered_for: u64,
    /// Bytes a second that files in burst buffers are brought to the PFS at, at most, while nobody
    /// waits for them; `None`: as many as it takes.
    #[serde(default)]
    pub write_back_bytes_per_s: Option<u64>,
}

/// Clean copies in burst buffers, of files that were written in mode `adw` or `bld`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CleanCopiesStatus {
    /// Bytes that this node sent to burst buffers.
    pub pushed_bytes: u64,
    /// Bytes that it had from there instead of from the PFS.
    pub fetched_bytes: u64,
}

/// How soon what another node wrote to the PFS showed at this one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChangesShown {
    /// The other node.
    pub node: String,
    /// Milliseconds until an open saw another version; `None`: not within 5 s.
    pub version_ms: Option<u64>,
    /// Milliseconds until a read gave the new bytes; `None`: not within 5 s.
    pub bytes_ms: Option<u64>,
    /// A plain read of the PFS directory gave old bytes although both showed; the node reads past
    /// the page cache.
    #[serde(default)]
    pub stale_pages: bool,
}

/// What it means how soon changes show.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangesVerdict {
    /// Opens and reads see them.
    AtOnce,
    /// They see them, and the page cache of the PFS's client has old bytes all the same.
    StalePages,
    /// They see them after so many milliseconds.
    LateMs(u64),
    /// They do not see other versions.
    HiddenVersions,
    /// They see other versions and old bytes.
    HiddenBytes,
}

impl ChangesShown {
    /// What showed within so many milliseconds took the time of the questions alone.
    const AT_ONCE_MS_MAX: u64 = 20;

    /// What was seen, as it matters to what is kept.
    pub fn verdict(&self) -> ChangesVerdict {
        match (self.version_ms, self.bytes_ms) {
            (None, _) => ChangesVerdict::HiddenVersions,
            (_, None) => ChangesVerdict::HiddenBytes,
            (Some(version), Some(bytes)) => match version.max(bytes) {
                late if late > Self::AT_ONCE_MS_MAX => ChangesVerdict::LateMs(late),
                _ if self.stale_pages => ChangesVerdict::StalePages,
                _ => ChangesVerdict::AtOnce,
            },
        }
    }
}

/// One other node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct MemberStatus {
    /// Its name.
    pub node: String,
    /// Its address as listed.
    pub address: String,
    /// `alive`, `suspect`, `down`, `left` or `never-seen`.
    pub state: String,
    /// Seconds that it has been so.
    pub since_s: u64,
    /// Whether it was found to see the same files; bytes go between no others.
    pub sees_same_pfs: bool,
    /// Why it does not, where that is known.
    pub refused_because: Option<String>,
    /// Rate of its transfers to here in bytes per second, once measured.
    pub rate_bytes_per_s: Option<u64>,
    /// It is avoided for now, because it did not answer in time.
    pub avoided: bool,
}

/// What was measured between two nodes, of one direction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct PairReport {
    /// The node that asked and read.
    pub from: String,
    /// The node that answered and gave.
    pub to: String,
    /// Median time of a small question and its answer, in microseconds.
    pub latency_us: Option<u64>,
    /// The longest of them.
    pub latency_us_max: Option<u64>,
    /// Rate of blocks from memory, in bytes a second.
    pub rate_bytes_per_s: Option<u64>,
    /// How far the clock of `to` is ahead of that of `from`, in milliseconds.
    pub clock_ahead_ms: Option<i64>,
    /// Release of `to`.
    pub release: Option<String>,
    /// Why it could not be measured.
    pub error: Option<String>,
}

/// Blocks in a row that the same nodes hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderRun {
    /// First block.
    pub first_block: u64,
    /// Blocks.
    pub blocks: u64,
    /// Names of the nodes.
    pub nodes: Vec<String>,
}

impl ClusterStatus {
    /// Members that are alive, this node among them.
    pub fn alive(&self) -> usize {
        1 + self.members.iter().filter(|member| member.state == "alive").count()
    }
}
