//! Tests of the controller: recorded machines, the live kernel, and a loop with made-up sensors and
//! stores.

mod machine;
mod sensors;
