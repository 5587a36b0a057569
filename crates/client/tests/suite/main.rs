//! Tests of the client library with the real server over a node in miniature.

#[path = "../../../node/tests/server_suite/fake/mod.rs"]
#[expect(dead_code, reason = "tests of the server use more of it")]
mod fake;

mod death;
mod direct;
mod random;
mod reading;
mod scene;
mod whole;
mod writing;
