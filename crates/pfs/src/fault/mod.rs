//! A lower store that fails on purpose: slow, short, refusing, full, or forgetting what was not
//! synced. For tests and for holding a local disk to the rate of a PFS.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::str::FromStr;
use std::sync::Arc;

use tidepool_proto::{Error, Result};

use crate::features::Features;
use crate::layout::{Layout, LayoutHints, LayoutOutcome};
use crate::lower::{LowerFile, LowerStore};

/// What goes wrong, and when. Text form:
/// `read:errno=EIO@3;write:enospc-after=8MiB;io:rate=400MB/s;sync:slow=5ms;lose-unsynced;seed=7`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct FaultRules {}

impl FromStr for FaultRules {
    type Err = Error;

    fn from_str(_text: &str) -> Result<Self> {
        todo!("being written")
    }
}

/// What a loss of power took away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PowerLoss {
    /// Files whose content went back to what was synced last.
    pub files_rolled_back: u64,
    /// Bytes that were overwritten or appended and are gone.
    pub bytes_lost: u64,
    /// Names that vanished or went back, because their directory was not synced.
    pub names_lost: u64,
}

/// A store with faults.
pub struct FaultStore {
    inner: Arc<dyn LowerStore>,
}

impl FaultStore {
    /// Wraps `inner`.
    pub fn new(inner: Arc<dyn LowerStore>, _rules: FaultRules) -> Result<Arc<FaultStore>> {
        Ok(Arc::new(FaultStore { inner }))
    }

    /// Replaces the rules; their counts start anew.
    pub fn set_rules(&self, _rules: FaultRules) {
        todo!("being written")
    }

    /// Takes away all that was not synced, as a power failure would, and makes every file that is
    /// open now fail with `EIO`. Needs the rule `lose-unsynced`.
    pub fn lose_power(&self) -> Result<PowerLoss> {
        todo!("being written")
    }
}

impl LowerStore for FaultStore {
    fn file(&self, descriptor: OwnedFd) -> Result<Arc<dyn LowerFile>> {
        self.inner.file(descriptor)
    }

    fn root(&self) -> &Path {
        self.inner.root()
    }

    fn root_descriptor(&self) -> BorrowedFd<'_> {
        self.inner.root_descriptor()
    }

    fn device(&self) -> u64 {
        self.inner.device()
    }

    fn features(&self) -> &Features {
        self.inner.features()
    }

    fn layout(&self, descriptor: BorrowedFd<'_>) -> Layout {
        self.inner.layout(descriptor)
    }

    fn apply_layout(
        &self,
        directory_or_new_file: BorrowedFd<'_>,
        hints: &LayoutHints,
    ) -> Result<LayoutOutcome> {
        self.inner.apply_layout(directory_or_new_file, hints)
    }

    fn now_ns(&self) -> i128 {
        self.inner.now_ns()
    }
}
