//! What is done to many nodes, and what a change makes of a file.

use serde::{Deserialize, Serialize};

use super::content::Content;

/// Operations that run at the same time. At most one of them changes a file, and at most one uses a
/// slot.
pub type Batch = Vec<Operation>;

/// How a program gets at a file through a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Way {
    /// System calls on the mount.
    Mount,
    /// The client library.
    Library,
    /// A mapping on the mount, whose descriptor is closed.
    Mapping,
}

/// Who changes a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Author {
    /// A program on the PFS directory, behind all nodes.
    Behind,
    /// A program on the mount of a node.
    Mount(usize),
    /// A program with the client library at a node.
    Library(usize),
}

impl Author {
    /// The node it goes through.
    pub fn node(self) -> Option<usize> {
        match self {
            Author::Behind => None,
            Author::Mount(node) | Author::Library(node) => Some(node),
        }
    }
}

/// A change of a file; counts in pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields say it")]
pub enum Change {
    /// Writes in place.
    Overwrite { first: usize, pages: usize },
    /// Writes at the end.
    Append { pages: usize },
    /// Sets the length.
    Truncate { pages: usize },
    /// Empties the file by its open and writes it.
    Rewrite { pages: usize },
    /// Writes a new file beside it and renames that over it.
    Replace { pages: usize },
    /// Removes it and makes it again.
    Recreate { pages: usize },
}

impl Change {
    /// What it makes of `before`.
    pub fn apply(self, before: &Content, generation: u64) -> Content {
        match self {
            Change::Overwrite { first, pages } => {
                before.overwritten(first.min(before.pages()), pages, generation)
            }
            Change::Append { pages } => before.overwritten(before.pages(), pages, generation),
            Change::Truncate { pages } => before.resized(pages),
            Change::Rewrite { pages } | Change::Replace { pages } | Change::Recreate { pages } => {
                Content::of(pages, generation)
            }
        }
    }

    /// Whether those who have the file open keep another file than the one of that name.
    pub fn leaves_opens(self) -> bool {
        matches!(self, Change::Replace { .. } | Change::Recreate { .. })
    }

    /// Whether there is a moment without bytes.
    pub fn empties(self) -> bool {
        matches!(self, Change::Rewrite { .. } | Change::Recreate { .. })
    }
}

/// What else there is to a change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manner {
    /// The modification time is set back, where it is made behind all nodes.
    pub restores_times: bool,
    /// Time until it begins, in microseconds.
    pub after_us: u64,
}

/// How a link between two nodes behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Weather {
    /// As fast as this machine.
    Fair,
    /// So many milliseconds for every 64 KiB or datagram.
    Slow(u64),
    /// Nothing comes through.
    Cut,
    /// Connections end; new ones can be made.
    Reset,
}

/// One operation. Times are in milliseconds (`_ms`) or microseconds (`_us`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(missing_docs, reason = "the fields say it")]
pub enum Operation {
    /// Opens a file, reads pieces of it (first page, pages), closes it.
    Read {
        node: usize,
        way: Way,
        file: usize,
        pieces: Vec<(usize, usize)>,
    },
    /// Opens a file and keeps it in a slot; what was there is closed.
    Hold {
        slot: usize,
        node: usize,
        way: Way,
        file: usize,
    },
    /// Reads by a slot.
    ReadHeld {
        slot: usize,
        first: usize,
        pages: usize,
    },
    /// Closes what is in a slot.
    Release {
        slot: usize,
    },
    /// Changes a file.
    Change {
        file: usize,
        change: Change,
        author: Author,
        generation: u64,
        manner: Manner,
    },
    Evict {
        node: usize,
        file: usize,
        after_us: u64,
    },
    Load {
        node: usize,
        file: usize,
    },
    EvictAll {
        node: usize,
        after_us: u64,
    },
    Resize {
        node: usize,
        bytes: u64,
    },
    SetPolicy {
        node: usize,
        policy: String,
    },
    /// Drains a node and lets it go on. Nobody else uses it meanwhile.
    Drain {
        node: usize,
    },
    /// Stops a node's process for a while.
    Pause {
        node: usize,
        after_ms: u64,
        for_ms: u64,
    },
    /// Ends a node as a crash would; it stays down.
    Kill {
        node: usize,
        after_ms: u64,
    },
    /// Ends a node in order; it stays down. Nobody else uses it meanwhile.
    Stop {
        node: usize,
    },
    /// Starts a node that is down.
    Start {
        node: usize,
    },
    /// Nothing, for a while: time stamps settle, and what is held is announced.
    Rest {
        for_ms: u64,
    },
    /// Changes a link.
    Link {
        from: usize,
        to: usize,
        weather: Weather,
    },
}

impl Operation {
    /// The file that it is about, where it names one.
    pub fn file(&self) -> Option<usize> {
        match self {
            Operation::Read { file, .. }
            | Operation::Hold { file, .. }
            | Operation::Change { file, .. }
            | Operation::Evict { file, .. }
            | Operation::Load { file, .. } => Some(*file),
            _ => None,
        }
    }
}

/// Files.
pub const FILES: usize = 20;
/// The first of those that are kept.
const KEPT_FROM: usize = 15;
/// Directory of those that are kept.
pub const KEPT_DIRECTORY: &str = "kept";

/// Whether a file that is begun empty is in memory alone, of two nodes when it was closed. A
/// program behind the nodes has no business with it.
pub fn is_kept(file: usize) -> bool {
    (KEPT_FROM..FILES).contains(&file)
}

/// Files that are kept.
pub fn kept() -> std::ops::Range<usize> {
    KEPT_FROM..FILES
}

/// The name of a file below the PFS directory.
pub fn name(file: usize) -> String {
    match is_kept(file) {
        true => format!("{KEPT_DIRECTORY}/file{file}"),
        false => format!("file{file}"),
    }
}

/// The name of a file that is to take the place of another one.
pub fn name_beside(file: usize) -> String {
    match is_kept(file) {
        true => format!("{KEPT_DIRECTORY}/.file{file}.new"),
        false => format!(".file{file}.new"),
    }
}
