//! The log of decisions: each snapshot, each change of the parameters, and the answer of the
//! policy, so that every decision can be made again. Bytes in and bytes out; opens no file.
//!
//! A log begins with a header, then come entries. An entry is stored as its difference from the
//! one before, so a quiet node costs a few tens of bytes a decision, and carries a checksum. What a
//! killed controller left half written is passed over; anything else that is wrong is an error
//! that says where. A log of another build is refused: its entries may mean something else.

use postcard::{from_bytes, to_extend, to_stdvec};
use serde::{Deserialize, Serialize};
use tidepool_proto::{Error, ErrorKind, Result};

use super::{Decision, Parameters, Snapshot, policy};

/// What every log begins with.
const MAGIC: [u8; 4] = *b"TPDJ";
/// Version of the frame around the entries.
const VERSION: u16 = 1;
/// Magic, version, fingerprint of the types, and whether the log begins with the controller.
const HEADER_BYTES: usize = 11;
/// Length and checksum before each entry.
const FRAME_BYTES: usize = 8;
/// More than an entry of any node has.
const ENTRY_BYTES_MAX: usize = 1 << 20;

/// One decision with all that led to it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct JournalEntry {
    /// The reading.
    pub snapshot: Snapshot,
    /// Parameters from this decision on; `None`: as before.
    pub parameters: Option<Parameters>,
    /// The answer.
    pub decision: Decision,
}

/// The same without copies, for writing: the same fields in the same order.
#[derive(Serialize)]
struct BorrowedEntry<'a> {
    snapshot: &'a Snapshot,
    parameters: Option<&'a Parameters>,
    decision: &'a Decision,
}

/// Writes a log of bounded size.
#[derive(Debug)]
pub struct JournalWriter {
    bytes_max: usize,
    written_bytes: usize,
    begun: bool,
    last: Vec<u8>,
    /// Memory for the next entry.
    spare: Vec<u8>,
    parameters: Option<Parameters>,
}

/// Bytes to be put behind what the log has, or in place of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum JournalBytes {
    /// Put behind.
    Append(Vec<u8>),
    /// Begins a new part of the log: keep the part before as the older half, drop what is older.
    Begin(Vec<u8>),
}

/// What a log holds.
#[derive(Clone, Debug, PartialEq)]
pub struct Journal {
    /// Its entries, oldest first; the first one has the parameters.
    pub entries: Vec<JournalEntry>,
    /// Whether the first entry is the first decision of a controller.
    pub from_start: bool,
    /// Bytes at the end that make no whole entry.
    pub cut_bytes: usize,
}

/// A decision that came out otherwise.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Mismatch {
    /// Number of the entry, from 0.
    pub entry: usize,
    /// Time of its snapshot in nanoseconds.
    pub at_ns: u64,
    /// What the log has.
    pub logged: Decision,
    /// What the policy says now.
    pub replayed: Decision,
}

/// Result of deciding a log again.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Replay {
    /// Decisions compared.
    pub decisions: usize,
    /// Decisions passed over because the log begins in the middle of a run, whose history the
    /// policy does not have.
    pub warm_up: usize,
    /// Those that came out otherwise.
    pub mismatches: Vec<Mismatch>,
}

fn refuse(offset: usize, detail: &str, remedy: &str) -> Error {
    let detail = format!("at byte {offset}: {detail}");
    Error::new(ErrorKind::InvalidInput, "reading a log of decisions", detail).remedy(remedy)
}

/// Changes when the types of entries change, so that old bytes are never taken for new ones.
fn fingerprint() -> Result<u32> {
    let snapshot = Snapshot {
        limits: vec![super::Limit::default()],
        memory_nodes: vec![super::MemoryNode::default()],
        stores: vec![super::StoreState::default()],
        pressure: Some(super::Pressure::default()),
        ..Snapshot::default()
    };
    let bytes = to_stdvec(&(snapshot, Parameters::default())).map_err(internal)?;
    Ok(crc32fast::hash(&bytes))
}

fn internal(error: postcard::Error) -> Error {
    Error::new(ErrorKind::Internal, "writing a log of decisions", error.to_string())
}

impl JournalWriter {
    /// A log of which each part has at most about `bytes_max` bytes.
    pub fn new(bytes_max: usize) -> Self {
        JournalWriter {
            bytes_max,
            written_bytes: 0,
            begun: false,
            last: Vec::new(),
            spare: Vec::new(),
            parameters: None,
        }
    }

    /// Makes the next decision begin a new part: decisions before it are missing.
    pub fn begin_part(&mut self) {
        self.written_bytes = self.bytes_max;
    }

    /// The bytes of one decision.
    pub fn write(
        &mut self,
        snapshot: &Snapshot,
        parameters: &Parameters,
        decision: &Decision,
    ) -> Result<JournalBytes> {
        let begins = !self.begun || self.written_bytes >= self.bytes_max;
        let mut bytes = Vec::new();
        if begins {
            bytes.extend(MAGIC);
            bytes.extend(VERSION.to_le_bytes());
            bytes.extend(fingerprint()?.to_le_bytes());
            bytes.push(u8::from(!self.begun));
            self.last.clear();
            self.parameters = None;
            self.written_bytes = 0;
            self.begun = true;
        }
        let changed = self.parameters.as_ref() != Some(parameters);
        let entry = BorrowedEntry { snapshot, parameters: changed.then_some(parameters), decision };
        self.spare.clear();
        self.spare = to_extend(&entry, std::mem::take(&mut self.spare)).map_err(internal)?;
        let begin = bytes.len();
        bytes.reserve(FRAME_BYTES + self.spare.len());
        bytes.extend([0; FRAME_BYTES]);
        pack(&self.spare, &self.last, &mut bytes);
        let (frame, packed) = bytes[begin..].split_at_mut(FRAME_BYTES);
        frame[..4].copy_from_slice(&(packed.len() as u32).to_le_bytes());
        frame[4..].copy_from_slice(&crc32fast::hash(packed).to_le_bytes());
        std::mem::swap(&mut self.last, &mut self.spare);
        if changed {
            self.parameters = Some(parameters.clone());
        }
        self.written_bytes += bytes.len();
        Ok(if begins { JournalBytes::Begin(bytes) } else { JournalBytes::Append(bytes) })
    }
}

/// Differences from `before`, where runs of equal bytes become their length: pairs of the number
/// of equal bytes and a run of other bytes with its length. They are put behind `packed`.
fn pack(plain: &[u8], before: &[u8], packed: &mut Vec<u8>) {
    put_number(packed, plain.len());
    let equal = |at: usize| before.get(at) == plain.get(at);
    let mut at = 0;
    while at < plain.len() {
        let run = (at..plain.len()).take_while(|at| equal(*at)).count();
        let others = (at + run..plain.len()).take_while(|at| !equal(*at)).count();
        put_number(packed, run);
        put_number(packed, others);
        packed.extend(&plain[at + run..at + run + others]);
        at += run + others;
    }
}

/// Undoes `pack`; `None` where the bytes make no sense.
fn unpack(mut packed: &[u8], before: &[u8]) -> Option<Vec<u8>> {
    let length = take_number(&mut packed).filter(|length| *length <= ENTRY_BYTES_MAX)?;
    let mut plain = Vec::new();
    while plain.len() < length {
        let run = take_number(&mut packed)?;
        let others = take_number(&mut packed)?;
        let end = plain.len().checked_add(run)?;
        plain.extend(before.get(plain.len()..end)?);
        plain.extend(packed.split_off(..others)?);
        if run == 0 && others == 0 {
            return None;
        }
    }
    (plain.len() == length && packed.is_empty()).then_some(plain)
}

fn put_number(bytes: &mut Vec<u8>, mut number: usize) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn take_number(bytes: &mut &[u8]) -> Option<usize> {
    let mut number = 0;
    for shift in [0, 7, 14, 21] {
        let byte = *bytes.split_off_first()?;
        number |= usize::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(number);
        }
    }
    None
}

impl Journal {
    /// Reads one part of a log.
    pub fn read(bytes: &[u8]) -> Result<Self> {
        let from_start = header(bytes)?;
        let mut journal = Journal { entries: Vec::new(), from_start, cut_bytes: 0 };
        let mut last = Vec::new();
        let mut offset = HEADER_BYTES;
        while offset < bytes.len() {
            let rest = &bytes[offset..];
            let Some(packed) = frame(rest, offset)? else {
                journal.cut_bytes = rest.len();
                break;
            };
            let damaged = || refuse(offset, "an entry makes no sense", "the log is damaged");
            let plain = unpack(packed, &last).ok_or_else(damaged)?;
            let entry: JournalEntry = from_bytes(&plain).map_err(|_| damaged())?;
            if journal.entries.is_empty() && entry.parameters.is_none() {
                return Err(refuse(offset, "the first entry has no parameters", "it is damaged"));
            }
            journal.entries.push(entry);
            last = plain;
            offset += FRAME_BYTES + packed.len();
        }
        Ok(journal)
    }

    /// Decides all of it again. A log that begins in the middle of a run is compared only after
    /// the longest hold, by when histories of all policies agree.
    pub fn replay(&self) -> Replay {
        let mut replay = Replay::default();
        let first = self.entries.first();
        let Some(mut parameters) = first.and_then(|first| first.parameters.clone()) else {
            return replay;
        };
        let begin_ns = first.map_or(0, |first| first.snapshot.at_ns);
        let mut kind = parameters.policy;
        let mut decider = policy(kind);
        for (number, entry) in self.entries.iter().enumerate() {
            if let Some(changed) = &entry.parameters {
                parameters = changed.clone();
            }
            if parameters.policy != kind {
                kind = parameters.policy;
                decider = policy(kind);
            }
            let replayed = decider.decide(&entry.snapshot, &parameters);
            let warm_ns = 2_000_000_u64.saturating_mul(parameters.hold_max_ms);
            let at_ns = entry.snapshot.at_ns;
            if !self.from_start && at_ns.saturating_sub(begin_ns) < warm_ns {
                replay.warm_up += 1;
                continue;
            }
            replay.decisions += 1;
            if replayed != entry.decision {
                let logged = entry.decision.clone();
                replay.mismatches.push(Mismatch { entry: number, at_ns, logged, replayed });
            }
        }
        replay
    }
}

/// Checks the header; whether the log begins with its controller.
fn header(bytes: &[u8]) -> Result<bool> {
    let no_log = "give a log of decisions written by `tidepool control run`";
    let Some(header) = bytes.first_chunk::<HEADER_BYTES>() else {
        let begins = MAGIC.iter().zip(bytes).all(|(magic, byte)| magic == byte);
        let detail = if begins { "it ends within its header" } else { "this is no log" };
        return Err(refuse(0, detail, no_log));
    };
    if header[..4] != MAGIC {
        return Err(refuse(0, "this is no log", no_log));
    }
    let version = u16::from_le_bytes([header[4], header[5]]);
    let types = u32::from_le_bytes([header[6], header[7], header[8], header[9]]);
    if version != VERSION || types != fingerprint()? {
        let detail = format!("version {version} with types {types:08x} is of another build");
        return Err(refuse(4, &detail, "replay it with the build that wrote it"));
    }
    Ok(header[10] == 1)
}

/// The entry at the front of `rest`; `None` where it is not whole.
fn frame(rest: &[u8], offset: usize) -> Result<Option<&[u8]>> {
    let Some((head, body)) = rest.split_first_chunk::<FRAME_BYTES>() else { return Ok(None) };
    let length = u32::from_le_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let checksum = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
    if length > 2 * ENTRY_BYTES_MAX {
        return Err(refuse(offset, "an entry has an impossible length", "the log is damaged"));
    }
    let Some(packed) = body.get(..length) else { return Ok(None) };
    if crc32fast::hash(packed) == checksum {
        return Ok(Some(packed));
    }
    // A torn write leaves zeros or old bytes at the very end only.
    if body.len() == length {
        return Ok(None);
    }
    Err(refuse(offset, "the checksum of an entry is wrong", "the log is damaged"))
}
