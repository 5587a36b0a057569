//! The one table of options. The command line, its help, man pages and completions, the
//! configuration file, the environment and the reference are made from it.
//!
//! Pure data and the grammar of values; what the values mean together is in [`crate::resolve`].

use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

use crate::size::{ByteSize, MemorySize};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// Names of the eviction policies, with one line each.
pub const POLICIES: [(&str, &str); 6] = [
    ("lru", "evicts what was unused longest"),
    ("lfu", "evicts what was used least often, with aging"),
    ("s3fifo", "three queues; single scans do not flush what is used again"),
    ("cyclic", "keeps a stable part of a set that is swept again and again"),
    ("fixed", "keeps one part of what is read, whatever the order"),
    ("adaptive", "follows whichever of the others would have hit most"),
];
const POLICY_NAMES: &[&str] = &["lru", "lfu", "s3fifo", "cyclic", "fixed", "adaptive"];
pub(crate) const READ_MODES: &[&str] = &["two-level", "memory", "bypass"];
pub(crate) const WRITE_MODES: &[&str] = &["through", "memory", "alw", "adw", "bld", "bypass"];
const FEATURES: &[&str] = &["auto", "on", "off"];
const BACKINGS: &[&str] = &["auto", "memfd", "tmpfs"];
const LOG_LEVELS: &[&str] = &["error", "warn", "info", "debug", "trace"];
const PEER_INTEGRITY: &[&str] = &["headers", "full"];
const WRITE_BACK_CHECKS: &[&str] = &["off", "sampled", "all"];
const LOG_FORMATS: &[&str] = &["text", "json"];
const CONTROL_POLICY_NAMES: &[&str] = &["tidepool", "dynims", "dynims-printed", "static"];

/// Grammar of a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum OptionKind {
    /// A path.
    Path,
    /// A size in bytes within bounds, a multiple of `step`.
    Bytes {
        /// Smallest size in bytes.
        min: u64,
        /// Largest size in bytes.
        max: u64,
        /// Every size is a multiple of this.
        step: u64,
    },
    /// A size in bytes or a share of the machine's memory.
    Memory,
    /// A whole number within bounds.
    Count {
        /// Smallest number.
        min: u64,
        /// Largest number.
        max: u64,
    },
    /// A number from 0 to 1.
    Share,
    /// A number from 0 to `max`.
    Number {
        /// Largest number.
        max: f64,
    },
    /// True or false; a flag without value on the command line.
    Switch,
    /// One of a few names.
    Choice(&'static [&'static str]),
    /// An IP address and port.
    Address,
    /// A list of names.
    Names,
    /// Text.
    Text,
}

const ANY_BYTES: OptionKind = OptionKind::Bytes { min: 0, max: u64::MAX, step: 1 };

impl OptionKind {
    /// Says in words what is wrong with `text`, if anything is.
    pub fn check(&self, text: &str) -> Result<(), String> {
        let trimmed = text.trim();
        if trimmed.is_empty() {
            return Err("is empty".to_owned());
        }
        match *self {
            OptionKind::Path | OptionKind::Text | OptionKind::Names => {
                if text.contains('\0') {
                    Err("contains a zero byte".to_owned())
                } else {
                    Ok(())
                }
            }
            OptionKind::Bytes { min, max, step } => check_bytes(trimmed, min, max, step),
            OptionKind::Memory => match trimmed.parse::<MemorySize>() {
                Ok(_) => Ok(()),
                // What is wrong with a share says more than that it is no size.
                Err(error) => {
                    let why = error.detail().strip_prefix(&format!("`{trimmed}` "));
                    Err(why.unwrap_or("is not a size").to_owned())
                }
            },
            OptionKind::Count { min, max } => match trimmed.parse::<u64>() {
                Ok(number) if (min..=max).contains(&number) => Ok(()),
                Ok(_) => Err("is out of range".to_owned()),
                Err(_) => Err("is not a whole number".to_owned()),
            },
            OptionKind::Share => check_number(trimmed, 1.0),
            OptionKind::Number { max } => check_number(trimmed, max),
            OptionKind::Switch => trimmed.parse::<Switch>().map(drop),
            OptionKind::Choice(names) if names.contains(&trimmed) => Ok(()),
            OptionKind::Choice(_) => Err("is not one of the names".to_owned()),
            OptionKind::Address => match trimmed.parse::<SocketAddr>() {
                Ok(_) => Ok(()),
                Err(_) => Err("is not an address with a port".to_owned()),
            },
        }
    }

    /// What is valid, in words.
    pub fn valid(&self) -> String {
        match *self {
            OptionKind::Path => "a path".to_owned(),
            OptionKind::Bytes { min, max, step } => valid_bytes(min, max, step),
            OptionKind::Memory => "a size such as 8GiB, or a share such as 60%".to_owned(),
            OptionKind::Count { min, max: u64::MAX } => format!("a whole number from {min}"),
            OptionKind::Count { min, max } => format!("a whole number from {min} to {max}"),
            OptionKind::Share => "a number from 0 to 1".to_owned(),
            OptionKind::Number { max } => format!("a number from 0 to {max}"),
            OptionKind::Switch => "true or false".to_owned(),
            OptionKind::Choice(names) => names.join(", "),
            OptionKind::Address => "an address such as 127.0.0.1:9464".to_owned(),
            OptionKind::Names => "names separated by commas".to_owned(),
            OptionKind::Text => "text".to_owned(),
        }
    }

    /// Placeholder of the value in help texts.
    pub fn placeholder(&self) -> &'static str {
        match self {
            OptionKind::Path => "PATH",
            OptionKind::Bytes { .. } | OptionKind::Memory => "SIZE",
            OptionKind::Count { .. } => "COUNT",
            OptionKind::Share => "SHARE",
            OptionKind::Number { .. } => "NUMBER",
            OptionKind::Switch => "BOOL",
            OptionKind::Choice(_) => "NAME",
            OptionKind::Address => "ADDRESS",
            OptionKind::Names => "NAMES",
            OptionKind::Text => "TEXT",
        }
    }
}

fn check_number(text: &str, max: f64) -> Result<(), String> {
    match text.parse::<f64>() {
        Ok(number) if (0.0..=max).contains(&number) => Ok(()),
        Ok(_) => Err("is out of range".to_owned()),
        Err(_) => Err("is not a number".to_owned()),
    }
}

fn check_bytes(text: &str, min: u64, max: u64, step: u64) -> Result<(), String> {
    let ByteSize(bytes) = text.parse().map_err(|_| "is not a size".to_owned())?;
    if !(min..=max).contains(&bytes) {
        return Err("is out of range".to_owned());
    }
    if bytes % step != 0 {
        return Err(format!("is not a multiple of {}", ByteSize(step)));
    }
    Ok(())
}

fn valid_bytes(min: u64, max: u64, step: u64) -> String {
    let mut words = match (min, max) {
        (0, u64::MAX) => "a size such as 4MiB".to_owned(),
        (min, u64::MAX) => format!("a size from {}", ByteSize(min)),
        (min, max) => format!("a size from {} to {}", ByteSize(min), ByteSize(max)),
    };
    if step > 1 {
        words += &format!(", a multiple of {}", ByteSize(step));
    }
    words
}

/// A truth value as people write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch(pub bool);

impl FromStr for Switch {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "true" | "yes" | "on" | "1" => Ok(Switch(true)),
            "false" | "no" | "off" | "0" => Ok(Switch(false)),
            _ => Err("is neither true nor false".to_owned()),
        }
    }
}

/// One option, or one key of a list entry of the configuration file.
#[derive(Clone, Copy, Debug)]
pub struct OptionSpec {
    /// Key in the configuration file.
    pub name: &'static str,
    /// Grammar of the value.
    pub kind: OptionKind,
    /// Unit of the value, or empty.
    pub unit: &'static str,
    /// Value where nothing is set; `None` is described in `doc`.
    pub default: Option<&'static str>,
    /// Whether a running node takes a new value on SIGHUP or by command.
    pub live: bool,
    /// One line of documentation.
    pub doc: &'static str,
}

impl OptionSpec {
    /// The flag on the command line, without dashes in front.
    pub fn flag(&self) -> String {
        self.name.replace('_', "-")
    }

    /// The environment variable.
    pub fn environment(&self) -> String {
        format!("TIDEPOOL_{}", self.name.to_ascii_uppercase())
    }
}

/// Where a value comes from; later ones win.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The table of options.
    Default,
    /// A line of the configuration file.
    File {
        /// The file.
        path: PathBuf,
        /// Line, counted from 1.
        line: usize,
    },
    /// An environment variable.
    Environment(String),
    /// A flag.
    CommandLine(String),
}

impl Origin {
    /// The stable name used in JSON.
    pub fn name(&self) -> &'static str {
        match self {
            Origin::Default => "default",
            Origin::File { .. } => "file",
            Origin::Environment(_) => "environment",
            Origin::CommandLine(_) => "command line",
        }
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File { path, line } => write!(f, "{} line {line}", path.display()),
            Origin::Environment(name) => write!(f, "environment variable {name}"),
            Origin::CommandLine(flag) => write!(f, "--{flag}"),
        }
    }
}

/// A value as it was written, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setting {
    /// The text.
    pub text: String,
    /// Where it was written.
    pub origin: Origin,
}

macro_rules! table {
    ($(#[$table_doc:meta])* $table:ident, $(#[$raw_doc:meta])* $raw:ident;
     $($field:ident: $kind:expr, $unit:literal, $default:expr, $live:literal, $doc:literal;)+) => {
        $(#[$table_doc])*
        pub static $table: &[OptionSpec] = &[$(OptionSpec {
            name: stringify!($field),
            kind: $kind,
            unit: $unit,
            default: $default,
            live: $live,
            doc: $doc,
        }),+];

        $(#[$raw_doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $raw { $(#[doc = $doc] pub $field: Option<Setting>,)+ }

        impl $raw {
            /// The place of the value called `name`.
            pub fn slot(&mut self, name: &str) -> Option<&mut Option<Setting>> {
                match name {
                    $(stringify!($field) => Some(&mut self.$field),)+
                    _ => None,
                }
            }

            /// The value called `name`, if it is set.
            pub fn get(&self, name: &str) -> Option<&Setting> {
                match name {
                    $(stringify!($field) => self.$field.as_ref(),)+
                    _ => None,
                }
            }
        }
    };
}
pub(crate) use table;

table! {
    /// All options of a node.
    OPTIONS,
    /// Options as written, not yet understood.
    RawOptions;

    pfs: OptionKind::Path, "", None, false,
        "Directory of the parallel file system that the node serves; required.";
    memory: OptionKind::Memory, "bytes or %", Some("50%"), true,
        "Capacity of the store; percent is of the machine's memory or of the control group's \
         limit, whichever is lower.";
    mount: OptionKind::Path, "", None, false,
        "Directory to mount at; without it only the library and the command line reach the node.";
    socket: OptionKind::Path, "", None, false,
        "Socket of the node; by default /run/tidepool/node.sock for root, for others \
         $XDG_RUNTIME_DIR/tidepool/node.sock, or /tmp/tidepool-UID/tidepool/node.sock where that \
         variable is not set. Commands and libraries of a user who runs no node ask root's.";
    foreground: OptionKind::Switch, "", Some("false"), false,
        "Stay attached to the terminal instead of becoming a daemon.";
    policy: OptionKind::Choice(POLICY_NAMES), "", Some("adaptive"), true,
        "Eviction policy.";
    read_mode: OptionKind::Choice(READ_MODES), "", Some("two-level"), false,
        "Where reads may come from: the nearest copy (two-level), resident bytes only (memory), \
         or always the PFS (bypass).";
    write_mode: OptionKind::Choice(WRITE_MODES), "", Some("through"), false,
        "Where writes go: PFS and store, synced at close (through), with copies in burst buffers \
         for readers elsewhere (adw), of which a part of this node's memory is filled at most \
         (bld); the store alone (memory), or with the burst buffer of another node (alw); or the \
         PFS alone (bypass).";
    block_bytes: OptionKind::Bytes { min: 2 * MIB, max: GIB, step: 2 * MIB }, "bytes",
        Some("4MiB"), false,
        "Unit of residency, transfer and eviction.";
    small_file_bytes_max: OptionKind::Bytes { min: 0, max: GIB, step: 1 }, "bytes",
        Some("256KiB"), false,
        "Files up to this size are packed together; must be less than a block; 0 packs none.";
    transfers: OptionKind::Count { min: 1, max: 256 }, "", Some("8"), false,
        "Transfers in flight to the PFS.";
    transfer_bytes: OptionKind::Bytes { min: 64 * KIB, max: 256 * MIB, step: 4 * KIB }, "bytes",
        Some("4MiB"), false,
        "Size of one transfer to or from the PFS.";
    read_ahead_bytes_max: OptionKind::Bytes { min: 0, max: 64 * GIB, step: 1 }, "bytes",
        Some("64MiB"), false,
        "Farthest that read-ahead runs before a sequential reader; 0 turns it off.";
    read_buffer_bytes: OptionKind::Bytes { min: 64 * KIB, max: 16 * MIB, step: 4 * KIB }, "bytes",
        Some("1MiB"), false,
        "Largest request of an application that the mount takes at once; kernels have a limit of \
         their own, 1 MiB unless `fs.fuse.max_pages_limit` says more.";
    fuse_threads: OptionKind::Count { min: 1, max: 64 }, "", None, false,
        "Threads that serve the mount; by default one a processor, at least 2 and at most 16.";
    passthrough: OptionKind::Choice(FEATURES), "", Some("auto"), false,
        "Let the kernel read wholly resident files, and write new ones, without asking the node \
         (Linux 6.9, privilege).";
    direct_io: OptionKind::Choice(FEATURES), "", Some("auto"), false,
        "Let reads and writes on the mount go past the kernel's page cache. Without it, and before \
         Linux 6.6, programs can map files all the same, but each read asks for attributes and \
         costs a second copy.";
    huge_pages: OptionKind::Choice(FEATURES), "", Some("auto"), false,
        "Hold the store in 2 MiB pages.";
    backing: OptionKind::Choice(BACKINGS), "", Some("auto"), false,
        "What the store is made of: a private tmpfs, or memfd.";
    pinned_share_max: OptionKind::Share, "", Some("0.5"), false,
        "Share of the capacity that pins and passthrough opens may hold.";
    client_descriptors_max: OptionKind::Count { min: 16, max: 1 << 20 }, "", Some("8192"), false,
        "Files that one connection may hold open.";
    client_requests_max: OptionKind::Count { min: 1, max: 4096 }, "", Some("16"), false,
        "Requests of one connection that are worked on at a time.";
    user_pinned_bytes_max: ANY_BYTES, "bytes", Some("1GiB"), false,
        "Bytes that one user may pin with `tidepool pin`, and as many by borrowing them without a \
         copy; root and the user of the node have no such limit.";
    user_connections_max: OptionKind::Count { min: 1, max: 65_536 }, "", Some("1024"), false,
        "Connections of one user.";
    timestamp_granularity_ns: OptionKind::Count { min: 0, max: 10_000_000_000 }, "ns", None, false,
        "Granularity of the PFS's time stamps instead of the one measured at the start; too \
         small a value can hide changes.";
    pfs_has_no_other_writers: OptionKind::Switch, "", Some("false"), false,
        "Cache although writes move no time stamps on this PFS. Changes by anybody who does not \
         write through this node are then never seen: wrong bytes are read, without an error.";
    control: OptionKind::Choice(&["on", "off"]), "", Some("on"), true,
        "Follow the memory demand of jobs: the store shrinks when they need memory and grows back \
         after. `off` keeps the store at its size, whatever jobs need.";
    memory_min: OptionKind::Memory, "bytes or %", None, true,
        "Guaranteed part of the store: a controller never takes it below, and without a living \
         controller it falls to it; pinned bytes stay in any case. Not set: a tenth of `memory`, \
         1GiB at most.";
    control_lease_ms: OptionKind::Count { min: 100, max: 60_000 }, "ms", Some("1000"), true,
        "Time without a word of the controller after which the store falls to its guaranteed part.";
    control_policy: OptionKind::Choice(CONTROL_POLICY_NAMES), "", Some("tidepool"), true,
        "Control policy.";
    control_interval_ms: OptionKind::Count { min: 0, max: 10_000 }, "ms", Some("0"), true,
        "Time between two decisions; 0: 10 ms, and 100 ms for the policies of the DynIMS paper.";
    control_headroom_bytes: ANY_BYTES, "bytes", Some("0"), true,
        "Bytes kept free for jobs above their present demand; 0 derives it from the node.";
    control_actuation_delay_ms: OptionKind::Count { min: 0, max: 60_000 }, "ms", Some("10"), true,
        "Time from a command until its memory is back, for the feed-forward of growing demand.";
    control_slope_window_ms: OptionKind::Count { min: 1, max: 60_000 }, "ms", Some("40"), true,
        "Window over which the growth of the demand is measured.";
    control_hold_ms: OptionKind::Count { min: 0, max: 3_600_000 }, "ms", Some("2000"), true,
        "Time without growth after a shrink; doubles when demand comes and goes.";
    control_hold_max_ms: OptionKind::Count { min: 0, max: 3_600_000 }, "ms", Some("60000"), true,
        "Upper bound of the doubled hold.";
    control_growth_bytes_per_s: ANY_BYTES, "bytes/s", Some("2GiB"), true,
        "Rate at which the store may grow back.";
    control_growth_band_share: OptionKind::Share, "", Some("0.005"), true,
        "Growth stops this share of the node's memory below the target, at least two blocks.";
    control_disagreement_share: OptionKind::Share, "", Some("0.03"), true,
        "Share of the node's memory by which two estimates of used memory may differ.";
    control_gain: OptionKind::Number { max: 10.0 }, "", Some("0.5"), true,
        "Gain of the law of the DynIMS paper.";
    control_used_share_target: OptionKind::Share, "", Some("0.95"), true,
        "Share of used memory that the law of the DynIMS paper aims at.";
    controlled_stores: OptionKind::Path, "", None, false,
        "File (TOML) of other stores of this machine that the controller governs too, one \
         `[[store]]` each.";
    cluster_nodes: OptionKind::Text, "", None, false,
        "Nodes that share their memory, this one among them: names or addresses, each as \
         `[NAME=]HOST[:PORT]`, separated by commas, with ranges as in `n[01-16]`; `slurm` takes \
         the nodes of the Slurm job, @PATH reads a file, `etcd:http://HOST:2379[,...][/PREFIX]` \
         has nodes put themselves into etcd. Not set: the node stands alone.";
    cluster_name: OptionKind::Text, "", Some("tidepool"), false,
        "Name of the cluster; nodes of clusters with other names do not talk to each other.";
    cluster_key_file: OptionKind::Path, "", None, false,
        "File with the key that all nodes of the cluster share, 32 bytes or more, readable by its \
         owner only; required with `cluster_nodes`.";
    node_name: OptionKind::Text, "", None, false,
        "Name of this node among `cluster_nodes`; by default its host name, whole or up to the \
         first dot.";
    node_address: OptionKind::Text, "", None, false,
        "Host name or address by which other nodes reach this one, for lists in etcd; by default \
         its host name.";
    peer_port: OptionKind::Count { min: 1, max: 65_535 }, "", Some("7478"), false,
        "Port, TCP and UDP, at which nodes reach each other, for entries of `cluster_nodes` that \
         name none.";
    peer_timeout_ms: OptionKind::Count { min: 10, max: 60_000 }, "ms", Some("500"), false,
        "Time that another node may keep silent before its bytes are read from the PFS instead.";
    peer_integrity: OptionKind::Choice(PEER_INTEGRITY), "", Some("headers"), false,
        "What the key protects between nodes: all but the bytes of blocks (headers), or these too \
         (full).";
    peer_tls_certificate_file: OptionKind::Path, "", None, false,
        "Certificate of this node in PEM, with its name among the alternative names; what goes \
         between nodes is then encrypted, and all nodes need one.";
    peer_tls_private_key_file: OptionKind::Path, "", None, false,
        "Private key of that certificate, in PEM; nobody but the node's user may read it.";
    peer_tls_authority_file: OptionKind::Path, "", None, false,
        "Certificates, in PEM, of the authority that signs those of all nodes.";
    buffer_bytes: OptionKind::Bytes { min: 16 * MIB, max: u64::MAX, step: 1 }, "bytes", None, false,
        "Memory of a burst buffer on this node, beside that of the store, for what jobs on all \
         nodes write; none by default.";
    buffer_directory: OptionKind::Path, "", None, false,
        "Directory on a local disk in which the burst buffer keeps what the PFS does not have yet, \
         so that it is there after a crash. Without it the buffer is in memory alone.";
    buffer_disk_bytes: OptionKind::Bytes { min: 256 * MIB, max: u64::MAX, step: 1 }, "bytes",
        Some("64GiB"), false,
        "Most bytes that the burst buffer keeps in `buffer_directory`.";
    buffer_address: OptionKind::Address, "", None, false,
        "Address on loopback at which the burst buffer serves programs of this machine that speak \
         memcached's protocol, as a cache beside the blocks of files, of which it gives and takes \
         none there. None by default.";
    buffer_local_bytes: OptionKind::Bytes { min: 0, max: u64::MAX, step: 1 }, "bytes", None, false,
        "Memory of the store beyond which what is written in mode `bld` stays in burst buffers \
         alone; by default a quarter of the machine's.";
    buffer_servers: OptionKind::Text, "", None, false,
        "Servers of memcached that take the place of burst buffers in modes `adw` and `bld`, as \
         `HOST:PORT,HOST:PORT`. Who reaches them can read what is there, and not change it unseen.";
    write_back_bytes_per_s: OptionKind::Bytes { min: MIB, max: u64::MAX, step: 1 }, "bytes/s", None,
        false,
        "Most bytes a second that this node writes to the PFS of files in burst buffers while \
         nobody waits for them; by default as many as leave reads of the PFS nine tenths of what \
         they get.";
    write_back_check: OptionKind::Choice(WRITE_BACK_CHECKS), "", Some("off"), false,
        "What is read back from the PFS, and compared, of files in memory or in burst buffers \
         alone that are written to it, before their other copies go: nothing, the first piece of \
         each file and a sixteenth of the others (sampled), or all.";
    metrics_address: OptionKind::Address, "", None, false,
        "Address of the Prometheus endpoint; none by default.";
    log_level: OptionKind::Choice(LOG_LEVELS), "", Some("info"), true,
        "Lowest severity that is logged.";
    log_format: OptionKind::Choice(LOG_FORMATS), "", Some("text"), false,
        "Form of the log: lines of text, or one JSON object a line.";
    log_file: OptionKind::Path, "", None, false,
        "File to log to; by default standard error, and `<socket>.log` for a daemon.";
    fault: OptionKind::Text, "", None, false,
        "Faults to inject below the PFS side, for tests and development, such as \
         read:rate=400MB/s.";
}

table! {
    /// Keys of a `[[rule]]` of the configuration file.
    RULE_KEYS,
    /// A `[[rule]]` as written.
    RawRule;

    path: OptionKind::Path, "", None, false,
        "Directory below the PFS directory that the rule is for; required.";
    read_mode: OptionKind::Choice(READ_MODES), "", None, false,
        "Read mode of opens that ask for none.";
    write_mode: OptionKind::Choice(WRITE_MODES), "", None, false,
        "Write mode of opens that ask for none.";
    time_to_live_s: OptionKind::Count { min: 1, max: u64::MAX }, "s", None, false,
        "Cached bytes unused for this long are dropped.";
    quota_bytes: ANY_BYTES, "bytes", None, false,
        "Most bytes that files of this directory may hold in the store.";
    admit: OptionKind::Switch, "", Some("true"), false,
        "Whether files of this directory may be cached.";
    expendable: OptionKind::Switch, "", Some("false"), false,
        "Under pressure and at a stop, drop memory-only bytes instead of writing them down.";
    copies: OptionKind::Count { min: 1, max: 4 }, "", Some("1"), false,
        "Nodes that have the bytes of a memory-only file when `fsync` or `close` returns, this one \
         among them; needs `cluster_nodes`.";
    stripe_bytes: OptionKind::Bytes { min: 4 * KIB, max: 4 * GIB, step: 4 * KIB }, "bytes", None,
        false, "Stripe size of new files, where the PFS lets users choose.";
    stripe_count: OptionKind::Count { min: 1, max: 65_535 }, "", None, false,
        "Data servers that new files are spread over.";
    stripe_servers: OptionKind::Names, "", None, false,
        "Data servers for new files in order, as the PFS names them.";
}

table! {
    /// Keys of a `[[quota]]` of the configuration file.
    QUOTA_KEYS,
    /// A `[[quota]]` as written.
    RawQuota;

    user: OptionKind::Text, "", None, false,
        "User, by name or number; required.";
    bytes: ANY_BYTES, "bytes", None, false,
        "Most bytes that files opened by this user may hold in the store; required.";
}

/// Everything that was written in file, environment and command line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RawConfig {
    /// The options.
    pub options: RawOptions,
    /// `[[rule]]` entries, in the order of the file.
    pub rules: Vec<RawRule>,
    /// `[[quota]]` entries, in the order of the file.
    pub quotas: Vec<RawQuota>,
}

/// The option called `name`.
pub fn option(name: &str) -> Option<&'static OptionSpec> {
    OPTIONS.iter().find(|spec| spec.name == name)
}

#[cfg(test)]
#[path = "option_tests.rs"]
mod tests;
