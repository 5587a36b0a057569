//! [`Turns`]: limits how many threads may wait for the PFS, in all and for one user.
//!
//! A request that may wait for the PFS takes a *turn* of its user. There are fewer turns than
//! threads, so the threads that read requests, and with them resident reads and forgets, go on
//! however many requests wait. A user may have half of the turns that others leave, so neither one
//! slow file nor one user with slow files stops the rest. Requests without a turn wait in a queue
//! of their user. A thread that releases a turn continues with the next queued request, users in
//! order. A request that would block on a lease releases its turn and is tried again later. One
//! that waits for another node gives its turn away meanwhile, as long as not too many do.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tidepool_pfs::asked::Asker;

use crate::ops::filesystem::Filesystem;
use crate::protocol::abi::{InHeader, op};
use crate::protocol::reply::Reply;

/// Bytes of requests that may wait for one user.
const QUEUED_BYTES_MAX: usize = 512 << 20;
/// Requests of all users that wait for other nodes without a turn.
pub const AWAY_MAX: usize = 512;
const RETRY_FIRST: Duration = Duration::from_millis(5);
const RETRY_LAST: Duration = Duration::from_millis(200);

/// A request that waits for a turn or for its next try.
#[derive(Debug)]
pub struct QueuedRequest {
    /// The user whose turn it takes.
    pub user: u32,
    /// As it was read from the kernel.
    pub request: Box<[u8]>,
    /// The duty to answer it.
    pub reply: Reply,
    /// The pause before the next try.
    pub pause: Duration,
    opcode: u32,
}

impl QueuedRequest {
    /// A request that has not been tried yet.
    pub fn new(user: u32, opcode: u32, request: &[u8], reply: Reply) -> Self {
        QueuedRequest { user, request: request.into(), reply, opcode, pause: Duration::ZERO }
    }

    /// For a request that would have blocked when it was tried after a pause of `pause`.
    pub fn again(mut self, pause: Duration) -> Self {
        self.pause = (pause * 2).clamp(RETRY_FIRST, RETRY_LAST);
        self
    }

    /// Whether it ends an open, which must happen even if the program waits no longer.
    fn ends_an_open(&self) -> bool {
        matches!(self.opcode, op::FLUSH | op::RELEASE | op::RELEASEDIR)
    }

    /// Whether an interrupt ends it. The kernel reports all signals, and most leave the program
    /// running: no PFS fails its reads for those. A wait for a lock ends with any signal.
    fn may_be_cancelled(&self) -> bool {
        let waits_for_lock = self.opcode == op::SETLKW;
        !self.ends_an_open() && (waits_for_lock || is_dying(pid_of(&self.request)))
    }
}

fn pid_of(request: &[u8]) -> u32 {
    let at = std::mem::offset_of!(InHeader, pid);
    request.get(at..at + 4).map_or(0, |pid| u32::from_ne_bytes(pid.try_into().unwrap_or_default()))
}

/// A request that is handled now: what the node may ask about its caller.
pub struct Handled {
    filesystem: Arc<Filesystem>,
    user: u32,
    pid: u32,
    unique: u64,
    /// It gave its turn away.
    is_away: AtomicBool,
}

impl Handled {
    /// The request with this header, which has a turn of `user`.
    pub fn new(filesystem: Arc<Filesystem>, user: u32, header: &InHeader) -> Self {
        let (pid, unique) = (header.pid, header.unique);
        Handled { filesystem, user, pid, unique, is_away: AtomicBool::new(false) }
    }
}

impl Asker for Handled {
    fn still_asks(&self) -> bool {
        !(self.filesystem.locks.is_interrupted(self.unique) && is_dying(self.pid))
    }

    fn begin_wait(self: Arc<Self>) {
        let Some(next) = self.filesystem.turns.give_away(self.user) else { return };
        self.is_away.store(true, Ordering::Relaxed);
        if next.is_some() {
            let filesystem = self.filesystem.clone();
            self.filesystem.threads.run(move || filesystem.run_queued(next));
        }
    }

    fn end_wait(self: Arc<Self>) {
        if self.is_away.swap(false, Ordering::Relaxed) {
            self.filesystem.turns.take_back(self.user);
        }
    }
}

/// Whether a thread is being killed, or is not visible here. The kernel gives every thread of a
/// program that ends its own `SIGKILL`.
fn is_dying(pid: u32) -> bool {
    let Ok(status) = std::fs::read_to_string(format!("/proc/{pid}/status")) else { return true };
    let pending = status.lines().find_map(|line| line.strip_prefix("SigPnd:"));
    let pending = pending.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    pending.is_none_or(|bits| bits & 1 << (libc::SIGKILL - 1) != 0)
}

/// The fate of a request that asked for a turn.
#[derive(Debug)]
pub enum TurnOutcome {
    /// It has a turn and may be handled.
    Turn(Reply),
    /// It waits behind others, the first of which has this turn.
    Instead(QueuedRequest),
    /// It waits; another thread handles it later.
    Queued,
    /// Too much waits for the user already.
    Refused(Reply),
}

#[derive(Debug, Default)]
struct User {
    taken: usize,
    queue: VecDeque<QueuedRequest>,
    queued_bytes: usize,
}

#[derive(Debug, Default)]
struct State {
    taken: usize,
    /// Requests that gave their turn away, until they take it back.
    away: usize,
    users: HashMap<u32, User>,
    /// Users for whom requests wait, the next one first.
    order: VecDeque<u32>,
    later: Vec<(Instant, QueuedRequest)>,
    thread_runs: bool,
    stopped: bool,
}

/// The turns of a mount.
#[derive(Debug)]
pub struct Turns {
    turns_max: usize,
    state: Mutex<State>,
    changed: Condvar,
}

impl State {
    /// Whether the user may have one more turn: half of what the others leave.
    fn has_room(&self, user: u32, turns_max: usize) -> bool {
        let own = self.users.get(&user).map_or(0, |user| user.taken);
        let others = self.taken - own;
        self.taken < turns_max && own * 2 < turns_max.saturating_sub(others)
    }

    fn take(&mut self, user: u32) {
        self.taken += 1;
        self.users.entry(user).or_default().taken += 1;
    }

    /// Ends a turn of `user`, and takes out the request that has the next one.
    fn release(&mut self, user: u32, turns_max: usize) -> Option<QueuedRequest> {
        self.taken -= 1;
        if let Some(own) = self.users.get_mut(&user) {
            own.taken -= 1;
            if own.taken == 0 && own.queue.is_empty() {
                self.users.remove(&user);
            }
        }
        if self.order.is_empty() { None } else { self.next(turns_max) }
    }

    fn enqueue(&mut self, waiting: QueuedRequest) {
        let number = waiting.user;
        let user = self.users.entry(number).or_default();
        user.queued_bytes += waiting.request.len();
        user.queue.push_back(waiting);
        if user.queue.len() == 1 {
            self.order.push_back(number);
        }
    }

    /// Takes the first queued request of a user that may have a turn, and that turn.
    fn next(&mut self, turns_max: usize) -> Option<QueuedRequest> {
        let position = self.order.iter().position(|user| self.has_room(*user, turns_max))?;
        let number = self.order.remove(position)?;
        let user = self.users.get_mut(&number)?;
        let waiting = user.queue.pop_front()?;
        user.queued_bytes -= waiting.request.len();
        if !user.queue.is_empty() {
            self.order.push_back(number);
        }
        self.take(number);
        Some(waiting)
    }

    /// Whether the request waits here.
    fn keeps(&self, unique: u64) -> bool {
        let named = |waiting: &QueuedRequest| waiting.reply.unique() == unique;
        self.later.iter().any(|(_, waiting)| named(waiting))
            || self.users.values().any(|user| user.queue.iter().any(named))
    }

    /// Takes out the request that an interrupt names, if the interrupt ends it.
    fn remove(&mut self, unique: u64) -> Option<QueuedRequest> {
        let named = |waiting: &QueuedRequest| {
            waiting.reply.unique() == unique && waiting.may_be_cancelled()
        };
        if let Some(index) = self.later.iter().position(|(_, waiting)| named(waiting)) {
            return Some(self.later.swap_remove(index).1);
        }
        let number = self.order.iter().copied().find(|number| {
            self.users.get(number).is_some_and(|user| user.queue.iter().any(named))
        })?;
        let user = self.users.get_mut(&number)?;
        let index = user.queue.iter().position(named)?;
        let waiting = user.queue.remove(index)?;
        user.queued_bytes -= waiting.request.len();
        if user.queue.is_empty() {
            self.order.retain(|waiting| *waiting != number);
        }
        Some(waiting)
    }
}

impl Turns {
    /// At most `turns_max` turns.
    pub fn new(turns_max: usize) -> Self {
        Turns { turns_max: turns_max.max(2), state: Mutex::default(), changed: Condvar::new() }
    }

    /// Asks for a turn of `user` for `request`, which otherwise is queued until there is one.
    /// `is_interrupted` tells whether an interrupt of it has come already.
    pub fn ask(
        &self,
        user: u32,
        opcode: u32,
        request: &[u8],
        reply: Reply,
        is_interrupted: impl FnOnce(u64) -> bool,
    ) -> TurnOutcome {
        let mut state = self.state.lock();
        let known = state.users.get(&user);
        let first = known.is_none_or(|user| user.queue.is_empty());
        if first && state.has_room(user, self.turns_max) {
            state.take(user);
            return TurnOutcome::Turn(reply);
        }
        let queued = known.map_or(0, |user| user.queued_bytes);
        let waiting = QueuedRequest::new(user, opcode, request, reply);
        let full = queued + request.len() > QUEUED_BYTES_MAX;
        let refused = full && !waiting.ends_an_open();
        // `is_interrupted` first: it is nearly always false, and cheaper than a look at `/proc`.
        if refused || is_interrupted(waiting.reply.unique()) && waiting.may_be_cancelled() {
            return TurnOutcome::Refused(waiting.reply);
        }
        state.enqueue(waiting);
        state.next(self.turns_max).map_or(TurnOutcome::Queued, TurnOutcome::Instead)
    }

    /// Releases a turn of `user`. The caller handles the request that is returned, which has a turn
    /// of its own.
    #[must_use]
    pub fn release(&self, user: u32) -> Option<QueuedRequest> {
        self.state.lock().release(user, self.turns_max)
    }

    /// Gives a turn of `user` away while its request waits for another node; `None` if too many
    /// did. The caller sees to the request that is returned, which has a turn of its own.
    pub fn give_away(&self, user: u32) -> Option<Option<QueuedRequest>> {
        let mut state = self.state.lock();
        if state.away == AWAY_MAX {
            return None;
        }
        state.away += 1;
        Some(state.release(user, self.turns_max))
    }

    /// Takes back a turn that was given away, at once: there may be more than the limit for a
    /// moment.
    pub fn take_back(&self, user: u32) {
        let mut state = self.state.lock();
        state.away -= 1;
        state.take(user);
    }

    /// Takes out the request `unique` if it waits and an interrupt ends it. `otherwise` runs if it
    /// does not wait.
    pub fn interrupt(&self, unique: u64, otherwise: impl FnOnce()) -> Option<QueuedRequest> {
        let mut state = self.state.lock();
        let found = state.remove(unique);
        // A request of a program that lives on stays queued.
        if found.is_none() && !state.keeps(unique) {
            otherwise();
        }
        found
    }

    /// Keeps a request that would have blocked until its next try. Tells whether a thread has to be
    /// started that calls [`Turns::due`] until the end.
    pub fn try_later(
        &self,
        waiting: QueuedRequest,
        is_interrupted: impl FnOnce(u64) -> bool,
    ) -> Later {
        let mut state = self.state.lock();
        if state.stopped || is_interrupted(waiting.reply.unique()) {
            return Later::Cancelled(waiting);
        }
        state.later.push((Instant::now() + waiting.pause, waiting));
        self.changed.notify_one();
        if std::mem::replace(&mut state.thread_runs, true) {
            Later::Kept
        } else {
            Later::NeedsThread
        }
    }

    /// The thread for later tries could not be started. Returns what waits for it.
    pub fn take_stranded(&self) -> Vec<QueuedRequest> {
        let mut state = self.state.lock();
        state.thread_runs = false;
        state.later.drain(..).map(|(_, waiting)| waiting).collect()
    }

    /// Waits for the next request that is due, and returns it with a turn. `None` ends the thread:
    /// nothing is left to try.
    pub fn due(&self) -> Option<QueuedRequest> {
        let mut state = self.state.lock();
        loop {
            let now = Instant::now();
            while let Some(index) = state.later.iter().position(|(at, _)| *at <= now) {
                let (_, waiting) = state.later.swap_remove(index);
                if state.has_room(waiting.user, self.turns_max) {
                    state.take(waiting.user);
                    return Some(waiting);
                }
                // The next thread that releases a turn continues with it.
                state.enqueue(waiting);
            }
            let Some(next) = state.later.iter().map(|(at, _)| *at).min() else {
                state.thread_runs = false;
                return None;
            };
            self.changed.wait_until(&mut state, next);
        }
    }

    /// The mount is gone: ends all waits.
    pub fn stop(&self) {
        let mut state = self.state.lock();
        state.stopped = true;
        state.order.clear();
        let queues = state.users.values_mut().map(|user| std::mem::take(&mut user.queue));
        let queued: Vec<_> = queues.collect();
        let later = std::mem::take(&mut state.later);
        drop(state);
        self.changed.notify_all();
        // Replies are sent without the lock.
        drop((queued, later));
    }
}

/// The fate of a request that is to be tried again.
#[derive(Debug)]
pub enum Later {
    /// It is kept.
    Kept,
    /// It is kept; the thread for later tries has to be started.
    NeedsThread,
    /// It was interrupted, or the mount is gone.
    Cancelled(QueuedRequest),
}

#[cfg(test)]
mod tests {
    use super::*;

    fn turns_of(turns: &Turns, user: u32) -> usize {
        let mut state = turns.state.lock();
        let mut taken = 0;
        while state.has_room(user, turns.turns_max) {
            state.take(user);
            taken += 1;
        }
        taken
    }

    #[test]
    fn every_user_finds_turns_whatever_the_others_took() {
        let turns = Turns::new(64);
        assert_eq!(turns_of(&turns, 1), 32);
        assert_eq!(turns_of(&turns, 2), 16);
        assert_eq!(turns_of(&turns, 3), 8);
        assert_eq!(turns_of(&turns, 1), 0, "what others took is not given to the first");
        assert_eq!(turns_of(&turns, 4), 4);
        for _ in 0..32 {
            assert!(turns.release(1).is_none());
        }
        assert_eq!(turns_of(&turns, 5), 18, "half of what users 2 to 4 left");
    }

    #[test]
    fn turns_that_are_given_away_are_few_and_come_back() {
        let turns = Turns::new(8);
        assert_eq!(turns_of(&turns, 1), 4);
        for _ in 0..AWAY_MAX {
            assert!(matches!(turns.give_away(1), Some(None)));
            assert_eq!(turns_of(&turns, 1), 1, "another request goes on");
        }
        assert!(turns.give_away(1).is_none(), "too many wait");
        for _ in 0..AWAY_MAX {
            turns.take_back(1);
        }
        assert_eq!(turns_of(&turns, 2), 0, "those that came back are more than the limit");
        for _ in 0..AWAY_MAX + 4 {
            assert!(turns.release(1).is_none());
        }
        assert_eq!(turns_of(&turns, 2), 4);
    }
}
