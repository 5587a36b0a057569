//! [`Disk`]: the persistence manager of a server. What is owed to the PFS is on the local disk, one
//! file a block, before the packet that asks for it is answered (section III-C of the paper).
//!
//! Threads write what sessions hand them, each the blocks that are its own, in the order in which
//! they came. What is written may be evicted from memory, and is read from its file when it is
//! asked for. A block's file goes when the PFS has the block.
//!
//! * `format`: how a block lies in its file. `files`: a directory of them.
//! * `block`: what is known of a block. `worker`: the threads. `replay`: reading a file again.
//!
//! # Invariants
//!
//! 1. A packet is durable, with all that came of its block before, once `sync` returned; until then
//!    it stays in memory.
//! 2. A block that failed once stays failed until it is settled, or until a server that is started
//!    wrote its file anew: no later sync succeeds over a packet that is not there.
//! 3. Bytes that are read from a file are those that were written, by their checksum. Of a file
//!    in which what was promised cannot be told any more no packet is given.
//! 4. Numbers of changes are higher than all that are in files, also after a restart.

mod block;
mod files;
mod format;
mod replay;
mod worker;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use self::block::{Block, Entry};
use self::files::{Files, Progress};
use self::worker::{Job, Worker};
use crate::key::{BlockName, PacketKey};
use crate::memory::{Budget, Full, Memory, Room};
use crate::server::{Fetched, Keeper, Kept, Totals};

pub use self::block::Owed;

/// How it works.
#[derive(Clone, Debug)]
pub struct DiskSettings {
    /// Directory of the files, which nothing else uses.
    pub directory: PathBuf,
    /// Most bytes of files.
    pub capacity_bytes: u64,
    /// Threads that write.
    pub threads: usize,
    /// How long a writer waits for room.
    pub patience: Duration,
    /// A file is written anew when it has so many bytes of packets that were replaced, and more
    /// than of others.
    pub replaced_bytes_max: u64,
}

/// What was found in the directory at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Replayed {
    /// Blocks.
    pub blocks: u64,
    /// Bytes of their packets.
    pub bytes: u64,
    /// What was promised and is broken, in words, by file.
    pub damaged: Vec<String>,
    /// Files that hold something, and were never synced, unless somebody else changed them: they
    /// have these names now.
    pub set_aside: Vec<String>,
}

struct Shared {
    files: Files,
    threads: usize,
    patience: Duration,
    replaced_bytes_max: u64,
    memory: Arc<Memory>,
    budget: Arc<Budget>,
    blocks: Mutex<HashMap<BlockName, Arc<Block>>>,
    written_bytes: AtomicU64,
    syncs: AtomicU64,
}

/// See the module's documentation.
pub struct Disk {
    shared: Arc<Shared>,
    senders: Vec<mpsc::Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Disk {
    /// Opens a directory, reads what an earlier server left there, and begins to serve `memory`.
    ///
    /// # Errors
    /// The directory cannot be had, or another server has it.
    pub fn open(settings: &DiskSettings, memory: Arc<Memory>) -> io::Result<(Self, Replayed)> {
        let threads = settings.threads.max(1);
        let shared = Arc::new(Shared {
            files: Files::open(&settings.directory)?,
            threads,
            patience: settings.patience,
            replaced_bytes_max: settings.replaced_bytes_max,
            memory,
            budget: Budget::new(settings.capacity_bytes),
            blocks: Mutex::default(),
            written_bytes: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
        });
        let replayed = shared.replay(threads)?;
        let blocks: Vec<_> = shared.blocks.lock().values().cloned().collect();
        let numbers = blocks.iter().map(|block| block.state.lock().highest);
        shared.memory.number_from(numbers.max().unwrap_or(0));
        let (mut senders, mut handles) = (Vec::new(), Vec::new());
        for number in 0..threads {
            let (sender, jobs) = mpsc::channel();
            let worker = Worker::new(shared.clone(), number, jobs);
            let thread = std::thread::Builder::new().name("buffer-disk".into());
            handles.push(thread.spawn(move || worker.run())?);
            senders.push(sender);
        }
        Ok((Disk { shared, senders, threads: handles }, replayed))
    }

    /// Hands a job to the thread of a block. Without one it is not done, and a sync fails.
    fn send(&self, block: &BlockName, job: Job) {
        let _ = self.senders[worker_of(block, self.senders.len())].send(job);
    }

    fn block(&self, name: &BlockName) -> Arc<Block> {
        let mut blocks = self.shared.blocks.lock();
        blocks.entry(*name).or_insert_with(|| Arc::new(Block::new(*name))).clone()
    }

    fn known(&self, name: &BlockName) -> Option<Arc<Block>> {
        self.shared.blocks.lock().get(name).cloned()
    }

    /// Takes the block off the list. Whoever changes it does that one after the other.
    fn forget(&self, block: &Arc<Block>) {
        self.shared.blocks.lock().remove(&block.name);
    }
}

/// Which of so many threads writes a block.
fn worker_of(block: &BlockName, threads: usize) -> usize {
    let hash = block.epoch.wrapping_add(block.block).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (hash >> 32) as usize % threads
}

impl Keeper for Disk {
    fn reserve(&self, length: usize, until: Instant) -> Result<Option<Room>, String> {
        let length = length + format::RECORD_BYTES;
        let patience = until.saturating_duration_since(Instant::now());
        let room = self.shared.budget.take(length, patience, || false);
        room.map(Some).map_err(|Full(usage)| {
            format!(
                "full: {} of {} bytes of its disk are owed to the PFS",
                usage.used_bytes, usage.capacity_bytes
            )
        })
    }

    fn check(&self, block: &BlockName) -> Result<(), String> {
        let Some(block) = self.known(block) else { return Ok(()) };
        let failed = block.state.lock().failed.clone();
        failed.map_or(Ok(()), Err)
    }

    fn keep(&self, kept: Kept<'_>, room: Option<Room>) {
        let Kept { key, flags, value, number } = kept;
        let Some(room) = room else { return };
        let block = self.block(&key.block);
        let mut state = block.state.lock();
        state.packets.entry(key.packet).or_insert(Entry { number, place: None }).number = number;
        let packet = worker::Packet { number, key: *key, flags, value: value.clone() };
        // In the order of the numbers.
        self.send(&key.block, Job::Write { block: block.clone(), packet, room });
    }

    fn sync(&self, block: &BlockName) -> Result<(), String> {
        let (done, answer) = mpsc::channel();
        self.send(block, Job::Sync { name: *block, done });
        answer.recv().map_err(|_| "its disk threads ended".to_owned())?
    }

    fn removed(&self, key: &PacketKey) -> bool {
        let Some(block) = self.known(&key.block) else { return false };
        let mut state = block.state.lock();
        let Some(entry) = state.packets.remove(&key.packet) else { return false };
        // What is broken in a file is told for as long as it is there.
        if state.packets.is_empty() && state.damaged.is_empty() {
            state.is_gone = true;
            self.send(&key.block, Job::Settle { block: block.clone() });
            drop(state);
            self.forget(&block);
            return true;
        }
        let (packet, number) = (key.packet, entry.number);
        self.send(&key.block, Job::Remove { block: block.clone(), packet, number });
        true
    }

    fn settled(&self, name: &BlockName) -> Vec<u32> {
        let Some(block) = self.known(name) else { return Vec::new() };
        let packets = {
            let mut state = block.state.lock();
            state.is_gone = true;
            self.send(name, Job::Settle { block: block.clone() });
            std::mem::take(&mut state.packets).into_keys().collect()
        };
        self.forget(&block);
        packets
    }

    fn fetch(&self, key: &PacketKey) -> Result<Option<Fetched>, String> {
        let Some(block) = self.known(&key.block) else { return Ok(None) };
        let entry = || {
            let state = block.state.lock();
            match state.why_broken(key.packet) {
                Some(reason) => Err(reason),
                None => Ok(state.packets.get(&key.packet).copied()),
            }
        };
        let mut found = entry()?;
        loop {
            // What is in the queue is in memory.
            let Some(place) = found.and_then(|entry| entry.written()) else { return Ok(None) };
            let read = self.shared.files.read(&key.block, &place);
            let now = entry()?;
            match read {
                Ok(bytes) => {
                    return Ok(Some(Fetched { bytes, flags: place.flags, number: place.number }));
                }
                // It was replaced, or its file written anew, in this moment.
                Err(_) if now != found => found = now,
                Err(error) => return Err(format!("reading it from the disk: {error}")),
            }
        }
    }

    fn length(&self, key: &PacketKey) -> Option<usize> {
        let block = self.known(&key.block)?;
        let state = block.state.lock();
        Some(state.packets.get(&key.packet)?.written()?.length as usize)
    }

    fn is_current(&self, key: &PacketKey, number: u64) -> bool {
        let Some(block) = self.known(&key.block) else { return false };
        let state = block.state.lock();
        state.packets.get(&key.packet).is_some_and(|entry| entry.number == number)
    }

    fn place(&self) -> &'static str {
        "disk"
    }

    fn figures(&self) -> Vec<(&'static str, String)> {
        let usage = self.shared.budget.usage();
        let owed = self.owed();
        let count = |test: fn(&Owed) -> bool| owed.iter().filter(|it| test(it)).count();
        let oldest = owed.iter().map(|it| it.age.as_secs()).max().unwrap_or(0);
        vec![
            ("disk_limit_maxbytes", usage.capacity_bytes.to_string()),
            ("disk_bytes", usage.used_bytes.to_string()),
            ("disk_waiting_writers", usage.waiting.to_string()),
            ("disk_written_bytes", self.shared.written_bytes.load(Ordering::Relaxed).to_string()),
            ("disk_syncs", self.shared.syncs.load(Ordering::Relaxed).to_string()),
            ("owed_blocks", owed.len().to_string()),
            ("owed_blocks_failed", count(|it| it.failed.is_some()).to_string()),
            ("owed_blocks_damaged", count(|it| !it.damaged.is_empty()).to_string()),
            ("owed_packets", owed.iter().map(|it| it.packets).sum::<u64>().to_string()),
            ("owed_oldest_seconds", oldest.to_string()),
        ]
    }

    fn blocks_of(&self, epoch: u64) -> Vec<BlockName> {
        let blocks = self.shared.blocks.lock();
        blocks.keys().filter(|block| block.epoch == epoch).copied().collect()
    }

    fn owed(&self) -> Vec<Owed> {
        let blocks: Vec<_> = self.shared.blocks.lock().values().cloned().collect();
        blocks.iter().map(|block| block.owed()).collect()
    }

    fn totals(&self) -> Totals {
        let owed = self.owed();
        let is_failed = |it: &&Owed| it.failed.is_some() || !it.damaged.is_empty();
        Totals {
            disk_bytes: self.shared.budget.usage().used_bytes,
            owed_blocks: owed.len() as u64,
            failed_blocks: owed.iter().filter(is_failed).count() as u64,
            owed_bytes: owed.iter().map(|it| it.bytes).sum(),
            oldest: owed.iter().map(|it| it.age).max(),
        }
    }
}

impl Shared {
    /// Reads all files that are there, by some threads.
    fn replay(&self, threads: usize) -> io::Result<Replayed> {
        let names = Mutex::new(self.files.names()?);
        let replayed = Mutex::new(Replayed::default());
        std::thread::scope(|scope| -> io::Result<()> {
            let work = || -> io::Result<()> {
                loop {
                    let Some((name, block)) = names.lock().pop() else { return Ok(()) };
                    self.replay_file(&name, &block, &replayed)?;
                }
            };
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
            let ended = threads.into_iter().map(|thread| {
                thread.join().unwrap_or_else(|_| Err(io::Error::other("reading a file failed")))
            });
            ended.collect()
        })?;
        Ok(replayed.into_inner())
    }

    fn replay_file(
        &self,
        name: &str,
        block: &BlockName,
        replayed: &Mutex<Replayed>,
    ) -> io::Result<()> {
        let scanned = self.files.open_to_read(name).and_then(|file| replay::scan(&file, block));
        let scanned = match scanned {
            Ok(replay::Found::Block(scanned)) => scanned,
            Ok(replay::Found::Nothing) => return self.files.remove_name(name),
            Ok(replay::Found::Unsynced) => {
                let aside = self.files.set_aside(name)?;
                tracing::warn!(file = aside, "it was never synced, or is broken: it stays here");
                replayed.lock().set_aside.push(aside);
                return Ok(());
            }
            Ok(replay::Found::Unknown) => {
                self.note_unknown(name, block, "its first bytes", replayed);
                return Ok(());
            }
            Err(error) => {
                self.note_unknown(name, block, &error.to_string(), replayed);
                return Ok(());
            }
        };
        let mut scanned = scanned;
        let mut progress = Progress { end: scanned.end, durable: 0, said: 0, is_named: false };
        let mut failed = None;
        if scanned.is_failed && scanned.damaged().is_empty() {
            // What the system has of it in memory alone is written by nobody else.
            let packets: Vec<_> = scanned.packets.iter().map(|(it, place)| (*it, *place)).collect();
            let anew = self.files.write_beside(block, &packets);
            let anew = anew.and_then(|anew| self.files.put_in_place(block).map(|()| anew));
            match anew {
                Ok((_, now, places)) => {
                    for ((packet, _), place) in packets.iter().zip(places) {
                        scanned.packets.insert(*packet, place);
                    }
                    progress = now;
                }
                // Its packets are told, and it takes no more; the next start tries again.
                Err(error) => failed = Some(format!("writing block {block} anew: {error}")),
            }
        }
        let of = scanned.packets.values().map(|place| u64::from(place.length));
        {
            let mut replayed = replayed.lock();
            replayed.blocks += 1;
            replayed.bytes += of.sum::<u64>();
            replayed.damaged.extend(scanned.damaged().iter().map(|what| format!("{name}: {what}")));
        }
        let room = self.budget.hold(progress.end);
        let block = Arc::new(Block::replayed(scanned, progress, room));
        if let Some(reason) = failed {
            tracing::warn!(reason, "a block of which a sync failed takes nothing");
            block.state.lock().failed = Some(reason);
        }
        self.blocks.lock().insert(block.name, block);
        Ok(())
    }

    /// A file tells nothing of its block: it stays, and the block takes nothing until it is
    /// settled.
    fn note_unknown(&self, name: &str, block: &BlockName, what: &str, replayed: &Mutex<Replayed>) {
        replayed.lock().damaged.push(format!("{name}: {what}"));
        let unknown = Block::unknown(*block, what, self.budget.hold(0));
        self.blocks.lock().insert(*block, Arc::new(unknown));
    }
}

impl Drop for Disk {
    /// Writes what is queued.
    fn drop(&mut self) {
        self.senders.clear();
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
