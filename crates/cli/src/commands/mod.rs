//! One module a command. Each asks the node or the machine, prints, and says how it ended.

pub mod calibrate;
pub mod compare;
pub mod config;
pub mod control;
pub mod doctor;
pub mod explain;
pub mod files;
pub mod load;
pub mod metrics;
pub mod model;
pub mod mountain;
pub mod node;
pub mod plan;
pub mod status;
pub mod store;
pub mod top;
pub mod trace;
