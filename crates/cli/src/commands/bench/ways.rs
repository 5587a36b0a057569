//! The ways of reading that `bench` compares, and how one of them is timed.

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

use rustix::fs::{Advice, fadvise};
use tidepool_client::OpenOptions;
use tidepool_proto::{Error, Result};

use super::Temporary;
use crate::connection::Connection;
use crate::target::Roots;

const SEQUENTIAL_BYTES: usize = 1 << 20;
const RANDOM_BYTES: usize = 4 << 10;
/// Random reads a round from memory.
const RANDOM_READS: u64 = 50_000;
/// Random reads a round that each may go over the network.
const RANDOM_READS_COLD: u64 = 500;
/// Where raw memory is to be had.
const TMPFS: &str = "/dev/shm";

/// A way to the same bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// A copy on tmpfs: the best there can be.
    Tmpfs,
    /// The PFS file out of the kernel's page cache.
    PageCache,
    /// Resident, through the mount.
    Mount,
    /// Resident, through the library.
    Library,
    /// The PFS file with nothing in the page cache.
    BarePfs,
}

impl Way {
    /// The stable name used in tables and JSON.
    pub fn name(self) -> &'static str {
        match self {
            Way::Tmpfs => "tmpfs",
            Way::PageCache => "page cache",
            Way::Mount => "mount",
            Way::Library => "library",
            Way::BarePfs => "bare PFS",
        }
    }
}

/// The files that are read. They are removed when this drops.
pub struct Files {
    /// On the PFS.
    pub pfs: PathBuf,
    /// Why ways are left out.
    pub skipped: Vec<String>,
    tmpfs: Option<PathBuf>,
    mount: Option<PathBuf>,
    size_bytes: u64,
    _temporary: Vec<Temporary>,
}

impl Files {
    /// Writes the same bytes to the PFS and to tmpfs.
    pub fn create(roots: &Roots, size_bytes: u64) -> Result<Files> {
        let name = format!(".tidepool-bench-{}", std::process::id());
        let pfs = roots.pfs.join(&name);
        let mut temporary = vec![Temporary(pfs.clone())];
        write(&pfs, size_bytes)?;
        let mut skipped = Vec::new();
        let copy = Path::new(TMPFS).join(&name);
        let tmpfs = match room_for(Path::new(TMPFS), size_bytes) {
            Err(why) => {
                skipped.push(format!("tmpfs: {why}"));
                None
            }
            Ok(()) => {
                temporary.push(Temporary(copy.clone()));
                write(&copy, size_bytes)?;
                Some(copy)
            }
        };
        let mount = roots.mount.as_ref().map(|mount| mount.join(&name));
        if mount.is_none() {
            skipped.push("mount: the node has none".to_owned());
        }
        Ok(Files { pfs, skipped, tmpfs, mount, size_bytes, _temporary: temporary })
    }

    /// The ways that can be measured here.
    pub fn ways(&self) -> Vec<Way> {
        let all = [Way::Tmpfs, Way::PageCache, Way::Mount, Way::Library, Way::BarePfs];
        let possible = all.into_iter().filter(|way| match way {
            Way::Tmpfs => self.tmpfs.is_some(),
            Way::Mount => self.mount.is_some(),
            Way::PageCache | Way::Library | Way::BarePfs => true,
        });
        possible.collect()
    }

    fn path(&self, way: Way) -> &Path {
        let special = match way {
            Way::Tmpfs => self.tmpfs.as_deref(),
            Way::Mount => self.mount.as_deref(),
            Way::PageCache | Way::Library | Way::BarePfs => None,
        };
        special.unwrap_or(&self.pfs)
    }
}

fn room_for(directory: &Path, size_bytes: u64) -> std::result::Result<(), String> {
    let facts = rustix::fs::statvfs(directory).map_err(|error| error.to_string())?;
    let free_bytes = facts.f_bavail * facts.f_frsize;
    if free_bytes > size_bytes + (64 << 20) {
        return Ok(());
    }
    let free = crate::output::size(free_bytes);
    Err(format!("{} has {free} free only", directory.display()))
}

fn write(path: &Path, size_bytes: u64) -> Result<()> {
    let failed = |source| Error::pfs(format!("writing {}", path.display()), source);
    let mut file = File::create_new(path).map_err(failed)?;
    let mut state = 0x9E37_79B9_7F4A_7C15_u64;
    let mut chunk = vec![0; SEQUENTIAL_BYTES];
    let mut left = size_bytes;
    while left > 0 {
        // Bytes that no file system can compress or find twice.
        for word in chunk.chunks_exact_mut(8) {
            word.copy_from_slice(&next(&mut state).to_le_bytes());
        }
        let part = left.min(chunk.len() as u64) as usize;
        file.write_all(&chunk[..part]).map_err(failed)?;
        left -= part as u64;
    }
    file.sync_all().map_err(failed)
}

/// A small generator (xorshift), repeatable by its start.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Bytes of one read.
pub fn read_bytes(sequential: bool) -> usize {
    if sequential { SEQUENTIAL_BYTES } else { RANDOM_BYTES }
}

/// Times one round by one way; bytes per second.
pub fn rate(
    way: Way,
    files: &Files,
    node: &Connection,
    sequential: bool,
    round: u64,
) -> Result<f64> {
    let path = files.path(way);
    let failed = |source| Error::pfs(format!("reading {}", path.display()), source);
    let reads = match (sequential, way) {
        (true, _) => files.size_bytes.div_ceil(SEQUENTIAL_BYTES as u64),
        (false, Way::BarePfs) => RANDOM_READS_COLD,
        (false, _) => RANDOM_READS,
    };
    let offset = offsets(sequential, files.size_bytes, round);
    if way == Way::Library {
        let file = node.client().open(path, OpenOptions::read())?;
        let read = |at, buffer: &mut [u8]| file.read_at(at, buffer).map(|outcome| outcome.bytes);
        return timed(reads, sequential, offset, read);
    }
    let file = File::open(path).map_err(failed)?;
    prepare(way, &file, files.size_bytes).map_err(failed)?;
    let read = |at, buffer: &mut [u8]| file.read_at(buffer, at).map_err(failed);
    timed(reads, sequential, offset, read)
}

/// Where each read begins.
fn offsets(sequential: bool, size_bytes: u64, round: u64) -> impl FnMut() -> u64 {
    let slots = (size_bytes / RANDOM_BYTES as u64).max(1);
    let mut state = 0x2545_F491_4F6C_DD1D ^ (round + 1);
    let mut index = 0;
    move || {
        if sequential {
            index += 1;
            return (index - 1) * SEQUENTIAL_BYTES as u64;
        }
        next(&mut state) % slots * RANDOM_BYTES as u64
    }
}

fn timed(
    reads: u64,
    sequential: bool,
    mut offset: impl FnMut() -> u64,
    mut read: impl FnMut(u64, &mut [u8]) -> Result<usize>,
) -> Result<f64> {
    let mut buffer = vec![0; read_bytes(sequential)];
    let mut bytes = 0;
    let begun = Instant::now();
    for _ in 0..reads {
        bytes += read(offset(), &mut buffer)?;
        black_box(&buffer);
    }
    Ok(bytes as f64 / begun.elapsed().as_secs_f64().max(1e-9))
}

/// Fills or empties the page cache, whichever the way stands for.
fn prepare(way: Way, file: &File, size_bytes: u64) -> std::io::Result<()> {
    match way {
        Way::PageCache => {
            let mut buffer = vec![0; SEQUENTIAL_BYTES];
            let mut offset = 0;
            while offset < size_bytes {
                offset += match file.read_at(&mut buffer, offset)? {
                    0 => break,
                    count => count as u64,
                };
            }
            Ok(())
        }
        Way::BarePfs => Ok(fadvise(file.as_fd(), 0, None, Advice::DontNeed)?),
        Way::Tmpfs | Way::Mount | Way::Library => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_stay_in_the_file() {
        let mut random = offsets(false, 1 << 20, 3);
        for _ in 0..1000 {
            let offset = random();
            assert!(offset + RANDOM_BYTES as u64 <= 1 << 20);
            assert!(offset.is_multiple_of(RANDOM_BYTES as u64));
        }
        let mut sequential = offsets(true, 4 << 20, 0);
        assert_eq!([sequential(), sequential()], [0, 1 << 20]);
    }

    #[test]
    fn files_are_equal_and_removed() {
        let directory = tempfile::tempdir().unwrap();
        let roots = Roots { pfs: directory.path().to_owned(), mount: None };
        let files = Files::create(&roots, (1 << 20) + 7).unwrap();
        let pfs = files.pfs.clone();
        let content = std::fs::read(&pfs).unwrap();
        assert_eq!(content.len(), (1 << 20) + 7);
        if let Some(tmpfs) = files.tmpfs.clone() {
            assert!(std::fs::read(tmpfs).unwrap() == content);
        }
        assert!(!files.ways().contains(&Way::Mount));
        drop(files);
        assert!(!pfs.exists());
    }
}
