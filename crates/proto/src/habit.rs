//! What readers were seen to do of late, for guesses about the next one. Node and client library
//! guess alike.

use std::sync::atomic::{AtomicU32, Ordering};

/// Readers that count.
const LATEST: u32 = 16;

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

    /// Counts one reader. Those that race may be lost: it is a guess.
    pub fn note(&self, went_on: bool) {
        let count = self.0.load(Ordering::Relaxed);
        let count = if went_on { (count + 1).min(LATEST) } else { count.saturating_sub(1) };
        self.0.store(count, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::Habit;

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
}
