//! [`MemoryOnlyFiles`]: the list of a node's memory-only files, and what is known of writing them
//! back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use parking_lot::Mutex;
use tidepool_proto::FileId;
use tidepool_proto::stub::{Mark, StubState};

use super::cached_version::CachedVersion;
use super::steps::Steps;
use super::write_back_state::WriteBackState;

/// The memory-only files of a node, to be counted without waiting for any of them.
pub struct MemoryOnlyFiles {
    cached_versions: Mutex<HashMap<FileId, Arc<CachedVersion>>>,
    count: AtomicU64,
    write_back_state: Arc<WriteBackState>,
    steps: Steps,
    /// Names this start of a node in marks.
    node: String,
    host: String,
    /// Its name among the nodes of a cluster.
    member: OnceLock<String>,
}

impl Default for MemoryOnlyFiles {
    fn default() -> Self {
        use std::hash::{BuildHasher, Hasher};
        let random = || std::hash::RandomState::new().build_hasher().finish();
        MemoryOnlyFiles {
            cached_versions: Mutex::default(),
            count: AtomicU64::new(0),
            write_back_state: Arc::default(),
            steps: Steps::default(),
            node: format!("{:016x}{:016x}", random(), random()),
            host: rustix::system::uname().nodename().to_string_lossy().into_owned(),
            member: OnceLock::new(),
        }
    }
}

impl MemoryOnlyFiles {
    /// How many there are.
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// Their cached versions now.
    pub fn cached_versions(&self) -> Vec<Arc<CachedVersion>> {
        self.cached_versions.lock().values().cloned().collect()
    }

    /// What is known of a PFS without room for them.
    pub fn write_back_state(&self) -> &Arc<WriteBackState> {
        &self.write_back_state
    }

    /// Which of them are written back now.
    pub fn steps(&self) -> &Steps {
        &self.steps
    }

    /// What names this start of a node in marks.
    pub fn node(&self) -> &str {
        &self.node
    }

    /// Has marks name it as other nodes call it. Once, before the first file.
    pub fn set_member(&self, name: &str) {
        let is_first = self.member.set(name.to_owned()).is_ok();
        debug_assert!(is_first, "a node joins once");
    }

    pub(super) fn insert(&self, cached: &Arc<CachedVersion>) {
        let mut cached_versions = self.cached_versions.lock();
        cached_versions.insert(cached.id(), cached.clone());
        self.count.store(cached_versions.len() as u64, Ordering::Release);
    }

    pub(super) fn remove(&self, cached: &CachedVersion) {
        let mut cached_versions = self.cached_versions.lock();
        if cached_versions.get(&cached.id()).is_some_and(|ours| ours.number == cached.number) {
            cached_versions.remove(&cached.id());
        }
        self.count.store(cached_versions.len() as u64, Ordering::Release);
    }

    /// The mark of a stub of this node, for bytes of this length.
    pub(super) fn mark(&self, length: u64) -> Mark {
        Mark {
            length,
            host: self.host.clone(),
            process_id: std::process::id(),
            node: self.node.clone(),
            member: self.member.get().cloned().unwrap_or_default(),
            copies: None,
            state: StubState::Held,
        }
    }
}
