//! The process around a node: start in front or behind, logs, signals, metrics, stop.

mod assemble;
mod controller;
mod detach;
mod endpoint;
mod limits;
pub mod logging;
mod mount_point;
mod notify;
mod place;
mod reload;
mod root;
mod start;
mod summary;
mod supervisor;

pub use start::start;
