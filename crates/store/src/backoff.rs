//! Waiting for what another thread finishes soon: first by giving the processor away, then by short
//! sleeps.

use std::time::Duration;

/// Times that the processor is given away before the first sleep.
const YIELDS: u32 = 32;
const SLEEP: Duration = Duration::from_micros(50);

/// One wait, from its first step on.
#[derive(Default)]
pub(crate) struct Backoff(u32);

impl Backoff {
    /// One step of the wait.
    pub fn wait(&mut self) {
        if self.0 < YIELDS {
            std::thread::yield_now();
        } else {
            std::thread::sleep(SLEEP);
        }
        self.0 = self.0.saturating_add(1);
    }
}
