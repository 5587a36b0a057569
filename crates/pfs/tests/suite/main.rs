//! Tests of the lower level from outside: on real file systems, with faults, and of the suite that
//! users run on their own PFS. One binary, so that they share their support.

mod contract;
mod fault;
mod mounts;
mod posix;
mod support;
mod walk;
