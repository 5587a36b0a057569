//! Residency of a whole file as runs of neighbouring blocks in one state: what `explain` answers.
//!
//! A file has as many blocks as its length says, and a map as many runs as its memory is scattered:
//! runs are what a message can carry for a file of any length.

use serde::{Deserialize, Serialize};

use crate::table::BlockState;

/// Most runs of one map. With a byte for the state and seven for the blocks it fits a reply
/// ([`crate::wire::REPLY_BODY_BYTES_MAX`]); blocks of 4 MiB, each alone, exceed it from 512 GiB of
/// resident bytes in one file on.
pub const RESIDENCY_RUNS_MAX: usize = 1 << 18;

/// State of the blocks of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ResidencyState {
    /// The memory holds nothing.
    Absent,
    /// Equal to the PFS; may be evicted.
    Clean,
    /// A durable copy is owed.
    Dirty,
    /// Lives in memory only.
    MemoryOnly,
    /// The rest of a map of more runs than a message carries; some of it is resident.
    Unlisted,
}

impl ResidencyState {
    /// Whether the blocks are known to be in memory.
    pub fn is_resident(self) -> bool {
        matches!(self, ResidencyState::Clean | ResidencyState::Dirty | ResidencyState::MemoryOnly)
    }
}

impl From<BlockState> for ResidencyState {
    fn from(state: BlockState) -> Self {
        match state {
            BlockState::Absent => ResidencyState::Absent,
            BlockState::Clean => ResidencyState::Clean,
            BlockState::Dirty => ResidencyState::Dirty,
            BlockState::MemoryOnly => ResidencyState::MemoryOnly,
        }
    }
}

/// Neighbouring blocks in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ResidencyRun {
    /// State of each of them.
    pub state: ResidencyState,
    /// How many they are; the last block of a file may be short.
    pub blocks: u64,
}

/// The map of a file of `blocks` blocks. `resident` are those that are not absent, with their
/// states, in ascending order. The runs together have `blocks` blocks, and are `runs_max` at most.
pub fn residency_runs(
    blocks: u64,
    resident: impl IntoIterator<Item = (u64, BlockState)>,
    runs_max: usize,
) -> Vec<ResidencyRun> {
    let mut runs = Vec::new();
    let mut end = 0;
    let mut fits = true;
    for (block, state) in resident.into_iter().take_while(|(block, _)| *block < blocks) {
        fits = append(&mut runs, ResidencyState::Absent, block - end, runs_max)
            && append(&mut runs, state.into(), 1, runs_max);
        if !fits {
            break;
        }
        end = block + 1;
    }
    if !fits || !append(&mut runs, ResidencyState::Absent, blocks - end, runs_max) {
        runs.pop();
        let listed: u64 = runs.iter().map(|run| run.blocks).sum();
        runs.push(ResidencyRun { state: ResidencyState::Unlisted, blocks: blocks - listed });
    }
    runs
}

/// Appends blocks to the last run or as a new one. False: that would be one run too many.
fn append(
    runs: &mut Vec<ResidencyRun>,
    state: ResidencyState,
    blocks: u64,
    runs_max: usize,
) -> bool {
    if blocks == 0 {
        return true;
    }
    if let Some(last) = runs.last_mut().filter(|last| last.state == state) {
        last.blocks += blocks;
        return true;
    }
    let fits = runs.len() < runs_max;
    if fits {
        runs.push(ResidencyRun { state, blocks });
    }
    fits
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(blocks: u64, resident: &[(u64, BlockState)], runs_max: usize) -> String {
        let runs = residency_runs(blocks, resident.iter().copied(), runs_max);
        let word = |run: &ResidencyRun| format!("{}{:?}", run.blocks, run.state);
        runs.iter().map(word).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn neighbours_in_one_state_are_one_run_and_gaps_are_absent() {
        use BlockState::{Clean, Dirty, MemoryOnly};
        assert_eq!(words(0, &[], 9), "");
        assert_eq!(words(5, &[], 9), "5Absent");
        assert_eq!(words(3, &[(0, Clean), (1, Clean), (2, Clean)], 9), "3Clean");
        let scattered = [(1, Clean), (2, Dirty), (3, Dirty), (7, MemoryOnly)];
        assert_eq!(words(1 << 40, &scattered, 9).split(' ').count(), 6);
        assert_eq!(words(9, &scattered, 9), "1Absent 1Clean 2Dirty 3Absent 1MemoryOnly 1Absent");
        assert_eq!(words(2, &[(1, Clean), (5, Clean)], 9), "1Absent 1Clean", "beyond the end");
    }

    #[test]
    fn a_map_of_too_many_runs_says_how_much_it_leaves_out() {
        let every_other: Vec<_> = (0..50).map(|it| (2 * it + 1, BlockState::Clean)).collect();
        for runs_max in 1..=100 {
            let runs = residency_runs(100, every_other.iter().copied(), runs_max);
            assert_eq!(runs.len(), runs_max);
            assert_eq!(runs.iter().map(|run| run.blocks).sum::<u64>(), 100, "{runs_max}");
            let cut = runs.iter().any(|run| run.state == ResidencyState::Unlisted);
            assert_eq!(cut, runs_max < 100, "{runs_max}");
        }
        // The last absent blocks alone are too many.
        assert_eq!(words(3, &[(0, BlockState::Clean), (1, BlockState::Clean)], 1), "3Unlisted");
    }

    #[test]
    fn the_longest_map_fits_a_message() {
        let run = ResidencyRun { state: ResidencyState::MemoryOnly, blocks: u64::MAX >> 15 };
        let bytes = postcard::to_allocvec(&run).unwrap().len() * RESIDENCY_RUNS_MAX;
        assert!(bytes <= crate::wire::REPLY_BODY_BYTES_MAX as usize / 2, "{bytes}");
    }
}
