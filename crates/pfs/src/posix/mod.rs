//! Any mounted POSIX file system as a lower store.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidepool_proto::Result;

use crate::features::Features;
use crate::layout::{Layout, LayoutHints, LayoutOutcome};
use crate::lower::{LowerFile, LowerStore};

/// How to open a [`PosixStore`].
#[derive(Clone, Debug)]
pub struct PosixOptions {
    /// Probe the mount with a hidden file that is removed at once. Without it, the features are
    /// those assumed for the type of the file system.
    pub probe: bool,
    /// Read blocks with direct I/O where the mount allows it.
    pub direct_io: bool,
    /// Descriptors that may be held open for direct I/O at a time.
    pub direct_descriptors_max: usize,
    /// How far the clock of the file system may lag behind ours where it cannot be measured.
    pub clock_uncertainty: Duration,
    /// When to give up on a mount that does not answer.
    pub open_timeout: Duration,
}

impl Default for PosixOptions {
    fn default() -> Self {
        PosixOptions {
            probe: true,
            direct_io: true,
            direct_descriptors_max: 256,
            clock_uncertainty: Duration::from_secs(10),
            open_timeout: Duration::from_secs(30),
        }
    }
}

/// A directory of a mounted file system.
pub struct PosixStore {
    root: PathBuf,
    root_descriptor: OwnedFd,
    device: u64,
    features: Features,
}

impl PosixStore {
    /// Opens the directory `root` and finds out what its mount offers.
    pub fn open(_root: &Path, _options: PosixOptions) -> Result<Arc<PosixStore>> {
        todo!("being written")
    }
}

impl LowerStore for PosixStore {
    fn file(&self, _descriptor: OwnedFd) -> Result<Arc<dyn LowerFile>> {
        todo!("being written")
    }

    fn root(&self) -> &Path {
        &self.root
    }

    fn root_descriptor(&self) -> BorrowedFd<'_> {
        std::os::fd::AsFd::as_fd(&self.root_descriptor)
    }

    fn device(&self) -> u64 {
        self.device
    }

    fn features(&self) -> &Features {
        &self.features
    }

    fn layout(&self, _descriptor: BorrowedFd<'_>) -> Layout {
        todo!("being written")
    }

    fn apply_layout(&self, _: BorrowedFd<'_>, _hints: &LayoutHints) -> Result<LayoutOutcome> {
        todo!("being written")
    }

    fn now_ns(&self) -> i128 {
        todo!("being written")
    }
}
