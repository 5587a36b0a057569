//! The validated configuration of a node. Everything but the command line sees only these types;
//! they hold no text that still has to be understood and no runtime state.
//!
//! How options are written and checked is in [`crate::option`] and [`crate::resolve`].

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::control::ControlSetting;
use crate::entry::ConfigEntry;
use crate::mode::{ReadMode, WriteMode};
use crate::size::MemorySize;

/// A feature that the machine may lack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Feature {
    /// Used where the machine has it; its absence is one line of `degraded`.
    #[default]
    Auto,
    /// Required: the start fails where the machine lacks it.
    On,
    /// Not used.
    Off,
}

impl Feature {
    /// Whether it should be tried.
    pub fn wanted(self) -> bool {
        self != Feature::Off
    }
}

/// What segments are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Backing {
    /// Private tmpfs where privilege allows, otherwise memfd.
    #[default]
    Auto,
    /// Anonymous memory files.
    Memfd,
    /// Files of a private tmpfs; needs privilege.
    Tmpfs,
}

/// What is read back from the PFS, and compared, of files that are written back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum WriteBackCheck {
    /// Nothing.
    #[default]
    Off,
    /// The first piece of each file, and a sixteenth of the others.
    Sampled,
    /// All of it.
    All,
}

/// Lowest severity that is logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Errors only.
    Error,
    /// And what degrades service.
    Warn,
    /// And what an operator wants to know.
    #[default]
    Info,
    /// And decisions.
    Debug,
    /// And every request.
    Trace,
}

/// Form of the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum LogFormat {
    /// One line of text an event.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// What one client or one user may hold at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientLimits {
    /// Open handles, each with its descriptors, per connection.
    pub descriptors_max: u32,
    /// Bytes pinned by zero-copy borrows, per user.
    pub pinned_bytes_max: u64,
    /// Requests in flight, per connection.
    pub requests_max: u32,
    /// Connections of one user.
    pub connections_max: u32,
}

/// Striping wanted for new files. Unset fields are left to the file system.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StripeHints {
    /// Bytes in one stripe.
    pub stripe_bytes: Option<u64>,
    /// Data servers that a file is spread over.
    pub stripe_count: Option<u32>,
    /// Data servers in order, as the file system names them.
    pub stripe_servers: Vec<String>,
}

impl StripeHints {
    /// Whether nothing is asked for.
    pub fn is_empty(&self) -> bool {
        *self == StripeHints::default()
    }
}

/// Settings of one directory and all below it. The rule with the longest path wins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DirectoryRule {
    /// Path below the PFS directory, without a leading slash; empty is the root.
    pub path: PathBuf,
    /// Read mode of opens that ask for none.
    pub read_mode: Option<ReadMode>,
    /// Write mode of opens that ask for none.
    pub write_mode: Option<WriteMode>,
    /// Cached bytes unused for this long are dropped.
    pub time_to_live: Option<Duration>,
    /// Most bytes that files of this directory may hold in the store.
    pub quota_bytes: Option<u64>,
    /// Whether files of this directory may be cached at all.
    pub admit: bool,
    /// Under pressure, memory-only bytes are dropped instead of written back.
    pub expendable: bool,
    /// Nodes that have the bytes of a memory-only file, this one among them.
    pub copies: u32,
    /// Striping of files created here.
    pub stripe: StripeHints,
}

/// Most bytes that the files opened by one user may hold in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UserQuota {
    /// Numeric user id.
    pub user_id: u32,
    /// Bytes.
    pub quota_bytes: u64,
}

/// Memory control of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ControlConfig {
    /// Whether the node runs a controller.
    pub is_on: bool,
    /// Guaranteed part of the store in bytes, [`memory_min_default_bytes`] where none is set.
    pub memory_min_bytes: u64,
    /// Time without a heartbeat of the controller after which it counts as dead, in milliseconds.
    pub lease_ms: u64,
    /// File of other stores that the controller governs too.
    pub stores_file: Option<PathBuf>,
    /// Parameters of the policies, each valid by the grammar of its option.
    pub parameters: Vec<ControlSetting>,
}

/// A node among others that share their memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterConfig {
    /// The members as written, by the grammar of the option `cluster_nodes`.
    pub nodes: String,
    /// Name of the cluster.
    pub cluster_name: String,
    /// File with the key that all nodes share.
    pub key_file: PathBuf,
    /// Name of this node among the members; `None` is its host name.
    pub node_name: Option<String>,
    /// Host or address of this node for lists in etcd; `None` is its host name.
    pub node_address: Option<String>,
    /// Port of members that name none.
    pub peer_port: u16,
    /// Time that a peer may keep silent.
    pub peer_timeout: Duration,
    /// Whether the bytes of blocks are authenticated too.
    pub is_integrity_full: bool,
    /// Where the certificates are; `None` encrypts nothing.
    pub tls: Option<PeerTlsConfig>,
    /// Resident bytes beyond which what is written in mode `bld` stays in burst buffers alone.
    pub buffer_local_bytes: u64,
    /// Servers of memcached that take the place of burst buffers in modes `adw` and `bld`: each a
    /// host and a port.
    pub buffer_servers: Vec<String>,
}

/// A burst buffer for what jobs on all nodes write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BufferConfig {
    /// Its memory, beside that of the store.
    pub memory_bytes: u64,
    /// Where it keeps what is owed to the PFS; `None` keeps it in memory alone.
    pub directory: Option<PathBuf>,
    /// Most bytes there.
    pub disk_bytes: u64,
    /// Where it listens for programs that speak memcached's protocol, on loopback.
    pub address: Option<SocketAddr>,
}

/// Where what a node needs for TLS with others is, in PEM each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PeerTlsConfig {
    /// Certificate of the node.
    pub certificate_file: PathBuf,
    /// Its private key.
    pub private_key_file: PathBuf,
    /// Certificates of the authority that signs those of all nodes.
    pub authority_file: PathBuf,
}

/// The guaranteed part of a store where none is set: small enough that no job misses it, and enough
/// for what programs use all the time.
pub fn memory_min_default_bytes(capacity_bytes: u64) -> u64 {
    (capacity_bytes / 10).min(1 << 30)
}

/// Configuration of a node, validated.
#[derive(Clone, Debug, PartialEq)]
pub struct NodeConfig {
    /// The PFS directory, absolute.
    pub pfs: PathBuf,
    /// Memory as it was asked for.
    pub memory: MemorySize,
    /// The same in bytes, whole blocks, never more than the machine or its control group has.
    pub capacity_bytes: u64,
    /// Mount point, absolute; `None` runs without a mount.
    pub mount: Option<PathBuf>,
    /// Path of the socket, absolute.
    pub socket: PathBuf,
    /// Stay attached to the terminal.
    pub foreground: bool,
    /// Unit of residency, transfer and eviction; a multiple of 2 MiB.
    pub block_bytes: u64,
    /// Name of the eviction policy, one of [`crate::option::POLICIES`].
    pub policy: String,
    /// Read mode of opens that neither ask for one nor fall under a rule.
    pub read_mode: ReadMode,
    /// Write mode of opens that neither ask for one nor fall under a rule.
    pub write_mode: WriteMode,
    /// Files up to this size are packed together; 0 packs none.
    pub small_file_bytes_max: u64,
    /// Transfers in flight to the PFS.
    pub transfers: u32,
    /// Bytes of one transfer.
    pub transfer_bytes: u64,
    /// Farthest that read-ahead runs before the reader; 0 turns it off.
    pub read_ahead_bytes_max: u64,
    /// Largest request of an application that the mount takes at once, in bytes.
    pub read_buffer_bytes: u64,
    /// Threads that serve the mount; at least 1.
    pub fuse_threads: u32,
    /// Passthrough opens of resident files.
    pub passthrough: Feature,
    /// Opens past the kernel's page cache.
    pub direct_io: Feature,
    /// 2 MiB pages.
    pub huge_pages: Feature,
    /// What segments are made of.
    pub backing: Backing,
    /// Share of the capacity that pins and passthrough opens may hold, 0 to 1.
    pub pinned_share_max: f64,
    /// Address of the Prometheus endpoint.
    pub metrics_address: Option<SocketAddr>,
    /// Lowest severity logged.
    pub log_level: LogLevel,
    /// Form of the log.
    pub log_format: LogFormat,
    /// File to log to; `None` is standard error.
    pub log_file: Option<PathBuf>,
    /// Limits of one client or user.
    pub client_limits: ClientLimits,
    /// Granularity of the PFS's time stamps instead of the measured one.
    pub timestamp_granularity_ns: Option<u64>,
    /// Cache also where writes of others cannot be seen, because there are none.
    pub pfs_has_no_other_writers: bool,
    /// Memory control.
    pub control: ControlConfig,
    /// The other nodes; `None` where the node stands alone.
    pub cluster: Option<ClusterConfig>,
    /// The burst buffer; `None`: the node has none.
    pub buffer: Option<BufferConfig>,
    /// Most bytes a second of write-back that nobody waits for; `None`: no such limit.
    pub write_back_bytes_per_s: Option<u64>,
    /// What is read back of what is written back.
    pub write_back_check: WriteBackCheck,
    /// Faults to inject below the PFS side; development only.
    pub fault: Option<String>,
    /// Settings per directory.
    pub rules: Vec<DirectoryRule>,
    /// Quotas per user.
    pub quotas: Vec<UserQuota>,
    /// Every option with its effective value and origin, for `tidepool config`.
    pub entries: Vec<ConfigEntry>,
}

impl NodeConfig {
    /// The rule for a path below the PFS directory, with its number: the longest one that is a
    /// prefix of whole components.
    pub fn rule_for(&self, path: &Path) -> Option<(usize, &DirectoryRule)> {
        let matching =
            self.rules.iter().enumerate().filter(|(_, rule)| path.starts_with(&rule.path));
        matching.max_by_key(|(_, rule)| rule.path.components().count())
    }
}
