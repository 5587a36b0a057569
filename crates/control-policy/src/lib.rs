//! Memory control of a node: how many bytes its stores may hold, decided from a snapshot.
//!
//! Policies, their parameters, the split over several stores, the log of decisions, and the
//! analysis of stability. Nothing here reads a clock, opens a file or starts a thread, so the same
//! snapshots give the same decisions in the live controller, in the simulator of `tidepool-model`
//! and in the replay of a log. Bytes are whole numbers, times are nanoseconds since the
//! controller's start.

mod adaptive_interval;
pub mod analysis;
mod asked;
mod bounds;
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
mod parameters;
mod policy;
mod snapshot;
mod split;
mod tidepool;

pub use adaptive_interval::{INTERVAL_MAX_MS, growth_max_bytes_per_s};
pub use analysis::Behaviour;
pub use check::{NodeFacts, Warning};
pub use decision::{Alarm, Decision, Level, Reason};
pub use group_bounds::GroupBounds;
pub use headroom::headroom_bytes;
pub use journal::{Journal, JournalBytes, JournalEntry, JournalWriter, Mismatch, Replay};
pub use parameters::{ControlPolicy, Parameters};
pub use policy::{Policy, policy};
pub use snapshot::{Limit, MemoryNode, Pressure, Snapshot, StoreSpeed, StoreState};
pub use split::split;
