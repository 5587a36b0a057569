//! The operations of the model test, as they are logged and replayed: one JSON object a line.
//!
//! An operation carries everything that it needs (bytes by seed), so that others can be dropped
//! from a log without changing it.

use serde::{Deserialize, Serialize};
use tidepool_proto::{ReadMode, WriteMode};

use super::wire::{Opening, OutsideChange};

/// A file whose directory decides about its modes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Directory {
    /// Name below the root.
    pub name: &'static str,
    /// Read mode by its rule.
    pub read_mode: ReadMode,
    /// Write mode by its rule.
    pub write_mode: WriteMode,
    /// Whether its files may be cached.
    pub admit: bool,
}

/// The directories of a run; their rules are in the configuration of the node.
pub const DIRECTORIES: [Directory; 4] = [
    Directory {
        name: "plain",
        read_mode: ReadMode::TwoLevel,
        write_mode: WriteMode::Through,
        admit: true,
    },
    Directory {
        name: "memory",
        read_mode: ReadMode::TwoLevel,
        write_mode: WriteMode::Memory,
        admit: true,
    },
    Directory {
        name: "bypass",
        read_mode: ReadMode::Bypass,
        write_mode: WriteMode::Bypass,
        admit: true,
    },
    Directory {
        name: "unkept",
        read_mode: ReadMode::TwoLevel,
        write_mode: WriteMode::Through,
        admit: false,
    },
];

/// The directory of a path.
pub fn directory_of(path: &str) -> &'static Directory {
    let name = path.split('/').next().unwrap_or_default();
    DIRECTORIES.iter().find(|directory| directory.name == name).unwrap_or(&DIRECTORIES[0])
}

/// The configuration file of a node for this test.
pub fn configuration() -> String {
    let rules = DIRECTORIES.iter().map(|directory| {
        let Directory { name, read_mode, write_mode, admit } = directory;
        format!(
            "[[rule]]\npath = \"{name}\"\nread_mode = \"{read_mode}\"\n\
             write_mode = \"{write_mode}\"\nadmit = {admit}\n\n"
        )
    });
    rules.collect()
}

/// One step. `actor` is the number of an actor, `slot` the number of a handle of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "fields are those of the commands in `wire`")]
pub enum Operation {
    /// Opens a file and keeps it open.
    Open { actor: u8, slot: u8, path: String, opening: Opening },
    /// Reads by a handle.
    Read { actor: u8, slot: u8, offset: u64, length: u64 },
    /// Reads by a fresh mapping, or a borrow of the library.
    ReadMapped { actor: u8, slot: u8, offset: u64, length: u64 },
    /// Writes by a handle.
    Write { actor: u8, slot: u8, offset: u64, length: u64, seed: u64 },
    /// Sets the length by a handle.
    SetSize { actor: u8, slot: u8, size: u64 },
    /// Punches a hole by a handle of the mount.
    Punch { actor: u8, slot: u8, offset: u64, length: u64 },
    /// `fsync`.
    Sync { actor: u8, slot: u8 },
    /// Length by a handle.
    Size { actor: u8, slot: u8 },
    /// Closes a handle; what it wrote must be on the PFS after that.
    Close { actor: u8, slot: u8 },
    /// Length and links by name.
    Stat { actor: u8, path: String },
    /// A fresh open, a read and a close.
    Check { actor: u8, path: String, offset: u64, length: u64, opening: Opening },
    /// Renames on the mount or outside.
    Rename { actor: u8, from: String, to: String },
    /// Makes another name on the mount or outside.
    Link { actor: u8, from: String, to: String },
    /// Removes a name on the mount or outside.
    Unlink { actor: u8, path: String },
    /// Sets the length by name on the mount.
    TruncatePath { actor: u8, path: String, size: u64 },
    /// Another program changes the file on the PFS.
    Change { path: String, change: OutsideChange, seed: u64 },
    /// Looks whether a memory-only file was written back meanwhile.
    Settle { path: String },
    /// Changes the capacity.
    Resize { capacity_bytes: u64 },
    /// Drops all that may be dropped.
    EvictAll,
    /// Drops what is cached of a file.
    Evict { path: String },
    /// Brings a file in.
    Load { path: String },
    /// Brings a file in and keeps it.
    Pin { path: String },
    /// Lets it go.
    Unpin { path: String },
    /// Changes the policy.
    SetPolicy { policy: String },
    /// Kills the node and starts it again.
    Kill,
}

/// Fills `buffer` with the bytes of `seed`.
pub fn fill(seed: u64, buffer: &mut [u8]) {
    let mut state = seed ^ 0x9e37_79b9_7f4a_7c15;
    for chunk in buffer.chunks_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        chunk.copy_from_slice(&state.to_le_bytes()[..chunk.len()]);
    }
}
