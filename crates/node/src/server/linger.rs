//! Loans of clients that were cut off while they live: a suspended process, say, that did not take
//! a reply in time. It still has the lent memory mapped, so what it was lent stays until it ends.
//! Loans and connection count against their user all the while. One thread watches all of them.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::connection::{STACK_BYTES, Shared};
use super::limits::Ticket;
use super::session::Loan;

/// How soon a stop of the server, and a further process, are noticed.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// What processes that were cut off still hold.
#[derive(Default)]
pub(super) struct Lingering(Mutex<State>);

#[derive(Default)]
struct State {
    watched: bool,
    holders: Vec<Holder>,
}

struct Holder {
    process: Arc<OwnedFd>,
    _loans: Vec<Loan>,
    _connection: Arc<Ticket>,
}

/// A process by its id, if it is there.
pub(super) fn process_of(process_id: Option<u32>) -> Option<OwnedFd> {
    let process = process_id.and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw)?;
    // Fails if the process is gone already, which is the common case.
    pidfd_open(process, PidfdFlags::empty()).ok()
}

impl Lingering {
    /// Keeps `loans` until the process ends or the server stops.
    pub(super) fn keep(
        &self,
        loans: Vec<Loan>,
        process: OwnedFd,
        connection: Arc<Ticket>,
        shared: &Arc<Shared>,
    ) {
        let process = Arc::new(process);
        let mut state = self.0.lock();
        state.holders.push(Holder { process, _loans: loans, _connection: connection });
        if state.watched {
            return;
        }
        let shared = Arc::clone(shared);
        let builder = thread::Builder::new().name("loans".to_owned()).stack_size(STACK_BYTES);
        state.watched = builder.spawn(move || shared.lingering.watch(&shared)).is_ok();
        if !state.watched {
            tracing::warn!("no thread to watch clients that were lent memory: it stays lent");
        }
    }

    fn watch(&self, shared: &Shared) {
        loop {
            let processes: Vec<Arc<OwnedFd>> = {
                let mut state = self.0.lock();
                if state.holders.is_empty() || shared.stopping.load(Ordering::Acquire) {
                    state.watched = false;
                    return;
                }
                state.holders.iter().map(|holder| Arc::clone(&holder.process)).collect()
            };
            let descriptors: Vec<BorrowedFd<'_>> = processes.iter().map(|it| it.as_fd()).collect();
            let ended = ended(&descriptors);
            if !ended.iter().any(|ended| *ended) {
                continue;
            }
            let mut state = self.0.lock();
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

    /// Gives everything back, when the server stopped.
    pub(super) fn clear(&self) {
        let holders = std::mem::take(&mut self.0.lock().holders);
        drop(holders);
    }
}

/// Which of these processes ended, waiting a little for the first one.
fn ended(processes: &[BorrowedFd<'_>]) -> Vec<bool> {
    let mut watched: Vec<PollFd<'_>> =
        processes.iter().map(|process| PollFd::from_borrowed_fd(*process, PollFlags::IN)).collect();
    match poll(&mut watched, Some(&LOOK_AGAIN)) {
        Ok(_) => watched.iter().map(|process| !process.revents().is_empty()).collect(),
        Err(_) => Vec::new(),
    }
}
