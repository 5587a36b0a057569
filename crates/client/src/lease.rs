//! [`ReadLease`]: proof that no process has a file open for writing while its metadata is changed.
//! Time stamps alone cannot tell such a change from a write in the same moment whose writer sets
//! the time back.

use std::os::fd::{AsRawFd, BorrowedFd};
use std::time::{Duration, Instant};

use libc::{F_GETLEASE, F_RDLCK, F_SETLEASE, F_UNLCK, c_int};

/// Of `fcntl.h`; the crate has it for few targets.
const F_SETSIG: c_int = 10;
/// How long the node may take to let go of a file that was just written and closed, which jobs then
/// rename.
const PATIENCE: Duration = Duration::from_millis(20);
const PAUSE: Duration = Duration::from_micros(200);

/// A lease for reading, given back with the value. An open for writing or a truncate waits for
/// that, or answers `EWOULDBLOCK` where it must not wait.
#[derive(Debug)]
pub(crate) struct ReadLease<'a>(BorrowedFd<'a>);

impl<'a> ReadLease<'a> {
    /// Takes it of a file that is open for reading alone; `None` where a process has it open for
    /// writing, where the file is another user's, and where the file system knows no leases.
    pub(crate) fn take(file: BorrowedFd<'a>) -> Option<ReadLease<'a>> {
        // Breaking it sends this process a signal. The usual one would end the process.
        control(file, F_SETSIG, libc::SIGURG)?;
        let begun = Instant::now();
        while control(file, F_SETLEASE, F_RDLCK).is_none() {
            let is_written = std::io::Error::last_os_error().raw_os_error() == Some(libc::EAGAIN);
            if !is_written || begun.elapsed() >= PATIENCE {
                return None;
            }
            std::thread::sleep(PAUSE);
        }
        Some(ReadLease(file))
    }

    /// Whether no process wanted to write since it was taken.
    pub(crate) fn holds(&self) -> bool {
        control(self.0, F_GETLEASE, 0) == Some(F_RDLCK)
    }
}

impl Drop for ReadLease<'_> {
    fn drop(&mut self) {
        let _ = control(self.0, F_SETLEASE, F_UNLCK);
    }
}

fn control(file: BorrowedFd<'_>, command: c_int, argument: c_int) -> Option<c_int> {
    // SAFETY: these commands take a number and touch no memory of ours.
    let answer = unsafe { libc::fcntl(file.as_raw_fd(), command, argument) };
    (answer >= 0).then_some(answer)
}

#[cfg(test)]
mod tests {
    use std::fs::{File, OpenOptions};
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn a_lease_is_had_while_nobody_writes_and_tells_who_wanted_to() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        let writer = File::create(&path).unwrap();
        let file = File::open(&path).unwrap();
        assert!(ReadLease::take(file.as_fd()).is_none(), "somebody has it open for writing");
        drop(writer);
        let lease = ReadLease::take(file.as_fd()).expect("nobody has");
        assert!(File::open(&path).is_ok() && lease.holds(), "readers are none of its business");
        std::thread::scope(|scope| {
            let writes = scope.spawn(|| OpenOptions::new().write(true).open(&path));
            while lease.holds() {
                std::thread::yield_now();
            }
            assert!(!writes.is_finished(), "who wants to write waits");
            drop(lease);
            writes.join().unwrap().unwrap();
        });
    }
}
