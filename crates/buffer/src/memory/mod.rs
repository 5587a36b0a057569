//! [`Memory`]: what a server holds, by key.
//!
//! Items that the PFS has, or that it never gets, are evicted for others, those that were not used
//! for longest first. What is owed to the PFS stays until it is settled or removed.

mod budget;
mod item;
mod spare;

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use lru::LruCache;
use parking_lot::Mutex;

pub use self::budget::{Budget, Full, Room, Usage, VALUE_OVERHEAD_BYTES};
pub use self::item::{Item, Value};

const SHARDS: usize = 16;

type Key = Box<[u8]>;

/// See the module's documentation.
pub struct Memory {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
    budget: Arc<Budget>,
    begun: Instant,
    last_cas: AtomicU64,
    /// Which shard is to give something up next.
    next_shard: AtomicUsize,
    items: AtomicU64,
    evicted: AtomicU64,
}

struct Shard {
    clean: LruCache<Key, Item>,
    owed: HashMap<Key, Item>,
}

/// The place of one key. Nobody else gets at it meanwhile.
pub struct Slot<'a> {
    memory: &'a Memory,
    shard: &'a mut Shard,
    key: &'a [u8],
    now: Duration,
    has_put: bool,
}

impl Memory {
    /// Of so many bytes.
    pub fn new(capacity_bytes: u64) -> Self {
        let shard = || Shard { clean: LruCache::unbounded(), owed: HashMap::new() };
        Memory {
            shards: std::array::from_fn(|_| Mutex::new(shard())),
            hasher: RandomState::new(),
            budget: Budget::new(capacity_bytes),
            begun: Instant::now(),
            last_cas: AtomicU64::new(0),
            next_shard: AtomicUsize::new(0),
            items: AtomicU64::new(0),
            evicted: AtomicU64::new(0),
        }
    }

    /// Time since it was made.
    pub fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    /// What is in use.
    pub fn usage(&self) -> Usage {
        self.budget.usage()
    }

    /// Items that are there.
    pub fn items(&self) -> u64 {
        self.items.load(Ordering::Relaxed)
    }

    /// Items that were evicted so far.
    pub fn evicted(&self) -> u64 {
        self.evicted.load(Ordering::Relaxed)
    }

    /// A number that no change had before.
    pub fn next_cas(&self) -> u64 {
        self.last_cas.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// Has numbers of changes begin here, where they are lower: before the first change.
    pub fn number_from(&self, first: u64) {
        self.last_cas.fetch_max(first, Ordering::Relaxed);
    }

    /// Takes room for a value; evicts others for it, and waits where only what is owed is left.
    ///
    /// # Errors
    /// No room in time.
    pub fn take_room(&self, length: usize, patience: Duration) -> Result<Room, Full> {
        self.budget.take(length, patience, || self.evict_one())
    }

    /// Sets how much it may hold, and evicts what is over that. Returns the bytes by which it still
    /// holds more, because they are owed or being sent.
    pub fn set_capacity(&self, bytes: u64) -> u64 {
        self.budget.set_capacity(bytes);
        self.evict_excess();
        self.budget.drop_spare();
        self.usage().used_bytes.saturating_sub(bytes)
    }

    /// Does `act` with the place of a key.
    pub fn with<T>(&self, key: &[u8], act: impl FnOnce(&mut Slot<'_>) -> T) -> T {
        let shard = self.hasher.hash_one(key) as usize % SHARDS;
        let mut shard = self.shards[shard].lock();
        let now = self.now();
        let mut slot = Slot { memory: self, shard: &mut shard, key, now, has_put: false };
        slot.forget_expired();
        let done = act(&mut slot);
        let has_put = slot.has_put;
        drop(shard);
        // What comes may have taken its room before there was less of it.
        if has_put {
            self.evict_excess();
        }
        done
    }

    /// Removes what `goes`, but for what is owed.
    pub fn flush(&self, goes: impl Fn(&[u8]) -> bool) {
        for shard in &self.shards {
            let clean = &mut shard.lock().clean;
            let gone: Vec<Key> =
                clean.iter().map(|(key, _)| key).filter(|key| goes(key)).cloned().collect();
            gone.iter().for_each(|key| drop(clean.pop(key)));
            self.items.fetch_sub(gone.len() as u64, Ordering::Relaxed);
        }
    }

    /// Calls `each` for every item, shard by shard: none that stays is left out.
    pub fn for_each(&self, mut each: impl FnMut(&[u8], &Item)) {
        let now = self.now();
        for shard in &self.shards {
            let shard = shard.lock();
            let all = shard.clean.iter().chain(&shard.owed);
            all.filter(|(_, item)| !item.is_expired(now)).for_each(|(key, item)| each(key, item));
        }
    }

    /// Evicts what is over the capacity, and keeps no buffers of it.
    fn evict_excess(&self) {
        let is_over = || {
            let usage = self.usage();
            usage.used_bytes > usage.capacity_bytes
        };
        let was_over = is_over();
        while is_over() && self.evict_one() {}
        if was_over {
            self.budget.drop_spare();
        }
    }

    /// Evicts the item of some shard that was not used for longest; whether there was one.
    fn evict_one(&self) -> bool {
        for _ in 0..SHARDS {
            let at = self.next_shard.fetch_add(1, Ordering::Relaxed) % SHARDS;
            let evicted = self.shards[at].lock().clean.pop_lru();
            if evicted.is_some() {
                self.items.fetch_sub(1, Ordering::Relaxed);
                self.evicted.fetch_add(1, Ordering::Relaxed);
                return true;
            }
        }
        false
    }
}

impl Slot<'_> {
    /// Time since the start.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// The item that is there, which counts as used from now on.
    pub fn touch(&mut self) -> Option<&mut Item> {
        match self.shard.owed.get_mut(self.key) {
            Some(item) => Some(item),
            None => self.shard.clean.get_mut(self.key),
        }
    }

    /// The item that is there.
    pub fn peek(&mut self) -> Option<&mut Item> {
        match self.shard.owed.get_mut(self.key) {
            Some(item) => Some(item),
            None => self.shard.clean.peek_mut(self.key),
        }
    }

    /// Puts an item there, in the place of the one that is.
    pub fn put(&mut self, item: Item) {
        self.remove();
        self.has_put = true;
        self.memory.items.fetch_add(1, Ordering::Relaxed);
        if item.is_owed {
            self.memory.budget.owe(item.value.counted_bytes());
            self.shard.owed.insert(self.key.into(), item);
        } else {
            self.shard.clean.put(self.key.into(), item);
        }
    }

    /// Removes the item; whether there was one.
    pub fn remove(&mut self) -> Option<Item> {
        let removed = match self.shard.owed.remove(self.key) {
            Some(item) => {
                self.memory.budget.settle(item.value.counted_bytes());
                Some(item)
            }
            None => self.shard.clean.pop(self.key),
        };
        if removed.is_some() {
            self.memory.items.fetch_sub(1, Ordering::Relaxed);
        }
        removed
    }

    /// The PFS has the item by now: it may be evicted. Whether it was owed.
    pub fn settle(&mut self) -> bool {
        let is_owed = self.shard.owed.contains_key(self.key);
        if is_owed && let Some(item) = self.remove() {
            self.put(Item { is_owed: false, ..item });
        }
        is_owed
    }

    /// What is owed does not expire.
    fn forget_expired(&mut self) {
        let now = self.now;
        if self.shard.clean.peek(self.key).is_some_and(|item| item.is_expired(now)) {
            self.remove();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: usize = 100;
    const BYTES: u64 = LENGTH as u64 + VALUE_OVERHEAD_BYTES;

    fn put(memory: &Memory, key: &str, is_owed: bool) -> Result<(), Full> {
        let room = memory.take_room(LENGTH, Duration::ZERO)?;
        let value = Arc::new(Value::new(vec![7; LENGTH], room));
        memory.with(key.as_bytes(), |slot| {
            slot.put(Item {
                value,
                flags: 0,
                expires: None,
                cas: 1,
                accessed: slot.now(),
                is_hit: false,
                is_stale: false,
                is_won: false,
                is_key_binary: false,
                is_owed,
            });
        });
        Ok(())
    }

    fn has(memory: &Memory, key: &str) -> bool {
        memory.with(key.as_bytes(), |slot| slot.peek().is_some())
    }

    #[test]
    fn what_is_owed_stays_and_the_rest_makes_room() {
        let memory = Memory::new(20 * BYTES);
        (0..10).for_each(|at| put(&memory, &format!("owed{at}"), true).unwrap());
        (0..100).for_each(|at| put(&memory, &format!("clean{at}"), false).unwrap());
        assert_eq!((memory.items(), memory.evicted()), (20, 90));
        assert_eq!(memory.usage().owed_bytes, 10 * BYTES);
        assert!((0..10).all(|at| has(&memory, &format!("owed{at}"))));
        (10..20).for_each(|at| put(&memory, &format!("owed{at}"), true).unwrap());
        let Full(usage) = put(&memory, "more", false).unwrap_err();
        assert_eq!(usage.owed_bytes, usage.capacity_bytes);
        memory.with(b"owed3", |slot| slot.settle());
        put(&memory, "more", false).unwrap();
        assert!(!has(&memory, "owed3") && has(&memory, "owed4"));
        memory.flush(|_| true);
        assert_eq!((memory.items(), memory.usage().used_bytes), (19, 19 * BYTES));
    }

    #[test]
    fn a_smaller_capacity_evicts_and_tells_what_cannot_be_freed() {
        let memory = Memory::new(10 * BYTES);
        (0..3).for_each(|at| put(&memory, &format!("owed{at}"), true).unwrap());
        (0..7).for_each(|at| put(&memory, &format!("clean{at}"), false).unwrap());
        assert_eq!(memory.set_capacity(5 * BYTES), 0);
        assert_eq!((memory.items(), memory.usage().used_bytes), (5, 5 * BYTES));
        assert_eq!(memory.set_capacity(BYTES), 2 * BYTES);
    }

    #[test]
    fn a_smaller_capacity_gives_the_memory_of_values_back() {
        const LENGTH: usize = 100 << 10;
        let memory = Memory::new(1 << 20);
        let longer = || {
            let room = memory.take_room(LENGTH, Duration::ZERO).unwrap();
            drop(Value::new(Vec::with_capacity(LENGTH + 1), room));
        };
        let next = || {
            let room = memory.take_room(LENGTH, Duration::ZERO).unwrap();
            room.buffer(LENGTH).capacity()
        };
        longer();
        assert_eq!(next(), LENGTH + 1, "it is used again");
        longer();
        memory.set_capacity(1 << 19);
        assert_eq!(next(), LENGTH, "it is not there any more");
    }

    #[test]
    fn what_took_its_room_before_there_was_less_does_not_stay() {
        let memory = Memory::new(2 * BYTES);
        put(&memory, "before", false).unwrap();
        let room = memory.take_room(LENGTH, Duration::ZERO).unwrap();
        memory.set_capacity(0);
        let value = Arc::new(Value::new(vec![7; LENGTH], room));
        memory.with(b"late", |slot| slot.put(Item::plain(value, 0, 1, slot.now())));
        assert_eq!((memory.items(), memory.usage().used_bytes), (0, 0));
    }

    #[test]
    fn a_value_counts_until_nobody_has_it() {
        let memory = Memory::new(10 * BYTES);
        put(&memory, "key", true).unwrap();
        let sending = memory.with(b"key", |slot| slot.touch().map(|item| item.value.clone()));
        memory.with(b"key", |slot| slot.remove());
        assert_eq!((memory.usage().owed_bytes, memory.usage().used_bytes), (0, BYTES));
        drop(sending);
        assert_eq!(memory.usage().used_bytes, 0);
    }

    #[test]
    fn what_expired_is_gone_but_what_is_owed_is_not() {
        let memory = Memory::new(10 * BYTES);
        for (key, is_owed) in [("owed", true), ("clean", false)] {
            put(&memory, key, is_owed).unwrap();
            let expire = |slot: &mut Slot<'_>| {
                let now = slot.now();
                slot.peek().unwrap().expires = Some(now);
            };
            memory.with(key.as_bytes(), expire);
        }
        assert!(has(&memory, "owed") && !has(&memory, "clean"));
        assert_eq!(memory.items(), 1);
    }
}
