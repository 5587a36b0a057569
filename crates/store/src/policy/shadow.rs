//! What a policy would have kept of a sample of the blocks, without their bytes: a directory of at
//! most some thousand keys, whatever the size of the store.
//!
//! A block is in the sample by its key alone, and the shadow's capacity is the same share of the
//! store's, so distances of reuse shrink with it and hit ratios stay (SHARDS, Waldspurger et al.,
//! FAST 2015).

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hasher};

use super::{Offer, Ranking, block_key};
use crate::config::PolicyKind;

/// Keys are hashes already.
#[derive(Clone, Copy, Default)]
pub(crate) struct KeyHasher(u64);

impl Hasher for KeyHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.0 = self.0.rotate_left(8) ^ u64::from(*byte);
        }
    }

    fn write_u64(&mut self, key: u64) {
        self.0 = key;
    }
}

/// A map of what is a hash already.
pub(crate) type KeyMap<V> = HashMap<u64, V, BuildHasherDefault<KeyHasher>>;

/// The upper half of a key becomes the number of a segment, of which one value means none.
const KEY_MASK: u64 = !(1 << 63);

/// The directory of one policy.
pub(crate) struct Shadow {
    ranking: Ranking,
    resident: KeyMap<u32>,
    capacity: u32,
}

impl Shadow {
    /// An empty one; not of a policy that has shadows itself.
    pub fn new(kind: PolicyKind, capacity: u32) -> Shadow {
        let mut shadow =
            Shadow { ranking: Ranking::new(kind), resident: KeyMap::default(), capacity };
        shadow.resize(capacity);
        shadow
    }

    pub fn resize(&mut self, capacity: u32) {
        self.capacity = capacity;
        self.ranking.set_target(capacity);
        while self.resident.len() as u32 > capacity {
            self.evict_one();
        }
    }

    /// A block is read; whether it would have been there.
    pub fn read(&mut self, key: u64) -> bool {
        let key = key & KEY_MASK;
        if let Some(index) = self.resident.get(&key) {
            self.ranking.note_reference(*index, key);
            return true;
        }
        if self.capacity == 0 {
            return false;
        }
        if self.resident.len() as u32 >= self.capacity {
            self.evict_one();
        }
        let (segment, block) = ((key >> 32) as u32, key as u32);
        let index = self.ranking.insert(segment, block, 0, key);
        self.ranking.note_reference(index, key);
        self.resident.insert(key, index);
        false
    }

    fn evict_one(&mut self) {
        let mut victim = None;
        self.ranking.select(false, |entries, index| {
            if victim.is_some() {
                return Offer::Stop;
            }
            let entry = entries.get(index);
            let key = u64::from(entry.segment) << 32 | u64::from(entry.block);
            victim = Some(key);
            Offer::Take(block_key(key, entry.block))
        });
        victim.map(|key| self.resident.remove(&key));
    }

    pub fn bookkeeping_bytes(&self) -> u64 {
        let slot = size_of::<(u64, u32)>() + 1;
        (self.resident.capacity() * slot) as u64 + self.ranking.bookkeeping_bytes()
    }
}
