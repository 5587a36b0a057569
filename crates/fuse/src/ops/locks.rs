//! Record locks and whole-file locks, held on the PFS, so that they also hold against programs that
//! do not use the mount.
//!
//! The record locks of one owner (a process, as the kernel names it) on one file belong to one
//! descriptor of ours, as open-file-description locks. Whole-file locks belong to the descriptor of
//! the open itself. A lock that has to wait waits in a list of which one thread has all tried again
//! and again: no worker blocks, and an interrupted program gets its `EINTR`.
//!
//! The PFS may take its time over a lock, or never answer. Only who owns the lock waits then: of
//! each user one thread at most tries what waits, and the list is locked over no such call.

use std::collections::{HashMap, HashSet, VecDeque};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rustix::fs::{FlockOperation, OFlags};
use tidepool_proto::{Access, FileId};

use crate::callers::shares::Share;
use crate::ops::data::FileHandle;
use crate::ops::filesystem::Filesystem;
use crate::protocol::abi::{self, LockIn, LockOut, LockRange};
use crate::protocol::reply::{Reply, Response};
use crate::protocol::request::{Answer, Errno};

const RETRY_FIRST: Duration = Duration::from_millis(1);
const RETRY_LAST: Duration = Duration::from_millis(20);
/// How often owners whose closes the kernel does not report are looked for.
const OWNER_CHECK: Duration = Duration::from_millis(100);
/// Interrupts of requests that are no locks, or locks that nobody looked at yet.
const EARLY_INTERRUPTS_MAX: usize = 1024;
const OFFSET_MAX: u64 = i64::MAX as u64;

const UNLOCK: u32 = libc::F_UNLCK as u32;
const WOULD_WAIT: [Errno; 3] = [Errno(libc::EAGAIN), Errno(libc::EACCES), Errno::BLOCKED];

/// A file and an owner of record locks on it.
type Key = (FileId, u64);

/// Record locks of one owner on one file.
struct Owned {
    user: u32,
    /// Held over calls to the PFS: the owner's other calls wait, nobody else's.
    calls: Mutex<Calls>,
    ranges: Mutex<Vec<LockRange>>,
    /// The process, watched where closes go unreported.
    watched: Option<OwnedFd>,
}

#[derive(Default)]
struct Calls {
    descriptor: Option<(OwnedFd, Share)>,
    /// Nothing is locked by it any more.
    ended: bool,
}

impl Owned {
    /// Drops all locks, after a call that is under way.
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

struct Waiter {
    reply: Reply,
    handle: Arc<FileHandle>,
    wanted: LockIn,
    /// The process to watch, where its end ends its locks untold.
    process: Option<u32>,
}

#[derive(Default)]
struct State {
    owned: HashMap<Key, Arc<Owned>>,
    waiters: Vec<Waiter>,
    /// Requests that may wait and are being tried, and whether they were interrupted meanwhile.
    tried: HashMap<u64, bool>,
    early_interrupts: VecDeque<u64>,
    /// Users for whom a thread is trying what waits.
    at_work: HashSet<u32>,
    watching: usize,
    thread_runs: bool,
    stopped: bool,
}

/// What one thread does for one user.
#[derive(Default)]
struct Work {
    ended: Vec<(Key, Arc<Owned>)>,
    waiters: Vec<Waiter>,
}

impl State {
    /// Takes out what there is to do for users for whom nobody is at work.
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
pub struct Locks {
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

impl Locks {
    /// Drops the record locks of an owner on a file, as `close` does.
    pub(crate) fn release_owner(&self, id: FileId, owner: u64) {
        let owned = self.state.lock().owned.get(&(id, owner)).cloned();
        if let Some(owned) = owned {
            owned.end();
            self.remove(&(id, owner), &owned);
            self.changed.notify_one();
        }
    }

    /// Drops the whole-file lock of an open.
    pub(crate) fn release_flock(&self, handle: &FileHandle) {
        let _ = rustix::fs::flock(handle.file.lower(), FlockOperation::NonBlockingUnlock);
        self.changed.notify_one();
    }

    /// What `key` has; where it has nothing, something new of `user` if it is to lock.
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

    /// Forgets what has ended.
    fn remove(&self, key: &Key, ended: &Arc<Owned>) {
        let mut state = self.state.lock();
        if state.owned.get(key).is_some_and(|owned| Arc::ptr_eq(owned, ended)) {
            state.owned.remove(key);
            state.watching -= usize::from(ended.watched.is_some());
        }
    }

    /// The process that holds what stands in the way of `key`; 0 if none of ours does.
    fn holder(&self, key: &Key, range: &LockRange) -> u32 {
        let state = self.state.lock();
        let others = state.owned.iter().filter(|((id, owner), _)| *id == key.0 && *owner != key.1);
        let stands = |held: &&LockRange| held.kind == range.kind && overlaps(held, range);
        others
            .filter_map(|(_, owned)| owned.ranges.lock().iter().find(stands).map(|held| held.pid))
            .next()
            .unwrap_or(0)
    }

    /// Whether the interrupt of request `unique` came before the request was worked on; it counts
    /// once.
    pub(crate) fn was_interrupted(&self, unique: u64) -> bool {
        self.state.lock().take_early(unique)
    }

    /// A program stopped waiting for request `unique`. Never waits: who calls it may hold up all.
    pub(crate) fn interrupt(&self, unique: u64) {
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

    /// From now on an interrupt of this request is remembered, whatever else is interrupted.
    fn begin_try(&self, unique: u64) {
        let mut state = self.state.lock();
        let interrupted = state.take_early(unique);
        state.tried.insert(unique, interrupted);
    }

    /// The request is not tried any more.
    fn end_try(&self, unique: u64) {
        self.state.lock().tried.remove(&unique);
    }

    /// Keeps what was tried in vain, unless its program does not want it any more.
    fn wait(&self, waiter: Waiter) {
        let mut state = self.state.lock();
        let interrupted = state.tried.remove(&waiter.reply.unique()).unwrap_or(false);
        if !interrupted && !state.stopped {
            state.waiters.push(waiter);
            return;
        }
        drop(state);
        waiter.reply.error(Errno(libc::EINTR));
    }

    /// The mount is gone: nobody waits any more.
    pub(crate) fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        let left = (std::mem::take(&mut state.waiters), std::mem::take(&mut state.owned));
        state.watching = 0;
        drop(state);
        self.changed.notify_all();
        // Closes may take their time.
        drop(left);
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
        let (key, locks) = ((handle.node.id, wanted.owner), wanted.range.kind != UNLOCK);
        loop {
            let owned = self.locks.owned(key, locks, handle.share.user(), process);
            let Some(owned) = owned else { return Ok(()) };
            let mut calls = owned.calls.lock();
            if calls.ended {
                drop(calls);
                self.locks.remove(&key, &owned);
                continue;
            }
            let outcome = self.call(&mut calls, handle, wanted);
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
                self.locks.remove(&key, &owned);
            }
            return outcome;
        }
    }

    fn call(&self, calls: &mut Calls, handle: &FileHandle, wanted: &LockIn) -> Answer {
        let (descriptor, _) = match &mut calls.descriptor {
            Some(open) => open,
            none => none.insert(self.open_to_lock(handle)?),
        };
        record_lock(descriptor, libc::F_OFD_SETLK, &mut system_lock(&wanted.range))
    }

    /// A descriptor of the file of its own, so that its locks are nobody else's.
    fn open_to_lock(&self, handle: &FileHandle) -> Answer<(OwnedFd, Share)> {
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
        Ok((descriptor, share))
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
            .spawn(move || filesystem.have_locks_tried());
        if let Err(error) = started {
            tracing::warn!(%error, "starting the lock thread failed");
            let mut state = self.locks.state.lock();
            state.thread_runs = false;
            let waiters = std::mem::take(&mut state.waiters);
            drop(state);
            for waiter in waiters {
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

    fn have_locks_tried(self: Arc<Self>) {
        if crate::callers::credentials::begin_thread().is_err() {
            tracing::error!("the lock thread could not take the daemon's identity");
        }
        let mut pause = RETRY_FIRST;
        loop {
            let work = {
                let mut state = self.locks.state.lock();
                let waits = !(state.waiters.is_empty() && state.at_work.is_empty());
                if state.stopped || (!waits && state.watching == 0) {
                    state.thread_runs = false;
                    return;
                }
                let wait = if waits { pause } else { OWNER_CHECK };
                if !self.locks.changed.wait_for(&mut state, wait).timed_out() {
                    pause = RETRY_FIRST;
                }
                state.take_work()
            };
            pause = (pause * 2).min(RETRY_LAST);
            for (user, work) in work {
                let filesystem = self.clone();
                self.waiting.run(move || filesystem.work_for(user, work));
            }
        }
    }

    /// Tries what waits for one user, and closes what is over.
    fn work_for(&self, user: u32, work: Work) {
        for (key, owned) in work.ended {
            owned.end();
            self.locks.remove(&key, &owned);
        }
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
        self.locks.state.lock().at_work.remove(&user);
    }

    /// `GETLK`: who, if anybody, stands in the way.
    pub(crate) fn get_lock(&self, wanted: LockIn) -> Answer<LockOut> {
        let handle = self.files.get(wanted.handle)?;
        let key = (handle.node.id, wanted.owner);
        let mut lock = system_lock(&wanted.range);
        let owned = self.locks.state.lock().owned.get(&key).cloned();
        let calls = owned.as_ref().map(|owned| owned.calls.lock());
        match calls.as_ref().and_then(|calls| calls.descriptor.as_ref()) {
            Some((descriptor, _)) => record_lock(descriptor, libc::F_OFD_GETLK, &mut lock)?,
            None => {
                let (probe, _share) = self.open_to_lock(&handle)?;
                record_lock(&probe, libc::F_OFD_GETLK, &mut lock)?;
            }
        }
        drop(calls);
        let kind = lock.l_type as u32;
        if kind == UNLOCK {
            return Ok(LockOut { range: LockRange { kind, ..wanted.range } });
        }
        let end = if lock.l_len == 0 { OFFSET_MAX } else { (lock.l_start + lock.l_len - 1) as u64 };
        let mut range = LockRange { start: lock.l_start as u64, end, kind, pid: 0 };
        // The PFS names no process for locks of ours, so look for it here.
        range.pid = match lock.l_pid {
            pid if pid > 0 => pid as u32,
            _ => self.locks.holder(&key, &range),
        };
        Ok(LockOut { range })
    }
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
    fn the_interrupt_of_a_lock_is_not_forgotten_for_others() {
        let locks = Locks::default();
        locks.begin_try(1);
        locks.interrupt(1);
        // One that came before anybody looked at the request.
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
