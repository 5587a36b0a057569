//! Answers of a lookup: where each block of a chunk, or of a whole file, comes from.

use std::sync::Arc;

use crate::NodeName;

/// Where a block comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockPlan {
    /// Members that hold the block, at most 8; never this node.
    pub holders: Vec<NodeName>,
    /// Who reads the block from the PFS if nobody holds it; `None`: this node.
    pub filler: Option<NodeName>,
}

/// Where the blocks of a chunk come from. Soft: a wrong plan costs a miss, never a byte.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkPlan {
    /// The chunk, counted from the start of the file in [`crate::CHUNK_BLOCKS`] blocks.
    pub chunk: u32,
    /// Exactly [`crate::CHUNK_BLOCKS`] entries, also past the end of the file.
    pub blocks: Vec<BlockPlan>,
}

/// Answer of [`crate::ClusterNode::lookup`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Lookup {
    /// This node is the home, or remembers a plan.
    Known(Arc<ChunkPlan>),
    /// Send the request to the home by the transport, then [`crate::ClusterNode::learn`].
    Ask {
        /// The member to ask.
        home: NodeName,
        /// What to send.
        request: Vec<u8>,
    },
}

/// Blocks in a row with the same holders.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HolderRun {
    /// First block of the run.
    pub first_block: u32,
    /// Blocks of the run, at least 1.
    pub count: u32,
    /// Members that hold all of them, at most 8; this node included. Never empty.
    pub holders: Vec<NodeName>,
}

/// Answer of [`crate::ClusterNode::lookup_file`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileLookup {
    /// This node is the home. Blocks in no run are held by nobody.
    Known(Vec<HolderRun>),
    /// Send the request to the home, then [`crate::ClusterNode::learn_file`].
    Ask {
        /// The member to ask.
        home: NodeName,
        /// What to send.
        request: Vec<u8>,
    },
}
