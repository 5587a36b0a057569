//! What operators and the controller ask a node, and what it answers.

pub mod admin;
pub mod buffer;
pub mod cluster;
pub mod control;
pub mod explanation;
pub mod files;
pub mod locality;
pub mod metric;
pub mod plane;
pub mod report;
pub mod trace;
