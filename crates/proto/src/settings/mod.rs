//! Options of a node and of Hadoop: the table, what was set, and what it resolves to.

pub mod config;
pub mod entry;
pub mod hadoop;
pub mod mode;
pub mod option;
mod others;
pub mod resolve;
