//! [`LockTable`]: the record locks that owners hold through the mount, and requests that wait.
//!
//! The record locks of one owner (a process, as the kernel names it) on one file belong to one
//! descriptor of the daemon, as open-file-description locks. The PFS may answer a lock call late
//! or never, so the table is locked over none: only the owner's [`Calls`] are.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::fs::FlockOperation;
use tidepool_proto::FileId;

use crate::callers::shares::Share;
use crate::inode::file_handle::FileHandle;
use crate::protocol::abi::{LockIn, LockRange};
use crate::protocol::reply::Reply;
use crate::protocol::request::{Answer, Errno};

/// The shortest pause between two tries of a lock that waits.
pub const RETRY_FIRST: Duration = Duration::from_millis(1);
const RETRY_LAST: Duration = Duration::from_millis(20);
/// How often owners are looked for whose closes the kernel does not report.
const OWNER_CHECK: Duration = Duration::from_millis(100);
/// Interrupts kept for requests that have not begun; most are of requests that are no locks.
const EARLY_INTERRUPTS_MAX: usize = 1024;
const OFFSET_MAX: u64 = i64::MAX as u64;

/// The kind of a range that is not locked.
pub const UNLOCK: u32 = libc::F_UNLCK as u32;

/// A file and an owner of record locks on it.
type Key = (FileId, u64);

/// Record locks of one owner on one file.
struct Owned {
    user: u32,
    /// Held over calls to the PFS: the owner's other calls wait, nobody else's.
    calls: Mutex<Calls>,
    ranges: Mutex<Vec<LockRange>>,
    /// The process, watched if the kernel does not report its closes.
    watched: Option<OwnedFd>,
}

#[derive(Default)]
struct Calls {
    descriptor: Option<(OwnedFd, Share)>,
    /// The owner has closed: this descriptor takes no locks any more.
    ended: bool,
}

impl Calls {
    fn set(
        &mut self,
        range: &LockRange,
        open: impl FnOnce() -> Answer<(OwnedFd, Share)>,
    ) -> Answer {
        let (descriptor, _) = match &mut self.descriptor {
            Some(open) => open,
            none => none.insert(open()?),
        };
        record_lock(descriptor, libc::F_OFD_SETLK, &mut system_lock(range))
    }
}

impl Owned {
    /// Drops all locks, after a call that is in progress.
    fn end(&self) {
        let mut calls = self.calls.lock();
        *calls = Calls { descriptor: None, ended: true };
        self.ranges.lock().clear();
    }

    fn has_ended(&self) -> bool {
        let Some(process) = &self.watched else { return false };
        let mut poll = [rustix::event::PollFd::new(process, rustix::event::PollFlags::IN)];
        let now = rustix::event::Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut poll, Some(&now)).is_ok_and(|ready| ready > 0)
    }
}

/// A request for a lock that has to wait.
pub struct Waiter {
    pub reply: Reply,
    pub handle: Arc<FileHandle>,
    pub wanted: LockIn,
    /// The process to watch, if the kernel does not report its closes.
    pub process: Option<u32>,
}

#[derive(Default)]
struct State {
    owned: HashMap<Key, Arc<Owned>>,
    waiters: Vec<Waiter>,
    /// Requests that are being tried, and whether they were interrupted meanwhile.
    tried: HashMap<u64, bool>,
    early_interrupts: VecDeque<u64>,
    /// Users for whom a thread tries waiting requests.
    at_work: HashSet<u32>,
    watching: usize,
    thread_runs: bool,
    stopped: bool,
}

/// What one thread does for one user.
#[derive(Default)]
pub struct Work {
    ended: Vec<(Key, Arc<Owned>)>,
    /// Requests to try again.
    pub waiters: Vec<Waiter>,
}

impl State {
    /// Takes out the work for users for whom no thread is at work.
    fn take_work(&mut self) -> HashMap<u32, Work> {
        let mut work: HashMap<u32, Work> = HashMap::new();
        let waiters = std::mem::take(&mut self.waiters);
        for waiter in waiters {
            let user = waiter.handle.share.user();
            match self.at_work.contains(&user) {
                true => self.waiters.push(waiter),
                false => work.entry(user).or_default().waiters.push(waiter),
            }
        }
        if self.watching > 0 {
            for (key, owned) in &self.owned {
                if !self.at_work.contains(&owned.user) && owned.has_ended() {
                    work.entry(owned.user).or_default().ended.push((*key, owned.clone()));
                }
            }
        }
        self.at_work.extend(work.keys());
        work
    }

    fn take_early(&mut self, unique: u64) -> bool {
        let found = self.early_interrupts.iter().position(|early| *early == unique);
        found.and_then(|index| self.early_interrupts.remove(index)).is_some()
    }
}

/// All locks taken through the mount.
#[derive(Default)]
pub struct LockTable {
    /// Never held over anything that may wait.
    state: Mutex<State>,
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

impl LockTable {
    /// Drops the record locks of an owner on a file, as `close` does.
    pub fn release_owner(&self, id: FileId, owner: u64) {
        let owned = self.state.lock().owned.get(&(id, owner)).cloned();
        if let Some(owned) = owned {
            owned.end();
            self.remove(&(id, owner), &owned);
            self.changed.notify_one();
        }
    }

    /// Drops the whole-file lock of an open.
    pub fn release_flock(&self, handle: &FileHandle) {
        let _ = rustix::fs::flock(handle.file.lower(), FlockOperation::NonBlockingUnlock);
        self.changed.notify_one();
    }

    /// The locks that `key` has. If it has none and `locks` is set, a new entry for `user`.
    fn owned(&self, key: Key, locks: bool, user: u32, process: Option<u32>) -> Option<Arc<Owned>> {
        let mut state = self.state.lock();
        if let Some(owned) = state.owned.get(&key) {
            return Some(owned.clone());
        }
        if !locks {
            return None;
        }
        let watched = process.and_then(watch_process);
        state.watching += usize::from(watched.is_some());
        let (calls, ranges) = (Mutex::default(), Mutex::default());
        let owned = Arc::new(Owned { user, calls, ranges, watched });
        state.owned.insert(key, owned.clone());
        Some(owned)
    }

    /// Removes an owner that has ended.
    fn remove(&self, key: &Key, ended: &Arc<Owned>) {
        let mut state = self.state.lock();
        if state.owned.get(key).is_some_and(|owned| Arc::ptr_eq(owned, ended)) {
            state.owned.remove(key);
            state.watching -= usize::from(ended.watched.is_some());
        }
    }

    /// The process that holds the lock in conflict with `key`; 0 if it is not of this mount.
    fn holder(&self, key: &Key, range: &LockRange) -> u32 {
        let state = self.state.lock();
        let others = state.owned.iter().filter(|((id, owner), _)| *id == key.0 && *owner != key.1);
        let stands = |held: &&LockRange| held.kind == range.kind && overlaps(held, range);
        others
            .filter_map(|(_, owned)| owned.ranges.lock().iter().find(stands).map(|held| held.pid))
            .next()
            .unwrap_or(0)
    }

    /// Whether an interrupt of request `unique` came before the request was handled. Tells it
    /// once.
    pub fn was_interrupted(&self, unique: u64) -> bool {
        self.state.lock().take_early(unique)
    }

    /// As [`Self::was_interrupted`] for a request that is handled now; tells it each time.
    pub fn is_interrupted(&self, unique: u64) -> bool {
        self.state.lock().early_interrupts.contains(&unique)
    }

    /// Ends the wait of request `unique`. Does not wait itself: no other thread may be left to read
    /// requests.
    pub fn interrupt(&self, unique: u64) {
        let mut state = self.state.lock();
        let found = state.waiters.iter().position(|waiter| waiter.reply.unique() == unique);
        if let Some(index) = found {
            let waiter = state.waiters.swap_remove(index);
            drop(state);
            return waiter.reply.error(Errno(libc::EINTR));
        }
        if let Some(interrupted) = state.tried.get_mut(&unique) {
            *interrupted = true;
            return;
        }
        if state.early_interrupts.len() == EARLY_INTERRUPTS_MAX {
            state.early_interrupts.pop_front();
        }
        state.early_interrupts.push_back(unique);
    }

    /// Remembers an interrupt of this request from now on, whatever else is interrupted.
    pub fn begin_try(&self, unique: u64) {
        let mut state = self.state.lock();
        let interrupted = state.take_early(unique);
        state.tried.insert(unique, interrupted);
    }

    /// The request is not tried any more.
    pub fn end_try(&self, unique: u64) {
        self.state.lock().tried.remove(&unique);
    }

    /// Keeps a request that has to wait, unless it was interrupted meanwhile.
    pub fn wait(&self, waiter: Waiter) {
        let mut state = self.state.lock();
        let interrupted = state.tried.remove(&waiter.reply.unique()).unwrap_or(false);
        if !interrupted && !state.stopped {
            state.waiters.push(waiter);
            return;
        }
        drop(state);
        waiter.reply.error(Errno(libc::EINTR));
    }

    /// Sets a record lock of an owner without waiting. `open` opens the descriptor that the owner's
    /// locks on the file belong to.
    pub fn set(
        &self,
        handle: &FileHandle,
        wanted: &LockIn,
        process: Option<u32>,
        open: impl Fn() -> Answer<(OwnedFd, Share)>,
    ) -> Answer {
        let (key, locks) = ((handle.inode.id, wanted.owner), wanted.range.kind != UNLOCK);
        loop {
            let owned = self.owned(key, locks, handle.share.user(), process);
            let Some(owned) = owned else { return Ok(()) };
            let mut calls = owned.calls.lock();
            if calls.ended {
                drop(calls);
                self.remove(&key, &owned);
                continue;
            }
            let outcome = calls.set(&wanted.range, &open);
            if outcome.is_ok() {
                note_range(&mut owned.ranges.lock(), &wanted.range);
                let mut owners = handle.lock_owners.lock();
                if !owners.contains(&wanted.owner) {
                    owners.push(wanted.owner);
                }
            }
            if owned.ranges.lock().is_empty() {
                *calls = Calls { descriptor: None, ended: true };
                drop(calls);
                self.remove(&key, &owned);
            }
            return outcome;
        }
    }

    /// The lock of another owner that conflicts with `wanted`; its kind is [`UNLOCK`] if there is
    /// none.
    pub fn conflict(
        &self,
        handle: &FileHandle,
        wanted: &LockIn,
        open: impl FnOnce() -> Answer<(OwnedFd, Share)>,
    ) -> Answer<LockRange> {
        let key = (handle.inode.id, wanted.owner);
        let mut lock = system_lock(&wanted.range);
        let owned = self.state.lock().owned.get(&key).cloned();
        let calls = owned.as_ref().map(|owned| owned.calls.lock());
        match calls.as_ref().and_then(|calls| calls.descriptor.as_ref()) {
            Some((descriptor, _)) => record_lock(descriptor, libc::F_OFD_GETLK, &mut lock)?,
            None => {
                let (probe, _share) = open()?;
                record_lock(&probe, libc::F_OFD_GETLK, &mut lock)?;
            }
        }
        drop(calls);
        let kind = lock.l_type as u32;
        if kind == UNLOCK {
            return Ok(LockRange { kind, ..wanted.range });
        }
        let end = if lock.l_len == 0 { OFFSET_MAX } else { (lock.l_start + lock.l_len - 1) as u64 };
        let mut range = LockRange { start: lock.l_start as u64, end, kind, pid: 0 };
        // The PFS names no process for locks of the daemon.
        range.pid = match lock.l_pid {
            pid if pid > 0 => pid as u32,
            _ => self.holder(&key, &range),
        };
        Ok(range)
    }

    /// A lock was released: waiting requests are tried at once.
    pub fn unlocked(&self) {
        self.changed.notify_one();
    }

    /// Whether owners are watched whose closes the kernel does not report.
    pub fn watches_owners(&self) -> bool {
        self.state.lock().watching > 0
    }

    /// Whether the thread that runs [`LockTable::next_work`] has to be started. One that runs is
    /// woken.
    pub fn needs_thread(&self) -> bool {
        let mut state = self.state.lock();
        if state.thread_runs || state.stopped {
            self.changed.notify_one();
            return false;
        }
        state.thread_runs = true;
        true
    }

    /// That thread could not be started. Returns the requests that wait.
    pub fn take_stranded(&self) -> Vec<Waiter> {
        let mut state = self.state.lock();
        state.thread_runs = false;
        std::mem::take(&mut state.waiters)
    }

    /// Waits until there may be something to do, and returns it by user. `None` ends the thread.
    pub fn next_work(&self, pause: &mut Duration) -> Option<HashMap<u32, Work>> {
        let mut state = self.state.lock();
        let waits = !(state.waiters.is_empty() && state.at_work.is_empty());
        if state.stopped || (!waits && state.watching == 0) {
            state.thread_runs = false;
            return None;
        }
        let wait = if waits { *pause } else { OWNER_CHECK };
        if !self.changed.wait_for(&mut state, wait).timed_out() {
            *pause = RETRY_FIRST;
        }
        *pause = (*pause * 2).min(RETRY_LAST);
        Some(state.take_work())
    }

    /// Drops the locks of owners that have ended.
    pub fn close_ended(&self, work: &mut Work) {
        for (key, owned) in work.ended.drain(..) {
            owned.end();
            self.remove(&key, &owned);
        }
    }

    /// The work of a user is done.
    pub fn end_work(&self, user: u32) {
        self.state.lock().at_work.remove(&user);
    }

    /// The mount is gone: ends all waits.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        let left = (std::mem::take(&mut state.waiters), std::mem::take(&mut state.owned));
        state.watching = 0;
        drop(state);
        self.changed.notify_all();
        // Closing may take its time.
        drop(left);
    }
}

/// A descriptor that becomes readable when the process has ended.
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
    fn the_interrupt_of_a_lock_is_not_forgotten_for_others() {
        let locks = LockTable::default();
        locks.begin_try(1);
        locks.interrupt(1);
        // One that came before the request began.
        locks.interrupt(2);
        locks.begin_try(2);
        locks.begin_try(3);
        for other in 10..10 + 2 * EARLY_INTERRUPTS_MAX as u64 {
            locks.interrupt(other);
        }
        let state = locks.state.lock();
        assert_eq!([1, 2, 3].map(|unique| state.tried[&unique]), [true, true, false]);
        assert_eq!(state.early_interrupts.len(), EARLY_INTERRUPTS_MAX);
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
