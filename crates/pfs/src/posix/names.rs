//! Names of open files: where a descriptor's file is now, and how its name becomes durable.
//!
//! Every name is found through a descriptor and checked against its inode before it is used; no
//! name is ever resolved on behalf of a caller.
//!
//! A store holds the directories that it synced last. Where file and directory are has the kernel's
//! word: while it knows both by names, the directory whose path is that of the file without its
//! last part is the one that the file is in. So the next file there costs one sync and no question.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};

use super::direct::identity_of;

/// Directories remembered as durable, at most.
const DURABLE_DIRECTORIES_MAX: usize = 4096;
/// Directories held, at most, and how long without use.
const HELD_DIRECTORIES_MAX: usize = 64;
const IDLE_AFTER: Duration = Duration::from_secs(5);
/// What the kernel adds to the path of what has no name any more.
const DELETED: &[u8] = b" (deleted)";
/// A file that is renamed this often while its name is looked for is given up.
const RENAME_RETRIES: usize = 8;

/// What the kernel says of the place of `descriptor`'s file, as an absolute path.
fn link_of(descriptor: BorrowedFd<'_>) -> io::Result<PathBuf> {
    std::fs::read_link(format!("/proc/self/fd/{}", descriptor.as_raw_fd()))
}

fn same_file(path: &Path, descriptor: BorrowedFd<'_>) -> bool {
    let Ok(file) = rustix::fs::fstat(descriptor) else { return false };
    rustix::fs::statat(CWD, path, AtFlags::SYMLINK_NOFOLLOW)
        .is_ok_and(|named| (named.st_dev, named.st_ino) == (file.st_dev, file.st_ino))
}

/// Absolute path that leads to `descriptor`'s file now; `None` if there is none, or if it is not
/// reachable from here.
fn absolute_path(descriptor: BorrowedFd<'_>) -> Option<PathBuf> {
    // The name may change between the two looks; a deleted name stays deleted.
    (0..RENAME_RETRIES).find_map(|_| {
        let path = link_of(descriptor).ok()?;
        (path.is_absolute() && same_file(&path, descriptor)).then_some(path)
    })
}

/// Path of `descriptor`'s file below the directory `root`.
pub(crate) fn relative_path(root: BorrowedFd<'_>, descriptor: BorrowedFd<'_>) -> Option<PathBuf> {
    let path = absolute_path(descriptor)?;
    // The root may have been renamed since it was opened, so its path is asked for each time.
    path.strip_prefix(link_of(root).ok()?).ok().map(Path::to_path_buf)
}

/// The same without asking the PFS whether the path leads there still.
pub(crate) fn relative_path_known(
    root: BorrowedFd<'_>,
    descriptor: BorrowedFd<'_>,
) -> Option<PathBuf> {
    link_of(descriptor).ok()?.strip_prefix(link_of(root).ok()?).ok().map(Path::to_path_buf)
}

/// Makes the name of a new file durable, for a process that has no store: its directory is synced,
/// and directories above it that were not seen before, up to the root of the mount. `Ok` if the
/// file has no name any more.
pub fn sync_entry(descriptor: BorrowedFd<'_>) -> io::Result<()> {
    static NAMES: OnceLock<DurableNames> = OnceLock::new();
    NAMES.get_or_init(DurableNames::default).sync_entry(None, descriptor, false)
}

/// Makes names durable, and remembers which directories are known to be.
#[derive(Default)]
pub(crate) struct DurableNames {
    /// Directory and what identifies it (inode, birth); its name and all above it are durable.
    directories: Mutex<HashMap<PathBuf, (u64, i64, u32)>>,
    /// Directories that are open, whose names and all above are durable.
    held: Mutex<HashMap<PathBuf, Held>>,
}

struct Held {
    directory: Arc<OwnedFd>,
    last_used: Instant,
}

impl DurableNames {
    /// See [`crate::LowerFile::sync_directory_entry`]. Without a `root` it is that of the mount.
    /// `link_counts_kept`: 0 means no name.
    pub fn sync_entry(
        &self,
        root: Option<BorrowedFd<'_>>,
        descriptor: BorrowedFd<'_>,
        link_counts_kept: bool,
    ) -> io::Result<()> {
        for _ in 0..RENAME_RETRIES {
            // Whether it leads there is asked once, in the directory that is synced.
            let Some(path) = link_of(descriptor).ok().filter(|path| path.is_absolute()) else {
                break;
            };
            let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                break;
            };
            if self.sync_held(parent, &path, descriptor)? {
                return Ok(());
            }
            match self.sync_in(root, parent, name, descriptor) {
                // A rename by this machine meanwhile shows without a question to the PFS.
                Ok(true) if link_of(descriptor).is_ok_and(|now| now != path) => {}
                Ok(true) => return Ok(()),
                Ok(false) => {}
                // A directory that we may not open or that cannot be synced by itself.
                Err(error) if is_refusal(&error) => break,
                Err(error) => return Err(error),
            }
        }
        let unlinked = rustix::fs::fstat(descriptor)?.st_nlink == 0;
        if unlinked && link_counts_kept {
            return Ok(());
        }
        // The name is not to be found (deleted link of several, other mount name space, or a
        // directory that refuses): the whole file system is synced, which covers it.
        Ok(rustix::fs::syncfs(descriptor)?)
    }

    /// Syncs the directory of the file at `path` if it is held; whether that made its name durable.
    fn sync_held(&self, parent: &Path, path: &Path, file: BorrowedFd<'_>) -> io::Result<bool> {
        if path.as_os_str().as_bytes().ends_with(DELETED) {
            return Ok(false);
        }
        let Some(directory) = self.held_at(parent, file) else { return Ok(false) };
        match rustix::fs::fsync(&*directory).map_err(io::Error::from) {
            Ok(()) => Ok(link_of(file).is_ok_and(|now| now == path)),
            // Another client took it away.
            Err(error) if is_refusal(&error) || error.raw_os_error() == Some(libc::ESTALE) => {
                self.held.lock().remove(parent);
                Ok(false)
            }
            Err(error) => Err(error),
        }
    }

    /// The directory held for `path`, if it still has that path and the file may be in it.
    fn held_at(&self, path: &Path, file: BorrowedFd<'_>) -> Option<Arc<OwnedFd>> {
        let directory = {
            let mut held = self.held.lock();
            let held = held.get_mut(path)?;
            held.last_used = Instant::now();
            held.directory.clone()
        };
        let device = |file| identity_of(file).ok().map(|(major, minor, _)| (major, minor));
        let is_there = link_of(directory.as_fd()).is_ok_and(|now| now == path)
            && device(file).is_some_and(|ours| device(directory.as_fd()) == Some(ours));
        if !is_there {
            self.held.lock().remove(path);
        }
        is_there.then_some(directory)
    }

    fn hold(&self, path: &Path, directory: OwnedFd) {
        let mut held = self.held.lock();
        if held.len() >= HELD_DIRECTORIES_MAX
            && let Some(oldest) = held.iter().min_by_key(|(_, held)| held.last_used)
        {
            let oldest = oldest.0.clone();
            held.remove(&oldest);
        }
        let directory = Arc::new(directory);
        held.insert(path.to_path_buf(), Held { directory, last_used: Instant::now() });
    }

    /// Closes the directories that were not used lately.
    pub fn close_idle(&self) {
        let idle: Vec<_> = {
            let mut held = self.held.lock();
            held.extract_if(|_, held| held.last_used.elapsed() > IDLE_AFTER).collect()
        };
        // Not under the lock: closing may take its time.
        drop(idle);
    }

    /// Syncs `directory` if it holds the file under `name`; whether it did.
    fn sync_in(
        &self,
        root: Option<BorrowedFd<'_>>,
        directory: &Path,
        name: &OsStr,
        file: BorrowedFd<'_>,
    ) -> io::Result<bool> {
        let opened = open_directory(directory)?;
        if !holds(opened.as_fd(), name, file) {
            return Ok(false);
        }
        rustix::fs::fsync(opened.as_fd())?;
        match self.sync_above(root, directory, opened.as_fd()) {
            // One above refuses: all at once, and not again for the next file here.
            Err(error) if is_refusal(&error) => {
                rustix::fs::syncfs(file)?;
                self.remember(directory, birth(opened.as_fd())?);
            }
            done => done?,
        }
        // In a process without a store nothing closes it again.
        if root.is_some() {
            self.hold(directory, opened);
        }
        Ok(true)
    }

    /// Makes the names of `directory` and of those above it durable, up to the root.
    fn sync_above(
        &self,
        root: Option<BorrowedFd<'_>>,
        directory: &Path,
        opened: BorrowedFd<'_>,
    ) -> io::Result<()> {
        let root_path = root.map_or(Ok(PathBuf::from("/")), link_of)?;
        if directory == root_path || !directory.starts_with(&root_path) {
            return Ok(());
        }
        let identity = birth(opened)?;
        if identity.is_some() && self.directories.lock().get(directory).copied() == identity {
            return Ok(());
        }
        let Some(parent) = directory.parent() else { return Ok(()) };
        let parent_opened = open_directory(parent)?;
        if root.is_none() && device(parent_opened.as_fd())? != device(opened)? {
            return Ok(());
        }
        rustix::fs::fsync(parent_opened.as_fd())?;
        self.sync_above(root, parent, parent_opened.as_fd())?;
        self.remember(directory, identity);
        Ok(())
    }

    fn remember(&self, directory: &Path, identity: Option<(u64, i64, u32)>) {
        let Some(identity) = identity else { return };
        let mut directories = self.directories.lock();
        if directories.len() >= DURABLE_DIRECTORIES_MAX {
            directories.clear();
        }
        directories.insert(directory.to_path_buf(), identity);
    }
}

/// Inode and time of birth: an inode number alone may be used again for another directory.
fn birth(directory: BorrowedFd<'_>) -> io::Result<Option<(u64, i64, u32)>> {
    let flags = StatxFlags::INO | StatxFlags::BTIME;
    let stat = rustix::fs::statx(directory, "", AtFlags::EMPTY_PATH, flags)?;
    let known = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    Ok(known.then_some((stat.stx_ino, stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec)))
}

fn device(directory: BorrowedFd<'_>) -> io::Result<u64> {
    Ok(rustix::fs::fstat(directory)?.st_dev)
}

fn open_directory(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::open(path, flags, Mode::empty())?)
}

fn holds(directory: BorrowedFd<'_>, name: &OsStr, file: BorrowedFd<'_>) -> bool {
    let Ok(file) = identity_of(file) else { return false };
    // The name is looked up; what it leads to need not be asked for its attributes.
    let at = AtFlags::SYMLINK_NOFOLLOW | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(directory, name.as_bytes(), at, StatxFlags::INO)
        .is_ok_and(|named| (named.stx_dev_major, named.stx_dev_minor, named.stx_ino) == file)
}

/// Whether a directory cannot be synced by itself, as against a sync that failed.
fn is_refusal(error: &io::Error) -> bool {
    matches!(
        error.raw_os_error(),
        Some(
            libc::EACCES
                | libc::EPERM
                | libc::EINVAL
                | libc::EBADF
                | libc::ENOTSUP
                | libc::ENOSYS
                | libc::ENOENT
                | libc::ENOTDIR
                | libc::ELOOP
        )
    )
}

#[cfg(test)]
mod tests {
    use std::fs::{self, File};

    use super::*;

    #[test]
    fn a_name_that_was_in_what_is_no_directory_any_more_is_no_error() {
        let root = tempfile::tempdir().unwrap();
        let root_path = fs::canonicalize(root.path()).unwrap();
        let root = open_directory(&root_path).unwrap();
        let directory = root_path.join("directory");
        fs::create_dir(&directory).unwrap();
        let file = File::create(directory.join("file")).unwrap();
        fs::hard_link(directory.join("file"), root_path.join("link")).unwrap();
        fs::remove_dir_all(&directory).unwrap();
        fs::write(&directory, b"").unwrap();
        DurableNames::default().sync_entry(Some(root.as_fd()), file.as_fd(), true).unwrap();
    }

    #[test]
    fn a_directory_is_held_while_it_is_where_it_was() {
        let root = tempfile::tempdir().unwrap();
        // As the kernel knows it.
        let root_path = fs::canonicalize(root.path()).unwrap();
        let root = open_directory(&root_path).unwrap();
        let directory = root_path.join("directory");
        fs::create_dir(&directory).unwrap();
        let names = DurableNames::default();
        let sync = |name: &str| {
            let file = File::create(directory.join(name)).unwrap();
            names.sync_entry(Some(root.as_fd()), file.as_fd(), true).unwrap();
            file
        };
        let held = |file: &File| names.held_at(&directory, file.as_fd());
        let identity = |file: BorrowedFd<'_>| identity_of(file).unwrap();
        let number = |held: Option<Arc<OwnedFd>>| held.map(|held| identity(held.as_fd()));
        let first = sync("first");
        let now = || Some(identity(File::open(&directory).unwrap().as_fd()));
        assert_eq!(number(held(&first)), now());
        fs::rename(&directory, root_path.join("elsewhere")).unwrap();
        fs::create_dir(&directory).unwrap();
        assert!(held(&first).is_none(), "the path is another directory's");
        let second = sync("second");
        assert_eq!(number(held(&second)), now());
        let path = directory.join("second");
        assert!(names.sync_held(&directory, &path, second.as_fd()).unwrap());
        fs::rename(&path, root_path.join("moved")).unwrap();
        assert!(!names.sync_held(&directory, &path, second.as_fd()).unwrap(), "it moved on");
        fs::remove_dir(&directory).unwrap();
        assert!(held(&second).is_none(), "the directory is gone");
    }

    #[test]
    fn only_so_many_directories_are_held() {
        let root = tempfile::tempdir().unwrap();
        let names = DurableNames::default();
        let root_descriptor = open_directory(root.path()).unwrap();
        for number in 0..HELD_DIRECTORIES_MAX + 5 {
            let directory = fs::canonicalize(root.path()).unwrap().join(number.to_string());
            fs::create_dir(&directory).unwrap();
            let file = File::create(directory.join("file")).unwrap();
            names.sync_entry(Some(root_descriptor.as_fd()), file.as_fd(), true).unwrap();
        }
        assert_eq!(names.held.lock().len(), HELD_DIRECTORIES_MAX);
        for held in names.held.lock().values_mut() {
            held.last_used -= 2 * IDLE_AFTER;
        }
        names.close_idle();
        assert!(names.held.lock().is_empty());
    }
}
