//! Changes of a segment that the kernel reads by itself, for a passthrough open: it goes by the
//! length of the memory file alone, so bytes are there before the length says so, and no hole is
//! left where it would read zeros after somebody wrote there.
//!
//! Growth that finds no memory is refused. The caller then gives this content up, and who has it
//! open by passthrough stays at the old end (*left behind*), and follows changes before it.

use std::sync::Arc;

use tidepool_proto::table::BlockState;
use tidepool_proto::{Error, ErrorKind, Result};
use tidepool_store::Segment;

use super::capture::Written;
use super::content::Content;

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

/// A write through this node, for those left behind.
pub fn write_behind(content: &Content, offset: u64, data: &[u8]) {
    for segment in segments_behind(content) {
        let inside = segment.size().saturating_sub(offset).min(data.len() as u64);
        segment.write_resident(offset, &data[..inside as usize]);
    }
}

/// Zeros through this node, for those left behind.
pub fn zero_behind(content: &Content, offset: u64, length: u64) {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    for segment in segments_behind(content) {
        let end = segment.size().min(offset.saturating_add(length));
        let mut at = offset;
        while at < end {
            let piece = (end - at).min(ZEROS.len() as u64);
            segment.write_resident(at, &ZEROS[..piece as usize]);
            at += piece;
        }
    }
}

/// A length set through this node, for those left behind. They do not grow again: what comes
/// between is not theirs.
pub fn cut_behind(content: &Content, size: u64) {
    for segment in segments_behind(content) {
        if size < segment.size()
            && let Err(error) = segment.set_size(size)
        {
            tracing::error!(%error, "a file that the kernel reads by itself is not cut");
        }
    }
}

fn segments_behind(content: &Content) -> impl Iterator<Item = Arc<Segment>> {
    let behind = content.left_behind().into_iter();
    behind.filter_map(|content| content.segment().cloned())
}
