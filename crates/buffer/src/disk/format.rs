//! How a block lies in its file: a header, then records in the order in which packets came. The
//! last record of a packet counts.
//!
//! Numbers are little-endian. Each header and each value has a CRC-32, so whatever the file system
//! or the disk made of a file is told from what was written.

use crate::key::BlockName;

/// Length of the header of a file.
pub const HEADER_BYTES: usize = 64;
/// Length of the header of a record.
pub const RECORD_BYTES: usize = 32;

const MAGIC: [u8; 8] = *b"tpblock\x02";
const RECORD_MAGIC: u32 = u32::from_le_bytes(*b"PKT\x02");
/// Length of a packet that was removed.
const REMOVED: u32 = u32::MAX;
/// Where it is noted that a sync failed.
const FAILED: usize = 28;
/// Where the two places begin that tell, in turn, how much is durable.
const SLOTS: usize = 32;
const SLOT_BYTES: usize = 16;

/// Checksum of bytes.
pub fn checksum(bytes: &[u8]) -> u32 {
    crc32fast::hash(bytes)
}

/// Header of the file of a block.
pub fn header(block: &BlockName) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..16].copy_from_slice(&block.epoch.to_le_bytes());
    header[16..24].copy_from_slice(&block.block.to_le_bytes());
    let sum = checksum(&header[..24]);
    header[24..28].copy_from_slice(&sum.to_le_bytes());
    header
}

/// Which block a file is of; `None` where that is no such file.
pub fn block_of(header: &[u8; HEADER_BYTES]) -> Option<BlockName> {
    let is_whole = header[..8] == MAGIC && u32_at(header, 24) == checksum(&header[..24]);
    let name = BlockName { epoch: u64_at(header, 8), block: u64_at(header, 16) };
    is_whole.then_some(name)
}

/// What is written, and where, to say that a sync of the file failed: what is behind the durable
/// part may be in the system's memory alone, and no later sync writes it.
pub fn failed() -> (u64, [u8; 1]) {
    (FAILED as u64, [1])
}

/// Whether that was said.
pub fn is_failed(header: &[u8; HEADER_BYTES]) -> bool {
    header[FAILED] != 0
}

/// What is written, and where, to say that so many bytes of the file are durable. `number` counts
/// up: the two places are used in turn.
pub fn durable(number: u64, bytes: u64) -> (u64, [u8; SLOT_BYTES]) {
    let mut slot = [0; SLOT_BYTES];
    slot[..8].copy_from_slice(&bytes.to_le_bytes());
    let sum = checksum(&slot[..8]);
    slot[8..12].copy_from_slice(&sum.to_le_bytes());
    slot[12] = 1;
    ((SLOTS + SLOT_BYTES * (number % 2) as usize) as u64, slot)
}

/// Bytes of a file that were durable, at least, once this header was.
pub fn durable_bytes(header: &[u8; HEADER_BYTES]) -> u64 {
    let read = |at: usize| {
        let is_whole =
            header[at + 12] == 1 && u32_at(header, at + 8) == checksum(&header[at..at + 8]);
        if is_whole { u64_at(header, at) } else { 0 }
    };
    read(SLOTS).max(read(SLOTS + SLOT_BYTES))
}

/// Header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Number of the packet in its block.
    pub packet: u32,
    /// Length of its value; `None`: it was removed.
    pub length: Option<u32>,
    /// The client's flags.
    pub flags: u32,
    /// Of the value.
    pub checksum: u32,
    /// Number of the change that brought it: later ones have higher ones, also after a restart.
    pub number: u64,
}

impl Record {
    /// As it lies in the file.
    pub fn encode(&self) -> [u8; RECORD_BYTES] {
        let length = self.length.unwrap_or(REMOVED);
        let (low, high) = (self.number as u32, (self.number >> 32) as u32);
        let words = [RECORD_MAGIC, self.packet, length, self.flags, self.checksum, low, high];
        let mut bytes = [0; RECORD_BYTES];
        for (place, word) in bytes.chunks_exact_mut(4).zip(words) {
            place.copy_from_slice(&word.to_le_bytes());
        }
        let sum = checksum(&bytes[..RECORD_BYTES - 4]);
        bytes[RECORD_BYTES - 4..].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Reads one; `None` where there is none.
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Self> {
        let sum = checksum(&bytes[..RECORD_BYTES - 4]);
        if u32_at(bytes, 0) != RECORD_MAGIC || u32_at(bytes, RECORD_BYTES - 4) != sum {
            return None;
        }
        let length = Some(u32_at(bytes, 8)).filter(|length| *length != REMOVED);
        let (packet, flags, checksum) = (u32_at(bytes, 4), u32_at(bytes, 12), u32_at(bytes, 16));
        Some(Record { packet, length, flags, checksum, number: u64_at(bytes, 20) })
    }
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes[at..at + 4].iter().rev().fold(0, |word, byte| word << 8 | u32::from(*byte))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn headers_are_read_as_they_were_written(
            epoch: u64, block: u64, bytes in 1_u64.., at in 0..28_usize,
        ) {
            let name = BlockName { epoch, block };
            let mut written = header(&name);
            prop_assert_eq!((block_of(&written), durable_bytes(&written)), (Some(name), 0));
            for (number, bytes) in [(6, bytes / 2), (7, bytes)] {
                let (place, slot) = durable(number, bytes);
                written[place as usize..][..slot.len()].copy_from_slice(&slot);
            }
            prop_assert_eq!((block_of(&written), durable_bytes(&written)), (Some(name), bytes));
            written[at] ^= 1;
            prop_assert_eq!(block_of(&written), None);
        }

        #[test]
        fn records_are_read_as_they_were_written(
            packet: u32, length in prop::option::of(0..1_u32 << 20), flags: u32, checksum: u32,
            number: u64, at in 0..RECORD_BYTES,
        ) {
            let record = Record { packet, length, flags, checksum, number };
            let mut written = record.encode();
            prop_assert_eq!(Record::decode(&written), Some(record));
            written[at] ^= 0x10;
            prop_assert_eq!(Record::decode(&written), None);
        }
    }

    /// What this release writes is read by the next one.
    #[test]
    fn the_format_does_not_change() {
        let block = BlockName { epoch: 0x0102_0304_0506_0708, block: 9 };
        let file = [
            &header(&block)[..],
            &Record { packet: 1, length: Some(2), flags: 3, checksum: 4, number: 5 }.encode(),
        ]
        .concat();
        assert_eq!(checksum(&file), 931_934_691);
    }
}
