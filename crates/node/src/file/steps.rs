//! [`Steps`]: which files are written back now, and how long each waits for its present step on the
//! PFS. A file that hangs gives its place to others, and operators are told which one it is.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tidepool_proto::FileId;

use super::gate::ExclusiveGate;

/// A file whose last step takes longer leaves its place to another one.
pub const SLOW: Duration = Duration::from_secs(1);
/// A file whose last step takes longer hangs: no thread that needs memory waits for it.
pub const HANGING: Duration = Duration::from_secs(5);
/// Threads that may be waiting for the PFS beyond those that write.
pub const WAITING_MAX: usize = 64;

/// The files that go on, of those that wait for their present steps for so long; `ended` ago one
/// was done. A file that waits a second is left behind where another one was done meanwhile. Where
/// none was, the PFS may be slow: then one is left behind in a second, two in two, so that not all
/// write at a time and none gets done.
pub fn moving<T>(mut files: Vec<(Duration, T)>, ended: Option<Duration>) -> Vec<T> {
    files.sort_by_key(|(waits, _)| std::cmp::Reverse(*waits));
    let is_moving = |(number, (waits, _)): &(u32, (Duration, T))| {
        let is_overtaken = ended.is_some_and(|ended| ended + SLOW <= *waits);
        !is_overtaken && *waits < SLOW * (number + 1)
    };
    (0..).zip(files).filter(is_moving).map(|(_, (_, file))| file).collect()
}

/// When the last step of each file ended. Its lock is taken last.
#[derive(Default)]
pub struct Steps(Mutex<HashMap<FileId, Instant>>);

/// A file that is written back.
pub struct Step<'a> {
    steps: &'a Steps,
    file: FileId,
}

impl Drop for Step<'_> {
    fn drop(&mut self) {
        self.steps.0.lock().remove(&self.file);
    }
}

impl Steps {
    /// A file is written back from now on.
    pub fn begin(&self, file: &ExclusiveGate<'_>) -> Step<'_> {
        self.0.lock().insert(file.id, Instant::now());
        Step { steps: self, file: file.id }
    }

    /// Whether a file is written back now.
    pub fn has(&self, file: FileId) -> bool {
        self.0.lock().contains_key(&file)
    }

    /// A step of it ended.
    pub fn moved(&self, file: FileId) {
        if let Some(moved) = self.0.lock().get_mut(&file) {
            *moved = Instant::now();
        }
    }

    /// How long a file, which a thread took up at `begun`, waits for its present step.
    pub fn waits(&self, file: FileId, begun: Instant) -> Duration {
        let moved = self.0.lock().get(&file).copied();
        moved.map_or(begun, |moved| moved.max(begun)).elapsed()
    }

    /// The files that hang, and for how long.
    pub fn hanging(&self) -> Vec<(FileId, Duration)> {
        let steps = self.0.lock();
        let waits = steps.iter().map(|(file, moved)| (*file, moved.elapsed()));
        waits.filter(|(_, elapsed)| *elapsed >= HANGING).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seconds(waits: &[u64]) -> Vec<(Duration, u64)> {
        waits.iter().map(|&waits| (Duration::from_secs(waits), waits)).collect()
    }

    #[test]
    fn a_slow_pfs_is_not_asked_for_all_files_at_a_time() {
        assert_eq!(moving(seconds(&[0, 0, 0]), None), [0, 0, 0]);
        assert_eq!(moving(seconds(&[0, 1, 0]), None), [0, 0], "one hangs");
        assert_eq!(moving(seconds(&[1, 1, 1, 1]), None), [1, 1, 1], "it may be the PFS");
        assert_eq!(moving(seconds(&[3, 3, 3, 3]), None), [3]);
    }

    #[test]
    fn files_that_others_overtake_are_left_behind() {
        let ended = Some(Duration::from_secs(1));
        assert_eq!(moving(seconds(&[2, 2, 2, 0]), ended), [0]);
        assert_eq!(moving(seconds(&[1, 1, 1]), ended), [1, 1], "it ended no later");
    }
}
