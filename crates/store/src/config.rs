//! What a caller chooses: sizes, policy, backing, owners and quotas. Values only; nothing here
//! asks the machine.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use tidepool_proto::{BLOCK_BYTES_DEFAULT, Error, ErrorKind, HUGE_PAGE_BYTES, Result};

/// Settings of a store.
#[derive(Clone, Debug, PartialEq)]
pub struct StoreConfig {
    /// Bytes the store may hold; 0 is a store that admits nothing.
    pub capacity_bytes: u64,
    /// Unit of residency and eviction in bytes, a multiple of 2 MiB.
    pub block_bytes: u64,
    /// What is evicted first.
    pub policy: PolicyKind,
    /// What segments are made of.
    pub backing: BackingChoice,
    /// Whether to use 2 MiB pages where the kernel gives them.
    pub huge_pages: bool,
    /// Largest share of the capacity that may be pinned (passthrough opens, borrows, `tidepool
    /// pin`).
    pub pinned_share_max: f64,
}

impl Default for StoreConfig {
    fn default() -> Self {
        StoreConfig {
            capacity_bytes: 0,
            block_bytes: BLOCK_BYTES_DEFAULT,
            policy: PolicyKind::default(),
            backing: BackingChoice::Auto,
            huge_pages: true,
            pinned_share_max: 0.5,
        }
    }
}

impl StoreConfig {
    /// Refuses values without a meaning, naming what would be valid.
    pub fn check(&self) -> Result<()> {
        let refuse = |detail: String, remedy: &str| {
            Err(Error::new(ErrorKind::InvalidInput, "configuring the store", detail).remedy(remedy))
        };
        if self.block_bytes == 0
            || !self.block_bytes.is_multiple_of(HUGE_PAGE_BYTES)
            || self.block_bytes > BLOCK_BYTES_MAX
        {
            let detail = format!("a block of {} bytes", self.block_bytes);
            return refuse(detail, "choose a multiple of 2MiB up to 1GiB");
        }
        if !(0.0..=1.0).contains(&self.pinned_share_max) {
            let detail = format!("a pinned share of {}", self.pinned_share_max);
            return refuse(detail, "choose a share between 0 and 1");
        }
        Ok(())
    }
}

/// Offsets inside a block fit 32 bits with room to spare.
const BLOCK_BYTES_MAX: u64 = 1 << 30;

/// Which blocks go first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum PolicyKind {
    /// Least recently used.
    Lru,
    /// Least frequently used, with aging.
    Lfu,
    /// Three queues, one of them of ghosts: scan resistant.
    S3Fifo,
    /// Inter-reference recency: keeps a stable part of a loop larger than the capacity.
    Cyclic,
    /// Keeps one part of what is read, whatever the order.
    Fixed,
    /// Follows whichever of the others would have hit most.
    #[default]
    Adaptive,
}

impl PolicyKind {
    /// All policies, in the order of the documentation.
    pub const ALL: [PolicyKind; 6] = [
        PolicyKind::Lru,
        PolicyKind::Lfu,
        PolicyKind::S3Fifo,
        PolicyKind::Cyclic,
        PolicyKind::Fixed,
        PolicyKind::Adaptive,
    ];

    /// The stable name used in options, JSON and metrics.
    pub fn name(self) -> &'static str {
        match self {
            PolicyKind::Lru => "lru",
            PolicyKind::Lfu => "lfu",
            PolicyKind::S3Fifo => "s3fifo",
            PolicyKind::Cyclic => "cyclic",
            PolicyKind::Fixed => "fixed",
            PolicyKind::Adaptive => "adaptive",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for PolicyKind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        PolicyKind::ALL.into_iter().find(|kind| kind.name() == text).ok_or_else(|| {
            let detail = format!("`{text}` is no eviction policy");
            Error::new(ErrorKind::InvalidInput, "reading a policy name", detail)
                .remedy("choose one of: lru, lfu, s3fifo, cyclic, fixed, adaptive")
        })
    }
}

/// What segments are made of.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum BackingChoice {
    /// The private tmpfs where the process may mount one, otherwise memfd.
    #[default]
    Auto,
    /// Anonymous memory files.
    Memfd,
    /// A private tmpfs that is attached nowhere; needs the right to mount.
    Tmpfs,
}

/// Whom the memory of a segment or small file is charged to, and for how long it may stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Owner {
    /// User whose quota pays.
    pub user_id: u32,
    /// Number of the directory rule that applies, if any.
    pub directory: Option<u32>,
    /// How long blocks stay valid after they came in; `None` is forever.
    pub time_to_live: Option<Duration>,
}

/// What a quota limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum QuotaKey {
    /// All memory charged to a user.
    User(u32),
    /// All memory charged to a directory rule.
    Directory(u32),
}
