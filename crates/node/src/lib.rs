//! The node daemon as a library: serving, filling, writing through, counting.
//!
//! [`Node`] implements the traits of `proto` for its front ends: the FUSE mount and the socket
//! [`server`]. It opens no file by name for a client and keeps no name space of its own.

mod admin;
pub mod block_buffers;
mod burst_buffer;
mod capacity_lease;
mod ceiling;
pub mod changes;
pub mod cluster;
pub mod core;
pub mod counters;
pub mod file;
pub mod fill;
pub mod fill_pool;
mod flush;
mod habits;
mod lease;
mod listing;
mod loads;
mod metadata_change;
mod node;
mod opening;
pub mod pins;
mod promise;
pub mod read_ahead;
pub mod server;
mod server_loads;
mod striping;
pub mod ticket;
mod tracer;

pub use capacity_lease::check_setting;
pub use node::Node;
