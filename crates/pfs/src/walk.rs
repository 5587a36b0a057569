//! Lists the regular files below a directory with several threads, for loads. Stays on one mount,
//! follows no symbolic link, and gives an error for each directory that it could not read instead
//! of ending.
//!
//! Opens by name with the rights of the process that walks: a front end's helper, never the node's.

use std::collections::VecDeque;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use parking_lot::{Condvar, Mutex};
use tidepool_proto::{Error, FileId, Result};

/// Files found but not yet taken, at most: bounds memory where loading is slower than listing.
const QUEUE_MAX: usize = 1024;

/// A file that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WalkEntry {
    /// The path given to [`walk`] with the path below it.
    pub path: PathBuf,
    /// Which file it is; the same one comes several times if it has several names.
    pub id: FileId,
    /// Length in bytes.
    pub size_bytes: u64,
}

/// The files below a directory, in no order. Dropping it ends the walk.
pub struct Walk {
    found: Receiver<Result<WalkEntry>>,
}

impl Iterator for Walk {
    type Item = Result<WalkEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        self.found.recv().ok()
    }
}

#[derive(Default)]
struct Pending {
    directories: VecDeque<PathBuf>,
    /// Threads that are reading a directory and may find more.
    busy: usize,
    /// Nobody takes what is found any more.
    ended: bool,
}

struct Shared {
    pending: Mutex<Pending>,
    changed: Condvar,
    device: u64,
}

fn failed(path: &Path, error: std::io::Error) -> Error {
    Error::pfs(format!("listing {}", path.display()), error)
}

/// Lists `path` (a file, or a directory with all below it) with `threads` threads.
pub fn walk(path: &Path, threads: usize) -> Result<Walk> {
    let metadata = fs::metadata(path).map_err(|error| failed(path, error))?;
    let (sender, found) = sync_channel(QUEUE_MAX);
    if !metadata.is_dir() {
        // There is room: the queue is new.
        let _room = sender.try_send(Ok(entry(path.to_path_buf(), &metadata)));
        return Ok(Walk { found });
    }
    let shared = Arc::new(Shared {
        pending: Mutex::new(Pending {
            directories: VecDeque::from([path.to_path_buf()]),
            ..Pending::default()
        }),
        changed: Condvar::new(),
        device: metadata.dev(),
    });
    for _ in 0..threads.max(1) {
        let (shared, sender) = (shared.clone(), sender.clone());
        std::thread::Builder::new()
            .name("walk".to_owned())
            .spawn(move || work(&shared, &sender))
            .map_err(|error| failed(path, error))?;
    }
    Ok(Walk { found })
}

fn entry(path: PathBuf, metadata: &fs::Metadata) -> WalkEntry {
    WalkEntry { path, id: metadata.into(), size_bytes: metadata.len() }
}

fn work(shared: &Shared, sender: &SyncSender<Result<WalkEntry>>) {
    loop {
        let directory = {
            let mut pending = shared.pending.lock();
            loop {
                if pending.ended {
                    return;
                }
                if let Some(directory) = pending.directories.pop_front() {
                    pending.busy += 1;
                    break directory;
                }
                if pending.busy == 0 {
                    return;
                }
                shared.changed.wait(&mut pending);
            }
        };
        let taken = list(shared, &directory, sender);
        let mut pending = shared.pending.lock();
        pending.busy -= 1;
        pending.ended |= !taken;
        shared.changed.notify_all();
    }
}

/// Lists one directory; `false` if nobody takes what is found.
fn list(shared: &Shared, directory: &Path, sender: &SyncSender<Result<WalkEntry>>) -> bool {
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) => return sender.send(Err(failed(directory, error))).is_ok(),
    };
    for found in entries {
        let found = match found.and_then(|found| Ok((found.metadata()?, found.path()))) {
            Ok((metadata, path)) if metadata.is_dir() => {
                if metadata.dev() == shared.device {
                    shared.pending.lock().directories.push_back(path);
                    shared.changed.notify_one();
                }
                continue;
            }
            Ok((metadata, path)) if metadata.is_file() => Ok(entry(path, &metadata)),
            Ok(_) => continue,
            // Removed since it was listed.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => Err(failed(directory, error)),
        };
        if sender.send(found).is_err() {
            return false;
        }
    }
    true
}
