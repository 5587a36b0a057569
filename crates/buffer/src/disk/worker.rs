//! [`Worker`]: a thread that writes the packets of its blocks, in the order in which they came.
//!
//! What is written is synced soon, also where nobody asked for it: until then its values cannot
//! leave memory, since the system may drop what it did not write and say so only once.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io;
use std::num::NonZeroUsize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use lru::LruCache;
use rustix::io::Errno;

use super::block::{Block, Entry, State};
use super::files::{self, Progress};
use super::format::{HEADER_BYTES, RECORD_BYTES, Record, checksum};
use super::replay::Place;
use super::{Shared, worker_of};
use crate::key::{BlockName, PacketKey};
use crate::memory::{Room, Value};

/// Files that a thread keeps open.
const OPEN_MAX: NonZeroUsize = NonZeroUsize::new(128).expect("it is more than 0");
/// Jobs that are done before those are answered that wait for a sync.
const BATCH: usize = 64;
/// Time without a job after which what was written is synced.
const IDLE: Duration = Duration::from_millis(50);
/// Time after which it is synced in any case.
const UNSYNCED_MAX: Duration = Duration::from_secs(1);
/// Bytes of it after which it is synced.
const UNSYNCED_BYTES_MAX: u64 = 64 << 20;

/// A packet that came.
pub struct Packet {
    pub number: u64,
    pub key: PacketKey,
    pub flags: u32,
    pub value: Arc<Value>,
}

/// Who waits for a block to be durable.
type Done = Sender<Result<(), String>>;
type Waiting = BTreeMap<BlockName, Vec<Done>>;

/// What there is to do.
pub enum Job {
    /// A packet is to be appended.
    Write { block: Arc<Block>, packet: Packet, room: Room },
    /// Also that there is none any more.
    Remove { block: Arc<Block>, packet: u32, number: u64 },
    /// All before is to be durable.
    Sync { name: BlockName, done: Done },
    /// Its file is to go.
    Settle { block: Arc<Block> },
}

impl Job {
    fn name(&self) -> BlockName {
        match self {
            Job::Write { block, .. } | Job::Remove { block, .. } | Job::Settle { block } => {
                block.name
            }
            Job::Sync { name, .. } => *name,
        }
    }
}

/// Jobs of a block for which the disk has no room, or the process no descriptor.
struct Stalled {
    reason: String,
    /// Each with the time when it came.
    jobs: VecDeque<(Instant, Job)>,
}

/// See the module's documentation.
pub struct Worker {
    shared: Arc<Shared>,
    /// Which of the threads this is.
    number: usize,
    jobs: Receiver<Job>,
    open: LruCache<BlockName, (File, Arc<Block>)>,
    /// Blocks with something that is not durable.
    dirty: BTreeMap<BlockName, Arc<Block>>,
    dirty_since: Instant,
    dirty_bytes: u64,
    /// A file was removed since the directory was synced.
    is_name_gone: bool,
    /// Blocks that are over, and whose files are there still, with the reason.
    not_removed: BTreeMap<BlockName, String>,
    stalled: BTreeMap<BlockName, Stalled>,
}

/// Why something was not appended.
enum Refused {
    /// The block takes nothing more.
    Failed,
    /// Nothing is uncertain: it may be tried again.
    Later(String),
}

impl Worker {
    /// The thread of this number, which does these jobs.
    pub fn new(shared: Arc<Shared>, number: usize, jobs: Receiver<Job>) -> Self {
        Worker {
            shared,
            number,
            jobs,
            open: LruCache::new(OPEN_MAX),
            dirty: BTreeMap::new(),
            dirty_since: Instant::now(),
            dirty_bytes: 0,
            is_name_gone: false,
            not_removed: BTreeMap::new(),
            stalled: BTreeMap::new(),
        }
    }

    /// Works until nobody can hand it a job any more.
    pub fn run(mut self) {
        loop {
            let is_busy = !self.dirty.is_empty()
                || !self.stalled.is_empty()
                || !self.not_removed.is_empty()
                || self.is_name_gone;
            let wait = if is_busy { IDLE } else { UNSYNCED_MAX };
            let mut waiting = Waiting::new();
            let first = self.jobs.recv_timeout(wait);
            let is_idle = first.is_err();
            match first {
                Ok(first) => {
                    self.obey(first, &mut waiting);
                    for _ in 1..BATCH {
                        let Ok(job) = self.jobs.try_recv() else { break };
                        self.obey(job, &mut waiting);
                    }
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => {
                    self.sync_all();
                    return;
                }
            }
            // All that wait for the same block are answered by one sync.
            for (name, done) in waiting {
                let synced = self.sync_named(&name);
                done.iter().for_each(|done| drop(done.send(synced.clone())));
            }
            self.retry_stalled();
            self.make_room();
            let is_old = self.dirty_since.elapsed() > UNSYNCED_MAX;
            let is_wanted = self.shared.memory.usage().waiting > 0;
            if is_idle || is_old || is_wanted || self.dirty_bytes > UNSYNCED_BYTES_MAX {
                self.sync_all();
            }
        }
    }

    fn obey(&mut self, job: Job, waiting: &mut Waiting) {
        let name = job.name();
        if !matches!(job, Job::Settle { .. })
            && let Some(stalled) = self.stalled.get_mut(&name)
        {
            return stalled.jobs.push_back((Instant::now(), job));
        }
        match job {
            Job::Sync { name, done } => waiting.entry(name).or_default().push(done),
            Job::Settle { block } => {
                let mut done = waiting.remove(&name).unwrap_or_default();
                let stalled = self.stalled.remove(&name).map(|it| it.jobs).unwrap_or_default();
                done.extend(stalled.into_iter().filter_map(|(_, job)| match job {
                    Job::Sync { done, .. } => Some(done),
                    _ => None,
                }));
                let gone = self.settle(&block);
                // Who waited for it is answered: the PFS has it.
                done.iter().for_each(|done| drop(done.send(gone.clone())));
            }
            job => {
                if let Err((job, reason)) = self.append_job(job) {
                    let stalled = Stalled { reason, jobs: [(Instant::now(), job)].into() };
                    tracing::warn!(block = %name, reason = stalled.reason, "it is tried again");
                    self.stalled.insert(name, stalled);
                }
            }
        }
    }

    /// Writes or removes a packet; the job again, and why, where that may be tried later.
    fn append_job(&mut self, job: Job) -> Result<(), (Job, String)> {
        match job {
            Job::Write { block, packet, room } => match self.write(&block, &packet) {
                Ok(()) => {
                    block.state.lock().rooms.push(room);
                    self.look_at_replaced(&block);
                    Ok(())
                }
                Err(Refused::Failed) => Ok(()),
                Err(Refused::Later(reason)) => Err((Job::Write { block, packet, room }, reason)),
            },
            Job::Remove { block, packet, number } => {
                let record = Record { packet, length: None, flags: 0, checksum: 0, number };
                match self.append(&block, &record, &[]) {
                    Err(Refused::Later(reason)) => {
                        Err((Job::Remove { block, packet, number }, reason))
                    }
                    _ => Ok(()),
                }
            }
            Job::Sync { .. } | Job::Settle { .. } => Ok(()),
        }
    }

    fn settle(&mut self, block: &Arc<Block>) -> Result<(), String> {
        self.open.pop(&block.name);
        self.dirty.remove(&block.name);
        let removed = self.remove_file(&block.name);
        let mut state = block.state.lock();
        state.rooms.clear();
        state.unsynced.clear();
        removed
    }

    /// Removes the file of a block that is over. One that stays is tried again, and told to whoever
    /// asks for the block: after a restart it would be there again.
    fn remove_file(&mut self, name: &BlockName) -> Result<(), String> {
        let removed = self.shared.files.remove(name);
        self.is_name_gone = true;
        match removed {
            Ok(()) => {
                self.not_removed.remove(name);
                Ok(())
            }
            Err(error) => {
                let reason = format!("removing block {name} from the disk: {error}");
                if self.not_removed.insert(*name, reason.clone()).as_ref() != Some(&reason) {
                    tracing::warn!(reason);
                }
                Err(reason)
            }
        }
    }

    fn write(&mut self, block: &Arc<Block>, packet: &Packet) -> Result<(), Refused> {
        let Packet { number, key, flags, value } = packet;
        let bytes = value.bytes();
        let record = Record {
            packet: key.packet,
            length: Some(bytes.len() as u32),
            flags: *flags,
            checksum: checksum(bytes),
            number: *number,
        };
        let place = self.append(block, &record, bytes)?;
        self.shared.written_bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
        self.dirty_bytes += bytes.len() as u64;
        let mut state = block.state.lock();
        state.unsynced.push((*key, value.clone()));
        // It may have been removed.
        if let Some(entry) = state.packets.get_mut(&key.packet) {
            entry.place = Some(place);
        }
        Ok(())
    }

    /// Appends a record, unless the block failed before.
    fn append(
        &mut self,
        block: &Arc<Block>,
        record: &Record,
        bytes: &[u8],
    ) -> Result<Place, Refused> {
        // Nobody else changes it.
        let mut progress = {
            let state = block.state.lock();
            if state.failed.is_some() || state.is_gone {
                return Err(Refused::Failed);
            }
            state.progress
        };
        let appended = self.file(block, &mut progress);
        let appended = appended.and_then(|file| files::append(file, &mut progress, record, bytes));
        let mut state = block.state.lock();
        state.progress = progress;
        match appended {
            Ok(place) => {
                drop(state);
                if self.dirty.is_empty() {
                    (self.dirty_since, self.dirty_bytes) = (Instant::now(), 0);
                }
                self.dirty.entry(block.name).or_insert_with(|| block.clone());
                Ok(place)
            }
            Err(error) if is_for_want_of_room(&error) => Err(Refused::Later(error.to_string())),
            Err(error) => {
                fail(block, &mut state, &error);
                Err(Refused::Failed)
            }
        }
    }

    /// Tries again what found no room; what waits for too long fails.
    fn retry_stalled(&mut self) {
        for name in self.stalled.keys().copied().collect::<Vec<_>>() {
            let Some(mut stalled) = self.stalled.remove(&name) else { continue };
            while let Some((since, job)) = stalled.jobs.pop_front() {
                let is_late = since.elapsed() > self.shared.patience;
                match job {
                    Job::Sync { name, done } => drop(done.send(self.sync_named(&name))),
                    Job::Write { ref block, .. } | Job::Remove { ref block, .. } if is_late => {
                        let error = io::Error::other(stalled.reason.clone());
                        fail(block, &mut block.state.lock(), &error);
                    }
                    job => {
                        if let Err((job, reason)) = self.append_job(job) {
                            stalled.reason = reason;
                            stalled.jobs.push_front((since, job));
                            break;
                        }
                    }
                }
            }
            if !stalled.jobs.is_empty() {
                self.stalled.insert(name, stalled);
            }
        }
    }

    /// Looks whether more than half of a file, and so many bytes, was replaced.
    fn look_at_replaced(&mut self, block: &Arc<Block>) {
        let least_bytes = self.shared.replaced_bytes_max;
        {
            let mut state = block.state.lock();
            let end = state.progress.end;
            if end < state.anew_at.max(least_bytes) {
                return;
            }
            let least = 2 * state.live_bytes() + least_bytes;
            // Also after a failure: it would fail again.
            state.anew_at = if end < least { least } else { end + least_bytes };
            if end < least {
                return;
            }
        }
        self.write_anew(block);
    }

    /// Writes the file of a block anew, without what was replaced.
    fn write_anew(&mut self, block: &Arc<Block>) {
        let packets: Vec<_> = {
            let state = block.state.lock();
            if !state.may_be_written_anew() {
                return;
            }
            let in_file = |(packet, entry): (&u32, &Entry)| Some((*packet, entry.place?));
            state.packets.iter().filter_map(in_file).collect()
        };
        let written = self.shared.files.write_beside(&block.name, &packets);
        let put = written.and_then(|(file, progress, places)| {
            // Who reads finds the places of the file that has the name.
            let mut state = block.state.lock();
            self.shared.files.put_in_place(&block.name)?;
            for ((packet, _), place) in packets.iter().zip(places) {
                // Nobody else writes: it is where it was, or removed.
                if let Some(entry) = state.packets.get_mut(packet) {
                    entry.place = Some(place);
                }
            }
            (state.progress, state.anew_at) = (progress, 0);
            state.rooms = vec![self.shared.budget.hold(progress.end)];
            Ok(file)
        });
        match put {
            Ok(file) => drop(self.open.put(block.name, (file, block.clone()))),
            Err(error) => {
                tracing::debug!(block = %block.name, %error, "its file is not written anew");
            }
        }
    }

    /// Writes files anew that have anything that was replaced, where packets wait for room.
    fn make_room(&mut self) {
        if self.shared.budget.usage().waiting == 0 {
            return;
        }
        let all: Vec<_> = self.shared.blocks.lock().values().cloned().collect();
        let (number, threads) = (self.number, self.shared.threads);
        for block in all.iter().filter(|it| worker_of(&it.name, threads) == number) {
            let is_worth_it = {
                let state = block.state.lock();
                let heads = HEADER_BYTES + RECORD_BYTES * state.packets.len();
                let replaced = state.progress.end.saturating_sub(state.live_bytes() + heads as u64);
                replaced > state.progress.end / 8
            };
            if is_worth_it {
                self.write_anew(block);
            }
        }
    }

    /// Makes all that was written durable.
    fn sync_all(&mut self) {
        for block in self.dirty.values().cloned().collect::<Vec<_>>() {
            // Who asks for it later is told of a failure.
            let _ = self.sync(&block);
        }
        for name in self.not_removed.keys().copied().collect::<Vec<_>>() {
            let _ = self.remove_file(&name);
        }
        if self.is_name_gone {
            let _ = self.sync_names();
        }
        (self.dirty_since, self.dirty_bytes) = (Instant::now(), 0);
    }

    fn sync_names(&mut self) -> Result<(), String> {
        let synced = self.shared.files.sync_directory();
        synced.map_err(|error| format!("syncing the directory of the disk: {error}"))?;
        self.is_name_gone = false;
        Ok(())
    }

    fn sync_named(&mut self, name: &BlockName) -> Result<(), String> {
        if self.not_removed.contains_key(name) {
            self.remove_file(name)?;
        }
        if self.is_name_gone {
            self.sync_names()?;
        }
        let block = self.shared.blocks.lock().get(name).cloned();
        block.map_or(Ok(()), |block| self.sync(&block))
    }

    fn sync(&mut self, block: &Arc<Block>) -> Result<(), String> {
        let mut progress = {
            let state = block.state.lock();
            match &state.failed {
                _ if state.is_gone => return Ok(()),
                Some(reason) => {
                    self.dirty.remove(&block.name);
                    return Err(reason.clone());
                }
                None => state.progress,
            }
        };
        if progress.end == 0 || progress.is_named && progress.durable == progress.end {
            return self.settle_in_memory(block);
        }
        let shared = self.shared.clone();
        let file = self.file(block, &mut progress);
        let synced = file.and_then(|file| {
            shared.files.sync(file, &mut progress).inspect_err(|_| shared.files.note_failed(file))
        });
        self.shared.syncs.fetch_add(1, Ordering::Relaxed);
        self.dirty.remove(&block.name);
        let mut state = block.state.lock();
        state.progress = progress;
        synced.map_err(|error| fail(block, &mut state, &error))?;
        drop(state);
        self.settle_in_memory(block)
    }

    /// What is durable may be evicted: it is read from the file.
    fn settle_in_memory(&mut self, block: &Arc<Block>) -> Result<(), String> {
        self.dirty.remove(&block.name);
        let durable = std::mem::take(&mut block.state.lock().unsynced);
        for (key, value) in durable {
            self.shared.memory.with(key.to_string().as_bytes(), |slot| {
                if slot.peek().is_some_and(|item| Arc::ptr_eq(&item.value, &value)) {
                    slot.settle();
                }
            });
        }
        Ok(())
    }

    /// The file of a block, to write.
    fn file(&mut self, block: &Arc<Block>, progress: &mut Progress) -> io::Result<&File> {
        let name = block.name;
        if !self.open.contains(&name) {
            let file = self.shared.files.open_to_write(&name, progress)?;
            // What was to be removed is gone: this one is of the next block of that name.
            self.not_removed.remove(&name);
            if let Some((_, (file, other))) = self.open.push(name, (file, block.clone())) {
                // An error of what was written by it would not be told to who opens it again.
                if let Err(errno) = rustix::fs::fdatasync(&file) {
                    self.shared.files.note_failed(&file);
                    fail(&other, &mut other.state.lock(), &errno.into());
                }
            }
        }
        let file = self.open.get(&name).map(|(file, _)| file);
        file.ok_or_else(|| io::Error::other("it was closed"))
    }
}

/// Whether the disk, or the process, was full: nothing was written that counts.
fn is_for_want_of_room(error: &io::Error) -> bool {
    let full = [Errno::NOSPC, Errno::DQUOT, Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| full.contains(&errno))
}

/// Notes that a block cannot become durable any more; why. What is not durable of it stays in
/// memory.
fn fail(block: &Block, state: &mut State, error: &io::Error) -> String {
    let reason = format!("writing block {} to the disk: {error}", block.name);
    tracing::warn!(reason, "what is owed to the PFS stays in memory");
    state.failed = Some(reason.clone());
    state.unsynced.clear();
    reason
}
