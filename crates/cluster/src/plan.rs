//! Answers of a lookup: where each block of a chunk, or of a whole file, comes from.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use crate::hash::Map;
use crate::table::Version;
use crate::{NodeName, Time};

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

/// A plan that a home gave, and when.
pub(crate) struct Remembered {
    pub version: Version,
    pub plan: Arc<ChunkPlan>,
    pub at: Time,
    /// Life of the home, and what it had heard.
    pub incarnation: u64,
    /// See `incarnation`.
    pub epoch: u64,
    /// This node made it as the home; it makes a new one each time.
    pub own: bool,
}

/// Plans that are remembered for a while, in bounded number.
pub(crate) struct Plans {
    plans: Map<(u64, u32), Remembered>,
    order: VecDeque<((u64, u32), Time)>,
    ttl: Duration,
    most: usize,
}

impl Plans {
    pub(crate) fn new(ttl: Duration, most: usize) -> Self {
        Self { plans: Map::default(), order: VecDeque::new(), ttl, most: most.max(1) }
    }

    /// The plan of that version, if it is young enough.
    pub(crate) fn get(
        &self,
        now: Time,
        key: u64,
        version: Version,
        chunk: u32,
    ) -> Option<&Remembered> {
        let remembered = self.plans.get(&(key, chunk))?;
        let young = now.saturating_sub(remembered.at) < self.ttl;
        (young && remembered.version == version).then_some(remembered)
    }

    /// The plan of whatever version, if it is young enough.
    pub(crate) fn get_mut(&mut self, now: Time, key: u64, chunk: u32) -> Option<&mut Remembered> {
        let ttl = self.ttl;
        let young = |plan: &&mut Remembered| now.saturating_sub(plan.at) < ttl;
        self.plans.get_mut(&(key, chunk)).filter(young)
    }

    pub(crate) fn insert(&mut self, key: u64, remembered: Remembered) {
        let place = (key, remembered.plan.chunk);
        let now = remembered.at;
        self.order.push_back((place, now));
        self.plans.insert(place, remembered);
        while let Some(&(place, at)) = self.order.front() {
            if self.order.len() <= self.most && now.saturating_sub(at) < self.ttl {
                break;
            }
            self.order.pop_front();
            if self.plans.get(&place).is_some_and(|plan| plan.at == at) {
                self.plans.remove(&place);
            }
        }
    }

    pub(crate) fn clear(&mut self) {
        self.plans.clear();
        self.order.clear();
    }
}
