//! [`Check`]: whether the PFS gives back what was written to it, where that is asked for
//! (`write_back_check`). It is looked at while the bytes are still elsewhere as well, in memory or
//! in burst buffers.

use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};
use std::time::{Duration, Instant};

use tidepool_pfs::LowerFile;
use tidepool_proto::config::WriteBackCheck;
use tidepool_proto::table::BlockState;
use tidepool_proto::{Error, ErrorKind, Result, Version};
use tidepool_store::Segment;

use super::cached_version::CachedVersion;
use crate::core::Core;

/// One of so many pieces is looked at where not all are.
const SAMPLE: u64 = 16;
/// What is read at a time.
const READ_BYTES: u64 = 1 << 20;
/// Longest time that a file is compared for while it can neither be read nor written.
const COMPARE_LIMIT: Duration = Duration::from_secs(2);

/// Pieces of a file that are to be there, in rising order.
pub struct Check<'a> {
    core: &'a Core,
    lower: &'a dyn LowerFile,
    noted: Vec<Piece>,
    /// Pieces so far.
    count: u64,
    sample: RandomState,
}

struct Piece {
    offset: u64,
    length: u64,
    sum: u64,
}

fn sum(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    hasher.write(bytes);
    hasher.finish()
}

impl<'a> Check<'a> {
    /// Of a file of which nothing is written yet.
    pub fn new(core: &'a Core, lower: &'a dyn LowerFile) -> Self {
        Check { core, lower, noted: Vec::new(), count: 0, sample: RandomState::new() }
    }

    /// These bytes were written.
    pub fn note(&mut self, offset: u64, bytes: &[u8]) {
        for (number, bytes) in bytes.chunks(READ_BYTES as usize).enumerate() {
            let is_first = self.count == 0;
            self.count += 1;
            let is_looked_at = match self.core.config.write_back_check {
                WriteBackCheck::Off => false,
                WriteBackCheck::Sampled => {
                    is_first || self.sample.hash_one(self.count).is_multiple_of(SAMPLE)
                }
                WriteBackCheck::All => true,
            };
            if is_looked_at {
                let offset = offset + number as u64 * READ_BYTES;
                let (length, sum) = (bytes.len() as u64, sum(bytes));
                self.noted.push(Piece { offset, length, sum });
            }
        }
    }

    /// Reads them back.
    ///
    /// # Errors
    /// The PFS has other bytes, or gives none.
    pub fn look(self) -> Result<()> {
        if self.noted.is_empty() {
            return Ok(());
        }
        // What is on its way would be read from this machine's memory.
        self.lower.sync(true)?;
        let mut buffer = Vec::new();
        for Piece { offset, length, sum: written } in self.noted {
            buffer.resize(length as usize, 0);
            self.lower.drop_cached(offset, length);
            let read = self.lower.look_at(offset, &mut buffer)?;
            self.core.counters.pfs_read_bytes.add(read as u64);
            if sum(&buffer[..read]) != written {
                let detail = format!(
                    "of {length} bytes that were written at {offset}, the PFS gives back {read}, \
                     and they are not the same"
                );
                return Err(Error::new(ErrorKind::Pfs, "checking what was written back", detail)
                    .remedy("check the PFS; the bytes stay in memory or in burst buffers"));
            }
        }
        Ok(())
    }
}

/// The version at which the PFS has the very bytes of `cached`, by reading all of them; `None`
/// where it has others, or gives none, or takes too long.
pub fn version_with_bytes_of(
    core: &Core,
    cached: &CachedVersion,
    lower: &dyn LowerFile,
) -> Option<Version> {
    let begun = Instant::now();
    let before = lower.version().ok().filter(|before| before.size == cached.size())?;
    let segment = cached.segment().filter(|segment| segment.size() == before.size)?;
    for block in 0..segment.blocks() {
        has_bytes_of_block(core, segment, block, lower)?;
        core.memory_only.steps().moved(cached.id());
        if begun.elapsed() > COMPARE_LIMIT {
            return None;
        }
    }
    lower.version().ok().filter(|now| now.agrees_with(&before))
}

/// `Some` where it has those of one block, of which nothing was written where it is absent.
fn has_bytes_of_block(
    core: &Core,
    segment: &Segment,
    block: u64,
    lower: &dyn LowerFile,
) -> Option<()> {
    let start = block * segment.block_bytes();
    let mut left = segment.size().saturating_sub(start).min(segment.block_bytes()) as usize;
    let pin = segment.pin_block(block);
    if pin.is_none() && segment.state(block) != BlockState::Absent {
        return None;
    }
    let (mut buffer, mut at) = (vec![0; left.min(READ_BYTES as usize)], 0);
    while left > 0 {
        let piece = &mut buffer[..left.min(READ_BYTES as usize)];
        let offset = start + at as u64;
        lower.drop_cached(offset, piece.len() as u64);
        let read = lower.look_at(offset, piece).ok()?;
        core.counters.pfs_read_bytes.add(read as u64);
        let is_same = match &pin {
            Some(pin) => pin.get(at..at + piece.len()) == Some(&*piece),
            None => piece.iter().all(|byte| *byte == 0),
        };
        if read < piece.len() || !is_same {
            return None;
        }
        (at, left) = (at + read, left - read);
    }
    Some(())
}
