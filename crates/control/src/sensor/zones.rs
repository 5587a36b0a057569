//! `/proc/zoneinfo`: free pages that sit in per-CPU lists, where neither `MemFree` nor
//! `MemAvailable` counts them, and what the kernel keeps in reserve.

use super::text;

/// What the zones of the node say, in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Zones {
    /// Free bytes in per-CPU lists above their floor.
    pub hidden_bytes: u64,
    /// Sum of the low watermarks.
    pub low_bytes: u64,
    /// Sum of the high watermarks: below it the kernel reclaims.
    pub high_bytes: u64,
    /// What the kernel never counts as available (`totalreserve_pages`).
    pub reserve_bytes: u64,
    /// The hidden bytes of every NUMA node: its number, and the bytes.
    pub hidden_by_node: Vec<(u32, u64)>,
}

/// While it reclaims, the kernel lets a list keep this many batches; they come back last.
const FLOOR_BATCHES: u64 = 4;

/// One zone while it is read, in pages.
#[derive(Default)]
struct Zone {
    node: u32,
    low: u64,
    high: u64,
    managed: u64,
    protection: u64,
    hidden: u64,
    count: u64,
}

impl Zones {
    /// Reads the text of `/proc/zoneinfo` into `self`, without allocation once the nodes are known.
    /// Answers whether there were per-CPU lists in it.
    pub fn read(&mut self, text: &[u8], page_bytes: u64) -> bool {
        let Zones { hidden_by_node: mut by_node, .. } = std::mem::take(self);
        by_node.clear();
        self.hidden_by_node = by_node;
        let (mut zone, mut lists) = (None::<Zone>, false);
        for line in text::lines(text) {
            // Most lines are counters of no interest; their first letter tells.
            let line = line.trim_ascii_start();
            if !matches!(line.first(), Some(b'N' | b'b' | b'c' | b'h' | b'l' | b'm' | b'p')) {
                continue;
            }
            let mut words = text::words(line);
            let (first, second) = (words.next().unwrap_or(b""), words.next().unwrap_or(b""));
            if first == b"Node" {
                self.add(zone.take(), page_bytes);
                let number = second.strip_suffix(b",").and_then(text::number);
                zone = number
                    .and_then(|number| u32::try_from(number).ok())
                    .map(|node| Zone { node, ..Zone::default() });
                continue;
            }
            let Some(zone) = &mut zone else { continue };
            if first == b"protection:" {
                zone.protection = largest(line);
                continue;
            }
            let Some(value) = text::number(second) else { continue };
            match first {
                b"low" => zone.low = value,
                b"high" => zone.high = value,
                b"managed" => zone.managed = value,
                b"count:" => zone.count = value,
                b"batch:" => {
                    lists = true;
                    let above = zone.count.saturating_sub(value.saturating_mul(FLOOR_BATCHES));
                    zone.hidden = zone.hidden.saturating_add(above);
                    zone.count = 0;
                }
                _ => {}
            }
        }
        self.add(zone, page_bytes);
        lists
    }

    fn add(&mut self, zone: Option<Zone>, page_bytes: u64) {
        let Some(zone) = zone else { return };
        let bytes = |pages: u64| pages.saturating_mul(page_bytes);
        let reserve = zone.protection.saturating_add(zone.high).min(zone.managed);
        let hidden = bytes(zone.hidden.min(zone.managed));
        self.hidden_bytes = self.hidden_bytes.saturating_add(hidden);
        self.low_bytes = self.low_bytes.saturating_add(bytes(zone.low.min(zone.managed)));
        self.high_bytes = self.high_bytes.saturating_add(bytes(zone.high.min(zone.managed)));
        self.reserve_bytes = self.reserve_bytes.saturating_add(bytes(reserve));
        match self.hidden_by_node.iter_mut().find(|(node, _)| *node == zone.node) {
            Some((_, sum)) => *sum = sum.saturating_add(hidden),
            None => self.hidden_by_node.push((zone.node, hidden)),
        }
    }

    /// The hidden bytes of one NUMA node.
    pub fn hidden_of(&self, node: u32) -> u64 {
        self.hidden_by_node.iter().find(|(number, _)| *number == node).map_or(0, |(_, sum)| *sum)
    }
}

/// The largest number of `protection: (0, 3017, 6345)`.
fn largest(line: &[u8]) -> u64 {
    let numbers = line.split(|byte| !byte.is_ascii_digit()).filter_map(text::number);
    numbers.max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO_NODES: &[u8] = b"Node 0, zone   Normal\n  pages free     100\n        min      5\n\
        \x20       low      10\n        high     20\n        managed  1000\n\
        \x20       protection: (0, 0, 7)\n  pagesets\n    cpu: 0\n              count: 50\n\
        \x20             high:  60\n              batch: 10\n    cpu: 1\n\
        \x20             count: 30\n              high:  60\n              batch: 10\n\
        Node 1, zone   Normal\n        low      1\n        high     2\n        managed  500\n\
        \x20 pagesets\n    cpu: 0\n              count: 45\n              high:  60\n\
        \x20             batch: 10\n";

    #[test]
    fn lists_count_above_their_floor() {
        let mut zones = Zones::default();
        for _ in 0..2 {
            assert!(zones.read(TWO_NODES, 1));
            assert_eq!((zones.hidden_bytes, zones.hidden_of(0), zones.hidden_of(1)), (15, 10, 5));
            assert_eq!((zones.low_bytes, zones.high_bytes, zones.reserve_bytes), (11, 22, 29));
        }
    }

    #[test]
    fn garbage_hides_nothing() {
        let mut zones = Zones::default();
        assert!(!zones.read(b"count: 50\nbatch: 1\nNode x, zone\ncount: 9\nbatch: 1\n", 4096));
        assert_eq!(zones.hidden_bytes, 0);
    }
}
