//! The memory controller of a node: reads the sensors, asks a policy, resizes the stores.
//!
//! The policy itself is pure and lives in `tidepool_control_policy`. This crate brings it
//! snapshots and carries its decisions out, on Tidepool's own store and on others that it is
//! given. It never frees bytes that a store did not confirm, and never reads or writes a file of
//! the PFS.

pub mod actuator;
mod copy;
mod courier;
mod governor;
mod journal_file;
mod latency;
mod limits_file;
mod lock;
mod process;
pub mod regular_file;
mod report;
mod run;
pub mod sensor;
pub mod settings;
mod store;

pub use governor::{Governor, Record};
pub use journal_file::{JournalFile, JournalOptions};
pub use latency::Histogram;
pub use limits_file::{LimitsFile, limits_left};
pub use lock::{Holder, NodeLock, lock_holder};
pub use process::{prepare_process, survive_out_of_memory};
pub use report::{RecentDecision, Report, StoreReport};
pub use run::{Handle, Priority, start};
