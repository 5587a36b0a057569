//! Tests of the control law, the split and the checks: each branch by itself, and what holds for
//! any snapshot.

mod branches;
mod checks;
mod node;
mod properties;
mod sensors;
mod split;
