//! Record locks and whole-file locks, held on the PFS, so that they also hold against programs that
//! do not use the mount.
//!
//! The record locks of one owner (a process, as the kernel names it) on one file belong to one
//! descriptor of ours, as open-file-description locks. Whole-file locks belong to the descriptor of
//! the open itself. A lock that has to wait waits in a list that one thread tries again and again:
//! no worker blocks, and an interrupted program gets its `EINTR`.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::fs::{FlockOperation, OFlags};
use tidepool_proto::{Access, FileId};

use crate::abi::{self, LockIn, LockOut, LockRange};
use crate::data::FileHandle;
use crate::filesystem::Filesystem;
use crate::request::{Answer, Errno, Reply};
use crate::shares::Share;

const RETRY_FIRST: Duration = Duration::from_millis(1);
const RETRY_LAST: Duration = Duration::from_millis(20);
/// How often owners whose closes the kernel does not report are looked for.
const OWNER_CHECK: Duration = Duration::from_millis(100);
/// Interrupts that came before the lock they are meant for.
const EARLY_INTERRUPTS_MAX: usize = 64;
const OFFSET_MAX: u64 = i64::MAX as u64;

const UNLOCK: u32 = libc::F_UNLCK as u32;
const WOULD_WAIT: [Errno; 3] = [Errno(libc::EAGAIN), Errno(libc::EACCES), Errno::BLOCKED];

/// Record locks of one owner on one file.
struct Owned {
    descriptor: OwnedFd,
    _share: Share,
    ranges: Vec<LockRange>,
    /// The process, watched where closes go unreported.
    watched: Option<OwnedFd>,
}

struct Waiter {
    reply: Reply,
    handle: Arc<FileHandle>,
    wanted: LockIn,
    /// The process to watch, where its end ends its locks untold.
    process: Option<u32>,
}

#[derive(Default)]
struct State {
    owned: HashMap<(FileId, u64), Owned>,
    waiters: Vec<Waiter>,
    watching: usize,
    thread_runs: bool,
    stopped: bool,
}

/// All locks taken through the mount.
#[derive(Default)]
pub struct Locks {
    state: Mutex<State>,
    /// Interrupts that came before their lock waits. Never held over anything that may wait, as
    /// `state` is over calls to the PFS; taken after it.
    early_interrupts: Mutex<VecDeque<u64>>,
    changed: Condvar,
}

fn system_lock(range: &LockRange) -> libc::flock {
    let length = if range.end >= OFFSET_MAX { 0 } else { range.end - range.start + 1 };
    libc::flock {
        l_type: range.kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: range.start as i64,
        l_len: length as i64,
        l_pid: 0,
    }
}

fn record_lock(descriptor: &impl AsFd, command: i32, lock: &mut libc::flock) -> Answer {
    // SAFETY: the commands used here read and write one `flock`, which `lock` borrows for the call.
    let result = unsafe { libc::fcntl(descriptor.as_fd().as_raw_fd(), command, &raw mut *lock) };
    if result == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().into()) }
}

/// Notes that `set` now holds over its range, whatever held there before.
fn note_range(ranges: &mut Vec<LockRange>, set: &LockRange) {
    let mut kept = Vec::with_capacity(ranges.len() + 2);
    for range in ranges.drain(..) {
        if range.end < set.start || range.start > set.end {
            kept.push(range);
            continue;
        }
        if range.start < set.start {
            kept.push(LockRange { end: set.start - 1, ..range });
        }
        if range.end > set.end {
            kept.push(LockRange { start: set.end + 1, ..range });
        }
    }
    if set.kind != UNLOCK {
        kept.push(*set);
    }
    *ranges = kept;
}

fn overlaps(range: &LockRange, other: &LockRange) -> bool {
    range.start <= other.end && other.start <= range.end
}

impl Locks {
    /// Drops the record locks of an owner on a file, as `close` does.
    pub(crate) fn release_owner(&self, id: FileId, owner: u64) {
        let mut state = self.state.lock();
        if let Some(owned) = state.owned.remove(&(id, owner)) {
            state.watching -= usize::from(owned.watched.is_some());
            drop(owned);
            self.changed.notify_one();
        }
    }

    /// Drops the whole-file lock of an open.
    pub(crate) fn release_flock(&self, handle: &FileHandle) {
        let _ = rustix::fs::flock(handle.file.lower(), FlockOperation::NonBlockingUnlock);
        self.changed.notify_one();
    }

    /// Whether the interrupt of request `unique` came before the request was worked on; it counts
    /// once.
    pub(crate) fn was_interrupted(&self, unique: u64) -> bool {
        let mut early = self.early_interrupts.lock();
        let found = early.iter().position(|early| *early == unique);
        found.and_then(|index| early.remove(index)).is_some()
    }

    /// A program stopped waiting for request `unique`. Never waits: who calls it may hold up all.
    pub(crate) fn interrupt(&self, unique: u64) {
        let mut early = self.early_interrupts.lock();
        if early.len() == EARLY_INTERRUPTS_MAX {
            early.pop_front();
        }
        early.push_back(unique);
        drop(early);
        // Who has the state looks at the interrupts before the lock waits again.
        let Some(mut state) = self.state.try_lock() else { return };
        let found = state.waiters.iter().position(|waiter| waiter.reply.unique() == unique);
        if let Some(index) = found
            && self.was_interrupted(unique)
        {
            state.waiters.swap_remove(index).reply.error(Errno(libc::EINTR));
        }
    }

    /// The mount is gone: nobody waits any more.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        state.waiters.clear();
        state.owned.clear();
        self.changed.notify_all();
    }
}

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
        let outcome = self.try_lock(&handle, &wanted, process);
        match outcome {
            Err(errno) if waits && WOULD_WAIT.contains(&errno) => {
                self.wait_for_lock(Waiter { reply, handle, wanted, process });
            }
            outcome => {
                reply.outcome(outcome);
                if wanted.range.kind == UNLOCK {
                    self.locks.changed.notify_one();
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
        let key = (handle.node.id, wanted.owner);
        let mut state = self.locks.state.lock();
        if !state.owned.contains_key(&key) {
            if wanted.range.kind == UNLOCK {
                return Ok(());
            }
            let owned = self.new_owned(process, handle)?;
            state.watching += usize::from(owned.watched.is_some());
            state.owned.insert(key, owned);
        }
        let Some(owned) = state.owned.get_mut(&key) else { return Err(Errno(libc::ENOLCK)) };
        let outcome =
            record_lock(&owned.descriptor, libc::F_OFD_SETLK, &mut system_lock(&wanted.range));
        if outcome.is_ok() {
            note_range(&mut owned.ranges, &wanted.range);
            let mut owners = handle.lock_owners.lock();
            if !owners.contains(&wanted.owner) {
                owners.push(wanted.owner);
            }
        }
        let watching = owned.watched.is_some();
        if owned.ranges.is_empty() {
            state.watching -= usize::from(watching);
            state.owned.remove(&key);
        }
        outcome
    }

    /// A descriptor of the file of its own, so that its locks are nobody else's.
    fn new_owned(&self, process: Option<u32>, handle: &FileHandle) -> Answer<Owned> {
        // Which kinds of lock the caller may take was checked by the kernel on the caller's own
        // open; a descriptor for both serves all opens of this owner.
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
        let watched = process.and_then(watch_process);
        Ok(Owned { descriptor, _share: share, ranges: Vec::new(), watched })
    }

    fn wait_for_lock(self: &Arc<Self>, waiter: Waiter) {
        let mut state = self.locks.state.lock();
        let unique = waiter.reply.unique();
        if self.locks.was_interrupted(unique) {
            return waiter.reply.error(Errno(libc::EINTR));
        }
        state.waiters.push(waiter);
        drop(state);
        self.start_lock_thread();
    }

    /// Starts the thread that tries waiting locks and looks for owners that are gone.
    fn start_lock_thread(self: &Arc<Self>) {
        let mut state = self.locks.state.lock();
        if state.thread_runs || state.stopped {
            self.locks.changed.notify_one();
            return;
        }
        state.thread_runs = true;
        drop(state);
        let filesystem = self.clone();
        let started = std::thread::Builder::new()
            .name("tide-locks".to_owned())
            .spawn(move || filesystem.try_waiting_locks());
        if let Err(error) = started {
            tracing::warn!(%error, "starting the lock thread failed");
            let mut state = self.locks.state.lock();
            state.thread_runs = false;
            for waiter in state.waiters.drain(..) {
                waiter.reply.error(Errno(libc::ENOLCK));
            }
        }
    }

    /// Watches for the end of owners whose closes the kernel does not report.
    fn watch_lock_owners(self: &Arc<Self>) {
        if self.locks.state.lock().watching > 0 {
            self.start_lock_thread();
        }
    }

    fn try_waiting_locks(&self) {
        if crate::credentials::begin_thread().is_err() {
            tracing::error!("the lock thread could not take the daemon's identity");
        }
        let mut pause = RETRY_FIRST;
        loop {
            let waiters = {
                let mut state = self.locks.state.lock();
                release_ended(&mut state);
                if state.stopped || (state.waiters.is_empty() && state.watching == 0) {
                    state.thread_runs = false;
                    return;
                }
                let wait = if state.waiters.is_empty() { OWNER_CHECK } else { pause };
                if !self.locks.changed.wait_for(&mut state, wait).timed_out() {
                    pause = RETRY_FIRST;
                }
                std::mem::take(&mut state.waiters)
            };
            pause = (pause * 2).min(RETRY_LAST);
            for waiter in waiters {
                match self.try_lock(&waiter.handle, &waiter.wanted, waiter.process) {
                    Err(errno) if WOULD_WAIT.contains(&errno) => self.wait_again(waiter),
                    outcome => waiter.reply.outcome(outcome),
                }
            }
        }
    }

    fn wait_again(&self, waiter: Waiter) {
        let mut state = self.locks.state.lock();
        let unique = waiter.reply.unique();
        // It may have been interrupted while it was being tried.
        if self.locks.was_interrupted(unique) {
            return waiter.reply.error(Errno(libc::EINTR));
        }
        if !state.stopped {
            state.waiters.push(waiter);
        }
    }

    /// `GETLK`: who, if anybody, stands in the way.
    pub(crate) fn get_lock(&self, wanted: LockIn) -> Answer<LockOut> {
        let handle = self.files.get(wanted.handle)?;
        let key = (handle.node.id, wanted.owner);
        let mut state = self.locks.state.lock();
        let mut lock = system_lock(&wanted.range);
        match state.owned.get_mut(&key) {
            Some(owned) => record_lock(&owned.descriptor, libc::F_OFD_GETLK, &mut lock)?,
            None => {
                let probe = self.new_owned(None, &handle)?;
                record_lock(&probe.descriptor, libc::F_OFD_GETLK, &mut lock)?;
            }
        }
        let kind = lock.l_type as u32;
        if kind == UNLOCK {
            return Ok(LockOut { range: LockRange { kind, ..wanted.range } });
        }
        let end = if lock.l_len == 0 { OFFSET_MAX } else { (lock.l_start + lock.l_len - 1) as u64 };
        let mut range = LockRange { start: lock.l_start as u64, end, kind, pid: 0 };
        // The PFS names no process for locks of ours, so look for it here.
        range.pid = match lock.l_pid {
            pid if pid > 0 => pid as u32,
            _ => state
                .owned
                .iter()
                .filter(|((id, owner), _)| *id == key.0 && *owner != key.1)
                .flat_map(|(_, owned)| &owned.ranges)
                .find(|held| held.kind == kind && overlaps(held, &range))
                .map_or(0, |held| held.pid),
        };
        Ok(LockOut { range })
    }
}

fn release_ended(state: &mut State) {
    if state.watching == 0 {
        return;
    }
    let ended = |watched: &OwnedFd| {
        let mut poll = [rustix::event::PollFd::new(watched, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut poll, Some(&now)).is_ok_and(|ready| ready > 0)
    };
    state.owned.retain(|_, owned| !owned.watched.as_ref().is_some_and(ended));
    state.watching = state.owned.values().filter(|owned| owned.watched.is_some()).count();
}

/// Whether the thread is asking for a lock that an open file owns, not a process. Requests of both
/// kinds are alike, but the thread waits in its system call.
fn is_for_open_file(thread: u32) -> bool {
    const OPEN_FILE: [i32; 2] = [libc::F_OFD_SETLK, libc::F_OFD_SETLKW];
    const LOOKS_MAX: usize = 100;
    for _ in 0..LOOKS_MAX {
        let Ok(call) = std::fs::read_to_string(format!("/proc/{thread}/syscall")) else { break };
        let command = call.split(' ').nth(2).and_then(|word| word.strip_prefix("0x"));
        if let Some(command) = command.and_then(|word| i32::from_str_radix(word, 16).ok()) {
            return OPEN_FILE.contains(&command);
        }
        // It is about to wait.
        std::thread::sleep(Duration::from_micros(100));
    }
    false
}

/// A descriptor that tells when the process has ended.
fn watch_process(process_id: u32) -> Option<OwnedFd> {
    let process = rustix::process::Pid::from_raw(process_id as i32)?;
    rustix::process::pidfd_open(process, rustix::process::PidfdFlags::empty()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(start: u64, end: u64, kind: i32) -> LockRange {
        LockRange { start, end, kind: kind as u32, pid: 1 }
    }

    #[test]
    fn a_new_range_replaces_what_it_covers() {
        let mut ranges = Vec::new();
        note_range(&mut ranges, &range(0, 99, libc::F_WRLCK));
        note_range(&mut ranges, &range(40, 59, libc::F_RDLCK));
        let mut seen: Vec<_> = ranges.iter().map(|r| (r.start, r.end, r.kind as i32)).collect();
        seen.sort_unstable();
        assert_eq!(
            seen,
            [(0, 39, libc::F_WRLCK), (40, 59, libc::F_RDLCK), (60, 99, libc::F_WRLCK)]
        );
        note_range(&mut ranges, &range(0, OFFSET_MAX, libc::F_UNLCK));
        assert!(ranges.is_empty());
    }
}
