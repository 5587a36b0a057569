//! [`Works`]: the files that a group of threads writes back at present, and how many threads the
//! group may have. The threads of a drain and those that make room are such groups.

use std::time::{Duration, Instant};

use tidepool_proto::FileId;

use super::steps::{Steps, WAITING_MAX, moving};

/// A file that is written back now.
#[derive(Clone, Copy, Debug)]
pub struct Work {
    /// Which file.
    pub file: FileId,
    /// Bytes that become clean with it.
    pub bytes: u64,
    /// When a thread took it up.
    pub begun: Instant,
}

impl Work {
    /// How long the PFS takes for its present step.
    pub fn waits(&self, steps: &Steps) -> Duration {
        steps.waits(self.file, self.begun)
    }
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub struct Works {
    works: Vec<Work>,
    /// Threads of the group.
    pub threads: usize,
    /// When the last file was done.
    done: Option<Instant>,
}

impl Works {
    /// A thread takes a file up.
    pub fn begin(&mut self, file: FileId, bytes: u64, now: Instant) {
        self.works.push(Work { file, bytes, begun: now });
    }

    /// A thread is through with a file.
    pub fn end(&mut self, file: FileId) -> Option<Work> {
        let at = self.works.iter().position(|work| work.file == file)?;
        Some(self.works.swap_remove(at))
    }

    /// A file was done, by which others are judged.
    pub fn note_done(&mut self) {
        self.done = Some(Instant::now());
    }

    /// The files under way.
    pub fn all(&self) -> &[Work] {
        &self.works
    }

    /// Bytes of the files that go on (see [`moving`]).
    pub fn moving(&self, steps: &Steps) -> Vec<u64> {
        let works = self.works.iter().map(|work| (work.waits(steps), work.bytes)).collect();
        moving(works, self.done.map(|done| done.elapsed()))
    }

    /// Threads that the group may have where `places` files may go on at a time: a file that waits
    /// for the PFS leaves its place to the next, up to a bound.
    pub fn threads_max(&self, steps: &Steps, places: usize) -> usize {
        let waiting = self.works.len() - self.moving(steps).len();
        places + waiting.min(WAITING_MAX)
    }
}
