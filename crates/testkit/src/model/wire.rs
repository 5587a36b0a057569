//! The messages between driver and actor: one datagram each way. Bytes of reads and writes travel
//! in the shared buffer, from its start.

use serde::{Deserialize, Serialize};
use tidepool_proto::admin::{AdminReply, AdminRequest};
use tidepool_proto::{Access, ReadMode, WriteMode};

/// Size of the shared buffer in bytes, so the longest read or write.
pub const BUFFER_BYTES: usize = 32 << 20;
/// Longest datagram in bytes.
pub const DATAGRAM_BYTES: usize = 64 << 10;

/// How an actor opens a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Opening {
    /// What the open may do.
    pub access: Access,
    /// Create the file if it is missing.
    pub create: bool,
    /// Set the length to zero.
    pub truncate: bool,
    /// Writes go to the end.
    pub append: bool,
    /// Read mode; heeded by the library only.
    pub read_mode: Option<ReadMode>,
    /// Write mode; heeded by the library only.
    pub write_mode: Option<WriteMode>,
}

impl Opening {
    /// Reading in the default mode.
    pub const READ: Opening = Opening {
        access: Access::Read,
        create: false,
        truncate: false,
        append: false,
        read_mode: None,
        write_mode: None,
    };
}

/// A change of a file by a program that knows nothing of Tidepool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum OutsideChange {
    /// Bytes within the file are overwritten in place.
    Overwrite {
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes.
        length: u64,
        /// The time of the last change is set back to what it was.
        restore_times: bool,
    },
    /// A new file is made beside it and renamed over it.
    Replace {
        /// Length of the new one in bytes.
        length: u64,
        /// It gets the times of the old one.
        restore_times: bool,
    },
    /// The name is removed and the file recreated, often with the same inode number.
    Recreate {
        /// Length of the new one in bytes.
        length: u64,
    },
    /// The length is set.
    Truncate {
        /// Length in bytes.
        size: u64,
    },
    /// Bytes are added at the end.
    Append {
        /// How much, in bytes.
        length: u64,
    },
}

/// What an actor is to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Command {
    /// Opens `path` as `slot`.
    Open {
        /// Number of the handle.
        slot: u8,
        /// Path below the actor's root.
        path: String,
        /// How.
        opening: Opening,
    },
    /// Reads into the buffer; answers the count.
    Read {
        /// Number of the handle.
        slot: u8,
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes.
        length: u64,
    },
    /// Copies out of a fresh mapping into the buffer; the range lies within the file.
    ReadMapped {
        /// Number of the handle.
        slot: u8,
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes.
        length: u64,
    },
    /// Writes the buffer's first bytes.
    Write {
        /// Number of the handle.
        slot: u8,
        /// Where, in bytes; append handles ignore it.
        offset: u64,
        /// How much, in bytes.
        length: u64,
    },
    /// Sets the length by a handle.
    SetSize {
        /// Number of the handle.
        slot: u8,
        /// Length in bytes.
        size: u64,
    },
    /// Punches a hole.
    Punch {
        /// Number of the handle.
        slot: u8,
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes.
        length: u64,
    },
    /// `fsync`.
    Sync {
        /// Number of the handle.
        slot: u8,
    },
    /// Length by the handle; answers it.
    Size {
        /// Number of the handle.
        slot: u8,
    },
    /// Closes, and answers errors of writes.
    Close {
        /// Number of the handle.
        slot: u8,
    },
    /// Closes everything; errors are of no interest.
    CloseAll,
    /// Length and links by name; answers both.
    Stat {
        /// Path below the actor's root.
        path: String,
    },
    /// Renames.
    Rename {
        /// Path below the actor's root.
        from: String,
        /// Path below the actor's root.
        to: String,
    },
    /// Makes another name.
    Link {
        /// Path below the actor's root.
        from: String,
        /// Path below the actor's root.
        to: String,
    },
    /// Removes a name.
    Unlink {
        /// Path below the actor's root.
        path: String,
    },
    /// Sets the length by name.
    TruncatePath {
        /// Path below the actor's root.
        path: String,
        /// Length in bytes.
        size: u64,
    },
    /// Answers a [`StubNow`].
    IsStub {
        /// Path below the actor's root.
        path: String,
    },
    /// Changes a file behind Tidepool's back, with the buffer's first bytes.
    Change {
        /// Path below the actor's root.
        path: String,
        /// How.
        change: OutsideChange,
    },
    /// Asks the node; the file's descriptor goes along where there is a path.
    Admin {
        /// What.
        request: AdminRequest,
        /// Path below the actor's root.
        path: Option<String>,
    },
    /// Ends.
    Quit,
}

/// Whether a file is a stub whose bytes are in memory only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u64)]
pub enum StubNow {
    /// It is an ordinary file.
    No = 0,
    /// It is.
    Held = 1,
    /// It is being written back.
    Writing = 2,
}

/// What an actor answers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Answer {
    /// 0, or what failed.
    pub errno: i32,
    /// Count, length or truth.
    pub value: u64,
    /// Number of links.
    pub links: u64,
    /// The failure in words.
    pub message: String,
    /// What a node answered.
    pub admin: Option<Box<AdminReply>>,
}

impl Answer {
    /// Success with a number.
    pub fn of(value: u64) -> Self {
        Answer { value, ..Answer::default() }
    }

    /// Failure.
    pub fn failed(errno: i32, message: impl Into<String>) -> Self {
        Answer { errno, message: message.into(), ..Answer::default() }
    }
}
