//! [`Handle`]: one open of a file, with the version that it reads and its modes.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use parking_lot::Mutex;
use std::io::IoSlice;
use tidepool_pfs::{Hearing, LowerFile, cost};
use tidepool_proto::admin::PROBE_PREFIX;
use tidepool_proto::{
    Access, Advice, BytesByLevel, Error, ErrorKind, Level, OpenFile, PassthroughPin, ReadMode,
    ReadOutcome, Result, SegmentExport, Version, WriteMode,
};
use tidepool_store::{ClientBorrow, KernelBorrow, Segment};

use super::cached_version::CachedVersion;
use super::losses::Before;
use super::memory_only;
use super::state::FileState;
use crate::core::Core;
use crate::pins::is_operator;
use crate::read_ahead::ReadAhead;

/// See the module's documentation.
pub struct Handle {
    pub(super) core: Arc<Core>,
    pub(super) file: Arc<FileState>,
    pub(super) lower: Arc<dyn LowerFile>,
    pub(super) cached: Arc<CachedVersion>,
    pub(super) access: Access,
    /// Whose open it is.
    pub(super) user_id: u32,
    pub(super) read_mode: ReadMode,
    pub(super) write_mode: WriteMode,
    pub(super) append: bool,
    /// Which failed syncs of the file this open was told of.
    pub(super) hearing: Hearing,
    /// Losses of what was in memory alone that are not its own.
    losses_before: Before,
    pub(super) read_ahead: Mutex<ReadAhead>,
    /// What is read and written by this open is worth keeping.
    pub(super) worth_keeping: Arc<AtomicBool>,
    /// It is a file of `tidepool doctor`, whose reads are counted apart.
    of_probe: bool,
}

/// What `Handle::new` needs beside the file.
pub struct Opened {
    /// The PFS file.
    pub lower: Arc<dyn LowerFile>,
    /// What it may do.
    pub access: Access,
    /// Whose open it is.
    pub user_id: u32,
    /// Modes in force.
    pub modes: (ReadMode, WriteMode),
    /// Writes go to the end.
    pub append: bool,
    /// The open created the file.
    pub created: bool,
}

impl Handle {
    /// Registers an open of `file` that reads `cached`.
    pub fn new(
        core: &Arc<Core>,
        file: Arc<FileState>,
        cached: Arc<CachedVersion>,
        opened: Opened,
    ) -> Self {
        core.counters.open_files.add(1);
        let window = read_ahead_bytes_max(core);
        let habit = core.habits.of(opened.user_id);
        if opened.created {
            file.unsynced.named();
        }
        let (hearing, losses_before) = (file.unsynced.listen(), file.losses.before());
        Handle {
            core: core.clone(),
            file,
            lower: opened.lower,
            cached,
            access: opened.access,
            user_id: opened.user_id,
            read_mode: opened.modes.0,
            write_mode: opened.modes.1,
            append: opened.append,
            hearing,
            losses_before,
            read_ahead: Mutex::new(ReadAhead::new(core.block_bytes(), window, habit)),
            worth_keeping: Arc::new(AtomicBool::new(true)),
            of_probe: false,
        }
    }

    /// The cached version this open reads. Opens that may write follow the file from version to
    /// version; readers stay with what they opened, and with what this node makes of it.
    pub(super) fn cached(&self) -> Arc<CachedVersion> {
        if !self.access.writes() {
            return self.cached.latest();
        }
        self.file.cached().unwrap_or_else(|| self.cached.clone())
    }

    pub(super) fn is_worth_keeping(&self) -> bool {
        self.worth_keeping.load(Ordering::Acquire)
    }

    pub(super) fn refuse(&self, what: &str, detail: &str) -> Error {
        Error::new(ErrorKind::PermissionDenied, what, detail)
    }
}

/// How far a reader is read ahead of, in bytes.
fn read_ahead_bytes_max(core: &Core) -> u64 {
    core.config.read_ahead_bytes_max.min(core.config.capacity_bytes / 4)
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.core.counters.open_files.subtract(1);
        if self.core.end_open(&self.file, self.access.writes()) {
            self.core.buffers.discard(self.cached.number);
        }
    }
}

/// Which of the two has borrowed the segment.
enum Borrow {
    Kernel(KernelBorrow),
    Client(ClientBorrow),
}

/// A wholly resident version that the kernel or a client has borrowed.
struct BorrowedSegment {
    borrow: Borrow,
    segment_id: u64,
    cached: Arc<CachedVersion>,
    file: Arc<FileState>,
    /// Keeps the handle's file registered while the kernel reads by itself.
    _lower: Arc<dyn LowerFile>,
}

impl Drop for BorrowedSegment {
    fn drop(&mut self) {
        match &self.borrow {
            // The kernel does not tell what it read; without this, such files would look unused.
            Borrow::Kernel(borrow) => borrow.mark_read(),
            Borrow::Client(_) => self.cached.end_client_borrow(),
        }
    }
}

impl PassthroughPin for BorrowedSegment {
    fn descriptor(&self) -> BorrowedFd<'_> {
        match &self.borrow {
            Borrow::Kernel(borrow) => borrow.descriptor(),
            Borrow::Client(borrow) => borrow.descriptor(),
        }
    }

    fn segment_id(&self) -> u64 {
        self.segment_id
    }

    fn held_bytes(&self) -> Option<u64> {
        Some(self.cached.size())
    }

    fn serves(&self, version: &Version) -> bool {
        !self.cached.is_invalidated()
            && self.cached.version().agrees_with(version)
            && self.file.cached().is_some_and(|now| now.number == self.cached.number)
    }
}

impl OpenFile for Handle {
    fn version(&self) -> Version {
        let cached = self.cached();
        match cached.owed() {
            // The stub has another length.
            Some(owed) => Version { size: owed.length, ..cached.version() },
            None => cached.version(),
        }
    }

    fn version_on_pfs(&self) -> Version {
        self.cached().version()
    }

    fn follow(&self) {
        if let Err(error) = self.go_on_with_changes() {
            tracing::debug!(%error, "what another program made of an open file is not known");
        }
    }

    fn cached_version_number(&self) -> u64 {
        if self.read_mode == ReadMode::Bypass { 0 } else { self.cached().number }
    }

    fn may_be_lost(&self) -> bool {
        self.write_mode.is_in_memory() || self.cached().is_memory_only()
    }

    fn is_memory_only(&self) -> bool {
        self.cached().is_memory_only()
    }

    fn is_owed(&self) -> bool {
        self.cached().owed().is_some()
    }

    fn size(&self) -> Result<u64> {
        match self.cached_version_to_read() {
            Some(cached) => Ok(cached.size()),
            None => Ok(self.lower.version()?.size),
        }
    }

    fn write_mode(&self) -> WriteMode {
        self.write_mode
    }

    fn is_resident(&self, offset: u64, length: usize) -> bool {
        self.range_is_resident(offset, length)
    }

    fn read_with(
        &self,
        offset: u64,
        length: usize,
        sink: &mut dyn FnMut(&[IoSlice<'_>]),
    ) -> Result<ReadOutcome> {
        if !self.access.reads() {
            return Err(self.refuse("reading", "the file is open for writing only"));
        }
        self.read_recorded(offset, length, sink)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<u64> {
        let (at, mut done) = self.write_part(offset, data)?;
        while done < data.len() {
            done += self.write_part(at + done as u64, &data[done..])?.1;
        }
        Ok(at)
    }

    fn write_part(&self, offset: u64, data: &[u8]) -> Result<(u64, usize)> {
        self.check_writable("writing")?;
        let (from, length) = if self.append { (0, u64::MAX) } else { (offset, data.len() as u64) };
        let _changing = self.core.changes.begin(self.file.id, from, length);
        self.write(offset, data)
    }

    fn set_size(&self, size: u64) -> Result<()> {
        self.check_writable("truncating")?;
        let from = size.min(self.cached().size());
        let _changing = self.core.changes.begin(self.file.id, from, u64::MAX);
        self.truncate(size)
    }

    fn allocate(&self, mode_bits: i32, offset: u64, length: u64) -> Result<()> {
        self.check_writable("allocating")?;
        let _changing = self.core.changes.begin(self.file.id, offset, u64::MAX);
        self.allocate_range(mode_bits, offset, length)
    }

    fn sync(&self, data_only: bool) -> Result<()> {
        self.check_nothing_lost()?;
        self.sync_written(data_only)?;
        // A copy may have taken the place of the file while this waited for its turn.
        self.check_nothing_lost()
    }

    fn flush(&self) -> Result<()> {
        self.check_nothing_lost()?;
        self.flush_written()?;
        self.check_nothing_lost()
    }

    fn passthrough(&self) -> Option<Arc<dyn PassthroughPin>> {
        let user = (!is_operator(self.user_id)).then_some(self.user_id);
        self.borrow(|segment| segment.borrow_for_kernel(user).map(Borrow::Kernel))
    }

    fn count_passthrough(&self) {
        let counters = &self.core.counters;
        if self.of_probe {
            counters.probe_passthrough_opens.add(1);
            return;
        }
        counters.passthrough_opens.add(1);
        counters.passthrough_bytes.add(self.cached.size());
        self.cached.count_kernel_open();
    }

    fn write_directly(&self) -> Option<Arc<dyn PassthroughPin>> {
        self.begin_direct_writing()
    }

    fn pin_range(&self, _offset: u64, _length: u64) -> Result<Option<Arc<dyn PassthroughPin>>> {
        Ok(self.borrow(|segment| {
            let borrow = segment.borrow_for_client()?;
            self.cached.begin_client_borrow();
            Some(Borrow::Client(borrow))
        }))
    }

    fn count_mapped(&self, bytes: u64) {
        self.count_served(&BytesByLevel::of(Level::Mapped, bytes));
        self.cached().count_read(bytes);
    }

    fn export(&self) -> Result<Option<SegmentExport>> {
        let cached = self.cached();
        let packed = cached.size() <= self.core.config.small_file_bytes_max;
        let eligible = self.read_mode != ReadMode::Bypass
            && !cached.is_invalidated()
            && !cached.is_memory_only()
            && cached.owed().is_none()
            && cached.admit
            && cached.size() > 0;
        if !eligible || (packed && cached.segment().is_none()) {
            return Ok(None);
        }
        let exported = cached.segment_or_create(&self.core.store)?.export()?;
        if exported.is_some() {
            self.read_ahead.lock().see_misses_only();
        }
        Ok(exported)
    }

    fn lower(&self) -> BorrowedFd<'_> {
        self.lower.descriptor()
    }

    fn prefetch(&self, offset: u64, length: u64) {
        if self.read_mode == ReadMode::TwoLevel {
            self.prefetch_range(offset, length);
        }
    }

    fn advise(&self, advice: Advice) {
        let most = read_ahead_bytes_max(&self.core);
        let window = advice.read_ahead_bytes_max.map_or(most, |asked| asked.min(most));
        self.read_ahead.lock().set_window_bytes_max(window);
        self.worth_keeping.store(advice.keep, Ordering::Release);
    }
}

impl Handle {
    /// Borrows a wholly resident segment, which then stays where it is.
    fn borrow(
        &self,
        to: impl FnOnce(&Segment) -> Option<Borrow>,
    ) -> Option<Arc<dyn PassthroughPin>> {
        // No write through this node may fall between the checks and the borrow.
        // Not waited for: the write may wait for the PFS, and others for this open.
        let _unchanged_by_us = self.file.try_share_gate()?;
        let eligible = self.read_mode != ReadMode::Bypass
            && !self.access.writes()
            && !self.cached.is_invalidated()
            && self.cached.owed().is_none()
            && !self.cached.is_memory_only();
        if !eligible || self.file.inner.lock().writers > 0 {
            return None;
        }
        let segment = self.cached.segment()?;
        if !segment.is_wholly_resident() || segment.size() != self.cached.size() {
            return None;
        }
        let borrow = to(segment)?;
        Some(Arc::new(BorrowedSegment {
            borrow,
            segment_id: segment.id(),
            cached: self.cached.clone(),
            file: self.file.clone(),
            _lower: self.lower.clone(),
        }))
    }

    /// Fails where an open that may write lost bytes that were in memory alone. Before each change
    /// and before all that makes dirty bytes durable.
    pub(super) fn check_nothing_lost(&self) -> Result<()> {
        if !self.access.writes() {
            return Ok(());
        }
        let losses = &self.file.losses;
        losses.check(&self.losses_before, || memory_only::name_of(&*self.lower))
    }

    fn check_writable(&self, what: &str) -> Result<()> {
        if self.access.writes() {
            return Ok(());
        }
        Err(self.refuse(what, "the file is open for reading only"))
    }

    /// Notes the name for the list of cached files, where the file may come to be in it.
    pub(crate) fn note_path(&mut self) {
        let packed = self.cached.size() <= self.core.config.small_file_bytes_max;
        if packed && !self.access.writes() {
            return;
        }
        if let Some(path) = self.lower.relative_path_known() {
            let name = path.file_name().unwrap_or_default();
            self.of_probe = name.as_encoded_bytes().starts_with(PROBE_PREFIX.as_bytes());
            let mut inner = self.file.inner.lock();
            // The list shows it to the user whom the file is charged to, who may not be allowed to
            // see by which way another one came.
            if inner.opened_as.as_os_str().is_empty() || self.user_id == self.cached.owner.user_id {
                inner.opened_as = path;
            }
        }
    }

    /// Whether it is a file of `tidepool doctor`.
    pub(crate) fn is_of_probe(&self) -> bool {
        self.of_probe
    }

    pub(super) fn count_served(&self, levels: &BytesByLevel) {
        cost::served(levels);
        match self.of_probe {
            true => self.core.counters.probed(levels),
            false => self.core.counters.served(levels),
        }
    }

    /// The cached version that the open began with.
    pub(crate) fn opened_cached_version(&self) -> &CachedVersion {
        &self.cached
    }
}
