//! [`HeldCopies`]: copies of other nodes' memory-only files in the memory of this one.
//!
//! Their blocks are counted as in memory alone and never evicted, so they may have no more than a
//! share of the capacity. A push beyond it is refused, and its file written back by its node.

use std::collections::{BTreeSet, HashMap};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use tidepool_cluster::{FileKey, NodeName};
use tidepool_proto::table::BlockState;
use tidepool_store::{FillStart, Owner, Segment};

use super::message::{Owe, Push, path_of};
use super::owed::OwedFile;
use super::pass::is_beside;
use crate::core::Core;

/// Part of the capacity that copies may have: one in so many.
const SHARE: u64 = 2;

/// Part of the descriptors of this process by which stubs are kept open: one in so many.
const STUBS_SHARE: u64 = 4;
/// The same where there is no limit.
const STUBS_MAX: u64 = 1 << 16;

/// All that are held, by what their time in memory is called.
#[derive(Default)]
pub struct HeldCopies {
    copies: Mutex<HashMap<u64, Arc<HeldCopy>>>,
    bytes: AtomicU64,
    /// Files in burst buffers that nobody counts on any more; the buffers still have them.
    over: Mutex<Vec<Arc<OwedFile>>>,
}

/// One copy.
pub struct HeldCopy {
    /// Which file.
    pub file: FileKey,
    /// What its time in memory is called.
    pub epoch: u64,
    /// Whose file it is.
    pub owner: NodeName,
    /// Which start of that node.
    pub node: String,
    /// All who hold copies.
    pub holders: Vec<String>,
    /// The stub, by which it is found after it was moved; of the first ones.
    pub stub: Option<OwnedFd>,
    /// Since when it is held.
    pub since: Instant,
    /// The node that had the file was started anew since.
    pub is_orphan: AtomicBool,
    /// This node was started since it was told of the file.
    pub was_away: AtomicBool,
    /// No name that is known leads to the file.
    pub is_nameless: AtomicBool,
    state: Mutex<State>,
}

struct State {
    /// Where the file was when it was pushed last, or found, below the PFS directory.
    path: PathBuf,
    /// Why it was said last that it stays in memory.
    stays_because: String,
    kept: Kept,
    /// Length that was promised.
    length: u64,
    /// Number of the last message that was taken.
    number: u64,
    /// Its bytes are not needed any more, or being put in the place of the file.
    is_closed: bool,
    /// Its memory is freed.
    is_dropped: bool,
}

/// Where the bytes of a copy are.
#[derive(Clone)]
enum Kept {
    /// In the memory of this node.
    Memory(Arc<Segment>),
    /// In burst buffers.
    Buffers(Arc<OwedFile>),
}

impl Kept {
    /// Bytes of the store.
    fn bytes(&self) -> u64 {
        match self {
            Kept::Memory(segment) => segment.resident_bytes(),
            Kept::Buffers(_) => 0,
        }
    }
}

/// The bytes of a copy.
pub enum Bytes {
    /// None: the file is empty.
    None,
    /// In memory. Blocks that are not in the set were never written.
    Memory(Arc<Segment>, BTreeSet<u64>),
    /// In burst buffers.
    Buffers(Owe, Arc<OwedFile>),
}

/// What a copy is, to be put in the place of its file.
pub struct Content {
    /// Its bytes.
    pub bytes: Bytes,
    /// Its length.
    pub length: u64,
    /// What it is put there for.
    pub purpose: Purpose,
}

/// Why a file is put in the place of a stub.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// It has what was synced.
    Copy,
    /// Nothing of the file was to be promised to anybody: it is empty.
    Unpromised,
    /// An open empties the file. Its node may go on, and write into the stub.
    Emptying,
}

impl Content {
    /// That of an empty file.
    pub fn empty(purpose: Purpose) -> Self {
        Content { bytes: Bytes::None, length: 0, purpose }
    }
}

impl HeldCopies {
    /// Bytes of memory that they have.
    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Acquire)
    }

    /// How many there are.
    pub fn count(&self) -> u64 {
        self.copies.lock().len() as u64
    }

    /// All of them now.
    pub fn all(&self) -> Vec<Arc<HeldCopy>> {
        self.copies.lock().values().cloned().collect()
    }

    /// The copy of a time in memory.
    pub fn get(&self, epoch: u64) -> Option<Arc<HeldCopy>> {
        self.copies.lock().get(&epoch).cloned()
    }

    /// Begins an empty copy; the reason where it cannot be had.
    pub fn begin(
        &self,
        core: &Core,
        from: &NodeName,
        push: &Push,
        stub: OwnedFd,
    ) -> Result<(), String> {
        let begin = push.begin.as_ref().ok_or("it has no copy of this file")?;
        let owner = Owner { user_id: begin.user_id, directory: None, time_to_live: None };
        let segment = core.store.create_segment(0, owner).map_err(|error| error.to_string())?;
        let state = State::new(begin.path(), Kept::Memory(segment));
        let copy = HeldCopy {
            file: push.file(),
            epoch: push.epoch,
            owner: from.clone(),
            node: push.node.clone(),
            holders: begin.holders.clone(),
            stub: (self.count() < stubs_max()).then_some(stub),
            since: Instant::now(),
            is_orphan: AtomicBool::new(false),
            was_away: AtomicBool::new(false),
            is_nameless: AtomicBool::new(false),
            state: Mutex::new(state),
        };
        self.copies.lock().entry(push.epoch).or_insert_with(|| Arc::new(copy));
        Ok(())
    }

    /// Begins to answer for a file that is in burst buffers.
    pub fn begin_owed(
        &self,
        owner: NodeName,
        owe: &Owe,
        (stub, file): (Option<OwnedFd>, OwedFile),
    ) -> Arc<HeldCopy> {
        let mut state = State::new(path_of(&owe.path), Kept::Buffers(Arc::new(file)));
        state.length = owe.length;
        let copy = HeldCopy {
            file: owe.file(),
            epoch: owe.epoch,
            owner,
            node: owe.node.clone(),
            holders: owe.holders.clone(),
            stub: stub.filter(|_| self.count() < stubs_max()),
            since: Instant::now(),
            is_orphan: AtomicBool::new(false),
            was_away: AtomicBool::new(false),
            is_nameless: AtomicBool::new(false),
            state: Mutex::new(state),
        };
        self.copies.lock().entry(owe.epoch).or_insert_with(|| Arc::new(copy)).clone()
    }

    /// Files in burst buffers that nobody counts on any more, since the last call.
    pub fn take_over(&self) -> Vec<Arc<OwedFile>> {
        std::mem::take(&mut *self.over.lock())
    }

    /// Those of them that buffers could not be told of.
    pub fn not_yet(&self, files: Vec<Arc<OwedFile>>) {
        self.over.lock().extend(files);
    }

    /// Applies a message; the reason where that cannot be.
    pub fn push(
        &self,
        core: &Core,
        from: &NodeName,
        push: &Push,
        bytes: &[u8],
    ) -> Result<(), String> {
        let copy = self.get(push.epoch).ok_or("it has no copy of this file")?;
        if copy.owner != *from || copy.node != push.node || copy.file != push.file() {
            return Err("its copy is of another file".to_owned());
        }
        let mut state = copy.state.lock();
        let before = state.kept.bytes();
        let room = (core.config.capacity_bytes.min(core.store.stats().capacity_bytes) / SHARE)
            .saturating_sub(self.bytes() - before.min(self.bytes()));
        let taken = state.take(push, bytes, room);
        let after = state.kept.bytes();
        self.bytes.fetch_add(after.wrapping_sub(before), Ordering::AcqRel);
        taken
    }

    /// Frees a copy that nobody counts on, unless it is being put in the place of its file: the
    /// node that had the file may have given it up to that.
    pub fn drop_unneeded(&self, copy: &HeldCopy) {
        let mut state = copy.state.lock();
        if state.is_closed {
            return;
        }
        (state.is_closed, state.is_dropped) = (true, true);
        drop(state);
        self.drop_copy(copy);
    }

    /// Frees a copy that is not needed any more. One that came meanwhile for another time of the
    /// same file stays.
    pub fn drop_copy(&self, copy: &HeldCopy) {
        let removed = self.copies.lock().remove(&copy.epoch).is_some();
        let mut state = copy.state.lock();
        (state.is_closed, state.is_dropped) = (true, true);
        let kept = state.kept.clone();
        drop(state);
        if removed {
            self.bytes.fetch_sub(kept.bytes(), Ordering::AcqRel);
        }
        match kept {
            Kept::Memory(segment) => segment.discard(),
            Kept::Buffers(file) => self.over.lock().push(file),
        }
    }
}

fn stubs_max() -> u64 {
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    (descriptors / STUBS_SHARE).min(STUBS_MAX)
}

impl HeldCopy {
    /// Takes no more messages, and tells what it is; `None` where it was freed.
    pub fn close(&self) -> Option<Content> {
        let mut state = self.state.lock();
        if state.is_dropped {
            return None;
        }
        state.is_closed = true;
        let bytes = match &state.kept {
            Kept::Memory(segment) => {
                let present = segment.resident_blocks().map(|(block, _)| block).collect();
                Bytes::Memory(segment.clone(), present)
            }
            Kept::Buffers(file) => Bytes::Buffers(file.told()?, file.clone()),
        };
        Some(Content { bytes, length: state.length, purpose: Purpose::Copy })
    }

    /// Of a file in burst buffers: what answers for it there, while it takes messages.
    pub fn in_buffers(&self) -> Option<Arc<OwedFile>> {
        let state = self.state.lock();
        match &state.kept {
            Kept::Buffers(file) if !state.is_closed => Some(file.clone()),
            _ => None,
        }
    }

    /// Of a file in burst buffers: what is told of it, also while it is being put in place, and why
    /// it was said last that it stays, if it was.
    pub fn owed(&self) -> Option<(Owe, Option<String>)> {
        let state = self.state.lock();
        let Kept::Buffers(file) = &state.kept else { return None };
        let reason = Some(state.stays_because.clone()).filter(|reason| !reason.is_empty());
        (!state.is_dropped).then(|| Some((file.told()?, reason)))?
    }

    /// Of a file in burst buffers: the file that was about to take its place, if one was.
    pub fn placing(&self) -> Option<FileKey> {
        let state = self.state.lock();
        let Kept::Buffers(file) = &state.kept else { return None };
        file.placing()
    }

    /// Whether its bytes are in burst buffers.
    pub fn is_in_buffers(&self) -> bool {
        matches!(self.state.lock().kept, Kept::Buffers(_))
    }

    /// Somebody waits for it: where it is being put in the place of its file, that is not to take
    /// longer than it must.
    pub fn hurry(&self) {
        if let Kept::Buffers(file) = &self.state.lock().kept {
            file.hurry();
        }
    }

    /// Whether its bytes are in burst buffers, and nobody waits for them.
    pub fn is_in_no_hurry(&self) -> bool {
        matches!(&self.state.lock().kept, Kept::Buffers(file) if !file.is_wanted())
    }

    /// Notes what was told of a file in burst buffers; false where it takes no messages any more.
    pub fn note_owed(&self, owe: &Owe) -> bool {
        let mut state = self.state.lock();
        let file = match &state.kept {
            Kept::Buffers(file) if !state.is_closed => file.clone(),
            _ => return false,
        };
        (state.path, state.length) = (path_of(&owe.path), owe.length);
        file.set_told(owe);
        true
    }

    /// Whether it takes no more messages.
    pub fn is_closed(&self) -> bool {
        self.state.lock().is_closed
    }

    /// Bytes of memory that it has.
    pub fn bytes(&self) -> u64 {
        self.state.lock().kept.bytes()
    }

    /// Notes where the file was found; whether that is news. A stub that was exchanged for a copy
    /// is not where the file is.
    pub fn set_path(&self, path: PathBuf) -> bool {
        if is_beside(&path, (self.file, self.epoch)) {
            return false;
        }
        let mut state = self.state.lock();
        let is_news = state.path != path;
        state.path = path;
        is_news
    }

    /// Whether another reason was said last why it stays in memory.
    pub fn is_reason_new(&self, reason: &str) -> bool {
        let mut state = self.state.lock();
        let is_new = state.stays_because != reason;
        state.stays_because = reason.to_owned();
        is_new
    }

    /// Where the file was when it was pushed last, or found.
    pub fn path(&self) -> PathBuf {
        self.state.lock().path.clone()
    }
}

impl State {
    /// An empty copy.
    fn new(path: PathBuf, kept: Kept) -> Self {
        let stays_because = String::new();
        let (is_closed, is_dropped) = (false, false);
        State { path, stays_because, kept, length: 0, number: 0, is_closed, is_dropped }
    }

    /// Takes a message, if it is the next one.
    fn take(&mut self, push: &Push, bytes: &[u8], room: u64) -> Result<(), String> {
        if self.is_closed {
            return Err("its copy was given back".to_owned());
        }
        // A message may come twice, and the first one late: nothing old is put over what is new.
        match push.number {
            number if number == self.number => return Ok(()),
            number if number == self.number + 1 => {}
            _ => return Err("messages about its copy are missing".to_owned()),
        }
        self.apply(push, bytes, room)?;
        self.number = push.number;
        Ok(())
    }

    fn apply(&mut self, push: &Push, bytes: &[u8], room: u64) -> Result<(), String> {
        if let Some(begin) = &push.begin {
            self.path = begin.path();
        }
        if let Some(shortest) = push.cut_bytes
            && shortest < self.segment()?.size()
        {
            self.set_size(shortest)?;
            self.length = self.length.min(shortest);
        }
        self.put(push.offset, bytes, room)?;
        if let Some(length) = push.length {
            self.set_size(length)?;
            self.length = length;
        }
        Ok(())
    }

    fn segment(&self) -> Result<&Arc<Segment>, String> {
        match &self.kept {
            Kept::Memory(segment) => Ok(segment),
            Kept::Buffers(_) => Err("its copy is in burst buffers".to_owned()),
        }
    }

    fn set_size(&self, bytes: u64) -> Result<(), String> {
        self.segment()?.set_size(bytes).map_err(|error| error.to_string())
    }

    fn put(&self, offset: u64, bytes: &[u8], room: u64) -> Result<(), String> {
        let (end, segment) = (offset + bytes.len() as u64, self.segment()?);
        if end > segment.size() {
            self.set_size(end)?;
        }
        let (block_bytes, mut at) = (segment.block_bytes(), offset);
        while at < end {
            let block = at / block_bytes;
            let upto = end.min((block + 1) * block_bytes);
            if segment.state(block) == BlockState::Absent {
                self.begin_block(block, room)?;
            }
            let part = &bytes[(at - offset) as usize..(upto - offset) as usize];
            if segment.write_resident(at, part) < part.len() as u64 {
                return Err("a block of its copy cannot be written".to_owned());
            }
            at = upto;
        }
        Ok(())
    }

    /// A block of zeros.
    fn begin_block(&self, block: u64, room: u64) -> Result<(), String> {
        let none = || "it has no memory for its copy".to_owned();
        let segment = self.segment()?;
        if segment.resident_bytes() + segment.block_bytes() > room {
            return Err(none());
        }
        match segment.begin_fill(block) {
            FillStart::Started(mut fill) => {
                fill.fill(0);
                match fill.commit(BlockState::MemoryOnly) {
                    true => Ok(()),
                    false => Err(none()),
                }
            }
            _ => Err(none()),
        }
    }
}

#[cfg(test)]
mod tests {
    use tidepool_store::{Store, StoreConfig};

    use super::*;

    const BLOCK: u64 = 2 << 20;

    fn state() -> State {
        let store = Store::new(StoreConfig {
            capacity_bytes: 64 << 20,
            block_bytes: BLOCK,
            ..StoreConfig::default()
        });
        let owner = Owner { user_id: 0, directory: None, time_to_live: None };
        let segment = store.unwrap().create_segment(0, owner).unwrap();
        State::new(PathBuf::new(), Kept::Memory(segment))
    }

    fn push(number: u64, cut_bytes: Option<u64>, offset: u64, length: Option<u64>) -> Push {
        let (file, node) = ([1, 2], String::new());
        Push { file, node, epoch: 1, number, begin: None, cut_bytes, offset, length }
    }

    fn content(state: &State) -> Vec<u8> {
        let mut bytes = vec![0; state.length as usize];
        let segment = state.segment().unwrap();
        for block in 0..segment.blocks() {
            if let Some(pin) = segment.pin_block(block) {
                let from = (block * BLOCK) as usize;
                let upto = bytes.len().min(from + pin.len());
                bytes[from..upto].copy_from_slice(&pin[..upto - from]);
            }
        }
        bytes
    }

    #[test]
    fn each_message_is_taken_once_and_in_order() {
        let mut state = state();
        state.take(&push(1, Some(0), 0, Some(3)), b"one", BLOCK).unwrap();
        state.take(&push(2, None, 0, Some(3)), b"two", BLOCK).unwrap();
        state.take(&push(2, None, 0, Some(3)), b"two", BLOCK).unwrap();
        assert!(state.take(&push(1, None, 0, Some(3)), b"one", BLOCK).is_err(), "it comes late");
        assert!(state.take(&push(4, None, 0, Some(4)), b"four", BLOCK).is_err(), "one is missing");
        assert_eq!(content(&state), b"two");
        state.is_closed = true;
        assert!(state.take(&push(3, None, 0, Some(5)), b"three", BLOCK).is_err());
    }

    #[test]
    fn a_copy_that_is_being_put_in_place_is_not_freed_by_what_its_node_says() {
        let held = HeldCopies::default();
        let copy = |epoch| {
            let mut state = state();
            state.take(&push(1, Some(0), 0, Some(3)), b"one", BLOCK).unwrap();
            let copy = Arc::new(HeldCopy {
                file: FileKey { inode: 1, generation: 2 },
                epoch,
                owner: NodeName::new("n0").unwrap(),
                node: String::new(),
                stub: None,
                holders: Vec::new(),
                since: Instant::now(),
                is_orphan: AtomicBool::new(false),
                was_away: AtomicBool::new(false),
                is_nameless: AtomicBool::new(false),
                state: Mutex::new(state),
            });
            held.copies.lock().insert(epoch, copy.clone());
            copy
        };
        let (one, two) = (copy(1), copy(2));
        let content = one.close().unwrap();
        held.drop_unneeded(&one);
        held.drop_unneeded(&two);
        assert!(held.get(1).is_some() && held.get(2).is_none());
        let Bytes::Memory(segment, _) = content.bytes else { panic!("it is in memory") };
        assert!(segment.pin_block(0).is_some(), "its bytes are there");
        assert!(two.close().is_none(), "it is not put in place any more");
    }

    #[test]
    fn a_cut_comes_first_and_the_length_last() {
        let mut state = state();
        state.take(&push(1, Some(0), 0, Some(8)), b"12345678", BLOCK).unwrap();
        // Cut to 2, written behind a hole, and longer than that.
        state.take(&push(2, Some(2), 5, Some(10)), b"x", BLOCK).unwrap();
        assert_eq!(content(&state), b"12\0\0\0x\0\0\0\0");
        // Bytes that no sync promised are not shown.
        state.take(&push(3, None, 10, None), b"later", BLOCK).unwrap();
        assert_eq!(content(&state).len(), 10);
    }

    #[test]
    fn a_copy_without_room_is_refused_and_stays_as_it_was() {
        let mut state = state();
        state.take(&push(1, Some(0), 0, Some(3)), b"one", BLOCK).unwrap();
        assert!(state.take(&push(2, None, BLOCK, None), b"far", BLOCK).is_err());
        assert_eq!(content(&state), b"one");
        assert!(state.take(&push(2, None, BLOCK, None), b"far", 2 * BLOCK + 3).is_ok());
    }
}
