//! Record locks and whole-file locks. They are held on the PFS, so that they also hold against
//! programs that do not use the mount.
//!
//! Record locks belong to descriptors of their owners (see [`crate::inode::lock_table`]),
//! whole-file locks to the descriptor of the open. Requests that wait are in a list, which one
//! thread has tried again and again: no worker blocks, and an interrupt ends the wait with `EINTR`.
//! For each user one thread at most tries them, so a PFS that does not answer holds up only its own
//! callers.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags};
use tidepool_proto::Access;

use crate::callers::shares::Share;
use crate::inode::file_handle::FileHandle;
use crate::inode::lock_table::{RETRY_FIRST, UNLOCK, Waiter, Work};
use crate::ops::filesystem::Filesystem;
use crate::protocol::abi::{self, LockIn, LockOut};
use crate::protocol::reply::{Reply, Response};
use crate::protocol::request::{Answer, Errno};

const WOULD_WAIT: [Errno; 3] = [Errno(libc::EAGAIN), Errno(libc::EACCES), Errno::BLOCKED];

impl Filesystem {
    /// `SETLK` and `SETLKW` (`waits`).
    pub(crate) fn set_lock(
        self: &Arc<Self>,
        thread: u32,
        wanted: LockIn,
        waits: bool,
        reply: Reply,
    ) {
        let handle = match self.files.get(wanted.handle) {
            Ok(handle) => handle,
            Err(errno) => return reply.error(errno),
        };
        let watches = !handle.access.writes()
            && wanted.flags & abi::LOCK_FLOCK == 0
            && wanted.range.kind != UNLOCK
            && !is_for_open_file(thread);
        let process = watches.then_some(wanted.range.pid);
        let unique = reply.unique();
        if waits {
            self.locks.begin_try(unique);
        }
        match self.try_lock(&handle, &wanted, process) {
            Err(errno) if waits && WOULD_WAIT.contains(&errno) => {
                self.locks.wait(Waiter { reply, handle, wanted, process });
                self.start_lock_thread();
            }
            outcome => {
                self.locks.end_try(unique);
                reply.answer(&outcome.map(|()| Response::Empty));
                if wanted.range.kind == UNLOCK {
                    self.locks.unlocked();
                }
                self.watch_lock_owners();
            }
        }
    }

    fn try_lock(&self, handle: &FileHandle, wanted: &LockIn, process: Option<u32>) -> Answer {
        if wanted.flags & abi::LOCK_FLOCK != 0 {
            let operation = match wanted.range.kind as i32 {
                libc::F_RDLCK => FlockOperation::NonBlockingLockShared,
                libc::F_WRLCK => FlockOperation::NonBlockingLockExclusive,
                _ => FlockOperation::NonBlockingUnlock,
            };
            return Ok(rustix::fs::flock(handle.file.lower(), operation)?);
        }
        self.locks.set(handle, wanted, process, || self.open_to_lock(handle))
    }

    /// Opens the file once more, so that the locks belong to this descriptor alone.
    fn open_to_lock(&self, handle: &FileHandle) -> Answer<(OwnedFd, Share)> {
        // The kernel has checked by the caller's own open which kinds of lock it may take. One
        // descriptor for both kinds serves all opens of this owner.
        self.credentials.become_daemon()?;
        let share = self.shares.take(handle.share.user())?;
        let lower = handle.file.lower();
        let narrow = match handle.access {
            Access::Read => OFlags::RDONLY,
            Access::Write => OFlags::WRONLY,
            Access::ReadWrite => OFlags::RDWR,
        };
        let descriptor =
            self.reopen(&lower, OFlags::RDWR).or_else(|_| self.reopen(&lower, narrow))?;
        Ok((descriptor, share))
    }

    /// Starts the thread that tries waiting requests and looks for owners that have ended.
    fn start_lock_thread(self: &Arc<Self>) {
        if !self.locks.needs_thread() {
            return;
        }
        let filesystem = self.clone();
        let started = std::thread::Builder::new()
            .name("tide-locks".to_owned())
            .spawn(move || filesystem.retry_locks());
        if let Err(error) = started {
            tracing::warn!(%error, "starting the lock thread failed");
            for waiter in self.locks.take_stranded() {
                waiter.reply.error(Errno(libc::ENOLCK));
            }
        }
    }

    /// Has that thread run if there are owners whose closes the kernel does not report.
    fn watch_lock_owners(self: &Arc<Self>) {
        if self.locks.watches_owners() {
            self.start_lock_thread();
        }
    }

    fn retry_locks(self: Arc<Self>) {
        if crate::callers::credentials::begin_thread().is_err() {
            tracing::error!("the lock thread could not take the daemon's identity");
        }
        let mut pause = RETRY_FIRST;
        while let Some(work) = self.locks.next_work(&mut pause) {
            for (user, work) in work {
                let filesystem = self.clone();
                self.threads.run(move || filesystem.work_for(user, work));
            }
        }
    }

    /// Tries what waits for one user, and drops the locks of owners that have ended.
    fn work_for(&self, user: u32, mut work: Work) {
        self.locks.close_ended(&mut work);
        for waiter in work.waiters {
            self.locks.begin_try(waiter.reply.unique());
            match self.try_lock(&waiter.handle, &waiter.wanted, waiter.process) {
                Err(errno) if WOULD_WAIT.contains(&errno) => self.locks.wait(waiter),
                outcome => {
                    self.locks.end_try(waiter.reply.unique());
                    waiter.reply.answer(&outcome.map(|()| Response::Empty));
                }
            }
        }
        self.locks.end_work(user);
    }

    /// `GETLK`: the lock that conflicts, if there is one.
    pub(crate) fn get_lock(&self, wanted: LockIn) -> Answer<LockOut> {
        let handle = self.files.get(wanted.handle)?;
        let range = self.locks.conflict(&handle, &wanted, || self.open_to_lock(&handle))?;
        Ok(LockOut { range })
    }
}

/// Whether the thread asks for a lock that an open file owns, not a process. The requests look
/// alike, so this looks at the system call in which the thread waits.
fn is_for_open_file(thread: u32) -> bool {
    const OPEN_FILE: [i32; 2] = [libc::F_OFD_SETLK, libc::F_OFD_SETLKW];
    const LOOKS_MAX: usize = 100;
    for _ in 0..LOOKS_MAX {
        let Ok(call) = std::fs::read_to_string(format!("/proc/{thread}/syscall")) else { break };
        let command = call.split(' ').nth(2).and_then(|word| word.strip_prefix("0x"));
        if let Some(command) = command.and_then(|word| i32::from_str_radix(word, 16).ok()) {
            return OPEN_FILE.contains(&command);
        }
        // It has not begun to wait yet.
        std::thread::sleep(Duration::from_micros(100));
    }
    false
}
