//! The life of a mount: configuration, mounting, worker threads, dispatch of requests, end.

mod config;
mod dead_mount;
mod dispatch;
mod mount;
mod mounting;
mod workers;

pub use config::MountConfig;
pub use dead_mount::{is_stale, mount_around, places_for, recover_stale};
pub use mount::{Mount, mount};
pub use mounting::mounted_device;

/// What errors of starting a mount name as their operation.
const OPERATION: &str = "mounting";
