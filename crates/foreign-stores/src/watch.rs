//! A reading that a thread of its own keeps fresh, so that nobody waits for a slow store.
//!
//! It keeps the last good reading and says whether the newest one failed.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use tidepool_proto::{Error, ErrorKind, Result};

struct Shared<T> {
    reading: Arc<T>,
    failed: bool,
}

/// The newest reading of a store, read again every so often until this is dropped.
pub(crate) struct Watch<T> {
    shared: Arc<Mutex<Shared<T>>>,
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl<T: Send + Sync + 'static> Watch<T> {
    /// Starts with `first` and calls `read` with the last reading every `interval`.
    pub fn start(
        name: &str,
        first: T,
        interval: Duration,
        mut read: impl FnMut(&T) -> Result<T> + Send + 'static,
    ) -> Result<Self> {
        let shared = Arc::new(Mutex::new(Shared { reading: Arc::new(first), failed: false }));
        let (stop, stopped) = channel::<()>();
        let of_thread = Arc::clone(&shared);
        let watching = move || {
            while stopped.recv_timeout(interval) == Err(RecvTimeoutError::Timeout) {
                let last = Arc::clone(&of_thread.lock().reading);
                let next = read(&last);
                let mut shared = of_thread.lock();
                match next {
                    Ok(reading) => {
                        *shared = Shared { reading: Arc::new(reading), failed: false };
                    }
                    Err(error) => {
                        if !shared.failed {
                            tracing::warn!(%error, "a store does not answer or must be left alone");
                        }
                        shared.failed = true;
                    }
                }
            }
        };
        let thread = std::thread::Builder::new().name(format!("watch-{name}")).spawn(watching);
        let thread = thread.map_err(|error| {
            Error::new(ErrorKind::LimitReached, "starting the watch of a store", "")
                .caused_by(error)
        })?;
        Ok(Watch { shared, stop: Some(stop), thread: Some(thread) })
    }

    /// The last good reading, and whether the newest try failed. Never waits for the store.
    pub fn newest(&self) -> (Arc<T>, bool) {
        let shared = self.shared.lock();
        (Arc::clone(&shared.reading), shared.failed)
    }

    /// Takes a reading that came another way.
    pub fn put(&self, reading: T) {
        *self.shared.lock() = Shared { reading: Arc::new(reading), failed: false };
    }
}

impl<T> Drop for Watch<T> {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
