//! `Shared`: what a fault store and its open files share: the rules, the journal of unsynced
//! writes, and the count of power losses.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tidepool_proto::{Result, Version};

use super::journal::Journal;
use super::rules::ActiveRules;

/// What a fault store and its files share.
pub(crate) struct Shared {
    pub(super) rules: RwLock<Arc<ActiveRules>>,
    pub(super) journal: Option<Journal>,
    pub(super) power_losses: AtomicU64,
    /// Versions as they were told, by inode number, where they may be stale.
    pub(super) told: Mutex<HashMap<u64, (Instant, Version)>>,
}

impl Shared {
    /// The rules of this moment.
    pub(super) fn rules(&self) -> Arc<ActiveRules> {
        self.rules.read().clone()
    }

    /// The version of a file as of `age` ago or later.
    pub(super) fn stale_version(
        &self,
        inode: u64,
        age: Duration,
        ask: impl FnOnce() -> Result<Version>,
    ) -> Result<Version> {
        if let Some((at, version)) = self.told.lock().get(&inode)
            && at.elapsed() < age
        {
            return Ok(*version);
        }
        let version = ask()?;
        self.told.lock().insert(inode, (Instant::now(), version));
        Ok(version)
    }

    /// The file changes through this store, so its version is asked for anew.
    pub(super) fn changed(&self, inode: u64) {
        self.told.lock().remove(&inode);
    }

    /// How often power was lost; a file that is open fails after the next one.
    pub(super) fn power_losses(&self) -> u64 {
        self.power_losses.load(Ordering::Acquire)
    }
}
