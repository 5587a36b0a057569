//! Write mode `memory`: bytes live in the store only, the PFS holds a stub ([`super::stub`]) with
//! name, owner, mode and a mark that says how long the file is and which node holds it.
//!
//! Under pressure, at `drain` and at stop the bytes are written back and the file becomes an
//! ordinary one; where the rule says `expendable` they are dropped instead. A stub whose holder is
//! gone answers `Lost`, never zeros, to every open but one that empties it.

use std::sync::Arc;
use std::time::Instant;

use tidepool_pfs::LowerFile;
use tidepool_proto::stub::Mark;
use tidepool_proto::table::BlockState;
use tidepool_proto::{Error, ErrorKind, FileId, Result, Version, WriteMode};
use tidepool_store::FillStart;

use super::cached_version::CachedVersion;
use super::gate::{ExclusiveGate, Gated};
use super::losses::Cause;
use super::state::{FileState, Inner, Remains};
use super::stub::{self, Found, Stub};
use super::write_back::{Seen, write_into_stub};
use super::write_back_pool::Wait;
use super::write_back_state::{Room, is_full};
use super::written::Written;
use super::{kernel_borrow, placing, write_back_check};
use crate::core::Core;

/// What became of a file that was to be written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum WriteBackOutcome {
    /// It is an ordinary file.
    WrittenBack,
    /// Its bytes are gone: it was expendable, has no name any more, or is another program's.
    Discarded,
}

/// Makes an empty file a memory-only one. False where it takes no mark: it then stays an ordinary
/// file.
pub fn begin(
    core: &Core,
    file: &ExclusiveGate<'_>,
    (cached, lower): (&Arc<CachedVersion>, &Arc<dyn LowerFile>),
    write_mode: WriteMode,
) -> Result<bool> {
    let Ok(copied) = placing::place(core, cached, &**lower, write_mode) else { return Ok(false) };
    let mark = core.memory_only.mark(0);
    let Some(stub) = Stub::make(lower, &mark, copied)? else { return Ok(false) };
    let version = lower.version()?;
    if version.size != stub.size() {
        // Another program wrote to it in this moment: its bytes stay.
        stub::clear_remains(&**lower)?;
        return Ok(false);
    }
    cached.set_version(version);
    cached.shrink(0);
    cached.set_memory_only(true);
    core.memory_only.insert(cached);
    file.inner.lock().stub = Some(stub);
    Ok(true)
}

/// Brings the copies of a file on other nodes up to date. False where one of them is not to be
/// had: the file has to be written back instead.
pub fn bring_copies_up_to_date(
    core: &Core,
    file: &ExclusiveGate<'_>,
    cached: &CachedVersion,
) -> bool {
    let Some(stub) = file.inner.lock().stub.clone() else { return true };
    let (Some(copied), Some(cluster)) = (stub.copied(), core.cluster()) else { return true };
    cluster.push(core, copied, cached, &stub)
}

/// Whether a memory-only file, seen at `now`, is still the stub of `cached`. Then that is its
/// version from now on.
pub fn is_still_ours(
    core: &Core,
    file: &impl Gated,
    cached: &CachedVersion,
    lower: &dyn LowerFile,
    now: &Version,
) -> Result<bool> {
    let recorded = cached.version();
    // The length of a stub without content tells by itself that nobody wrote to it.
    let is_empty =
        |file: &FileState| file.inner.lock().stub.as_ref().is_none_or(|stub| stub.size() == 0);
    if now.agrees_with(&recorded) && is_empty(file) {
        return Ok(true);
    }
    let Some(stub) = file.inner.lock().stub.clone() else { return Ok(false) };
    if !now.is_of_same_file(&recorded)
        || !stub.is_at(lower, now, &core.memory_only.mark(cached.size()))?
    {
        return Ok(false);
    }
    cached.set_version(*now);
    Ok(true)
}

/// Refuses a file that is the stub of another node, or of bytes that are gone, and takes an old
/// mark off a file that another program wrote over a stub.
pub fn refuse_stub(lower: &dyn LowerFile, now: &Version) -> Result<()> {
    match stub::find(lower, now.size)? {
        Found::Nothing | Found::Copy(_) => Ok(()),
        Found::Remains | Found::Finished => stub::clear_remains(lower),
        Found::Stub(mark) => Err(stub::lost(&name_of(lower), &mark)),
    }
}

/// Length of a memory-only file whose stub was just seen at `pfs_size`; `None` where that is the
/// length of another program's file, or nothing is in memory alone.
pub fn size_in_memory(core: &Core, id: FileId, pfs_size: u64) -> Option<u64> {
    let file = core.files.get(id)?;
    let inner = file.inner.lock();
    let cached = inner.cached.as_ref().filter(|cached| cached.is_memory_only())?;
    let size = cached.size();
    // While it is written back it may have any length.
    let is_ours = inner.stub.as_ref().is_none_or(|stub| pfs_size == stub.size())
        || pfs_size == size
        || core.memory_only.steps().has(id);
    is_ours.then_some(size)
}

/// Name of a file for messages.
pub fn name_of(lower: &dyn LowerFile) -> String {
    lower.relative_path().map_or_else(|| "the file".into(), |path| path.display().to_string())
}

/// As [`name_of`], of a file that is a stub. The PFS, which may not answer for it, is not asked.
pub fn name_of_file(core: &Core, id: FileId) -> String {
    let file = core.files.get(id);
    let stub = file.and_then(|file| file.inner.lock().stub.clone());
    let path = stub.and_then(|stub| stub.lower().relative_path_known());
    path.map_or_else(|| "a file".into(), |path| path.display().to_string())
}

/// The error of an open file whose bytes were discarded.
pub fn lost_error(core: &Core, cached: &CachedVersion, lower: &dyn LowerFile) -> Error {
    stub::lost(&name_of(lower), &core.memory_only.mark(cached.size()))
}

/// Writes the present length into the stub, and makes it durable the first time; false where the
/// file is another program's by now.
pub fn record(
    core: &Core,
    file: &ExclusiveGate<'_>,
    cached: &CachedVersion,
    lower: &dyn LowerFile,
) -> Result<bool> {
    let now = lower.version()?;
    if !is_still_ours(core, file, cached, lower, &now)? {
        return Ok(false);
    }
    let Some(stub) = file.inner.lock().stub.clone() else { return Ok(true) };
    stub.times.bring_up_to_date(lower, &now)?;
    let mark = core.memory_only.mark(cached.size());
    if stub.copied().is_none() && stub::was_emptied(lower, &mark)? {
        return Ok(false);
    }
    stub.record(&mark)?;
    adopt(cached, lower, &stub, &mark)
}

/// Takes the version that the stub has after a change of the mark, unless another program wrote to
/// it meanwhile.
fn adopt(cached: &CachedVersion, lower: &dyn LowerFile, stub: &Stub, mark: &Mark) -> Result<bool> {
    // Seen before it is looked at: what comes later shows.
    let now = lower.version()?;
    let is_ours = stub.is_at(lower, &now, mark)?;
    if is_ours {
        cached.set_version(now);
    }
    Ok(is_ours)
}

/// Has the stub tell no more bytes than the file is about to have, because a reader that asks the
/// PFS for a length reads up to it. What grows is told by [`record`]. For a file that was found to
/// be ours.
pub fn tell_shorter(
    core: &Core,
    file: &ExclusiveGate<'_>,
    cached: &CachedVersion,
    lower: &dyn LowerFile,
    size: u64,
) -> Result<()> {
    let Some(stub) = file.inner.lock().stub.clone() else { return Ok(()) };
    let mark = core.memory_only.mark(size);
    if stub.shorten(&mark)? {
        // Where it is not ours any more, the next change or `close` finds that.
        adopt(cached, lower, &stub, &mark)?;
    }
    Ok(())
}

/// Keeps a write in memory. False when there was no room and the file was written back instead:
/// the caller then writes through.
pub fn write(
    core: &Arc<Core>,
    file: &ExclusiveGate<'_>,
    cached: &Arc<CachedVersion>,
    offset: u64,
    data: &[u8],
) -> Result<bool> {
    let end = offset + data.len() as u64;
    let size = cached.size().max(end);
    let stub = file.inner.lock().stub.clone();
    let copied = stub.as_ref().and_then(|stub| stub.copied());
    if let Some(stub) = &stub {
        stub.note_change(cached);
    }
    if let Some(copied) = copied {
        copied.note_write(offset..end);
    }
    let segment = cached.segment_or_create(&core.store)?.clone();
    if cached.is_borrowed_by_kernel() && end > cached.size() {
        let written = Written { offset, data, size_before: cached.size() };
        let kept = kernel_borrow::write(&segment, &written, BlockState::MemoryOnly);
        if !or_written_back(core, file, cached, kept)? {
            return Ok(false);
        }
        cached.set_size(size);
        return Ok(true);
    }
    if size > segment.size()
        && !or_written_back(core, file, cached, segment.grow_with(offset, data))?
    {
        return Ok(false);
    }
    let block_bytes = segment.block_bytes();
    let mut at = offset;
    while at < end {
        let block = at / block_bytes;
        let start = block * block_bytes;
        let upto = end.min(start + block_bytes);
        let part = &data[(at - offset) as usize..(upto - offset) as usize];
        if segment.state(block) == BlockState::Absent
            && !begin_block(core, file, cached, &segment, block)?
        {
            return Ok(false);
        }
        if segment.write_resident(at, part) < part.len() as u64 {
            return Err(Error::new(
                ErrorKind::Internal,
                "keeping a memory-only write",
                "lost block",
            ));
        }
        at = upto;
    }
    cached.set_size(size);
    if let (Some(stub), Some(copied), Some(cluster)) = (&stub, copied, core.cluster()) {
        cluster.push_ahead(core, copied, cached, stub);
    }
    Ok(true)
}

/// Writes a file back for want of memory, to go on with it as an ordinary one.
pub fn write_back_to_go_on(
    core: &Arc<Core>,
    file: &ExclusiveGate<'_>,
    cached: &Arc<CachedVersion>,
) -> Result<()> {
    // A write that found no room may have made the segment longer than the file.
    if let Some(segment) = cached.segment()
        && segment.size() > cached.size()
    {
        segment.set_size(cached.size())?;
    }
    let stub = file.inner.lock().stub.clone();
    match (write_back(core, file, cached)?, stub) {
        (WriteBackOutcome::Discarded, Some(stub)) => Err(lost_error(core, cached, &**stub.lower())),
        _ => Ok(()),
    }
}

/// How growth ended; false when the file had to be written back for lack of room.
fn or_written_back(
    core: &Arc<Core>,
    file: &ExclusiveGate<'_>,
    cached: &Arc<CachedVersion>,
    grown: Result<()>,
) -> Result<bool> {
    match grown {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::StoreFull => {
            write_back_to_go_on(core, file, cached)?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Makes a block of zeros; false when the file had to be written back.
fn begin_block(
    core: &Arc<Core>,
    file: &ExclusiveGate<'_>,
    cached: &Arc<CachedVersion>,
    segment: &Arc<tidepool_store::Segment>,
    block: u64,
) -> Result<bool> {
    for attempt in 0..2 {
        if let FillStart::Started(mut fill) = segment.begin_fill(block) {
            fill.fill(0);
            fill.commit(BlockState::MemoryOnly);
            return Ok(true);
        }
        if attempt == 0 {
            core.write_back_pool.ask(core.block_bytes(), Wait::ToEnd);
        }
    }
    write_back_to_go_on(core, file, cached)?;
    Ok(false)
}

/// Sets the length of a memory-only file.
pub fn set_size(file: &ExclusiveGate<'_>, cached: &CachedVersion, size: u64) -> Result<()> {
    if let Some(stub) = &file.inner.lock().stub {
        stub.note_change(cached);
        if let Some(copied) = stub.copied() {
            copied.note_size(size);
        }
    }
    let before = cached.size();
    if size < before {
        cached.shrink(size);
    }
    let set = match cached.segment() {
        Some(segment) if cached.is_borrowed_by_kernel() => {
            kernel_borrow::set_size(segment, size, BlockState::MemoryOnly)
        }
        Some(segment) => segment.set_size(size),
        None => Ok(()),
    };
    cached.set_size(if set.is_ok() { size } else { before });
    set
}

/// Discards memory-only bytes, because the file is gone or was replaced.
pub fn discard(core: &Core, inner: &mut Inner) -> Remains {
    inner.stub = None;
    let cached = inner.cached.as_ref().filter(|cached| cached.is_memory_only());
    let Some(cached) = cached else { return Remains::none() };
    cached.set_memory_only(false);
    // Its readers see how long it was; the stub was not.
    cached.set_version(Version { size: cached.size(), ..cached.version() });
    core.invalidate(cached);
    core.memory_only.remove(cached);
    Remains::of(cached)
}

/// Notes that another program changed a file, before its bytes in memory are discarded. Its writers
/// are told.
pub fn note_replaced(file: &FileState, cached: &CachedVersion) {
    if !cached.is_memory_only() {
        return;
    }
    let (inode, bytes) = (file.id.inode, cached.size());
    tracing::warn!(
        inode,
        bytes,
        "another program wrote to a memory-only file; its version is kept, ours is discarded"
    );
    file.losses.add(bytes, Cause::AnotherProgram);
}

/// Writes one memory-only file back while memory is needed; the bytes that became clean. A file
/// that is being changed at this moment is passed over, so that no lock is waited for, and so is
/// one that the PFS did not take a moment ago, or had no room for, unless it needs none.
pub fn try_write_back(core: &Arc<Core>, id: FileId) -> Option<u64> {
    let write_back_state = core.memory_only.write_back_state();
    let file = core.files.get(id)?;
    let stub = file.inner.lock().stub.clone()?;
    let is_paused =
        write_back_state.is_paused(&**stub.lower()) || write_back_state.failing().is_paused(id);
    if is_paused && !is_expendable(core, &file) {
        return None;
    }
    let changing = file.try_close_gate()?;
    let cached = file.cached().filter(|cached| cached.is_memory_only())?;
    let bytes = cached.resident_bytes();
    write_back(core, &changing, &cached).is_ok().then_some(bytes)
}

/// Writes one memory-only file back because another node has it open; waits for changes of it that
/// are under way.
pub fn write_back_for_another(core: &Arc<Core>, file: &FileState) -> Result<WriteBackOutcome> {
    write_back_closed(core, &file.close_gate())
}

/// As [`write_back_for_another`] where nobody waits for it yet: as fast as readers of the PFS do
/// not notice, until somebody waits for the file.
pub fn write_back_in_background(core: &Arc<Core>, file: &FileState) -> Result<WriteBackOutcome> {
    write_back_closed(core, &file.close_gate().in_background())
}

fn write_back_closed(core: &Arc<Core>, file: &ExclusiveGate<'_>) -> Result<WriteBackOutcome> {
    let cached = file.cached().filter(|cached| cached.is_memory_only());
    cached.map_or(Ok(WriteBackOutcome::WrittenBack), |cached| write_back(core, file, &cached))
}

/// Whether a file may be discarded instead of being written back.
pub fn is_expendable(core: &Core, file: &FileState) -> bool {
    let stub = file.inner.lock().stub.clone();
    stub.is_some_and(|stub| core.rule_of(&**stub.lower()).is_some_and(|(_, rule)| rule.expendable))
}

/// Writes one memory-only file back, or discards it where its rule says so. On error the bytes stay
/// in memory, and that is noted.
pub fn write_back(
    core: &Arc<Core>,
    file: &ExclusiveGate<'_>,
    cached: &Arc<CachedVersion>,
) -> Result<WriteBackOutcome> {
    let Some(stub) = file.inner.lock().stub.clone() else {
        return Ok(WriteBackOutcome::WrittenBack);
    };
    let begun = Instant::now();
    let step = core.memory_only.steps().begin(file);
    let outcome = match write_back_or_discard(core, file, cached, &stub) {
        Err(error) if is_removed(file, &**stub.lower(), &error) => {
            cached.set_lost();
            discard_file(core, file);
            Ok(WriteBackOutcome::Discarded)
        }
        other => other,
    };
    drop(step);
    let (write_back_state, lower) = (core.memory_only.write_back_state(), &**stub.lower());
    match &outcome {
        Ok(WriteBackOutcome::WrittenBack) => {
            write_back_state.succeeded(lower);
            write_back_state.failing().succeeded(file.id);
        }
        Ok(WriteBackOutcome::Discarded) => {}
        Err(error) if is_full(error) => {
            if write_back_state.refused(Room::of(error, lower), file.id, error) {
                write_back_state.start_retry();
            }
        }
        Err(error) => write_back_state.failing().failed(file.id, error, begun),
    }
    outcome
}

/// Whether nobody has a file, or can get at it, that failed so: some file systems (GlusterFS) take
/// nothing for a file that was removed.
fn is_removed(file: &FileState, lower: &dyn LowerFile, error: &Error) -> bool {
    let is_forgotten = matches!(error.errno(), libc::ESTALE | libc::ENOENT);
    let names = rustix::fs::fstat(lower.descriptor()).map(|facts| facts.st_nlink);
    is_forgotten && names == Ok(0) && file.inner.lock().handles == 0
}

fn write_back_or_discard(
    core: &Arc<Core>,
    file: &ExclusiveGate<'_>,
    cached: &Arc<CachedVersion>,
    stub: &Stub,
) -> Result<WriteBackOutcome> {
    let is_nameless = file.inner.lock().is_gone();
    let lower = stub.lower().clone();
    let expendable = core.rule_of(&*lower).is_some_and(|(_, rule)| rule.expendable);
    let ours =
        expendable || is_nameless || is_still_ours(core, file, cached, &*lower, &lower.version()?)?;
    if expendable || is_nameless || !ours {
        if !ours {
            note_replaced(file, cached);
        } else {
            cached.set_lost();
            if expendable && !is_nameless {
                file.losses.add(cached.size(), Cause::Expendable);
            }
        }
        discard_file(core, file);
        return Ok(WriteBackOutcome::Discarded);
    }
    let mark = core.memory_only.mark(cached.size());
    if stub.copied().is_none() && stub::was_emptied(&*lower, &mark)? {
        return Ok(give_up_to_copy(core, file, cached, stub));
    }
    let mut seen = Seen::default();
    let written = write_into_stub(core, file, cached, (stub, &mark), &mut seen);
    if let Err(error) = &written
        && error.kind() == ErrorKind::Lost
    {
        return Ok(give_up_to_copy(core, file, cached, stub));
    }
    if written.is_err() && stub.restore(&mark) {
        // The bytes stay in memory, and the stub as it is now stands for them, if it is ours still.
        if let Err(error) = adopt(cached, &*lower, stub, &mark) {
            tracing::debug!(%error, "a stub that could not be written back is looked at later");
        }
        return written.map(|()| WriteBackOutcome::WrittenBack);
    }
    become_ordinary(core, file, cached, stub, seen)?;
    written.map(|()| WriteBackOutcome::WrittenBack)
}

/// Another node puts its copy in the place of the file: what it was not promised is lost.
fn give_up_to_copy(
    core: &Core,
    file: &ExclusiveGate<'_>,
    cached: &CachedVersion,
    stub: &Stub,
) -> WriteBackOutcome {
    tracing::warn!(
        name = %name_of(&**stub.lower()),
        "another node, to which this one was gone, put its copy of this file in its place"
    );
    if let (Some(copied), Some(cluster)) = (stub.copied(), core.cluster()) {
        cluster.copies.note_given_up(copied, file.id);
    }
    if !stub.copied().is_some_and(|copied| copied.is_up_to_date()) {
        file.losses.add(cached.size().max(1), Cause::CopyTaken);
    }
    discard_file(core, file);
    WriteBackOutcome::Discarded
}

/// The bytes in memory are not the file's any more.
fn discard_file(core: &Core, file: &ExclusiveGate<'_>) {
    let mut inner = file.inner.lock();
    let remains = discard(core, &mut inner);
    inner.cached = None;
    drop(inner);
    remains.free();
}

/// The PFS has the bytes, durably: from now on they may be evicted (invariant 5).
fn become_ordinary(
    core: &Core,
    file: &ExclusiveGate<'_>,
    cached: &Arc<CachedVersion>,
    stub: &Stub,
    seen: Seen,
) -> Result<()> {
    let is_read_elsewhere = stub.copied().is_some_and(|copied| copied.given_token().is_some());
    let unmarked = match stub.unmarked() {
        // Its readers elsewhere can go on if nobody wrote to it while its mark went slowly.
        None if is_read_elsewhere && stub.whole().is_some() => {
            write_back_check::version_with_bytes_of(core, cached, &**stub.lower())
        }
        known => known,
    };
    let version = unmarked.map_or_else(|| stub.lower().version(), Ok);
    // Since the mark went, other nodes and programs may have written to it.
    let is_changed = |now: &Version| {
        stub.whole().is_some_and(|whole| whole.size == cached.size() && !whole.has_bytes_of(now))
    };
    // Nor is it known whether somebody wrote to it, and set its times back.
    let is_unsure = stub.whole().is_some() && unmarked.is_none();
    let is_settled = |now: &Version| seen.settled_ns == Some(now.modified_ns);
    if let (Some(copied), Some(cluster)) = (stub.copied(), core.cluster()) {
        let is_known = |now: &&Version| !seen.changed_amid && !is_changed(now) && is_settled(now);
        // Before anybody is told that the PFS has it.
        cluster.given.note_written_back(copied, unmarked.as_ref().filter(is_known));
    }
    core.memory_only.remove(cached);
    file.inner.lock().stub = None;
    cached.set_memory_only(false);
    core.counters.written_back_bytes.add(cached.size());
    match &version {
        // Another program may have written to it in between: the next reader asks the PFS.
        Ok(_) if seen.changed_amid => core.invalidate(cached),
        Ok(version) if is_changed(version) => core.invalidate(cached),
        Ok(version) if version.size == cached.size() => {
            cached.set_version(*version);
            // Its mark went just now, which moves the time of change of attributes alone.
            match stub.kept_ns() {
                _ if is_settled(version) => {}
                Some(_) => cached.mark_racy(),
                None => core.check_racy(cached, version),
            }
            if is_unsure {
                core.read_anew(cached, version);
            }
        }
        // Another program wrote to it in the meantime.
        Ok(_) => {
            file.losses.add(cached.size(), Cause::AnotherProgram);
            core.invalidate(cached);
        }
        // Of no known version, so it serves nobody.
        Err(_) => core.invalidate(cached),
    }
    // Now that they may go, absent blocks are no zeros any more.
    if let Some(segment) = cached.segment() {
        for block in 0..segment.blocks() {
            if segment.state(block) == BlockState::MemoryOnly {
                segment.set_state(block, BlockState::Clean);
            }
        }
    }
    version.map(drop)
}
