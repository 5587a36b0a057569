//! Names of open files: where a descriptor's file is now, and how its name becomes durable.
//!
//! Every name is found through a descriptor and checked against its inode before it is used; no
//! name is ever resolved on behalf of a caller.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use parking_lot::Mutex;
use rustix::fs::{AtFlags, CWD, Mode, OFlags, StatxFlags};

use super::direct::identity_of;

/// Directories remembered as durable, at most.
const DURABLE_DIRECTORIES_MAX: usize = 4096;
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
                | libc::ELOOP
        )
    )
}
