//! The node daemon as a library: serving, filling, writing through, metrics.

pub mod server;
