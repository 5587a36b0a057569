//! What stores allow: how far a capacity can be moved by one decision, and how fast.

use tidepool_proto::control_page::WRITE_BACK_PRIOR_BYTES_PER_S;

use super::{Parameters, Snapshot, StoreState};

pub(super) const MILLISECOND_NS: u64 = 1_000_000;

/// What the stores allow.
pub(super) struct Bounds {
    /// Nothing can be taken below this now.
    pub floor: u64,
    /// Nothing may be held above this.
    pub max: u64,
    /// Bytes that must be written before they can go, or stay in any case.
    pub kept: u64,
    /// Bytes held.
    pub stored: u64,
    /// Bytes of commands under way, by the stores or by the last target.
    pub under_way: u64,
    /// Smallest unit of a capacity.
    pub block: u64,
    /// Growth ends this far below the target.
    pub band: u64,
}

impl Bounds {
    pub fn of(snapshot: &Snapshot, p: &Parameters, before: Option<u64>) -> Self {
        let blocks = || snapshot.stores.iter().map(|store| store.block_bytes.max(1));
        let max = snapshot.sum(|store| store.capacity_max_bytes);
        let floor = snapshot.sum(|store| reachable_bytes(store, p));
        let stored = snapshot.stored_bytes();
        let outstanding = snapshot.sum(|store| store.outstanding_bytes).min(stored);
        let commanded = before.map_or(0, |before| stored.saturating_sub(before));
        let largest = blocks().max().unwrap_or(1);
        let share = p.growth_band_share.max(0.0) * snapshot.memory_total_bytes as f64;
        Bounds {
            floor: floor.min(max),
            kept: snapshot.sum(StoreState::floor_bytes),
            max,
            stored,
            under_way: outstanding.max(commanded),
            block: blocks().min().unwrap_or(1),
            band: largest.saturating_mul(2).max(share as u64),
        }
    }
}

/// Bytes below which the next command cannot take a store: what must be written first goes step by
/// step.
pub(super) fn reachable_bytes(store: &StoreState, p: &Parameters) -> u64 {
    let spilled = (write_back_bytes_per_s(store) as f64 * action_s(p)) as u64;
    // At least a block: however slow the PFS is, each decision asks for something.
    let lead = spilled.max(store.block_bytes).min(store.memory_only_bytes);
    let bytes = store.floor_bytes() - lead.min(store.floor_bytes());
    bytes.max(store.capacity_min_bytes.min(store.capacity_max_bytes))
}

/// Rate at which memory-only bytes are written back, believed where none was measured; never 0.
fn write_back_bytes_per_s(store: &StoreState) -> u64 {
    match store.write_back_bytes_per_s {
        0 => WRITE_BACK_PRIOR_BYTES_PER_S,
        measured => measured,
    }
}

/// The same of all stores that have something to write back.
pub(super) fn unwritten_bytes_per_s(snapshot: &Snapshot) -> u64 {
    snapshot
        .sum(|store| if store.memory_only_bytes > 0 { write_back_bytes_per_s(store) } else { 0 })
}

/// Time from one decision to memory given back by the next.
pub(super) fn action_s(p: &Parameters) -> f64 {
    p.interval_ms.saturating_add(p.actuation_delay_ms) as f64 / 1e3
}

/// Growth of one decision. A pause of the controller is no reason to grow faster after it.
pub(super) fn step_bytes(dt_s: f64, p: &Parameters) -> u64 {
    (p.growth_bytes_per_s as f64 * dt_s.min(2.0 * p.interval_ms as f64 / 1e3)) as u64
}
