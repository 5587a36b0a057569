//! Recognises sequential reading of one open file and says which range to ask the node for. Sends
//! nothing itself, and costs a reader of resident bytes two loads and a store.
//!
//! A reader that begins inside of the file reads one block first, for a sample may be all that it
//! wants; one that begins at the head does where the latest readers of other heads went no further
//! (`tidepool_proto::habit`).

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tidepool_proto::Habit;
use tidepool_proto::habit::grown_window;

use crate::options::{ReadPattern, ReadPlan};

/// Most bytes asked for ahead of the reader: sixteen transfers of the default block size.
const WINDOW_BYTES_MAX: u64 = 64 << 20;

/// A first read shorter than this may only look at the head of the file.
const HEAD_BYTES: usize = 128 << 10;

/// What the reads of one open file looked like so far. Racing readers may blur it; all that can
/// come of it is a hint too many or too few.
#[derive(Debug)]
pub(crate) struct ReadAhead {
    habit: Arc<Habit>,
    /// The length of the first reads decides nothing.
    eager: bool,
    start: u64,
    end: u64,
    /// What a caller asked for; `u64::MAX` is what the plan says.
    asked_bytes_max: AtomicU64,
    planned_bytes_max: u64,
    /// Where the present run of reads began.
    run_start: AtomicU64,
    /// Where the last read ended.
    expected: AtomicU64,
    /// How far was asked for.
    reached: AtomicU64,
    window_bytes: AtomicU64,
}

impl ReadAhead {
    /// A fresh open. `habit` is what all opens share.
    pub(crate) fn new(plan: &ReadPlan, habit: Arc<Habit>) -> ReadAhead {
        let random = plan.pattern == ReadPattern::Random;
        ReadAhead {
            habit,
            eager: matches!(plan.pattern, ReadPattern::Sequential | ReadPattern::Whole),
            start: plan.start,
            end: plan.end.unwrap_or(u64::MAX),
            asked_bytes_max: AtomicU64::new(u64::MAX),
            planned_bytes_max: if random { 0 } else { WINDOW_BYTES_MAX },
            run_start: AtomicU64::new(plan.start),
            expected: AtomicU64::new(plan.start),
            reached: AtomicU64::new(plan.start),
            window_bytes: AtomicU64::new(0),
        }
    }

    /// Reads ahead this far at most from now on, whatever the plan says; `None` as it says.
    pub(crate) fn set_bytes_max(&self, bytes_max: Option<u64>) {
        let bytes_max = bytes_max.map(|bytes| bytes.min(WINDOW_BYTES_MAX));
        self.asked_bytes_max.store(bytes_max.unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// How far the node may read ahead by itself; `None` as far as it likes.
    pub(crate) fn advised_bytes_max(&self) -> Option<u64> {
        match self.asked_bytes_max.load(Ordering::Relaxed) {
            // What ends somewhere is planned here, where the end is known.
            u64::MAX => (self.planned_bytes_max == 0 || self.end != u64::MAX).then_some(0),
            asked => Some(asked),
        }
    }

    /// Whether a reader that got to `end` may want no more.
    fn may_be_a_sample(&self, end: u64, block_bytes: u64) -> bool {
        if self.asked_bytes_max.load(Ordering::Relaxed) != u64::MAX {
            return false;
        }
        let run_start = self.run_start.load(Ordering::Relaxed);
        let run_bytes = end.saturating_sub(run_start);
        self.habit.may_be_sample(run_start == self.start, run_bytes, block_bytes)
    }

    /// Tells other opens whether this one went on from the head of the file.
    fn end_run(&self, end: u64, block_bytes: u64) {
        let run_start = self.run_start.load(Ordering::Relaxed);
        if run_start == self.start {
            self.habit.note_run(end.saturating_sub(run_start), block_bytes);
        }
    }

    /// The open is over.
    pub(crate) fn end(&self, block_bytes: u64) {
        self.end_run(self.expected.load(Ordering::Relaxed), block_bytes);
    }

    /// What to ask for when a file is opened.
    pub(crate) fn at_open(&self, size: u64) -> Range<u64> {
        let target = self.start.saturating_add(WINDOW_BYTES_MAX).min(self.end).min(size);
        self.reached.store(target.max(self.start), Ordering::Relaxed);
        self.start..target
    }

    /// Takes note of a read; the range to ask for, if any.
    pub(crate) fn note(&self, offset: u64, length: usize, block_bytes: u64) -> Option<Range<u64>> {
        let end = offset + length as u64;
        let expected = self.expected.load(Ordering::Relaxed);
        self.expected.store(end, Ordering::Relaxed);
        let window_bytes = self.window_bytes.load(Ordering::Relaxed);
        let looks_at_head = !self.eager && offset == self.start && length < HEAD_BYTES;
        if expected != offset {
            self.end_run(expected, block_bytes);
            self.run_start.store(offset, Ordering::Relaxed);
        }
        if expected != offset || length == 0 || looks_at_head {
            if window_bytes != 0 {
                self.window_bytes.store(0, Ordering::Relaxed);
            }
            self.reached.store(end, Ordering::Relaxed);
            return None;
        }
        let reached = self.reached.load(Ordering::Relaxed).max(end);
        // Asked for again when half of the window is read, so that the node is always ahead.
        if window_bytes != 0 && end + window_bytes / 2 < reached {
            return None;
        }
        if !self.eager && self.may_be_a_sample(end, block_bytes) {
            return None;
        }
        let most = match self.asked_bytes_max.load(Ordering::Relaxed) {
            u64::MAX => self.planned_bytes_max,
            asked => asked,
        };
        let grown = grown_window(window_bytes, block_bytes, most);
        self.window_bytes.store(grown, Ordering::Relaxed);
        let target = (end + grown).min(self.end).max(reached);
        self.reached.store(target, Ordering::Relaxed);
        (target > reached).then_some(reached..target)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn sequential_reads_are_kept_ahead_of() {
        let ahead = ReadAhead::new(&ReadPlan::default(), Arc::default());
        let mut reached = 0;
        for step in 0..512 {
            if let Some(range) = ahead.note(step * MIB, MIB as usize, 4 * MIB) {
                assert!(range.start >= reached, "no range is asked for twice");
                reached = range.end;
            }
            assert!(reached > (step + 1) * MIB, "step {step}: the next read was asked for");
            assert!(reached <= (step + 1) * MIB + WINDOW_BYTES_MAX);
        }
    }

    /// Where the read-ahead of 64 reads of 64 KiB from `start` on got to.
    fn reached(ahead: &ReadAhead, start: u64) -> u64 {
        let step = 64 << 10;
        let ranges = (0..64).filter_map(|read| {
            ahead.note(start + read * step, step as usize, 4 * MIB).map(|range| range.end)
        });
        ranges.max().unwrap_or(0)
    }

    #[test]
    fn plans_and_limits_hold() {
        let plan =
            |pattern, start, end| ReadAhead::new(&ReadPlan { pattern, start, end }, Arc::default());
        let random = plan(ReadPattern::Random, 0, None);
        assert_eq!((reached(&random, 0), random.advised_bytes_max()), (0, Some(0)));
        random.set_bytes_max(Some(8 * MIB));
        assert!(reached(&random, 0) > 4 * MIB, "what is asked for goes before the plan");
        let part = plan(ReadPattern::Sequential, 100 * MIB, Some(103 * MIB));
        assert!(part.note(100 * MIB, 10, 4 * MIB).is_some(), "the first read is the first of many");
        assert!(reached(&part, 100 * MIB) <= 103 * MIB);
        assert_eq!(part.advised_bytes_max(), Some(0));
        let unknown = plan(ReadPattern::Unknown, 100 * MIB, None);
        assert!(unknown.note(100 * MIB, 10, 4 * MIB).is_none());
        assert_eq!(unknown.advised_bytes_max(), None);
        unknown.set_bytes_max(Some(0));
        assert_eq!((reached(&unknown, 0), unknown.advised_bytes_max()), (0, Some(0)));
        unknown.set_bytes_max(None);
        assert!(reached(&unknown, 100 * MIB) > 104 * MIB);
        assert!(unknown.advised_bytes_max().is_none());
        let whole = plan(ReadPattern::Whole, 0, None);
        assert_eq!(whole.at_open(10 * MIB), 0..10 * MIB);
        assert_eq!(whole.at_open(1 << 40), 0..WINDOW_BYTES_MAX);
    }

    #[test]
    fn samples_are_not_read_ahead_of() {
        let habit = Arc::<Habit>::default();
        let asks = |first: u64, pieces: u64| {
            let ahead = ReadAhead::new(&ReadPlan::default(), habit.clone());
            let pieces = first * 4..first * 4 + pieces;
            let asked = pieces.fold(false, |asked, it| {
                asked | ahead.note(it * MIB, MIB as usize, 4 * MIB).is_some()
            });
            ahead.end(4 * MIB);
            asked
        };
        assert!(!asks(3, 4), "one block inside of a file");
        assert!(asks(3, 5), "more than a block");
        assert!(asks(0, 4), "the head of a file, as far as is known");
        (0..20).for_each(|_| _ = asks(0, 4));
        assert!(!asks(0, 4), "when nobody went on");
        (0..20).for_each(|_| assert!(asks(0, 8), "the one who does"));
        assert!(asks(0, 2));
    }

    #[test]
    fn random_reads_ask_for_nothing() {
        let ahead = ReadAhead::new(&ReadPlan::default(), Arc::default());
        let asked = (0..1000u64)
            .filter(|step| ahead.note((step * 7919 + 13) % 1000 * MIB, 4096, 4 * MIB).is_some())
            .count();
        assert_eq!(asked, 0);
    }
}
