//! Versions left behind: the kernel goes on reading a segment by itself although this node
//! invalidated its version, because there was no memory for the file to grow, or a program set its
//! times. They follow what this node changes as long as no other program changes the file. Where
//! there is no memory they stay at their end, and catch up with the next change that finds some.

use std::sync::Arc;

use tidepool_pfs::LowerFile;
use tidepool_proto::table::BlockState;
use tidepool_store::Segment;

use super::cached_version::CachedVersion;
use super::gate::ExclusiveGate;

/// What is read from the PFS at once.
const PIECE_BYTES: u64 = 256 << 10;

/// Follows a write that the PFS has taken.
pub fn write(
    _gate: &ExclusiveGate<'_>,
    cached: &Arc<CachedVersion>,
    lower: &dyn LowerFile,
    offset: u64,
    data: &[u8],
) {
    for segment in segments(cached) {
        let inside = segment.size().saturating_sub(offset).min(data.len() as u64);
        segment.write_resident(offset, &data[..inside as usize]);
    }
    catch_up(cached, lower);
}

/// Follows a range that was made zeros on the PFS.
pub fn zero(
    _gate: &ExclusiveGate<'_>,
    cached: &Arc<CachedVersion>,
    lower: &dyn LowerFile,
    offset: u64,
    length: u64,
) {
    static ZEROS: [u8; 64 << 10] = [0; 64 << 10];
    for segment in segments(cached) {
        let end = segment.size().min(offset.saturating_add(length));
        let mut at = offset;
        while at < end {
            let piece = (end - at).min(ZEROS.len() as u64);
            segment.write_resident(at, &ZEROS[..piece as usize]);
            at += piece;
        }
    }
    catch_up(cached, lower);
}

/// Follows a length that was set on the PFS.
pub fn set_size(
    _gate: &ExclusiveGate<'_>,
    cached: &Arc<CachedVersion>,
    lower: &dyn LowerFile,
    size: u64,
) {
    for segment in segments(cached) {
        if size < segment.size()
            && let Err(error) = segment.set_size(size)
        {
            tracing::error!(%error, "a file that the kernel reads by itself is not cut");
        }
    }
    catch_up(cached, lower);
}

/// Grows them to the present end with what the PFS has, as far as there is memory.
fn catch_up(cached: &Arc<CachedVersion>, lower: &dyn LowerFile) {
    let now = cached.latest();
    if now.is_memory_only() {
        return;
    }
    for segment in segments(&now) {
        while segment.size() < now.size() && grow(&now, lower, &segment) {}
    }
}

/// Whether a piece was taken.
fn grow(now: &CachedVersion, lower: &dyn LowerFile, segment: &Segment) -> bool {
    let mut bytes = vec![0; (now.size() - segment.size()).min(PIECE_BYTES) as usize];
    let is_whole = lower.look_at(segment.size(), &mut bytes).is_ok_and(|read| read == bytes.len());
    let is_ours = || lower.version().is_ok_and(|version| version.agrees_with(&now.version()));
    is_whole && is_ours() && segment.extend(0, &bytes, BlockState::Clean)
}

fn segments(cached: &Arc<CachedVersion>) -> impl Iterator<Item = Arc<Segment>> {
    let behind = cached.latest().left_behind().into_iter();
    behind.filter_map(|cached| cached.segment().cloned())
}
