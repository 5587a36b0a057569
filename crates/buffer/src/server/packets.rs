//! Changes of packets, in memory and at the keeper in one order; and packets that are not in
//! memory.

use std::collections::BTreeSet;
use std::io::{self, ErrorKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};

use super::fences::Fence;
use super::storing::{self, Change, Changed};
use super::{Fetched, Kept, Shared};
use crate::key::{BlockName, LAST_BLOCK, PACKETS_MAX, PacketKey};
use crate::memory::{Item, Room, Value};

const STRIPES: usize = 256;
/// Values that are sent without being kept, at a time.
const PASSING_MAX: usize = 16;
/// How long memory is waited for before a packet is sent without being kept.
const ROOM_PATIENCE: Duration = Duration::from_millis(200);
/// How long another one is waited for that is sent without being kept.
const PASSING_PATIENCE: Duration = Duration::from_secs(30);

/// Locks of blocks.
#[derive(Debug)]
pub struct Stripes([Mutex<()>; STRIPES]);

impl Default for Stripes {
    fn default() -> Self {
        Stripes(std::array::from_fn(|_| Mutex::default()))
    }
}

impl Stripes {
    fn take(&self, block: &BlockName) -> MutexGuard<'_, ()> {
        let hash = block.epoch.wrapping_add(block.block).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.0[(hash >> 40) as usize % STRIPES].lock()
    }

    /// Waits for all who have one now.
    fn pass_all(&self) {
        self.0.iter().for_each(|stripe| drop(stripe.lock()));
    }
}

/// How many values are being sent that count nowhere.
#[derive(Debug, Default)]
pub struct Passing {
    count: Mutex<usize>,
    ended: Condvar,
}

/// One of them.
pub struct Passes(Arc<Shared>);

impl Drop for Passes {
    fn drop(&mut self) {
        *self.0.passing.count.lock() -= 1;
        self.0.passing.ended.notify_one();
    }
}

/// A packet that is asked for.
pub enum Brought {
    /// It is in memory, or nowhere.
    AsItIs,
    /// It is to be sent, and not kept.
    Passing(Box<Item>, Passes),
}

/// A packet that came.
pub struct Arrived<'a> {
    /// Its key.
    pub key: PacketKey,
    /// How it is stored.
    pub change: &'a Change,
    /// Room at the keeper, of what is owed.
    pub room: Option<Room>,
    /// Its connection.
    pub fence: &'a Fence,
}

impl Shared {
    /// Stores a packet; the reason where nothing was changed, or it is not as safe as it is to be.
    ///
    /// # Errors
    /// Its client gave up the connection by which it came.
    pub fn store(
        &self,
        arrived: Arrived<'_>,
        value: Value,
        is_sync: bool,
    ) -> io::Result<Result<Changed, String>> {
        let Arrived { key, change, room, fence } = arrived;
        let mut was_kept = false;
        let changed = {
            let is_fenced = fence.lock();
            if *is_fenced {
                return Err(ErrorKind::ConnectionAborted.into());
            }
            let _stripe = self.stripes.take(&key.block);
            if change.is_owed && self.forgotten.has(key.block.epoch) {
                return Ok(Err("it is late: nobody needs its block any more".to_owned()));
            }
            if change.is_owed
                && let Err(reason) = self.keeper.check(&key.block)
            {
                return Ok(Err(reason));
            }
            let name = key.to_string();
            let Ok(changed) = storing::store(&self.memory, name.as_bytes(), change, value) else {
                return Ok(Err("out of memory".to_owned()));
            };
            if let Changed::Made(number, value) = &changed {
                match change.is_owed {
                    true => {
                        let flags = change.flags;
                        self.keeper.keep(Kept { key: &key, flags, value, number: *number }, room);
                    }
                    false => was_kept = self.keeper.removed(&key),
                }
            }
            changed
        };
        let synced = if is_sync || was_kept { self.keeper.sync(&key.block) } else { Ok(()) };
        Ok(synced.map(|()| changed))
    }

    /// Removes a packet; whether there was one, or why it cannot be. It is gone for good once its
    /// block is synced.
    ///
    /// # Errors
    /// Its client gave up the connection.
    pub fn remove_packet(
        &self,
        key: &PacketKey,
        fence: &Fence,
    ) -> io::Result<Result<bool, String>> {
        let is_fenced = fence.lock();
        if *is_fenced {
            return Err(ErrorKind::ConnectionAborted.into());
        }
        let _stripe = self.stripes.take(&key.block);
        // Of a block that is broken nothing is forgotten but the whole.
        if let Err(reason) = self.keeper.check(&key.block) {
            return Ok(Err(reason));
        }
        let was_there = self.memory.with(key.to_string().as_bytes(), |slot| slot.remove());
        let was_kept = self.keeper.removed(key);
        Ok(Ok(was_there.is_some() || was_kept))
    }

    /// The PFS has a block, of up to so many packets: they may be evicted. How many there were, or
    /// why that is not noted for good.
    pub fn settle(&self, block: &BlockName, packets: u32) -> Result<usize, String> {
        let count = {
            let _stripe = self.stripes.take(block);
            let kept = self.keeper.settled(block);
            let more = kept.iter().copied().filter(|packet| *packet >= packets);
            let settle = |packet: &u32| {
                let key = PacketKey { block: *block, packet: *packet }.to_string();
                self.memory.with(key.as_bytes(), |slot| slot.settle())
            };
            let in_memory = (0..packets).chain(more).filter(settle).count();
            in_memory.max(kept.len())
        };
        self.keeper.sync(block)?;
        Ok(count)
    }

    /// Nobody needs the blocks of a time in memory but the last one, and nothing more of it is
    /// stored; how many there were, or why some may come back.
    pub fn forget(&self, epoch: u64) -> Result<usize, String> {
        self.forgotten.add(epoch);
        // What is being stored now is found below.
        self.stripes.pass_all();
        let mut blocks: BTreeSet<BlockName> = self.keeper.blocks_of(epoch).into_iter().collect();
        if self.keeper.place() == "memory" {
            self.memory.for_each(|key, _| {
                let packet = PacketKey::parse(key).filter(|it| it.block.epoch == epoch);
                blocks.extend(packet.map(|packet| packet.block));
            });
        }
        blocks.retain(|block| block.block != LAST_BLOCK);
        let packets = if self.keeper.place() == "memory" { PACKETS_MAX } else { 0 };
        let settled = blocks.iter().map(|block| self.settle(block, packets));
        // All of them, also after one could not be.
        let settled: Vec<_> = settled.collect();
        settled.into_iter().collect::<Result<Vec<_>, _>>().map(|all| all.len())
    }

    /// Brings a packet into memory that is kept elsewhere.
    ///
    /// # Errors
    /// It cannot be had, for this reason.
    pub fn bring(self: &Arc<Self>, key: &[u8]) -> Result<Brought, String> {
        let Some(packet) = PacketKey::parse(key) else { return Ok(Brought::AsItIs) };
        loop {
            if self.memory.with(key, |slot| slot.touch().is_some()) {
                return Ok(Brought::AsItIs);
            }
            let Some(length) = self.keeper.length(&packet) else {
                // It may have been evicted in between, or be broken.
                return match self.keeper.fetch(&packet)? {
                    None if self.memory.with(key, |slot| slot.peek().is_none()) => {
                        Ok(Brought::AsItIs)
                    }
                    _ => continue,
                };
            };
            let room = self.memory.take_room(length, ROOM_PATIENCE);
            let passes = if room.is_err() { Some(self.passes()?) } else { None };
            let Some(Fetched { bytes, flags, number }) = self.keeper.fetch(&packet)? else {
                continue;
            };
            let (Ok(room), true) = (room, bytes.len() == length) else {
                let Some(passes) = passes else { continue };
                let value = Arc::new(Value::passing(bytes));
                let item = Item::plain(value, flags, number, self.memory.now());
                return Ok(Brought::Passing(Box::new(item), passes));
            };
            let value = Arc::new(Value::new(bytes, room));
            let _stripe = self.stripes.take(&packet.block);
            // A newer one may have come, and been evicted.
            if self.keeper.is_current(&packet, number) {
                self.memory.with(key, |slot| {
                    if slot.peek().is_none() {
                        slot.put(Item::plain(value, flags, number, slot.now()));
                    }
                });
            }
        }
    }

    /// Looks an item up by `find`, wherever it is; with what it holds while it is sent, where it is
    /// not kept in memory.
    pub fn look_up(
        self: &Arc<Self>,
        key: &[u8],
        find: impl Fn(&Self) -> Option<Item>,
    ) -> Result<(Option<Item>, Option<Passes>), String> {
        loop {
            match self.bring(key)? {
                Brought::Passing(item, passes) => {
                    self.note_passing();
                    return Ok((Some(*item), Some(passes)));
                }
                Brought::AsItIs => {
                    let found = find(self);
                    if found.is_some() || !self.is_elsewhere(key) {
                        return Ok((found, None));
                    }
                }
            }
        }
    }

    /// Whether a packet that is not in memory is at the keeper: it was evicted in this moment.
    pub fn is_elsewhere(&self, key: &[u8]) -> bool {
        PacketKey::parse(key).is_some_and(|packet| self.keeper.length(&packet).is_some())
    }

    /// Waits until a value may be sent that is not kept.
    fn passes(self: &Arc<Self>) -> Result<Passes, String> {
        let until = Instant::now() + PASSING_PATIENCE;
        let mut count = self.passing.count.lock();
        while *count >= PASSING_MAX {
            if self.passing.ended.wait_until(&mut count, until).timed_out() {
                return Err("no memory to read it from the disk".to_owned());
            }
        }
        *count += 1;
        Ok(Passes(self.clone()))
    }

    /// Counts a packet that was found without memory for it.
    pub fn note_passing(&self) {
        self.counters.get.fetch_add(1, Ordering::Relaxed);
        self.counters.hits.fetch_add(1, Ordering::Relaxed);
    }
}
