//! Descriptors opened again for fills. The description behind a client's descriptor is shared
//! with the client and never changed; fills use one of their own, opened through
//! `/proc/self/fd`, kept while it is in use and closed when idle.
//!
//! Opens with the access of the descriptor it was given and no more: a descriptor that cannot be
//! read is refused before it comes here.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::fs::{Advice, AtFlags, Mode, OFlags, StatxFlags};

/// Descriptors unused for this long are closed at the next occasion.
const IDLE_AFTER: Duration = Duration::from_secs(5);

/// Opens the file behind `descriptor` once more with `flags`, and makes sure that it is the same.
pub(crate) fn reopen(descriptor: BorrowedFd<'_>, flags: OFlags) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", descriptor.as_raw_fd());
    // NONBLOCK: a lease that another process holds must not make us wait in open.
    let flags = flags | OFlags::CLOEXEC | OFlags::NOCTTY | OFlags::NONBLOCK;
    let opened = rustix::fs::open(path, flags, Mode::empty())?;
    if identity_of(descriptor)? != identity_of(opened.as_fd())? {
        return Err(io::Error::from_raw_os_error(libc::ESTALE));
    }
    Ok(opened)
}

/// Device and inode of what is open. They never change, so the PFS is not asked.
pub(crate) fn identity_of(file: BorrowedFd<'_>) -> io::Result<(u32, u32, u64)> {
    let at = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    let stat = rustix::fs::statx(file, "", at, StatxFlags::INO)?;
    Ok((stat.stx_dev_major, stat.stx_dev_minor, stat.stx_ino))
}

/// A descriptor that only fills use.
pub(crate) struct FillDescriptor {
    pub descriptor: OwnedFd,
    /// Opened for direct I/O.
    pub direct: bool,
}

impl FillDescriptor {
    /// Opens the readable `descriptor` again, for direct I/O if `direct` and the mount allows it.
    pub fn open(descriptor: BorrowedFd<'_>, direct: bool) -> io::Result<Self> {
        if direct && let Ok(descriptor) = reopen(descriptor, OFlags::RDONLY | OFlags::DIRECT) {
            return Ok(FillDescriptor { descriptor, direct: true });
        }
        let descriptor = reopen(descriptor, OFlags::RDONLY)?;
        // No read-ahead of the kernel: it would leave pages behind that nobody drops.
        let _hint = rustix::fs::fadvise(&descriptor, 0, None, Advice::Random);
        Ok(FillDescriptor { descriptor, direct: false })
    }
}

struct Entry {
    descriptor: Arc<FillDescriptor>,
    last_used: Instant,
}

/// The descriptors for fills of one store, by a number that each file has for itself.
pub(crate) struct FillPool {
    entries: Mutex<HashMap<u64, Entry>>,
    descriptors_max: usize,
    /// The file system may hang at a close, which then is nobody's to wait for.
    closes_aside: bool,
}

impl FillPool {
    pub fn new(descriptors_max: usize, closes_aside: bool) -> Self {
        let descriptors_max = descriptors_max.max(1);
        FillPool { entries: Mutex::default(), descriptors_max, closes_aside }
    }

    /// The descriptor of file `number`, opened by `open` if there is none.
    pub fn get(
        &self,
        number: u64,
        open: impl FnOnce() -> io::Result<FillDescriptor>,
    ) -> io::Result<Arc<FillDescriptor>> {
        let now = Instant::now();
        if let Some(entry) = self.entries.lock().get_mut(&number) {
            entry.last_used = now;
            return Ok(entry.descriptor.clone());
        }
        // Opened without the lock: on a PFS it takes as long as a message.
        let descriptor = Arc::new(open()?);
        let mut entries = self.entries.lock();
        let mut closing = take_idle(&mut entries);
        if entries.len() >= self.descriptors_max {
            let oldest = entries.iter().min_by_key(|(_, entry)| entry.last_used);
            if let Some(oldest) = oldest.map(|(number, _)| *number) {
                closing.extend(entries.remove(&oldest));
            }
        }
        let entry = Entry { descriptor: descriptor.clone(), last_used: now };
        closing.extend(entries.insert(number, entry));
        drop(entries);
        self.close(closing);
        Ok(descriptor)
    }

    /// Closes the descriptor of a file that goes away.
    pub fn remove(&self, number: u64) {
        let removed = self.entries.lock().remove(&number);
        drop(removed);
    }

    /// Closes what was not used for a while.
    pub fn close_idle(&self) {
        let closing = take_idle(&mut self.entries.lock());
        self.close(closing);
    }

    /// Closes descriptors of other files than the caller's, without the lock.
    fn close(&self, closing: Vec<Entry>) {
        if self.closes_aside && !closing.is_empty() {
            // Where no thread is to be had, they are dropped with the closure that is not run.
            let thread = std::thread::Builder::new().name("pfs-close".into()).stack_size(64 << 10);
            let _ = thread.spawn(move || drop(closing));
        }
    }

    /// Number of descriptors held.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.entries.lock().len()
    }
}

/// What was not used for a while.
fn take_idle(entries: &mut HashMap<u64, Entry>) -> Vec<Entry> {
    entries.extract_if(|_, entry| entry.last_used.elapsed() >= IDLE_AFTER).map(|it| it.1).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn open_null() -> io::Result<FillDescriptor> {
        let descriptor = std::fs::File::open("/dev/null")?.into();
        Ok(FillDescriptor { descriptor, direct: false })
    }

    #[test]
    fn the_pool_keeps_to_its_limit_and_drops_the_least_recently_used() {
        let pool = FillPool::new(2, true);
        for number in [1, 2, 1, 3] {
            pool.get(number, open_null).unwrap();
        }
        assert_eq!(pool.len(), 2);
        let refused = || Err(io::Error::other("must not be opened again"));
        pool.get(1, refused).unwrap();
        pool.get(3, refused).unwrap();
        assert!(pool.get(2, refused).is_err(), "2 was the least recently used");
        pool.remove(1);
        assert_eq!(pool.len(), 1);
    }
}
