//! What the PFS shows of changes by others, and what the node may cache because of it.
//!
//! A version is what proves that content is equal. Where a write moves no time stamp, nothing that
//! `stat` reports proves it, so cached bytes may be of another version at any time.

use tidepool_pfs::Features;
use tidepool_proto::config::NodeConfig;
use tidepool_proto::{Error, ErrorKind, ReadMode, Result, WriteMode};

/// See the module's documentation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PfsPromise {
    /// Changes show in the version of a file.
    ChangesShow,
    /// They do not, but the operator who started the node says that nobody else makes any.
    NobodyElseWrites,
    /// They do not: every read goes to the PFS and nothing is kept.
    NothingKept,
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
        }
    }

    /// The modes in force where these were asked for.
    pub fn modes(self, asked: (ReadMode, WriteMode)) -> (ReadMode, WriteMode) {
        match (self, asked.1) {
            (PfsPromise::NothingKept, WriteMode::Memory) => (ReadMode::Bypass, WriteMode::Through),
            (PfsPromise::NothingKept, write) => (ReadMode::Bypass, write),
            _ => asked,
        }
    }

    /// Whether bytes of files may be kept at all.
    pub fn may_cache(self) -> bool {
        self != PfsPromise::NothingKept
    }
}
