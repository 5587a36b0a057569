//! How many mappings the node may have, and for how long. The kernel limits their number, the
//! address space is not endless, and what is mapped counts as memory of this process, by which the
//! out-of-memory killer chooses. Idle segments are unmapped and mapped again when they are read.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::backing;
use crate::segment_memory::SegmentMemory;

/// Share of the address space of a process that segments may take.
const ADDRESS_SPACE_BYTES_MAX: u64 = 64 << 40;
/// Idle segments looked at when a limit is reached.
const RECLAIM_BATCH: usize = 64;
/// Segments looked at in one round of [`Mappings::unmap_idle`], and bytes unmapped by it: some
/// milliseconds of work.
const ROUND_SEGMENTS: usize = 4096;
const ROUND_BYTES: u64 = 16 << 30;

/// Whether this process used a mapping since somebody asked last.
#[derive(Default)]
pub(crate) struct Used(AtomicBool);

impl Used {
    pub fn note(&self) {
        // Looked at first: readers on many processors share the line until somebody writes to it.
        if !self.0.load(Ordering::Relaxed) {
            self.0.store(true, Ordering::Relaxed);
        }
    }

    pub fn take(&self) -> bool {
        self.0.swap(false, Ordering::Relaxed)
    }
}

/// Which segments are mapped.
pub(crate) struct Mappings {
    count: AtomicUsize,
    count_max: usize,
    bytes: AtomicU64,
    mapped: Mutex<VecDeque<Weak<SegmentMemory>>>,
}

impl Mappings {
    /// Half of what the kernel allows: the rest is for the allocator, threads and libraries.
    pub fn new() -> Arc<Mappings> {
        Mappings::with_limit(backing::mappings_max() / 2)
    }

    pub fn with_limit(count_max: usize) -> Arc<Mappings> {
        Arc::new(Mappings {
            count: AtomicUsize::new(0),
            count_max,
            bytes: AtomicU64::new(0),
            mapped: Mutex::new(VecDeque::new()),
        })
    }

    /// Counts a new mapping; unmaps idle segments where that goes beyond a limit. The limits are
    /// soft: what is in use stays, and the kernel has the last word.
    pub fn added(&self, memory: Weak<SegmentMemory>, bytes: u64) {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        let mut mapped = self.mapped.lock();
        mapped.push_back(memory);
        // Segments that are gone leave their entry behind; sweep them before they are half of all.
        if mapped.len() > 2 * self.count.load(Ordering::Relaxed) + RECLAIM_BATCH {
            mapped.retain(|memory| memory.strong_count() > 0);
            let room = 2 * mapped.len();
            mapped.shrink_to(room);
        }
        if self.is_over_limit() {
            self.reclaim(&mut mapped);
        }
    }

    /// Unmaps segments that this process did not use since the round before. Their bytes stay where
    /// they are: kernel and clients read them as before.
    pub fn unmap_idle(&self) {
        let mut left = self.mapped.lock().len().min(ROUND_SEGMENTS);
        let before = self.bytes.load(Ordering::Relaxed);
        while left > 0 && before.saturating_sub(self.bytes.load(Ordering::Relaxed)) < ROUND_BYTES {
            left -= 1;
            // Not held while a segment is unmapped: others map theirs meanwhile.
            let Some(next) = self.mapped.lock().pop_front() else { return };
            let Some(memory) = next.upgrade() else { continue };
            if memory.used.take() || !memory.unmap_if_idle() {
                self.mapped.lock().push_back(next);
            }
        }
    }

    pub fn removed(&self, bytes: u64) {
        self.count.fetch_sub(1, Ordering::Relaxed);
        self.bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    #[cfg(test)]
    pub fn count(&self) -> usize {
        self.count.load(Ordering::Relaxed)
    }

    pub fn bookkeeping_bytes(&self) -> u64 {
        (self.mapped.lock().capacity() * size_of::<Weak<SegmentMemory>>()) as u64
    }

    fn is_over_limit(&self) -> bool {
        self.count.load(Ordering::Relaxed) > self.count_max
            || self.bytes.load(Ordering::Relaxed) > ADDRESS_SPACE_BYTES_MAX
    }

    fn reclaim(&self, mapped: &mut VecDeque<Weak<SegmentMemory>>) {
        for _ in 0..RECLAIM_BATCH.min(mapped.len()) {
            let Some(next) = mapped.pop_front() else { return };
            let Some(memory) = next.upgrade() else { continue };
            if !memory.unmap_if_idle() {
                mapped.push_back(next);
            }
        }
    }
}
