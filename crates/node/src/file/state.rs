//! One record an inode that is open or has something cached, and the table of all of them.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;
use tidepool_pfs::{LowerFile, Unsynced};
use tidepool_proto::FileId;
use tidepool_store::Segment;

use super::cached_version::CachedVersion;
use super::capture::Capture;
use super::gate::Gate;
use super::losses::Losses;
use super::stub::Stub;
use crate::pins::FilePin;

/// What the node knows of one file. Invariants and the order of locks: [`super`].
#[derive(Debug)]
pub struct FileState {
    /// Which file.
    pub id: FileId,
    /// Taken by the methods of [`super::gate`].
    pub(super) gate: Gate,
    /// The rest.
    pub inner: Mutex<Inner>,
    /// What was written through the node and is not durable.
    pub unsynced: Unsynced,
    /// What was in memory alone and is gone.
    pub losses: Losses,
}

/// The part of a file's state that changes at open and close.
#[derive(Default)]
pub struct Inner {
    /// What is cached of the present version (invariant 2).
    pub cached: Option<Arc<CachedVersion>>,
    /// The path below the PFS directory by which it was opened last.
    pub opened_as: PathBuf,
    /// Open handles.
    pub handles: u32,
    /// Open handles that may write.
    pub writers: u32,
    /// Where bytes written now are kept.
    pub capture: Capture,
    /// Descriptors of opens, for fills that another node asks for and for a PFS that syncs each
    /// open by itself. Empty where neither is so.
    pub(crate) opens: Vec<OpenLower>,
    /// Held by `tidepool pin`.
    pub pin: Option<FilePin>,
    /// The stub of memory-only bytes (invariant 5).
    pub stub: Option<Stub>,
    /// The last name is gone.
    pub removed: bool,
    /// The kernel or a client writes the PFS file by itself (invariant 4).
    pub written_directly: bool,
}

/// The descriptor of an open.
pub(crate) struct OpenLower {
    /// Gone with the open.
    pub lower: Weak<dyn LowerFile>,
    /// It may be read.
    pub reads: bool,
}

/// Memory of bytes that will not be read any more.
#[must_use = "it stays until it is dropped by `free`"]
pub struct Remains(Option<Arc<Segment>>);

impl Remains {
    /// All of a cached version.
    pub fn of(cached: &CachedVersion) -> Self {
        Remains(cached.segment().cloned())
    }

    /// Nothing.
    pub fn none() -> Self {
        Remains(None)
    }

    /// Frees the memory. Call without a lock: blocks may be pinned for as long as the PFS takes to
    /// write them back.
    pub fn free(self) {
        if let Some(segment) = self.0 {
            segment.discard();
        }
    }
}

impl Inner {
    /// Whether nobody has the file, or can get at it.
    pub fn is_gone(&self) -> bool {
        self.removed && self.handles == 0
    }
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("handles", &self.handles)
            .field("writers", &self.writers)
            .field("cached", &self.cached)
            .finish_non_exhaustive()
    }
}

impl FileState {
    fn new(id: FileId) -> Self {
        FileState {
            id,
            gate: Gate::default(),
            inner: Mutex::new(Inner::default()),
            unsynced: Unsynced::default(),
            losses: Losses::default(),
        }
    }

    /// The cached version that opens share now.
    pub fn cached(&self) -> Option<Arc<CachedVersion>> {
        self.inner.lock().cached.clone()
    }
}

const SHARDS: usize = 64;

/// All files with a record.
pub struct FileTable {
    shards: Vec<Mutex<HashMap<FileId, Arc<FileState>>>>,
}

impl Default for FileTable {
    fn default() -> Self {
        FileTable { shards: (0..SHARDS).map(|_| Mutex::new(HashMap::new())).collect() }
    }
}

impl FileTable {
    fn shard(&self, id: FileId) -> &Mutex<HashMap<FileId, Arc<FileState>>> {
        let mixed = (id.inode ^ id.device.rotate_left(32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.shards[(mixed >> 58) as usize % SHARDS]
    }

    /// The record of a file, if there is one.
    pub fn get(&self, id: FileId) -> Option<Arc<FileState>> {
        self.shard(id).lock().get(&id).cloned()
    }

    /// The record of a file, made now if need be.
    pub fn get_or_create(&self, id: FileId) -> Arc<FileState> {
        let mut shard = self.shard(id).lock();
        shard.entry(id).or_insert_with(|| Arc::new(FileState::new(id))).clone()
    }

    /// Removes the record if nobody has the file open and nothing of it is cached.
    pub fn release(&self, file: &Arc<FileState>) {
        let mut shard = self.shard(file.id).lock();
        let is_this = |state: &&Arc<FileState>| Arc::ptr_eq(state, file);
        let Some(state) = shard.get(&file.id).filter(is_this) else { return };
        // Two references: the table's and the caller's. More means that somebody is opening it,
        // and would have it apart from who opens it later.
        if Arc::strong_count(state) > 2 {
            return;
        }
        let inner = state.inner.lock();
        let is_cached = inner.cached.as_ref().is_some_and(|cached| {
            cached.is_memory_only() || cached.segment().is_some_and(|s| s.resident_bytes() > 0)
        });
        let keep = inner.handles > 0 || inner.pin.is_some() || is_cached;
        drop(inner);
        if !keep {
            shard.remove(&file.id);
        }
    }

    /// All records now.
    pub fn all(&self) -> Vec<Arc<FileState>> {
        self.shards
            .iter()
            .flat_map(|shard| shard.lock().values().cloned().collect::<Vec<_>>())
            .collect()
    }

    /// Removes the records that nobody needs.
    pub fn sweep(&self) {
        for state in self.all() {
            if state.inner.lock().handles == 0 {
                self.release(&state);
            }
        }
    }
}
