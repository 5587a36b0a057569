//! The arbiter: one target for all stores becomes a capacity for each. Stores that give memory
//! back at once are asked first, slow ones only for what is left; bytes that a store has not
//! confirmed still count as held; a failed store is passed over and the others take over.
//!
//! A pure function of its arguments. It never asks for bytes that cannot be given (guaranteed,
//! held, not yet written), and it takes nothing from a store that is not needed.

use super::{StoreSpeed, StoreState};

/// Turns in which stores are asked: whether failed ones, and whether bytes that must be written
/// first count as possible.
const TURNS: [(bool, bool); 3] = [
    (false, false),
    // What must be written first comes late, but it comes.
    (false, true),
    // The last resort: a store that missed a deadline may still obey.
    (true, true),
];

/// Writes into `capacities` how many bytes each of `stores` may hold, so that together they hold
/// at most `target_bytes` once all have obeyed. The sum is above the target only where guaranteed,
/// held, unwritten or failed bytes forbid less. Capacities are whole blocks, rounded toward the
/// job, where the store's own bounds allow it. The buffer is reused: no allocation once it is
/// large enough.
pub fn split(target_bytes: u64, stores: &[StoreState], capacities: &mut Vec<u64>) {
    capacities.clear();
    // The guaranteed part is a store's whether it is used or not.
    let held =
        |store: &StoreState| store.resident_bytes.clamp(store.capacity_min_bytes, ceiling(store));
    capacities.extend(stores.iter().map(held));
    let target = u128::from(target_bytes);
    shrink(sum(capacities).saturating_sub(target), stores, capacities);
    grow(target.saturating_sub(sum(capacities)) as u64, stores, capacities);
}

fn sum(capacities: &[u64]) -> u128 {
    capacities.iter().map(|capacity| u128::from(*capacity)).sum()
}

/// The highest capacity of a store; at least the guaranteed part.
fn ceiling(store: &StoreState) -> u64 {
    store.capacity_max_bytes.max(store.capacity_min_bytes)
}

fn whole_blocks(bytes: u64, store: &StoreState) -> u64 {
    bytes - bytes % store.block_bytes.max(1)
}

/// Takes `need` bytes, by turns, fast stores before slow ones.
fn shrink(mut need: u128, stores: &[StoreState], capacities: &mut [u64]) {
    for (failed, write) in TURNS {
        for speed in [StoreSpeed::Fast, StoreSpeed::Slow] {
            for (store, capacity) in stores.iter().zip(capacities.iter_mut()) {
                if need == 0 {
                    return;
                }
                if store.speed != speed || store.failed != failed {
                    continue;
                }
                let floor = floor(store, write).min(*capacity);
                let least = u128::from(*capacity).saturating_sub(need) as u64;
                let left = whole_blocks(least, store).max(floor);
                need = need.saturating_sub(u128::from(*capacity - left));
                *capacity = left;
            }
        }
    }
}

/// Bytes that a store keeps whatever is asked; those not yet written only where `write` is false.
fn floor(store: &StoreState, write: bool) -> u64 {
    let unwritten = if write { 0 } else { store.memory_only_bytes };
    store.capacity_min_bytes.max(store.held_bytes.saturating_add(unwritten))
}

/// Shares `room` bytes by weight; what rounding and upper bounds leave over goes to the first
/// store that can take a whole block of it.
fn grow(mut room: u64, stores: &[StoreState], capacities: &mut [u64]) {
    let open = |store: &StoreState, capacity: u64| !store.failed && capacity < ceiling(store);
    let weight = |store: &StoreState| u128::from(store.weight.max(1));
    let pairs = || stores.iter().zip(capacities.iter());
    let weights: u128 = pairs().filter(|(s, c)| open(s, **c)).map(|(s, _)| weight(s)).sum();
    let shared = u128::from(room);
    for (store, capacity) in stores.iter().zip(capacities.iter_mut()) {
        if open(store, *capacity) {
            let part = (shared * weight(store) / weights) as u64;
            room = raise(capacity, part, room, store);
        }
    }
    for (store, capacity) in stores.iter().zip(capacities.iter_mut()) {
        if open(store, *capacity) {
            room = raise(capacity, room, room, store);
        }
    }
}

/// Raises a capacity by at most `part` of `room`, to whole blocks; a block that a store holds in
/// part counts as not held where the rest of it has no room. Returns the room that is left.
fn raise(capacity: &mut u64, part: u64, room: u64, store: &StoreState) -> u64 {
    let most = capacity.saturating_add(part).min(ceiling(store));
    let raised = whole_blocks(most, store).max(floor(store, false).min(*capacity));
    let left = room.saturating_add(*capacity).saturating_sub(raised);
    *capacity = raised;
    left
}
