//! What nodes say to each other about copies of memory-only files.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

use serde::{Deserialize, Serialize};
use tidepool_cluster::FileKey;

/// What is asked of the holder of a copy.
#[derive(Debug, Serialize, Deserialize)]
pub enum Asked {
    /// To bring it up to date. Bytes of the file follow the message.
    Push(Push),
    /// Whether it still holds these, and no others of the asking node.
    Audit(Audit),
    /// To give it back: see [`super::give_back`].
    GiveBack(GiveBack),
    /// Whether it is this start of a node, which the copies that are held are of.
    IsStart(String),
    /// Whether it put its copy of this time in memory in the place of the file.
    WasPlaced(u64),
    /// To answer for a file that is in burst buffers.
    Owe(Owe),
    /// To lose no time with this one, if it puts that in the place of its file: somebody waits.
    Hurry(u64),
}

/// A change of a copy.
#[derive(Debug, Serialize, Deserialize)]
pub struct Push {
    /// See [`super::super::shared::Shared::words`].
    pub file: [u64; 2],
    /// Which start of the node that has the file.
    pub node: String,
    /// What its time in memory is called.
    pub epoch: u64,
    /// Number of the message, from 1: each is taken once, in their order.
    pub number: u64,
    /// With the first message of each sync.
    pub begin: Option<Begin>,
    /// First the copy is cut to this length, if it is longer.
    pub cut_bytes: Option<u64>,
    /// Then the bytes that follow the message are put here.
    pub offset: u64,
    /// Then this is the length that the next program may count on.
    pub length: Option<u64>,
}

/// A file that burst buffers owe to the PFS: all that is needed to bring it there.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Owe {
    /// See [`super::super::shared::Shared::words`].
    pub file: [u64; 2],
    /// The node that has the file, and which start of it.
    pub member: String,
    pub node: String,
    /// What its time in memory is called, and its blocks.
    pub epoch: u64,
    /// Rises with each change of what is said here.
    pub number: u64,
    /// Path below the PFS directory.
    pub path: Vec<u8>,
    /// All nodes that answer for it.
    pub holders: Vec<String>,
    /// The nodes with its blocks, and their weights.
    pub servers: Vec<(String, u64)>,
    /// Length of each packet but the last one.
    pub packet_bytes: u64,
    /// Packets of a block.
    pub block_packets: u64,
    /// Length of the file.
    pub length: u64,
    /// Packets that were stored, counted through the file; the others are holes.
    pub packets: Vec<(u64, u64)>,
}

/// Where the file is, and whose.
#[derive(Debug, Serialize, Deserialize)]
pub struct Begin {
    /// Path below the PFS directory.
    pub path: Vec<u8>,
    /// Whom quotas charge.
    pub user_id: u32,
    /// All who hold copies.
    pub holders: Vec<String>,
}

/// All copies that a node counts on at another one.
#[derive(Debug, Serialize, Deserialize)]
pub struct Audit {
    /// Which start of the asking node.
    pub node: String,
    /// Of which times in memory this tells: from this name to that one.
    pub range: (u64, u64),
    /// What those are called that are counted on, of this range.
    pub epochs: Vec<u64>,
    /// Those of the last message that are over.
    pub over: Vec<u64>,
    /// Those whose files were moved, with their new paths below the PFS directory.
    pub moved: Vec<(u64, Vec<u8>)>,
}

/// A copy that somebody needs.
#[derive(Debug, Serialize, Deserialize)]
pub struct GiveBack {
    /// What its time in memory is called.
    pub epoch: u64,
    /// Where the one who asks found the stub, below the PFS directory.
    pub path: Vec<u8>,
}

/// What is answered to [`Asked::Push`]: the reason where it cannot be.
pub type PushAnswer = Result<(), String>;

/// What is answered to [`Asked::Audit`]: which of them are not there.
pub type AuditAnswer = Result<Vec<u64>, String>;

impl Push {
    /// Which file.
    pub fn file(&self) -> FileKey {
        FileKey { inode: self.file[0], generation: self.file[1] }
    }
}

impl Owe {
    /// Which file.
    pub fn file(&self) -> FileKey {
        FileKey { inode: self.file[0], generation: self.file[1] }
    }
}

impl Begin {
    /// Path below the PFS directory.
    pub fn path(&self) -> PathBuf {
        path_of(&self.path)
    }
}

/// A path as it is sent.
pub fn path_of(bytes: &[u8]) -> PathBuf {
    PathBuf::from(OsString::from_vec(bytes.to_vec()))
}
