//! The check of equation (7): aggregate read throughput of several readers with a given share of
//! the data in memory, predicted and measured. The share is exact: whole files are resident or were
//! evicted just before they are read, so that no policy decides.

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use tidepool_model::{
    BytesPerSecond, Cluster, Direction, Extensions, NodeCount, Pfs, Share, Storage, per_node,
};
use tidepool_proto::{Error, ErrorKind, Result};

use super::own_node::Scratch;
use super::reading::{Pass, Reader, SECONDS_MIN, library_pass};
use super::results::ShareCheck;
use crate::calibrate::file::median;
use crate::calibrate::memory::{fill, load};
use tidepool_terminal::interruption::check;

/// Files of a reader; shares are multiples of one part.
const PARTS: usize = 4;
const TIMED_PASSES: usize = 5;

/// What is read.
pub struct Readers {
    /// The files of each reader, in the order they are read.
    files: Vec<[PathBuf; PARTS]>,
    /// Size of each file in bytes.
    size: u64,
}

impl Readers {
    /// Files for `count` readers, `total` bytes together.
    pub fn make(scratch: &Scratch, count: u32, total: u64, block: u64) -> Result<Self> {
        let size = (total / (u64::from(count) * PARTS as u64) / block * block).max(block);
        let mut files = Vec::new();
        for reader in 0..count {
            let name = |part| scratch.path().join(format!("reader-{reader}-{part}"));
            let parts = [name(0), name(1), name(2), name(3)];
            for path in &parts {
                fill(path, size)?;
            }
            files.push(parts);
        }
        Ok(Readers { files, size })
    }

    /// The first `parts` files of every reader, and the others.
    fn split(&self, parts: usize) -> (Vec<&PathBuf>, Vec<&PathBuf>) {
        let of = |range: fn(&[PathBuf; PARTS], usize) -> &[PathBuf]| {
            self.files.iter().flat_map(|files| range(files, parts)).collect()
        };
        (of(|files, parts| &files[..parts]), of(|files, parts| &files[parts..]))
    }
}

/// Checks all shares; `pfs` is the known rate of the PFS. All files fit the store together.
pub fn check_all(
    reader: &Reader,
    readers: &Readers,
    pfs: BytesPerSecond,
    interrupted: &AtomicBool,
) -> Result<Vec<ShareCheck>> {
    // ν of all readers together, in a measurement of its own.
    let memory = BytesPerSecond::new(measure(reader, readers, PARTS, interrupted)?.0)?;
    let cluster = Cluster {
        // Neither network nor disks of the node are on the path.
        network: pfs.times(1e3),
        backplane: None,
        disk: None,
        memory_read: memory,
        memory_write: memory,
        pfs: Pfs::Aggregate { read: pfs, write: pfs },
        extensions: Extensions::default(),
    };
    let mut checks = Vec::new();
    for parts in 0..=PARTS {
        let hits = Share::new(parts as f64 / PARTS as f64)?;
        let storage = Storage::TwoLevel { hits };
        let predicted = per_node(&cluster, storage, Direction::Read, NodeCount::ONE)?.rate.get();
        let (rate, counted) = measure(reader, readers, parts, interrupted)?;
        let error = predicted / rate - 1.0;
        checks.push(ShareCheck {
            f: hits.get(),
            counted,
            bytes_per_second: rate,
            predicted,
            error,
        });
    }
    Ok(checks)
}

/// With `parts` of each reader's files resident: median rate of all readers together, and the share
/// of the bytes that cost the PFS no read.
fn measure(
    reader: &Reader,
    readers: &Readers,
    parts: usize,
    interrupted: &AtomicBool,
) -> Result<(f64, f64)> {
    let (resident, others) = readers.split(parts);
    for path in resident {
        load(&reader.connection, path)?;
    }
    let (mut rates, mut hits) = (Vec::new(), Vec::new());
    // The first pass only maps what is resident.
    for number in 0..=TIMED_PASSES {
        let (mut bytes, mut seconds, mut read) = (0, 0.0, 0);
        while seconds < SECONDS_MIN {
            check(interrupted)?;
            for path in &others {
                reader.evict(path)?;
            }
            let before = reader.pfs_read_bytes()?;
            let passes = together(reader, readers, interrupted)?;
            read += reader.pfs_read_bytes()?.saturating_sub(before);
            bytes += passes.iter().map(|pass| pass.bytes).sum::<u64>();
            seconds += passes.iter().map(|pass| pass.seconds).fold(0.0, f64::max);
        }
        if number > 0 {
            rates.push(bytes as f64 / seconds);
            hits.push((1.0 - read as f64 / bytes.max(1) as f64).max(0.0));
        }
    }
    rates.sort_by(f64::total_cmp);
    hits.sort_by(f64::total_cmp);
    Ok((median(&rates), median(&hits)))
}

/// One pass of every reader over its files, at the same time.
fn together(reader: &Reader, readers: &Readers, interrupted: &AtomicBool) -> Result<Vec<Pass>> {
    let client = reader.connection.client();
    let one = |files: &[PathBuf; PARTS]| -> Result<Pass> {
        let mut sum = Pass::default();
        for path in files {
            let pass = library_pass(client, path, readers.size, 0, interrupted)?;
            sum.bytes += pass.bytes;
            sum.seconds += pass.seconds;
        }
        Ok(sum)
    };
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            readers.files.iter().map(|files| scope.spawn(|| one(files))).collect();
        let passes = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| {
                Err(Error::new(ErrorKind::Internal, "checking equation (7)", "a reader failed"))
            })
        });
        passes.collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_whole_blocks_and_split_by_parts() {
        let directory = tempfile::tempdir().unwrap();
        let scratch = Scratch::below(directory.path()).unwrap();
        let readers = Readers::make(&scratch, 2, 100 << 10, 4 << 10).unwrap();
        assert_eq!(readers.size, 12 << 10);
        for (parts, expected) in [(0, (0, 8)), (1, (2, 6)), (4, (8, 0))] {
            let (resident, others) = readers.split(parts);
            assert_eq!((resident.len(), others.len()), expected);
        }
        let length = std::fs::metadata(readers.split(0).1[0]).unwrap().len();
        assert_eq!(length, readers.size);
    }
}
