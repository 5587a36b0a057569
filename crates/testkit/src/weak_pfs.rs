//! A file system to be a PFS in tests: it passes on to a directory, counts what it is asked, and
//! misbehaves as real ones do.
//!
//! The kernel keeps nothing of what it answers unless a weakness says so: names and attributes have
//! no time to live, so every question of a program reaches it and is counted, as a message to a
//! server would be.

mod nodes;
mod operations;
mod pass_through;

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fuser::{BackgroundSession, Config, MountOption, SessionACL};
use parking_lot::{Condvar, Mutex};

use pass_through::PassThrough;

/// Questions answered at once; more wait their turn.
const THREADS: usize = 24;

/// How the file system differs from a good one. All of it may change while it is in use.
#[derive(Clone, Debug, Default)]
pub struct Weakness {
    /// Writes and truncations leave the times as they were (OrangeFS through its FUSE client).
    pub writes_move_no_stamps: bool,
    /// Times have no fractions of a second.
    pub whole_second_stamps: bool,
    /// A file gets another inode number whenever the kernel meets it anew.
    pub unstable_inodes: bool,
    /// Extended attributes are not supported.
    pub no_xattrs: bool,
    /// Reads end here, whatever length the attributes tell.
    pub reads_end_at: Option<u64>,
    /// The kernel may keep what it was told of an open file's attributes for so long.
    pub attributes_last: Duration,
    /// A file that is open when it is removed stays under a hidden name, as on NFS and by libfuse.
    pub hides_held: bool,
    /// Files cannot be synced: `EIO`.
    pub syncs_fail: bool,
    /// Every question takes this long.
    pub delay: Duration,
}

/// Questions by kind, those that nobody waits for (releases, forgets) left out.
pub type Questions = BTreeMap<&'static str, u64>;

/// Questions that are not answered: of a kind, and about what is in this directory or about all.
type Held = (&'static str, Option<PathBuf>);

/// What the file system and the tests share.
#[derive(Default)]
pub(crate) struct Shared {
    weakness: Mutex<Weakness>,
    questions: Mutex<Questions>,
    held: Mutex<Vec<Held>>,
    released: Condvar,
    waiting: Mutex<Questions>,
}

impl Shared {
    /// Counts a question and waits as long as the file system is slow; `path` leads to what the
    /// question is about.
    fn ask(&self, kind: &'static str, path: impl Fn() -> Option<PathBuf>) {
        *self.questions.lock().entry(kind).or_default() += 1;
        let delay = self.weakness.lock().delay;
        if !delay.is_zero() {
            std::thread::sleep(delay);
        }
        let is_held = |held: &mut Vec<Held>| {
            held.iter().filter(|held| held.0 == kind).any(|(_, below)| match below {
                Some(below) => path().is_some_and(|path| path.starts_with(below)),
                None => true,
            })
        };
        let mut held = self.held.lock();
        if is_held(&mut held) {
            *self.waiting.lock().entry(kind).or_default() += 1;
            self.released.wait_while(&mut held, is_held);
            *self.waiting.lock().entry(kind).or_default() -= 1;
        }
    }
}

/// A mounted file system, gone when dropped.
pub struct WeakPfs {
    session: Option<BackgroundSession>,
    shared: Arc<Shared>,
    nodes: Arc<nodes::Nodes>,
    root: PathBuf,
    behind: PathBuf,
    _directory: tempfile::TempDir,
}

/// Keeps questions of one kind from being answered while it lives.
pub struct Hold {
    shared: Arc<Shared>,
    held: Held,
}

impl WeakPfs {
    /// Mounts an empty one.
    ///
    /// # Errors
    /// Where this machine or user cannot mount.
    pub fn mount(weakness: Weakness) -> io::Result<WeakPfs> {
        let directory = tempfile::Builder::new().prefix("weak-pfs-").tempdir()?;
        crate::machine::open_to_all(directory.path())?;
        let (root, behind) = (directory.path().join("root"), directory.path().join("behind"));
        std::fs::create_dir(&root)?;
        std::fs::create_dir(&behind)?;
        let shared = Arc::new(Shared { weakness: Mutex::new(weakness), ..Shared::default() });
        let mut config = Config::default();
        config.mount_options =
            vec![MountOption::FSName("weak-pfs".into()), MountOption::DefaultPermissions];
        config.acl = SessionACL::All;
        config.n_threads = Some(THREADS);
        config.clone_fd = true;
        let file_system = PassThrough::new(&behind, shared.clone())?;
        let nodes = file_system.nodes.clone();
        let session = Some(fuser::spawn_mount(file_system, &root, &config)?);
        Ok(WeakPfs { session, shared, nodes, root, behind, _directory: directory })
    }

    /// Where it is mounted.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The directory behind it: what happens here asks it nothing, as another client's work would.
    pub fn behind(&self) -> &Path {
        &self.behind
    }

    /// Changes how it misbehaves.
    pub fn set(&self, change: impl FnOnce(&mut Weakness)) {
        change(&mut self.shared.weakness.lock());
    }

    /// Has the server know no file any more, as some do after a restart: what was seen of a file
    /// before gives `ESTALE` until a name of it is looked up.
    pub fn forget_files(&self) {
        self.nodes.forget_all();
    }

    /// All questions so far.
    pub fn questions(&self) -> Questions {
        self.shared.questions.lock().clone()
    }

    /// Runs `work` and returns what it asked, by kind.
    pub fn asked_by<T>(&self, work: impl FnOnce() -> T) -> (T, Questions) {
        let before = self.questions();
        let value = work();
        let mut asked = self.questions();
        for (kind, count) in &mut asked {
            *count -= before.get(kind).copied().unwrap_or_default();
        }
        asked.retain(|_, count| *count > 0);
        (value, asked)
    }

    /// Questions of `kind` that are held at present.
    pub fn waiting(&self, kind: &str) -> u64 {
        self.shared.waiting.lock().get(kind).copied().unwrap_or_default()
    }

    /// Answers no question of `kind` (the operation's name, such as `"read"`) until the hold drops.
    #[must_use]
    pub fn hold(&self, kind: &'static str) -> Hold {
        self.hold_these((kind, None))
    }

    /// The same for questions about the directory `below`, its names and its files alone: a path in
    /// [`WeakPfs::behind`].
    #[must_use]
    pub fn hold_below(&self, kind: &'static str, below: &Path) -> Hold {
        self.hold_these((kind, Some(below.to_owned())))
    }

    fn hold_these(&self, held: Held) -> Hold {
        self.shared.held.lock().push(held.clone());
        Hold { shared: self.shared.clone(), held }
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        let mut held = self.shared.held.lock();
        if let Some(index) = held.iter().position(|held| *held == self.held) {
            held.swap_remove(index);
        }
        self.shared.released.notify_all();
    }
}

impl Drop for WeakPfs {
    fn drop(&mut self) {
        self.shared.held.lock().clear();
        self.shared.released.notify_all();
        // A program that still has the file open keeps it until it closes; the name goes at once.
        let _ = rustix::mount::unmount(&self.root, rustix::mount::UnmountFlags::DETACH);
        drop(self.session.take());
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    fn mounted(weakness: Weakness) -> Option<WeakPfs> {
        if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
            println!("SKIPPED: mounting needs root and /dev/fuse");
            return None;
        }
        Some(WeakPfs::mount(weakness).expect("it mounts"))
    }

    #[test]
    fn it_passes_on_and_counts() {
        let Some(pfs) = mounted(Weakness::default()) else { return };
        let path = pfs.root().join("file");
        let ((), asked) = pfs.asked_by(|| fs::write(&path, b"bytes").unwrap());
        assert_eq!((asked.get("create"), asked.get("write")), (Some(&1), Some(&1)), "{asked:?}");
        assert_eq!(fs::read(pfs.behind().join("file")).unwrap(), b"bytes");
        let (metadata, asked) = pfs.asked_by(|| fs::metadata(&path).unwrap());
        assert_eq!(metadata.len(), 5);
        assert_eq!(asked.get("lookup"), Some(&1), "{asked:?}");
        fs::create_dir(pfs.root().join("directory")).unwrap();
        fs::rename(&path, pfs.root().join("directory/renamed")).unwrap();
        let names: Vec<_> = fs::read_dir(pfs.root().join("directory")).unwrap().collect();
        assert_eq!(names.len(), 1);
        fs::remove_dir_all(pfs.root().join("directory")).unwrap();
        assert_eq!(fs::read_dir(pfs.behind()).unwrap().count(), 0);
    }

    #[test]
    fn it_misbehaves_as_told() {
        let weakness = Weakness { writes_move_no_stamps: true, ..Weakness::default() };
        let Some(pfs) = mounted(weakness) else { return };
        let path = pfs.root().join("file");
        fs::write(&path, b"first").unwrap();
        let stamps = |metadata: fs::Metadata| {
            (metadata.mtime(), metadata.mtime_nsec(), metadata.ctime(), metadata.ctime_nsec())
        };
        let before = stamps(fs::metadata(&path).unwrap());
        let file = fs::File::options().write(true).open(&path).unwrap();
        file.write_all_at(b"other", 0).unwrap();
        file.sync_all().unwrap();
        assert_eq!(stamps(fs::metadata(&path).unwrap()), before);
        assert_eq!(fs::read(&path).unwrap(), b"other");
        pfs.set(|weakness| weakness.reads_end_at = Some(2));
        let mut bytes = [0; 5];
        assert_eq!(fs::File::open(&path).unwrap().read_at(&mut bytes, 2).unwrap(), 0);
        assert_eq!(fs::metadata(&path).unwrap().len(), 5);
        pfs.set(|weakness| weakness.whole_second_stamps = true);
        assert_eq!(fs::metadata(&path).unwrap().mtime_nsec(), 0);
    }
}
