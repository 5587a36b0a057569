//! A bounded memory of blocks that are gone and of when they were last seen. A slot is 32 bits: a
//! 12-bit fingerprint and a 20-bit time. So an answer is wrong once in about five hundred; policies
//! may only use it for priorities.

const BUCKET_SLOTS: usize = 8;
const TIME_BITS: u32 = 20;
const TIME_MASK: u32 = (1 << TIME_BITS) - 1;

/// Recently departed blocks.
#[derive(Default)]
pub(crate) struct Ghosts {
    slots: Vec<u32>,
    /// Ticks per unit of stored time, as a power of two.
    unit_shift: u32,
}

impl Ghosts {
    /// Makes room for about `count` departed blocks. What is remembered is lost when the size
    /// changes by more than a third.
    pub fn resize(&mut self, count: u32) {
        let slots = (count as usize).next_multiple_of(BUCKET_SLOTS).max(BUCKET_SLOTS * 4);
        let near = slots * 2 / 3..=slots * 3 / 2;
        if near.contains(&self.slots.len()) {
            return;
        }
        self.slots = vec![0; slots];
        let span_ticks = (slots as u32).saturating_mul(4);
        self.unit_shift = (32 - span_ticks.leading_zeros()).saturating_sub(TIME_BITS);
    }

    /// Remembers that `key` was last seen at `tick`; forgets the oldest of its bucket.
    pub fn remember(&mut self, key: u64, tick: u32, now: u32) {
        let unit_shift = self.unit_shift;
        let age = |slot: u32| age_units(slot, now, unit_shift);
        let Some(bucket) = self.bucket(key) else { return };
        let oldest = bucket
            .iter_mut()
            .max_by_key(|slot| if **slot == 0 { u32::MAX } else { age(**slot) })
            .expect("a bucket has slots");
        *oldest = fingerprint(key) << TIME_BITS | ((tick >> unit_shift) & TIME_MASK);
    }

    /// Forgets `key` and tells how many ticks ago it was last seen.
    pub fn recall(&mut self, key: u64, now: u32) -> Option<u32> {
        let unit_shift = self.unit_shift;
        let wanted = fingerprint(key);
        let slot = self.bucket(key)?.iter_mut().find(|slot| **slot >> TIME_BITS == wanted)?;
        let age = age_units(*slot, now, unit_shift) << unit_shift;
        *slot = 0;
        Some(age)
    }

    pub fn bookkeeping_bytes(&self) -> u64 {
        (self.slots.capacity() * size_of::<u32>()) as u64
    }

    fn bucket(&mut self, key: u64) -> Option<&mut [u32]> {
        let buckets = self.slots.len() / BUCKET_SLOTS;
        let first = (((key >> 32) * buckets as u64) >> 32) as usize * BUCKET_SLOTS;
        (buckets > 0).then(|| &mut self.slots[first..first + BUCKET_SLOTS])
    }
}

fn age_units(slot: u32, now: u32, unit_shift: u32) -> u32 {
    (now >> unit_shift).wrapping_sub(slot) & TIME_MASK
}

/// Never zero, so that an empty slot matches nothing.
fn fingerprint(key: u64) -> u32 {
    (key as u32 >> TIME_BITS).max(1)
}
