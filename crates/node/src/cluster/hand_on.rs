//! `tidepool node drain --hand-on`: a node that is about to go has others bring in what it holds,
//! so that it is still in memory somewhere when the node is gone.
//!
//! What is hot goes first, as far as the time goes. Each block goes to the node that will own it
//! without this one, which opens the file with its own rights, like any that it is asked to bring
//! in, and takes the bytes from this node's memory.

use std::collections::BTreeSet;
use std::os::unix::ffi::OsStrExt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidepool_cluster::NodeName;
use tidepool_proto::admin::HandOnReport;
use tidepool_proto::table::BlockState;
use tidepool_proto::{Error, ErrorKind, Result};

use super::Cluster;
use super::shared::Shared;
use super::spread::Asked;
use crate::core::Core;
use crate::file::state::FileState;
use crate::node::Node;

/// Parts that are handed on at a time.
const AT_A_TIME: usize = 8;
/// Bytes of a part: what the time that is left is looked at between.
const PART_BYTES: u64 = 64 << 20;
/// Reasons that are told.
const ERRORS_MAX: usize = 8;
/// Longest wait for one part to be handed on.
const PART_LIMIT: Duration = Duration::from_secs(30);

/// A part of a file and who is to have it.
struct Part {
    heir: NodeName,
    asked: Asked,
    /// Place in the order of eviction, 1 is last.
    rank: f64,
}

/// Blocks in a row, cut into parts.
fn ranges(blocks: impl Iterator<Item = u64>, per_part: u64) -> Vec<(u64, u64)> {
    let mut ranges: Vec<(u64, u64)> = Vec::new();
    for block in blocks {
        match ranges.last_mut() {
            Some((first, count)) if *first + *count == block && block % per_part != 0 => {
                *count += 1
            }
            _ => ranges.push((block, 1)),
        }
    }
    ranges
}

/// The parts of a file that other nodes can take.
fn parts_of(core: &Core, cluster: &Cluster, file: &FileState) -> Vec<Part> {
    let (path, cached) = {
        let inner = file.inner.lock();
        (inner.opened_as.clone(), inner.cached.clone())
    };
    let Some(cached) = cached.filter(|_| !path.as_os_str().is_empty()) else { return Vec::new() };
    let (Some(shared), Some(segment)) = (Shared::of(core, &cached), cached.segment()) else {
        return Vec::new();
    };
    let (block_bytes, size) = (core.block_bytes(), cached.size());
    let clean = segment.resident_blocks().filter(|(_, state)| *state == BlockState::Clean);
    let rank = segment.rank().unwrap_or(0.0);
    let per_part = (PART_BYTES / block_bytes).max(1);
    let part = |(first, count): (u64, u64)| {
        let offset = first * block_bytes;
        let heir = cluster.members.lock().heir(shared.file, offset / PART_BYTES)?;
        let asked = Asked {
            path: path.as_os_str().as_bytes().to_vec(),
            file: shared.words(),
            user_id: cached.owner.user_id,
            offset,
            length: (count * block_bytes).min(size.saturating_sub(offset)),
            from_peers: true,
        };
        Some(Part { heir, asked, rank })
    };
    ranges(clean.map(|(block, _)| block), per_part).into_iter().filter_map(part).collect()
}

impl Node {
    /// Has other nodes bring in what this one holds, what is hot first, within a time.
    pub(crate) fn hand_on(
        &self,
        limit: Duration,
        go_on: &dyn Fn() -> bool,
    ) -> Result<HandOnReport> {
        let began = Instant::now();
        let cluster = self.core.cluster().ok_or_else(|| {
            Error::new(ErrorKind::InvalidInput, "handing on what is in memory", "")
                .remedy("this node stands alone: drain it without --hand-on")
        })?;
        let files = self.core.files.all();
        let mut parts: Vec<Part> =
            files.iter().flat_map(|file| parts_of(&self.core, cluster, file)).collect();
        parts.sort_by(|one, other| other.rank.total_cmp(&one.rank));
        let (next, ended) = (AtomicUsize::new(0), AtomicBool::new(false));
        let (done, errors) = (Mutex::new((0, 0)), Mutex::new(BTreeSet::new()));
        let work = || {
            while let Some(Part { heir, asked, .. }) =
                parts.get(next.fetch_add(1, Ordering::Relaxed))
            {
                let left = limit.saturating_sub(began.elapsed());
                if left.is_zero() || ended.load(Ordering::Relaxed) {
                    return;
                }
                let brought = cluster.have_brought_in(heir.as_str(), asked, left.min(PART_LIMIT));
                let resident_bytes = *brought.as_ref().unwrap_or(&0);
                let mut done = done.lock();
                *done = (done.0 + asked.length, done.1 + resident_bytes);
                drop(done);
                if let Err(why) = brought {
                    errors.lock().insert(format!("{heir}: {why}"));
                }
            }
        };
        std::thread::scope(|scope| {
            let working: Vec<_> = (0..AT_A_TIME).map(|_| scope.spawn(work)).collect();
            while working.iter().any(|thread| !thread.is_finished()) {
                ended.store(!go_on(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        crate::loads::check(go_on)?;
        let (asked_bytes, resident_bytes) = done.into_inner();
        Ok(HandOnReport {
            held_bytes: parts.iter().map(|part| part.asked.length).sum(),
            asked_bytes,
            resident_bytes,
            nodes: parts.iter().map(|part| &part.heir).collect::<BTreeSet<_>>().len() as u64,
            errors: errors.into_inner().into_iter().take(ERRORS_MAX).collect(),
            elapsed_ms: began.elapsed().as_millis() as u64,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_blocks_are_cut_into_parts() {
        let blocks = [0, 1, 2, 3, 4, 5, 9, 15, 16, 17];
        let cut = ranges(blocks.into_iter(), 4);
        assert_eq!(cut, [(0, 4), (4, 2), (9, 1), (15, 1), (16, 2)]);
        assert!(ranges(std::iter::empty(), 4).is_empty());
    }
}
