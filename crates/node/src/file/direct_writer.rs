//! Files that are written past the node: by the kernel, through a FUSE passthrough open of the PFS
//! file, or by a client through its own descriptor.
//!
//! A file that is new or was truncated, and that nobody else has open, is left to its writer, so
//! that a written byte costs what it costs on the bare PFS. Nothing of it is cached meanwhile
//! (invariant 4 of [`super`]): every open through the mount shares the kernel's page cache of the
//! PFS file, other opens read the PFS. `close` syncs as ever. When the last of these opens is gone,
//! the file is taken back: its version is recorded and its bytes are kept from the page cache.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::OFlags;
use tidepool_pfs::LowerFile;
use tidepool_proto::{PassthroughPin, Result, Version, WriteMode};

use super::cached_version::CachedVersion;
use super::handle::Handle;
use super::state::FileState;
use crate::core::Core;
use crate::fill::BlockSource;
use crate::ticket::Origin;

/// A file while its writer writes it directly.
struct DirectWriter {
    core: Arc<Core>,
    file: Arc<FileState>,
    lower: Arc<dyn LowerFile>,
    /// Whom the store charges, and whether it may keep the bytes.
    before: Arc<CachedVersion>,
    keeps: bool,
    /// What the writer says of it.
    worth_keeping: Arc<AtomicBool>,
}

impl Handle {
    /// Leaves the PFS file to its writer where nobody could see the difference.
    pub(super) fn begin_direct_writing(&self) -> Option<Arc<dyn PassthroughPin>> {
        let eligible = self.access.writes()
            && !self.append
            && !self.core.pfs.features().fsync_is_per_open
            && matches!(self.write_mode, WriteMode::Through | WriteMode::Bypass)
            && self.lower.direct_descriptor().is_some();
        if !eligible {
            return None;
        }
        let _changing = self.file.try_close_gate()?;
        let mut inner = self.file.inner.lock();
        // The open, which is only now to be answered, asked the PFS for the version.
        let now = inner.cached.as_ref().filter(|known| !known.is_invalidated())?.version();
        let is_cached = inner.cached.as_ref().is_some_and(|cached| {
            cached.is_memory_only()
                || cached.is_borrowed_by_kernel()
                || cached.is_borrowed_by_client()
                || !cached.left_behind().is_empty()
        });
        if inner.handles != 1 || is_cached || now.size > 0 || inner.written_directly {
            return None;
        }
        inner.written_directly = true;
        self.new_cached_version(&mut inner, now);
        Some(Arc::new(DirectWriter {
            core: self.core.clone(),
            file: self.file.clone(),
            lower: self.lower.clone(),
            before: self.cached.clone(),
            keeps: self.write_mode == WriteMode::Through,
            worth_keeping: Arc::clone(&self.worth_keeping),
        }))
    }
}

impl PassthroughPin for DirectWriter {
    fn descriptor(&self) -> BorrowedFd<'_> {
        self.lower.direct_descriptor().unwrap_or_else(|| self.lower.descriptor())
    }

    fn segment_id(&self) -> u64 {
        0
    }

    fn serves(&self, _: &Version) -> bool {
        true
    }

    fn is_lower(&self) -> bool {
        true
    }
}

impl DirectWriter {
    /// Makes the file an ordinary one again; returns what to keep of it.
    fn take_back(&self) -> Result<Option<Arc<CachedVersion>>> {
        let _changing = self.file.close_gate();
        {
            let mut inner = self.file.inner.lock();
            inner.written_directly = false;
            if let Some(old) = inner.cached.take() {
                self.core.invalidate(&old);
            }
            inner.capture = Default::default();
        }
        // With the gate alone: the PFS may take its time.
        let now = self.lower.version()?;
        self.core.counters.written_bytes.add(now.size);
        self.core.counters.pfs_written_bytes.add(now.size);
        let cached = Arc::new(CachedVersion::new(now, self.before.owner, self.before.admit));
        self.core.check_racy(&cached, &now);
        let mut inner = self.file.inner.lock();
        inner.cached = Some(cached.clone());
        let keeps = self.keeps && self.worth_keeping.load(Ordering::Acquire);
        let wanted = keeps && cached.admit && !inner.removed && !cached.is_racy();
        Ok(wanted.then_some(cached))
    }
}

/// Keeps the node's own reads of a file out of its access time, where the node may. The writer is
/// done with the descriptor.
fn leave_access_time(lower: &dyn LowerFile) {
    let descriptor = lower.descriptor();
    if let Ok(flags) = rustix::fs::fcntl_getfl(descriptor) {
        // Refused for files of others without the privilege: their time moves, as it always may.
        let _ = rustix::fs::fcntl_setfl(descriptor, flags | OFlags::NOATIME);
    }
}

impl Drop for DirectWriter {
    fn drop(&mut self) {
        // Whoever read the file meanwhile may have kept bytes that the writer changed since.
        let _changing = self.core.changes.begin(self.file.id, 0, u64::MAX);
        match self.take_back() {
            Ok(Some(cached)) => {
                leave_access_time(&*self.lower);
                let DirectWriter { core, file, lower, .. } = &*self;
                let origin = Origin::PageCache;
                BlockSource { core, file, lower, cached: &cached, origin }.keep_written();
            }
            Ok(None) => self.lower.drop_cached(0, 0),
            Err(error) => tracing::warn!(%error, "a written file is not kept in memory"),
        }
    }
}
