//! Many nodes: who is a member, and which member holds which block.
//!
//! A pure state machine: no sockets, no threads, no clock, no randomness but a seed. Bytes,
//! requests and times go in; datagrams and calls come out. So the simulation in `tests/` runs what
//! a node runs. Nothing here needs consensus: a wrong entry costs a miss, never a byte.

mod entries;
mod hash;
mod holdings;
mod home;
mod identity;
mod membership;
mod message;
mod node;
mod nodelist;
mod peers;
mod plan;
mod random;
mod readers;
mod roster;
mod settings;
mod table;
#[cfg(test)]
mod tests {
    mod table;
}
mod wire;

pub use identity::{FileKey, InvalidName, NodeName, SharedVersion};
pub use node::{ClusterNode, Output};
pub use peers::{Breaker, PeerSettings, PeerView, Peers};
pub use plan::{BlockPlan, ChunkPlan, FileLookup, HolderRun, Lookup};
pub use roster::{Member, Roster, RosterError};
pub use settings::{Counters, MemberState, MemberView, Settings};

/// Time since an arbitrary start, the same for all calls of one node.
pub type Time = std::time::Duration;

/// Blocks of a chunk, the unit of a lookup: 64 MiB in blocks of 4 MiB.
pub const CHUNK_BLOCKS: u32 = 16;
