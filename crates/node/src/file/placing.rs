//! Which other nodes are to have the bytes of a memory-only file, and whether that is enough for
//! what an open promises.

use std::sync::Arc;

use tidepool_pfs::LowerFile;
use tidepool_proto::WriteMode;

use super::cached_version::CachedVersion;
use super::copied::Copied;
use super::gate::Gated;
use super::state::FileState;
use crate::core::Core;

/// There are too few other nodes to hold copies.
pub struct TooFewNodes;

/// Who is to have copies of a file that begins in this mode, if anybody.
pub fn place(
    core: &Core,
    cached: &CachedVersion,
    lower: &dyn LowerFile,
    write_mode: WriteMode,
) -> Result<Option<Arc<Copied>>, TooFewNodes> {
    match write_mode {
        WriteMode::Alw => in_buffers(core, cached).map(Some),
        _ => copies_for(core, cached, lower),
    }
}

/// Which burst buffers are to have a file that begins.
fn in_buffers(core: &Core, cached: &CachedVersion) -> Result<Arc<Copied>, TooFewNodes> {
    let cluster = core.cluster().ok_or(TooFewNodes)?;
    cluster.place_in_buffers(&cached.version()).map(Arc::new).ok_or(TooFewNodes)
}

/// Whether what a memory-only file promises is all that a sync by an open of this mode promises.
pub fn is_enough(file: &impl Gated, write_mode: WriteMode) -> bool {
    match write_mode {
        WriteMode::Memory => true,
        WriteMode::Alw => copied_of(file).is_some_and(|copied| copied.owing.is_some()),
        _ => false,
    }
}

/// Who is to have copies of a file that begins, if anybody.
fn copies_for(
    core: &Core,
    cached: &CachedVersion,
    lower: &dyn LowerFile,
) -> Result<Option<Arc<Copied>>, TooFewNodes> {
    let copies = core.rule_of(lower).map_or(1, |(_, rule)| rule.copies);
    if copies <= 1 {
        return Ok(None);
    }
    let cluster = core.cluster().ok_or(TooFewNodes)?;
    let placed = cluster.place_copies(&cached.version(), copies - 1).ok_or(TooFewNodes)?;
    Ok(Some(Arc::new(Copied::new(placed, None))))
}

/// What other nodes have of a memory-only file; `None` where they have nothing.
pub fn copied_of(file: &FileState) -> Option<Arc<Copied>> {
    file.inner.lock().stub.as_ref()?.copied().cloned()
}
