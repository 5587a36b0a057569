//! Tests of the controller: recorded machines, the live kernel, and a loop with made-up sensors and
//! stores.

mod fakes;
mod governing;
mod machine;
mod sensors;
