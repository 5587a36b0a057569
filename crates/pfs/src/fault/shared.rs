//! `Shared`: what a fault store and its open files share: the rules, the journal of unsynced
//! writes, and the count of power losses.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::RwLock;

use super::journal::Journal;
use super::rules::ActiveRules;

/// What a fault store and its files share.
pub(crate) struct Shared {
    pub(super) rules: RwLock<Arc<ActiveRules>>,
    pub(super) journal: Option<Journal>,
    pub(super) power_losses: AtomicU64,
}

impl Shared {
    /// The rules of this moment.
    pub(super) fn rules(&self) -> Arc<ActiveRules> {
        self.rules.read().clone()
    }

    /// How often power was lost; a file that is open fails after the next one.
    pub(super) fn power_losses(&self) -> u64 {
        self.power_losses.load(Ordering::Acquire)
    }
}
