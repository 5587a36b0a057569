//! [`Background`]: files that are written to the PFS while nobody waits for them. They leave the
//! PFS to those who read it (see `WriteRate`), until somebody waits for the file, or memory or
//! room in burst buffers is needed: then it is written as fast as the PFS takes it.

use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::write_rate::{self, WriteRate};
use crate::core::Core;

/// What is written at a time: less than readers notice.
const PIECE_BYTES: u64 = 1 << 20;
/// A file costs the PFS as much as so many bytes, whatever its length: it is synced.
const FILE_BYTES: u64 = 64 << 10;
/// How often it is looked whether memory is needed, or the node ends.
const LOOK_AGAIN: Duration = Duration::from_millis(50);

/// See the module's documentation.
pub struct Background {
    rate: Mutex<WriteRate>,
}

/// A read of the PFS that is under way.
pub struct Reading<'a> {
    of: &'a Background,
    read: write_rate::Read,
    bytes: u64,
}

impl Reading<'_> {
    /// It ended with so many bytes.
    pub fn end(mut self, bytes: u64) {
        self.bytes = bytes;
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.of.rate.lock().end_read(self.read, self.bytes, Instant::now());
    }
}

/// Waits until somebody needs a file that is written, for no longer than it is told; whether
/// somebody does.
pub type WaitUntilWanted<'a> = dyn Fn(Duration) -> bool + 'a;

/// A file that is being written.
pub struct Writing<'a> {
    core: &'a Core,
    wait_until_wanted: &'a WaitUntilWanted<'a>,
    has_begun: bool,
    /// A piece of it is written.
    is_under_way: bool,
}

impl Background {
    /// With most bytes a second, where there is such a limit.
    pub fn new(cap_bytes_per_s: Option<u64>) -> Self {
        Background { rate: Mutex::new(WriteRate::new(cap_bytes_per_s)) }
    }

    /// A read of the PFS begins that somebody waits for, or soon will.
    pub fn begin_read(&self) -> Reading<'_> {
        let read = self.rate.lock().begin_read(Instant::now());
        Reading { of: self, read, bytes: 0 }
    }

    /// Bytes a second that files are held to now; `None`: as many as the PFS takes.
    pub fn limit(&self) -> Option<u64> {
        self.rate.lock().limit(Instant::now())
    }
}

impl<'a> Writing<'a> {
    /// Begins to write a file.
    pub fn begin(core: &'a Core, wait_until_wanted: &'a WaitUntilWanted<'a>) -> Self {
        core.background.rate.lock().begin_file();
        Writing { core, wait_until_wanted, has_begun: false, is_under_way: false }
    }

    /// The piece before this one is written. Waits until the next may be, of so many bytes at most;
    /// how many it may have.
    pub fn next(&mut self, bytes: u64) -> u64 {
        self.end_piece();
        let piece = bytes.min(PIECE_BYTES);
        let counts = piece + if self.has_begun { 0 } else { FILE_BYTES };
        let is_hurried = self.wait(counts);
        self.core.background.rate.lock().begin_write();
        (self.has_begun, self.is_under_way) = (true, true);
        if is_hurried { bytes } else { piece }
    }

    /// Waits for the right to write; true where it was not waited for, as there is no time.
    fn wait(&self, bytes: u64) -> bool {
        let mut pause = Duration::ZERO;
        loop {
            if (self.wait_until_wanted)(pause.min(LOOK_AGAIN)) || self.core.is_short_of_room() {
                return true;
            }
            match self.core.background.rate.lock().take(bytes, Instant::now()) {
                Ok(()) => return false,
                Err(wait) => pause = wait,
            }
        }
    }

    fn end_piece(&mut self) {
        if std::mem::take(&mut self.is_under_way) {
            self.core.background.rate.lock().end_write(Instant::now());
        }
    }
}

impl Drop for Writing<'_> {
    fn drop(&mut self) {
        self.end_piece();
        self.core.background.rate.lock().end_file(Instant::now());
    }
}

impl Core {
    /// Whether files are to come to the PFS as fast as it takes them: memory is needed, or room in
    /// burst buffers, or the node ends.
    fn is_short_of_room(&self) -> bool {
        let is_ending = self.cluster().is_none_or(|cluster| cluster.is_stopping());
        let are_buffers_well = || self.cluster().is_some_and(|it| it.are_buffers_well());
        is_ending || self.drained.is_on() || self.write_back_pool.is_needed() || !are_buffers_well()
    }
}
