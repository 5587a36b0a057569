//! Generated documents must be those that the present sources generate.

use std::path::Path;

use anyhow::Result;

use super::Finding;

/// Documents that differ from what is generated now.
pub fn stale(binary: &Path) -> Result<Vec<Finding>> {
    let stale = crate::documents::differences(binary)?;
    Ok(stale
        .iter()
        .map(|file| Finding::at(file, 0, "not what the sources generate; run `./x docs`"))
        .collect())
}
