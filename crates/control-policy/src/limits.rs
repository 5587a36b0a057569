//! The upper limit of the stores: the lowest of the limits of the node, of the control groups that
//! hold store pages, and of every NUMA node. A job at a limit of its own is no reason to shrink. A
//! group that holds some of the stores and not others bounds those alone: see
//! [`super::GroupBounds`].

use super::bounds::Bounds;
use super::climb::Climb;
use super::estimate::{Estimate, signed};
use super::{MemoryNode, Reason, Snapshot};

/// Control groups whose demand is remembered from one decision to the next.
const REMEMBERED: usize = 8;

/// A bound of the stores and what sets it. Below zero where jobs want more than there is.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ceiling {
    pub bytes: i64,
    pub reason: Reason,
}

/// How far a growing demand is foreseen.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Foresight {
    /// Time by which the slope is.
    pub slope_s: f64,
    /// Growth of the last second, and the time by which that is; 0 where nothing must be written.
    pub climb_bytes_per_s: u64,
    pub climb_s: f64,
}

/// Computes the ceilings.
#[derive(Default)]
pub(super) struct Ceilings {
    demands: [Option<u64>; REMEMBERED],
    climbs: [Climb; REMEMBERED],
    /// The lowest ceiling of a control group; the largest number where there is none.
    pub limits_bytes: i64,
    /// A NUMA node has no room for growth.
    pub node_short: bool,
    /// Bytes that the fullest NUMA node with store pages has above its part of the headroom; the
    /// largest number where memory is uniform.
    pub node_room_bytes: i64,
}

impl Ceilings {
    /// The lowest ceiling.
    pub(super) fn lowest(
        &mut self,
        snapshot: &Snapshot,
        estimate: &Estimate,
        bounds: &Bounds,
        headroom: u64,
        foresight: Foresight,
        dt_s: f64,
    ) -> Ceiling {
        let total = snapshot.memory_total_bytes;
        // The headroom is there for surprises: a quarter of it serves what is foreseen, so that a
        // short burst does not evict for growth that ends.
        let ahead = (estimate.slope_bytes_per_s as f64 * foresight.slope_s) as i64;
        let ahead = ahead.max((foresight.climb_bytes_per_s as f64 * foresight.climb_s) as i64);
        let ahead = (ahead - signed(headroom) / 4).max(0);
        let demand = signed(estimate.demand_bytes);
        let node = signed(total) - signed(headroom) - demand;
        let follows = node - ahead < signed(bounds.stored) && node >= signed(bounds.stored);
        let reason = if follows { Reason::Slope } else { Reason::Demand };
        let mut lowest = Ceiling { bytes: node - ahead, reason };
        self.limits_bytes = self.limits(snapshot, headroom, ahead, foresight, dt_s);
        if self.limits_bytes < lowest.bytes {
            lowest = Ceiling { bytes: self.limits_bytes, reason: Reason::Limit };
        }
        let nodes = self.memory_nodes(snapshot, estimate, bounds, headroom);
        if nodes < lowest.bytes {
            lowest = Ceiling { bytes: nodes, reason: Reason::MemoryNode };
        }
        lowest
    }

    fn limits(&mut self, s: &Snapshot, headroom: u64, ahead: i64, f: Foresight, dt_s: f64) -> i64 {
        let mut lowest = i64::MAX;
        for (index, limit) in s.limits.iter().enumerate() {
            // A limit of some of the stores has bounded those already.
            if !limit.holds_store || !limit.charges_all(&s.stores) {
                continue;
            }
            let demand = limit.demand_bytes(&s.stores);
            let mut own_ahead = 0;
            if let Some(before) = self.demands.get_mut(index) {
                let rise = before.map_or(0, |before| demand.saturating_sub(before));
                *before = Some(demand);
                if rise > 0 && dt_s > 0.0 {
                    own_ahead = ((rise as f64 / dt_s * f.slope_s) as i64).min(ahead);
                }
            }
            if let Some(climb) = self.climbs.get_mut(index) {
                let climb = climb.update(s.at_ns, demand, limit.limit_bytes / 200);
                own_ahead = own_ahead.max(((climb as f64 * f.climb_s) as i64).min(ahead));
            }
            let headroom = headroom.min(limit.limit_bytes / 20);
            let ceiling = signed(limit.limit_bytes) - signed(headroom) - signed(demand);
            lowest = lowest.min(ceiling - own_ahead);
        }
        lowest
    }

    /// Stores cannot say which node they free, so what one node lacks is asked of all of them in
    /// the proportion in which they lie on it.
    fn memory_nodes(&mut self, s: &Snapshot, e: &Estimate, b: &Bounds, headroom: u64) -> i64 {
        self.node_short = false;
        self.node_room_bytes = i64::MAX;
        let mut lowest = i64::MAX;
        if s.memory_nodes.len() < 2 || s.memory_total_bytes == 0 {
            return lowest;
        }
        let on_nodes: u64 =
            s.memory_nodes.iter().fold(0, |sum: u64, node| sum.saturating_add(node.stored_bytes));
        let left = signed(b.stored.saturating_sub(b.under_way));
        for node in s.memory_nodes.iter().filter(|node| node.stored_bytes > 0) {
            let share = node.total_bytes as f64 / s.memory_total_bytes as f64;
            let part = node.stored_bytes as f64 / on_nodes as f64;
            let coming = b.under_way as f64 * part + e.hidden_bytes as f64 * share;
            let lacking = lacking(node, headroom as f64 * share, coming);
            self.node_short |= lacking + b.band as f64 * share > 0.0;
            self.node_room_bytes = self.node_room_bytes.min(-lacking as i64);
            if lacking > 0.0 {
                lowest = lowest.min(left - (lacking / part).min(1e17) as i64);
            }
        }
        lowest
    }
}

/// Bytes that a node lacks to its part of the headroom; below zero where it has more.
fn lacking(node: &MemoryNode, headroom: f64, coming: f64) -> f64 {
    headroom - node.available_bytes as f64 - coming
}
