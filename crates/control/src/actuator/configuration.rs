//! What is configured of the stores to control, and how one is opened.
//!
//! A kind that is not known is refused with the list of those that are; so is a misspelt entry.

use serde::Deserialize;
use tidepool_proto::Result;

use super::Actuator;
use super::memcached::{Memcached, MemcachedConfiguration};

/// One store of this node, as an entry `kind = "..."` with the entries of that kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum StoreConfiguration {
    /// A memcached server.
    Memcached(MemcachedConfiguration),
}

/// Opens the store: connects to it, checks that it can be controlled, and begins to watch it.
///
/// # Errors
/// `InvalidInput` for entries without meaning and stores that could only lose writes,
/// `NodeUnavailable` for a server that is not there, `PermissionDenied` where it wants a password,
/// `Protocol` for answers of something else, `Unsupported` where its memory cannot be given back.
pub fn open(configuration: &StoreConfiguration) -> Result<Box<dyn Actuator>> {
    Ok(match configuration {
        StoreConfiguration::Memcached(configuration) => Box::new(Memcached::open(configuration)?),
    })
}
