//! Reads the file of a block after the server that wrote it is gone.
//!
//! What came last may be torn: it was never promised, and is left out. What is broken before the
//! point to which the file was durable was promised: it is named, and its file stays as it is.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read};

use super::format::{self, HEADER_BYTES, RECORD_BYTES, Record};
use crate::key::{BlockName, PACKET_BYTES_MAX};

const READ_BYTES: usize = 1 << 20;

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
    /// What was promised and is broken, in words; empty where nothing is.
    pub damaged: Vec<String>,
}

/// What is found in a file.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// A block.
    Block(Scanned),
    /// Nothing that was ever promised.
    Nothing,
    /// Something else, or a file whose first bytes are broken.
    Unknown,
}

/// Reads a file from its start to its end, and checks all that is in it.
///
/// # Errors
/// The disk gives its bytes not.
pub fn scan(file: &File) -> io::Result<Found> {
    let file_bytes = file.metadata()?.len();
    let mut input = io::BufReader::with_capacity(READ_BYTES, file);
    let mut header = [0; HEADER_BYTES];
    if file_bytes < HEADER_BYTES as u64 {
        return Ok(Found::Nothing);
    }
    input.read_exact(&mut header)?;
    let Some(block) = format::block_of(&header) else {
        // Made, and never synced.
        return Ok(if header == [0; HEADER_BYTES] { Found::Nothing } else { Found::Unknown });
    };
    let durable = format::durable_bytes(&header);
    let mut scanned =
        Scanned { block, packets: BTreeMap::new(), end: HEADER_BYTES as u64, damaged: Vec::new() };
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
        let Record { packet, flags, checksum, .. } = record;
        match record.length {
            Some(_) if !is_whole => {
                scanned.packets.remove(&packet);
                scanned.damaged.push(format!("packet {packet}"));
            }
            Some(length) => {
                scanned.packets.insert(packet, Place { offset, length, flags, checksum });
                // A later one takes its place.
                scanned.damaged.retain(|it| *it != format!("packet {packet}"));
            }
            None => drop(scanned.packets.remove(&packet)),
        }
        (at, scanned.end) = (end, end);
    }
    if at < durable {
        scanned.damaged.push(format!("bytes {at} to {durable} of the file"));
        scanned.end = scanned.end.max(durable);
    }
    Ok(Found::Block(scanned))
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
