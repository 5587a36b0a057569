//! Borrows of clients that were cut off while they live, as a suspended process that did not take a
//! reply in time. Such a process still has the borrowed memory mapped, so it stays until the
//! process ends, or this one. Borrows and connection count against their user all the while. One
//! thread watches all of them. The same holds for all borrows when the server stops.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tidepool_proto::wire::socket::peer_process;

use super::limits::{STACK_BYTES, Ticket};
use super::session::Borrow;

/// How soon a stop of the server, and a further process, are noticed.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };
/// For a look that waits for nothing.
pub(super) const AT_ONCE: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };

/// What processes that were cut off still have borrowed.
pub(super) struct Lingering {
    state: Mutex<State>,
    /// The server stops.
    stopping: Arc<AtomicBool>,
}

#[derive(Default)]
struct State {
    watched: bool,
    holders: Vec<Holder>,
}

struct Holder {
    /// None where nobody can tell whether it is there.
    process: Option<Arc<OwnedFd>>,
    _borrows: Vec<Borrow>,
    _connection: Arc<Ticket>,
}

/// Where a process is.
#[derive(Clone)]
pub(super) enum Whereabouts {
    /// It ended.
    Gone,
    /// Here, when it was looked for.
    Here(Arc<OwnedFd>),
    /// In another pid name space, or no descriptor is to be had: nobody can tell.
    Unknown,
}

impl Whereabouts {
    /// Looks for the process that made a connection. `process_id` is what finds it where the kernel
    /// does not tell by itself (before Linux 6.5). There a process that ended before its connection
    /// was taken may be mistaken for a later one of its number.
    pub(super) fn of_peer(socket: BorrowedFd<'_>, process_id: Option<u32>) -> Self {
        let found = peer_process(socket).map_err(|error| Errno::from_io_error(&error));
        let found = match found {
            Err(Some(Errno::NOPROTOOPT)) => {
                let id = process_id.and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
                let Some(id) = id else { return Whereabouts::Unknown };
                pidfd_open(id, PidfdFlags::empty()).map_err(Some)
            }
            found => found,
        };
        match found {
            Ok(process) => Whereabouts::Here(Arc::new(process)),
            // The second is what some kernels say of a process that was waited for.
            Err(Some(Errno::SRCH | Errno::INVAL)) => Whereabouts::Gone,
            Err(_) => Whereabouts::Unknown,
        }
    }

    /// What says that the process ended, by becoming readable.
    pub(super) fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        match self {
            Whereabouts::Here(process) => Some(process.as_fd()),
            Whereabouts::Gone | Whereabouts::Unknown => None,
        }
    }

    /// Where it is by now.
    pub(super) fn now(&self) -> Whereabouts {
        let Whereabouts::Here(process) = self else { return self.clone() };
        let mut watched = [PollFd::new(process, PollFlags::IN)];
        match poll(&mut watched, Some(&AT_ONCE)) {
            Ok(0) | Err(_) => self.clone(),
            Ok(_) => Whereabouts::Gone,
        }
    }
}

impl Lingering {
    pub(super) fn new(stopping: &Arc<AtomicBool>) -> Arc<Self> {
        Arc::new(Lingering { state: Mutex::default(), stopping: Arc::clone(stopping) })
    }

    /// Keeps `borrows` until the process ends or the server stops.
    pub(super) fn keep(
        self: &Arc<Self>,
        borrows: Vec<Borrow>,
        process: Option<Arc<OwnedFd>>,
        connection: Arc<Ticket>,
    ) {
        let mut state = self.state.lock();
        state.holders.push(Holder { process, _borrows: borrows, _connection: connection });
        if state.watched {
            return;
        }
        let lingering = Arc::clone(self);
        let builder = thread::Builder::new().name("borrowers".to_owned()).stack_size(STACK_BYTES);
        state.watched = builder.spawn(move || lingering.watch()).is_ok();
        if !state.watched {
            tracing::warn!("no thread to watch clients that borrowed memory: it stays borrowed");
        }
    }

    fn watch(&self) {
        loop {
            let processes: Vec<Option<Arc<OwnedFd>>> = {
                let mut state = self.state.lock();
                if state.holders.is_empty() || self.stopping.load(Ordering::Acquire) {
                    state.watched = false;
                    return;
                }
                state.holders.iter().map(|holder| holder.process.clone()).collect()
            };
            let ended = ended(&processes);
            if !ended.iter().any(|ended| *ended) {
                continue;
            }
            let mut state = self.state.lock();
            let holders = std::mem::take(&mut state.holders);
            // Only this thread takes out, and others add at the end.
            let mut ended = ended.into_iter().chain(std::iter::repeat(false));
            let (gone, kept) =
                holders.into_iter().partition(|_| ended.next().is_some_and(|ended| ended));
            state.holders = kept;
            drop(state);
            drop::<Vec<Holder>>(gone);
        }
    }

    /// The server stopped. What processes that live have borrowed is given back by nobody: they
    /// may still look at it, so nothing may free or change it, and it ends with this process.
    pub(super) fn leave(&self) {
        let holders = std::mem::take(&mut self.state.lock().holders);
        for holder in holders {
            match holder.process.clone().map(Whereabouts::Here).map(|process| process.now()) {
                Some(Whereabouts::Gone) => drop(holder),
                _ => std::mem::forget(holder),
            }
        }
    }
}

/// Which of these processes ended, waiting a little for the first one.
fn ended(processes: &[Option<Arc<OwnedFd>>]) -> Vec<bool> {
    let known = processes.iter().flatten();
    let mut watched: Vec<PollFd<'_>> =
        known.map(|process| PollFd::new(process, PollFlags::IN)).collect();
    if poll(&mut watched, Some(&LOOK_AGAIN)).is_err() {
        return Vec::new();
    }
    let mut answers = watched.iter().map(|process| !process.revents().is_empty());
    let answer = |known: &Option<_>| known.is_some() && answers.next().unwrap_or(false);
    processes.iter().map(answer).collect()
}
