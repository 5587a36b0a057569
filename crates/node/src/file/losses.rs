//! Bytes of a file that were in memory alone and are gone. Each open that may write the file and
//! was there before answers `EIO` to every change, `fsync` and `close` from then on.
//!
//! Once would not do: the kernel turns the error of a later part of a large write into a short
//! count, and a child that ends takes the error of its own `close`.

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

/// Why bytes in memory were discarded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// Another program wrote to the stub.
    AnotherProgram,
    /// The rule of the directory says `expendable`.
    Expendable,
    /// Another node put its copy in the place of the file.
    CopyTaken,
}

/// Losses that an open has nothing to do with, because it began after them.
#[derive(Debug)]
pub struct Before(u64);

impl Losses {
    /// Counts a loss of `bytes`, if there were any.
    pub fn add(&self, bytes: u64, cause: Cause) {
        if bytes == 0 {
            return;
        }
        *self.last.lock() = Some(Loss { bytes, cause });
        self.count.fetch_add(1, Ordering::Release);
    }

    /// For an open that begins now.
    pub fn before(&self) -> Before {
        Before(self.count.load(Ordering::Acquire))
    }

    /// Fails where something was lost since an open began.
    pub fn check(&self, before: &Before, name: impl FnOnce() -> String) -> Result<()> {
        if self.count.load(Ordering::Acquire) == before.0 {
            return Ok(());
        }
        let last = *self.last.lock();
        last.map_or(Ok(()), |loss| Err(loss.error(&name())))
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
            .remedy(
                "open the file again and write it anew; let one program write it, or use mode \
                 `through`",
            ),
            Cause::CopyTaken => lost(format!(
                "this node was gone to others of the cluster, and one that had a copy of {name} \
                 put it in its place; what was written here since the last `fsync` is given up"
            ))
            .remedy("open the file again: it has what was synced; write the rest anew"),
            Cause::Expendable => lost(format!(
                "the {bytes} bytes of {name}, which were in memory alone, were dropped to make \
                 room: its directory is `expendable`"
            ))
            .remedy("write the file anew, or take `expendable` from the rule"),
        }
    }
}
