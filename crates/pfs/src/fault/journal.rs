//! The journal of unsynced changes, which a simulated power failure undoes: the former content of
//! every range written since the last sync, and the names whose directory was not synced since they
//! were made.
//!
//! Kept in files of a directory outside the PFS, so that it outlives a killed process. Covers what
//! went through the fault store; the times and attributes of files are not rolled back, and neither
//! are removals of names (losing an unsynced removal would need a copy of the file).

use std::collections::{HashMap, HashSet};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::Mutex;

use crate::posix::reopen;

/// Buffer for copies of former content, in bytes.
const COPY_BYTES: usize = 1 << 20;
const NAMES: &str = "names";

/// What a loss of power took away.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PowerLoss {
    /// Files whose content went back to what was synced last.
    pub files_rolled_back: u64,
    /// Bytes of former content that were put back.
    pub bytes_restored: u64,
    /// Names that vanished or went back, because their directory was not synced.
    pub names_lost: u64,
}

/// Identity of a file: inode, and time of birth where the file system knows it, because inode
/// numbers are used again.
fn identity(metadata: &fs::Metadata) -> (u64, u64) {
    let born = metadata
        .created()
        .ok()
        .and_then(|time| Some(time.duration_since(std::time::UNIX_EPOCH).ok()?.as_nanos() as u64));
    (metadata.ino(), born.unwrap_or(0))
}

/// Undo records of one file. Its lock is held over a write and its record, and over a sync.
#[derive(Default)]
pub(crate) struct Undo {
    file: Option<File>,
}

/// The journal of one store.
pub(crate) struct Journal {
    directory: PathBuf,
    root: PathBuf,
    /// Remove the directory at the end.
    temporary: bool,
    undos: Mutex<HashMap<u64, Arc<Mutex<Undo>>>>,
    names: Mutex<File>,
}

impl Journal {
    /// Starts a journal: all that exists below `root` now counts as durable.
    pub fn start(root: &Path, directory: Option<&Path>) -> io::Result<Journal> {
        let temporary = directory.is_none();
        let directory = match directory {
            Some(directory) => directory.to_path_buf(),
            None => {
                let name = format!("tidepool-journal-{}-{:x}", std::process::id(), unique());
                std::env::temp_dir().join(name)
            }
        };
        fs::create_dir_all(&directory)?;
        for entry in fs::read_dir(&directory)? {
            fs::remove_file(entry?.path())?;
        }
        let names = File::options().create_new(true).append(true).open(directory.join(NAMES))?;
        let journal = Journal {
            directory,
            root: root.to_path_buf(),
            temporary,
            undos: Mutex::default(),
            names: Mutex::new(names),
        };
        journal.note_names(&tree(root)?)?;
        Ok(journal)
    }

    /// The undo records of the file with this inode number.
    pub fn undo_of(&self, inode: u64) -> Arc<Mutex<Undo>> {
        self.undos.lock().entry(inode).or_default().clone()
    }

    fn undo_path(&self, inode: u64) -> PathBuf {
        self.directory.join(format!("{inode}.undo"))
    }

    /// Records the content of `[offset, end)` before it changes.
    pub fn record(
        &self,
        undo: &mut Undo,
        descriptor: BorrowedFd<'_>,
        offset: u64,
        end: u64,
    ) -> io::Result<()> {
        let file = File::from(reopen(descriptor, rustix::fs::OFlags::RDONLY)?);
        let metadata = file.metadata()?;
        if undo.file.is_none() {
            let (inode, born) = identity(&metadata);
            let mut records = File::create(self.undo_path(inode))?;
            for number in [inode, born, metadata.len()] {
                records.write_all(&number.to_le_bytes())?;
            }
            undo.file = Some(records);
        }
        let Some(records) = &mut undo.file else { return Ok(()) };
        let end = end.min(metadata.len());
        let mut at = offset;
        // Holes need no copy: they read as zeros when the length is put back, unless written to.
        let dense = end.saturating_sub(offset) <= COPY_BYTES as u64;
        while at < end {
            let (start, stop) = if dense { (at, end) } else { next_data(&file, at, end)? };
            copy_records(&file, records, start, stop)?;
            at = stop;
        }
        Ok(())
    }

    /// The content of the file is durable now.
    pub fn synced(&self, undo: &mut Undo, inode: u64) -> io::Result<()> {
        if undo.file.take().is_some() {
            fs::remove_file(self.undo_path(inode))?;
        }
        Ok(())
    }

    /// All names in the directory of `path` (below the root) are durable now, and the names of the
    /// directories above it.
    pub fn names_synced(&self, path: &Path) -> io::Result<()> {
        let Some(parent) = path.parent() else { return Ok(()) };
        let mut names = Vec::new();
        for entry in fs::read_dir(self.root.join(parent))? {
            let entry = entry?;
            let metadata = entry.metadata()?;
            names.push(Name::new(parent.join(entry.file_name()), &metadata));
        }
        for above in parent.ancestors().filter(|above| !above.as_os_str().is_empty()) {
            let metadata = fs::symlink_metadata(self.root.join(above))?;
            names.push(Name::new(above.to_path_buf(), &metadata));
        }
        self.note_names(&names)
    }

    fn note_names(&self, names: &[Name]) -> io::Result<()> {
        let mut bytes = Vec::new();
        for name in names {
            let path = name.path.as_os_str().as_bytes();
            bytes.extend(name.identity.0.to_le_bytes());
            bytes.extend(name.identity.1.to_le_bytes());
            bytes.extend((path.len() as u64).to_le_bytes());
            bytes.extend(path);
        }
        self.names.lock().write_all(&bytes)
    }

    /// Takes back all that was not synced, and starts again.
    pub fn lose_power(&self) -> io::Result<PowerLoss> {
        let mut undos = self.undos.lock();
        // No write or sync is under way once all locks were had.
        let held: Vec<_> = undos.values().cloned().collect();
        let guards: Vec<_> = held.iter().map(|undo| undo.lock()).collect();
        let loss = roll_back(&self.root, &self.directory)?;
        drop(guards);
        undos.clear();
        Ok(loss)
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        if self.temporary {
            let _gone_or_not_ours = fs::remove_dir_all(&self.directory);
        }
    }
}

fn unique() -> u64 {
    use std::hash::{BuildHasher, Hasher};
    std::hash::RandomState::new().build_hasher().finish()
}

/// The next range of `file` in `[at, end)` that holds data; empty at `end` if there is none.
fn next_data(file: &File, at: u64, end: u64) -> io::Result<(u64, u64)> {
    use rustix::fs::{SeekFrom, seek};
    let start = match seek(file.as_fd(), SeekFrom::Data(at)) {
        Ok(start) => start.min(end),
        Err(rustix::io::Errno::NXIO) => return Ok((end, end)),
        Err(rustix::io::Errno::INVAL | rustix::io::Errno::OPNOTSUPP) => return Ok((at, end)),
        Err(error) => return Err(error.into()),
    };
    let stop = seek(file.as_fd(), SeekFrom::Hole(start)).map_or(end, |stop| stop.min(end));
    Ok((start, stop.max(start)))
}

/// Appends records of the content of `[at, end)`.
fn copy_records(file: &File, records: &mut File, mut at: u64, end: u64) -> io::Result<()> {
    let mut buffer = vec![0; COPY_BYTES.min((end - at) as usize)];
    while at < end {
        let length = buffer.len().min((end - at) as usize);
        file.read_exact_at(&mut buffer[..length], at)?;
        records.write_all(&at.to_le_bytes())?;
        records.write_all(&(length as u64).to_le_bytes())?;
        records.write_all(&buffer[..length])?;
        at += length as u64;
    }
    Ok(())
}

/// A name below the root, and the file that it leads to.
#[derive(Clone, Debug)]
struct Name {
    path: PathBuf,
    identity: (u64, u64),
    directory: bool,
    regular: bool,
}

impl Name {
    fn new(path: PathBuf, metadata: &fs::Metadata) -> Self {
        Name {
            path,
            identity: identity(metadata),
            directory: metadata.is_dir(),
            regular: metadata.is_file(),
        }
    }
}

/// All names below `root`, directories before what they hold.
fn tree(root: &Path) -> io::Result<Vec<Name>> {
    let mut names = Vec::new();
    let mut pending = vec![PathBuf::new()];
    while let Some(directory) = pending.pop() {
        for entry in fs::read_dir(root.join(&directory))? {
            let entry = entry?;
            let path = directory.join(entry.file_name());
            let metadata = entry.metadata()?;
            if metadata.is_dir() {
                pending.push(path.clone());
            }
            names.push(Name::new(path, &metadata));
        }
    }
    Ok(names)
}

fn number(bytes: &mut &[u8]) -> Option<u64> {
    let (head, rest) = bytes.split_first_chunk::<8>()?;
    *bytes = rest;
    Some(u64::from_le_bytes(*head))
}

/// Undoes, below `root`, all that the journal in `directory` knows to be not synced, as a failure
/// of power would have: also after the process that wrote it was killed. The records are used up.
pub fn roll_back(root: &Path, directory: &Path) -> io::Result<PowerLoss> {
    let mut loss = PowerLoss::default();
    let names = tree(root)?;
    for entry in fs::read_dir(directory)? {
        let path = entry?.path();
        if path.extension().is_some_and(|extension| extension == "undo") {
            roll_back_content(root, &names, &path, &mut loss)?;
            fs::remove_file(&path)?;
        }
    }
    roll_back_names(root, &names, &directory.join(NAMES), &mut loss)?;
    Ok(loss)
}

fn roll_back_content(
    root: &Path,
    names: &[Name],
    records: &Path,
    loss: &mut PowerLoss,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    File::open(records)?.read_to_end(&mut bytes)?;
    let mut rest = bytes.as_slice();
    let header = (number(&mut rest), number(&mut rest), number(&mut rest));
    // A record cut short by a kill came before its write, so there is nothing to undo for it.
    let (Some(inode), Some(born), Some(size)) = header else { return Ok(()) };
    let Some(name) = names.iter().find(|name| name.identity == (inode, born)) else {
        return Ok(());
    };
    let mut parts = Vec::new();
    while let (Some(offset), Some(length)) = (number(&mut rest), number(&mut rest)) {
        let Some((content, after)) = rest.split_at_checked(length as usize) else { break };
        parts.push((offset, content));
        rest = after;
    }
    let file = File::options().write(true).open(root.join(&name.path))?;
    for (offset, content) in parts.into_iter().rev() {
        file.write_all_at(content, offset)?;
        loss.bytes_restored += content.len() as u64;
    }
    file.set_len(size)?;
    loss.files_rolled_back += 1;
    Ok(())
}

fn roll_back_names(
    root: &Path,
    names: &[Name],
    records: &Path,
    loss: &mut PowerLoss,
) -> io::Result<()> {
    let bytes = fs::read(records)?;
    let mut rest = bytes.as_slice();
    let mut durable: HashMap<PathBuf, (u64, u64)> = HashMap::new();
    while let (Some(inode), Some(born), Some(length)) =
        (number(&mut rest), number(&mut rest), number(&mut rest))
    {
        let Some((path, after)) = rest.split_at_checked(length as usize) else { break };
        let path = PathBuf::from(std::ffi::OsString::from_vec(path.to_vec()));
        durable.insert(path, (inode, born));
        rest = after;
    }
    let by_identity: HashMap<(u64, u64), &PathBuf> =
        durable.iter().map(|(path, identity)| (*identity, path)).collect();
    let present: HashSet<&Path> = names.iter().map(|name| name.path.as_path()).collect();
    let mut emptied = HashSet::new();
    for name in names.iter().filter(|name| name.regular) {
        // A name that replaced a durable one stays: either file may be found after a failure.
        if durable.contains_key(&name.path) {
            continue;
        }
        let here = root.join(&name.path);
        match by_identity.get(&name.identity) {
            Some(former) if !present.contains(former.as_path()) => {
                fs::rename(&here, root.join(former))?;
            }
            _ => fs::remove_file(&here)?,
        }
        loss.names_lost += 1;
        emptied.extend(name.path.ancestors().skip(1).map(Path::to_path_buf));
    }
    for name in names.iter().rev().filter(|name| name.directory) {
        if emptied.contains(&name.path) && !durable.contains_key(&name.path) {
            // Still holds something that is durable or no regular file: it stays.
            let _not_empty = fs::remove_dir(root.join(&name.path));
        }
    }
    Ok(())
}
