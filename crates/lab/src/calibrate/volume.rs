//! Measures a directory of a file system: reads and writes by several streams with direct I/O, and
//! the latency of a small read. Writes one file, removes it, and refuses to fill what is shared.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

use rustix::fs::Advice;
use tidepool_proto::mounts::MountTable;
use tidepool_proto::{Error, ErrorKind, Result};

use super::file::{Measured, Volume, median};
use tidepool_terminal::interruption::check;
use tidepool_terminal::output;

const MIB: u64 = 1 << 20;
/// Bytes of one transfer: the lower buffer of the papers.
const TRANSFER_BYTES: usize = 4 << 20;
/// What direct I/O needs memory and offsets to be multiples of, on every common device.
const ALIGNMENT: usize = 4096;
/// Small reads for the latency.
const SMALL_READS: usize = 64;
/// Share of the free space that a measurement may take, one in so many.
const FREE_PARTS: u64 = 10;

/// File systems that others are likely to use too.
const SHARED: [&str; 14] = [
    "lustre",
    "nfs",
    "nfs4",
    "ceph",
    "beegfs",
    "gpfs",
    "pvfs2",
    "glusterfs",
    "afs",
    "cifs",
    "smb3",
    "9p",
    "ocfs2",
    "gfs2",
];

/// What to measure, and how much of it.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// Bytes of the file.
    pub bytes: u64,
    /// Transfers under way at a time.
    pub streams: u32,
    /// How often each direction is measured.
    pub repeats: u32,
    /// Time of one repeat, after which it is cut off and counted as far as it got.
    pub time_max: Duration,
}

/// A file that goes away with its value.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_file(&self.0) {
            output::note(&format!("left behind: {}: {error}", self.0.display()));
        }
    }
}

/// Memory at an address that direct I/O takes.
struct Buffer {
    bytes: Vec<u8>,
    start: usize,
}

impl Buffer {
    fn new(seed: u64) -> Self {
        let mut bytes = vec![0; TRANSFER_BYTES + ALIGNMENT];
        let start = bytes.as_ptr().align_offset(ALIGNMENT);
        let mut state = seed | 1;
        // Bytes that no file system can compress or find twice.
        for word in bytes.chunks_exact_mut(8) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            word.copy_from_slice(&state.to_le_bytes());
        }
        Buffer { bytes, start }
    }

    fn part(&mut self, length: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + length]
    }
}

/// Type of the file system that holds `directory`, as the table of mounts names it.
pub fn file_system(directory: &Path) -> String {
    let directory = directory.canonicalize().unwrap_or_else(|_| directory.to_owned());
    let table = MountTable::read().unwrap_or_default();
    let mount = table.around(&directory);
    mount.map_or_else(|| "unknown".to_owned(), |mount| mount.kind().into_owned())
}

/// Whether others are likely to use a file system of this type too.
pub fn is_shared(kind: &str) -> bool {
    SHARED.contains(&kind) || kind.starts_with("fuse")
}

/// Refuses a measurement that the file system has no room for.
///
/// `remedy` says what to do, given the most that may be used.
pub fn check_room(directory: &Path, bytes: u64, remedy: impl FnOnce(u64) -> String) -> Result<()> {
    let operation = || format!("measuring {}", directory.display());
    let facts = rustix::fs::statvfs(directory)
        .map_err(|source| Error::pfs(operation(), io::Error::from(source)))?;
    let free_bytes = facts.f_bavail * facts.f_frsize;
    if bytes <= free_bytes / FREE_PARTS {
        return Ok(());
    }
    let (free, asked) = (output::size(free_bytes), output::size(bytes));
    let detail =
        format!("{asked} asked for, {free} free, of which one part in {FREE_PARTS} is used");
    Err(Error::new(ErrorKind::InvalidInput, operation(), detail)
        .remedy(remedy(free_bytes / FREE_PARTS)))
}

/// The remedy of a measurement that is bounded by its bytes.
pub fn fewer_bytes(most_bytes: u64) -> String {
    at_most("--bytes-max", most_bytes)
}

/// The remedy of a measurement that is bounded by `option`, where `most_bytes` may be used.
pub fn at_most(option: &str, most_bytes: u64) -> String {
    match most_bytes {
        0..MIB => "make room there, or measure in another directory".to_owned(),
        _ => format!("give {option} {} or less", output::size(most_bytes / MIB * MIB)),
    }
}

/// Measures `directory` within `bounds`.
pub fn measure(directory: &Path, bounds: Bounds, interrupted: &AtomicBool) -> Result<Volume> {
    check_room(directory, bounds.bytes, fewer_bytes)?;
    let operation = format!("measuring {}", directory.display());
    let failed = |source: io::Error| Error::pfs(operation.clone(), source);
    let path = directory.join(format!(".tidepool-calibration-{}", std::process::id()));
    let (file, direct) = open(&path).map_err(failed)?;
    let _temporary = Temporary(path);
    let mut writes = Vec::new();
    for _ in 0..bounds.repeats {
        check(interrupted)?;
        writes.push(pass(&file, bounds, true).map_err(failed)?);
    }
    // A pass that was cut off wrote less than the file should have.
    let written = file.metadata().map_err(failed)?.len();
    let bounds = Bounds { bytes: written.min(bounds.bytes), ..bounds };
    let mut reads = Vec::new();
    for _ in 0..bounds.repeats {
        check(interrupted)?;
        forget(&file);
        reads.push(pass(&file, bounds, false).map_err(failed)?);
    }
    let how = if direct { "direct I/O" } else { "buffered, page cache dropped" };
    let how = format!("{how}, {} transfers of 4 MiB at a time", bounds.streams);
    forget(&file);
    Ok(Volume {
        directory: directory.display().to_string(),
        file_system: file_system(directory),
        direct,
        latency_us: latency(&file, bounds.bytes).map_err(failed)?,
        read: Measured::of(reads, bounds.streams, &how),
        write: Measured::of(writes, bounds.streams, &format!("{how}, then fsync")),
    })
}

/// A new file, for direct I/O where that is possible.
fn open(path: &Path) -> io::Result<(File, bool)> {
    let options = || {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        options
    };
    match options().custom_flags(libc::O_DIRECT).open(path) {
        Ok(file) => Ok((file, true)),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            // Some file systems make the file before they refuse.
            let _ = std::fs::remove_file(path);
            Ok((options().open(path)?, false))
        }
        Err(error) => Err(error),
    }
}

/// Drops what the page cache has of the file.
fn forget(file: &File) {
    // A file system that ignores this was told apart by the missing direct I/O.
    let _ = rustix::fs::fadvise(file, 0, None, Advice::DontNeed);
}

/// One pass over the file by several threads; bytes per second.
fn pass(file: &File, bounds: Bounds, write: bool) -> io::Result<f64> {
    let transfers = (bounds.bytes / TRANSFER_BYTES as u64).max(1);
    let streams = u64::from(bounds.streams).min(transfers);
    let buffers: Vec<Buffer> = (0..streams).map(|stream| Buffer::new(stream + 1)).collect();
    let begun = Instant::now();
    let moved: u64 = std::thread::scope(|scope| {
        let threads: Vec<_> = buffers
            .into_iter()
            .enumerate()
            .map(|(stream, buffer)| {
                let mine = (stream as u64..transfers).step_by(streams as usize);
                scope.spawn(move || transfer(file, mine, buffer, write, begun, bounds.time_max))
            })
            .collect();
        let parts = threads.into_iter().map(|thread| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a transfer failed")))
        });
        parts.sum::<io::Result<u64>>()
    })?;
    if write {
        file.sync_all()?;
    }
    Ok(moved as f64 / begun.elapsed().as_secs_f64().max(1e-9))
}

fn transfer(
    file: &File,
    mine: impl Iterator<Item = u64>,
    mut buffer: Buffer,
    write: bool,
    begun: Instant,
    time_max: Duration,
) -> io::Result<u64> {
    let mut moved = 0;
    for number in mine {
        let offset = number * TRANSFER_BYTES as u64;
        let part = buffer.part(TRANSFER_BYTES);
        if write {
            file.write_all_at(part, offset)?;
            moved += part.len() as u64;
        } else {
            moved += file.read_at(part, offset)? as u64;
        }
        if begun.elapsed() > time_max {
            break;
        }
    }
    Ok(moved)
}

/// Median time of a small read in microseconds, each at a place of its own.
fn latency(file: &File, bytes: u64) -> io::Result<f64> {
    let places = (bytes / ALIGNMENT as u64).max(1);
    let mut buffer = Buffer::new(1);
    let mut times = Vec::with_capacity(SMALL_READS);
    for number in 0..SMALL_READS as u64 {
        // A large odd factor scatters the places over the file.
        let place = number.wrapping_mul(0x9E37_79B9_7F4A_7C15) % places;
        let begun = Instant::now();
        file.read_at(buffer.part(ALIGNMENT), place * ALIGNMENT as u64)?;
        times.push(begun.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(median(&times))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(bytes: u64) -> Bounds {
        Bounds { bytes, streams: 3, repeats: 2, time_max: Duration::from_secs(20) }
    }

    #[test]
    fn a_directory_is_measured_and_left_as_it_was() {
        let directory = tempfile::tempdir().unwrap();
        let quiet = AtomicBool::new(false);
        let found = measure(directory.path(), bounds(16 << 20), &quiet).unwrap();
        assert!(found.read.bytes_per_second > 0.0 && found.write.bytes_per_second > 0.0);
        assert_eq!((found.read.repeats, found.read.streams), (2, 3));
        assert!(found.latency_us > 0.0);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
        let stopped = AtomicBool::new(true);
        assert!(measure(directory.path(), bounds(16 << 20), &stopped).is_err());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
    }

    #[test]
    fn what_does_not_fit_is_refused_before_a_byte_is_written() {
        let directory = tempfile::tempdir().unwrap();
        let quiet = AtomicBool::new(false);
        let error = measure(directory.path(), bounds(1 << 60), &quiet).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains("--bytes-max"), "{error}");
        assert!(measure(&directory.path().join("none"), bounds(1), &quiet).is_err());
    }

    #[test]
    fn shared_file_systems_are_known() {
        assert!(is_shared("lustre") && is_shared("fuse.glusterfs") && !is_shared("ext4"));
        assert_eq!(file_system(Path::new("/proc/self")), "proc");
    }
}
