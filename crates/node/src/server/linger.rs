//! Loans of clients that were cut off while they live: a suspended process, say, that did not take
//! a reply in time. It still has the lent memory mapped, so what it was lent stays until it ends.
//! The loans count against its user all the while.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, pidfd_open};

use super::connection::{STACK_BYTES, Shared};
use super::session::Loan;

/// How soon a stop of the server is noticed.
const LOOK_AGAIN: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// Keeps `loans` until the process ends or the server stops. Without a way to tell, they go.
pub(super) fn keep_while_alive(loans: Vec<Loan>, process_id: Option<u32>, shared: Arc<Shared>) {
    let process = process_id.and_then(|id| i32::try_from(id).ok()).and_then(Pid::from_raw);
    // Fails if the process is gone already, which is the common case.
    let Some(Ok(process)) = process.map(|id| pidfd_open(id, PidfdFlags::empty())) else { return };
    let keeper = move || {
        let _loans = loans;
        while !shared.stopping.load(Ordering::Acquire) {
            let mut watched = [PollFd::new(&process, PollFlags::IN)];
            if matches!(poll(&mut watched, Some(&LOOK_AGAIN)), Ok(ready) if ready > 0) {
                return;
            }
        }
    };
    if thread::Builder::new()
        .name("loans".to_owned())
        .stack_size(STACK_BYTES)
        .spawn(keeper)
        .is_err()
    {
        tracing::warn!("no thread to keep what a client was lent: it is given back");
    }
}
