//! System calls on files of the parallel file system, with the caller's own credentials: what a
//! client falls back to without a node, and what it compares versions with.

use std::io;
use std::num::NonZero;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::fs::{Advice, AtFlags, FileType, Mode, OFlags, StatxFlags};
use rustix::io::{Errno, ReadWriteFlags};
use tidepool_pfs::cost;
use tidepool_proto::stub::{self, Found, STUB_ATTRIBUTE};
use tidepool_proto::{Access, Error, ErrorKind, Result, Version};

use crate::options::OpenOptions;

/// How long an open waits for a process that holds a lease of the file, with a pause before each
/// next try. The kernel takes the lease away after 45 s unless it was told otherwise.
const LEASE_PATIENCE: Duration = Duration::from_secs(60);
const LEASE_PAUSE: Duration = Duration::from_millis(1);
/// Largest unit that the page cache gives up as a whole, in bytes.
const FOLIO_BYTES_MAX: u64 = 2 << 20;

/// Opens a file; whether this created it.
pub(crate) fn open(path: &Path, options: &OpenOptions) -> Result<(OwnedFd, bool)> {
    cost::wait(|| open_waiting(path, options))
}

fn open_waiting(path: &Path, options: &OpenOptions) -> Result<(OwnedFd, bool)> {
    let operation = || format!("opening {}", path.display());
    // Without O_NONBLOCK a named pipe would hold the caller; regular files ignore it.
    let flags = OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let mode = Mode::from_raw_mode(options.mode_bits);
    // The node keeps the bytes of a new file by the same descriptor, so it must be able to read.
    let exclusively = flags | OFlags::RDWR | OFlags::CREATE | OFlags::EXCL;
    let creates = options.create || options.create_new;
    let mut access = match options.access {
        Access::Read => OFlags::RDONLY,
        Access::Write if options.truncate => OFlags::RDWR,
        Access::Write => OFlags::WRONLY,
        Access::ReadWrite => OFlags::RDWR,
    };
    let begun = Instant::now();
    loop {
        if !options.create_new {
            match rustix::fs::open(path, access | flags, Mode::empty()) {
                Ok(file) => return Ok((regular(file, &operation)?, false)),
                // Some files may be written and not read.
                Err(Errno::ACCESS) if options.access == Access::Write && access == OFlags::RDWR => {
                    access = OFlags::WRONLY;
                }
                Err(Errno::INTR) => continue,
                // The holder of the lease was told and gives it back.
                Err(Errno::AGAIN) if begun.elapsed() < LEASE_PATIENCE => {
                    std::thread::sleep(LEASE_PAUSE);
                    continue;
                }
                Err(Errno::NOENT) if creates => {}
                Err(error) => return Err(Error::pfs(operation(), error)),
            }
        }
        match rustix::fs::open(path, exclusively, mode) {
            Ok(file) => {
                let file = regular(file, &operation)?;
                if options.mode_is_exact {
                    make_exact(&file, mode).map_err(|error| Error::pfs(operation(), error))?;
                }
                return Ok((file, true));
            }
            Err(Errno::INTR) => {}
            // Another process created it in between.
            Err(Errno::EXIST) if !options.create_new && !is_dangling(path) => {}
            Err(error) => return Err(Error::pfs(operation(), error)),
        }
    }
}

/// Gives a new file the mode that was asked for, where the umask of the process took some of it.
fn make_exact(file: &OwnedFd, mode: Mode) -> rustix::io::Result<()> {
    let found = Mode::from_raw_mode(rustix::fs::fstat(file)?.st_mode);
    let of_everybody = Mode::RWXU | Mode::RWXG | Mode::RWXO;
    if found & of_everybody == mode & of_everybody || has_access_list(file) {
        return Ok(());
    }
    rustix::fs::fchmod(file, mode)
}

/// Whether the directory handed an access control list on.
fn has_access_list(file: &OwnedFd) -> bool {
    let mut none: [u8; 0] = [];
    rustix::fs::fgetxattr(file, "system.posix_acl_access", &mut none).is_ok_and(|bytes| bytes > 0)
}

/// A symbolic link to nothing exists for an exclusive creation and does not for an open.
fn is_dangling(path: &Path) -> bool {
    path.is_symlink() && !path.exists()
}

fn regular(file: OwnedFd, operation: &dyn Fn() -> String) -> Result<OwnedFd> {
    let status = rustix::fs::fstat(&file).map_err(|error| Error::pfs(operation(), error))?;
    match FileType::from_raw_mode(status.st_mode) {
        FileType::RegularFile => Ok(file),
        FileType::Directory => Err(Error::pfs(operation(), Errno::ISDIR)),
        _ => Err(Error::new(ErrorKind::InvalidInput, operation(), "it is no regular file")),
    }
}

/// The version that the file has now, on its servers where there are any: what the kernel knows of
/// an open file may be old.
pub(crate) fn version(file: impl AsFd) -> Result<Version> {
    let at = AtFlags::EMPTY_PATH | AtFlags::STATX_FORCE_SYNC;
    let status = cost::wait(|| rustix::fs::statx(file, "", at, StatxFlags::BASIC_STATS))
        .map_err(|error| Error::pfs("asking for a version", error))?;
    Ok(Version::from(&status))
}

/// The inode of an open file, which its server need not be asked for.
pub(crate) fn known_inode(file: impl AsFd) -> Option<u64> {
    let at = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    rustix::fs::statx(file, "", at, StatxFlags::INO).ok().map(|status| status.stx_ino)
}

/// Whether a path leads to another inode by now. False where that is not known.
pub(crate) fn leads_elsewhere(path: &Path, opened: Option<u64>) -> bool {
    let now = cost::wait(|| rustix::fs::stat(path)).ok().map(|status| status.st_ino);
    opened.zip(now).is_some_and(|(opened, now)| opened != now)
}

/// Whether two versions are of equal content, for a reader that has no bytes of its own and reads
/// by its descriptor. The change time is left out: it moves with names, links, modes and
/// attributes, and no node is there that could tell that from a change of content. Device numbers
/// are left out: they have several encodings, and both versions are of the same descriptor.
pub(crate) fn is_same_content(one: &Version, other: &Version) -> bool {
    let key = |version: &Version| (version.id.inode, version.size, version.modified_ns);
    key(one) == key(other)
}

/// Whether a file of this size is the stub of bytes that a node has in memory. A descriptor that
/// cannot read cannot tell.
pub(crate) fn is_stub(file: impl AsFd, size: u64) -> bool {
    matches!(stub::find_by_descriptor(file, size), Found::Stub(_))
}

/// Whether another program wrote over the stub of bytes that a node had in memory, as far as that
/// left the mark.
pub(crate) fn is_overwritten_stub(file: impl AsFd) -> bool {
    let Ok(status) = rustix::fs::fstat(&file) else { return false };
    // One that the node wrote back before it ended has all bytes.
    let has_mark = |mark: stub::Mark| mark.state != stub::StubState::Finished;
    stub::any_mark(&file).is_some_and(has_mark) && !is_stub(&file, status.st_size.cast_unsigned())
}

/// Takes the mark off a stub that is written anew.
pub(crate) fn clear_stub(file: impl AsFd) -> Result<()> {
    // In this order: half of a file that was being written back must not lose its mark.
    rustix::fs::ftruncate(&file, 0).map_err(|error| Error::pfs("emptying a stub", error))?;
    if let Some(copies) = stub::any_mark(&file).and_then(|mark| mark.copies) {
        // No copy comes back over what is written now.
        let _ = rustix::fs::fremovexattr(&file, stub::copy_attribute(copies.epoch));
    }
    match rustix::fs::fremovexattr(&file, STUB_ATTRIBUTE) {
        Ok(()) | Err(Errno::NODATA) => Ok(()),
        Err(error) if stub::is_without_attributes(error) => Ok(()),
        Err(error) => Err(Error::pfs("taking the mark off a stub", error)),
    }
}

/// Reads until the buffer is full or the file ends.
pub(crate) fn read_at(file: impl AsFd, offset: u64, buffer: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        let rest = &mut buffer[filled..];
        match cost::wait(|| rustix::io::pread(&file, rest, offset + filled as u64)) {
            Ok(0) => break,
            Ok(bytes) => filled += bytes,
            Err(Errno::INTR) => {}
            Err(error) => return Err(Error::pfs("reading the parallel file system", error)),
        }
    }
    Ok(filled)
}

/// Has the page cache give up what is clean of a range; a length of 0 is to the end. A hint.
pub(crate) fn drop_pages(file: impl AsFd, offset: u64, length: u64) {
    // Only whole units go, so one that earlier reads left in part is told of again.
    let start = offset - offset % FOLIO_BYTES_MAX;
    let length = length.checked_add(offset - start).filter(|_| length > 0).and_then(NonZero::new);
    let _ = rustix::fs::fadvise(file, start, length, Advice::DontNeed);
}

/// Sets the length of the file in bytes.
pub(crate) fn set_size(file: impl AsFd, size: u64) -> Result<()> {
    cost::wait(|| rustix::fs::ftruncate(file, size))
        .map_err(|error| Error::pfs("setting the length", error))
}

/// Writes everything.
pub(crate) fn write_at(file: impl AsFd, offset: u64, data: &[u8]) -> Result<()> {
    let mut written = 0;
    while written < data.len() {
        let at = offset + written as u64;
        match cost::wait(|| rustix::io::pwrite(&file, &data[written..], at)) {
            Ok(0) => return Err(Error::pfs("writing", io::Error::from(io::ErrorKind::WriteZero))),
            Ok(bytes) => written += bytes,
            Err(Errno::INTR) => {}
            Err(error) => {
                return Err(Error::pfs("writing to the parallel file system", error));
            }
        }
    }
    Ok(())
}

/// Appends everything in one call where the file system takes it as one; returns where it went.
/// The position of the descriptor is used for that, so callers take turns.
pub(crate) fn append(file: impl AsFd, data: &[u8]) -> Result<u64> {
    let operation = "appending to the parallel file system";
    let failed = |error: Errno| Error::pfs(operation, error);
    let mut start = None;
    let mut written = 0;
    while written < data.len() {
        let slices = [io::IoSlice::new(&data[written..])];
        // Offset -1: at the position, which the append moves to the end of what it wrote.
        let append = || rustix::io::pwritev2(&file, &slices, u64::MAX, ReadWriteFlags::APPEND);
        match cost::wait(append) {
            Ok(bytes) => {
                let end = rustix::fs::tell(&file).map_err(failed)?;
                start.get_or_insert(end.saturating_sub(bytes as u64));
                written += bytes;
            }
            Err(Errno::INTR) => {}
            Err(error) => return Err(failed(error)),
        }
    }
    match start {
        Some(start) => Ok(start),
        None => version(file).map(|version| version.size),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn appends_say_where_they_went() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("log");
        let (one, created) = open(&path, &OpenOptions::write()).unwrap();
        assert!(created);
        let (two, created) = open(&path, &OpenOptions::read_write()).unwrap();
        assert!(!created);
        assert_eq!(append(&one, b"abc").unwrap(), 0);
        assert_eq!(append(&two, b"de").unwrap(), 3);
        assert_eq!(append(&one, b"f").unwrap(), 5);
        assert_eq!(std::fs::read(&path).unwrap(), b"abcdef");
    }

    #[test]
    fn an_exact_mode_is_that_of_new_files_alone() {
        use std::os::unix::fs::PermissionsExt;
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let mode = || std::fs::metadata(&path).unwrap().permissions().mode() & 0o7777;
        let options = OpenOptions { mode_bits: 0o666, mode_is_exact: true, ..OpenOptions::write() };
        assert!(open(&path, &options).unwrap().1);
        assert_eq!(mode(), 0o666, "whatever the umask");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        assert!(!open(&path, &options).unwrap().1);
        assert_eq!(mode(), 0o600, "what was there keeps its own");
    }

    #[test]
    fn an_open_for_writing_waits_for_who_holds_a_lease() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, b"bytes").unwrap();
        let file = std::fs::File::open(&path).unwrap();
        let lease = crate::lease::ReadLease::take(file.as_fd()).unwrap();
        std::thread::scope(|scope| {
            let opens = scope.spawn(|| open(&path, &OpenOptions::read_write()));
            while lease.holds() {
                std::thread::yield_now();
            }
            drop(lease);
            assert!(!opens.join().unwrap().unwrap().1);
        });
    }

    #[test]
    fn only_regular_files_are_opened() {
        let directory = tempfile::tempdir().unwrap();
        let error = open(directory.path(), &OpenOptions::read()).unwrap_err();
        assert_eq!(error.errno(), libc::EISDIR);
        let dangling = directory.path().join("dangling");
        std::os::unix::fs::symlink("nowhere", &dangling).unwrap();
        assert!(open(&dangling, &OpenOptions::read_write()).is_err(), "and does not spin");
    }
}
