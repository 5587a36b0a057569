//! Reads the file of a block after the server that wrote it is gone.
//!
//! What came last may be torn: it was never promised, and is left out. What is broken before the
//! point to which the file was durable was promised: it is named, and its file stays as it is.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read};

use super::format::{self, HEADER_BYTES, RECORD_BYTES, Record};
use crate::key::{BlockName, PACKET_BYTES_MAX};

/// What is read at a time, at most. Values are checked where they lie in it.
const READ_BYTES: usize = 2 << 20;

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
    if file_bytes < HEADER_BYTES as u64 {
        return Ok(if file_bytes == 0 { Found::Nothing } else { Found::Unsynced });
    }
    let mut input = Input::new(file);
    let header = *input.next::<HEADER_BYTES>()?;
    let block = format::block_of(&header).filter(|block| block == name);
    let Some(block) = block else {
        // Made, and never synced, unless somebody else changed it.
        return Ok(match header == [0; HEADER_BYTES] {
            true if input.is_zero()? => Found::Nothing,
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
    let mut at = scanned.end;
    while let Some(record) = next_record(&mut input, file_bytes - at)? {
        let length = u64::from(record.length.unwrap_or(0));
        let (offset, end) = (at + RECORD_BYTES as u64, at + RECORD_BYTES as u64 + length);
        if length > PACKET_BYTES_MAX as u64 || end > file_bytes {
            break;
        }
        let value = input.take(length as usize)?;
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

/// The next record, if there is a whole one in what is left.
fn next_record(input: &mut Input<'_>, left: u64) -> io::Result<Option<Record>> {
    if left < RECORD_BYTES as u64 {
        return Ok(None);
    }
    Ok(Record::decode(input.next()?))
}

/// A file that is read in large pieces, from its start on.
struct Input<'a> {
    file: &'a File,
    /// Bytes that were read: `bytes[at..end]` are not taken yet.
    bytes: Vec<u8>,
    at: usize,
    end: usize,
}

impl<'a> Input<'a> {
    fn new(file: &'a File) -> Self {
        // What a value begins in one piece, it ends in the next.
        Input { file, bytes: vec![0; PACKET_BYTES_MAX + READ_BYTES], at: 0, end: 0 }
    }

    /// The next so many bytes, at most those of a value; an error where the file ends before.
    fn take(&mut self, length: usize) -> io::Result<&[u8]> {
        if self.end - self.at < length {
            self.bytes.copy_within(self.at..self.end, 0);
            (self.at, self.end) = (0, self.end - self.at);
        }
        while self.end < length {
            if self.read()? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
        }
        self.at += length;
        Ok(&self.bytes[self.at - length..self.at])
    }

    fn next<const LENGTH: usize>(&mut self) -> io::Result<&[u8; LENGTH]> {
        let bytes = self.take(LENGTH)?;
        Ok(bytes.try_into().expect("as many as were asked for"))
    }

    /// Reads on behind what is there; 0: the file ends.
    fn read(&mut self) -> io::Result<usize> {
        let until = self.bytes.len().min(self.end + READ_BYTES);
        loop {
            match self.file.read(&mut self.bytes[self.end..until]) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                count => return count.inspect(|count| self.end += count),
            }
        }
    }

    /// Whether nothing but zeros is left.
    fn is_zero(&mut self) -> io::Result<bool> {
        loop {
            if self.bytes[self.at..self.end].iter().any(|byte| *byte != 0) {
                return Ok(false);
            }
            (self.at, self.end) = (0, 0);
            if self.read()? == 0 {
                return Ok(true);
            }
        }
    }
}
