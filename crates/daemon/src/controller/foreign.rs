//! Opens the stores of other makers that a configuration file names.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidepool_control::actuator::Actuator;
use tidepool_foreign_stores::{LateStore, Siblings, StoreConfiguration, read_stores};
use tidepool_proto::Result;
use tidepool_proto::control::NOT_GOVERNED;

/// Checks the file.
pub fn check(file: &Path) -> Result<()> {
    read_stores(file).map(drop)
}

/// Opens all stores of the file at once. One that is not there within `time` is looked for again
/// while the others, and Tidepool's own store first of all, are governed. What fails becomes a
/// note: Tidepool's own store must not stay ungoverned for it.
pub fn open(
    file: Option<&Path>,
    time: Duration,
    notes: &mut Vec<String>,
) -> Vec<Arc<dyn Actuator>> {
    let configured = configured(file, notes);
    let siblings = Siblings::default();
    let start = |configuration| match LateStore::start(configuration, &siblings) {
        Ok(store) => Some(store),
        Err(error) => {
            notes.push(format!("a store is {NOT_GOVERNED} {error}"));
            None
        }
    };
    let stores: Vec<LateStore> = configured.into_iter().filter_map(start).collect();
    let deadline = Instant::now() + time;
    stores.iter().for_each(|store| {
        store.wait_for_first_try(deadline);
    });
    stores.into_iter().map(|store| Arc::new(store) as Arc<dyn Actuator>).collect()
}

/// The stores of the file, which may have gone bad since the node was started.
fn configured(file: Option<&Path>, notes: &mut Vec<String>) -> Vec<StoreConfiguration> {
    let read = file.map(read_stores).transpose();
    read.unwrap_or_else(|error| {
        let note = format!("other stores are {NOT_GOVERNED} {error}");
        tracing::error!("{note}");
        notes.push(note);
        None
    })
    .unwrap_or_default()
}
