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
//! 1. A packet is durable, with all that came of its block before, once `keep` with `is_sync`
//!    returned; until then it stays in memory or in the system's cache.
//! 2. A block that failed once stays failed until it is settled: no later sync succeeds over a
//!    packet that is not there.
//! 3. Bytes that are read from a file are those that were written, by their checksum.

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
use std::time::Duration;

use parking_lot::Mutex;

use self::block::{Block, Entry};
use self::files::Files;
use self::worker::{Job, Worker};
use crate::key::{BlockName, PacketKey};
use crate::memory::{Budget, Full, Memory, Value};
use crate::server::{Fetched, Keeper};

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
}

struct Shared {
    files: Files,
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
    patience: Duration,
    senders: Vec<mpsc::Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Disk {
    /// Opens a directory, reads what an earlier server left there, and begins to serve `memory`.
    ///
    /// # Errors
    /// The directory cannot be had, or another server has it.
    pub fn open(settings: &DiskSettings, memory: Arc<Memory>) -> io::Result<(Self, Replayed)> {
        let shared = Arc::new(Shared {
            files: Files::open(&settings.directory)?,
            replaced_bytes_max: settings.replaced_bytes_max,
            memory,
            budget: Budget::new(settings.capacity_bytes),
            blocks: Mutex::default(),
            written_bytes: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
        });
        let replayed = shared.replay(settings.threads.max(1))?;
        let (mut senders, mut threads) = (Vec::new(), Vec::new());
        for _ in 0..settings.threads.max(1) {
            let (sender, jobs) = mpsc::channel();
            let worker = Worker::new(shared.clone(), jobs);
            let thread = std::thread::Builder::new().name("buffer-disk".into());
            threads.push(thread.spawn(move || worker.run())?);
            senders.push(sender);
        }
        Ok((Disk { shared, patience: settings.patience, senders, threads }, replayed))
    }

    /// All blocks that the PFS does not have.
    pub fn owed(&self) -> Vec<Owed> {
        let blocks: Vec<_> = self.shared.blocks.lock().values().cloned().collect();
        blocks.iter().map(|block| block.owed()).collect()
    }

    fn sender_of(&self, block: &BlockName) -> &mpsc::Sender<Job> {
        let hash = block.epoch.wrapping_add(block.block).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        &self.senders[(hash >> 32) as usize % self.senders.len()]
    }

    /// Hands a job to the thread of a block.
    fn send(&self, block: &BlockName, job: Job) -> Result<(), String> {
        self.sender_of(block).send(job).map_err(|_| "its disk threads ended".to_owned())
    }

    fn block(&self, name: &BlockName) -> Arc<Block> {
        let mut blocks = self.shared.blocks.lock();
        blocks.entry(*name).or_insert_with(|| Arc::new(Block::new(*name))).clone()
    }

    fn known(&self, name: &BlockName) -> Option<Arc<Block>> {
        self.shared.blocks.lock().get(name).cloned()
    }

    /// Puts a packet in the queue of its block.
    fn queue(
        &self,
        key: &PacketKey,
        flags: u32,
        value: &Arc<Value>,
        room: crate::memory::Room,
    ) -> Result<Arc<Block>, String> {
        loop {
            let block = self.block(&key.block);
            let mut state = block.state.lock();
            if state.is_gone {
                continue; // it was settled in this moment
            }
            if let Some(reason) = &state.failed {
                return Err(reason.clone());
            }
            let number = state.next_number();
            let none = Entry { number, place: None, written: 0 };
            state.packets.entry(key.packet).or_insert(none).number = number;
            let packet = worker::Packet { number, key: *key, flags, value: value.clone() };
            // In the order of the numbers.
            self.send(&key.block, Job::Write { block: block.clone(), packet, room })?;
            drop(state);
            return Ok(block);
        }
    }

    fn sync(&self, block: Arc<Block>) -> Result<(), String> {
        let (done, answer) = mpsc::channel();
        let name = block.name;
        self.send(&name, Job::Sync { block, done })?;
        answer.recv().map_err(|_| "its disk threads ended".to_owned())?
    }
}

impl Keeper for Disk {
    fn keep(
        &self,
        key: &PacketKey,
        flags: u32,
        value: &Arc<Value>,
        is_sync: bool,
    ) -> Result<(), String> {
        let length = value.bytes().len() + format::RECORD_BYTES;
        let room = self.shared.budget.take(length, self.patience, || false);
        let room = room.map_err(|Full(usage)| {
            format!(
                "full: {} of {} bytes of its disk are owed to the PFS",
                usage.used_bytes, usage.capacity_bytes
            )
        })?;
        let block = self.queue(key, flags, value, room)?;
        if is_sync { self.sync(block) } else { Ok(()) }
    }

    fn removed(&self, key: &PacketKey) -> bool {
        let Some(block) = self.known(&key.block) else { return false };
        let mut state = block.state.lock();
        if state.is_gone || state.packets.remove(&key.packet).is_none() {
            return false;
        }
        state.next_number();
        let _ = self.send(&key.block, Job::Remove { block: block.clone(), packet: key.packet });
        true
    }

    fn settled(&self, name: &BlockName) {
        let Some(block) = self.shared.blocks.lock().remove(name) else { return };
        let mut state = block.state.lock();
        state.is_gone = true;
        state.packets.clear();
        let _ = self.send(name, Job::Settle { block: block.clone() });
    }

    fn fetch(&self, key: &PacketKey) -> Result<Option<Fetched>, String> {
        let Some(block) = self.known(&key.block) else { return Ok(None) };
        let entry = || block.state.lock().packets.get(&key.packet).copied();
        let mut found = entry();
        loop {
            // What is in the queue is in memory.
            let written = found.filter(|entry| entry.written == entry.number);
            let Some(Entry { number, place: Some(place), .. }) = written else { return Ok(None) };
            let read = self.shared.files.read(&key.block, &place);
            let now = entry();
            match read {
                Ok(bytes) => return Ok(Some(Fetched { bytes, flags: place.flags, number })),
                // It was replaced, or its file written anew, in this moment.
                Err(_) if now != found => found = now,
                Err(error) => return Err(format!("reading it from the disk: {error}")),
            }
        }
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
}

impl Shared {
    /// Reads all files that are there, by some threads.
    fn replay(&self, threads: usize) -> io::Result<Replayed> {
        let names = Mutex::new(self.files.names()?);
        let replayed = Mutex::new(Replayed::default());
        std::thread::scope(|scope| -> io::Result<()> {
            let work = || -> io::Result<()> {
                loop {
                    let Some(name) = names.lock().pop() else { return Ok(()) };
                    self.replay_file(&name, &replayed)?;
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

    fn replay_file(&self, name: &str, replayed: &Mutex<Replayed>) -> io::Result<()> {
        let scanned = match replay::scan(&self.files.open_name(name)?)? {
            replay::Found::Block(scanned) => scanned,
            replay::Found::Nothing => {
                self.files.remove_name(name);
                return Ok(());
            }
            replay::Found::Unknown => {
                replayed.lock().damaged.push(format!("{name}: its first bytes"));
                return Ok(());
            }
        };
        let of = scanned.packets.values().map(|place| u64::from(place.length));
        {
            let mut replayed = replayed.lock();
            replayed.blocks += 1;
            replayed.bytes += of.sum::<u64>();
            replayed.damaged.extend(scanned.damaged.iter().map(|what| format!("{name}: {what}")));
        }
        let room = self.budget.hold(scanned.end);
        let block = Arc::new(Block::replayed(scanned, room));
        self.blocks.lock().insert(block.name, block);
        Ok(())
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
