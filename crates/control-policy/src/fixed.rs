//! The fixed size: every store may hold its largest capacity. It reads no sensor and never reacts;
//! it is the baseline of a node without memory control.

use super::adaptive_interval::next_ms;
use super::{Decision, Level, Parameters, Policy, Reason, Snapshot};

/// The fixed size.
pub(super) struct Fixed;

impl Policy for Fixed {
    fn decide(&mut self, snapshot: &Snapshot, parameters: &Parameters) -> Decision {
        Decision {
            target_bytes: snapshot.sum(|store| store.capacity_max_bytes),
            demand_bytes: 0,
            slope_bytes_per_s: 0,
            reason: Reason::Fixed,
            level: Level::Normal,
            alarms: Vec::new(),
            next_ms: next_ms(u64::MAX, snapshot.processors, parameters),
        }
    }
}
