//! What is known of a file: version, stub, where its bytes are served from, how it is read; and the
//! traits by which front ends reach it.

pub mod habit;
pub mod level;
pub mod mounts;
pub mod residency;
pub mod service;
pub mod stub;
pub mod version;
