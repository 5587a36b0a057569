//! Leased ceilings of the store: how they come, end, and reach the control page, in which the
//! controller sees them as the most that it may give.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tidepool_proto::control::{CeilingLease, CeilingLeased, LeasedCeiling, OWN_STORE};
use tidepool_proto::control_page::{ControlPage, LeaseState};
use tidepool_proto::{ByteSize, Result};

use super::{CapacityLease, State};

impl CapacityLease {
    /// Holds a store below a ceiling for the time of its lease. What Tidepool's own store has
    /// beyond it is evicted before this returns; growth, and other stores, are up to the
    /// controller.
    ///
    /// # Errors
    ///
    /// `InvalidInput` for what [`CeilingLease::check`] refuses and for stores that no controller
    /// governs, `LimitReached` where there is no
    /// thread to watch over the lease.
    pub fn lease_ceiling(self: &Arc<Self>, request: &CeilingLease) -> Result<CeilingLeased> {
        request.check()?;
        if request.store != OWN_STORE {
            return self.lease_other(request);
        }
        // First: a lease that nobody watches would never run out.
        self.start_watchdog()?;
        let page = self.page();
        let mut state = self.shared.state.lock();
        let before = state.ceiling.leased().map(|leased| leased.asked_bytes);
        let lease = Duration::from_millis(request.lease_ms);
        let asked_bytes = request.ceiling_bytes;
        state.ceiling.lease(asked_bytes, lease, &request.source, Instant::now());
        let ceiling_bytes = state.keep_bounds(page);
        let (was_bytes, capacity_bytes) = self.keep_below(&state, ceiling_bytes);
        drop(state);
        self.shared.changed.notify_all();
        if before.is_none() {
            let (ceiling, source) = (ByteSize(ceiling_bytes), &request.source);
            tracing::info!(%ceiling, source, "a ceiling of the store is leased");
        }
        if capacity_bytes != was_bytes {
            self.follow();
        }
        if capacity_bytes < was_bytes {
            self.store.settle();
        }
        Ok(CeilingLeased { ceiling_bytes, capacity_bytes, repeated: before == Some(asked_bytes) })
    }

    /// The lease of a ceiling is over: the configured most holds again.
    pub(super) fn end_ceiling(&self, state: &mut State) {
        let ceiling_bytes = state.keep_bounds(self.page());
        self.keep_below(state, ceiling_bytes);
        let ceiling = ByteSize(ceiling_bytes);
        tracing::info!(%ceiling, "the lease of a ceiling is over: the store is within its own");
    }

    /// Sets the capacity below a ceiling: to it where nobody governs, and as it was, if that is
    /// less, where a controller does or fell silent. Returns the capacities before and after.
    pub(super) fn keep_below(&self, state: &State, ceiling_bytes: u64) -> (u64, u64) {
        let was_bytes = self.page().capacity_bytes.load(Ordering::Relaxed);
        let capacity_bytes = match state.lease.state() {
            LeaseState::Governed | LeaseState::Expired => was_bytes.min(ceiling_bytes),
            LeaseState::Never | LeaseState::Released => ceiling_bytes,
        };
        if capacity_bytes != was_bytes {
            self.store.set_capacity(capacity_bytes);
        }
        (was_bytes, capacity_bytes)
    }
}

impl State {
    /// Tells the controller of the most and of the guaranteed part, which is never more. Returns
    /// the most.
    pub(super) fn keep_bounds(&self, page: &ControlPage) -> u64 {
        // A store without a guaranteed part keeps a block: no ceiling makes it none at all. What is
        // pinned cannot go, and would only keep the rest out.
        let block_bytes = page.block_bytes.load(Ordering::Relaxed);
        let held_bytes = page.held_bytes.load(Ordering::Relaxed);
        let least = self.memory_min_bytes.max(block_bytes).max(held_bytes);
        let most = self.ceiling.in_force_bytes(least);
        page.capacity_configured_bytes.store(self.ceiling.configured_bytes(), Ordering::Relaxed);
        page.capacity_max_bytes.store(most, Ordering::Relaxed);
        page.capacity_min_bytes.store(self.memory_min_bytes.min(most), Ordering::Relaxed);
        most
    }

    pub(super) fn leased_ceiling(&self, page: &ControlPage, now: Instant) -> Option<LeasedCeiling> {
        let leased = self.ceiling.leased()?;
        let left = leased.until.saturating_duration_since(now);
        Some(LeasedCeiling {
            ceiling_bytes: page.capacity_max_bytes.load(Ordering::Relaxed),
            asked_bytes: leased.asked_bytes,
            left_ms: u64::try_from(left.as_millis()).unwrap_or(u64::MAX),
            source: leased.source.clone(),
        })
    }
}
