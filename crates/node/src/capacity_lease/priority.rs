//! The thread that carries out what a controller says runs before jobs: they wait for the memory
//! that it gives back, and a store whose controller has real-time priority would otherwise still
//! wait for its turn behind them.

use std::cell::Cell;

/// As a controller's where it may not have a real-time priority. No real-time here: a large
/// eviction takes a tenth of a second, which jobs must not stand still for.
const NICE: i32 = -15;

thread_local! {
    static IS_RAISED: Cell<bool> = const { Cell::new(false) };
}

/// Raises the calling thread, and with it the threads that it starts, once. For a thread that
/// serves a controller and ends with its connection. Refused without the right to: the controller
/// asks for the same, and says what it costs.
pub(super) fn run_before_jobs() {
    if !IS_RAISED.replace(true) {
        let thread = rustix::thread::gettid();
        let _ = rustix::process::setpriority_process(Some(thread), NICE);
    }
}
