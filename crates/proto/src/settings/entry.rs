//! One line of the effective configuration.

use serde::{Deserialize, Serialize};

/// One effective configuration value.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ConfigEntry {
    /// Name in the configuration file; the flag is the same with dashes.
    pub name: String,
    /// Effective value.
    pub value: String,
    /// Unit, or empty.
    pub unit: String,
    /// `default`, `file`, `environment` or `command line`.
    pub origin: String,
    /// One line of documentation.
    pub doc: String,
}
