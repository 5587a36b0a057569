//! The commands, one module each. A command asks the node or the machine, prints the answer, and
//! returns its exit code.

pub mod config;
pub mod control;
pub mod doctor;
pub mod explain;
pub mod files;
pub mod load;
pub mod metrics;
pub mod node;
pub mod spread;
pub mod start;
pub mod status;
pub mod store;
pub mod top;
pub mod trace;
