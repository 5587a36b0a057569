//! The messages of the wire protocol. Bodies only: framing is the parent module's, and what a
//! message may do is decided by the node.

use serde::{Deserialize, Serialize};

use super::Malformed;
use crate::admin::{AdminReply, AdminRequest};
use crate::error::{Error, ErrorKind};
use crate::level::BytesByLevel;
use crate::mode::{Access, Advice, ReadMode, WriteMode};
use crate::trace::{Front, LibraryRecord};
use crate::version::ChangeTimes;
use crate::version::Version;

/// What a client asks. `handle` and `borrow` numbers mean something on one connection only.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Request {
    /// Opens the file behind the one descriptor that comes along. Answer: `Opened`.
    Open(Open),
    /// Reads. Answer: `Data`, or `Resident` if that is wanted and possible.
    Read {
        /// The open file.
        handle: u64,
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes; at most `REPLY_PAYLOAD_BYTES_MAX` where the answer is inline.
        length: u32,
        /// How the bytes shall come.
        want: Want,
    },
    /// Starts to bring a range in. No answer.
    Prefetch {
        /// The open file.
        handle: u64,
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes.
        length: u64,
    },
    /// Says how an open file will be used. No answer.
    Advise {
        /// The open file.
        handle: u64,
        /// In place of any given before.
        advice: Advice,
    },
    /// Registers the transfer buffer of this connection: the one descriptor that comes along, a
    /// memfd sealed against shrinking. Answer: `Done`.
    RegisterBuffer,
    /// Writes. Answer: `Written`.
    Write {
        /// The open file.
        handle: u64,
        /// Where, in bytes; append opens ignore it.
        offset: u64,
        /// Where the bytes are.
        source: WriteSource,
    },
    /// Makes what was written durable. Answer: `Done`.
    Sync {
        /// The open file.
        handle: u64,
        /// As `fdatasync`.
        data_only: bool,
    },
    /// As at `close(2)`: keeps the promise of the write mode, reports errors. Answer: `Done`.
    Flush {
        /// The open file.
        handle: u64,
    },
    /// Sets the length. Answer: `Done`.
    SetSize {
        /// The open file.
        handle: u64,
        /// Length in bytes.
        size: u64,
    },
    /// As `fallocate(2)`. Answer: `Done`.
    Allocate {
        /// The open file.
        handle: u64,
        /// Mode bits of `fallocate(2)`.
        mode_bits: i32,
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes.
        length: u64,
    },
    /// Present version and length. Answer: `Facts`.
    Facts {
        /// The open file.
        handle: u64,
    },
    /// Descriptors for reading without messages, anew. Answer: `Descriptors`.
    Descriptors {
        /// The open file.
        handle: u64,
    },
    /// Forgets the handle; `Flush` before it reports errors. No answer.
    Close {
        /// The open file.
        handle: u64,
        /// Bytes that the client read from the segment without a message, for the counters.
        mapped_bytes: u64,
    },
    /// Borrows a range for reading without copies. Answer: `Borrowed` or `NotBorrowed`.
    Borrow {
        /// The open file.
        handle: u64,
        /// Where, in bytes.
        offset: u64,
        /// How much, in bytes.
        length: u64,
    },
    /// Gives a borrowed range back. No answer.
    Release {
        /// The number from `Borrowed`.
        borrow: u64,
    },
    /// This client is about to change names or metadata of the file behind the one descriptor that
    /// comes along (rename, link, unlink it, set its mode, owner or times). The node looks at the
    /// file itself. Answer: `Noted`.
    NoteVersion,
    /// The change is made, or was not. What the node has of the version that it noted serves the
    /// file on, or is let go where its last name went. Answer: `Done`.
    MetadataChanged {
        /// The number from `Noted`.
        note: u64,
        /// What the file's change times were just before and after; `None` where the client did not
        /// see them, or where too much time lay between.
        times: Option<ChangeTimes>,
    },
    /// A request of the command line, with the file's descriptor where it is about a file.
    /// Answer: `Admin`.
    Admin(AdminRequest),
    /// The client goes. No answer; the node closes the connection.
    Bye,
    /// The client lives and sends no more on this connection. No answer; the node closes the
    /// connection when no request of it is worked on any more, and what it borrowed stays until the
    /// process ends.
    Finish,
    /// What the client was asked for, told because somebody watches. No answer.
    Traced {
        /// What the client is.
        front: Front,
        /// Its requests, those of one file before that is closed.
        records: Vec<LibraryRecord>,
        /// Requests that it dropped since the last such message.
        dropped: u64,
    },
}

impl Request {
    /// Whether it changes bytes of a file, so that it may not be carried out once nobody waits for
    /// it any more.
    pub fn changes_bytes(&self) -> bool {
        match self {
            Request::Write { .. } | Request::SetSize { .. } | Request::Allocate { .. } => true,
            Request::Open(open) => open.truncate,
            _ => false,
        }
    }

    /// Whether the node answers this request.
    pub fn is_answered(&self) -> bool {
        !matches!(
            self,
            Request::Prefetch { .. }
                | Request::Advise { .. }
                | Request::Close { .. }
                | Request::Release { .. }
                | Request::Bye
                | Request::Finish
                | Request::Traced { .. }
        )
    }
}

/// How a file is to be opened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Open {
    /// What this open may do; the descriptor must allow it too.
    pub access: Access,
    /// Read mode, or that of the directory rule or mount.
    pub read_mode: Option<ReadMode>,
    /// Write mode, or that of the directory rule or mount.
    pub write_mode: Option<WriteMode>,
    /// This open created the file.
    pub created: bool,
    /// Writes go to the end.
    pub append: bool,
    /// Cut the file to nothing.
    pub truncate: bool,
    /// Whether descriptors for reading without messages are of use.
    pub want_descriptors: bool,
    /// Send the whole file along if it has no segment and is not longer than this, in bytes.
    pub inline_bytes_max: u32,
}

/// How the bytes of a read shall come.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Want {
    /// In the reply.
    Inline,
    /// Made resident, so that the client reads its segment; inline where there is none.
    Resident,
}

/// Where the bytes of a write are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum WriteSource {
    /// They are the payload of the frame.
    Payload,
    /// In the registered transfer buffer.
    Buffer {
        /// Where in the buffer, in bytes.
        offset: u64,
        /// How much, in bytes; at most `TRANSFER_WRITE_BYTES_MAX`.
        length: u32,
    },
}

/// What a node answers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Reply {
    /// The file is open.
    Opened(Opened),
    /// The payload holds what was read, at most `REPLY_PAYLOAD_BYTES_MAX`.
    Data {
        /// The file ends behind these bytes.
        at_end: bool,
        /// Which levels it came from.
        levels: BytesByLevel,
    },
    /// The range is resident now; the client reads its segment.
    Resident {
        /// Bytes of the range before the end of the file.
        bytes: u64,
        /// Which levels they came from.
        levels: BytesByLevel,
    },
    /// All bytes are written.
    Written {
        /// Where they went, in bytes.
        offset: u64,
    },
    /// Facts of an open file.
    Facts {
        /// The version this open reads.
        version: Version,
        /// Length in bytes.
        size: u64,
    },
    /// Segment, table and reference bits come along, in this order, if `segment` is there.
    Descriptors {
        /// Their layout, or nothing where the file has no segment to hand out.
        segment: Option<SegmentLayout>,
    },
    /// The range stays where it is until it is released; the segment comes along, read-only.
    Borrowed {
        /// Number of the borrow.
        borrow: u64,
        /// Bytes borrowed: fewer than asked for only at the end of the file.
        bytes: u64,
        /// Which levels they came from.
        levels: BytesByLevel,
    },
    /// The range cannot be borrowed (packed, being written, or no room for pins): read it instead.
    NotBorrowed,
    /// The version of the file is noted.
    Noted {
        /// Number of the note on this connection. The oldest of too many is dropped.
        note: u64,
    },
    /// To `Admin`.
    Admin(AdminReply),
    /// Done; nothing to report.
    Done,
    /// The request failed.
    Failed(Failure),
}

/// An open file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Opened {
    /// Number of the open file on this connection.
    pub handle: u64,
    /// The version it reads.
    pub version: Version,
    /// Length in bytes.
    pub size: u64,
    /// What is written may live in the memory of the node alone, and so end with it.
    pub may_be_lost: bool,
    /// Layout of segment, table and reference bits, which come along in this order.
    pub segment: Option<SegmentLayout>,
    /// The payload is the whole file, and came from these levels.
    pub inline: Option<BytesByLevel>,
    /// The client is to write by itself, through its own descriptor, and to keep the promise of
    /// this mode by itself; the node takes the file back at the close.
    pub written_by_client: Option<WriteMode>,
}

/// Layout of a segment that is handed out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SegmentLayout {
    /// Block size in bytes.
    pub block_bytes: u64,
    /// Number of words of the table and of reference bits.
    pub blocks: u64,
}

/// An error as it travels.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// What went wrong.
    pub kind: ErrorKind,
    /// What was being done.
    pub operation: String,
    /// Details, in words.
    pub detail: String,
    /// What to do about it.
    pub remedy: Option<String>,
    /// The errno of the system call behind it.
    pub errno: Option<i32>,
}

/// Longest text of a failure in bytes, so that an error always fits a frame.
const FAILURE_TEXT_BYTES_MAX: usize = 4096;

fn shortened(text: &str) -> String {
    let mut end = text.len().min(FAILURE_TEXT_BYTES_MAX);
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    text[..end].to_owned()
}

impl From<&Error> for Failure {
    fn from(error: &Error) -> Self {
        Failure {
            kind: error.kind(),
            operation: shortened(error.operation()),
            detail: shortened(error.detail()),
            remedy: error.remedy_text().map(shortened),
            errno: error.system_errno(),
        }
    }
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Self {
        let mut error = Error::new(failure.kind, failure.operation, failure.detail);
        if let Some(remedy) = failure.remedy {
            error = error.remedy(remedy);
        }
        if let Some(errno) = failure.errno {
            error = error.caused_by(std::io::Error::from_raw_os_error(errno));
        }
        error
    }
}

/// Reads the body of a request.
pub fn decode_request(body: &[u8]) -> Result<Request, Malformed> {
    decode(body)
}

/// Reads the body of a reply.
pub fn decode_reply(body: &[u8]) -> Result<Reply, Malformed> {
    decode_timed_reply(body).map(|(reply, _)| reply)
}

/// Reads the body of a reply, and how many microseconds of it the node waited for the parallel file
/// system. It tells that while somebody watches, and only where it waited.
pub fn decode_timed_reply(body: &[u8]) -> Result<(Reply, u64), Malformed> {
    match postcard::take_from_bytes(body) {
        Ok((reply, [])) => Ok((reply, 0)),
        Ok((reply, rest)) => Ok((reply, decode(rest)?)),
        Err(_) => Err(NO_MESSAGE),
    }
}

// Vectors and strings cannot allocate more than the body holds: postcard takes strings from the
// slice, and sequences grow as their elements are read.
fn decode<'a, T: Deserialize<'a>>(body: &'a [u8]) -> Result<T, Malformed> {
    match postcard::take_from_bytes(body) {
        Ok((message, [])) => Ok(message),
        Ok(_) => Err(Malformed("bytes after the end of a message")),
        Err(_) => Err(NO_MESSAGE),
    }
}

const NO_MESSAGE: Malformed = Malformed("a body that is no message");

impl Request {
    /// Appends the body to `buffer`.
    pub fn encode(&self, buffer: Vec<u8>) -> Result<Vec<u8>, Malformed> {
        encode(self, buffer)
    }
}

impl Reply {
    /// Appends the body to `buffer`.
    pub fn encode(&self, buffer: Vec<u8>) -> Result<Vec<u8>, Malformed> {
        encode(self, buffer)
    }

    /// As `encode`, with the microseconds that the node waited for the parallel file system, if
    /// any.
    pub fn encode_timed(&self, buffer: Vec<u8>, pfs_us: u64) -> Result<Vec<u8>, Malformed> {
        let buffer = self.encode(buffer)?;
        if pfs_us == 0 { Ok(buffer) } else { encode(&pfs_us, buffer) }
    }
}

fn encode<T: Serialize>(message: &T, buffer: Vec<u8>) -> Result<Vec<u8>, Malformed> {
    postcard::to_extend(message, buffer).map_err(|_| Malformed("a message that has no encoding"))
}
