//! The write path: the PFS first, then the store, under the file's gate (invariants 1 and 3 of
//! [`super`]); durable at close.
//!
//! Before a change the version is compared with the recorded one, so that bytes another program
//! put there since are never mixed with what is cached; after it the new version is recorded.

use std::ops::Range;
use std::sync::Arc;

use tidepool_pfs::{Need, Work, asked};
use tidepool_proto::{ErrorKind, Result, Version, WriteMode};

use super::cached_version::CachedVersion;
use super::capture::{Capture, Places};
use super::gate::ExclusiveGate;
use super::handle::Handle;
use super::state::Inner;
use super::written::{Growth, Written};
use super::{behind, length, memory_only, placing};
use crate::cluster::clean::{self, Change};
use crate::metadata_change::NotificationWait;

/// Longest gap beyond the old end of a file that is looked through for bytes of others.
const GAP_BYTES_MAX: u64 = 64 << 20;
/// Ways of an allocation that make its range zeros.
const ZEROES: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_ZERO_RANGE;
/// Dirty bytes after which the PFS client is told to begin writing.
const WRITEBACK_BYTES: u64 = 8 << 20;

impl Handle {
    /// Begins a change: takes the gate and finds the cached version that it applies to, on the PFS
    /// where this open writes past the store.
    fn begin_change(&self) -> Result<(ExclusiveGate<'_>, Arc<CachedVersion>)> {
        let notification = NotificationWait::begin();
        loop {
            let changing = self.file.close_gate();
            self.check_nothing_lost()?;
            let now = self.lower.version()?;
            if !self.file.cached().is_some_and(|cached| notification.is_for(&cached, &now)) {
                let cached = self.cached_version_for_change(&changing, now)?;
                if self.write_mode == WriteMode::Bypass && cached.is_memory_only() {
                    // What is written past the store is on the PFS when the call returns.
                    memory_only::write_back_to_go_on(&self.core, &changing, &cached)?;
                    self.add_dirty(1);
                }
                // It may have waited long for others, or for the PFS.
                asked::check()?;
                return Ok((changing, cached));
            }
            // The notification needs the gate.
            drop(changing);
            notification.pause();
        }
    }

    /// The cached version that a change applies to. Call without any other lock: the PFS may take
    /// its time.
    fn cached_version_for_change(
        &self,
        gate: &ExclusiveGate<'_>,
        now: Version,
    ) -> Result<Arc<CachedVersion>> {
        let current = self.file.cached();
        if let Some(cached) = &current {
            let is_current = match cached.is_memory_only() {
                true => memory_only::is_still_ours(&self.core, gate, cached, &*self.lower, &now)?,
                false => cached.version().agrees_with(&now) && !cached.is_invalidated(),
            };
            if is_current && cached.is_borrowed_by_client() {
                return Ok(self.replace_cached_version(&mut self.file.inner.lock(), now));
            }
            if is_current {
                return Ok(cached.clone());
            }
        }
        memory_only::refuse_stub(&*self.lower, &now)?;
        let mut inner = self.file.inner.lock();
        if let Some(current) = current {
            self.core.counters.versions_invalidated.add(1);
            memory_only::note_replaced(&self.file, &current);
            let remains = memory_only::discard(&self.core, &mut inner);
            let cached = self.shared_cached_version(&mut inner, now);
            drop(inner);
            remains.free();
            // A writer is told first what is lost, then may change what is there now.
            self.check_nothing_lost()?;
            return Ok(cached);
        }
        Ok(self.new_cached_version(&mut inner, now))
    }

    /// Invalidates the cached version where no other program changed the file: its readers go on
    /// with what takes its place.
    fn replace_cached_version(&self, inner: &mut Inner, now: Version) -> Arc<CachedVersion> {
        let old = inner.cached.clone();
        let fresh = self.new_cached_version(inner, now);
        if let Some(old) = old {
            old.lead_to(&fresh);
        }
        fresh
    }

    pub(super) fn new_cached_version(&self, inner: &mut Inner, now: Version) -> Arc<CachedVersion> {
        let admits = inner.cached.as_ref().map_or(self.cached.admit, |old| old.admit);
        let shared = !admits && inner.cached.as_ref().is_some_and(|old| old.is_racy());
        self.discard_cached_version(inner);
        let admit = admits && !inner.written_directly;
        let cached = Arc::new(CachedVersion::new(now, self.cached.owner, admit));
        if shared {
            cached.mark_racy();
        }
        inner.cached = Some(cached.clone());
        cached
    }

    fn discard_cached_version(&self, inner: &mut Inner) {
        if let Some(old) = inner.cached.take() {
            self.core.invalidate(&old);
        }
        self.core.store.remove_small(self.file.id);
        inner.pin = None;
        inner.capture = Default::default();
    }

    /// Records what a change made of the file.
    fn changed_by_us(&self, _gate: &ExclusiveGate<'_>, cached: &CachedVersion, now: &Version) {
        cached.set_noted_version(*now);
        self.core.check_racy(cached, now);
        self.core.buffers.discard(cached.number);
    }

    /// Notes a change for the clean copies of the file. Before it is recorded.
    fn note_change(&self, gate: &ExclusiveGate<'_>, cached: &CachedVersion, change: Change) {
        clean::note_change(&self.core, gate, cached, self.write_mode, change);
    }

    /// The version after a change of ours, if the file is as that alone leaves it. Else another
    /// program changed it at the same time, and nothing of it stays cached. Call before what is
    /// cached follows the change.
    fn seen_alone(
        &self,
        gate: &ExclusiveGate<'_>,
        cached: &CachedVersion,
        grown: &Growth,
    ) -> Result<Option<Version>> {
        let now = self.lower.version()?;
        let gap = grown.size_before..grown.data_from.min(grown.size_after);
        let zeros = match now.size == grown.size_after {
            true => self.reads_zeros(self.gap_kept(cached, gap, grown.size_after)),
            false => Some(false),
        };
        match zeros {
            Some(true) => return Ok(Some(now)),
            Some(false) => self.changed_by_others(gate, now),
            None => self.invalidate(gate),
        }
        Ok(None)
    }

    /// The part of a gap that what is cached would show as zeros without asking the PFS.
    fn gap_kept(&self, cached: &CachedVersion, gap: Range<u64>, size_after: u64) -> Range<u64> {
        let small = size_after <= self.core.config.small_file_bytes_max;
        let end = match cached.segment() {
            _ if cached.is_borrowed_by_kernel() => gap.end,
            None if small => gap.end,
            None => gap.start,
            // Blocks beyond the one at the old end are not there yet.
            Some(_) => gap.end.min(gap.start.next_multiple_of(self.core.block_bytes())),
        };
        gap.start..end
    }

    /// Whether a range is a hole or zeros on the PFS; `None` where that cannot be told.
    fn reads_zeros(&self, range: Range<u64>) -> Option<bool> {
        let length = range.end.saturating_sub(range.start);
        if length > GAP_BYTES_MAX {
            return None;
        }
        let mut bytes = vec![0; length.min(1 << 20) as usize];
        let mut at = range.start;
        while at < range.end {
            let wanted = (range.end - at).min(bytes.len() as u64) as usize;
            let read = self.lower.look_at(at, &mut bytes[..wanted]).ok()?;
            if read < wanted || bytes[..read].iter().any(|byte| *byte != 0) {
                return Some(false);
            }
            at += wanted as u64;
        }
        Some(true)
    }

    /// Another program changed the file at the same time: nothing of it stays cached.
    fn changed_by_others(&self, _gate: &ExclusiveGate<'_>, now: Version) {
        let mut inner = self.file.inner.lock();
        self.core.counters.versions_invalidated.add(1);
        self.shared_cached_version(&mut inner, now);
    }

    /// A cached version in place of one that another program changed while this open could write
    /// too. Its next change may hide behind one of ours, so nothing is kept before an open that
    /// finds the file without writers.
    fn shared_cached_version(&self, inner: &mut Inner, now: Version) -> Arc<CachedVersion> {
        self.discard_cached_version(inner);
        let cached = Arc::new(CachedVersion::new(now, self.cached.owner, false));
        cached.mark_racy();
        inner.cached = Some(cached.clone());
        cached
    }

    /// Invalidates what is cached after a failed change: which bytes the PFS took is not known.
    fn invalidate(&self, _gate: &ExclusiveGate<'_>) {
        if let Ok(now) = self.lower.version() {
            let mut inner = self.file.inner.lock();
            if inner.cached.as_ref().is_some_and(|cached| cached.is_memory_only()) {
                // It became one since: what failed concerns the bytes before.
                return;
            }
            self.replace_cached_version(&mut inner, now);
        }
    }

    pub(super) fn write(&self, offset: u64, data: &[u8]) -> Result<(u64, usize)> {
        let (changing, cached) = self.begin_change()?;
        let (at, written) = self.write_to(&changing, &cached, offset, data)?;
        if self.leads_to_current(&cached) {
            behind::write(&changing, &cached, &*self.lower, at, &data[..written]);
        }
        Ok((at, written))
    }

    /// Whether no other program changed the file since it had this cached version.
    fn leads_to_current(&self, cached: &Arc<CachedVersion>) -> bool {
        self.file.cached().is_some_and(|now| now.number == cached.latest().number)
    }

    /// As [`Handle::write`].
    fn write_to(
        &self,
        gate: &ExclusiveGate<'_>,
        cached: &Arc<CachedVersion>,
        offset: u64,
        data: &[u8],
    ) -> Result<(u64, usize)> {
        if cached.is_memory_only() {
            let at = if self.append { cached.size() } else { offset };
            length::check(&self.core, at.saturating_add(data.len() as u64))?;
            let kept = memory_only::write(&self.core, gate, cached, at, data)?;
            if kept {
                self.core.counters.written_bytes.add(data.len() as u64);
                return Ok((at, data.len()));
            }
            return self.write_through(gate, cached, at, data);
        }
        self.write_through(gate, cached, offset, data)
    }

    /// Writes to the PFS, then keeps.
    fn write_through(
        &self,
        gate: &ExclusiveGate<'_>,
        cached: &Arc<CachedVersion>,
        offset: u64,
        data: &[u8],
    ) -> Result<(u64, usize)> {
        let size_before = cached.size();
        let place = (!self.append).then_some(offset);
        let (at, data) = match asked::making(|| self.lower.write_part(place, data)) {
            Ok((at, taken)) => (at, &data[..taken]),
            Err(error) => {
                // A part of it may be there.
                self.add_dirty(1);
                self.invalidate(gate);
                return Err(error);
            }
        };
        let done = (at, data.len());
        self.core.counters.written_bytes.add(data.len() as u64);
        self.core.counters.pfs_written_bytes.add(data.len() as u64);
        self.add_dirty(data.len() as u64);
        if self.append && at != size_before {
            self.changed_by_others(gate, self.lower.version()?);
            return Ok(done);
        }
        let size_after = size_before.max(at + data.len() as u64);
        let grown = Growth { size_before, data_from: at, size_after };
        let Some(now) = self.seen_alone(gate, cached, &grown)? else { return Ok(done) };
        // Without the lock: making room may write other files back. The gate keeps it ours.
        let mut capture = std::mem::take(&mut self.file.inner.lock().capture);
        let kept = capture.keep(
            self.places(),
            cached,
            &Written { offset: at, data, size_before },
            self.write_mode != WriteMode::Bypass && self.is_worth_keeping(),
        );
        self.file.inner.lock().capture = capture;
        if kept.is_err() {
            // The PFS has the bytes; only their copy in memory is invalidated.
            self.invalidate(gate);
            return Ok(done);
        }
        self.note_change(gate, cached, Change::Written(at..at + data.len() as u64, size_before));
        self.changed_by_us(gate, cached, &now);
        clean::send(&self.core, (&self.file, &self.lower), cached, false);
        Ok(done)
    }

    fn places(&self) -> Places<'_> {
        let core = &self.core;
        let small_file_bytes_max = core.config.small_file_bytes_max;
        Places { store: &core.store, buffers: &core.buffers, small_file_bytes_max }
    }

    pub(super) fn truncate(&self, size: u64) -> Result<()> {
        let (changing, cached) = self.begin_change()?;
        self.truncate_to(&changing, &cached, size)?;
        if self.leads_to_current(&cached) {
            behind::set_size(&changing, &cached, &*self.lower, size);
        }
        Ok(())
    }

    /// As [`Handle::truncate`].
    fn truncate_to(
        &self,
        gate: &ExclusiveGate<'_>,
        cached: &Arc<CachedVersion>,
        size: u64,
    ) -> Result<()> {
        if cached.is_memory_only() {
            length::check(&self.core, size)?;
            memory_only::tell_shorter(&self.core, gate, cached, &*self.lower, size)?;
            match memory_only::set_size(gate, cached, size) {
                Err(error) if error.kind() == ErrorKind::StoreFull => {
                    memory_only::write_back_to_go_on(&self.core, gate, cached)?;
                }
                done => return done,
            }
        }
        let directly = self.file.inner.lock().written_directly;
        let in_memory = size == 0 && self.write_mode.is_in_memory() && !directly;
        let cut = asked::making(|| self.lower.set_size(size));
        match cut.and_then(
            |()| {
                if in_memory { self.begin_memory_only(gate, cached) } else { Ok(false) }
            },
        ) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => {
                self.invalidate(gate);
                return Err(error);
            }
        }
        self.add_dirty(1);
        let grown = Growth { size_before: cached.size(), data_from: size, size_after: size };
        let Some(now) = self.seen_alone(gate, cached, &grown)? else { return Ok(()) };
        if self.file.inner.lock().capture.set_size(&self.core.store, cached, size).is_err() {
            self.invalidate(gate);
            return Ok(());
        }
        self.note_change(gate, cached, Change::Resized(size, grown.size_before));
        self.changed_by_us(gate, cached, &now);
        Ok(())
    }

    /// Turns a file that was just created or cut to nothing into a memory-only one. Other handles
    /// go along. False where it cannot be one.
    pub(crate) fn begin_memory_only(
        &self,
        gate: &ExclusiveGate<'_>,
        cached: &Arc<CachedVersion>,
    ) -> Result<bool> {
        self.core.store.remove_small(self.file.id);
        self.core.buffers.discard(cached.number);
        self.file.inner.lock().capture = Default::default();
        if let Some(segment) = cached.segment() {
            segment.set_size(0)?;
        }
        memory_only::begin(&self.core, gate, (cached, &self.lower), self.write_mode)
    }

    /// As [`Handle::begin_memory_only`] for an open that created the file. Others may have written
    /// to it since: then their bytes stay, and it is an ordinary file. Refuses a stub that is not
    /// ours.
    pub(crate) fn begin_new_memory_only(
        &self,
        gate: &ExclusiveGate<'_>,
        cached: &Arc<CachedVersion>,
    ) -> Result<()> {
        let now = self.lower.version()?;
        match memory_only::refuse_stub(&*self.lower, &now) {
            // Its mark could not be read either.
            Err(error) if matches!(error.errno(), libc::EACCES | libc::EPERM) => return Ok(()),
            other => other?,
        }
        let directly = self.file.inner.lock().written_directly;
        if now.size == 0 && cached.size() == 0 && !directly {
            self.begin_memory_only(gate, cached)?;
        }
        Ok(())
    }

    pub(super) fn allocate_range(&self, mode_bits: i32, offset: u64, length: u64) -> Result<()> {
        let (changing, cached) = self.begin_change()?;
        if cached.is_memory_only() {
            memory_only::write_back_to_go_on(&self.core, &changing, &cached)?;
        }
        let allocate = || self.lower.allocate(mode_bits, offset, length);
        if let Err(error) = asked::making(allocate) {
            self.invalidate(&changing);
            return Err(error);
        }
        self.add_dirty(1);
        self.follow_allocation(&changing, &cached, mode_bits, offset, length)?;
        if self.leads_to_current(&cached) {
            let zeroed = if mode_bits & ZEROES != 0 { length } else { 0 };
            behind::zero(&changing, &cached, &*self.lower, offset, zeroed);
        }
        Ok(())
    }

    /// Follows an allocation in the cache: zeros where it zeroes, nothing kept where bytes move.
    fn follow_allocation(
        &self,
        gate: &ExclusiveGate<'_>,
        cached: &Arc<CachedVersion>,
        mode_bits: i32,
        offset: u64,
        length: u64,
    ) -> Result<()> {
        const PLAIN: i32 = libc::FALLOC_FL_KEEP_SIZE;
        if mode_bits & !(ZEROES | PLAIN) != 0 {
            self.invalidate(gate);
            return Ok(());
        }
        let size_before = cached.size();
        let size_after = match mode_bits & PLAIN {
            0 => size_before.max(offset.saturating_add(length)),
            _ => size_before,
        };
        let grown = Growth { size_before, data_from: size_after, size_after };
        let Some(now) = self.seen_alone(gate, cached, &grown)? else { return Ok(()) };
        let mut inner = self.file.inner.lock();
        if now.size != cached.size()
            && inner.capture.set_size(&self.core.store, cached, now.size).is_err()
        {
            // The PFS has the new length; only the copy in memory is invalidated.
            drop(inner);
            self.invalidate(gate);
            return Ok(());
        }
        if matches!(inner.capture, Capture::Gather(_)) {
            inner.capture = Capture::Off;
        }
        if mode_bits & ZEROES != 0 {
            self.core.store.remove_small(cached.id());
            inner.capture = Default::default();
            if let Some(segment) = cached.segment() {
                zero(segment, offset, length.min(now.size.saturating_sub(offset)));
            }
        }
        drop(inner);
        self.note_change(gate, cached, Change::Other);
        self.changed_by_us(gate, cached, &now);
        Ok(())
    }

    /// Counts dirty bytes, which `close` has to make durable. In mode `bypass` it promises nothing.
    fn add_dirty(&self, bytes: u64) {
        if self.write_mode == WriteMode::Bypass {
            return;
        }
        let owed = self.file.unsynced.changed(bytes);
        if owed / WRITEBACK_BYTES != (owed + bytes) / WRITEBACK_BYTES {
            self.lower.start_writeback(0, 0);
        }
    }

    pub(super) fn sync_written(&self, data_only: bool) -> Result<()> {
        if self.record_in_stub()? {
            return Ok(());
        }
        self.settle(Some(Need::All { data_only }))
    }

    pub(super) fn flush_written(&self) -> Result<()> {
        if !self.access.writes() {
            return Ok(());
        }
        if self.record_in_stub()? {
            return Ok(());
        }
        self.settle((self.write_mode != WriteMode::Bypass).then_some(Need::Counted))
    }

    /// Brings the stub of a memory-only file up to date; false for other files. Where this open is
    /// to make bytes durable (the file has another directory's rule now), they are written back.
    fn record_in_stub(&self) -> Result<bool> {
        if !self.file.cached().is_some_and(|cached| cached.is_memory_only()) {
            return Ok(false);
        }
        let changing = self.file.close_gate();
        // It may have been written back while this waited.
        match self.file.cached().filter(|cached| cached.is_memory_only()) {
            Some(cached) if !placing::is_enough(&changing, self.write_mode) => {
                memory_only::write_back_to_go_on(&self.core, &changing, &cached)?;
                self.add_dirty(1);
            }
            Some(cached) => {
                if !memory_only::record(&self.core, &changing, &cached, &*self.lower)? {
                    // Another program's by now; if bytes of ours went with it, that is told here.
                    self.cached_version_for_change(&changing, self.lower.version()?)?;
                    return Ok(false);
                }
                if memory_only::bring_copies_up_to_date(&self.core, &changing, &cached) {
                    return Ok(true);
                }
                memory_only::write_back_to_go_on(&self.core, &changing, &cached)?;
                self.add_dirty(1);
            }
            None => {}
        }
        Ok(false)
    }

    /// Makes what is needed durable, then packs a small file.
    fn settle(&self, need: Option<Need>) -> Result<()> {
        let directly = self.file.inner.lock().written_directly;
        if let Some(need) = need {
            // What the kernel writes is not counted.
            let need = if directly && need == Need::Counted { EVERYTHING } else { need };
            self.file.unsynced.settle(&self.hearing, need, |work| self.sync_lower(work))?;
            if directly {
                return Ok(());
            }
        }
        let changing = self.file.close_gate();
        let mut inner = self.file.inner.lock();
        let cached = inner.cached.clone();
        let cached = cached.filter(|cached| !cached.is_memory_only() && cached.admit);
        let Some(cached) = cached else { return Ok(()) };
        inner.capture.settle(&self.core.store, &cached)?;
        drop((inner, changing));
        let is_closed = need == Some(Need::Counted);
        clean::send(&self.core, (&self.file, &self.lower), &cached, is_closed);
        Ok(())
    }

    /// Syncs the file by this open, and by all others where the PFS syncs what an open wrote by
    /// that open alone.
    fn sync_opens(&self, data_only: bool) -> Result<()> {
        self.lower.sync(data_only)?;
        if !self.core.pfs.features().fsync_is_per_open {
            return Ok(());
        }
        let others: Vec<_> = {
            let inner = self.file.inner.lock();
            inner.opens.iter().filter_map(|open| open.lower.upgrade()).collect()
        };
        let mut others = others.iter().filter(|lower| !Arc::ptr_eq(lower, &self.lower));
        others.try_for_each(|lower| lower.sync(data_only))
    }

    fn sync_lower(&self, work: Work) -> Result<()> {
        let synced = self.sync_opens(work.data_only).and_then(|()| match work.entry {
            true => self.lower.sync_directory_entry(),
            false => Ok(()),
        });
        match synced {
            // What the kernel writes by itself is read back from the page cache later.
            Ok(()) if work.bytes > 0 && !self.file.inner.lock().written_directly => {
                self.lower.drop_cached(0, 0);
            }
            Ok(()) => {}
            Err(error) => {
                let changing = self.file.close_gate();
                self.invalidate(&changing);
                return Err(error);
            }
        }
        Ok(())
    }
}

/// All that is in a file, whichever program wrote it.
const EVERYTHING: Need = Need::All { data_only: false };

/// Writes zeros over the resident part of a range.
fn zero(segment: &tidepool_store::Segment, offset: u64, length: u64) {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    let end = offset + length;
    let mut at = offset;
    while at < end {
        let part = (end - at).min(ZEROS.len() as u64);
        segment.write_resident(at, &ZEROS[..part as usize]);
        at += part;
    }
}
