//! [`Worker`]: a thread that writes the packets of its blocks, in the order in which they came.

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, Sender};

use lru::LruCache;

use super::block::{Block, Entry, State};
use super::format::{Record, checksum};
use super::replay::Place;
use super::{Shared, files};
use crate::key::{BlockName, PacketKey};
use crate::memory::{Room, Value};

/// Files that a thread keeps open.
const OPEN_MAX: NonZeroUsize = NonZeroUsize::new(64).expect("it is more than 0");
/// Jobs that are done before those are answered that wait for a sync.
const BATCH: usize = 64;

/// A packet that came.
pub struct Packet {
    pub number: u64,
    pub key: PacketKey,
    pub flags: u32,
    pub value: Arc<Value>,
}

/// Who waits for a block to be durable.
type Done = Sender<Result<(), String>>;
type Waiting = BTreeMap<BlockName, (Arc<Block>, Vec<Done>)>;

/// What there is to do.
pub enum Job {
    Write { block: Arc<Block>, packet: Packet, room: Room },
    Remove { block: Arc<Block>, packet: u32 },
    Sync { block: Arc<Block>, done: Done },
    Settle { block: Arc<Block> },
}

/// See the module's documentation.
pub struct Worker {
    shared: Arc<Shared>,
    jobs: Receiver<Job>,
    open: LruCache<BlockName, (File, Arc<Block>)>,
}

impl Worker {
    /// One that does these jobs.
    pub fn new(shared: Arc<Shared>, jobs: Receiver<Job>) -> Self {
        Worker { shared, jobs, open: LruCache::new(OPEN_MAX) }
    }

    /// Works until nobody can hand it a job any more.
    pub fn run(mut self) {
        while let Ok(first) = self.jobs.recv() {
            let mut waiting = Waiting::new();
            self.obey(first, &mut waiting);
            for _ in 1..BATCH {
                let Ok(job) = self.jobs.try_recv() else { break };
                self.obey(job, &mut waiting);
            }
            // All that wait for the same block are answered by one sync.
            for (block, done) in waiting.into_values() {
                let synced = self.sync(&block);
                done.iter().for_each(|done| drop(done.send(synced.clone())));
            }
        }
    }

    fn obey(&mut self, job: Job, waiting: &mut Waiting) {
        match job {
            Job::Write { block, packet, room } => self.write(&block, &packet, room),
            Job::Remove { block, packet } => {
                let record = Record { packet, length: None, flags: 0, checksum: 0 };
                let _ = self.append(&block, &record, &[]);
            }
            Job::Sync { block, done } => {
                let of_it = waiting.entry(block.name).or_insert_with(|| (block, Vec::new()));
                of_it.1.push(done);
            }
            Job::Settle { block } => {
                // Who waits for it is answered: the PFS has it.
                if let Some((_, done)) = waiting.remove(&block.name) {
                    done.iter().for_each(|done| drop(done.send(Ok(()))));
                }
                self.open.pop(&block.name);
                self.shared.files.remove(&block.name);
                block.state.lock().rooms.clear();
            }
        }
    }

    fn write(&mut self, block: &Arc<Block>, packet: &Packet, room: Room) {
        let Packet { number, key, flags, value } = packet;
        let (bytes, flags) = (value.bytes(), *flags);
        let length = Some(bytes.len() as u32);
        let record = Record { packet: key.packet, length, flags, checksum: checksum(bytes) };
        let Some(place) = self.append(block, &record, bytes) else { return };
        self.shared.written_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        {
            let mut state = block.state.lock();
            state.rooms.push(room);
            match state.packets.get_mut(&key.packet) {
                Some(entry) => (entry.place, entry.written) = (Some(place), *number),
                None => return, // it was removed
            }
        }
        self.write_anew(block);
        // From here on it may be evicted: it is read from the file.
        self.shared.memory.with(key.to_string().as_bytes(), |slot| {
            if slot.peek().is_some_and(|item| Arc::ptr_eq(&item.value, value)) {
                slot.settle();
            }
        });
    }

    /// Appends a record, unless the block failed before.
    fn append(&mut self, block: &Arc<Block>, record: &Record, bytes: &[u8]) -> Option<Place> {
        // Nobody else changes it.
        let mut progress = {
            let state = block.state.lock();
            if state.failed.is_some() {
                return None;
            }
            state.progress
        };
        let appended = self.file(block, &mut progress);
        let appended = appended.and_then(|file| files::append(file, &mut progress, record, bytes));
        let mut state = block.state.lock();
        state.progress = progress;
        appended.map_err(|error| fail(block, &mut state, &error)).ok()
    }

    /// Writes the file of a block anew where most of it was replaced since.
    fn write_anew(&mut self, block: &Arc<Block>) {
        let least = self.shared.replaced_bytes_max;
        let packets: Vec<_> = {
            let mut state = block.state.lock();
            if state.progress.end < state.anew_at.max(least) || !state.may_be_written_anew() {
                return;
            }
            let in_file = |(packet, entry): (&u32, &Entry)| Some((*packet, entry.place?));
            let packets: Vec<(u32, Place)> = state.packets.iter().filter_map(in_file).collect();
            let bytes: u64 = packets.iter().map(|(_, place)| u64::from(place.length)).sum();
            state.anew_at = 2 * bytes + least;
            if state.progress.end < state.anew_at {
                return;
            }
            packets
        };
        let written = self.shared.files.write_anew(&block.name, &packets);
        let (file, progress, places) = match written {
            Ok(written) => written,
            Err(error) => {
                tracing::debug!(block = %block.name, %error, "its file is not written anew");
                return;
            }
        };
        self.open.put(block.name, (file, block.clone()));
        let mut state = block.state.lock();
        for ((packet, _), place) in packets.iter().zip(places) {
            // Nobody else writes: it is where it was, or removed.
            if let Some(entry) = state.packets.get_mut(packet) {
                entry.place = Some(place);
            }
        }
        state.progress = progress;
        state.rooms = vec![self.shared.budget.hold(progress.end)];
    }

    fn sync(&mut self, block: &Arc<Block>) -> Result<(), String> {
        let mut progress = {
            let state = block.state.lock();
            match &state.failed {
                _ if state.is_gone => return Ok(()),
                Some(reason) => return Err(reason.clone()),
                None => state.progress,
            }
        };
        let shared = self.shared.clone();
        let synced = self.file(block, &mut progress);
        let synced = synced.and_then(|file| shared.files.sync(file, &mut progress));
        self.shared.syncs.fetch_add(1, Ordering::Relaxed);
        let mut state = block.state.lock();
        state.progress = progress;
        synced.map_err(|error| fail(block, &mut state, &error))
    }

    /// The file of a block, to write.
    fn file(&mut self, block: &Arc<Block>, progress: &mut files::Progress) -> io::Result<&File> {
        let name = block.name;
        if !self.open.contains(&name) {
            let file = self.shared.files.open_to_write(&name, progress)?;
            if let Some((_, (file, other))) = self.open.push(name, (file, block.clone())) {
                // An error of what was written by it would not be told to who opens it again.
                if let Err(errno) = rustix::fs::fdatasync(&file) {
                    fail(&other, &mut other.state.lock(), &errno.into());
                }
            }
        }
        let file = self.open.get(&name).map(|(file, _)| file);
        file.ok_or_else(|| io::Error::other("it was closed"))
    }
}

/// Notes that a block cannot become durable any more; why.
fn fail(block: &Block, state: &mut State, error: &io::Error) -> String {
    let reason = format!("writing block {} to the disk: {error}", block.name);
    tracing::warn!(reason, "what is owed to the PFS stays in memory");
    state.failed = Some(reason.clone());
    reason
}
