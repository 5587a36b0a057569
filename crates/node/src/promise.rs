//! What the PFS shows of changes by others, and what the node may cache because of it.
//!
//! A version is what proves that content is equal. Where a write moves no time stamp, nothing that
//! `stat` reports proves it, so cached bytes may be of another version at any time.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tidepool_pfs::Features;
use tidepool_proto::config::NodeConfig;
use tidepool_proto::{Error, ErrorKind, ReadMode, Result, WriteMode};

/// What the PFS promises now: what was found at the start, and what looking at changes of other
/// nodes added to it.
pub struct Promise {
    at_start: PfsPromise,
    /// A change of another node did not show.
    hides: AtomicBool,
    settling_ns: AtomicU64,
}

impl Promise {
    /// As found at the start.
    pub fn new(at_start: PfsPromise) -> Self {
        Promise { at_start, hides: AtomicBool::new(false), settling_ns: AtomicU64::new(0) }
    }

    /// What is promised now.
    pub fn now(&self) -> PfsPromise {
        match self.at_start {
            PfsPromise::ChangesShow if self.hides.load(Ordering::Acquire) => {
                PfsPromise::ChangesHide
            }
            at_start => at_start,
        }
    }

    /// Notes that changes of other nodes do not show. False: nothing is kept here anyway, or the
    /// operator answers for it.
    pub fn note_hiding(&self) -> bool {
        self.hides.store(true, Ordering::Release);
        self.now() == PfsPromise::ChangesHide
    }

    /// Notes that changes of other nodes take so long to show.
    pub fn note_settling(&self, time: Duration) {
        let time_ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.settling_ns.fetch_max(time_ns, Ordering::AcqRel);
    }

    /// How long a change may take to show, in nanoseconds.
    pub fn settling_ns(&self) -> u64 {
        self.settling_ns.load(Ordering::Acquire)
    }
}

/// See the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PfsPromise {
    /// Changes show in the version of a file.
    ChangesShow,
    /// They do not, but the operator who started the node says that nobody else makes any.
    NobodyElseWrites,
    /// They do not: every read goes to the PFS and nothing is kept.
    NothingKept,
    /// A change of another node did not show here: the same.
    ChangesHide,
}

impl PfsPromise {
    /// What is promised, or why a node is not started.
    pub fn of(features: &Features, config: &NodeConfig) -> Result<Self> {
        match features.writes_move_stamps {
            Some(true) | None => Ok(PfsPromise::ChangesShow),
            Some(false) if config.pfs_has_no_other_writers => Ok(PfsPromise::NobodyElseWrites),
            Some(false) if config.read_mode == ReadMode::Bypass => Ok(PfsPromise::NothingKept),
            Some(false) => Err(Error::new(
                ErrorKind::Unsupported,
                format!("serving {}", config.pfs.display()),
                format!(
                    "writes move no time stamps on this file system ({}), so changes by other \
                     programs cannot be seen and cached bytes would stay old without an error",
                    features.fs_type
                ),
            )
            .remedy(
                "serve it without a cache (`--read-mode bypass`); or, if nobody writes there \
                 except through this node, add --pfs-has-no-other-writers",
            )),
        }
    }

    /// What users lose by it.
    pub fn note(self) -> Option<&'static str> {
        match self {
            PfsPromise::ChangesShow => None,
            PfsPromise::NobodyElseWrites => Some(
                "writes move no time stamps here: bytes are cached because of \
                 `pfs_has_no_other_writers`, and changes by anybody else are never seen",
            ),
            PfsPromise::NothingKept => Some(
                "writes move no time stamps here: all reads are in mode `bypass`, nothing is kept",
            ),
            PfsPromise::ChangesHide => Some(
                "what another node wrote did not show here, as the PFS's client hides it: all \
                 reads are in mode `bypass`, nothing is kept; mount the PFS without caches of \
                 attributes and restart the node (`tidepool doctor --pfs`)",
            ),
        }
    }

    /// The modes in force where these were asked for.
    pub fn modes(self, asked: (ReadMode, WriteMode)) -> (ReadMode, WriteMode) {
        match asked.1 {
            _ if self.may_cache() => asked,
            write if write.is_in_memory() => (ReadMode::Bypass, WriteMode::Through),
            write => (ReadMode::Bypass, write),
        }
    }

    /// Whether bytes of files may be kept at all.
    pub fn may_cache(self) -> bool {
        !matches!(self, PfsPromise::NothingKept | PfsPromise::ChangesHide)
    }
}
