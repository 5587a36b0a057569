//! The life of a mount: configuration, mounting, worker threads, dispatch of requests, end.

mod config;
mod dispatch;
mod mount;
mod mounting;
mod stale;
mod workers;

pub use config::MountConfig;
pub use mount::{Mount, mount};
pub use mounting::mounted_device;
pub use stale::{is_stale, mount_around, places_for, recover_stale};

/// What errors of starting a mount name as their operation.
const OPERATION: &str = "mounting";
