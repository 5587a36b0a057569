//! [`Error`]: the one error type of the product: kind, operation, context, cause and remedy.
//!
//! The kinds are closed. The mapping to `errno` is a match without a wildcard, so a new kind
//! cannot be forgotten in a front end. Errors are built where they happen and logged where they
//! are handled, never in between.

use std::fmt;
use std::io;

/// Result of every fallible operation of the product.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What went wrong, as far as a caller can act on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ErrorKind {
    /// An option, argument or configuration entry has no valid meaning.
    InvalidInput,
    /// The parallel file system answered with an error of its own; the errno is passed on.
    Pfs,
    /// The file changed on the parallel file system while it was open.
    Changed,
    /// Read mode `memory` was asked for bytes that are not resident.
    NotResident,
    /// Bytes written in mode `memory` went with the node that held them.
    Lost,
    /// The store has no room and nothing that may be evicted.
    StoreFull,
    /// A quota of a user or a directory is used up.
    QuotaExceeded,
    /// A per-client or per-user limit (descriptors, pins, requests in flight) is reached.
    LimitReached,
    /// The caller may not do this.
    PermissionDenied,
    /// No node answers at the socket.
    NodeUnavailable,
    /// The other side speaks another protocol version, or sent bytes that make no message.
    Protocol,
    /// The machine lacks something that the operation needs.
    Unsupported,
    /// A name, socket or mount point is in use by something else.
    InUse,
    /// The operation went on too long and was given up.
    TimedOut,
    /// A bug of ours; please report it.
    Internal,
    /// A store of another product does not answer: its server ended, or its tool failed.
    StoreUnavailable,
}

impl ErrorKind {
    /// All kinds, in the order of the reference documentation.
    pub const ALL: [ErrorKind; 16] = [
        ErrorKind::InvalidInput,
        ErrorKind::Pfs,
        ErrorKind::Changed,
        ErrorKind::NotResident,
        ErrorKind::Lost,
        ErrorKind::StoreFull,
        ErrorKind::QuotaExceeded,
        ErrorKind::LimitReached,
        ErrorKind::PermissionDenied,
        ErrorKind::NodeUnavailable,
        ErrorKind::StoreUnavailable,
        ErrorKind::Protocol,
        ErrorKind::Unsupported,
        ErrorKind::InUse,
        ErrorKind::TimedOut,
        ErrorKind::Internal,
    ];

    /// The errno that POSIX front ends report when the error carries none of its own.
    pub fn errno(self) -> i32 {
        // Numbers of Linux on every architecture that Rust supports with the generic table.
        const EPERM: i32 = 1;
        const EIO: i32 = 5;
        const EAGAIN: i32 = 11;
        const EBUSY: i32 = 16;
        const EINVAL: i32 = 22;
        const ENOSPC: i32 = 28;
        const ENODATA: i32 = 61;
        const EPROTO: i32 = 71;
        const EOPNOTSUPP: i32 = 95;
        const ETIMEDOUT: i32 = 110;
        const ECONNREFUSED: i32 = 111;
        const ESTALE: i32 = 116;
        const EDQUOT: i32 = 122;
        match self {
            ErrorKind::InvalidInput => EINVAL,
            ErrorKind::Pfs => EIO,
            ErrorKind::Changed => ESTALE,
            ErrorKind::NotResident => ENODATA,
            ErrorKind::Lost => EIO,
            ErrorKind::StoreFull => ENOSPC,
            ErrorKind::QuotaExceeded => EDQUOT,
            ErrorKind::LimitReached => EAGAIN,
            ErrorKind::PermissionDenied => EPERM,
            ErrorKind::NodeUnavailable | ErrorKind::StoreUnavailable => ECONNREFUSED,
            ErrorKind::Protocol => EPROTO,
            ErrorKind::Unsupported => EOPNOTSUPP,
            ErrorKind::InUse => EBUSY,
            ErrorKind::TimedOut => ETIMEDOUT,
            ErrorKind::Internal => EIO,
        }
    }

    /// Whether the same call may succeed later without anything being repaired.
    pub fn is_retryable(self) -> bool {
        match self {
            ErrorKind::StoreFull
            | ErrorKind::LimitReached
            | ErrorKind::NodeUnavailable
            | ErrorKind::StoreUnavailable
            | ErrorKind::TimedOut
            | ErrorKind::InUse => true,
            ErrorKind::InvalidInput
            | ErrorKind::Pfs
            | ErrorKind::Changed
            | ErrorKind::NotResident
            | ErrorKind::Lost
            | ErrorKind::QuotaExceeded
            | ErrorKind::PermissionDenied
            | ErrorKind::Protocol
            | ErrorKind::Unsupported
            | ErrorKind::Internal => false,
        }
    }

    /// One sentence for the reference documentation: what it means and what to do.
    pub fn explanation(self) -> &'static str {
        match self {
            ErrorKind::InvalidInput => {
                "An option or argument has no valid meaning; the message names it and what would \
                 be valid."
            }
            ErrorKind::Pfs => {
                "The parallel file system refused or failed; the message carries its errno. \
                 Check the same path there."
            }
            ErrorKind::Changed => {
                "Another program changed the file while it was open. Open it again to read the \
                 new version."
            }
            ErrorKind::NotResident => {
                "Read mode `memory` never goes to the PFS. Load the file (`tidepool load`) or \
                 read `two-level`."
            }
            ErrorKind::Lost => {
                "The file was written in mode `memory` and its node is gone. Write it again, or \
                 use mode `through`."
            }
            ErrorKind::StoreFull => {
                "All of the store is pinned or dirty. Unpin files or enlarge the store \
                 (`tidepool resize`)."
            }
            ErrorKind::QuotaExceeded => {
                "A quota of the user or directory is used up. Evict or unpin files, or ask for a \
                 larger quota."
            }
            ErrorKind::LimitReached => {
                "A limit per client or user is reached. Close files or connections, then try again."
            }
            ErrorKind::PermissionDenied => {
                "The caller may not do this; the owner of the node or root may."
            }
            ErrorKind::NodeUnavailable => {
                "No node answers at this socket. Start one (`tidepool node start`) or pass the \
                 right --socket."
            }
            ErrorKind::StoreUnavailable => {
                "A store of another product does not answer; the message names it. Start its \
                 server, or take the store out of the controller's list."
            }
            ErrorKind::Protocol => {
                "The two sides do not speak the same protocol. Use the same release on both sides."
            }
            ErrorKind::Unsupported => {
                "This machine lacks what the operation needs; `tidepool doctor` lists what is \
                 missing."
            }
            ErrorKind::InUse => {
                "Something else uses the name, socket or mount point; the message names it."
            }
            ErrorKind::TimedOut => {
                "The operation was given up after its time limit; it may succeed later."
            }
            ErrorKind::Internal => "A bug of Tidepool. Please report it with the node's log.",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorKind::InvalidInput => "invalid input",
            ErrorKind::Pfs => "parallel file system error",
            ErrorKind::Changed => "file changed while open",
            ErrorKind::NotResident => "not resident",
            ErrorKind::Lost => "memory-only data lost",
            ErrorKind::StoreFull => "store full",
            ErrorKind::QuotaExceeded => "quota exceeded",
            ErrorKind::LimitReached => "limit reached",
            ErrorKind::PermissionDenied => "permission denied",
            ErrorKind::NodeUnavailable => "no node answers",
            ErrorKind::StoreUnavailable => "a store does not answer",
            ErrorKind::Protocol => "protocol mismatch",
            ErrorKind::Unsupported => "not supported here",
            ErrorKind::InUse => "in use",
            ErrorKind::TimedOut => "timed out",
            ErrorKind::Internal => "internal error",
        })
    }
}

/// An error: its kind, the operation in the present tense, context, cause and remedy.
///
/// `Display` gives one line: `while <operation>: <detail>: <source> (<remedy>)`.
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    operation: String,
    detail: String,
    remedy: Option<String>,
    source: Option<io::Error>,
}

impl Error {
    /// An error of `kind` that happened while doing `operation` (present participle, lower case).
    pub fn new(kind: ErrorKind, operation: impl Into<String>, detail: impl Into<String>) -> Self {
        Error {
            kind,
            operation: operation.into(),
            detail: detail.into(),
            remedy: None,
            source: None,
        }
    }

    /// An error of the parallel file system or kernel, with its errno kept.
    pub fn pfs(operation: impl Into<String>, source: impl Into<io::Error>) -> Self {
        let mut error = Error::new(ErrorKind::Pfs, operation, "");
        error.source = Some(source.into());
        error
    }

    /// Adds what the reader of the message can do about it.
    #[must_use]
    pub fn remedy(mut self, remedy: impl Into<String>) -> Self {
        self.remedy = Some(remedy.into());
        self
    }

    /// Adds the error of the system call behind this one.
    #[must_use]
    pub fn caused_by(mut self, source: impl Into<io::Error>) -> Self {
        self.source = Some(source.into());
        self
    }

    /// What went wrong.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// The errno for POSIX callers: that of the system call behind it, else that of the kind.
    pub fn errno(&self) -> i32 {
        self.source.as_ref().and_then(io::Error::raw_os_error).unwrap_or_else(|| self.kind.errno())
    }

    /// What was being done.
    pub fn operation(&self) -> &str {
        &self.operation
    }

    /// Details, in words; may be empty.
    pub fn detail(&self) -> &str {
        &self.detail
    }

    /// What the reader of the message can do about it.
    pub fn remedy_text(&self) -> Option<&str> {
        self.remedy.as_deref()
    }

    /// The line that `Display` gives, without the remedy.
    pub fn message(&self) -> String {
        let mut text = format!("while {}", self.operation);
        if !self.detail.is_empty() {
            text += &format!(": {}", self.detail);
        }
        if let Some(source) = &self.source {
            text += &format!(": {source}");
        }
        if self.detail.is_empty() && self.source.is_none() {
            text += &format!(": {}", self.kind);
        }
        text
    }

    /// The errno of the system call behind this error, if there is one.
    pub fn system_errno(&self) -> Option<i32> {
        self.source.as_ref().and_then(io::Error::raw_os_error)
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message())?;
        if let Some(remedy) = &self.remedy {
            write!(f, " ({remedy})")?;
        }
        Ok(())
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.source.as_ref().map(|source| source as _)
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        io::Error::from_raw_os_error(error.errno())
    }
}
