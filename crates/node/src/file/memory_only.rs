//! Write mode `memory`: bytes live in the store only, the PFS holds a stub with name, owner, mode
//! and a mark that says how long the file is and which node holds it.
//!
//! The mark is an extended attribute, or the content of the stub where attributes are not to be
//! had. Under pressure, at `drain` and at stop the bytes are written down and the file becomes an
//! ordinary one; where the rule says `expendable` they are dropped instead. A stub whose holder is
//! gone answers `Lost`, never zeros.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tidepool_pfs::LowerFile;
use tidepool_proto::stub::{STUB_ATTRIBUTE, STUB_BYTES, STUB_MAGIC};
use tidepool_proto::table::BlockState;
use tidepool_proto::{Error, ErrorKind, Result, Version};
use tidepool_store::FillStart;

use super::capture::Written;
use super::content::Content;
use super::lent;
use super::state::{FileState, Inner};
use crate::core::Core;

fn mark(size: u64) -> String {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    format!("{STUB_MAGIC} 1 length={size} holder={host} pid={}", std::process::id())
}

/// The mark of a stub, if the file is one.
pub fn stub_mark(lower: &dyn LowerFile, size: u64) -> Result<Option<String>> {
    if size == 0 {
        let value = lower.get_xattr(STUB_ATTRIBUTE).unwrap_or(None);
        return Ok(value.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()));
    }
    if size != STUB_BYTES {
        return Ok(None);
    }
    let mut bytes = [0; STUB_BYTES as usize];
    // A write-only descriptor cannot tell; it does not read the bytes either.
    let Ok(read) = lower.read_at(0, &mut bytes) else { return Ok(None) };
    let text = String::from_utf8_lossy(&bytes[..read]).into_owned();
    Ok(text.starts_with(STUB_MAGIC).then(|| text.trim_end().to_owned()))
}

/// Whether nobody wrote to the stub between two of its versions: its name, mode, owner or
/// attributes may have changed, but not its content.
pub fn is_same_stub(one: &Version, other: &Version) -> bool {
    one.is_of_same_file(other) && (one.size, one.modified_ns) == (other.size, other.modified_ns)
}

fn write_mark(lower: &dyn LowerFile, size: u64) -> Result<()> {
    let text = mark(size);
    if lower.set_xattr(STUB_ATTRIBUTE, text.as_bytes()).is_ok() {
        return Ok(());
    }
    let mut bytes = text.into_bytes();
    bytes.resize(STUB_BYTES as usize - 1, b' ');
    bytes.push(b'\n');
    lower.write_at(0, &bytes)
}

/// Removes the mark, so that the file is an ordinary one.
pub fn clear_mark(lower: &dyn LowerFile) -> Result<()> {
    match lower.get_xattr(STUB_ATTRIBUTE) {
        Ok(Some(_)) => lower.remove_xattr(STUB_ATTRIBUTE),
        _ => Ok(()),
    }
}

/// The error of a stub whose bytes are gone.
pub fn lost(name: &str, mark: &str) -> Error {
    Error::new(
        ErrorKind::Lost,
        "opening a file",
        format!("{name} was written in mode `memory` and its bytes are gone ({mark})"),
    )
    .remedy("remove it or write it again; mode `through` survives the node")
}

/// Makes an empty file a memory-only one. Call with the gate held exclusively.
pub fn begin(
    core: &Core,
    inner: &mut Inner,
    content: &Arc<Content>,
    lower: &Arc<dyn LowerFile>,
) -> Result<()> {
    write_mark(&**lower, 0)?;
    content.set_version(lower.version()?);
    content.set_size(0);
    content.set_memory_only(true);
    inner.spill_file = Some(lower.clone());
    core.memory_only_files.fetch_add(1, Ordering::AcqRel);
    Ok(())
}

/// Writes the present length into the stub. Call with the gate held exclusively.
pub fn record(content: &Content, lower: &Arc<dyn LowerFile>) -> Result<()> {
    if !is_same_stub(&lower.version()?, &content.version()) {
        return Ok(()); // somebody else's file by now; the next open sorts it out
    }
    write_mark(&**lower, content.size())?;
    content.set_version(lower.version()?);
    Ok(())
}

/// Keeps a write in memory. False when there was no room and the file was written down instead:
/// the caller then writes through. Call with the gate held exclusively.
pub fn write(
    core: &Arc<Core>,
    file: &FileState,
    content: &Arc<Content>,
    offset: u64,
    data: &[u8],
) -> Result<bool> {
    let end = offset + data.len() as u64;
    let size = content.size().max(end);
    let segment = content.segment_or_create(&core.store)?.clone();
    if content.is_lent() && end > content.size() {
        let written = Written { offset, data, size_before: content.size() };
        let kept = lent::write(&segment, &written, BlockState::MemoryOnly);
        if !or_spilled(core, file, content, kept)? {
            return Ok(false);
        }
        content.set_size(size);
        return Ok(true);
    }
    if size > segment.size() && !or_spilled(core, file, content, segment.grow_with(offset, data))? {
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
            && !begin_block(core, file, content, &segment, block)?
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
    content.set_size(size);
    Ok(true)
}

/// How growth ended; false when the file had to be written down for lack of room.
fn or_spilled(
    core: &Arc<Core>,
    file: &FileState,
    content: &Arc<Content>,
    grown: Result<()>,
) -> Result<bool> {
    match grown {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::StoreFull => {
            spill_gated(core, file, content)?;
            Ok(false)
        }
        Err(error) => Err(error),
    }
}

/// Makes a block of zeros; false when the file had to be written down.
fn begin_block(
    core: &Arc<Core>,
    file: &FileState,
    content: &Arc<Content>,
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
            spill_some(core, core.block_bytes());
        }
    }
    spill_gated(core, file, content)?;
    Ok(false)
}

/// Sets the length of a memory-only file. Call with the gate held exclusively.
pub fn set_size(content: &Content, size: u64) -> Result<()> {
    match content.segment() {
        Some(segment) if content.is_lent() => {
            lent::set_size(segment, size, BlockState::MemoryOnly)?;
        }
        Some(segment) => segment.set_size(size)?,
        None => {}
    }
    content.set_size(size);
    Ok(())
}

/// Gives memory-only bytes up, because the file is gone or was replaced.
pub fn forget(core: &Core, inner: &mut Inner) {
    if let Some(content) = &inner.content
        && content.is_memory_only()
    {
        content.set_memory_only(false);
        core.give_up(content);
        if let Some(segment) = content.segment() {
            segment.drop_contents();
        }
        core.memory_only_files.fetch_sub(1, Ordering::AcqRel);
    }
    inner.spill_file = None;
}

/// Writes memory-only files down until `bytes_wanted` bytes became clean. Files that are being
/// changed at this moment are passed over, so that no lock is waited for.
pub fn spill_some(core: &Arc<Core>, bytes_wanted: u64) -> u64 {
    if core.memory_only_files.load(Ordering::Acquire) == 0 {
        return 0;
    }
    let mut freed = 0;
    for file in core.files.all() {
        if freed >= bytes_wanted {
            break;
        }
        let Some(_changing) = file.gate.try_write() else { continue };
        let Some(content) = file.content().filter(|content| content.is_memory_only()) else {
            continue;
        };
        let bytes = content.resident_bytes();
        match spill_gated(core, &file, &content) {
            Ok(()) => freed += bytes,
            Err(error) => tracing::error!(%error, inode = file.id.inode, "memory-only file stays"),
        }
    }
    freed
}

/// Writes every memory-only file down; the first error is returned after all were tried.
pub fn spill_all(core: &Arc<Core>) -> Result<()> {
    let mut first_error = None;
    for file in core.files.all() {
        let _changing = file.gate.write();
        let Some(content) = file.content().filter(|content| content.is_memory_only()) else {
            continue;
        };
        if let Err(error) = spill_gated(core, &file, &content) {
            first_error.get_or_insert(error);
        }
    }
    first_error.map_or(Ok(()), Err)
}

/// Writes one memory-only file down, or drops it where its rule says so. Call with the gate held
/// exclusively. On error the bytes stay in memory.
pub fn spill_gated(core: &Arc<Core>, file: &FileState, content: &Arc<Content>) -> Result<()> {
    let mut inner = file.inner.lock();
    let Some(lower) = inner.spill_file.clone() else { return Ok(()) };
    let expendable = core.rule_of(&*lower).is_some_and(|(_, rule)| rule.expendable);
    if expendable || inner.removed && inner.handles == 0 {
        forget(core, &mut inner);
        inner.content = None;
        return Ok(());
    }
    drop(inner);
    if let Err(error) = write_down(core, content, &*lower) {
        // Whatever the PFS took is no file: leave a stub behind, as before.
        let _ = lower.set_size(0);
        let _ = write_mark(&*lower, content.size());
        if let Ok(version) = lower.version() {
            content.set_version(version);
        }
        return Err(error);
    }
    let version = lower.version()?;
    let segment = content.segment();
    content.set_memory_only(false);
    content.set_version(version);
    core.weigh_stamps(content, &version);
    if let Some(segment) = segment {
        for block in 0..segment.blocks() {
            if segment.state(block) == BlockState::MemoryOnly {
                segment.set_state(block, BlockState::Clean);
            }
        }
    }
    core.memory_only_files.fetch_sub(1, Ordering::AcqRel);
    core.ledger.spilled_bytes.add(content.size());
    file.inner.lock().spill_file = None;
    Ok(())
}

fn write_down(core: &Core, content: &Content, lower: &dyn LowerFile) -> Result<()> {
    let size = content.size();
    lower.set_size(0)?;
    lower.set_size(size)?;
    if let Some(segment) = content.segment() {
        for block in 0..segment.blocks() {
            if let Some(pin) = segment.pin_block(block) {
                lower.write_at(block * segment.block_bytes(), &pin)?;
                core.ledger.pfs_written_bytes.add(pin.len() as u64);
            }
        }
    }
    lower.sync(false)?;
    clear_mark(lower)?;
    lower.sync(false)?;
    lower.sync_directory_entry()
}
