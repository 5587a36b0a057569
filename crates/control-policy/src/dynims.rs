//! The control law of the DynIMS paper (dissertation, equation 4-1 and algorithm 4-1), the baseline
//! that the policy `tidepool` is measured against. Each call is one control interval. It knows used
//! memory alone: no slope, no hold, no limits, no held bytes.
//!
//! Two variants. The printed one keeps two faults of the published algorithm:
//! - its dead band tests `e >= 2 B` instead of `|e| >= 2 B`, so it never gives capacity back;
//! - it rounds the new capacity up by one block, toward the store, so it frees up to a block less
//!   than the policy asks, and nothing at all where the step is less than a block.
//!
//! The corrected one acts on `|e| >= 2 B` and rounds down to whole blocks, toward the job. What it
//! keeps belongs to the policy: it integrates its own last command, so unused capacity is wound
//! down before the first byte comes free, and it has no notion of what is under way.

use super::{Decision, Level, Parameters, Policy, Reason, Snapshot};

/// The policy of the paper.
pub(super) struct Dynims {
    /// Whether the faults of the printed algorithm are kept.
    printed: bool,
    /// Capacity in force, u in the paper; the first one is that of the stores.
    capacity_bytes: Option<u64>,
}

impl Dynims {
    /// The algorithm as printed.
    pub(super) fn printed() -> Self {
        Dynims { printed: true, capacity_bytes: None }
    }

    /// The policy with the faults of the algorithm corrected.
    pub(super) fn corrected() -> Self {
        Dynims { printed: false, capacity_bytes: None }
    }

    /// Equation 4-1 on a used memory of `used`, with dead band and rounding; `None` inside the
    /// dead band.
    fn next(
        &self,
        capacity: u64,
        used: u64,
        total: u64,
        block: u64,
        p: &Parameters,
    ) -> Option<u64> {
        let goal = p.used_share_target * total as f64;
        let error = used as f64 - goal;
        let weighed = if self.printed { error } else { error.abs() };
        if goal <= 0.0 || weighed < 2.0 * block as f64 {
            return None;
        }
        // v (r - r0) / r0 with r = v / M and V = r0 M is v (v - V) / V.
        let next = capacity as f64 - p.gain * used as f64 * error / goal;
        let blocks = (next.max(0.0) / block as f64).floor() as u64;
        let blocks = if self.printed && next >= 0.0 { blocks.saturating_add(1) } else { blocks };
        Some(blocks.saturating_mul(block))
    }
}

impl Policy for Dynims {
    fn decide(&mut self, snapshot: &Snapshot, parameters: &Parameters) -> Decision {
        let total = snapshot.memory_total_bytes;
        let max = snapshot.sum(|store| store.capacity_max_bytes);
        let min = snapshot.sum(|store| store.capacity_min_bytes).min(max);
        let block = snapshot.stores.iter().map(|store| store.block_bytes).max().unwrap_or(1).max(1);
        let present = snapshot.sum(|store| store.capacity_bytes);
        let capacity = self.capacity_bytes.unwrap_or(present).clamp(min, max);
        let used = snapshot.available_bytes.map(|available| total.saturating_sub(available));
        let next = used.and_then(|used| self.next(capacity, used, total, block, parameters));
        let target = next.unwrap_or(capacity).clamp(min, max);
        let moved = self.capacity_bytes.is_some_and(|before| before != target);
        self.capacity_bytes = Some(target);
        Decision {
            target_bytes: target,
            demand_bytes: used.map_or(0, |used| used.saturating_sub(snapshot.occupied_bytes())),
            slope_bytes_per_s: 0,
            reason: if moved || target != capacity { Reason::Law } else { Reason::Steady },
            level: Level::Normal,
            alarms: Vec::new(),
            // Its gain belongs to its interval.
            next_ms: parameters.interval_ms,
        }
    }
}
