//! The data set: records of 27 features drawn around 10 centres, with number, origin and checksum,
//! so that a pass can tell that it read exactly the bytes that were written.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Result;

use crate::suites::content::{SPLITMIX_STEP, scramble};

/// Features of a record.
pub const DIMENSIONS: usize = 27;
/// Clusters that the data is drawn from.
pub const CLUSTERS: usize = 10;
/// Features, cluster, number and checksum.
pub const RECORD_BYTES: usize = 128;
/// Size of a read, the papers' upper buffer; a whole number of records.
pub const PIECE_BYTES: usize = 1 << 20;
const CLUSTER_AT: usize = DIMENSIONS * 4;
const NUMBER_AT: usize = CLUSTER_AT + 4;
const CHECKSUM_AT: usize = NUMBER_AT + 8;
const _: () = assert!(CHECKSUM_AT + 8 == RECORD_BYTES, "a record has no padding");
const _: () = assert!(PIECE_BYTES.is_multiple_of(RECORD_BYTES), "a read ends between records");

/// A data set on disk.
#[derive(Clone, Debug)]
pub struct DataSet {
    /// Directory of the files.
    pub directory: PathBuf,
    /// Names of the files, in order.
    pub names: Vec<String>,
    /// Bytes of all files.
    pub bytes: u64,
}

impl DataSet {
    /// Writes about `bytes` in files of about `file_bytes`, and syncs them.
    pub fn generate(directory: &Path, bytes: u64, file_bytes: u64, seed: u64) -> Result<Self> {
        let pieces = bytes.div_ceil(PIECE_BYTES as u64).max(1);
        let pieces_per_file = (file_bytes / PIECE_BYTES as u64).max(1);
        let mut names = Vec::new();
        let mut number = 0;
        let mut piece = vec![0; PIECE_BYTES];
        for first in (0..pieces).step_by(usize::try_from(pieces_per_file)?) {
            let name = format!("part-{:05}", names.len());
            let mut file = File::create(directory.join(&name))?;
            for _ in first..pieces.min(first + pieces_per_file) {
                for record in piece.chunks_exact_mut(RECORD_BYTES) {
                    write_record(record.try_into()?, number, seed);
                    number += 1;
                }
                file.write_all(&piece)?;
            }
            file.sync_all()?;
            names.push(name);
        }
        let bytes = pieces * PIECE_BYTES as u64;
        Ok(DataSet { directory: directory.to_path_buf(), names, bytes })
    }

    /// The same files under another directory, such as a mount.
    pub fn seen_at(&self, directory: &Path) -> Self {
        DataSet { directory: directory.to_path_buf(), ..self.clone() }
    }

    /// Paths of the files, in order.
    pub fn paths(&self) -> Vec<PathBuf> {
        self.names.iter().map(|name| self.directory.join(name)).collect()
    }

    /// Drops what the kernel's page cache holds of the files.
    pub fn drop_page_cache(&self) -> Result<()> {
        for path in self.paths() {
            let file = File::open(path)?;
            rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed)?;
        }
        Ok(())
    }
}

/// The centre that cluster `cluster` is drawn around.
pub fn centre(seed: u64, cluster: usize) -> [f32; DIMENSIONS] {
    std::array::from_fn(|dimension| {
        let word = mix(seed ^ 0xc1u64, (cluster * DIMENSIONS + dimension) as u64);
        (word >> 40) as f32 / (1 << 24) as f32 * 100.0
    })
}

fn write_record(record: &mut [u8; RECORD_BYTES], number: u64, seed: u64) {
    let cluster = (mix(seed, number) % CLUSTERS as u64) as usize;
    let centre = centre_cached(seed, cluster);
    for (dimension, value) in centre.iter().enumerate() {
        let noise = mix(seed ^ number.rotate_left(20), dimension as u64);
        // The sum of four uniform numbers is near enough to a normal one.
        let sum = (0..4).map(|part| (noise >> (16 * part)) & 0xffff).sum::<u64>() as f32;
        let value = value + (sum / 65_535.0 - 2.0) * 6.0;
        record[dimension * 4..dimension * 4 + 4].copy_from_slice(&value.to_le_bytes());
    }
    record[CLUSTER_AT..NUMBER_AT].copy_from_slice(&(cluster as u32).to_le_bytes());
    record[NUMBER_AT..CHECKSUM_AT].copy_from_slice(&number.to_le_bytes());
    let checksum = checksum(record);
    record[CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
}

fn centre_cached(seed: u64, cluster: usize) -> [f32; DIMENSIONS] {
    thread_local! {
        static CENTRES: std::cell::RefCell<(u64, Vec<[f32; DIMENSIONS]>)> =
            const { std::cell::RefCell::new((0, Vec::new())) };
    }
    CENTRES.with_borrow_mut(|(owner, centres)| {
        if *owner != seed || centres.is_empty() {
            *owner = seed;
            *centres = (0..CLUSTERS).map(|cluster| centre(seed, cluster)).collect();
        }
        centres[cluster]
    })
}

/// What a reader needs of a record.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Record {
    /// The features.
    pub features: [f32; DIMENSIONS],
    /// The cluster it was drawn from.
    pub cluster: u32,
    /// Its number in the data set.
    pub number: u64,
    /// Whether the bytes are those that were written.
    pub is_sound: bool,
}

/// Reads a record and checks it.
#[inline(always)]
pub fn read_record(record: &[u8; RECORD_BYTES]) -> Record {
    let word = |at: usize| u64::from_le_bytes(array(record, at));
    Record {
        features: std::array::from_fn(|index| f32::from_le_bytes(array(record, index * 4))),
        cluster: u32::from_le_bytes(array(record, CLUSTER_AT)),
        number: word(NUMBER_AT),
        is_sound: checksum(record) == word(CHECKSUM_AT),
    }
}

#[inline(always)]
fn checksum(record: &[u8; RECORD_BYTES]) -> u64 {
    let mut sum = 0x7469_6465_706f_6f6cu64;
    for at in (0..CHECKSUM_AT).step_by(8) {
        let word = u64::from_le_bytes(array(record, at));
        sum = (sum ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(29);
    }
    sum
}

#[inline(always)]
fn array<const N: usize>(record: &[u8; RECORD_BYTES], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    bytes.copy_from_slice(&record[at..at + N]);
    bytes
}

/// Splitmix64 from `seed` on.
fn mix(seed: u64, index: u64) -> u64 {
    scramble(seed.wrapping_add(index.wrapping_add(1).wrapping_mul(SPLITMIX_STEP)))
}

#[cfg(test)]
mod tests {
    use super::{RECORD_BYTES, read_record, write_record};

    #[test]
    fn a_record_reads_back_and_a_flipped_bit_shows() {
        let mut record = [0; RECORD_BYTES];
        write_record(&mut record, 12_345, 7);
        let read = read_record(&record);
        assert!(read.is_sound);
        assert_eq!(read.number, 12_345);
        for byte in 0..RECORD_BYTES {
            let mut damaged = record;
            damaged[byte] ^= 4;
            assert!(!read_record(&damaged).is_sound, "byte {byte}");
        }
    }
}
