//! Gives the memory of evicted blocks back to the system. Large amounts go by several threads: the
//! kernel takes its time for each page, and frees one file at a time. Chooses no victims.

use std::num::NonZero;
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::thread;

use tidepool_proto::table::BlockState;

use crate::catalog::Victim;
use crate::cell::Cell;
use crate::engine::Engine;

/// Less than this is freed before another thread has begun.
const THREADED_BYTES_MIN: u64 = 64 << 20;
/// Most that one call frees of small pages, a millisecond's work: a thread that waits for the first
/// bytes sees them come, and not all at the end. Large pages go so fast that it does not matter.
const PIECE_BYTES: u64 = 4 << 20;
/// Two threads free twice as fast as one; what more than four would do was not measured, and the
/// job that wants the memory needs processors too.
const THREADS_MAX: usize = 4;

static THREADS: LazyLock<usize> =
    LazyLock::new(|| thread::available_parallelism().map_or(1, NonZero::get).min(THREADS_MAX));

impl Engine {
    /// Frees the memory of blocks that were made unreadable; returns bytes.
    pub fn free(&self, mut victims: Vec<Victim>) -> u64 {
        victims.sort_unstable_by_key(|victim| (victim.memory.id, victim.block));
        let wanted: u64 = victims.iter().map(|victim| victim.charge).sum();
        if wanted < THREADED_BYTES_MIN || *THREADS == 1 {
            return self.free_runs(&victims);
        }
        let files: Vec<&[Victim]> =
            victims.chunk_by(|one, next| one.memory.id == next.memory.id).collect();
        let (next, freed) = (AtomicUsize::new(0), AtomicU64::new(0));
        let work = || {
            while let Some(file) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                freed.fetch_add(self.free_runs(file), Ordering::Relaxed);
            }
        };
        thread::scope(|scope| {
            for _ in 1..files.len().min(*THREADS) {
                // Where no thread can be had, this one does all.
                let _ = thread::Builder::new().name("freeing".into()).spawn_scoped(scope, work);
            }
            work();
        });
        freed.into_inner()
    }

    /// Frees victims in the order of their places, adjacent ones by one call up to a piece.
    fn free_runs<'a>(&self, victims: &'a [Victim]) -> u64 {
        let adjacent = |one: &Victim, next: &Victim| {
            one.memory.id == next.memory.id && one.block + 1 == next.block
        };
        let piece_bytes = if self.backing.huge_pages() { u64::MAX } else { PIECE_BYTES };
        let pieces = |run: &'a [Victim]| {
            let blocks = piece_bytes / run[0].memory.block_bytes;
            run.chunks(usize::try_from(blocks).unwrap_or(usize::MAX).max(1))
        };
        let mut freed = 0;
        for run in victims.chunk_by(adjacent).flat_map(pieces) {
            let memory = &run[0].memory;
            let bytes = run.iter().map(|victim| victim.charge).sum();
            let start = run[0].block * memory.block_bytes;
            memory.file.punch(start, run.len() as u64 * memory.block_bytes);
            for victim in run {
                let cell = memory.cells.get(victim.block).expect("a victim has a cell");
                cell.word.finish_retract(BlockState::Absent);
            }
            if let Some(evicted) = &memory.evicted_packs {
                evicted.lock().extend(run.iter().map(|victim| victim.block as u32));
            }
            memory.remove_charge(bytes);
            self.budget.finish_freeing(bytes, run.len() as u64);
            freed += bytes;
        }
        freed
    }
}
