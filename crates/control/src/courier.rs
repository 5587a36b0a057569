//! Carries capacities to one store, on a thread of its own, so that a slow store never delays a
//! decision. One command is under way at a time; of those that wait only the latest counts. Never
//! repeats a command because its answer is late.

use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tidepool_proto::{Error, ErrorKind, Result};

use crate::actuator::{Actuator, Resized};
use crate::latency::Histogram;

/// A release smaller than this says little about the rate.
const LEARNED_BYTES_MIN: u64 = 1 << 20;

/// A capacity on its way to the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub number: u64,
    pub capacity_bytes: u64,
    pub deadline: Duration,
}

/// What the governor sees of the commands of one store.
#[derive(Clone, Debug, Default)]
pub(crate) struct Progress {
    /// Waits until the one under way is answered.
    pub pending: Option<Order>,
    /// Under way.
    pub running: Option<Order>,
    /// The last one that was answered, and whether the store did what it could.
    pub answered: Option<(Order, bool)>,
    /// Measured rate at which memory comes back; 0 while unknown.
    pub release_bytes_per_s: u64,
    /// Bytes that came back in all.
    pub freed_bytes: u64,
    /// Commands that failed.
    pub failures: u64,
}

impl Progress {
    /// The lowest capacity that is asked for and not answered.
    pub fn lowest_bytes(&self) -> Option<u64> {
        [self.running, self.pending].into_iter().flatten().map(|order| order.capacity_bytes).min()
    }

    /// The capacity that was asked for last and is not answered.
    pub fn latest_bytes(&self) -> Option<u64> {
        self.pending.or(self.running).map(|order| order.capacity_bytes)
    }

    /// Learns from a release: the first measurement counts whole, later ones half.
    fn learn(&mut self, resized: &Resized) {
        self.freed_bytes = self.freed_bytes.saturating_add(resized.freed_bytes);
        let seconds = resized.elapsed.as_secs_f64();
        if resized.freed_bytes < LEARNED_BYTES_MIN || seconds <= 0.0 {
            return;
        }
        let rate = (resized.freed_bytes as f64 / seconds) as u64;
        self.release_bytes_per_s = match self.release_bytes_per_s {
            0 => rate,
            known => known / 2 + rate / 2,
        };
    }
}

#[derive(Default)]
struct Mailbox {
    progress: Progress,
    release_time: Histogram,
    last_error: Option<String>,
    closed: bool,
}

/// Locks of the standard library: those of `parking_lot` allocate when a thread first waits, and a
/// decision must not.
#[derive(Default)]
struct Shared {
    mailbox: Mutex<Mailbox>,
    changed: Condvar,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Mailbox> {
        self.mailbox.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The way to one store.
pub(crate) struct Courier {
    actuator: Arc<dyn Actuator>,
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
    numbers: u64,
}

impl Courier {
    /// Starts the thread of a store.
    pub fn start(actuator: Arc<dyn Actuator>) -> Result<Self> {
        let shared = Arc::<Shared>::default();
        let (theirs, carried) = (shared.clone(), actuator.clone());
        let thread = std::thread::Builder::new()
            .name("courier".to_owned())
            .spawn(move || carry(&*carried, &theirs))
            .map_err(|error| {
                Error::new(ErrorKind::LimitReached, "starting the thread of a store", "")
                    .caused_by(error)
                    .remedy("raise the limit of tasks (ulimit -u)")
            })?;
        Ok(Courier { actuator, shared, thread: Some(thread), numbers: 0 })
    }

    /// Asks for a capacity; replaces one that still waits.
    pub fn ask(&mut self, capacity_bytes: u64, deadline: Duration) {
        self.actuator.expect(capacity_bytes);
        self.numbers += 1;
        let order = Order { number: self.numbers, capacity_bytes, deadline };
        self.shared.lock().progress.pending = Some(order);
        self.shared.changed.notify_all();
    }

    /// How far the commands are.
    pub fn progress(&self) -> Progress {
        self.shared.lock().progress.clone()
    }

    /// A command is late: the store is slower than believed.
    pub fn distrust(&self) {
        self.shared.lock().progress.release_bytes_per_s /= 2;
    }

    /// Times of commands, and the last failure.
    pub fn history(&self) -> (Histogram, Option<String>) {
        let mailbox = self.shared.lock();
        (mailbox.release_time.clone(), mailbox.last_error.clone())
    }
}

impl Drop for Courier {
    /// A store that does not answer keeps its thread: waiting for it could take for ever.
    fn drop(&mut self) {
        let mut mailbox = self.shared.lock();
        mailbox.closed = true;
        let busy = mailbox.progress.running.is_some();
        drop(mailbox);
        self.shared.changed.notify_all();
        if let Some(thread) = self.thread.take()
            && !busy
        {
            let _ = thread.join();
        }
    }
}

fn carry(actuator: &dyn Actuator, shared: &Shared) {
    loop {
        let mut mailbox = shared.lock();
        let order = loop {
            if mailbox.closed {
                return;
            }
            match mailbox.progress.pending.take() {
                Some(order) => break order,
                None => {
                    let woken = shared.changed.wait(mailbox);
                    mailbox = woken.unwrap_or_else(PoisonError::into_inner);
                }
            }
        };
        mailbox.progress.running = Some(order);
        drop(mailbox);
        let outcome = actuator.resize(order.capacity_bytes, order.deadline);
        let mut mailbox = shared.lock();
        let progress = &mut mailbox.progress;
        progress.running = None;
        progress.answered = Some((order, outcome.is_ok()));
        match outcome {
            Ok(resized) => {
                progress.learn(&resized);
                if resized.freed_bytes > 0 {
                    mailbox.release_time.add(resized.elapsed);
                }
            }
            Err(error) => {
                progress.failures += 1;
                mailbox.last_error = Some(error.to_string());
            }
        }
        shared.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rate_is_learned_from_real_releases_only() {
        let mut progress = Progress::default();
        let mut learn = |freed_bytes, millis| {
            let elapsed = Duration::from_millis(millis);
            progress.learn(&Resized { freed_bytes, resident_bytes: 0, elapsed });
            progress.release_bytes_per_s
        };
        assert_eq!(learn(4096, 1), 0);
        assert_eq!(learn(1 << 30, 0), 0, "no time, no rate");
        assert_eq!(learn(1 << 30, 1000), 1 << 30);
        assert_eq!(learn(2 << 30, 500), (1 << 29) + (2 << 30));
    }
}
