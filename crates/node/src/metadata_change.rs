//! Metadata-change notification: what becomes of cached bytes when names or metadata of a file
//! change without its content.

use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidepool_pfs::LowerFile;
use tidepool_proto::{Alone, ChangeTimes, Error, FileId, MetadataWatch, Result, Version};

use crate::core::Core;
use crate::file::cached_version::CachedVersion;
use crate::file::memory_only;
use crate::file::state::{FileState, Inner, Remains};

/// How long the notification of a rename or another metadata change is waited for: it comes a
/// moment after the change.
const NOTIFICATION_TIMEOUT: Duration = Duration::from_millis(100);
const NOTIFICATION_POLL: Duration = Duration::from_millis(1);
/// How long a removal waits for a transfer of the file that is under way.
const TRANSFERS_TIMEOUT: Duration = Duration::from_secs(1);

/// Waits for the notification of a metadata change that this node or a client of it made.
pub struct NotificationWait {
    begun: Instant,
}

impl NotificationWait {
    /// From now on.
    pub fn begin() -> Self {
        NotificationWait { begun: Instant::now() }
    }

    /// Whether the notification may still come.
    pub fn goes_on(&self) -> bool {
        self.begun.elapsed() <= NOTIFICATION_TIMEOUT
    }

    /// A part of the wait.
    pub fn pause(&self) {
        std::thread::sleep(NOTIFICATION_POLL);
    }

    /// Whether what was seen of the file may differ from `cached` by its metadata alone, and the
    /// notification of that may still come.
    pub fn is_for(&self, cached: &CachedVersion, seen: &Version) -> bool {
        let ours = cached.version();
        let of_metadata =
            seen.is_of_same_file(&ours) && seen.has_bytes_of(&ours) && !seen.agrees_with(&ours);
        of_metadata && !cached.is_invalidated() && !cached.is_memory_only() && self.goes_on()
    }
}

impl Core {
    /// Gives what is cached of `before` the version `after`, if content did not change in between.
    /// Where that is not sure, or the time of the content was set, it is read again; opens of the
    /// file go on with it, as after a change of bytes by this node. Where it is not known that the
    /// change was `alone`, this is about stubs only: another change of metadata would show.
    pub fn rebase_version(&self, before: &Version, after: &Version, alone: Alone) {
        if before.agrees_with(after) || !before.is_of_same_file(after) {
            return;
        }
        // A packed file cannot be marked as racy later, so it is left to its old version where
        // another program's change could still hide behind the new time stamps.
        let is_alike = before.has_bytes_of(after);
        if alone == Alone::Sure && is_alike && !self.is_racy(after) {
            self.store.rebase_small(before.id, before, *after);
        }
        let Some(file) = self.files.get(before.id) else { return };
        // Before writers that wait: readers that wait for this notification keep them out.
        let _unchanged_by_us = if file.cached().is_some_and(|cached| cached.is_memory_only()) {
            // It may be written back just now, for as long as the PFS takes. That does not mind,
            // nor does anything else that has to do with a stub.
            let shared = file.try_share_gate_before_writers(NOTIFICATION_TIMEOUT);
            let Some(shared) = shared else { return self.note_renamed(&file.inner.lock()) };
            shared
        } else {
            file.share_gate_before_writers()
        };
        let mut inner = file.inner.lock();
        let Some(cached) = inner.cached.clone() else { return };
        let ours = cached.version();
        // The times of a stub may be set: its bytes are not those that the PFS stamps.
        let of_stub = cached.is_memory_only()
            && ours.is_of_same_file(before)
            && (ours.size, after.size) == (before.size, before.size);
        // Writes of this node may have come in between.
        let is_ours = ours.agrees_with(before)
            || (before.changed_ns < ours.changed_ns && ours.changed_ns < after.changed_ns);
        let is_known = alone != Alone::Unknown
            && is_ours
            && ours.size == after.size
            && !cached.is_invalidated();
        let is_sure = is_known && alone == Alone::Sure;
        if of_stub {
            self.note_renamed(&inner);
        }
        if of_stub || (is_sure && ours.modified_ns == after.modified_ns) {
            cached.set_noted_version(*after);
            self.check_racy(&cached, after);
        } else if is_known && !cached.is_memory_only() {
            self.lead_on(&mut inner, &cached, after);
        }
    }

    /// Those that hold copies of a file are told its name anew.
    fn note_renamed(&self, inner: &Inner) {
        if inner.stub.as_ref().is_some_and(|stub| stub.copied().is_some())
            && let Some(cluster) = self.cluster()
        {
            cluster.copies.note_renamed();
        }
    }

    /// What is cached of a file at `version` is not what the PFS has, though no time stamp tells:
    /// opens go on with what is read anew.
    pub fn read_anew(&self, cached: &Arc<CachedVersion>, version: &Version) {
        // A packed file is kept also where nobody has it open.
        self.store.remove_small(version.id);
        let Some(file) = self.files.get(cached.id()) else { return };
        let mut inner = file.inner.lock();
        let is_it = inner.cached.as_ref().is_some_and(|known| Arc::ptr_eq(known, cached));
        if is_it && !cached.is_memory_only() && cached.version().agrees_with(version) {
            self.counters.versions_invalidated.add(1);
            self.lead_on(&mut inner, cached, version);
        }
    }

    /// Has readers of `old` go on with what is read anew at `version`.
    fn lead_on(&self, inner: &mut Inner, old: &Arc<CachedVersion>, version: &Version) {
        let fresh = Arc::new(CachedVersion::new(*version, old.owner, old.admit));
        self.check_racy(&fresh, version);
        self.invalidate(old);
        old.lead_to(&fresh);
        inner.cached = Some(fresh);
        inner.capture = Default::default();
        inner.pin = None;
    }

    /// Lets everything go that is kept of a file whose last name is gone, now or when its last
    /// open ends.
    pub fn name_removed(&self, id: FileId) {
        self.store.remove_small(id);
        let Some(file) = self.files.get(id) else { return };
        let mut inner = file.inner.lock();
        inner.removed = true;
        inner.pin = None;
        if inner.handles > 0 {
            return;
        }
        let remains = self.discard(&mut inner);
        drop(inner);
        self.files.release(&file);
        remains.free();
    }

    /// Counts an open out, after which a file without names is let go of; whether it was the last.
    pub(crate) fn end_open(&self, file: &Arc<FileState>, writes: bool) -> bool {
        let mut inner = file.inner.lock();
        inner.handles -= 1;
        inner.writers -= u32::from(writes);
        let is_last = inner.handles == 0;
        let remains = (is_last && inner.removed).then(|| self.discard(&mut inner));
        drop(inner);
        if is_last {
            self.files.release(file);
        }
        if let Some(remains) = remains {
            remains.free();
        }
        is_last
    }

    /// Discards all that is kept of a file without names that nobody has open: its memory, and the
    /// transfers whose descriptors keep its room on the PFS.
    pub(crate) fn discard(&self, inner: &mut Inner) -> Remains {
        let _the_same = memory_only::discard(self, inner);
        inner.pin = None;
        let Some(cached) = inner.cached.take() else { return Remains::none() };
        self.invalidate(&cached);
        self.fills.cancel(&cached);
        Remains::of(&cached)
    }

    /// Ends transfers of a file that nobody has open, and waits a moment for their descriptors to
    /// be closed: a PFS may keep a file that is open under a hidden name when it is removed. What
    /// is kept of the file stays.
    pub fn end_transfers(&self, id: FileId) {
        let Some(file) = self.files.get(id) else { return };
        let idle = {
            let inner = file.inner.lock();
            // What is in memory alone has its descriptor in any case, until the name is gone.
            inner.cached.clone().filter(|it| inner.handles == 0 && !it.is_memory_only())
        };
        let Some(cached) = idle else { return };
        self.fills.cancel(&cached);
        // The table has the file, and we.
        let begun = Instant::now();
        while Arc::strong_count(&file) > 2 && begun.elapsed() < TRANSFERS_TIMEOUT {
            std::thread::sleep(NOTIFICATION_POLL);
        }
    }

    /// Lets everything go at once of a file that nobody has open, whose bytes are on the PFS and
    /// that nobody pinned; false for others.
    pub fn discard_unused(&self, id: FileId) -> bool {
        if let Some(file) = self.files.get(id) {
            let mut inner = file.inner.lock();
            let in_memory = inner.cached.as_ref().is_some_and(|known| known.is_memory_only());
            let is_kept = inner.pin.is_some() || inner.stub.is_some();
            if inner.handles > 0 || in_memory || is_kept {
                return false;
            }
            let remains = self.discard(&mut inner);
            drop(inner);
            self.files.release(&file);
            remains.free();
        }
        self.store.remove_small(id);
        true
    }
}

/// See [`MetadataWatch`].
pub struct Noted {
    core: Arc<Core>,
    lower: Arc<dyn LowerFile>,
    version: Version,
}

impl Noted {
    /// Looks at a file before it changes.
    pub fn new(core: &Arc<Core>, lower: Arc<dyn LowerFile>) -> Result<Self> {
        let version = lower.version()?;
        Ok(Noted { core: core.clone(), lower, version })
    }

    /// Whether the last name is gone. Where the PFS counts no links, the name by which the file
    /// was opened is the only one that is known.
    fn is_nameless(&self) -> Result<bool> {
        let links = rustix::fs::fstat(self.lower.descriptor().as_fd())
            .map_err(|error| Error::pfs("counting the names of a file", error))?
            .st_nlink;
        Ok(links == 0 && self.lower.relative_path().is_none())
    }
}

impl MetadataWatch for Noted {
    fn carry(self: Box<Self>, alone: Option<ChangeTimes>) -> Result<()> {
        let after = self.lower.version()?;
        // A change of the content moves the change time, whatever is done to the others. So there
        // was none from our look to the client's, and from its next look to ours.
        let fits = |times: &ChangeTimes| {
            (times.before_ns, times.after_ns) == (self.version.changed_ns, after.changed_ns)
        };
        let alone = match alone.filter(fits) {
            Some(times) if times.leased => Alone::Sure,
            Some(_) => Alone::Seen,
            None => Alone::Unknown,
        };
        self.core.rebase_version(&self.version, &after, alone);
        if self.is_nameless()? {
            self.core.name_removed(after.id);
        }
        Ok(())
    }
}
