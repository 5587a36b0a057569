//! The memory controller: a process of its own (`run`), which the node keeps alive (`child`).

mod child;
#[cfg(feature = "foreign-stores")]
mod foreign;
#[cfg(not(feature = "foreign-stores"))]
mod no_foreign;
mod reporting;
mod run;

use std::path::Path;

use tidepool_proto::{NodeConfig, Result};

#[cfg(not(feature = "foreign-stores"))]
use no_foreign as foreign;

pub(crate) use child::Controller;
pub(crate) use run::lock_path;
pub(crate) use run::put_back_left;
pub use run::{ControllerOptions, limits_path, run};

/// Other stores whose limits the controller of the node at `socket` has not put back, and those
/// limits in bytes.
pub fn limits_left(socket: &Path) -> Vec<(String, u64)> {
    tidepool_control::limits_left(&limits_path(socket))
}

/// Checks the file of other stores, so that a mistake in it is told before anything runs.
///
/// # Errors
/// `InvalidInput` with the line, `Unsupported` where this build governs no other stores.
pub fn check_stores_file(config: &NodeConfig) -> Result<()> {
    config.control.stores_file.as_deref().map_or(Ok(()), foreign::check)
}
