//! The live loop: a thread that decides at every interval of the monotonic clock, sooner when the
//! kernel reports pressure, and a handle to change and to ask it. Ticks that were missed are not
//! made up for.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};
use tidepool_control_policy::Parameters;
use tidepool_proto::control_page::monotonic_ns;
use tidepool_proto::{Error, ErrorKind, Result};

use crate::governor::Governor;
use crate::process::prepare_thread;
use crate::report::Report;

/// A running controller. It stops when this is dropped; the stores keep their capacities.
pub struct Handle {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    governor: Mutex<Governor>,
    wake: OwnedFd,
    stop: AtomicBool,
}

/// How the loop's thread is scheduled.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Priority {
    /// As any other thread.
    #[default]
    Ordinary,
    /// Before jobs, where that is allowed; where not, one line of the report says so.
    Raised,
}

/// Starts the loop.
///
/// # Errors
///
/// `LimitReached` where the system gives no thread or descriptor.
pub fn start(governor: Governor, priority: Priority) -> Result<Handle> {
    let refused = |what: &str, error: std::io::Error| {
        Error::new(ErrorKind::LimitReached, "starting the memory controller", what)
            .caused_by(error)
            .remedy("raise the limits of tasks and open files")
    };
    let wake = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
        .map_err(|error| refused("no descriptor", error.into()))?;
    // The loop polls the trigger while others hold the lock, so it has its own descriptor.
    let trigger = governor.sensors().wake().and_then(|trigger| trigger.try_clone_to_owned().ok());
    let stop = AtomicBool::new(false);
    let shared = Arc::new(Shared { governor: Mutex::new(governor), wake, stop });
    let theirs = shared.clone();
    let thread = std::thread::Builder::new()
        .name("governor".to_owned())
        .spawn(move || {
            if priority == Priority::Raised
                && let Some(note) = prepare_thread()
            {
                theirs.governor.lock().note(note);
            }
            govern(&theirs, trigger.as_ref());
        })
        .map_err(|error| refused("no thread", error))?;
    Ok(Handle { shared, thread: Some(thread) })
}

impl Handle {
    /// Changes the parameters, policy included, and decides at once.
    ///
    /// # Errors
    ///
    /// As [`Governor::set_parameters`].
    pub fn set_parameters(&self, parameters: Parameters) -> Result<()> {
        self.shared.governor.lock().set_parameters(parameters)?;
        self.shared.wake();
        Ok(())
    }

    /// The present parameters.
    pub fn parameters(&self) -> Parameters {
        self.shared.governor.lock().parameters().clone()
    }

    /// Readings, decisions and their reasons, commands, times.
    pub fn report(&self) -> Report {
        self.shared.governor.lock().report()
    }

    /// Decides now instead of at the end of the interval: a job is about to start, a store came
    /// back.
    pub fn wake(&self) {
        self.shared.wake();
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        self.shared.wake();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn wake(&self) {
        // Full means that a wake-up is on its way already.
        let _ = rustix::io::write(&self.wake, &1_u64.to_ne_bytes());
    }
}

fn govern(shared: &Shared, trigger: Option<&OwnedFd>) {
    let start_ns = monotonic_ns();
    let mut watched = trigger.map(AsFd::as_fd);
    while !shared.stop.load(Ordering::Acquire) {
        let next_ns = shared.governor.lock().tick(monotonic_ns() - start_ns);
        while !sleep(shared, &mut watched, start_ns.saturating_add(next_ns)) {}
    }
}

/// Sleeps until `until_ns` or until something wakes. Answers `false` where it woke for nothing.
fn sleep(shared: &Shared, trigger: &mut Option<BorrowedFd<'_>>, until_ns: u64) -> bool {
    let left_ns = until_ns.saturating_sub(monotonic_ns());
    let timeout = Timespec {
        tv_sec: (left_ns / 1_000_000_000) as i64,
        tv_nsec: (left_ns % 1_000_000_000) as i64,
    };
    let wake = PollFd::new(&shared.wake, PollFlags::IN);
    let pressure = match trigger {
        Some(trigger) => PollFd::from_borrowed_fd(*trigger, PollFlags::PRI),
        None => PollFd::new(&shared.wake, PollFlags::empty()),
    };
    let mut descriptors = [wake, pressure];
    if poll(&mut descriptors, Some(&timeout)).is_err() {
        return monotonic_ns() >= until_ns;
    }
    if descriptors[0].revents().contains(PollFlags::IN) {
        let _ = rustix::io::read(&shared.wake, &mut [0; 8]);
    }
    if descriptors[1].revents().contains(PollFlags::ERR) {
        // The trigger is gone, as with a removed control group: polling alone goes on.
        *trigger = None;
        return false;
    }
    true
}
