//! [`Check`]: whether the PFS gives back what was written to it, where that is asked for
//! (`write_back_check`). It is looked at while the bytes are still elsewhere as well, in memory or
//! in burst buffers.

use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};

use tidepool_pfs::LowerFile;
use tidepool_proto::config::WriteBackCheck;
use tidepool_proto::{Error, ErrorKind, Result};

use crate::core::Core;

/// One of so many pieces is looked at where not all are.
const SAMPLE: u64 = 16;
/// What is read at a time.
const READ_BYTES: u64 = 1 << 20;

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
