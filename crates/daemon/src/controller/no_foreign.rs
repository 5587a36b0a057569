//! The stand-in for `foreign` in a build without stores of other makers: refuses a file that names
//! some.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidepool_control::actuator::Actuator;
use tidepool_proto::{Error, ErrorKind, Result};

/// Refuses the file.
pub fn check(file: &Path) -> Result<()> {
    let operation = format!("governing the stores of {}", file.display());
    Err(Error::new(
        ErrorKind::Unsupported,
        operation,
        "this build governs Tidepool's own store alone",
    )
    .remedy("build with the feature `foreign-stores`, or leave `control_stores` out"))
}

/// Opens none.
pub fn open(file: Option<&Path>, _: Duration, notes: &mut Vec<String>) -> Vec<Arc<dyn Actuator>> {
    notes.extend(file.and_then(|file| check(file).err()).map(|error| error.to_string()));
    Vec::new()
}
