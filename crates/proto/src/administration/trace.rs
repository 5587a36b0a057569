//! Request tracing: the record of a request, the messages of `tidepool trace`, and the [`Tracer`]
//! trait that connects the front ends with the node.
//!
//! [`TraceRecord`] is one request, and one line of JSON of `tidepool trace --json`: its field names
//! are the stable keys. While no trace is under way, a front end loads one word per request:
//! [`Tracer::is_on`], or in a client process the word of the [`TracePage`].

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use crate::error::Result;
use crate::level::{BytesByLevel, Level};
use crate::version::FileId;

/// Requests that wait for their watcher, at most. More are dropped and counted.
pub const TRACE_RECORDS_MAX: usize = 64 << 10;
/// Records that one answer carries, at most.
pub const TRACE_BATCH_MAX: usize = 2048;
/// Longest time that a client keeps a record before it sends it.
pub const TRACE_DELAY_MAX: Duration = Duration::from_millis(100);
/// How long after the end of a trace requests of client processes are taken that began before it.
pub const TRACE_LATE: Duration = TRACE_DELAY_MAX.saturating_mul(3);

/// Where a request came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Front {
    /// The mount.
    Mount,
    /// The client library.
    Library,
    /// Hadoop's file system, which uses the client library.
    Hadoop,
}

impl Front {
    /// The stable name.
    pub fn name(self) -> &'static str {
        match self {
            Front::Mount => "mount",
            Front::Library => "library",
            Front::Hadoop => "hadoop",
        }
    }
}

macro_rules! operations {
    ($($(#[$doc:meta])+ $variant:ident = $name:literal),+ $(,)?) => {
        /// What a request asks for.
        #[derive(
            Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
        )]
        pub enum Operation {
            $($(#[$doc])+ #[serde(rename = $name)] $variant),+
        }

        impl Operation {
            /// All operations.
            pub const ALL: &[Operation] = &[$(Operation::$variant),+];

            /// The stable name.
            pub fn name(self) -> &'static str {
                match self { $(Operation::$variant => $name),+ }
            }
        }
    };
}

operations! {
    /// Opens a file.
    Open = "open",
    /// Creates a file and opens it.
    Create = "create",
    /// Reads.
    Read = "read",
    /// Borrows a range without a copy.
    Lend = "lend",
    /// Writes.
    Write = "write",
    /// Sets the length.
    Truncate = "truncate",
    /// `fallocate(2)`.
    Allocate = "allocate",
    /// `copy_file_range(2)`.
    Copy = "copy",
    /// `lseek(2)` for data or holes.
    Seek = "seek",
    /// `close(2)`: keeps the promise of the write mode.
    Flush = "flush",
    /// The end of an open.
    Close = "close",
    /// `fsync(2)` or `fdatasync(2)`.
    Sync = "sync",
    /// Looks a name up.
    Lookup = "lookup",
    /// Reads attributes.
    Stat = "stat",
    /// Changes attributes; the length too.
    SetAttributes = "setattr",
    /// `access(2)`.
    Access = "access",
    /// Opens a directory.
    OpenDirectory = "opendir",
    /// Reads names of a directory.
    ReadDirectory = "readdir",
    /// The end of an open directory.
    CloseDirectory = "closedir",
    /// Makes a directory.
    MakeDirectory = "mkdir",
    /// Makes a special file.
    MakeNode = "mknod",
    /// Makes a symbolic link.
    Symlink = "symlink",
    /// Reads a symbolic link.
    ReadLink = "readlink",
    /// Makes a hard link.
    Link = "link",
    /// Renames.
    Rename = "rename",
    /// Removes a name.
    Unlink = "unlink",
    /// Removes a directory.
    RemoveDirectory = "rmdir",
    /// Reads or changes extended attributes.
    Xattr = "xattr",
    /// Takes, tests or gives back a lock.
    Lock = "lock",
    /// Facts of the file system.
    StatFs = "statfs",
    /// Anything else.
    Other = "other",
}

/// What served a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ServedBy {
    /// Memory of this node.
    Memory,
    /// The parallel file system.
    Pfs,
    /// A part of the bytes each.
    Mixed,
    /// The kernel serves reads, or reads and writes, of this open by itself: they are not traced.
    Passthrough,
    /// Neither: there was nothing to read, or nothing to ask the parallel file system for.
    Other,
}

impl ServedBy {
    /// The stable name.
    pub fn name(self) -> &'static str {
        match self {
            ServedBy::Memory => "memory",
            ServedBy::Pfs => "pfs",
            ServedBy::Mixed => "mixed",
            ServedBy::Passthrough => "passthrough",
            ServedBy::Other => "other",
        }
    }

    /// Of a request that read bytes of these levels and waited so long for the PFS. Reads go by
    /// their bytes, all else by whether it waited.
    pub fn of(operation: Operation, levels: &BytesByLevel, waited: Duration) -> ServedBy {
        let (pfs, all) = (levels.get(Level::Pfs), levels.total());
        match (operation, all) {
            (Operation::Read | Operation::Lend, 1..) if pfs == 0 => ServedBy::Memory,
            (Operation::Read | Operation::Lend, 1..) if pfs == all => ServedBy::Pfs,
            (Operation::Read | Operation::Lend, 1..) => ServedBy::Mixed,
            _ if !waited.is_zero() => ServedBy::Pfs,
            (Operation::Write | Operation::Truncate | Operation::Allocate, _) => ServedBy::Memory,
            _ => ServedBy::Other,
        }
    }
}

/// One request, and one line of `tidepool trace --json`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TraceRecord {
    /// Number of the request, given by the node in the order in which it hears of them.
    pub request: u64,
    /// Microseconds since the epoch when it came in.
    pub begun_us: u64,
    /// Where it came in.
    pub front: Front,
    /// What it asks for.
    pub operation: Operation,
    /// The user of the process, or the user that opened the file if the kernel asked by itself.
    pub user_id: u32,
    /// Process that asked; 0 where the kernel asked by itself, or where it cannot be seen.
    pub process_id: u32,
    /// Name of that process; empty where it is not known.
    pub process: String,
    /// Path below the PFS directory; empty for the directory itself, absent where not known.
    pub path: Option<String>,
    /// The path is for operators alone: another user's way to the file, which this one may not be
    /// allowed to see. Not part of messages.
    #[serde(skip)]
    pub hides_path: bool,
    /// Inode number of the file on the PFS, or of the directory of a name; 0 where not known.
    pub inode: u64,
    /// Where in the file, in bytes.
    pub offset: Option<u64>,
    /// How many bytes were asked for.
    pub length: Option<u64>,
    /// How many bytes were read or written.
    pub bytes: u64,
    /// What served it.
    pub level: ServedBy,
    /// The error number; 0 for success.
    pub errno: i32,
    /// Microseconds until it was answered.
    pub elapsed_us: u64,
    /// Of these, microseconds of waiting for the parallel file system.
    pub pfs_us: u64,
}

/// A request of a client process, as the client reports it: what it served by itself only the
/// client knows. The process, and the file of the handle, the node knows better.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LibraryRecord {
    /// What it asked for.
    pub operation: Operation,
    /// The open file on this connection; 0 for none.
    pub handle: u64,
    /// Its path, where no file was opened.
    pub path: Option<String>,
    /// As in [`TraceRecord`].
    pub begun_us: u64,
    /// As in [`TraceRecord`].
    pub offset: Option<u64>,
    /// As in [`TraceRecord`].
    pub length: Option<u64>,
    /// As in [`TraceRecord`].
    pub bytes: u64,
    /// As in [`TraceRecord`].
    pub level: ServedBy,
    /// As in [`TraceRecord`].
    pub errno: i32,
    /// As in [`TraceRecord`].
    pub elapsed_us: u64,
    /// As in [`TraceRecord`].
    pub pfs_us: u64,
}

/// What a watcher asks on its connection. The trace ends with the connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum TraceRequest {
    /// Begins a trace, in place of any before on this connection.
    Start {
        /// Only requests of this process.
        process_id: Option<u32>,
        /// Only requests of the file whose descriptor comes with the message.
        has_file: bool,
    },
    /// What was traced since; waits a moment where that is nothing.
    Next,
    /// No request that begins from now on is traced. What clients tell late still comes.
    Stop,
}

/// Answer to [`TraceRequest::Next`].
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct TraceBatch {
    /// Requests in the order of their numbers.
    pub records: Vec<TraceRecord>,
    /// Requests that were dropped since the last answer, because they came faster than they were
    /// taken.
    pub dropped: u64,
}

/// The user that watches, and the requests to show.
#[derive(Debug)]
pub struct TraceWish {
    /// The user that traces. Users other than root and the node's owner get only their own
    /// requests.
    pub user_id: u32,
    /// Only requests of this process.
    pub process_id: Option<u32>,
    /// Only requests of this file.
    pub file: Option<OwnedFd>,
}

/// A trace that goes on until it is stopped or dropped.
pub trait TraceStream: Send + Sync {
    /// What was traced since the last call. Waits up to `patience` for the first of it, as long as
    /// `go_on` says so.
    fn next(&self, patience: Duration, go_on: &dyn Fn() -> bool) -> TraceBatch;

    /// Takes no request that begins from now on.
    fn stop(&self);
}

/// What takes requests while somebody watches.
pub trait Tracer: Send + Sync {
    /// Whether anybody watches. Cheap: it is asked at each request.
    fn is_on(&self) -> bool;

    /// Fills in number and name of the process; the record has the number of one of its threads.
    /// Front ends call it while that thread waits for the answer: afterwards it may be gone.
    fn identify(&self, record: &mut TraceRecord);

    /// Takes a request. Identifies the process where that was not done.
    fn record(&self, record: TraceRecord);

    /// Counts requests that a front end had to drop.
    fn note_dropped(&self, requests: u64, user_id: u32);

    /// Begins a trace.
    fn start(&self, wish: TraceWish) -> Result<Box<dyn TraceStream>>;

    /// Path of an open file below the PFS directory, as this machine knows it.
    fn path_of(&self, file: BorrowedFd<'_>) -> Option<String>;

    /// Read-only descriptor of the [`TracePage`]; `None` where there is none.
    fn page(&self) -> Option<OwnedFd>;
}

/// Magic number at the start of the page: `TIDETRCE`.
pub const TRACE_PAGE_MAGIC: u64 = u64::from_le_bytes(*b"TIDETRCE");
/// Length of the memory file in bytes.
pub const TRACE_PAGE_BYTES: u64 = 4096;
/// Offset of [`TracePage::watchers`].
pub const TRACE_PAGE_WATCHERS_OFFSET: usize = 8;

/// What the page holds that tells client processes whether to record. Written by the node alone.
#[repr(C)]
#[derive(Debug, Default)]
pub struct TracePage {
    /// [`TRACE_PAGE_MAGIC`].
    pub magic: AtomicU64,
    /// Traces under way; 0: nobody watches.
    pub watchers: AtomicU64,
}

const _: () = assert!(size_of::<TracePage>() as u64 <= TRACE_PAGE_BYTES, "it fits its file");
const _: () = assert!(std::mem::offset_of!(TracePage, watchers) == TRACE_PAGE_WATCHERS_OFFSET);

/// Microseconds since the epoch.
pub fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    microseconds(now)
}

/// A time in microseconds, a begun one counted whole: what took a moment is not shown as nothing.
pub fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos().div_ceil(1000)).unwrap_or(u64::MAX)
}

/// A request without its number and process, as a front end fills it in.
impl TraceRecord {
    /// A request that begins now, of which nothing else is known.
    pub fn begun(front: Front, operation: Operation, user_id: u32, process_id: u32) -> TraceRecord {
        TraceRecord {
            request: 0,
            begun_us: now_us(),
            front,
            operation,
            user_id,
            process_id,
            process: String::new(),
            path: None,
            hides_path: false,
            inode: 0,
            offset: None,
            length: None,
            bytes: 0,
            level: ServedBy::Other,
            errno: 0,
            elapsed_us: 0,
            pfs_us: 0,
        }
    }

    /// The same of a file.
    #[must_use]
    pub fn of_file(mut self, id: FileId, path: Option<String>) -> TraceRecord {
        self.inode = id.inode;
        self.path = path;
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_go_by_their_bytes_and_all_else_by_its_wait() {
        let levels = |store, pfs| BytesByLevel { store, pfs, ..Default::default() };
        let (none, some) = (Duration::ZERO, Duration::from_micros(3));
        let read = |levels, waited| ServedBy::of(Operation::Read, &levels, waited);
        assert_eq!(read(levels(1, 0), some), ServedBy::Memory, "it waited for something else");
        assert_eq!(read(levels(0, 1), none), ServedBy::Pfs, "it was read ahead");
        assert_eq!(read(levels(1, 1), some), ServedBy::Mixed);
        assert_eq!(read(levels(0, 0), none), ServedBy::Other, "the end of the file");
        assert_eq!(ServedBy::of(Operation::Write, &levels(0, 0), some), ServedBy::Pfs);
        assert_eq!(ServedBy::of(Operation::Write, &levels(0, 0), none), ServedBy::Memory);
        assert_eq!(ServedBy::of(Operation::Flush, &levels(0, 0), none), ServedBy::Other);
    }

    #[test]
    fn operations_have_names_of_their_own() {
        for operation in Operation::ALL {
            let encoded = postcard::to_allocvec(operation).unwrap();
            assert_eq!(postcard::from_bytes::<Operation>(&encoded).as_ref(), Ok(operation));
        }
        let names: std::collections::HashSet<_> =
            Operation::ALL.iter().map(|it| it.name()).collect();
        assert_eq!(names.len(), Operation::ALL.len());
    }
}
