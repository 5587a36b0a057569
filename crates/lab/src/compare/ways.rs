//! How `bench compare` times one round by one way.

use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use rustix::fs::{Advice, fadvise};
use tidepool_client::OpenOptions;
use tidepool_proto::{Error, Result};

use super::arguments::Pattern;
use super::files::{Files, PIECE_BYTES, random};
use super::way::Way;
use tidepool_terminal::interruption::check;

const RANDOM_BYTES: u64 = 4 << 10;
/// Random reads a round from memory.
const RANDOM_READS: u64 = 50_000;
/// Random reads a round that each may go over the network.
const RANDOM_READS_COLD: u64 = 500;

/// Bytes of one read or write.
pub fn operation_bytes(pattern: Pattern) -> u64 {
    if pattern == Pattern::Random { RANDOM_BYTES } else { PIECE_BYTES }
}

/// Times one round by one way; bytes per second.
pub fn rate(
    files: &Files,
    way: Way,
    pattern: Pattern,
    round: u64,
    interrupted: &AtomicBool,
) -> Result<f64> {
    match pattern {
        Pattern::Sequential | Pattern::Random => read(files, way, pattern, round, interrupted),
        Pattern::Scan => scan(files, way, interrupted),
        Pattern::Write => write(files, way, round, interrupted),
    }
}

fn failed(path: &Path) -> impl Fn(std::io::Error) -> Error {
    move |source| Error::pfs(format!("measuring with {}", path.display()), source)
}

/// Reads one open file.
fn read(
    files: &Files,
    way: Way,
    pattern: Pattern,
    round: u64,
    interrupted: &AtomicBool,
) -> Result<f64> {
    let path = files.read_path(way);
    let sequential = pattern == Pattern::Sequential;
    let reads = match (sequential, way) {
        (true, _) => files.size_bytes.div_ceil(PIECE_BYTES),
        (false, Way::BarePfs) => RANDOM_READS_COLD,
        (false, _) => RANDOM_READS,
    };
    let offsets = offsets(sequential, files.size_bytes, round).take(reads as usize);
    let mut buffer = vec![0; operation_bytes(pattern) as usize];
    if way == Way::Library {
        let file = files.connection.client().open(&path, OpenOptions::read())?;
        return timed(offsets, interrupted, |at| Ok(file.read_at(at, &mut buffer)?.bytes as u64));
    }
    let file = File::open(&path).map_err(failed(&path))?;
    prepare(way, &file).map_err(failed(&path))?;
    timed(offsets, interrupted, |at| {
        let count = file.read_at(&mut buffer, at).map_err(failed(&path))?;
        black_box(&buffer);
        Ok(count as u64)
    })
}

/// Opens, reads and closes file after file.
fn scan(files: &Files, way: Way, interrupted: &AtomicBool) -> Result<f64> {
    for path in files.scan_paths(way) {
        if matches!(way, Way::PageCache | Way::BarePfs) {
            let file = File::open(&path).map_err(failed(&path))?;
            prepare(way, &file).map_err(failed(&path))?;
        }
    }
    let mut buffer = vec![0; PIECE_BYTES as usize];
    timed(files.scan_paths(way), interrupted, |path| {
        let count = if way == Way::Library {
            let file = files.connection.client().open(&path, OpenOptions::read())?;
            file.read_at(0, &mut buffer)?.bytes
        } else {
            let file = File::open(&path).map_err(failed(&path))?;
            file.read_at(&mut buffer, 0).map_err(failed(&path))?
        };
        black_box(&buffer);
        Ok(count as u64)
    })
}

/// Writes a new file and closes it; it is removed untimed.
fn write(files: &Files, way: Way, round: u64, interrupted: &AtomicBool) -> Result<f64> {
    let path = files.write_path(way, round);
    let piece = vec![0x5a; PIECE_BYTES as usize];
    let offsets = (0..files.size_bytes / PIECE_BYTES).map(|number| number * PIECE_BYTES);
    let begun = Instant::now();
    if way == Way::Library {
        let file = files.connection.client().open(&path, OpenOptions::write())?;
        for offset in offsets {
            check(interrupted)?;
            file.write_at(offset, &piece)?;
        }
        file.close()?;
    } else {
        let mut file = File::create(&path).map_err(failed(&path))?;
        for _ in offsets {
            check(interrupted)?;
            file.write_all(&piece).map_err(failed(&path))?;
        }
        if way == Way::BarePfs {
            file.sync_all().map_err(failed(&path))?;
            let parent = path.parent().unwrap_or(Path::new("/"));
            File::open(parent).and_then(|parent| parent.sync_all()).map_err(failed(parent))?;
        }
    }
    let seconds = begun.elapsed().as_secs_f64();
    if way == Way::PageCache {
        // Or its write-back would fall into the time of the next.
        File::open(&path).and_then(|file| file.sync_all()).map_err(failed(&path))?;
    }
    std::fs::remove_file(&path).map_err(failed(&path))?;
    Ok((files.size_bytes / PIECE_BYTES * PIECE_BYTES) as f64 / seconds.max(1e-9))
}

/// Bytes per second of `operation` over all of `steps`.
fn timed<T>(
    steps: impl Iterator<Item = T>,
    interrupted: &AtomicBool,
    mut operation: impl FnMut(T) -> Result<u64>,
) -> Result<f64> {
    let mut bytes = 0;
    let begun = Instant::now();
    for step in steps {
        check(interrupted)?;
        bytes += operation(step)?;
    }
    Ok(bytes as f64 / begun.elapsed().as_secs_f64().max(1e-9))
}

/// Where each read begins; without end.
fn offsets(sequential: bool, size_bytes: u64, round: u64) -> impl Iterator<Item = u64> {
    let slots = (size_bytes / RANDOM_BYTES).max(1);
    let mut state = 0x2545_F491_4F6C_DD1D ^ (round + 1);
    (0..).map(move |index| match sequential {
        true => index * PIECE_BYTES,
        false => random(&mut state) % slots * RANDOM_BYTES,
    })
}

/// Fills or empties the page cache, whichever the way stands for.
fn prepare(way: Way, file: &File) -> std::io::Result<()> {
    match way {
        Way::PageCache => {
            let mut buffer = vec![0; PIECE_BYTES as usize];
            let mut offset = 0;
            loop {
                match file.read_at(&mut buffer, offset)? {
                    0 => return Ok(()),
                    count => offset += count as u64,
                }
            }
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
        for offset in offsets(false, 1 << 20, 3).take(1000) {
            assert!(offset + RANDOM_BYTES <= 1 << 20);
            assert!(offset.is_multiple_of(RANDOM_BYTES));
        }
        assert_eq!(offsets(true, 4 << 20, 0).take(2).collect::<Vec<_>>(), [0, 1 << 20]);
    }
}
