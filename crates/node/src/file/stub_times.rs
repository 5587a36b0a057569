//! [`StubTimes`]: the time of the last change of a memory-only file. Its stub tells it, so it is
//! there for all nodes, and stays what it is when the bytes come to the PFS: programs compare times
//! to see whether a file changed.

use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Timespec, Timestamps, UTIME_NOW, UTIME_OMIT};
use tidepool_pfs::LowerFile;
use tidepool_proto::{Error, Result, Version};

/// How far the time of a stub may be behind the last write: each call to the PFS costs the writer.
const BEHIND: Duration = Duration::from_secs(1);

/// See the module's documentation.
#[derive(Debug)]
pub struct StubTimes {
    begun: Instant,
    /// The time of the stub that no program set since it was written, in nanoseconds.
    plain_ns: AtomicI64,
    /// When it was that time, in microseconds since `begun`.
    plain_us: AtomicU64,
    is_behind: AtomicBool,
}

impl StubTimes {
    /// Of a new stub.
    pub fn new(version: &Version) -> Self {
        StubTimes {
            begun: Instant::now(),
            plain_ns: AtomicI64::new(version.modified_ns as i64),
            plain_us: AtomicU64::new(0),
            is_behind: AtomicBool::new(false),
        }
    }

    /// The file is written to, whose stub is known to be at `version`. Where it `is_told`, as what
    /// it was is read on other nodes, its time moves with the next sync.
    pub fn note_change(&self, version: &Version, is_told: bool) {
        // What a program set before counts no more.
        let was_set = self.plain_ns.swap(version.modified_ns as i64, Ordering::Relaxed)
            != version.modified_ns as i64;
        let since = self.now_us().saturating_sub(self.plain_us.load(Ordering::Relaxed));
        if was_set || is_told || since > BEHIND.as_micros() as u64 {
            self.is_behind.store(true, Ordering::Relaxed);
        }
    }

    fn now_us(&self) -> u64 {
        self.begun.elapsed().as_micros() as u64
    }

    /// Brings the time of the stub, which is at `version`, up to date, unless a program set it
    /// since the last write.
    pub fn bring_up_to_date(&self, lower: &dyn LowerFile, version: &Version) -> Result<()> {
        if !self.is_behind.swap(false, Ordering::Relaxed)
            || self.plain_ns.load(Ordering::Relaxed) != version.modified_ns as i64
        {
            return Ok(());
        }
        let time = |tv_nsec| Timespec { tv_sec: 0, tv_nsec };
        let times =
            Timestamps { last_access: time(UTIME_OMIT), last_modification: time(UTIME_NOW) };
        // Not every user may; the bytes are what counts.
        if rustix::fs::futimens(lower.descriptor(), &times).is_err() {
            return Ok(());
        }
        self.plain_ns.store(lower.version()?.modified_ns as i64, Ordering::Relaxed);
        self.plain_us.store(self.now_us(), Ordering::Relaxed);
        Ok(())
    }
}

/// The times of a file, to be set again after it was written.
pub fn times_of(lower: &dyn LowerFile) -> Result<Timestamps> {
    let facts = rustix::fs::fstat(lower.descriptor());
    let facts = facts.map_err(|errno| Error::pfs("asking for times", errno))?;
    let time = |seconds, nanoseconds| Timespec { tv_sec: seconds, tv_nsec: nanoseconds as _ };
    Ok(Timestamps {
        last_access: time(facts.st_atime, facts.st_atime_nsec),
        last_modification: time(facts.st_mtime, facts.st_mtime_nsec),
    })
}

/// Whether a program set the times of a file: they are not those of the moment of its last change.
pub fn were_set(version: &Version) -> bool {
    const APART_NS: u128 = 1_000_000_000;
    (version.changed_ns - version.modified_ns).unsigned_abs() > APART_NS
}
