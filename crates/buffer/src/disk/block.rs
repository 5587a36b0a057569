//! [`Block`]: what a server knows of a block that is on its disk, or on the way there.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::files::Progress;
use super::replay::{Place, Scanned};
use crate::key::BlockName;
use crate::memory::Room;

/// See the module's documentation.
pub struct Block {
    /// Which one.
    pub name: BlockName,
    /// What changes of it. Jobs are queued under its lock.
    pub state: Mutex<State>,
}

/// A packet of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Number of the change that brought it.
    pub number: u64,
    /// Where it is in the file, or an earlier one that counts until this one is there.
    pub place: Option<Place>,
    /// Number of the change that is there.
    pub written: u64,
}

/// See [`Block::state`].
pub struct State {
    /// By number.
    pub packets: BTreeMap<u32, Entry>,
    /// Number of the last change.
    last_number: u64,
    /// How far the file is.
    pub progress: Progress,
    /// Room of the disk that it has.
    pub rooms: Vec<Room>,
    /// Length of the file from which on it is looked whether it is worth to write it anew.
    pub anew_at: u64,
    /// Why it cannot become durable any more.
    pub failed: Option<String>,
    /// The PFS has it: another block of this name begins anew.
    pub is_gone: bool,
    /// What was promised and is broken.
    pub damaged: Vec<String>,
    since: Instant,
}

/// A block that the PFS does not have.
#[derive(Clone, Debug)]
pub struct Owed {
    /// Which one.
    pub block: BlockName,
    /// Its packets.
    pub packets: u64,
    /// Bytes of its file.
    pub bytes: u64,
    /// How long it has been here; since the start of this server, of an earlier one's.
    pub age: Duration,
    /// Why it cannot become durable any more.
    pub failed: Option<String>,
    /// What was promised and is broken.
    pub damaged: Vec<String>,
}

impl Block {
    /// One that begins.
    pub fn new(name: BlockName) -> Self {
        Block { name, state: Mutex::new(State::new()) }
    }

    /// One of which an earlier server left a file, for which `room` is held.
    pub fn replayed(scanned: Scanned, room: Room) -> Self {
        let mut state = State::new();
        state.last_number = 1;
        let entry = |(packet, place)| (packet, Entry { number: 1, place: Some(place), written: 1 });
        state.packets = scanned.packets.into_iter().map(entry).collect();
        state.progress.end = scanned.end;
        state.rooms.push(room);
        // What would be appended behind it is not found again.
        let broken = scanned.damaged.join(", ");
        let reason = || format!("block {} is broken on the disk: {broken}", scanned.block);
        state.failed = (!broken.is_empty()).then(reason);
        state.damaged = scanned.damaged;
        Block { name: scanned.block, state: Mutex::new(state) }
    }

    /// What is said of it.
    pub fn owed(&self) -> Owed {
        let state = self.state.lock();
        Owed {
            block: self.name,
            packets: state.packets.len() as u64,
            bytes: state.progress.end,
            age: state.since.elapsed(),
            failed: state.failed.clone(),
            damaged: state.damaged.clone(),
        }
    }
}

impl State {
    fn new() -> Self {
        State {
            packets: BTreeMap::new(),
            last_number: 0,
            progress: Progress::default(),
            rooms: Vec::new(),
            anew_at: 0,
            failed: None,
            is_gone: false,
            damaged: Vec::new(),
            since: Instant::now(),
        }
    }

    /// Whether its file holds nothing but what is known.
    pub fn may_be_written_anew(&self) -> bool {
        self.failed.is_none() && self.damaged.is_empty() && !self.is_gone
    }

    /// Number of a change that is made now.
    pub fn next_number(&mut self) -> u64 {
        self.last_number += 1;
        self.last_number
    }
}
