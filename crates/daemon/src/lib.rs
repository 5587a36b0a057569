//! The process around a node: reads the configuration, puts node, socket server, mount and metrics
//! together, keeps the memory controller running, and answers the command line for all of them.

mod assemble;
mod capacity;
pub mod controller;
mod endpoint;
mod limits;
mod logging;
pub mod machine;
mod mount_point;
mod notify;
pub mod place;
mod reload;
mod root;
pub mod settings;
mod sources;
mod summary;
mod supervisor;

pub use assemble::{Running, start, start_from};
pub use sources::Sources;
pub use summary::Summary;
