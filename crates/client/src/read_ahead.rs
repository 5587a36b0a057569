//! Notices sequential reading and says which range to ask the node for. Sends nothing itself, and
//! costs a reader of resident bytes two loads and a store.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

/// First step of read-ahead in blocks.
const WINDOW_BLOCKS_MIN: u64 = 2;
/// Most bytes asked for ahead of the reader: sixteen transfers of the default block size.
const WINDOW_BYTES_MAX: u64 = 64 << 20;

/// A first read shorter than this may only look at the head of the file.
const HEAD_BYTES: usize = 128 << 10;

/// What the reads of one open file looked like so far. Racing readers may blur it; all that can
/// come of it is a hint too many or too few.
#[derive(Debug, Default)]
pub(crate) struct ReadAhead {
    /// Where the last read ended.
    expected: AtomicU64,
    /// How far was asked for.
    reached: AtomicU64,
    window_bytes: AtomicU64,
}

impl ReadAhead {
    /// Takes note of a read; the range to ask for, if any.
    pub(crate) fn note(&self, offset: u64, length: usize, block_bytes: u64) -> Option<Range<u64>> {
        let end = offset + length as u64;
        let expected = self.expected.load(Ordering::Relaxed);
        self.expected.store(end, Ordering::Relaxed);
        let window_bytes = self.window_bytes.load(Ordering::Relaxed);
        let looks_at_head = offset == 0 && length < HEAD_BYTES;
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
        let grown = (2 * window_bytes).max(WINDOW_BLOCKS_MIN * block_bytes).min(WINDOW_BYTES_MAX);
        self.window_bytes.store(grown, Ordering::Relaxed);
        let target = (end + grown).max(reached);
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
        let ahead = ReadAhead::default();
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

    #[test]
    fn random_reads_ask_for_nothing() {
        let ahead = ReadAhead::default();
        let asked = (0..1000u64)
            .filter(|step| ahead.note((step * 7919 + 13) % 1000 * MIB, 4096, 4 * MIB).is_some())
            .count();
        assert_eq!(asked, 0);
    }
}
