//! The reference model: files as plain vectors, with what every file system promises and nothing
//! more.
//!
//! The one thing beyond POSIX is the *epoch* of a file: each change behind Tidepool's back begins
//! a new one. A handle belongs to the epoch it was opened in. It may go on seeing the bytes that
//! its epoch ended with, or fail; it never sees bytes of two epochs at once.

use std::collections::HashMap;
use std::collections::btree_map::{BTreeMap, Range};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidepool_proto::{ReadMode, WriteMode};

use super::operation::directory_of;
use super::wire::{Opening, OutsideChange};

/// Longest file that the library takes along with its open, in bytes.
const SENT_ALONG_BYTES_MAX: usize = 256 << 10;

/// Number of a file, of the model alone.
pub type FileNumber = u64;

/// A file.
#[derive(Debug, Default)]
pub struct ModelFile {
    /// Its bytes now.
    pub bytes: Vec<u8>,
    /// Changes behind Tidepool's back so far.
    pub epoch: u64,
    /// What earlier epochs ended with, while a handle of them is open.
    pub frozen: BTreeMap<u64, Arc<Vec<u8>>>,
    /// Its bytes may exist in memory only, so nobody may touch it outside, and a crash may take it.
    pub maybe_memory_only: bool,
    links: u64,
    handles: u64,
    written_until: Option<Instant>,
}

/// The node learns a moment after a `close` that a writer is gone.
const LEAVING: Duration = Duration::from_secs(1);

/// A handle.
#[derive(Clone, Debug)]
pub struct ModelHandle {
    /// Of which file.
    pub file: FileNumber,
    /// How it was opened.
    pub opening: Opening,
    /// Read mode in force.
    pub read_mode: ReadMode,
    /// Write mode in force.
    pub write_mode: WriteMode,
    /// The epoch of the file at the open.
    pub epoch: u64,
    /// The bytes at the open, where the product may have sent them along with it.
    pub sent_along: Option<Arc<Vec<u8>>>,
    /// What calls that made the file longer left behind, while this handle was open.
    pub grown: Vec<Grown>,
    /// The file was being written at the open, maybe by the kernel itself: reads may see the PFS
    /// as it is.
    pub may_follow: bool,
    /// Bytes in memory alone gave way to another program's: this open answers `EIO` to all that
    /// changes or settles.
    pub has_lost: bool,
}

impl ModelHandle {
    fn writes(&self) -> bool {
        self.opening.access.writes()
    }
}

/// A file after a call that made it longer. Where there was no memory for the growth, a reader
/// whose bytes the kernel reads by itself stays at an end between the old and the new one.
#[derive(Clone, Debug)]
pub struct Grown {
    bytes: Arc<Vec<u8>>,
    size_before: u64,
}

impl Grown {
    /// Whether a reader that stays here may see `seen` at `offset` when it asks for `length`.
    pub fn allows(&self, offset: u64, length: u64, seen: &[u8]) -> bool {
        let all = Candidate::whole(&self.bytes).range(offset, length);
        let least = self.size_before.saturating_sub(offset).min(all.len() as u64);
        all.starts_with(seen) && seen.len() as u64 >= least
    }
}

/// One outcome of a read that is right.
#[derive(Clone, Copy, Debug)]
pub struct Candidate<'a> {
    /// The bytes of the file.
    pub bytes: &'a [u8],
    /// Where the file ends for this reader.
    pub size: u64,
}

impl<'a> Candidate<'a> {
    /// The file as it is.
    pub fn whole(bytes: &'a [u8]) -> Self {
        Candidate { bytes, size: bytes.len() as u64 }
    }

    /// What a read of a range returns.
    pub fn range(&self, offset: u64, length: u64) -> &'a [u8] {
        let size = self.size.min(self.bytes.len() as u64);
        let start = offset.min(size);
        let end = offset.saturating_add(length).clamp(start, size);
        &self.bytes[start as usize..end as usize]
    }
}

/// Key of a handle: actor and slot.
pub type HandleKey = (u8, u8);

/// All files, names and handles.
#[derive(Debug, Default)]
pub struct Reference {
    names: BTreeMap<String, FileNumber>,
    files: HashMap<FileNumber, ModelFile>,
    handles: HashMap<HandleKey, ModelHandle>,
    next: FileNumber,
}

impl Reference {
    /// All names, in order.
    pub fn names(&self) -> impl Iterator<Item = (&String, FileNumber)> {
        self.names.iter().map(|(name, number)| (name, *number))
    }

    /// The file of a name.
    pub fn number(&self, path: &str) -> Option<FileNumber> {
        self.names.get(path).copied()
    }

    /// The file of a name.
    pub fn by_name(&self, path: &str) -> Option<&ModelFile> {
        self.files.get(self.names.get(path)?)
    }

    /// A file that exists.
    pub fn file(&self, number: FileNumber) -> &ModelFile {
        &self.files[&number]
    }

    /// A file that exists, to change it.
    pub fn file_mut(&mut self, number: FileNumber) -> &mut ModelFile {
        self.files.get_mut(&number).expect("numbers come from names and handles")
    }

    /// Some name of a file, if it still has one.
    pub fn name_of(&self, number: FileNumber) -> Option<&String> {
        self.names.iter().find(|(_, file)| **file == number).map(|(name, _)| name)
    }

    /// A handle.
    pub fn handle(&self, key: HandleKey) -> Option<&ModelHandle> {
        self.handles.get(&key)
    }

    /// All handles.
    pub fn handles(&self) -> impl Iterator<Item = (HandleKey, &ModelHandle)> {
        self.handles.iter().map(|(key, handle)| (*key, handle))
    }

    /// Number of names of a file.
    pub fn links(&self, number: FileNumber) -> u64 {
        self.files.get(&number).map_or(0, |file| file.links)
    }

    /// Bytes of all files.
    pub fn total_bytes(&self) -> u64 {
        self.files.values().map(|file| file.bytes.len() as u64).sum()
    }

    /// Makes an empty file, or returns the one that has the name.
    pub fn create(&mut self, path: &str) -> FileNumber {
        if let Some(number) = self.number(path) {
            return number;
        }
        self.next += 1;
        self.names.insert(path.to_owned(), self.next);
        self.files.insert(self.next, ModelFile { links: 1, ..ModelFile::default() });
        self.next
    }

    /// Opens a file that exists or is to be created. Returns whether it was created.
    pub fn open(&mut self, key: HandleKey, path: &str, opening: Opening) -> bool {
        let created = self.number(path).is_none();
        let number = self.create(path);
        let directory = directory_of(path);
        let read_mode = opening.read_mode.unwrap_or(directory.read_mode);
        let write_mode = opening.write_mode.unwrap_or(directory.write_mode);
        let file = self.file_mut(number);
        if opening.truncate {
            file.bytes.clear();
        }
        let begins = created || opening.truncate;
        if begins && opening.access.writes() && write_mode == WriteMode::Memory {
            file.maybe_memory_only = true;
        }
        file.handles += 1;
        let epoch = file.epoch;
        let leaving = file.written_until.is_some_and(|until| until.elapsed() < LEAVING);
        let may_follow = leaving || self.handles.values().any(|h| h.file == number && h.writes());
        let handle = ModelHandle {
            file: number,
            opening,
            read_mode,
            write_mode,
            epoch,
            sent_along: None,
            grown: Vec::new(),
            may_follow,
            has_lost: false,
        };
        self.handles.insert(key, handle);
        created
    }

    /// A handle of the library on a small file: its bytes come along with the open, and reads may
    /// go on returning them. A documented deviation from POSIX.
    pub fn send_along(&mut self, key: HandleKey) {
        let Some(handle) = self.handles.get(&key) else { return };
        let bytes = &self.files[&handle.file].bytes;
        let small = bytes.len() <= SENT_ALONG_BYTES_MAX;
        if small && !handle.opening.access.writes() {
            let bytes = Some(Arc::new(bytes.clone()));
            self.handles.get_mut(&key).expect("looked up just now").sent_along = bytes;
        }
    }

    /// Forgets a handle.
    pub fn close(&mut self, key: HandleKey) {
        let Some(handle) = self.handles.remove(&key) else { return };
        let file = self.file_mut(handle.file);
        file.handles -= 1;
        if handle.writes() || handle.may_follow {
            file.written_until = Some(Instant::now());
        }
        self.thaw(handle.file);
        self.collect(handle.file);
    }

    /// Forgets all handles.
    pub fn close_all(&mut self) {
        let keys: Vec<_> = self.handles.keys().copied().collect();
        for key in keys {
            self.close(key);
        }
    }

    /// Drops what earlier epochs ended with and no handle can see any more.
    fn thaw(&mut self, number: FileNumber) {
        let epochs: Vec<u64> =
            self.handles.values().filter(|h| h.file == number).map(|h| h.epoch).collect();
        let oldest = epochs.iter().min().copied().unwrap_or(u64::MAX);
        self.file_mut(number).frozen.retain(|epoch, _| *epoch >= oldest);
    }

    fn collect(&mut self, number: FileNumber) {
        if self.files.get(&number).is_some_and(|file| file.links == 0 && file.handles == 0) {
            self.files.remove(&number);
        }
    }

    /// Begins a new epoch: another program is about to change the file or its metadata.
    pub fn begin_epoch(&mut self, number: FileNumber) {
        let file = self.file_mut(number);
        if file.handles > 0 {
            file.frozen.insert(file.epoch, Arc::new(file.bytes.clone()));
        }
        file.epoch += 1;
    }

    /// Writes, with zeros in a gap after the end.
    pub fn write(&mut self, number: FileNumber, offset: u64, data: &[u8]) {
        if data.is_empty() {
            return;
        }
        let bytes = &mut self.file_mut(number).bytes;
        let (start, end) = (offset as usize, offset as usize + data.len());
        if end > bytes.len() {
            bytes.resize(end, 0);
        }
        bytes[start..end].copy_from_slice(data);
    }

    /// Whether the file is longer than `size_before` and somebody has it open for reading only.
    pub fn grew_under_readers(&self, number: FileNumber, size_before: u64) -> bool {
        self.file(number).bytes.len() as u64 > size_before
            && self.handles.values().any(|handle| handle.file == number && !handle.writes())
    }

    /// Whether an open for reading may have stayed at an earlier end.
    pub fn has_readers_behind(&self, number: FileNumber) -> bool {
        self.handles.values().any(|handle| handle.file == number && !handle.grown.is_empty())
    }

    /// Lets opens for reading of a file that became longer than `size_before` stay behind.
    pub fn note_growth(&mut self, number: FileNumber, size_before: u64) {
        let stays = |handle: &&mut ModelHandle| handle.file == number && !handle.writes();
        let bytes = Arc::new(self.file(number).bytes.clone());
        for handle in self.handles.values_mut().filter(stays) {
            handle.grown.push(Grown { bytes: bytes.clone(), size_before });
        }
    }

    /// The first end at which this handle may have stayed.
    pub fn shortest_end(handle: &ModelHandle) -> u64 {
        handle.grown.first().map_or(u64::MAX, |grown| grown.size_before)
    }

    /// Sets the length.
    pub fn set_size(&mut self, number: FileNumber, size: u64) {
        self.file_mut(number).bytes.resize(size as usize, 0);
    }

    /// Makes zeros of a range, within the length.
    pub fn punch(&mut self, number: FileNumber, offset: u64, length: u64) {
        let bytes = &mut self.file_mut(number).bytes;
        let start = (offset as usize).min(bytes.len());
        let end = (offset as usize).saturating_add(length as usize).min(bytes.len());
        bytes[start..end].fill(0);
    }

    /// Removes a name.
    pub fn unlink(&mut self, path: &str) {
        if let Some(number) = self.names.remove(path) {
            self.file_mut(number).links -= 1;
            self.collect(number);
        }
    }

    /// Renames a name that exists.
    pub fn rename(&mut self, from: &str, to: &str) {
        let number = self.names[from];
        if self.number(to) == Some(number) {
            return; // two names of one file: nothing happens, both stay
        }
        self.unlink(to);
        self.names.remove(from);
        self.names.insert(to.to_owned(), number);
    }

    /// Makes another name.
    pub fn link(&mut self, from: &str, to: &str) {
        let number = self.names[from];
        self.names.insert(to.to_owned(), number);
        self.file_mut(number).links += 1;
    }

    /// A change behind Tidepool's back with the bytes of `data`.
    pub fn change(&mut self, path: &str, change: OutsideChange, data: &[u8]) {
        let number = self.names[path];
        self.begin_epoch(number);
        match change {
            OutsideChange::Overwrite { offset, .. } => self.write(number, offset, data),
            OutsideChange::Replace { .. } | OutsideChange::Recreate { .. } => {
                self.unlink(path);
                let number = self.create(path);
                self.write(number, 0, data);
            }
            OutsideChange::Truncate { size } => self.set_size(number, size),
            OutsideChange::Append { .. } => {
                let end = self.file(number).bytes.len() as u64;
                self.write(number, end, data);
            }
        }
    }

    /// Another program wrote into the stub of a memory-only file, which is `bytes` from now on.
    pub fn replace_stub(&mut self, number: FileNumber, bytes: Vec<u8>) {
        self.begin_epoch(number);
        let file = self.file_mut(number);
        let has_lost = !file.bytes.is_empty();
        file.bytes = bytes;
        file.maybe_memory_only = false;
        let writers = self.handles.values_mut().filter(|h| h.file == number && h.writes());
        for handle in writers {
            handle.has_lost |= has_lost;
        }
    }

    /// What a handle may see. The first is the ordinary outcome.
    pub fn candidates<'a>(&'a self, handle: &'a ModelHandle) -> Vec<Candidate<'a>> {
        let mut candidates = self.candidates_by_epoch(handle);
        candidates.extend(handle.sent_along.iter().map(|bytes| Candidate::whole(bytes)));
        candidates
    }

    fn candidates_by_epoch<'a>(&'a self, handle: &ModelHandle) -> Vec<Candidate<'a>> {
        let file = self.file(handle.file);
        let now = Candidate::whole(&file.bytes);
        let earlier = file.frozen.range(handle.epoch..);
        if handle.epoch == file.epoch {
            return vec![now];
        }
        let clipped = |earlier: Range<'a, u64, Arc<Vec<u8>>>| {
            // The bytes of now, to the end as it is or as it was when the handle saw it.
            let clipped = earlier.map(move |(_, old)| Candidate { size: old.len() as u64, ..now });
            std::iter::once(now).chain(clipped)
        };
        if handle.read_mode == ReadMode::Bypass {
            return clipped(earlier).collect();
        }
        if handle.may_follow {
            let seen = earlier.clone().map(|(_, old)| Candidate::whole(old));
            return seen.chain(clipped(earlier)).collect();
        }
        if handle.opening.access.writes() {
            // Handles that may write follow the file from one epoch to the next.
            let seen = earlier.map(|(_, old)| Candidate::whole(old));
            return seen.chain([now]).collect();
        }
        earlier.take(1).map(|(_, old)| Candidate::whole(old)).collect()
    }
}

#[cfg(test)]
#[path = "reference_tests.rs"]
mod tests;
