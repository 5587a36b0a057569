//! A simulator of memory control with a virtual clock: a node as it behaves (plant), the demand of
//! its jobs (trace), a policy of `tidepool_control_policy`, and the figures in which policies are
//! compared (measures).
//!
//! The same trace and seed give the same run everywhere. Bytes are whole numbers, times are
//! nanoseconds since the start.

mod measures;
mod plant;
mod random;
mod simulate;
mod trace;

pub use measures::{Goal, Measures};
pub use plant::{
    Fault, FaultKind, LimitConfig, MemoryNodeConfig, Plant, PlantConfig, StoreConfig, Truth,
};
pub use simulate::{
    Absence, Decided, Observer, Run, Sample, Simulation, simulate, simulate_observed,
};
pub use trace::{Bursts, Storm, Trace, TracePoint};
