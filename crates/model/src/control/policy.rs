//! One trait for all control policies.

use super::{ControlPolicy, Decision, Parameters, Snapshot};

/// A control law. Its state is in `self`; the same snapshots and parameters in the same order give
/// the same decisions. Parameters may differ from one call to the next.
pub trait Policy: Send {
    /// Decides how many bytes the stores may hold together.
    fn decide(&mut self, snapshot: &Snapshot, parameters: &Parameters) -> Decision;
}

/// A policy of the given kind without history.
pub fn policy(kind: ControlPolicy) -> Box<dyn Policy> {
    match kind {
        ControlPolicy::Static
        | ControlPolicy::Tidepool
        | ControlPolicy::Dynims
        | ControlPolicy::DynimsPrinted => Box::new(Fixed),
    }
}

/// The fixed size.
struct Fixed;

impl Policy for Fixed {
    fn decide(&mut self, snapshot: &Snapshot, _: &Parameters) -> Decision {
        Decision {
            target_bytes: snapshot.stores.iter().map(|store| store.capacity_max_bytes).sum(),
            demand_bytes: 0,
            slope_bytes_per_s: 0,
            reason: super::Reason::Fixed,
            level: super::Level::Normal,
            alarms: Vec::new(),
        }
    }
}
