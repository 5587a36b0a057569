//! Opens what lies below the PFS directory for another node, by a path that it tells: no link leads
//! anywhere, and nothing happens to what is no regular file.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags};
use rustix::io::Errno;

fn open(root: impl AsFd, path: &Path, flags: OFlags) -> Result<OwnedFd, Errno> {
    let beneath = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    rustix::fs::openat2(root, path, flags | OFlags::CLOEXEC, Mode::empty(), beneath)
}

/// Opens a directory.
pub fn directory(root: impl AsFd, path: &Path) -> Result<OwnedFd, Errno> {
    open(root, path, OFlags::RDONLY | OFlags::DIRECTORY)
}

/// Finds a regular file, to look at; `None` where the path leads to something else.
pub fn regular_file(root: impl AsFd, path: &Path) -> Result<Option<OwnedFd>, Errno> {
    let found = open(root, path, OFlags::PATH | OFlags::NOFOLLOW)?;
    let mode = rustix::fs::fstat(&found)?.st_mode;
    Ok((FileType::from_raw_mode(mode) == FileType::RegularFile).then_some(found))
}

/// Opens for reading what was found.
pub fn reopen(found: &OwnedFd) -> Result<OwnedFd, Errno> {
    again(found.as_fd(), OFlags::RDONLY | OFlags::NONBLOCK)
}

/// The very file that is open, to look at alone.
pub fn to_look_at(open: BorrowedFd<'_>) -> Result<OwnedFd, Errno> {
    again(open, OFlags::PATH)
}

fn again(file: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    rustix::fs::open(path, flags | OFlags::CLOEXEC, Mode::empty())
}
