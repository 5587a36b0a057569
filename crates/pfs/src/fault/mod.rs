//! A lower store that fails on purpose: slow, short, refusing, full, or forgetting what was not
//! synced. For tests and for holding a local disk to the rate of a PFS; never in production.

mod file;
mod journal;
mod rate;
mod rules;
mod shared;

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;
use tidepool_proto::{Error, ErrorKind, Result};

pub use self::journal::{PowerLoss, roll_back};
pub use self::rules::{FaultEffect, FaultRule, FaultRules, LoseUnsynced, Operation, Trigger};

use self::file::FaultFile;
use self::journal::Journal;
use self::rules::ActiveRules;
use self::shared::Shared;
use crate::features::Features;
use crate::layout::{Layout, LayoutHints, LayoutOutcome};
use crate::lower::{LowerFile, LowerStore};

/// A store with faults.
pub struct FaultStore {
    inner: Arc<dyn LowerStore>,
    shared: Arc<Shared>,
}

impl FaultStore {
    /// Wraps `inner`. With the rule `lose-unsynced` all that exists now counts as durable.
    pub fn new(inner: Arc<dyn LowerStore>, rules: FaultRules) -> Result<Arc<FaultStore>> {
        let journal = match &rules.lose_unsynced {
            None => Ok(None),
            Some(LoseUnsynced::WhileRunning) => Journal::start(inner.root(), None).map(Some),
            Some(LoseUnsynced::Journal(path)) => Journal::start(inner.root(), Some(path)).map(Some),
        };
        let journal = journal
            .map_err(|error| Error::pfs("starting the journal of unsynced writes", error))?;
        let shared = Shared {
            rules: RwLock::new(Arc::new(ActiveRules::new(&rules))),
            journal,
            power_losses: AtomicU64::new(0),
            told: Default::default(),
        };
        Ok(Arc::new(FaultStore { inner, shared: Arc::new(shared) }))
    }

    /// Replaces the rules; their counts start anew. `lose-unsynced` stays as it was at the start.
    pub fn set_rules(&self, rules: &FaultRules) {
        *self.shared.rules.write() = Arc::new(ActiveRules::new(rules));
    }

    /// Takes away all that was not synced, as a power failure would, and makes every file that is
    /// open now fail with `EIO`. Needs the rule `lose-unsynced`.
    pub fn lose_power(&self) -> Result<PowerLoss> {
        let Some(journal) = &self.shared.journal else {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "losing power",
                "nothing was remembered of unsynced writes",
            )
            .remedy("start with the rule lose-unsynced"));
        };
        // Before the roll-back, so that a write that waits for its lock finds itself dead.
        self.shared.power_losses.fetch_add(1, Ordering::Release);
        journal.lose_power().map_err(|error| Error::pfs("rolling back unsynced writes", error))
    }
}

impl LowerStore for FaultStore {
    fn file(&self, descriptor: OwnedFd) -> Result<Arc<dyn LowerFile>> {
        let rules = self.shared.rules();
        file::enter(Operation::Open, &rules.decide(Operation::Open, 0))?;
        let inner = self.inner.file(descriptor)?;
        Ok(Arc::new(FaultFile {
            inode: inner.version()?.id.inode,
            inner,
            power_losses: self.shared.power_losses(),
            shared: self.shared.clone(),
        }))
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

    fn layout_runs_a_tool(&self) -> bool {
        self.inner.layout_runs_a_tool()
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

    fn close_idle(&self) {
        self.inner.close_idle();
    }
}
