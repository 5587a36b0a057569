//! Memory control of a node: how many bytes its stores may hold, decided from a snapshot.
//!
//! Policies, their parameters, the split over several stores, the analysis of stability, and a
//! simulator with a virtual clock. Nothing here reads a clock, opens a file or starts a thread, so
//! the same snapshots give the same decisions in the live controller, in the simulator and in the
//! replay of a log. Bytes are whole numbers, times are nanoseconds since the controller's start.

mod decision;
mod dynims;
mod emergency;
mod estimate;
mod fixed;
mod headroom;
mod hold;
mod limits;
mod parameters;
mod policy;
mod snapshot;
mod split;
mod tidepool;

pub use decision::{Alarm, Decision, Level, Reason};
pub use headroom::headroom_bytes;
pub use parameters::{ControlPolicy, Parameters};
pub use policy::{Policy, policy};
pub use snapshot::{Limit, MemoryNode, Pressure, Snapshot, StoreSpeed, StoreState};
pub use split::split;
