//! [`Node`]: assembles store, PFS and transfers, and answers its front ends.

use std::os::fd::OwnedFd;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use std::thread::JoinHandle;
use tidepool_pfs::{FaultRules, FaultStore, LowerStore, PosixOptions, PosixStore, TimedStore};
use tidepool_proto::config::{Backing, NodeConfig};
use tidepool_proto::trace::Tracer;
use tidepool_proto::{
    Alone, ChangeHook, DrainHook, Error, ErrorKind, FileId, FileService, MetadataWatch, OpenFile,
    OpenRequest, Result, Version,
};
use tidepool_store::{BackingChoice, QuotaKey, Store, StoreConfig};

use crate::block_buffers::BlockBuffers;
use crate::burst_buffer::BurstBuffer;
use crate::capacity_lease::CapacityLease;
use crate::changes::Changes;
use crate::cluster::Cluster;
use crate::core::Core;
use crate::counters::Counters;
use crate::file::background::Background;
use crate::file::drained::Drained;
use crate::file::draining::{Effort, write_back_all};
use crate::file::memory_only;
use crate::file::memory_only_files::MemoryOnlyFiles;
use crate::file::retry;
use crate::file::state::FileTable;
use crate::file::write_back_pool::{Wait, WriteBackPool};
use crate::fill;
use crate::fill_pool::FillPool;
use crate::loads::Loads;
use crate::metadata_change::Noted;
use crate::promise::{PfsPromise, Promise};
use crate::striping;
use crate::tracer::{self, RequestTracer};

/// Blocks that may pass through beyond the window of one reader.
const POOL_BLOCKS_MORE: u64 = 8;
/// How often records of files that nobody needs, and cached versions past their time, are dropped.
const HOUSEKEEPING_INTERVAL: Duration = Duration::from_secs(1);

/// A running node, without front ends.
pub struct Node {
    pub(crate) core: Arc<Core>,
    pub(crate) loads: Loads,
    pub(crate) tracer: Arc<RequestTracer>,
    notes: Vec<String>,
    housekeeping: Mutex<Option<JoinHandle<()>>>,
    stopping: Arc<(Mutex<bool>, Condvar)>,
}

impl Node {
    /// Opens the PFS directory and starts the store and its transfers.
    pub fn start(config: NodeConfig) -> Result<Arc<Node>> {
        let posix = PosixStore::open(&config.pfs, PosixOptions::default())?;
        let pfs: Arc<dyn LowerStore> = match &config.fault {
            None => posix,
            Some(rules) => FaultStore::new(posix, rules.parse::<FaultRules>()?)?,
        };
        Node::start_over(config, pfs)
    }

    /// Starts over a lower store that the caller made.
    pub fn start_over(config: NodeConfig, pfs: Arc<dyn LowerStore>) -> Result<Arc<Node>> {
        let pfs: Arc<dyn LowerStore> = TimedStore::over(pfs);
        let promise = PfsPromise::of(pfs.features(), &config)?;
        let store = open_store(&config)?;
        set_quotas(&store, &config);
        let burst_buffer = config.buffer.as_ref().map(BurstBuffer::start).transpose()?;
        let mut notes = store.degradations();
        notes.extend(promise.note().map(str::to_owned));
        notes.extend(pfs.features().notes.iter().cloned());
        notes.extend(striping::apply_to_directories(&*pfs, &config.rules));
        notes.extend(burst_buffer.iter().flat_map(|it| it.notes().to_vec()));
        let transfers = config.transfers;
        let capacity_lease = Arc::new(CapacityLease::new(store.clone(), &config));
        let memory_only = Arc::<MemoryOnlyFiles>::default();
        let write_back_pool = WriteBackPool::new(
            memory_only.clone(),
            store.clone(),
            capacity_lease.clone(),
            transfers as usize,
        );
        let core = Arc::new(Core {
            store,
            pfs,
            files: FileTable::default(),
            fills: FillPool::default(),
            layouts: Arc::default(),
            buffers: BlockBuffers::new(pool_blocks(&config), config.block_bytes),
            habits: Default::default(),
            longest_tried_bytes: AtomicU64::new(0),
            counters: Counters::default(),
            changes: Changes::default(),
            pins: Arc::default(),
            capacity_lease,
            memory_only,
            write_back_pool,
            background: Background::new(config.write_back_bytes_per_s),
            burst_buffer: burst_buffer.map(Arc::new),
            cluster: OnceLock::new(),
            drained: Drained::default(),
            started: Instant::now(),
            promise: Promise::new(promise),
            config,
        });
        if let Some(buffer) = core.burst_buffer.clone() {
            let whole = core.config.capacity_bytes.max(1) as f64;
            let follow = move |capacity_bytes: u64| buffer.follow(capacity_bytes as f64 / whole);
            core.capacity_lease.set_follower(Box::new(follow));
        }
        fill::start_threads(&core, transfers)?;
        connect_write_back(&core);
        Cluster::join(&core)?;
        let stopping = Arc::new((Mutex::new(false), Condvar::new()));
        let tracer = RequestTracer::new(core.pfs.clone());
        let housekeeping = start_housekeeping(Arc::downgrade(&core), stopping.clone())?;
        let node = Arc::new(Node {
            core,
            tracer,
            loads: Loads::default(),
            notes,
            housekeeping: Mutex::new(Some(housekeeping)),
            stopping,
        });
        if let Some(cluster) = node.core.cluster() {
            cluster.tell_of(&node);
        }
        Ok(node)
    }

    /// What is lost on this machine, one line each.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// The store, for what looks at memory alone.
    pub fn store(&self) -> &Arc<Store> {
        &self.core.store
    }

    /// Refuses new opens and writes back what exists in memory only, with what the front ends keep
    /// of it. Where the PFS is full, not every file is tried.
    pub fn drain(&self) -> Result<()> {
        self.drain_with(Effort::Probe, false, &|| true)
    }

    /// As [`Node::drain`], to end the node: once `go_on` says no, nobody ends it any more, and it
    /// is as it was before.
    pub fn drain_while(&self, go_on: &dyn Fn() -> bool) -> Result<()> {
        self.drain_with(Effort::Probe, true, go_on)
    }

    /// As [`Node::drain`] where the node ends whatever comes of it: every file is tried.
    pub fn drain_to_end(&self) -> Result<()> {
        self.drain_with(Effort::Each, true, &|| true)
    }

    fn drain_with(&self, effort: Effort, to_end: bool, go_on: &dyn Fn() -> bool) -> Result<()> {
        let draining = self.core.drained.begin(to_end);
        self.core.changes.gather();
        let goes_on = || draining.goes_on() && go_on();
        write_back_all(&self.core, effort, &goes_on)?;
        if let Some(cluster) = self.core.cluster() {
            cluster.give_back_all(&self.core, &goes_on)?;
        }
        draining.stay();
        Ok(())
    }

    /// Takes new opens again after a drain.
    pub fn resume(&self) {
        self.core.drained.undo();
    }

    /// Drops what is past its time and brings the counts up to date; the housekeeping thread does
    /// it once a second. Waits for no file.
    pub fn housekeep(&self) {
        self.core.housekeep();
    }

    /// Ends the node's threads. Call after the front ends are gone; `drain` first.
    pub fn stop(&self) {
        *self.stopping.0.lock() = true;
        self.stopping.1.notify_all();
        if let Some(thread) = self.housekeeping.lock().take() {
            let _ = thread.join();
        }
        if let Some(cluster) = self.core.cluster() {
            cluster.stop();
        }
        self.core.memory_only.write_back_state().stop();
        self.core.write_back_pool.stop();
        self.core.capacity_lease.stop();
        self.core.fills.stop();
    }
}

/// Blocks that pass through without being kept: one reader's window, and some for others.
fn pool_blocks(config: &NodeConfig) -> usize {
    let window = config.read_ahead_bytes_max.min(config.capacity_bytes / 4);
    (window / config.block_bytes + POOL_BLOCKS_MORE) as usize
}

fn open_store(config: &NodeConfig) -> Result<Arc<Store>> {
    Store::new(StoreConfig {
        capacity_bytes: config.capacity_bytes,
        block_bytes: config.block_bytes,
        policy: config.policy.parse()?,
        backing: match config.backing {
            Backing::Auto => BackingChoice::Auto,
            Backing::Memfd => BackingChoice::Memfd,
            Backing::Tmpfs => BackingChoice::Tmpfs,
        },
        huge_pages: config.huge_pages.wanted(),
        pinned_share_max: config.pinned_share_max,
    })
}

fn set_quotas(store: &Arc<Store>, config: &NodeConfig) {
    for quota in &config.quotas {
        store.set_quota(QuotaKey::User(quota.user_id), Some(quota.quota_bytes));
    }
    for (number, rule) in config.rules.iter().enumerate() {
        store.set_quota(QuotaKey::Directory(number as u32), rule.quota_bytes);
    }
}

/// Has memory-only files written back where the store asks for room, and tried again where the PFS
/// had none.
fn connect_write_back(core: &Arc<Core>) {
    let weak = Arc::downgrade(core);
    core.memory_only.write_back_state().on_refusal(Box::new(move || {
        if let Some(core) = weak.upgrade() {
            retry::start(&core);
        }
    }));
    let weak = Arc::downgrade(core);
    core.write_back_pool.set_writer(Box::new(move |file| {
        weak.upgrade().and_then(|core| memory_only::try_write_back(&core, file))
    }));
    let weak = Arc::downgrade(core);
    core.store.on_pressure(Box::new(move |bytes_wanted| {
        if let Some(core) = weak.upgrade() {
            let clean = core.write_back_pool.ask(bytes_wanted, Wait::Moment);
            if let Some(cluster) = core.cluster() {
                cluster.copies.make_room(bytes_wanted.saturating_sub(clean));
            }
        }
    }));
}

fn start_housekeeping(
    core: Weak<Core>,
    stopping: Arc<(Mutex<bool>, Condvar)>,
) -> Result<JoinHandle<()>> {
    let run = move || {
        let mut stop = stopping.0.lock();
        while !*stop {
            stopping.1.wait_for(&mut stop, HOUSEKEEPING_INTERVAL);
            let Some(core) = core.upgrade() else { return };
            core.housekeep();
        }
    };
    std::thread::Builder::new()
        .name("housekeeping".into())
        .stack_size(256 << 10)
        .spawn(run)
        .map_err(|error| {
            Error::new(ErrorKind::Unsupported, "starting the housekeeping thread", "")
                .caused_by(error)
        })
}

impl FileService for Node {
    fn check_open(&self) -> Result<()> {
        self.core.check_open()
    }

    fn open(&self, request: OpenRequest) -> Result<Arc<dyn OpenFile>> {
        let reads = request.access.reads();
        let handle = self.open_handle_for(request, true)?;
        if reads && !handle.is_of_probe() {
            self.core.counters.reading_opens.add(1);
        }
        Ok(Arc::new(handle))
    }

    fn rebase_version(&self, before: &Version, after: &Version, alone: bool) {
        let alone = if alone { Alone::Sure } else { Alone::Unknown };
        self.core.rebase_version(before, after, alone);
    }

    fn watch_metadata(&self, lower: OwnedFd) -> Result<Box<dyn MetadataWatch>> {
        let lower = self.core.pfs.file(lower)?;
        Ok(Box::new(Noted::new(&self.core, lower)?))
    }

    fn memory_only_size(&self, id: FileId, pfs_size: u64) -> Option<u64> {
        memory_only::size_in_memory(&self.core, id, pfs_size)
    }

    fn has_memory_only(&self) -> bool {
        self.core.memory_only.count() > 0
    }

    fn has_other_nodes(&self) -> bool {
        self.core.cluster().is_some()
    }

    fn on_change(&self, hook: ChangeHook) {
        self.core.changes.tell(hook);
    }

    fn on_drain(&self, hook: DrainHook) {
        self.core.changes.tell_of_drain(hook);
    }

    fn bring_to_pfs(&self, file: OwnedFd, user_id: u32) -> Result<()> {
        self.bring(file, user_id)
    }

    fn removed(&self, id: FileId) {
        self.core.name_removed(id);
    }

    fn end_transfers(&self, id: FileId) {
        self.core.end_transfers(id);
    }

    fn discard_unused(&self, id: FileId) -> bool {
        self.core.discard_unused(id)
    }

    fn is_racy(&self, version: &Version) -> bool {
        !self.core.promise.now().may_cache() || self.core.is_racy(version)
    }

    fn tracer(&self) -> Option<Arc<dyn Tracer>> {
        Some(Arc::new(tracer::Shared(self.tracer.clone())))
    }
}
