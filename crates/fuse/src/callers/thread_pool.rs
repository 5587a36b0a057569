//! [`ThreadPool`]: runs jobs that may wait, so that the threads that read requests need not.
//!
//! Threads start on demand up to a limit and end when idle. Jobs beyond the limit queue in order.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};

const IDLE_MAX: Duration = Duration::from_secs(5);

type Job = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct State {
    jobs: VecDeque<Job>,
    threads: usize,
    idle: usize,
}

struct Shared {
    state: Mutex<State>,
    work: Condvar,
    threads_max: usize,
}

/// A pool of threads. Queued jobs are run even after the pool is dropped.
pub struct ThreadPool {
    shared: Arc<Shared>,
}

impl std::fmt::Debug for ThreadPool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("WaitingThreads").finish_non_exhaustive()
    }
}

impl ThreadPool {
    /// A pool of at most `threads_max` threads.
    pub fn new(threads_max: usize) -> Self {
        let shared = Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            threads_max: threads_max.max(1),
        };
        ThreadPool { shared: Arc::new(shared) }
    }

    /// Runs `job` on one of the threads.
    pub fn run(&self, job: impl FnOnce() + Send + 'static) {
        let mut state = self.shared.state.lock();
        state.jobs.push_back(Box::new(job));
        if state.jobs.len() <= state.idle || state.threads >= self.shared.threads_max {
            self.shared.work.notify_one();
            return;
        }
        state.threads += 1;
        drop(state);
        let shared = self.shared.clone();
        let started = std::thread::Builder::new()
            .name("tide-wait".to_owned())
            .spawn(move || shared.work_until_idle());
        if let Err(error) = started {
            tracing::warn!(%error, "starting a waiting thread failed");
            let mut state = self.shared.state.lock();
            state.threads -= 1;
            // Without any thread nothing would ever take the job.
            let left = if state.threads == 0 { state.jobs.pop_back() } else { None };
            drop(state);
            if let Some(job) = left {
                job();
            }
        }
    }
}

impl Shared {
    fn work_until_idle(&self) {
        if crate::callers::credentials::begin_thread().is_err() {
            tracing::error!("a waiting thread could not take the daemon's identity");
        }
        let mut state = self.state.lock();
        loop {
            if let Some(job) = state.jobs.pop_front() {
                drop(state);
                let outcome = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
                if outcome.is_err() {
                    tracing::error!("a request that was put off panicked");
                }
                state = self.state.lock();
                continue;
            }
            state.idle += 1;
            let timed_out = self.work.wait_for(&mut state, IDLE_MAX).timed_out();
            state.idle -= 1;
            if timed_out && state.jobs.is_empty() {
                state.threads -= 1;
                return;
            }
        }
    }
}
