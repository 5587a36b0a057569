//! Who holds which blocks, of all files of which this node is the home.
//!
//! A file costs a slot of 24 bytes in an open-addressing table that grows by quarters; that is all
//! for a file of up to 32 blocks with one holder. Others have [`Entries`] beside it. A file is
//! known by its hash, a version by its change time and 12 bits more: what collides costs a miss.

use crate::entries::{self, Entries};

/// Tables, by the upper bits of the hash, so that growing one takes little time.
const SHARDS: usize = 64;
/// Slots of a shard at least.
const SLOTS_MIN: usize = 8;
/// Holder that says: the payload is the place of [`Entries`].
const SPILLED: u16 = u16::MAX;
/// Chunks whose blocks fit into a slot.
const INLINE_CHUNKS: u32 = 2;
/// Ages that are told apart; the oldest files are forgotten first.
const AGES: usize = 16;

/// A version as the table knows it; the greater one is newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Version {
    pub ctime_ns: i64,
    /// 12 bits.
    pub tag: u16,
}

#[derive(Clone, Copy)]
struct Slot {
    /// Hash of the file; 0: empty.
    key: u64,
    ctime_ns: i64,
    /// A bit for each block, or the place of entries.
    payload: u32,
    holder: u16,
    /// Tag of the version (12 bits) and the epoch of the last use (4 bits).
    tag_epoch: u16,
}

const EMPTY: Slot = Slot { key: 0, ctime_ns: 0, payload: 0, holder: 0, tag_epoch: 0 };

impl Slot {
    const fn version(&self) -> Version {
        Version { ctime_ns: self.ctime_ns, tag: self.tag_epoch >> 4 }
    }

    const fn age(&self, epoch: u16) -> usize {
        (epoch.wrapping_sub(self.tag_epoch) & 15) as usize
    }

    const fn touch(&mut self, epoch: u16) {
        self.tag_epoch = (self.tag_epoch & !15) | (epoch & 15);
    }
}

#[derive(Default)]
struct Shard {
    slots: Vec<Slot>,
    files: usize,
    spilled: Vec<Entries>,
    /// Free places of `spilled`.
    free: Vec<u32>,
}

/// Locations of blocks, in bounded memory.
pub(crate) struct Table {
    shards: Vec<Shard>,
    bytes_max: usize,
    /// Memory of entries that are spilled, without their places.
    spilled_bytes: usize,
    /// Memory of slots and of places of entries.
    slot_bytes: usize,
    entries: u64,
    epoch: u16,
    /// What was added since the epoch began.
    epoch_bytes: usize,
    /// Shard that forgets next.
    hand: usize,
    /// Files forgotten for want of memory.
    pub forgotten: u64,
}

/// A place in the walk over the table.
#[derive(Clone, Copy, Default)]
pub(crate) struct Cursor {
    shard: usize,
    slot: usize,
    /// Slots of the shard when its walk began; another number means that files moved.
    slots: usize,
}

impl Table {
    pub(crate) fn new(bytes_max: usize) -> Self {
        let shards = (0..SHARDS).map(|_| Shard::default()).collect();
        Self {
            shards,
            bytes_max: bytes_max.max(1 << 16),
            spilled_bytes: 0,
            slot_bytes: 0,
            entries: 0,
            epoch: 0,
            epoch_bytes: 0,
            hand: 0,
            forgotten: 0,
        }
    }

    /// Sets the blocks of a chunk that the member holds, none with `bits` 0. False when a newer
    /// version is known; a newer one than known makes the known one forgotten.
    pub(crate) fn set(
        &mut self,
        key: u64,
        version: Version,
        member: u16,
        chunk: u32,
        bits: u16,
    ) -> bool {
        let shard = shard_of(key);
        let Some(at) = self.shards[shard].find(key) else {
            if bits != 0 {
                let at = self.insert(shard, key, version);
                self.set_at(shard, at, member, chunk, bits);
                self.shrink();
            }
            return true;
        };
        let known = self.shards[shard].slots[at].version();
        if version < known {
            return false;
        }
        if version > known {
            self.clear_at(shard, at);
            let slot = &mut self.shards[shard].slots[at];
            slot.ctime_ns = version.ctime_ns;
            slot.tag_epoch = version.tag << 4;
        }
        let epoch = self.epoch;
        self.shards[shard].slots[at].touch(epoch);
        self.set_at(shard, at, member, chunk, bits);
        self.shrink();
        true
    }

    /// Forgets what the member holds of the file.
    pub(crate) fn forget(&mut self, key: u64, member: u16) {
        let shard = shard_of(key);
        if let Some(at) = self.shards[shard].find(key) {
            self.retain_at(shard, at, |holder| holder != member);
        }
    }

    /// Forgets members that `keep` does not name.
    pub(crate) fn retain_members(&mut self, keep: impl Fn(u16) -> bool) {
        for shard in 0..SHARDS {
            let mut at = 0;
            while at < self.shards[shard].slots.len() {
                let slot = self.shards[shard].slots[at];
                // What a removal moves here is looked at next.
                if slot.key == 0 || !self.retain_at(shard, at, &keep) {
                    at += 1;
                }
            }
        }
        self.tighten();
    }

    /// The slot of a file, and its shard, if this is the version known.
    fn slot_of(&self, key: u64, version: Version) -> Option<(&Shard, &Slot)> {
        let shard = &self.shards[shard_of(key)];
        let slot = &shard.slots[shard.find(key)?];
        (slot.version() == version).then_some((shard, slot))
    }

    /// Calls `each` with holders of the chunk and their blocks, if this is the version known.
    pub(crate) fn chunk(
        &self,
        key: u64,
        version: Version,
        chunk: u32,
        mut each: impl FnMut(u16, u16),
    ) {
        let Some((shard, slot)) = self.slot_of(key, version) else { return };
        if slot.holder == SPILLED {
            let entries = &shard.spilled[slot.payload as usize];
            entries.chunk(chunk).for_each(|(member, bits)| each(member, bits));
        } else if let bits @ 1.. = inline_bits(slot, chunk) {
            each(slot.holder, bits);
        }
    }

    /// Calls `each` with chunk, holder and blocks, in this order, if this is the version known.
    pub(crate) fn file(
        &self,
        key: u64,
        version: Version,
        mut each: impl FnMut(u32, u16, u16) -> bool,
    ) {
        let Some((shard, slot)) = self.slot_of(key, version) else { return };
        if slot.holder == SPILLED {
            let entries = &shard.spilled[slot.payload as usize];
            let _ = entries.iter().all(|(chunk, member, bits)| each(chunk, member, bits));
        } else {
            let chunks = (0..INLINE_CHUNKS).map(|chunk| (chunk, inline_bits(slot, chunk)));
            let _ = chunks
                .filter(|&(_, bits)| bits != 0)
                .all(|(chunk, bits)| each(chunk, slot.holder, bits));
        }
    }

    /// Marks the file as used.
    pub(crate) fn touch(&mut self, key: u64) {
        let epoch = self.epoch;
        let shard = &mut self.shards[shard_of(key)];
        if let Some(at) = shard.find(key) {
            shard.slots[at].touch(epoch);
        }
    }

    /// Walks on over at most `budget` slots and forgets files that `keep` refuses; `None` at the
    /// end of the walk.
    pub(crate) fn sweep(
        &mut self,
        mut cursor: Cursor,
        mut budget: usize,
        mut keep: impl FnMut(u64) -> bool,
    ) -> Option<Cursor> {
        while cursor.shard < SHARDS {
            let slots = self.shards[cursor.shard].slots.len();
            if cursor.slot > 0 && cursor.slots != slots {
                cursor.slot = 0;
            }
            cursor.slots = slots;
            if cursor.slot >= slots {
                cursor = Cursor { shard: cursor.shard + 1, slot: 0, slots: 0 };
                continue;
            }
            if budget == 0 {
                return Some(cursor);
            }
            let key = self.shards[cursor.shard].slots[cursor.slot].key;
            budget -= 1;
            if key != 0 && !keep(key) {
                self.remove(cursor.shard, cursor.slot);
            } else {
                cursor.slot += 1;
            }
        }
        self.tighten();
        None
    }

    pub(crate) const fn bytes(&self) -> usize {
        self.slot_bytes + self.spilled_bytes
    }

    pub(crate) fn files(&self) -> usize {
        self.shards.iter().map(|shard| shard.files).sum()
    }

    /// Blocks, each as often as it is held.
    pub(crate) const fn entries(&self) -> u64 {
        self.entries
    }

    /// A new slot for the file, without holders.
    fn insert(&mut self, shard: usize, key: u64, version: Version) -> usize {
        let slots = self.shards[shard].slots.len();
        if (self.shards[shard].files + 1) * 5 > slots * 4 {
            let grown = (slots + slots / 4 + 1).max(SLOTS_MIN);
            let more_bytes = (grown - slots) * size_of::<Slot>();
            if slots > 2 * SLOTS_MIN && self.bytes() + more_bytes > self.bytes_max {
                self.forget_oldest(shard);
            } else {
                self.resize(shard, grown);
            }
        }
        self.aged(size_of::<Slot>());
        let tag_epoch = version.tag << 4 | (self.epoch & 15);
        let slot = Slot { key, ctime_ns: version.ctime_ns, tag_epoch, ..EMPTY };
        let shard = &mut self.shards[shard];
        shard.files += 1;
        shard.place(slot)
    }

    /// The epoch moves on with each eighth of the memory that is written.
    const fn aged(&mut self, bytes: usize) {
        self.epoch_bytes += bytes;
        if self.epoch_bytes >= self.bytes_max / 8 {
            self.epoch_bytes = 0;
            self.epoch = self.epoch.wrapping_add(1);
        }
    }

    /// Sets the member's blocks in the slot; the slot goes when nobody holds anything.
    fn set_at(&mut self, shard: usize, at: usize, member: u16, chunk: u32, bits: u16) {
        let slot = &mut self.shards[shard].slots[at];
        if slot.holder != SPILLED && slot.payload == 0 {
            slot.holder = member;
        }
        if slot.holder == member && chunk < INLINE_CHUNKS {
            let before = inline_bits(slot, chunk);
            let shift = chunk * 16;
            slot.payload = slot.payload & !(0xFFFF << shift) | u32::from(bits) << shift;
            self.count(before, bits);
        } else if slot.holder != SPILLED && bits == 0 {
            // Nothing of this member and chunk is known.
        } else {
            if slot.holder != SPILLED {
                self.spill(shard, at);
            }
            let place = self.shards[shard].slots[at].payload as usize;
            let entries = &mut self.shards[shard].spilled[place];
            let bytes_before = entries.bytes();
            let before = entries.set(chunk, member, bits);
            self.spilled_bytes = self.spilled_bytes - bytes_before + entries.bytes();
            self.count(before, bits);
            if bits == 0 {
                self.unspill(shard, at);
            } else if before == 0 {
                self.aged(8);
            }
        }
        self.drop_if_empty(shard, at);
    }

    const fn count(&mut self, before: u16, after: u16) {
        self.entries = self.entries - before.count_ones() as u64 + after.count_ones() as u64;
    }

    /// Moves the blocks of the slot to entries beside it.
    fn spill(&mut self, shard: usize, at: usize) {
        let slot = self.shards[shard].slots[at];
        let mut entries = Entries::new();
        for chunk in 0..INLINE_CHUNKS {
            entries.set(chunk, slot.holder, inline_bits(&slot, chunk));
        }
        self.spilled_bytes += entries.bytes();
        let shard = &mut self.shards[shard];
        let place = match shard.free.pop() {
            Some(place) => {
                shard.spilled[place as usize] = entries;
                place
            }
            None => {
                if shard.spilled.len() == shard.spilled.capacity() {
                    let more = shard.spilled.len() / 8 + 4;
                    shard.spilled.reserve_exact(more);
                    self.slot_bytes += more * size_of::<Entries>();
                }
                shard.spilled.push(entries);
                u32::try_from(shard.spilled.len() - 1).expect("bounded by memory")
            }
        };
        let slot = &mut shard.slots[at];
        (slot.holder, slot.payload) = (SPILLED, place);
    }

    /// Moves entries that fit back into the slot.
    fn unspill(&mut self, shard: usize, at: usize) {
        let slot = self.shards[shard].slots[at];
        let entries = &self.shards[shard].spilled[slot.payload as usize];
        let few = entries.few();
        if few.len() > INLINE_CHUNKS as usize || few.is_empty() && !entries.is_empty() {
            return;
        }
        let (mut holder, mut payload) = (0, 0);
        for (index, &entry) in few.iter().enumerate() {
            let (chunk, member, bits) = entries::parts(entry);
            if chunk >= INLINE_CHUNKS || index > 0 && member != holder {
                return;
            }
            holder = member;
            payload |= u32::from(bits) << (chunk * 16);
        }
        self.free_entries(shard, slot.payload);
        let slot = &mut self.shards[shard].slots[at];
        (slot.holder, slot.payload) = (holder, payload);
    }

    fn free_entries(&mut self, shard: usize, place: u32) {
        let shard = &mut self.shards[shard];
        let entries = std::mem::replace(&mut shard.spilled[place as usize], Entries::new());
        self.spilled_bytes -= entries.bytes();
        shard.free.push(place);
    }

    /// Forgets the blocks of the slot.
    fn clear_at(&mut self, shard: usize, at: usize) {
        let slot = self.shards[shard].slots[at];
        let held: u32 = if slot.holder == SPILLED {
            let entries = &self.shards[shard].spilled[slot.payload as usize];
            entries.iter().map(|(_, _, bits)| bits.count_ones()).sum()
        } else {
            slot.payload.count_ones()
        };
        self.entries -= u64::from(held);
        if slot.holder == SPILLED {
            self.free_entries(shard, slot.payload);
        }
        let slot = &mut self.shards[shard].slots[at];
        (slot.holder, slot.payload) = (0, 0);
    }

    /// Keeps members that `keep` names; true when the slot went.
    fn retain_at(&mut self, shard: usize, at: usize, keep: impl Fn(u16) -> bool) -> bool {
        let slot = self.shards[shard].slots[at];
        if slot.holder == SPILLED {
            let entries = &mut self.shards[shard].spilled[slot.payload as usize];
            let bytes_before = entries.bytes();
            let gone: u32 = (entries.iter().filter(|&(_, member, _)| !keep(member)))
                .map(|(_, _, bits)| bits.count_ones())
                .sum();
            if gone == 0 {
                return false;
            }
            entries.retain_members(keep);
            self.spilled_bytes = self.spilled_bytes - bytes_before + entries.bytes();
            self.entries -= u64::from(gone);
            self.unspill(shard, at);
        } else if !keep(slot.holder) {
            self.clear_at(shard, at);
        }
        self.drop_if_empty(shard, at)
    }

    fn drop_if_empty(&mut self, shard: usize, at: usize) -> bool {
        let slot = &self.shards[shard].slots[at];
        let empty = slot.holder != SPILLED && slot.payload == 0;
        if empty {
            self.remove(shard, at);
        }
        empty
    }

    fn remove(&mut self, shard: usize, at: usize) {
        self.clear_at(shard, at);
        self.shards[shard].take_out(at);
    }

    fn resize(&mut self, shard: usize, slots: usize) {
        let shard = &mut self.shards[shard];
        let old = std::mem::replace(&mut shard.slots, vec![EMPTY; slots]);
        self.slot_bytes =
            self.slot_bytes + slots * size_of::<Slot>() - old.len() * size_of::<Slot>();
        for slot in old.into_iter().filter(|slot| slot.key != 0) {
            shard.place(slot);
        }
    }

    /// Forgets files until the memory is as small as it must be.
    fn shrink(&mut self) {
        let mut steps = 0;
        while self.bytes() > self.bytes_max && steps < SHARDS * AGES {
            self.hand = (self.hand + 1) % SHARDS;
            self.forget_oldest(self.hand);
            self.tighten_shard(self.hand);
            steps += 1;
        }
    }

    /// Forgets the oldest eighth of a shard's files, at least one.
    fn forget_oldest(&mut self, shard: usize) {
        let mut by_age = [0_usize; AGES];
        for slot in self.shards[shard].slots.iter().filter(|slot| slot.key != 0) {
            by_age[slot.age(self.epoch)] += 1;
        }
        let mut wanted = (self.shards[shard].files / 8).max(1);
        for age in (0..AGES).rev() {
            let mut at = 0;
            let mut left = by_age[age].min(wanted);
            while left > 0 && at < self.shards[shard].slots.len() {
                let slot = self.shards[shard].slots[at];
                if slot.key != 0 && slot.age(self.epoch) == age {
                    self.remove(shard, at);
                    self.forgotten += 1;
                    left -= 1;
                    wanted -= 1;
                } else {
                    at += 1;
                }
            }
        }
    }

    fn tighten(&mut self) {
        (0..SHARDS).for_each(|shard| self.tighten_shard(shard));
    }

    /// Gives back the memory of slots and places that are not used any more.
    fn tighten_shard(&mut self, shard: usize) {
        let Shard { slots, files, .. } = &self.shards[shard];
        let wanted = (files * 3 / 2).max(SLOTS_MIN);
        if slots.len() > 2 * SLOTS_MIN && wanted < slots.len() * 3 / 4 {
            self.resize(shard, wanted);
        }
        let shard = &mut self.shards[shard];
        if shard.free.len() == shard.spilled.len() && !shard.free.is_empty() {
            self.slot_bytes -= shard.spilled.capacity() * size_of::<Entries>();
            (shard.spilled, shard.free) = (Vec::new(), Vec::new());
        }
    }
}

impl Shard {
    fn ideal(&self, key: u64) -> usize {
        // The upper bits have chosen the shard; the rest, stretched, chooses the slot.
        ((u128::from(key << 6) * self.slots.len() as u128) >> 64) as usize
    }

    fn next(&self, at: usize) -> usize {
        if at + 1 == self.slots.len() { 0 } else { at + 1 }
    }

    fn find(&self, key: u64) -> Option<usize> {
        if self.slots.is_empty() {
            return None;
        }
        let mut at = self.ideal(key);
        // A fifth of the slots is empty at least.
        while self.slots[at].key != 0 {
            if self.slots[at].key == key {
                return Some(at);
            }
            at = self.next(at);
        }
        None
    }

    fn place(&mut self, slot: Slot) -> usize {
        let mut at = self.ideal(slot.key);
        while self.slots[at].key != 0 {
            at = self.next(at);
        }
        self.slots[at] = slot;
        at
    }

    /// Empties a slot and moves those behind it up, so that no search stops early.
    fn take_out(&mut self, at: usize) {
        self.files -= 1;
        let mut hole = at;
        let mut next = self.next(at);
        while self.slots[next].key != 0 {
            let ideal = self.ideal(self.slots[next].key);
            // The slot may go to the hole unless its ideal place lies behind the hole.
            let stays = if hole <= next {
                hole < ideal && ideal <= next
            } else {
                hole < ideal || ideal <= next
            };
            if !stays {
                self.slots[hole] = self.slots[next];
                hole = next;
            }
            next = self.next(next);
        }
        self.slots[hole] = EMPTY;
    }
}

const fn shard_of(key: u64) -> usize {
    (key >> 58) as usize
}

const fn inline_bits(slot: &Slot, chunk: u32) -> u16 {
    if chunk < INLINE_CHUNKS { (slot.payload >> (chunk * 16)) as u16 } else { 0 }
}
