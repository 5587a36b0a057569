//! [`Core`]: what all parts of a node share. Store, PFS, table of files, fills and counters.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use tidepool_pfs::{LowerFile, LowerStore};
use tidepool_proto::config::{DirectoryRule, NodeConfig};
use tidepool_proto::{Error, ErrorKind, ReadMode, Result, Version, WriteMode};
use tidepool_store::{Owner, Store};

use crate::block_buffers::BlockBuffers;
use crate::burst_buffer::BurstBuffer;
use crate::capacity_lease::CapacityLease;
use crate::changes::Changes;
use crate::cluster::Cluster;
use crate::counters::Counters;
use crate::file::background::Background;
use crate::file::cached_version::CachedVersion;
use crate::file::drained::Drained;
use crate::file::memory_only_files::MemoryOnlyFiles;
use crate::file::state::FileTable;
use crate::file::write_back_pool::WriteBackPool;
use crate::fill_pool::FillPool;
use crate::habits::Habits;
use crate::pins::Pins;
use crate::promise::{PfsPromise, Promise};
use crate::server_loads::LayoutQueue;

/// See the module's documentation.
pub struct Core {
    /// The validated configuration.
    pub config: NodeConfig,
    /// What the PFS shows of changes.
    pub(crate) promise: Promise,
    /// Upper level.
    pub store: Arc<Store>,
    /// Lower level.
    pub pfs: Arc<dyn LowerStore>,
    /// Files that are open or cached.
    pub files: FileTable,
    /// Transfers.
    pub fills: FillPool,
    /// Layouts of files that a program is run for.
    pub(crate) layouts: Arc<LayoutQueue>,
    /// Blocks that pass through without being kept.
    pub buffers: BlockBuffers,
    /// Whether readers go on from the heads of files, by user.
    pub(crate) habits: Habits,
    /// Longest file that the PFS was found to take.
    pub(crate) longest_tried_bytes: AtomicU64,
    /// Counters.
    pub counters: Counters,
    /// Who hears of changes.
    pub changes: Changes,
    /// Bytes that users pinned.
    pub pins: Arc<Pins>,
    /// Between the store and a controller of its size.
    pub(crate) capacity_lease: Arc<CapacityLease>,
    /// Files whose bytes live in memory only.
    pub memory_only: Arc<MemoryOnlyFiles>,
    /// Threads that write them back while memory is needed.
    pub write_back_pool: Arc<WriteBackPool>,
    /// Files that are written to the PFS while nobody waits for them.
    pub(crate) background: Background,
    /// What takes other nodes' writes, where this one has it.
    pub(crate) burst_buffer: Option<Arc<BurstBuffer>>,
    /// The other nodes, where there are any.
    pub(crate) cluster: OnceLock<Arc<Cluster>>,
    /// Whether new opens are refused.
    pub drained: Drained,
    /// Start of the node.
    pub started: Instant,
}

impl Core {
    /// The other nodes, where there are any.
    pub(crate) fn cluster(&self) -> Option<&Cluster> {
        self.cluster.get().map(|cluster| &**cluster)
    }

    /// Block size in bytes.
    pub fn block_bytes(&self) -> u64 {
        self.config.block_bytes
    }

    /// Granularity of the PFS's time stamps in nanoseconds; 0 where every change shows. Where
    /// changes of other nodes take a time to show, with that time.
    pub fn granularity_ns(&self) -> u64 {
        self.tick_ns().saturating_add(self.promise.settling_ns())
    }

    /// Time between two stamps of the PFS that differ.
    pub fn tick_ns(&self) -> u64 {
        let told = self.config.timestamp_granularity_ns;
        told.unwrap_or_else(|| self.pfs.features().timestamp_granularity_ns)
    }

    /// Counts memory-only bytes into the control page. Waits for no file.
    pub fn publish_memory_only(&self) {
        let cached_versions = self.memory_only.cached_versions();
        let bytes: u64 = cached_versions.iter().map(|cached| cached.resident_bytes()).sum();
        // Neither can be given back before a file is written.
        let held = self.cluster().map_or(0, |cluster| cluster.copies.held().1);
        self.store.control_page().memory_only_bytes.store(bytes + held, Ordering::Relaxed);
    }

    /// Counts all dirty bytes into the control page.
    pub fn publish_dirty(&self) {
        self.publish_memory_only();
        let files = self.files.all().into_iter();
        let bytes = files.map(|file| file.unsynced.dirty_bytes()).sum();
        self.store.control_page().dirty_bytes.store(bytes, Ordering::Relaxed);
    }

    /// Drops what is past its time and records that nobody needs, and counts dirty bytes.
    pub fn housekeep(&self) {
        self.store.expire(Instant::now());
        self.store.unmap_idle();
        self.files.sweep();
        self.publish_dirty();
        self.pfs.close_idle();
        self.buffers.trim();
        self.capacity_lease.follow();
    }

    /// Marks `cached` as racy if a later change could still hide behind the time stamps of
    /// `version`.
    pub fn check_racy(&self, cached: &CachedVersion, version: &Version) {
        if self.is_racy(version) {
            cached.mark_racy();
        }
    }

    /// Whether a later change may hide behind the time stamps of `version`.
    pub fn is_racy(&self, version: &Version) -> bool {
        version.is_racy(self.pfs.now_ns(), self.granularity_ns())
    }

    /// Keeps nothing from now on, as changes of other nodes do not show here. Opens that are there
    /// read on as before. False: it was so already, or is allowed.
    pub fn keep_nothing(&self) -> bool {
        let was = self.promise.now();
        if was == PfsPromise::ChangesHide || !self.promise.note_hiding() {
            return false;
        }
        for cached in self.files.all().iter().filter_map(|file| file.cached()) {
            if !cached.is_memory_only() {
                self.invalidate(&cached);
            }
        }
        self.store.evict_all();
        true
    }

    /// Invalidates a cached version: it is not the file's any more, and no later open uses its
    /// bytes.
    pub fn invalidate(&self, cached: &CachedVersion) {
        cached.invalidate();
        self.buffers.discard(cached.number);
    }

    /// The directory rule of a file, by the name its descriptor has now.
    pub fn rule_of(&self, lower: &dyn LowerFile) -> Option<(usize, &DirectoryRule)> {
        if self.config.rules.is_empty() {
            return None;
        }
        lower.relative_path().and_then(|path| self.rule_for(&path))
    }

    /// The directory rule of a path below the PFS directory.
    pub fn rule_for(&self, path: &Path) -> Option<(usize, &DirectoryRule)> {
        self.config.rule_for(path)
    }

    /// Whom the store charges for a file, and for how long it may stay.
    pub fn owner(&self, rule: Option<(usize, &DirectoryRule)>, user_id: u32) -> Owner {
        Owner {
            user_id,
            directory: rule.map(|(number, _)| number as u32),
            time_to_live: rule.and_then(|(_, rule)| rule.time_to_live),
        }
    }

    /// Modes in force: the open's own, else the rule's, else the mount's.
    pub fn modes(
        &self,
        rule: Option<(usize, &DirectoryRule)>,
        read: Option<ReadMode>,
        write: Option<WriteMode>,
    ) -> (ReadMode, WriteMode) {
        let rule = rule.map(|(_, rule)| rule);
        let read = read.or_else(|| rule.and_then(|rule| rule.read_mode));
        let write = write.or_else(|| rule.and_then(|rule| rule.write_mode));
        let read = read.unwrap_or(self.config.read_mode);
        self.promise.now().modes((read, write.unwrap_or(self.config.write_mode)))
    }

    /// Refuses new work while the node stops.
    pub fn check_open(&self) -> Result<()> {
        if self.drained.is_on() {
            return Err(Error::new(ErrorKind::NodeUnavailable, "opening a file", "draining")
                .remedy("`tidepool node drain --undo`, or use the path on the PFS"));
        }
        Ok(())
    }
}
