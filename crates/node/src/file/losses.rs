//! Bytes of a file that were in memory alone and are gone: told once, as `EIO`, to each open that
//! may write the file and was there before.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use tidepool_proto::{Error, ErrorKind, Result};

/// What a file lost so far.
#[derive(Debug, Default)]
pub struct Losses {
    count: AtomicU64,
    last: Mutex<Option<Loss>>,
}

/// What was lost at a time.
#[derive(Clone, Copy, Debug)]
struct Loss {
    bytes: u64,
    cause: Cause,
}

/// Why bytes in memory were given up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Another program wrote to the stub.
    AnotherProgram,
    /// The rule of the directory says `expendable`.
    Expendable,
}

/// Which losses an open was told of.
#[derive(Debug)]
pub struct Told(AtomicU64);

impl Losses {
    /// Counts a loss of `bytes`.
    pub fn add(&self, bytes: u64, cause: Cause) {
        *self.last.lock() = Some(Loss { bytes, cause });
        self.count.fetch_add(1, Ordering::Release);
    }

    /// For an open that begins now: it is told of what is lost from here on.
    pub fn listen(&self) -> Told {
        Told(AtomicU64::new(self.count.load(Ordering::Acquire)))
    }

    /// Fails where something was lost that this open was not told of.
    pub fn tell(&self, told: &Told, name: impl FnOnce() -> String) -> Result<()> {
        let count = self.count.load(Ordering::Acquire);
        if told.0.swap(count, Ordering::Relaxed) == count {
            return Ok(());
        }
        let last = *self.last.lock();
        last.map_or(Ok(()), |loss| Err(loss.error(&name())))
    }

    /// The open hears of all there was by an error that it gets in another way.
    pub fn told(&self, told: &Told) {
        told.0.store(self.count.load(Ordering::Acquire), Ordering::Relaxed);
    }
}

impl Loss {
    fn error(&self, name: &str) -> Error {
        let bytes = self.bytes;
        let lost = |detail: String| Error::new(ErrorKind::Lost, "writing", detail);
        match self.cause {
            Cause::AnotherProgram => lost(format!(
                "another program wrote to {name} on the PFS, so its {bytes} bytes that were in \
                 memory alone (mode `memory`) were given up"
            ))
            .remedy("write the file again; let one program write it, or use mode `through`"),
            Cause::Expendable => lost(format!(
                "the {bytes} bytes of {name}, which were in memory alone, were dropped to make \
                 room: its directory is `expendable`"
            ))
            .remedy("write the file again, or take `expendable` from the rule"),
        }
    }
}
