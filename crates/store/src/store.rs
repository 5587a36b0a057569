//! [`Store`]: the front door to segments, small files, capacity and policy.

use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;

use tidepool_proto::admin::{FreeReport, StoreStatus};
use tidepool_proto::control_page::ControlPage;
use tidepool_proto::{FileId, Result, Version};

use crate::backing::Backing;
use crate::config::{Owner, PolicyKind, QuotaKey, StoreConfig};
use crate::engine::Engine;
use crate::mappings::Mappings;
use crate::segment::Segment;
use crate::small::SmallFiles;

/// The memory level of one node.
pub struct Store {
    engine: Arc<Engine>,
    small: SmallFiles,
}

impl Store {
    /// A store that holds nothing yet. Fails on settings without a meaning, or where the backing
    /// that was asked for cannot be had.
    pub fn new(config: StoreConfig) -> Result<Arc<Store>> {
        let backing = Backing::open(config.backing, config.huge_pages)?;
        Store::assemble(config, backing, Mappings::new())
    }

    /// As `new`, on a given backing and with a given limit of mappings.
    pub(crate) fn assemble(
        config: StoreConfig,
        backing: Backing,
        mappings: Arc<Mappings>,
    ) -> Result<Arc<Store>> {
        let engine = Engine::new(&config, backing, mappings)?;
        let small = SmallFiles::new(&engine);
        Ok(Arc::new(Store { engine, small }))
    }

    /// What this machine lacks, one line each.
    pub fn degradations(&self) -> Vec<String> {
        self.engine.backing.degradations().to_vec()
    }

    /// A sparse segment for a file of `size_bytes`. It takes (almost) no memory until it is filled.
    pub fn create_segment(self: &Arc<Self>, size_bytes: u64, owner: Owner) -> Result<Arc<Segment>> {
        let memory = self.engine.create_memory(size_bytes, &owner, None)?;
        Ok(Arc::new(Segment::new(self.engine.clone(), memory)))
    }

    /// As [`create_segment`](Self::create_segment), with a number that names the same content each
    /// time it comes back (a hash of the file id), so that policies remember its blocks.
    pub fn create_segment_with_history(
        self: &Arc<Self>,
        size_bytes: u64,
        owner: Owner,
        history: u64,
    ) -> Result<Arc<Segment>> {
        let memory = self.engine.create_memory(size_bytes, &owner, Some(history))?;
        Ok(Arc::new(Segment::new(self.engine.clone(), memory)))
    }

    /// Packs a small file of at most one block, whole. `false`: not admitted.
    pub fn insert_small(
        &self,
        id: FileId,
        version: Version,
        owner: Owner,
        bytes: &[u8],
    ) -> Result<bool> {
        self.small.insert(id, &version, owner, bytes)
    }

    /// Reads a packed file if exactly this version is there. It cannot be evicted during `read`.
    pub fn read_small<R>(
        &self,
        id: FileId,
        version: &Version,
        read: impl FnOnce(&[u8]) -> R,
    ) -> Option<R> {
        self.small.read(id, version, read)
    }

    /// Forgets a packed file.
    pub fn remove_small(&self, id: FileId) {
        self.small.remove(id);
    }

    /// Gives what is packed of `before` the version `after`; lengths must be equal.
    pub fn rebase_small(&self, id: FileId, before: &Version, after: Version) {
        self.small.rebase(id, before, &after);
    }

    /// Version and length in bytes of a packed file.
    pub fn small_state(&self, id: FileId) -> Option<(Version, u64)> {
        self.small.state(id)
    }

    /// Sets the capacity. A shrink evicts before this returns, waits for short pins and asks the
    /// pressure hook; what cannot go is reported as held, and goes when its last pin drops.
    pub fn resize(&self, capacity_bytes: u64) -> FreeReport {
        self.set_capacity(capacity_bytes);
        self.settle()
    }

    /// The first half of a resize: no more bytes than this come in from now on. Never waits.
    pub fn set_capacity(&self, capacity_bytes: u64) {
        self.engine.budget.set_capacity(capacity_bytes);
    }

    /// The second half of a resize: evicts what is above the capacity.
    pub fn settle(&self) -> FreeReport {
        let start = Instant::now();
        self.engine.refresh_target(&mut self.engine.catalog.lock());
        let freed_bytes = self.engine.shrink();
        self.report(start, freed_bytes, self.engine.budget.excess())
    }

    /// Evicts what is above the capacity and may go at once; asks nobody. Returns bytes freed.
    pub fn trim(&self) -> u64 {
        self.engine.trim()
    }

    /// The words that a controller sees. The account is the store's; the words about leases,
    /// limits and dirty bytes are for the node to keep.
    pub fn control_page(&self) -> &ControlPage {
        self.engine.budget.page().words()
    }

    /// A read-only descriptor of the same page.
    pub fn control_page_descriptor(&self) -> Result<OwnedFd> {
        self.engine.budget.page().read_only_copy()
    }

    /// Evicts all that may go at once.
    pub fn evict_all(&self) -> FreeReport {
        let start = Instant::now();
        let freed_bytes = self.engine.evict_all();
        self.report(start, freed_bytes, self.engine.budget.used())
    }

    /// Changes the policy; what is resident keeps its order at first.
    pub fn set_policy(&self, kind: PolicyKind) {
        self.engine.catalog.lock().set_policy(kind);
    }

    /// Facts and counters.
    pub fn stats(&self) -> StoreStatus {
        self.small.drop_all_evicted();
        let small_bookkeeping_bytes = self.small.bookkeeping_bytes();
        let (budget, backing) = (&self.engine.budget, &self.engine.backing);
        let lingering_bytes = self.engine.lingering_bytes();
        let catalog = self.engine.catalog.lock();
        StoreStatus {
            capacity_bytes: budget.capacity(),
            resident_bytes: budget.used(),
            resident_bytes_peak: budget.peak(),
            pinned_bytes: budget.pinned(),
            lingering_bytes,
            bookkeeping_bytes: catalog.bookkeeping_bytes()
                + small_bookkeeping_bytes
                + self.engine.mappings.bookkeeping_bytes(),
            segments: catalog.live_segments() - self.small.spaces(),
            small_files: self.small.count(),
            policy: catalog.kind().to_string(),
            policy_choice: catalog.choice(),
            block_bytes: self.engine.block_bytes,
            huge_pages: backing.huge_pages(),
            backing: backing.name().to_owned(),
            evicted_blocks: budget.evicted_blocks(),
        }
    }

    /// Drops what outlived its time to live, counted from the first block that came in; returns
    /// bytes. Call it about once a second: it also brings hits to the policy, in their order, and
    /// evicts what an earlier shrink could not.
    pub fn expire(&self, now: Instant) -> u64 {
        self.engine.ask_all();
        let freed_bytes = self.engine.expire(now);
        if self.engine.budget.excess() > 0 {
            self.engine.trim();
        }
        self.engine.catalog.lock().sweep(true);
        self.small.drop_all_evicted();
        freed_bytes
    }

    /// Sets or lifts a quota. What it no longer allows is evicted at once, as far as it may go.
    pub fn set_quota(&self, key: QuotaKey, limit_bytes: Option<u64>) {
        self.engine.catalog.lock().set_quota(key, limit_bytes);
        self.engine.enforce_quota(key);
    }

    /// Sets what is called, outside all locks, with the bytes wanted when clean blocks do not
    /// suffice. It may write dirty blocks back and mark them clean before it returns. It runs on
    /// the thread that wants room, possibly inside `set_size`, so it must not call `set_size`.
    pub fn on_pressure(&self, hook: Box<dyn Fn(u64) + Send + Sync>) {
        self.engine.set_hook(Arc::from(hook));
    }

    /// Unmaps segments that this process did not use since the last call. For housekeeping: what is
    /// mapped counts as memory of this process, and the out-of-memory killer goes by that.
    pub fn unmap_idle(&self) {
        self.engine.mappings.unmap_idle();
    }

    #[cfg(test)]
    pub(crate) fn mapping_count(&self) -> usize {
        self.engine.mappings.count()
    }

    fn report(&self, start: Instant, freed_bytes: u64, held_bytes: u64) -> FreeReport {
        FreeReport {
            freed_bytes,
            resident_bytes: self.engine.budget.used(),
            capacity_bytes: self.engine.budget.capacity(),
            held_bytes,
            elapsed_ms: start.elapsed().as_secs_f64() * 1e3,
        }
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let budget = &self.engine.budget;
        let mut shown = f.debug_struct("Store");
        shown.field("capacity_bytes", &budget.capacity()).field("used_bytes", &budget.used());
        shown.finish()
    }
}
