//! Memory control of a node: how many bytes its stores may hold, decided from a snapshot.
//!
//! Policies, their parameters, the split over several stores, the analysis of stability, and a
//! simulator with a virtual clock. Nothing here reads a clock, opens a file or starts a thread, so
//! the same snapshots give the same decisions in the live controller, in the simulator and in the
//! replay of a log. Bytes are whole numbers, times are nanoseconds since the controller's start.

pub mod analysis;
mod asked;
mod check;
mod climb;
mod decision;
mod dynims;
mod emergency;
mod estimate;
mod fixed;
mod group_bounds;
mod headroom;
mod hold;
mod journal;
mod limits;
mod measures;
mod parameters;
mod plant;
mod policy;
mod random;
mod recommend;
mod rest;
mod simulate;
mod snapshot;
mod split;
mod tidepool;
mod trace;

pub use analysis::Behaviour;
pub use check::{NodeFacts, Warning};
pub use decision::{Alarm, Decision, Level, Reason};
pub use group_bounds::GroupBounds;
pub use headroom::headroom_bytes;
pub use journal::{Journal, JournalBytes, JournalEntry, JournalWriter, Mismatch, Replay};
pub use measures::{Goal, Measures};
pub use parameters::{ControlPolicy, Parameters};
pub use plant::{
    Fault, FaultKind, LimitConfig, MemoryNodeConfig, Plant, PlantConfig, StoreConfig, Truth,
};
pub use policy::{Policy, policy};
pub use recommend::{Reasoned, Recommendation, recommend};
pub use rest::{REST_MAX_MS, growth_max_bytes_per_s};
pub use simulate::{
    Absence, Decided, Observer, Run, Sample, Simulation, simulate, simulate_observed,
};
pub use snapshot::{Limit, MemoryNode, Pressure, Snapshot, StoreSpeed, StoreState};
pub use split::split;
pub use trace::{Bursts, Storm, Trace, TracePoint};
