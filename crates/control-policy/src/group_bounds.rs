//! [`GroupBounds`]: limits of control groups that some of the stores are charged to and others are
//! not. Memory that such a group lacks is asked of the stores in it alone, because bytes of another
//! store would not help, and take nothing from the group.
//!
//! It lowers the largest capacities of those stores in the snapshot, before a policy sees it. So a
//! policy, the split and the replay of a log need not know of it. The ceiling is that of
//! [`super::limits`]; it is followed down at once, and up after the same hold as the node's.

use super::bounds::{action_s, reachable_bytes, step_bytes};
use super::climb::Climb;
use super::emergency::{is_near, rise};
use super::estimate::signed;
use super::headroom::headroom_bytes;
use super::hold::Hold;
use super::{ControlPolicy, Limit, Parameters, Snapshot, StoreState, split};

/// What is remembered of the groups from one decision to the next.
#[derive(Default)]
pub struct GroupBounds {
    groups: Vec<Group>,
    last_ns: Option<u64>,
    inside: Vec<StoreState>,
    capacities: Vec<u64>,
}

#[derive(Default)]
struct Group {
    /// Bytes that the stores in it may hold together.
    bound_bytes: Option<u64>,
    climb: Climb,
    hold: Hold,
    hits: Option<u64>,
}

impl GroupBounds {
    /// Lowers the largest capacities of stores in `snapshot` to what the limits of their groups
    /// leave. Other policies than Tidepool's know no groups.
    pub fn apply(&mut self, snapshot: &mut Snapshot, p: &Parameters) {
        let at = snapshot.at_ns;
        let dt_s = self.last_ns.map_or(0.0, |last| at.saturating_sub(last) as f64 / 1e9);
        self.last_ns = Some(at);
        if p.policy != ControlPolicy::Tidepool {
            return;
        }
        if self.groups.len() < snapshot.limits.len() {
            self.groups.resize_with(snapshot.limits.len(), Group::default);
        }
        let Snapshot { limits, stores, memory_total_bytes, .. } = snapshot;
        let headroom = headroom_bytes(*memory_total_bytes, p);
        for (limit, group) in limits.iter().zip(&mut self.groups) {
            if !bounds_some(limit, stores) {
                *group = Group::default();
                continue;
            }
            let bound = group.update(limit, stores, headroom, at, dt_s, p);
            lower(limit, stores, bound, &mut self.inside, &mut self.capacities);
        }
    }
}

/// Whether the group holds some of the stores, and not others.
fn bounds_some(limit: &Limit, stores: &[StoreState]) -> bool {
    limit.holds_store && !limit.charges_all(stores) && limit.inside(stores).next().is_some()
}

/// The part of the headroom that a group keeps.
fn part_of(headroom: u64, limit: &Limit) -> u64 {
    headroom.min(limit.limit_bytes / 20)
}

fn sum(limit: &Limit, stores: &[StoreState], part: impl Fn(&StoreState) -> u64) -> u64 {
    limit.inside(stores).map(part).fold(0, u64::saturating_add)
}

impl Group {
    fn update(
        &mut self,
        limit: &Limit,
        stores: &[StoreState],
        headroom: u64,
        at: u64,
        dt_s: f64,
        p: &Parameters,
    ) -> u64 {
        let headroom = part_of(headroom, limit);
        let blocks = limit.inside(stores).map(|store| store.block_bytes);
        let share = p.growth_band_share.max(0.0) * limit.limit_bytes as f64;
        let band = blocks.max().unwrap_or(1).saturating_mul(2).max(share as u64);
        let demand = limit.demand_bytes(stores);
        self.hold.observe(at, demand, band, p);
        let climb = self.climb.update(at, demand, limit.limit_bytes / 200);
        // As of the node: a quarter of the headroom serves what is foreseen.
        let ahead = (climb as f64 * action_s(p)) as u64;
        let ahead = ahead.saturating_sub(headroom / 4);
        let is_hit = rise(&mut self.hits, Some(limit.hits)) > 0 && is_near(limit);
        let more = if is_hit { headroom } else { 0 };
        let room = |demand: u64| {
            let kept = headroom.saturating_add(demand).saturating_add(ahead).saturating_add(more);
            limit.limit_bytes.saturating_sub(kept)
        };
        let ceiling = room(demand);
        let most = sum(limit, stores, |store| store.capacity_max_bytes);
        let before = self.bound_bytes.unwrap_or(ceiling).min(most);
        let bound = if ceiling < before {
            if ceiling < sum(limit, stores, |store| store.resident_bytes) {
                self.hold.shrunk(at, band, p);
            } else {
                self.hold.took_unused(at);
            }
            ceiling
        } else if is_hit || !self.hold.is_over(at) {
            before
        } else {
            let highest = room(self.hold.peak_bytes(at)).saturating_sub(band).min(most);
            let bound = before.saturating_add(step_bytes(dt_s, p)).min(highest).max(before);
            self.hold.grew(bound - before);
            bound
        };
        self.bound_bytes = Some(bound);
        bound.max(sum(limit, stores, |store| reachable_bytes(store, p)))
    }
}

/// Shares the bound among the stores of the group as any other target, as their largest capacities.
fn lower(
    limit: &Limit,
    stores: &mut [StoreState],
    bound: u64,
    inside: &mut Vec<StoreState>,
    capacities: &mut Vec<u64>,
) {
    if bound >= sum(limit, stores, |store| store.capacity_max_bytes) {
        return;
    }
    inside.clear();
    // Without their names, which would be allocations.
    inside.extend(limit.inside(stores).map(|store| StoreState { name: String::new(), ..*store }));
    split(bound, inside, capacities);
    let charged = stores.iter_mut().enumerate().filter(|(place, _)| limit.charges(*place));
    for ((_, store), capacity) in charged.zip(capacities.iter()) {
        if *capacity < store.capacity_max_bytes {
            store.capacity_max_bytes = *capacity;
            store.is_limited = true;
        }
    }
}

/// Whether a store gives back because its group has no room for it.
pub(super) fn gives_to_group(snapshot: &Snapshot) -> bool {
    let gives =
        |store: &StoreState| store.is_limited && store.resident_bytes > store.capacity_max_bytes;
    snapshot.stores.iter().any(gives)
}

/// Bytes that may be taken in the fullest group before its stores must give; the largest number
/// where no group bounds some of the stores.
pub(super) fn group_room_bytes(snapshot: &Snapshot, headroom: u64) -> i64 {
    let bounding = snapshot.limits.iter().filter(|limit| bounds_some(limit, &snapshot.stores));
    let room = bounding.map(|limit| {
        signed(limit.limit_bytes) - signed(part_of(headroom, limit)) - signed(limit.used_bytes)
    });
    room.min().unwrap_or(i64::MAX)
}

/// Whether a group lacks bytes that its stores cannot give.
pub(super) fn is_group_short(snapshot: &Snapshot, p: &Parameters) -> bool {
    let stores = &snapshot.stores;
    let headroom = headroom_bytes(snapshot.memory_total_bytes, p);
    snapshot.limits.iter().filter(|limit| bounds_some(limit, stores)).any(|limit| {
        let kept = sum(limit, stores, |store| reachable_bytes(store, p));
        let wanted = limit.demand_bytes(stores).saturating_add(kept);
        wanted.saturating_add(part_of(headroom, limit)) > limit.limit_bytes
    })
}
