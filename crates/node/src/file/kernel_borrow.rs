//! Changes of a segment that the kernel has borrowed for a passthrough open. The kernel goes by the
//! length of the memory file alone, so bytes are there before the length says so, and no hole is
//! left where it would read zeros after a write.
//!
//! Growth that finds no memory is refused. The caller then invalidates this version, and the opens
//! that read it by passthrough are left behind (see `behind`).

use tidepool_proto::table::BlockState;
use tidepool_proto::{Error, ErrorKind, Result};
use tidepool_store::Segment;

use super::written::Written;

/// Keeps a write that makes the file longer. New blocks become `state`.
pub fn write(segment: &Segment, written: &Written<'_>, state: BlockState) -> Result<()> {
    let inside = written.size_before.saturating_sub(written.offset) as usize;
    let (patch, growth) = written.data.split_at(inside.min(written.data.len()));
    segment.write_resident(written.offset, patch);
    extend(segment, written.offset.saturating_sub(written.size_before), growth, state)
}

/// Sets the length. New blocks become `state`.
pub fn set_size(segment: &Segment, size: u64, state: BlockState) -> Result<()> {
    match size.checked_sub(segment.size()) {
        None | Some(0) => segment.set_size(size),
        Some(gap) => extend(segment, gap, &[], state),
    }
}

fn extend(segment: &Segment, zeros: u64, data: &[u8], state: BlockState) -> Result<()> {
    if segment.extend(zeros, data, state) {
        return Ok(());
    }
    Err(Error::new(ErrorKind::StoreFull, "growing a file that the kernel reads by itself", ""))
}
