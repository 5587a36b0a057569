//! The node daemon as a library: serving, filling, writing through, counting.
//!
//! [`Node`] implements the traits of `proto` for its front ends: the FUSE mount and the socket
//! [`server`]. It opens no file by name for anybody and keeps no name space of its own.

mod admin;
mod carry;
pub mod changes;
pub mod core;
pub mod file;
pub mod fill;
mod governor;
mod habits;
mod lease;
pub mod ledger;
mod listing;
mod loads;
mod node;
mod opening;
pub mod pins;
mod promise;
pub mod read_ahead;
pub mod server;
mod striping;
mod tracer;
pub mod transient;

pub use governor::check_setting;
pub use node::Node;
