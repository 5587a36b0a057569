//! Which level served a byte, and counters that conserve bytes.

use serde::{Deserialize, Serialize};

/// The levels of storage, nearest first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Level {
    /// A segment that the reader holds itself: no message was sent.
    Mapped,
    /// This node's store, through the node.
    Store,
    /// The memory of another node.
    Peer,
    /// A buffer node.
    Buffer,
    /// The parallel file system.
    Pfs,
}

impl Level {
    /// All levels, nearest first.
    pub const ALL: [Level; 5] =
        [Level::Mapped, Level::Store, Level::Peer, Level::Buffer, Level::Pfs];

    /// The stable name used in metrics and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Level::Mapped => "mapped",
            Level::Store => "store",
            Level::Peer => "peer",
            Level::Buffer => "buffer",
            Level::Pfs => "pfs",
        }
    }
}

/// Bytes served by each level. The sum of all levels is the number of bytes returned.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct BytesByLevel {
    /// From a segment the reader holds.
    pub mapped: u64,
    /// From this node's store.
    pub store: u64,
    /// From another node's memory.
    pub peer: u64,
    /// From a buffer node.
    pub buffer: u64,
    /// From the parallel file system.
    pub pfs: u64,
}

impl BytesByLevel {
    /// `bytes` served by `level` alone.
    pub fn of(level: Level, bytes: u64) -> Self {
        let mut this = Self::default();
        this.add(level, bytes);
        this
    }

    /// Adds `bytes` to `level`.
    pub fn add(&mut self, level: Level, bytes: u64) {
        *self.slot(level) += bytes;
    }

    /// Adds all counts of `other`.
    pub fn merge(&mut self, other: &BytesByLevel) {
        for level in Level::ALL {
            self.add(level, other.get(level));
        }
    }

    /// Bytes served by `level`.
    pub fn get(&self, level: Level) -> u64 {
        match level {
            Level::Mapped => self.mapped,
            Level::Store => self.store,
            Level::Peer => self.peer,
            Level::Buffer => self.buffer,
            Level::Pfs => self.pfs,
        }
    }

    /// Bytes served by all levels.
    pub fn total(&self) -> u64 {
        Level::ALL.iter().map(|level| self.get(*level)).sum()
    }

    fn slot(&mut self, level: Level) -> &mut u64 {
        match level {
            Level::Mapped => &mut self.mapped,
            Level::Store => &mut self.store,
            Level::Peer => &mut self.peer,
            Level::Buffer => &mut self.buffer,
            Level::Pfs => &mut self.pfs,
        }
    }
}
