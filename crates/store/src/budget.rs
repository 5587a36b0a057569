//! The account of memory: how much there may be, how much there is. Counters only.

use std::sync::atomic::{AtomicU64, Ordering};

/// Bytes of the store. Memory is reserved here before it is taken, and released after it is freed,
/// so that the memory held never exceeds what is booked.
pub(crate) struct Budget {
    capacity: AtomicU64,
    used: AtomicU64,
    peak: AtomicU64,
    held: AtomicU64,
    /// Selected for freeing but not free yet.
    freeing: AtomicU64,
    evicted_blocks: AtomicU64,
    held_share_max: f64,
}

impl Budget {
    pub fn new(capacity_bytes: u64, held_share_max: f64) -> Self {
        Budget {
            capacity: AtomicU64::new(capacity_bytes),
            used: AtomicU64::new(0),
            peak: AtomicU64::new(0),
            held: AtomicU64::new(0),
            freeing: AtomicU64::new(0),
            evicted_blocks: AtomicU64::new(0),
            held_share_max,
        }
    }

    pub fn capacity(&self) -> u64 {
        self.capacity.load(Ordering::Relaxed)
    }

    pub fn set_capacity(&self, bytes: u64) {
        self.capacity.store(bytes, Ordering::SeqCst);
    }

    pub fn used(&self) -> u64 {
        self.used.load(Ordering::SeqCst)
    }

    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    pub fn held(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    pub fn freeing(&self) -> u64 {
        self.freeing.load(Ordering::SeqCst)
    }

    pub fn evicted_blocks(&self) -> u64 {
        self.evicted_blocks.load(Ordering::Relaxed)
    }

    /// Bytes above the capacity.
    pub fn excess(&self) -> u64 {
        self.used().saturating_sub(self.capacity())
    }

    /// Books `bytes`, or tells how many are missing.
    pub fn reserve(&self, bytes: u64) -> Result<(), u64> {
        let mut used = self.used();
        loop {
            let after = used.saturating_add(bytes);
            let missing = after.saturating_sub(self.capacity.load(Ordering::SeqCst));
            if missing > 0 {
                return Err(missing);
            }
            match self.used.compare_exchange_weak(used, after, Ordering::SeqCst, Ordering::SeqCst) {
                Ok(_) => {
                    self.peak.fetch_max(after, Ordering::Relaxed);
                    return Ok(());
                }
                Err(seen) => used = seen,
            }
        }
    }

    /// Returns bytes whose memory is free.
    pub fn release(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::SeqCst);
        debug_assert!(before >= bytes, "released {bytes} of {before} bytes");
    }

    pub fn start_freeing(&self, bytes: u64) {
        self.freeing.fetch_add(bytes, Ordering::SeqCst);
    }

    pub fn finish_freeing(&self, bytes: u64, blocks: u64) {
        self.release(bytes);
        self.freeing.fetch_sub(bytes, Ordering::SeqCst);
        self.evicted_blocks.fetch_add(blocks, Ordering::Relaxed);
    }

    /// Books `bytes` as held, within the cap.
    pub fn hold(&self, bytes: u64) -> bool {
        let cap = (self.capacity() as f64 * self.held_share_max) as u64;
        self.held
            .fetch_update(Ordering::SeqCst, Ordering::SeqCst, |held| {
                held.checked_add(bytes).filter(|after| *after <= cap)
            })
            .is_ok()
    }

    pub fn unhold(&self, bytes: u64) {
        self.held.fetch_sub(bytes, Ordering::SeqCst);
    }
}
