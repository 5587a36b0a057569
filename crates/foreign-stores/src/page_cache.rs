//! The page cache of a directory as a store: how much of its files is resident, and what goes.
//!
//! It drops clean pages only, file by file, those first that were used longest ago, and counts
//! pages that are gone afterwards. It reads no data and writes none: ranges with dirty pages are
//! left alone, because advice on them would start writing. There is no limit to set: what programs
//! read later is resident again, until the next command.

use std::collections::HashMap;
use std::fs::{File, Metadata};
use std::io::ErrorKind as IoKind;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use serde::Deserialize;
use tidepool_control_policy::{StoreSpeed, StoreState};
use tidepool_proto::size::ByteSize;
use tidepool_proto::{Error, ErrorKind, Result};

use crate::ledger::{Bounds, Ledger};
use crate::residency::{Residency, residency};
use crate::watch::Watch;
use tidepool_control::actuator::{Actuator, Resized};

/// Advice is given for this much at once; deadlines are looked at in between.
const STEP_BYTES: u64 = 16 << 20;
/// The pieces of a step that has dirty pages: the kernel keeps up to so much in one unit, which
/// goes whole or not at all.
const PIECE_BYTES: u64 = 2 << 20;
/// A scan rests this many times as long as it took, so that it costs at most a tenth of a core.
const REST_FACTOR: u32 = 9;
const INTERVAL_MIN: Duration = Duration::from_millis(500);
const FILES_MAX_DEFAULT: usize = 100_000;

/// A directory whose page cache is to be controlled.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PageCacheConfiguration {
    /// Name of the store, unique on the node.
    pub name: String,
    /// The directory; other file systems mounted below it are not looked at.
    pub path: PathBuf,
    /// Resident bytes it never goes below.
    pub capacity_min_bytes: ByteSize,
    /// Resident bytes it never goes above.
    pub capacity_max_bytes: ByteSize,
    /// Files looked at; the rest of a larger tree is neither counted nor dropped.
    #[serde(default)]
    pub files_max: Option<usize>,
}

/// The page cache of a directory under control.
pub struct PageCache {
    configuration: PageCacheConfiguration,
    ledger: Ledger,
    scan: Watch<Scan>,
    /// Bytes that went since the last scan.
    dropped: Arc<Mutex<u64>>,
}

impl PageCache {
    /// Looks at the directory once and begins to watch it.
    ///
    /// # Errors
    /// `InvalidInput` for a directory that is none, `PermissionDenied` where its files may not be
    /// asked for, `Unsupported` where the kernel tells nothing of its page cache.
    pub fn open(configuration: &PageCacheConfiguration) -> Result<Self> {
        let (least, most) = (configuration.capacity_min_bytes, configuration.capacity_max_bytes);
        let bounds = Bounds::new(&configuration.name, least, most)?;
        let configuration = configuration.clone();
        let files_max = configuration.files_max.unwrap_or(FILES_MAX_DEFAULT);
        let first = Scan::of(&configuration.path, files_max, &Scan::default())?;
        let capacity_bytes = bounds.capacity_max_bytes;
        let ledger = Ledger::new(bounds, capacity_bytes, StoreSpeed::Fast, 4096);
        let dropped = Arc::new(Mutex::new(0));
        let (path, of_watch) = (configuration.path.clone(), Arc::clone(&dropped));
        let mut next = Instant::now() + first.took * REST_FACTOR;
        let scan = Watch::start(&configuration.name, first, INTERVAL_MIN, move |last| {
            if Instant::now() < next {
                return Ok(last.clone());
            }
            let scan = Scan::of(&path, files_max, last)?;
            next = Instant::now() + scan.took * REST_FACTOR;
            *of_watch.lock() = 0;
            Ok(scan)
        })?;
        Ok(PageCache { configuration, ledger, scan, dropped })
    }

    fn resident_bytes(&self) -> u64 {
        self.scan.newest().0.resident_bytes.saturating_sub(*self.dropped.lock())
    }

    /// Drops the least useful files until `excess_bytes` are gone, or none is left.
    fn drop_files(&self, scan: &Scan, excess_bytes: u64, deadline: Instant) -> Result<()> {
        let mut order: Vec<(&PathBuf, &Seen)> = scan.files.iter().collect();
        order.sort_by_key(|(_, seen)| seen.used_at);
        let mut gone = 0;
        for (path, seen) in order {
            if gone >= excess_bytes || Instant::now() >= deadline {
                break;
            }
            // A file that is no longer there has no pages either.
            let Ok(file) = open_quietly(path) else { continue };
            let length = seen.length_bytes.max(file.metadata().map_or(0, |facts| facts.len()));
            let most = excess_bytes - gone;
            let went = drop_pages(&file, length, most, deadline)?;
            *self.dropped.lock() += went;
            gone += went;
        }
        Ok(())
    }
}

impl Actuator for PageCache {
    fn name(&self) -> &str {
        &self.configuration.name
    }

    fn state(&self) -> Result<StoreState> {
        let (_, failed) = self.scan.newest();
        let resident_bytes = self.resident_bytes();
        let state = self.ledger.state(resident_bytes, failed);
        Ok(StoreState { page_cache_bytes: resident_bytes, ..state })
    }

    fn resize(&self, capacity_bytes: u64, deadline: Duration) -> Result<Resized> {
        let end = Instant::now() + deadline;
        let files_max = self.configuration.files_max.unwrap_or(FILES_MAX_DEFAULT);
        let scan = Scan::of(&self.configuration.path, files_max, &self.scan.newest().0)?;
        let before = scan.resident_bytes;
        *self.dropped.lock() = 0;
        self.scan.put(scan.clone());
        let change = |capacity_bytes: u64| {
            self.drop_files(&scan, before.saturating_sub(capacity_bytes), end)
        };
        // What others read meanwhile is not ours to subtract from what went.
        let gone = || Ok(before.saturating_sub(*self.dropped.lock()));
        self.ledger.resize(capacity_bytes, end, gone, change)
    }
}

/// What was last seen of a file.
#[derive(Clone, Debug)]
struct Seen {
    length_bytes: u64,
    resident_bytes: u64,
    /// Seconds since 1970 of its last known use.
    used_at: i64,
}

/// Files of the directory that have resident pages.
#[derive(Clone, Debug, Default)]
struct Scan {
    files: HashMap<PathBuf, Seen>,
    resident_bytes: u64,
    took: Duration,
}

impl Scan {
    /// Walks the directory. Entries that vanish or may not be read are passed over.
    fn of(directory: &Path, files_max: usize, last: &Scan) -> Result<Scan> {
        let started = Instant::now();
        let operation = || format!("looking at the page cache of {}", directory.display());
        let failed = |error: std::io::Error| {
            let kind = match error.kind() {
                IoKind::PermissionDenied => ErrorKind::PermissionDenied,
                _ => ErrorKind::InvalidInput,
            };
            Error::new(kind, operation(), "").caused_by(error).remedy("correct `path`")
        };
        let device = std::fs::metadata(directory).map_err(failed)?.dev();
        let mut scan = Scan::default();
        let mut looked_at = 0;
        let mut open = vec![std::fs::read_dir(directory).map_err(failed)?];
        while let Some(entries) = open.last_mut() {
            let Some(entry) = entries.next() else {
                open.pop();
                continue;
            };
            let Ok(entry) = entry else { continue };
            let Ok(facts) = entry.metadata() else { continue };
            if facts.is_dir() && facts.dev() == device {
                open.extend(std::fs::read_dir(entry.path()));
            } else if facts.is_file() && facts.len() > 0 {
                looked_at += 1;
                if looked_at > files_max {
                    break;
                }
                scan.add(entry.path(), &facts, last)?;
            }
        }
        scan.took = started.elapsed();
        Ok(scan)
    }

    fn add(&mut self, path: PathBuf, facts: &Metadata, last: &Scan) -> Result<()> {
        let Ok(file) = open_quietly(&path) else { return Ok(()) };
        let resident_bytes = match residency(&file, 0, facts.len()) {
            Ok(residency) => residency.resident_bytes,
            // Not our file.
            Err(error) if error.kind() == ErrorKind::PermissionDenied => return Ok(()),
            Err(error) => return Err(error),
        };
        if resident_bytes == 0 {
            return Ok(());
        }
        // File systems that keep no access times still show use by pages that came.
        let stamped = facts.atime().max(facts.mtime());
        let used_at = match last.files.get(&path) {
            Some(seen) if resident_bytes <= seen.resident_bytes => stamped.max(seen.used_at),
            Some(_) => stamped.max(seconds_now()),
            None => stamped,
        };
        self.resident_bytes += resident_bytes;
        self.files.insert(path, Seen { length_bytes: facts.len(), resident_bytes, used_at });
        Ok(())
    }
}

fn seconds_now() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs() as i64)
}

/// Opens a file without following links, waiting for locks of pipes, or touching its access time.
fn open_quietly(path: &Path) -> std::io::Result<File> {
    let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
    let open = |flags| File::options().read(true).custom_flags(flags).open(path);
    // Only owners may ask for the second.
    open(flags | libc::O_NOATIME).or_else(|_| open(flags))
}

/// Drops clean pages of a file from its end on, `most` bytes at least if it has them, in steps;
/// returns what really went.
fn drop_pages(file: &File, length: u64, most: u64, deadline: Instant) -> Result<u64> {
    let mut gone = 0;
    let mut end = length.next_multiple_of(STEP_BYTES);
    while end > 0 && gone < most && Instant::now() < deadline {
        let start = end - STEP_BYTES;
        let seen = residency(file, start, STEP_BYTES)?;
        if seen.resident_bytes > 0 && seen.dirty_bytes == 0 {
            gone += drop_range(file, start, STEP_BYTES, seen)?;
        } else if seen.resident_bytes > seen.dirty_bytes {
            gone += drop_clean_pieces(file, start)?;
        }
        end = start;
    }
    Ok(gone)
}

fn drop_clean_pieces(file: &File, start: u64) -> Result<u64> {
    let mut gone = 0;
    for piece in (start..start + STEP_BYTES).step_by(PIECE_BYTES as usize) {
        let seen = residency(file, piece, PIECE_BYTES)?;
        if seen.resident_bytes > 0 && seen.dirty_bytes == 0 {
            gone += drop_range(file, piece, PIECE_BYTES, seen)?;
        }
    }
    Ok(gone)
}

fn drop_range(file: &File, start: u64, length: u64, before: Residency) -> Result<u64> {
    let length = std::num::NonZeroU64::new(length);
    let advised = rustix::fs::fadvise(file, start, length, rustix::fs::Advice::DontNeed);
    advised.map_err(|error| Error::pfs("dropping pages of a file", error))?;
    let after = residency(file, start, length.map_or(0, Into::into))?;
    Ok(before.resident_bytes.saturating_sub(after.resident_bytes))
}
