//! [`Block`]: what a server knows of a block that is on its disk, or on the way there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::files::Progress;
use super::replay::{Place, Scanned};
use crate::key::{BlockName, PacketKey};
use crate::memory::{Room, Value};

/// Most of the words in which it is told what is broken: they go in one line.
const REASON_CHARS_MAX: usize = 400;

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
}

impl Entry {
    /// Where it is, if it is in the file.
    pub fn written(&self) -> Option<Place> {
        self.place.filter(|place| place.number == self.number)
    }
}

/// See [`Block::state`].
pub struct State {
    /// By number.
    pub packets: BTreeMap<u32, Entry>,
    /// How far the file is.
    pub progress: Progress,
    /// Room of the disk that it has.
    pub rooms: Vec<Room>,
    /// Written, and not durable: their values stay in memory until they are.
    pub unsynced: Vec<(PacketKey, Arc<Value>)>,
    /// Length of the file from which on it is looked whether it is worth to write it anew.
    pub anew_at: u64,
    /// Why it cannot become durable any more.
    pub failed: Option<String>,
    /// The PFS has it: another block of this name begins anew.
    pub is_gone: bool,
    /// Packets that were promised, and whose bytes are others.
    pub broken: BTreeSet<u32>,
    /// What was promised cannot be told any more: none of its packets can.
    pub torn: Option<String>,
    /// What was promised and is broken, in words.
    pub damaged: Vec<String>,
    /// Highest number that an earlier server left in its file.
    pub highest: u64,
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
    pub fn replayed(scanned: Scanned, progress: Progress, room: Room) -> Self {
        let mut state = State::new();
        let damaged = scanned.damaged();
        let entry = |(packet, place): (u32, Place)| {
            (packet, Entry { number: place.number, place: Some(place) })
        };
        state.packets = scanned.packets.into_iter().map(entry).collect();
        state.progress = progress;
        state.highest = scanned.highest;
        state.rooms.push(room);
        (state.broken, state.torn) = (scanned.broken, scanned.torn);
        state.damage(&scanned.block, damaged);
        Block { name: scanned.block, state: Mutex::new(state) }
    }

    /// One whose file tells nothing.
    pub fn unknown(name: BlockName, what: &str, room: Room) -> Self {
        let mut state = State::new();
        state.rooms.push(room);
        state.torn = Some(what.to_owned());
        state.damage(&name, vec![what.to_owned()]);
        Block { name, state: Mutex::new(state) }
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
            progress: Progress::default(),
            rooms: Vec::new(),
            unsynced: Vec::new(),
            anew_at: 0,
            failed: None,
            is_gone: false,
            broken: BTreeSet::new(),
            torn: None,
            damaged: Vec::new(),
            highest: 0,
            since: Instant::now(),
        }
    }

    /// What would be appended behind what is broken is not found again: it takes nothing more.
    fn damage(&mut self, name: &BlockName, damaged: Vec<String>) {
        if !damaged.is_empty() {
            let broken: String = damaged.join(", ").chars().take(REASON_CHARS_MAX).collect();
            self.failed = Some(format!("block {name} is broken on the disk: {broken}"));
        }
        self.damaged = damaged;
    }

    /// Why a packet cannot be told.
    pub fn why_broken(&self, packet: u32) -> Option<String> {
        let is_broken = self.torn.is_some() || self.broken.contains(&packet);
        is_broken.then(|| self.failed.clone()).flatten()
    }

    /// Whether its file holds nothing but what is known.
    pub fn may_be_written_anew(&self) -> bool {
        self.failed.is_none() && self.damaged.is_empty() && !self.is_gone
    }

    /// Bytes of packets in its file that count.
    pub fn live_bytes(&self) -> u64 {
        let places = self.packets.values().filter_map(|entry| entry.place);
        places.map(|place| u64::from(place.length)).sum()
    }
}
