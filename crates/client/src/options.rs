//! Options of a client ([`ClientOptions`]) and of an open ([`OpenOptions`]).

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use tidepool_proto::trace::Front;
use tidepool_proto::{Access, ReadMode, WriteMode};

/// Where messages for the user go, one line each.
pub type Notice = Arc<dyn Fn(&str) + Send + Sync>;

/// How a client finds its node.
#[derive(Clone)]
pub struct ClientOptions {
    /// Socket of the node; `None` takes the environment variable `TIDEPOOL_SOCKET`, and without
    /// that no node is used.
    pub socket: Option<PathBuf>,
    /// Directory of the parallel file system that `tide:///` stands for; `None` takes the
    /// environment variable `TIDEPOOL_PFS`, and without that asks the node.
    pub pfs_root: Option<PathBuf>,
    /// The same directory where it was not given and no node answers.
    pub pfs_root_without_node: Option<PathBuf>,
    /// User whose node is trusted beside root's and the caller's own. Another user's node would be
    /// handed descriptors of the caller's files, so it is not used.
    pub trusted_user_id: Option<u32>,
    /// After a failed attempt to reach the node, the time until the next one.
    pub retry_interval: Duration,
    /// How long one request may take. A parallel file system may be slow, so this is long.
    pub request_timeout: Duration,
    /// Whether segments are read without messages where the node hands them out.
    pub map_segments: bool,
    /// Where notices go; by default to standard error.
    pub notice: Notice,
    /// What traces of requests call this client.
    pub front: Front,
}

impl Default for ClientOptions {
    fn default() -> Self {
        ClientOptions {
            socket: None,
            pfs_root: None,
            pfs_root_without_node: None,
            trusted_user_id: None,
            retry_interval: Duration::from_millis(500),
            request_timeout: Duration::from_secs(600),
            map_segments: true,
            notice: Arc::new(|line| eprintln!("tidepool: {line}")),
            front: Front::Library,
        }
    }
}

impl std::fmt::Debug for ClientOptions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClientOptions")
            .field("socket", &self.socket)
            .field("pfs_root", &self.pfs_root)
            .field("pfs_root_without_node", &self.pfs_root_without_node)
            .field("trusted_user_id", &self.trusted_user_id)
            .field("retry_interval", &self.retry_interval)
            .field("request_timeout", &self.request_timeout)
            .field("map_segments", &self.map_segments)
            .field("front", &self.front)
            .finish_non_exhaustive()
    }
}

/// How a file will be read, as far as the caller knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReadPattern {
    /// It shows as it is read.
    #[default]
    Unknown,
    /// From the first read on, each begins where the last one ended.
    Sequential,
    /// From its beginning to its end, so that it is fetched from the open on.
    Whole,
    /// Here and there: nothing is read ahead.
    Random,
}

/// What is known of the reads to come; hints that change no byte.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReadPlan {
    /// In which order.
    pub pattern: ReadPattern,
    /// Where the first read begins, in bytes.
    pub start: u64,
    /// Nothing is read ahead beyond this, in bytes; reads go on past it all the same.
    pub end: Option<u64>,
}

/// How to open a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpenOptions {
    /// What the open may do.
    pub access: Access,
    /// Create the file if it is missing.
    pub create: bool,
    /// Create the file, and fail if it exists.
    pub create_new: bool,
    /// Set the length to zero.
    pub truncate: bool,
    /// Writes go to the end of the file.
    pub append: bool,
    /// Permissions of a file that is created, before the umask.
    pub mode_bits: u32,
    /// They hold whatever the umask; an inherited access control list goes before them.
    pub mode_is_exact: bool,
    /// Read mode; `None` takes that of the directory rule or mount.
    pub read_mode: Option<ReadMode>,
    /// Write mode; `None` takes that of the directory rule or mount.
    pub write_mode: Option<WriteMode>,
    /// What is known of the reads to come.
    pub plan: ReadPlan,
}

impl OpenOptions {
    /// Reads an existing file.
    pub fn read() -> Self {
        OpenOptions {
            access: Access::Read,
            create: false,
            create_new: false,
            truncate: false,
            append: false,
            mode_bits: 0o666,
            mode_is_exact: false,
            read_mode: None,
            write_mode: None,
            plan: ReadPlan::default(),
        }
    }

    /// Writes a file anew: it is created or emptied.
    pub fn write() -> Self {
        OpenOptions { access: Access::Write, create: true, truncate: true, ..Self::read() }
    }

    /// Reads and writes a file, which is created if it is missing.
    pub fn read_write() -> Self {
        OpenOptions { access: Access::ReadWrite, create: true, ..Self::read() }
    }
}

impl Default for OpenOptions {
    fn default() -> Self {
        Self::read()
    }
}
