//! [`Ranges`]: ranges of numbers, in order and apart from each other, such as bytes of a file.

use std::collections::BTreeMap;
use std::ops::Range;

/// See the module's documentation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ranges {
    granule: u64,
    /// Beyond so many they are remembered coarser.
    most: usize,
    ranges: BTreeMap<u64, u64>,
}

impl Ranges {
    /// None; they are rounded to `granule`, and coarser where there would be more than `most`.
    pub fn new(granule: u64, most: usize) -> Self {
        Ranges { granule, most, ranges: BTreeMap::new() }
    }

    /// None; they are as they are added.
    pub fn exact() -> Self {
        Ranges::new(1, usize::MAX)
    }

    /// In their order.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> {
        self.ranges.iter().map(|(start, end)| *start..*end)
    }

    /// Adds one.
    pub fn add(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        self.insert(range);
        while self.ranges.len() > self.most {
            self.granule *= 2;
            for (start, end) in std::mem::take(&mut self.ranges) {
                self.insert(start..end);
            }
        }
    }

    /// Takes one away.
    pub fn remove(&mut self, range: Range<u64>) {
        while let Some((&from, &upto)) = self.ranges.range(..range.end).next_back() {
            if upto <= range.start {
                return;
            }
            self.ranges.remove(&from);
            if from < range.start {
                self.ranges.insert(from, range.start);
            }
            if upto > range.end {
                self.ranges.insert(range.end, upto);
            }
        }
    }

    /// The last number within a range.
    pub fn last_within(&self, range: Range<u64>) -> Option<u64> {
        let (_, upto) = self.ranges.range(..range.end).next_back()?;
        Some((*upto).min(range.end) - 1).filter(|last| *last >= range.start)
    }

    /// Rounds a range and joins it with those that it meets.
    fn insert(&mut self, range: Range<u64>) {
        let mut start = range.start / self.granule * self.granule;
        let mut end = range.end.next_multiple_of(self.granule);
        while let Some((&from, &upto)) = self.ranges.range(..=end).next_back() {
            if upto < start {
                break;
            }
            (start, end) = (start.min(from), end.max(upto));
            self.ranges.remove(&from);
        }
        self.ranges.insert(start, end);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_that_meet_are_one_and_many_become_coarser() {
        let mut ranges = Ranges::new(4096, 64);
        for start in [3u64, 1, 0, 2] {
            ranges.add(start * 8192..start * 8192 + 4096);
        }
        assert_eq!(ranges.ranges.len(), 4);
        ranges.add(0..30_000);
        assert!(ranges.iter().eq(std::iter::once(0..32_768)));
        let mut ranges = Ranges::new(4096, 64);
        let far = 1u64 << 20;
        for number in 0..128 {
            ranges.add(number * far..number * far + 1);
        }
        assert!(ranges.ranges.len() <= 64);
        let is_noted = |at: u64| ranges.iter().any(|range| range.contains(&at));
        assert!((0..128).all(|number| is_noted(number * far)));
    }

    #[test]
    fn what_is_taken_away_is_gone_and_the_rest_stays() {
        let mut ranges = Ranges::exact();
        ranges.add(0..10);
        ranges.add(20..30);
        ranges.add(40..50);
        ranges.remove(5..45);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [0..5, 45..50]);
        let last = [0..5, 0..4, 6..45, 0..60].map(|range| ranges.last_within(range));
        assert_eq!(last, [Some(4), Some(3), None, Some(49)]);
        ranges.remove(1..2);
        assert_eq!(ranges.iter().collect::<Vec<_>>(), [0..1, 2..5, 45..50]);
        ranges.remove(0..u64::MAX);
        assert_eq!(ranges.iter().next(), None);
    }
}
