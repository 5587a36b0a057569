//! The file of the limits that other stores had before control, beside the lock. A controller that
//! is killed puts nothing back, so the next one reads here what to put back. The file also has the
//! limits that the control set; any other was set by an administrator. Limits that could not be put
//! back stay in it. A store that was given another name meanwhile is known by its place.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tidepool_proto::{Error, ErrorKind, Result};

use crate::actuator::{Actuator, LimitBefore};
use crate::regular_file::read_text;

/// By the name of the store.
type Limits = BTreeMap<String, Entry>;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Entry {
    #[serde(flatten)]
    before: LimitBefore,
    /// See [`Actuator::place`].
    #[serde(default)]
    place: String,
}

/// The stores whose limits are to be put back.
pub struct LimitsFile {
    book: Arc<Book>,
    stores: Vec<Arc<dyn Actuator>>,
}

struct Book {
    path: PathBuf,
    limits: Mutex<Limits>,
}

impl LimitsFile {
    /// Tells `stores` what a controller that was killed had found, and records from now on what
    /// they had before and what they are set to. While that cannot be written, no limit is set but
    /// the one that was there before. Call it under the lock, before the first command.
    pub fn begin(path: &Path, stores: &[Arc<dyn Actuator>]) -> LimitsFile {
        let mut left = read(path);
        rename(&mut left, stores);
        let limits = Mutex::new(left.clone());
        let book = Arc::new(Book { path: path.to_owned(), limits });
        for store in stores {
            let theirs = Arc::downgrade(&book);
            let (name, place) = (store.name().to_owned(), store.place());
            store.on_limit(Box::new(move |before| {
                theirs.upgrade().map_or(Ok(()), |book| book.note(&name, &place, before))
            }));
            if let Some(entry) = left.get(store.name()) {
                store.adopt_limit(entry.before.clone());
            }
        }
        LimitsFile { book, stores: stores.to_vec() }
    }

    /// Stores that the control has set a limit of and that are none of its stores any more, with
    /// the limit that each had before.
    pub fn orphans(&self) -> Vec<(String, u64)> {
        let known = |name: &str| self.stores.iter().any(|store| store.name() == name);
        let limits = self.book.limits.lock();
        let left = limits.iter().filter(|(name, entry)| !known(name) && is_there(&entry.before));
        left.map(|(name, entry)| (name.clone(), entry.before.limit_bytes)).collect()
    }

    /// Whether the file can be written now.
    ///
    /// # Errors
    ///
    /// `PermissionDenied` where it cannot.
    pub fn try_out(&self) -> Result<()> {
        if self.stores.is_empty() { Ok(()) } else { self.book.try_out() }
    }

    /// Puts all limits back, all at once: one server that hangs takes no time from the others.
    /// Answers what failed, one line a store; the file keeps those.
    pub fn put_back(self) -> Vec<String> {
        let back: Vec<(&str, Result<()>)> = std::thread::scope(|scope| {
            let begun = self.stores.iter().map(|store| {
                let put_back = || store.put_back();
                let thread = std::thread::Builder::new().spawn_scoped(scope, put_back);
                (store, thread)
            });
            let begun: Vec<_> = begun.collect();
            begun
                .into_iter()
                .map(|(store, thread)| match thread.map(|thread| thread.join()) {
                    Ok(Ok(done)) => (store.name(), done),
                    // Without a thread, one after the other.
                    _ => (store.name(), store.put_back()),
                })
                .collect()
        });
        let kept = self.book.limits.lock().clone();
        let mut failed: Vec<String> = back
            .iter()
            .filter_map(|(name, done)| Some((name, done.as_ref().err()?)))
            .filter(|(name, _)| kept.contains_key(**name))
            .map(|(name, error)| format!("the limit of `{name}`: {error}"))
            .collect();
        let known = |name: &str| back.iter().any(|(known, _)| *known == name);
        let unknown = kept.iter().filter(|(name, entry)| !known(name) && is_there(&entry.before));
        failed.extend(unknown.map(|(name, _)| {
            format!("the limit of `{name}`: no store of that name is among those to control")
        }));
        failed
    }
}

/// Stores whose limits were not put back, with the limit that each had before, by the file at
/// `path`. A server that has ended is none of them.
pub fn limits_left(path: &Path) -> Vec<(String, u64)> {
    let left = read(path).into_iter().filter(|(_, entry)| is_there(&entry.before));
    left.map(|(name, entry)| (name, entry.before.limit_bytes)).collect()
}

/// Whether the server still runs; one that is no process of this node always does.
fn is_there(before: &LimitBefore) -> bool {
    before.process_id == 0 || Path::new(&format!("/proc/{}", before.process_id)).exists()
}

impl Book {
    /// Where this fails the file and what is known of it stay as they were.
    fn note(&self, name: &str, place: &str, before: &LimitBefore) -> Result<()> {
        let mut limits = self.limits.lock();
        let known = limits.get(name).map(|entry| &entry.before);
        let is_set = !before.set_bytes.is_empty();
        if known == Some(before) || known.is_none() && !is_set {
            return Ok(());
        }
        // What was there before must outlive the machine; what was set need not: the next write
        // is a moment away, and a disk is slow where memory is short.
        let lasts = known.is_none_or(|known| {
            (known.limit_bytes, known.process_id) != (before.limit_bytes, before.process_id)
        });
        let mut changed = limits.clone();
        match is_set {
            true => changed
                .insert(name.to_owned(), Entry { before: before.clone(), place: place.to_owned() }),
            false => changed.remove(name),
        };
        let written = self.write(&changed, lasts);
        // What is put back must not be told as left.
        if written.is_ok() || !is_set {
            *limits = changed;
        }
        written
    }

    /// Whether the file can be written at all.
    fn try_out(&self) -> Result<()> {
        let limits = self.limits.lock();
        let draft = self.draft();
        File::create(&draft).and_then(|_| fs::remove_file(&draft)).map_err(|e| self.failed(e))?;
        self.write(&limits, true)
    }

    fn draft(&self) -> PathBuf {
        self.path.with_extension("draft")
    }

    fn write(&self, limits: &Limits, lasts: bool) -> Result<()> {
        let written = if limits.is_empty() {
            match fs::remove_file(&self.path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(()),
                removed => removed,
            }
        } else {
            self.replace(limits, lasts)
        };
        written.map_err(|error| self.failed(error))
    }

    /// Whole or not at all: half a file would be taken for none.
    fn replace(&self, limits: &Limits, lasts: bool) -> std::io::Result<()> {
        let text = serde_json::to_vec(limits)?;
        let draft = self.draft();
        let mut file = File::create(&draft)?;
        file.write_all(&text)?;
        if lasts {
            file.sync_all()?;
        }
        fs::rename(&draft, &self.path)
    }

    fn failed(&self, error: std::io::Error) -> Error {
        let operation = format!("writing {}", self.path.display());
        let detail =
            "the limits of other stores could not be put back after a crash, so none is set";
        Error::new(ErrorKind::PermissionDenied, operation, detail)
            .caused_by(error)
            .remedy("make room there, and let the controller's user write")
    }
}

/// Gives entries to the stores at their places, whatever these are called now, and only then those
/// that are left to stores of their names. Those of no store stay, under a name that none has.
fn rename(limits: &mut Limits, stores: &[Arc<dyn Actuator>]) {
    let mut left = std::mem::take(limits);
    for store in stores {
        let place = store.place();
        let mut there = left.iter().filter(|(_, entry)| !place.is_empty() && entry.place == place);
        if let Some((name, _)) = there.next() {
            let name = name.clone();
            let entry = left.remove(&name);
            limits.extend(entry.map(|entry| (store.name().to_owned(), entry)));
        }
    }
    for (name, entry) in left {
        // A store of this name at another place is another server, unless its process is the same.
        let is_other = stores.iter().any(|store| {
            let (place, now) = (store.place(), store.limit_before());
            let is_same = now.is_some_and(|now| now.process_id == entry.before.process_id);
            let moved = !place.is_empty() && !entry.place.is_empty() && place != entry.place;
            store.name() == name && moved && (entry.before.process_id == 0 || !is_same)
        });
        let is_taken = is_other || limits.contains_key(&name);
        limits.insert(if is_taken { format!("{name} ({})", entry.place) } else { name }, entry);
    }
}

/// What is left of a controller that was killed; nothing where the file makes no sense.
fn read(path: &Path) -> Limits {
    let text = read_text(path).unwrap_or_default();
    serde_json::from_str(&text).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tidepool_control_policy::StoreState;

    use super::*;
    use crate::actuator::{LimitWitness, Resized};

    #[derive(Default)]
    struct Server {
        name: &'static str,
        place: &'static str,
        before: Mutex<LimitBefore>,
        limit_bytes: Mutex<u64>,
        witness: Mutex<Option<LimitWitness>>,
        hangs: bool,
    }

    impl Server {
        fn tell(&self) {
            if let Some(witness) = &*self.witness.lock() {
                witness(&self.before.lock()).unwrap();
            }
        }
    }

    impl Actuator for Server {
        fn name(&self) -> &str {
            self.name
        }

        fn place(&self) -> String {
            self.place.to_owned()
        }

        fn state(&self) -> Result<StoreState> {
            Ok(StoreState::default())
        }

        fn resize(&self, capacity_bytes: u64, _: Duration) -> Result<Resized> {
            self.before.lock().set_bytes = vec![capacity_bytes];
            self.tell();
            *self.limit_bytes.lock() = capacity_bytes;
            Ok(Resized::default())
        }

        fn adopt_limit(&self, left: LimitBefore) {
            *self.before.lock() = left;
        }

        fn on_limit(&self, witness: LimitWitness) {
            *self.witness.lock() = Some(witness);
        }

        fn put_back(&self) -> Result<()> {
            if self.hangs {
                return Err(Error::new(ErrorKind::StoreUnavailable, "asking", "no answer"));
            }
            *self.limit_bytes.lock() = self.before.lock().limit_bytes;
            self.before.lock().set_bytes.clear();
            self.tell();
            Ok(())
        }
    }

    fn server(name: &'static str, limit_bytes: u64, hangs: bool) -> Arc<Server> {
        // Of a process that runs.
        let process_id = std::process::id();
        let before = LimitBefore { process_id, limit_bytes, set_bytes: Vec::new() };
        let (before, limit_bytes) = (Mutex::new(before), Mutex::new(limit_bytes));
        Arc::new(Server { name, before, limit_bytes, hangs, ..Server::default() })
    }

    fn begin(path: &Path, servers: &[&Arc<Server>]) -> LimitsFile {
        let stores: Vec<Arc<dyn Actuator>> =
            servers.iter().map(|server| (*server).clone() as Arc<dyn Actuator>).collect();
        LimitsFile::begin(path, &stores)
    }

    #[test]
    fn the_next_controller_puts_back_what_a_killed_one_did_not() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limits");
        let killed = server("a", 100, false);
        let file = begin(&path, &[&killed]);
        assert!(!path.exists(), "nothing is set, and nothing to put back");
        killed.resize(20, Duration::ZERO).unwrap();
        assert_eq!(read(&path)["a"].before.set_bytes, [20]);
        killed.before.lock().limit_bytes = 300;
        killed.resize(30, Duration::ZERO).unwrap();
        assert_eq!(read(&path)["a"].before.limit_bytes, 300, "written again when it changes");
        drop(file);
        let next = server("a", 30, false);
        assert!(begin(&path, &[&next]).put_back().is_empty());
        assert_eq!(*next.limit_bytes.lock(), 300);
        assert!(!path.exists(), "nothing is left to put back");
    }

    #[test]
    fn a_store_with_another_name_gets_its_own_limit_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limits");
        let at = |name, place, limit_bytes| {
            let server = Arc::into_inner(server(name, limit_bytes, false)).unwrap();
            Arc::new(Server { place, ..server })
        };
        let killed = [at("a", "here", 100), at("b", "there", 200)];
        let file = begin(&path, &[&killed[0], &killed[1]]);
        killed.iter().for_each(|server| _ = server.resize(20, Duration::ZERO).unwrap());
        drop(file);
        // `a` goes by another name, and then by that of the other one, which has its.
        for names in [["c", "b"], ["b", "a"]] {
            let text = fs::read_to_string(&path).unwrap();
            let next = [at(names[0], "here", 20), at(names[1], "there", 20)];
            assert!(begin(&path, &[&next[0], &next[1]]).put_back().is_empty());
            assert_eq!(next.each_ref().map(|server| *server.limit_bytes.lock()), [100, 200]);
            assert!(!path.exists(), "nothing is left under the old name");
            fs::write(&path, text).unwrap();
        }
    }

    #[test]
    fn a_store_that_is_controlled_no_more_is_told() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limits");
        let killed = [("a", "gone", 400), ("b", "here", 100)];
        let entry = |(name, place, limit_bytes)| {
            let process_id = std::process::id();
            let before = LimitBefore { process_id, limit_bytes, set_bytes: vec![20] };
            (String::from(name), Entry { before, place: String::from(place) })
        };
        let text = serde_json::to_string(&Limits::from(killed.map(entry))).unwrap();
        // Under its name there may be another server, whose own limit was noted or not.
        for (name, place, told) in [
            ("b", "here", "a"),
            ("c", "here", "a"),
            ("a", "here", "a (gone)"),
            ("a", "new", "a (gone)"),
        ] {
            fs::write(&path, &text).unwrap();
            let server = Arc::into_inner(server(name, 20, false)).unwrap();
            let it = Arc::new(Server { place, ..server });
            let file = begin(&path, &[&it]);
            it.resize(30, Duration::ZERO).unwrap();
            assert!(file.orphans().contains(&(told.to_owned(), 400)), "{name} at {place}");
            assert!(!file.put_back().is_empty(), "{name} at {place}");
            let had = if place == "here" { 100 } else { 20 };
            assert_eq!(*it.limit_bytes.lock(), had, "{name} at {place}");
        }
    }

    #[test]
    fn a_limit_that_is_no_processs_is_left_until_it_is_put_back() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limits");
        for (process_id, is_left) in [(0, true), (u32::MAX, false)] {
            let text = format!(
                "{{\"warm\": {{\"process_id\": {process_id}, \"limit_bytes\": 400, \
                 \"set_bytes\": [3]}}}}"
            );
            fs::write(&path, text).unwrap();
            assert_eq!(!limits_left(&path).is_empty(), is_left);
        }
    }

    #[test]
    fn what_cannot_be_written_down_is_said_and_nothing_else_is_forgotten() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("below").join("limits");
        fs::create_dir(path.parent().unwrap()).unwrap();
        let it = server("a", 100, false);
        let file = begin(&path, &[&it]);
        file.try_out().unwrap();
        fs::remove_dir(path.parent().unwrap()).unwrap();
        file.try_out().unwrap_err();
        let set = LimitBefore { set_bytes: vec![20], ..it.before.lock().clone() };
        let note = |before: &LimitBefore| (it.witness.lock().as_ref().unwrap())(before);
        note(&set).unwrap_err();
        note(&set).unwrap_err();
        fs::create_dir(path.parent().unwrap()).unwrap();
        note(&set).unwrap();
        assert_eq!(limits_left(&path), [("a".to_owned(), 100)]);
    }

    #[test]
    fn what_could_not_be_put_back_is_kept_and_said_whatever_its_place_in_the_list() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("limits");
        let (hung, other) = (server("a", 100, true), server("b", 200, false));
        let file = begin(&path, &[&hung, &other]);
        for server in [&hung, &other] {
            server.resize(20, Duration::ZERO).unwrap();
        }
        let failed = file.put_back();
        assert!(failed.len() == 1 && failed[0].contains("`a`"), "{failed:?}");
        assert_eq!(*other.limit_bytes.lock(), 200);
        assert_eq!(limits_left(&path), [("a".to_owned(), 100)]);
        // A controller that cannot have the store keeps what is known of it.
        let failed = begin(&path, &[&other]).put_back();
        assert!(failed.len() == 1 && failed[0].contains("`a`"), "{failed:?}");
        assert_eq!(limits_left(&path), [("a".to_owned(), 100)]);
        fs::write(&path, b"{\"a\": 1").unwrap();
        assert!(limits_left(&path).is_empty(), "no sense, no limits");
    }
}
