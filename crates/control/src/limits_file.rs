//! Limits that other stores had before control, in a file beside the lock: a controller that is
//! killed puts nothing back, so the next one reads here what to put back at its own end.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidepool_proto::{Error, ErrorKind, Result};

use crate::actuator::{Actuator, LimitBefore};

/// More than any node's stores take; a longer file is not ours.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// The stores whose limits are to be put back.
pub struct LimitsFile {
    path: PathBuf,
    stores: Vec<Arc<dyn Actuator>>,
}

impl LimitsFile {
    /// Tells `stores` what a controller that was killed had found, and writes down what they had
    /// before this one. Call it under the lock, before the first command.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` where the file cannot be written.
    pub fn begin(path: &Path, stores: &[Arc<dyn Actuator>]) -> Result<LimitsFile> {
        let left = read(path);
        for store in stores {
            if let Some(before) = left.get(store.name()) {
                store.adopt_limit(*before);
            }
        }
        let file = LimitsFile { path: path.to_owned(), stores: stores.to_vec() };
        file.write(|_| true)?;
        Ok(file)
    }

    /// Puts all limits back and forgets those that are. Answers what failed, one line a store.
    pub fn put_back(self) -> Vec<String> {
        let mut failed = BTreeMap::new();
        for store in &self.stores {
            if let Err(error) = store.put_back() {
                failed.insert(store.name(), format!("the limit of `{}`: {error}", store.name()));
            }
        }
        // What cannot be written now is read again by the next controller, which does no harm.
        let _ = self.write(|store| failed.contains_key(store.name()));
        failed.into_values().collect()
    }

    fn write(&self, wanted: impl Fn(&dyn Actuator) -> bool) -> Result<()> {
        let limits: BTreeMap<&str, LimitBefore> = (self.stores.iter())
            .filter(|store| wanted(&***store))
            .filter_map(|store| Some((store.name(), store.limit_before()?)))
            .collect();
        let written = if limits.is_empty() {
            match fs::remove_file(&self.path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                removed => removed,
            }
        } else {
            // Whole or not at all: half a file would be taken for none.
            let draft = self.path.with_extension("draft");
            serde_json::to_vec(&limits)
                .map_err(std::io::Error::from)
                .and_then(|text| fs::write(&draft, text))
                .and_then(|()| fs::rename(&draft, &self.path))
        };
        written.map_err(|error| {
            let operation = format!("writing {}", self.path.display());
            let detail = "the limits of other stores could not be put back after a crash";
            Error::new(ErrorKind::PermissionDenied, operation, detail)
                .caused_by(error)
                .remedy("let the controller's user write there")
        })
    }
}

/// What is left of a controller that was killed; nothing where the file makes no sense.
fn read(path: &Path) -> BTreeMap<String, LimitBefore> {
    let sane = fs::metadata(path).is_ok_and(|metadata| metadata.len() <= TEXT_BYTES_MAX);
    let text = if sane { fs::read(path).unwrap_or_default() } else { Vec::new() };
    serde_json::from_slice(&text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use parking_lot::Mutex;
    use tidepool_model::control::StoreState;

    use super::*;
    use crate::actuator::Resized;

    struct Server {
        before: Mutex<LimitBefore>,
        limit_bytes: Mutex<u64>,
        answers: bool,
    }

    impl Actuator for Server {
        fn name(&self) -> &str {
            "server"
        }

        fn state(&self) -> Result<StoreState> {
            Ok(StoreState::default())
        }

        fn resize(&self, capacity_bytes: u64, _: Duration) -> Result<Resized> {
            *self.limit_bytes.lock() = capacity_bytes;
            Ok(Resized::default())
        }

        fn limit_before(&self) -> Option<LimitBefore> {
            Some(*self.before.lock())
        }

        fn adopt_limit(&self, before: LimitBefore) {
            *self.before.lock() = before;
        }

        fn put_back(&self) -> Result<()> {
            if !self.answers {
                return Err(Error::new(ErrorKind::StoreUnavailable, "asking", "no answer"));
            }
            *self.limit_bytes.lock() = self.before.lock().limit_bytes;
            Ok(())
        }
    }

    fn server(limit_bytes: u64, answers: bool) -> Arc<Server> {
        let before = Mutex::new(LimitBefore { process_id: 7, limit_bytes });
        Arc::new(Server { before, limit_bytes: Mutex::new(limit_bytes), answers })
    }

    fn begin(path: &Path, server: &Arc<Server>) -> LimitsFile {
        LimitsFile::begin(path, &[server.clone() as Arc<dyn Actuator>]).unwrap()
    }

    #[test]
    fn the_next_controller_puts_back_what_a_killed_one_did_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limits");
        let killed = server(100, true);
        drop(begin(&path, &killed));
        killed.resize(20, Duration::ZERO).unwrap();
        let next = server(20, true);
        assert!(begin(&path, &next).put_back().is_empty());
        assert_eq!(*next.limit_bytes.lock(), 100);
        assert!(!path.exists(), "nothing is left to put back");
    }

    #[test]
    fn what_could_not_be_put_back_is_kept_and_said() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limits");
        let failed = begin(&path, &server(100, false)).put_back();
        assert!(failed.len() == 1 && failed[0].contains("`server`"), "{failed:?}");
        assert_eq!(read(&path)["server"].limit_bytes, 100);
        fs::write(&path, b"{\"server\": 1").unwrap();
        assert!(read(&path).is_empty(), "no sense, no limits");
    }
}
