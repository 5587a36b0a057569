//! Recognises how one handle reads a file and says which bytes it will want next.
//!
//! Pure: it sees offsets and lengths and returns ranges. Sequential readers get a window that
//! doubles from two blocks up to the limit, strided ones the next strides, random ones nothing.
//! A reader that begins inside of the file reads one block first, because a sample may be all that
//! it wants. A reader that begins at its head does so where the latest readers of other heads went
//! no further.

use std::sync::Arc;

use tidepool_proto::habit::{Habit, grown_window};

/// What the reads of a handle look like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Too few reads to tell.
    Unknown,
    /// Each read starts where the last one ended, or close behind.
    Sequential,
    /// The distance between the starts of reads is constant, in bytes.
    Strided(i64),
    /// No order.
    Random,
}

/// A range of bytes to bring in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Range {
    /// First byte.
    pub offset: u64,
    /// Number of bytes.
    pub length: u64,
}

/// State of one handle.
#[derive(Debug)]
pub struct ReadAhead {
    habit: Arc<Habit>,
    /// The reader reads what is resident by itself, so its habit does not show.
    sees_misses_only: bool,
    /// Where the present run of reads began.
    run_start: u64,
    window_bytes_max: u64,
    block_bytes: u64,
    last_offset: u64,
    last_end: u64,
    stride: i64,
    confidence: u32,
    jumps: u32,
    window_bytes: u64,
    planned_end: u64,
    reads: u64,
}

/// Reads of one kind in a row that make a pattern.
const CONFIDENT: u32 = 2;
/// Strides brought in ahead of a strided reader.
const STRIDES_AHEAD: u64 = 4;

impl ReadAhead {
    /// A fresh handle: `window_bytes_max` limits what is asked for ahead of a sequential reader,
    /// `habit` is what all readers of its user share.
    pub fn new(block_bytes: u64, window_bytes_max: u64, habit: Arc<Habit>) -> Self {
        ReadAhead {
            habit,
            sees_misses_only: false,
            run_start: 0,
            window_bytes_max,
            block_bytes,
            last_offset: 0,
            last_end: 0,
            stride: 0,
            confidence: 0,
            jumps: 0,
            window_bytes: 0,
            planned_end: 0,
            reads: 0,
        }
    }

    /// The reader reads what is resident by itself from now on.
    pub fn see_misses_only(&mut self) {
        self.sees_misses_only = true;
    }

    /// Limits what is asked for ahead from now on; 0 asks for nothing.
    pub fn set_window_bytes_max(&mut self, window_bytes_max: u64) {
        self.window_bytes_max = window_bytes_max;
        self.window_bytes = self.window_bytes.min(window_bytes_max);
    }

    /// The present judgement.
    pub fn pattern(&self) -> Pattern {
        if self.reads == 0 {
            Pattern::Unknown
        } else if self.stride == 0 && self.jumps == 0 {
            Pattern::Sequential
        } else if self.stride != 0 && self.confidence >= CONFIDENT {
            Pattern::Strided(self.stride)
        } else if self.jumps > CONFIDENT {
            Pattern::Random
        } else {
            Pattern::Unknown
        }
    }

    /// Notes a read and returns what to bring in next, at most one range a stride.
    pub fn on_read(&mut self, offset: u64, length: u64) -> Vec<Range> {
        // Several workers may deliver neighbouring reads slightly out of order.
        let slack = length.saturating_mul(4).min(self.block_bytes);
        let near_end = offset >= self.last_end.saturating_sub(slack)
            && offset <= self.last_end.saturating_add(slack);
        let first = self.reads == 0;
        self.reads += 1;
        let distance = offset as i64 - self.last_offset as i64;
        let ranges = if (first && offset == 0) || (!first && near_end) {
            self.stride = 0;
            self.jumps = 0;
            self.confidence += 1;
            self.last_end = self.last_end.max(offset + length);
            self.sequential()
        } else {
            self.end_run();
            self.run_start = offset;
            self.window_bytes = 0;
            self.planned_end = 0;
            self.jumps = self.jumps.saturating_add(1);
            self.last_end = offset + length;
            if !first && distance == self.stride && distance != 0 {
                self.confidence += 1;
            } else {
                self.stride = distance;
                self.confidence = 0;
            }
            self.strided(offset, length)
        };
        self.last_offset = offset;
        ranges
    }

    /// Tells the others whether this reader went on from the head of the file.
    fn end_run(&mut self) {
        if self.run_start == 0 && !self.sees_misses_only {
            self.habit.note_run(self.last_end, self.block_bytes);
        }
    }

    fn sequential(&mut self) -> Vec<Range> {
        let run_bytes = self.last_end - self.run_start;
        if self.habit.may_be_sample(self.run_start == 0, run_bytes, self.block_bytes) {
            return Vec::new();
        }
        self.window_bytes =
            grown_window(self.window_bytes, self.block_bytes, self.window_bytes_max);
        let start = self.planned_end.max(self.last_end);
        let end = self.last_end.saturating_add(self.window_bytes);
        // Ask in whole blocks, and only when a block's worth is due.
        let end = end / self.block_bytes * self.block_bytes;
        if end <= start {
            return Vec::new();
        }
        self.planned_end = end;
        vec![Range { offset: start, length: end - start }]
    }

    fn strided(&self, offset: u64, length: u64) -> Vec<Range> {
        if self.confidence < CONFIDENT || self.window_bytes_max == 0 {
            return Vec::new();
        }
        (1..=STRIDES_AHEAD)
            .filter_map(|step| {
                let next = (offset as i64).checked_add(self.stride.checked_mul(step as i64)?)?;
                (next >= 0).then_some(Range { offset: next as u64, length })
            })
            .collect()
    }
}

impl Drop for ReadAhead {
    fn drop(&mut self) {
        self.end_run();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BLOCK: u64 = 4 << 20;

    fn fresh() -> ReadAhead {
        ReadAhead::new(BLOCK, 16 * BLOCK, Arc::default())
    }

    /// What a reader of some pieces of 1 MiB asks for.
    fn asks(habit: &Arc<Habit>, first: u64, pieces: u64) -> bool {
        let mut state = ReadAhead::new(BLOCK, 16 * BLOCK, habit.clone());
        let pieces = first * 4..first * 4 + pieces;
        pieces.fold(false, |asked, it| asked | !state.on_read(it << 20, 1 << 20).is_empty())
    }

    #[test]
    fn samples_are_not_read_ahead_of() {
        let habit = Arc::default();
        assert!(!asks(&habit, 3, 4), "one block inside of a file");
        assert!(asks(&habit, 3, 5), "who goes on");
        assert!(asks(&habit, 0, 4), "the head of a file, as far as is known");
        (0..20).for_each(|_| _ = asks(&habit, 0, 4));
        assert!(!asks(&habit, 0, 4), "when nobody went on");
        (0..20).for_each(|_| assert!(asks(&habit, 0, 8), "the one who does"));
        assert!(asks(&habit, 0, 1));
    }

    #[test]
    fn a_sequential_reader_gets_a_growing_window_without_gaps_or_repeats() {
        let mut state = fresh();
        let mut planned_end = 0;
        for read in 0..200 {
            for range in state.on_read(read << 20, 1 << 20) {
                assert!(range.offset >= planned_end, "nothing is asked for twice");
                planned_end = range.offset + range.length;
            }
        }
        assert_eq!(state.pattern(), Pattern::Sequential);
        let read_to = 200 << 20;
        assert!(planned_end >= read_to + 14 * BLOCK && planned_end <= read_to + 16 * BLOCK);
    }

    #[test]
    fn nothing_is_asked_for_where_that_is_wanted() {
        let mut state = fresh();
        assert!(!state.on_read(0, 1 << 20).is_empty());
        state.set_window_bytes_max(0);
        for read in 1..100 {
            assert!(state.on_read(read << 20, 1 << 20).is_empty());
        }
        for read in 1..8 {
            assert!(state.on_read(read * (64 << 20), 1 << 20).is_empty());
        }
        state.set_window_bytes_max(2 * BLOCK);
        state.on_read(0, 1 << 20);
        let asked: Vec<_> = (1..40).flat_map(|read| state.on_read(read << 20, 1 << 20)).collect();
        assert!(
            asked.last().is_some_and(|range| range.offset + range.length <= (40 << 20) + 2 * BLOCK)
        );
    }

    #[test]
    fn neighbours_out_of_order_stay_sequential() {
        let mut state = fresh();
        for read in [0u64, 2, 1, 3, 5, 4, 6, 7] {
            state.on_read(read << 20, 1 << 20);
            assert_eq!(state.pattern(), Pattern::Sequential);
        }
    }

    #[test]
    fn strides_are_found_and_random_reads_left_alone() {
        let mut state = fresh();
        let stride = 64 << 20;
        let mut last = Vec::new();
        for read in 1..8 {
            last = state.on_read(read * stride, 1 << 20);
        }
        assert_eq!(state.pattern(), Pattern::Strided(stride as i64));
        assert_eq!(last[0], Range { offset: 8 * stride, length: 1 << 20 });

        let mut state = fresh();
        let mut offset = 1u64;
        for _ in 0..50 {
            offset = offset.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            assert!(state.on_read((offset >> 30) & !4095, 4096).is_empty());
        }
        assert_eq!(state.pattern(), Pattern::Random);
    }
}
