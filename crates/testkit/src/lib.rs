//! Tests of the whole product from outside: random operations against a reference model, stress,
//! hostile clients, bad input and crashes. For development only; nothing here is shipped.
//!
//! * [`model`]: the reference model, the operations, the driver and the actors (child processes).
//! * [`cluster`]: many nodes over one PFS directory, by random operations.
//! * [`product`]: a node under test, started through its command line.
//! * [`machine`]: what the tests need of the machine, and the reasons to skip where it is missing.
//! * [`memory_group`]: a control group with a limit of memory.
//! * [`raw`]: a client that may say anything on the socket.
//! * [`user`]: acting as somebody else.
//! * [`weak_pfs`]: a file system that counts what it is asked and misbehaves, to be the PFS.
//! * [`page`]: self-describing pages for tests with many writers at once.
//!
//! What each test holds, and how it was shown to fail, is in `docs/design/testing.md`.

pub mod buffer;
pub mod cluster;
pub mod machine;
pub mod memory_group;
pub mod model;
pub mod page;
pub mod product;
pub mod raw;
pub mod user;
pub mod weak_pfs;
