//! [`Policy`]: the trait of all control policies, and their construction by name. A policy decides
//! sizes; it never asks a sensor, a clock or a store itself.

use super::dynims::Dynims;
use super::fixed::Fixed;
use super::tidepool::Tidepool;
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
        ControlPolicy::Tidepool => Box::new(Tidepool::default()),
        ControlPolicy::Dynims => Box::new(Dynims::corrected()),
        ControlPolicy::DynimsPrinted => Box::new(Dynims::printed()),
        ControlPolicy::Static => Box::new(Fixed),
    }
}
