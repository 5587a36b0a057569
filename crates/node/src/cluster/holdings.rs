//! What this node announces that it holds. A block that came in is announced at once; once a second
//! all cached files are compared with what was announced, for what was evicted, written or
//! replaced. Between the two an announcement may be wrong, which costs another node a question.

use std::collections::HashMap;

use parking_lot::Mutex;
use tidepool_cluster::{FileKey, SharedVersion};
use tidepool_proto::table::BlockState;

use super::Cluster;
use super::shared::Shared;
use crate::core::Core;
use crate::file::cached_version::CachedVersion;

/// What was announced.
#[derive(Default)]
pub struct Holdings {
    announced: Mutex<HashMap<FileKey, Announced>>,
}

struct Announced {
    version: SharedVersion,
    blocks: Blocks,
}

/// A set of blocks, a bit each.
#[derive(Clone, Debug, Default, PartialEq)]
struct Blocks(Vec<u64>);

impl Blocks {
    fn insert(&mut self, block: u32) -> bool {
        let (word, bit) = (block as usize / 64, 1 << (block % 64));
        if self.0.len() <= word {
            self.0.resize(word + 1, 0);
        }
        let is_new = self.0[word] & bit == 0;
        self.0[word] |= bit;
        is_new
    }

    fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    /// Runs of blocks that are in this set and not in the other.
    fn runs_beyond(&self, other: &Blocks) -> Vec<(u32, u32)> {
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for (index, word) in self.0.iter().enumerate() {
            let mut left = word & !other.0.get(index).copied().unwrap_or(0);
            while left != 0 {
                let block = index as u32 * 64 + left.trailing_zeros();
                left &= left - 1;
                match runs.last_mut() {
                    Some((first, count)) if *first + *count == block => *count += 1,
                    _ => runs.push((block, 1)),
                }
            }
        }
        runs
    }
}

fn resident(cached: &CachedVersion) -> Blocks {
    let mut blocks = Blocks::default();
    if let Some(segment) = cached.segment() {
        for (block, state) in segment.resident_blocks() {
            if let (BlockState::Clean, Ok(block)) = (state, u32::try_from(block)) {
                blocks.insert(block);
            }
        }
    }
    blocks
}

impl Cluster {
    /// Announces a block that came in.
    pub fn note_filled(&self, core: &Core, cached: &CachedVersion, block: u64) {
        let (Some(shared), Ok(block)) = (Shared::of(core, cached), u32::try_from(block)) else {
            return;
        };
        let mut announced = self.holdings.announced.lock();
        let entry = announced
            .entry(shared.file)
            .or_insert(Announced { version: shared.version, blocks: Blocks::default() });
        if entry.version != shared.version {
            // The next comparison announces the rest of the new version.
            *entry = Announced { version: shared.version, blocks: Blocks::default() };
        }
        if entry.blocks.insert(block) {
            self.members.lock().hold(self.now(), shared.file, shared.version, block, 1);
            self.signal.raise();
        }
    }

    /// Compares what is held with what was announced.
    pub(super) fn announce_changes(&self, core: &Core) {
        let held = core.files.all().into_iter().filter_map(|file| {
            let cached = file.cached()?;
            let shared = Shared::of(core, &cached)?;
            let blocks = resident(&cached);
            (!blocks.is_empty()).then_some((shared, blocks))
        });
        let held: HashMap<FileKey, (SharedVersion, Blocks)> =
            held.map(|(shared, blocks)| (shared.file, (shared.version, blocks))).collect();
        let mut announced = self.holdings.announced.lock();
        let (mut members, now) = (self.members.lock(), self.now());
        announced.retain(|file, _| {
            let is_held = held.contains_key(file);
            if !is_held {
                members.release_file(now, *file);
            }
            is_held
        });
        for (file, (version, blocks)) in held {
            let nothing = || Announced { version, blocks: Blocks::default() };
            let entry = announced.entry(file).or_insert_with(nothing);
            if entry.version != version {
                members.release_file(now, file);
                *entry = nothing();
            }
            for (first, count) in blocks.runs_beyond(&entry.blocks) {
                members.hold(now, file, version, first, count);
            }
            for (first, count) in entry.blocks.runs_beyond(&blocks) {
                members.release(now, file, version, first, count);
            }
            entry.blocks = blocks;
        }
        drop(members);
        self.signal.raise();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_of_neighbours_that_the_other_set_lacks() {
        let set = |blocks: &[u32]| {
            let mut set = Blocks::default();
            blocks.iter().for_each(|block| _ = set.insert(*block));
            set
        };
        let held = set(&[0, 1, 2, 63, 64, 65, 200]);
        assert_eq!(held.runs_beyond(&set(&[1, 65])), [(0, 1), (2, 1), (63, 2), (200, 1)]);
        assert_eq!(set(&[5]).runs_beyond(&held), [(5, 1)]);
        assert!(held.runs_beyond(&held).is_empty() && set(&[]).is_empty() && !held.is_empty());
    }
}
