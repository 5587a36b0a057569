//! Tests of the controller: recorded machines, the live kernel, and a loop with made-up sensors and
//! stores.

mod fakes;
mod governing;
mod group;
mod journal;
mod machine;
mod processes;
mod sensors;
mod skip;
