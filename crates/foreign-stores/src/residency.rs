//! Measures how much of a file is in the page cache: by `cachestat` where the kernel has it, else
//! by `mincore`.
//!
//! Neither call brings a page in. Dirty pages are known only from the first.

use std::fs::File;
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;
use tidepool_proto::mapping::{Access, Mapping};
use tidepool_proto::{Error, ErrorKind, Result};

/// Number of `cachestat` on all architectures that share the table of new calls (Linux 6.5).
const CACHESTAT: libc::c_long = 451;
/// `mincore` is asked about this much at once.
const WINDOW_BYTES: u64 = 1 << 30;

/// Pages of a range of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Residency {
    /// In memory.
    pub resident_bytes: u64,
    /// Of these, to be written or being written; 0 where the kernel does not tell.
    pub dirty_bytes: u64,
}

/// Counts the pages of `length` bytes from `start` on; both whole pages, but for the file's end.
pub(crate) fn residency(file: &File, start: u64, length: u64) -> Result<Residency> {
    static MISSING: AtomicBool = AtomicBool::new(false);
    if length == 0 {
        return Ok(Residency::default());
    }
    if !MISSING.load(Ordering::Relaxed) {
        match by_cachestat(file, start, length) {
            Ok(residency) => return Ok(residency),
            Err(Errno::NOSYS) => MISSING.store(true, Ordering::Relaxed),
            Err(Errno::OPNOTSUPP) => {}
            Err(error) => return Err(unreadable(error)),
        }
    }
    by_mincore(file, start, length).map_err(unreadable)
}

fn unreadable(error: Errno) -> Error {
    let kind = match error {
        Errno::PERM | Errno::ACCESS => ErrorKind::PermissionDenied,
        _ => ErrorKind::Unsupported,
    };
    Error::new(kind, "counting the pages of a file", "").caused_by(error)
}

#[repr(C)]
struct Range {
    start: u64,
    length: u64,
}

/// As the kernel fills it, in pages.
#[repr(C)]
#[derive(Default)]
struct Counts {
    cached: u64,
    dirty: u64,
    writeback: u64,
    evicted: u64,
    recently_evicted: u64,
}

fn by_cachestat(file: &File, start: u64, length: u64) -> Result<Residency, Errno> {
    let range = Range { start, length };
    let mut counts = Counts::default();
    // SAFETY: both pointers are valid for the call, and have the layout of the kernel's interface.
    let result =
        unsafe { libc::syscall(CACHESTAT, file.as_raw_fd(), &raw const range, &raw mut counts, 0) };
    if result != 0 {
        return Err(last_error());
    }
    let page = rustix::param::page_size() as u64;
    let dirty_bytes = (counts.dirty + counts.writeback) * page;
    Ok(Residency { resident_bytes: counts.cached * page, dirty_bytes })
}

fn by_mincore(file: &File, start: u64, length: u64) -> Result<Residency, Errno> {
    let facts = rustix::fs::fstat(file)?;
    let user = rustix::process::geteuid();
    if !user.is_root() && user.as_raw() != facts.st_uid {
        // The kernel would call every page resident.
        return Err(Errno::PERM);
    }
    let size = facts.st_size as u64;
    let end = start.saturating_add(length).min(size);
    let mut resident_bytes = 0;
    let mut from = start;
    while from < end {
        let window = (end - from).min(WINDOW_BYTES) as usize;
        let mapping = Mapping::shared(file, from, window, Access::Nothing)?;
        resident_bytes += mapping.cached_bytes()? as u64;
        from += window as u64;
    }
    Ok(Residency { resident_bytes, dirty_bytes: 0 })
}

fn last_error() -> Errno {
    Errno::from_io_error(&std::io::Error::last_os_error()).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn both_ways_count_the_same() {
        // On a disk file system if the checkout is on one: pages of tmpfs are resident always.
        let mut file = tempfile::tempfile_in(env!("CARGO_MANIFEST_DIR")).unwrap();
        file.write_all(&vec![1; 3_000_000]).unwrap();
        file.sync_all().unwrap();
        let ranges = [(0, 3_000_000), (0, 1 << 20), (1 << 20, 1 << 30), (1 << 30, 4096)];
        for (start, length) in ranges {
            let mincore = by_mincore(&file, start, length).unwrap();
            match by_cachestat(&file, start, length) {
                Ok(cachestat) => assert_eq!(cachestat, mincore, "{start} {length}"),
                Err(error) => assert_eq!(error, Errno::NOSYS),
            }
        }
        assert!(by_mincore(&file, 0, 1 << 20).unwrap().resident_bytes == 1 << 20);
    }
}
