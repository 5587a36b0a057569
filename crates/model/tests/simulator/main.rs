//! Tests of memory control through its public functions: scenarios in the simulator, properties
//! over random nodes, and logs of decisions.

mod journal;
mod properties;
mod scenarios;
mod support;
