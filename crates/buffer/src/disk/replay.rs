//! Reads the file of a block after the server that wrote it is gone.
//!
//! What came last may be torn: it was never promised, and is left out. What is broken before the
//! point to which the file was durable was promised: it is named, and its file stays as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, BufRead, Read};

use super::format::{self, HEADER_BYTES, RECORD_BYTES, Record};
use crate::key::{BlockName, PACKET_BYTES_MAX};

/// What is read at a time to find records: values, which are longer, are read past it.
const READ_BYTES: usize = 16 << 10;

/// Where the value of a packet is in the file of its block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// From the start of the file.
    pub offset: u64,
    /// Its length.
    pub length: u32,
    /// The client's flags.
    pub flags: u32,
    /// Of its bytes.
    pub checksum: u32,
    /// Number of the change that brought it.
    pub number: u64,
}

/// What a file holds.
#[derive(Debug, PartialEq, Eq)]
pub struct Scanned {
    /// Which block.
    pub block: BlockName,
    /// Its packets.
    pub packets: BTreeMap<u32, Place>,
    /// Where whole records end: what is behind is torn.
    pub end: u64,
    /// Highest number of a change in it.
    pub highest: u64,
    /// Packets that were promised, and whose bytes are others.
    pub broken: BTreeSet<u32>,
    /// Why records that were promised cannot be told any more, which may be of any packet.
    pub torn: Option<String>,
    /// A sync of it failed: what is not durable of it has to be written again.
    pub is_failed: bool,
}

/// What is found in a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// A block.
    Block(Scanned),
    /// Nothing.
    Nothing,
    /// Nothing that a server ever promised: its first bytes were not written.
    Unsynced,
    /// Something else, or a file whose first bytes are broken.
    Unknown,
}

/// Reads the file of a block from its start to its end, and checks all that is in it.
///
/// # Errors
/// The disk gives its bytes not.
pub fn scan(file: &File, name: &BlockName) -> io::Result<Found> {
    let file_bytes = file.metadata()?.len();
    // The kernel reads further ahead then; where it cannot, it reads all the same.
    let _ = rustix::fs::fadvise(file, 0, None, rustix::fs::Advice::Sequential);
    let mut input = io::BufReader::with_capacity(READ_BYTES, file);
    let mut header = [0; HEADER_BYTES];
    if file_bytes < HEADER_BYTES as u64 {
        return Ok(if file_bytes == 0 { Found::Nothing } else { Found::Unsynced });
    }
    input.read_exact(&mut header)?;
    let block = format::block_of(&header).filter(|block| block == name);
    let Some(block) = block else {
        // Made, and never synced, unless somebody else changed it.
        return Ok(match header == [0; HEADER_BYTES] {
            true if is_zero(&mut input)? => Found::Nothing,
            true => Found::Unsynced,
            false => Found::Unknown,
        });
    };
    let durable = format::durable_bytes(&header);
    let mut scanned = Scanned {
        block,
        packets: BTreeMap::new(),
        end: HEADER_BYTES as u64,
        highest: 0,
        broken: BTreeSet::new(),
        torn: None,
        is_failed: format::is_failed(&header),
    };
    let mut value = vec![0; PACKET_BYTES_MAX];
    let mut at = scanned.end;
    while let Some(record) = next_record(&mut input, file_bytes - at)? {
        let length = u64::from(record.length.unwrap_or(0));
        let (offset, end) = (at + RECORD_BYTES as u64, at + RECORD_BYTES as u64 + length);
        if length > PACKET_BYTES_MAX as u64 || end > file_bytes {
            break;
        }
        let value = &mut value[..length as usize];
        input.read_exact(value)?;
        let is_whole = record.length.is_none() || format::checksum(value) == record.checksum;
        if !is_whole && end > durable {
            break;
        }
        let Record { packet, flags, checksum, number, .. } = record;
        scanned.highest = scanned.highest.max(number);
        // A later one takes its place.
        scanned.packets.remove(&packet);
        scanned.broken.remove(&packet);
        match record.length {
            Some(_) if !is_whole => drop(scanned.broken.insert(packet)),
            Some(length) => {
                let place = Place { offset, length, flags, checksum, number };
                scanned.packets.insert(packet, place);
            }
            None => {}
        }
        (at, scanned.end) = (end, end);
    }
    if at < durable {
        scanned.torn = Some(format!("bytes {at} to {durable} of the file"));
        scanned.end = scanned.end.max(durable);
    }
    Ok(Found::Block(scanned))
}

impl Scanned {
    /// What was promised and is broken, in words.
    pub fn damaged(&self) -> Vec<String> {
        let packets = self.broken.iter().map(|packet| format!("packet {packet}"));
        packets.chain(self.torn.clone()).collect()
    }
}

/// Whether nothing but zeros is left.
fn is_zero(input: &mut impl BufRead) -> io::Result<bool> {
    loop {
        let there = input.fill_buf()?;
        if there.iter().any(|byte| *byte != 0) {
            return Ok(false);
        }
        let length = there.len();
        if length == 0 {
            return Ok(true);
        }
        input.consume(length);
    }
}

/// The next record, if there is a whole one in what is left.
fn next_record(input: &mut impl Read, left: u64) -> io::Result<Option<Record>> {
    if left < RECORD_BYTES as u64 {
        return Ok(None);
    }
    let mut bytes = [0; RECORD_BYTES];
    input.read_exact(&mut bytes)?;
    Ok(Record::decode(&bytes))
}
