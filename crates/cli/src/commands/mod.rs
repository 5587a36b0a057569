//! One module a command. Each asks the node or the machine, prints, and says how it ended.

pub mod config;
pub mod control;
pub mod doctor;
pub mod explain;
pub mod files;
pub mod load;
pub mod metrics;
pub mod node;
pub mod start;
pub mod status;
pub mod store;
pub mod top;
pub mod trace;
