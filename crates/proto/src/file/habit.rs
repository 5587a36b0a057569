//! Rules of read-ahead that node and client library share: whether a reader wants more than a
//! sample, and how fast the window grows.
//!
//! Each recognises runs of reads by itself. The client library sees all reads of an open in their
//! order, knows what the program plans, and must cost a reader of resident bytes no lock. The node
//! gets the reads of a mount from several threads, so their order may be blurred, asks for whole
//! blocks, and looks for strides.

use std::sync::atomic::{AtomicU32, Ordering};

/// Readers that count.
const LATEST: u32 = 16;

/// The window of a sequential reader after one of `window_bytes`: twice as long, at least two
/// blocks, at most `bytes_max`.
pub fn grown_window(window_bytes: u64, block_bytes: u64, bytes_max: u64) -> u64 {
    (2 * window_bytes.max(block_bytes)).min(bytes_max)
}

/// Whether readers that begin at the head of a file go on beyond its first block, of late. Where
/// they mostly do not, as with samples of training sets, reading ahead of the first block brings in
/// what nobody wants, in the place of something that somebody does.
#[derive(Debug)]
pub struct Habit(AtomicU32);

impl Default for Habit {
    fn default() -> Self {
        Habit(AtomicU32::new(LATEST))
    }
}

impl Habit {
    /// Whether most went on.
    pub fn goes_on(&self) -> bool {
        self.0.load(Ordering::Relaxed) >= LATEST / 2
    }

    /// Whether a reader may want no more than what its run of `run_bytes` got: a sample. One that
    /// began at the head of the file does where the latest that began there went no further.
    pub fn may_be_sample(&self, from_head: bool, run_bytes: u64, block_bytes: u64) -> bool {
        !(from_head && self.goes_on()) && run_bytes <= block_bytes
    }

    /// Counts a reader that began at the head of a file and whose run of `run_bytes` is over.
    pub fn note_run(&self, run_bytes: u64, block_bytes: u64) {
        if run_bytes > 0 {
            self.note(run_bytes > block_bytes);
        }
    }

    /// Counts one reader. Those that race may be lost: it is a guess.
    pub fn note(&self, went_on: bool) {
        let count = self.0.load(Ordering::Relaxed);
        let count = if went_on { (count + 1).min(LATEST) } else { count.saturating_sub(1) };
        self.0.store(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::{Habit, grown_window};

    #[test]
    fn the_latest_readers_decide() {
        let habit = Habit::default();
        habit.note(false);
        assert!(habit.goes_on(), "one is chance");
        (0..100).for_each(|_| habit.note(false));
        assert!(!habit.goes_on());
        (0..10).for_each(|_| habit.note(true));
        assert!(habit.goes_on());
    }

    #[test]
    fn a_block_is_a_sample_but_for_readers_of_heads_that_mostly_go_on() {
        let habit = Habit::default();
        assert!(!habit.may_be_sample(true, 1, 4) && habit.may_be_sample(false, 4, 4));
        assert!(!habit.may_be_sample(false, 5, 4));
        (0..100).for_each(|_| habit.note_run(4, 4));
        (0..100).for_each(|_| habit.note_run(0, 4));
        assert!(habit.may_be_sample(true, 4, 4), "what read nothing does not count");
        (0..10).for_each(|_| habit.note_run(5, 4));
        assert!(!habit.may_be_sample(true, 4, 4));
    }

    #[test]
    fn windows_double_between_two_blocks_and_the_limit() {
        assert_eq!([0, 4, 8, 12, 16].map(|window| grown_window(window, 4, 24)), [8, 8, 16, 24, 24]);
        assert_eq!(grown_window(8, 4, 0), 0);
    }
}
