//! The control law of the policy `tidepool`: an absolute target from the demand of jobs, shrinking
//! at once, growing slowly and late. It needs no model of the actuator, because it never integrates
//! its own commands: what is under way changes neither the demand nor the target.
//!
//! `target = total - H - x - max(0, g (T + t_act) - H / 4)`, with H from [`super::headroom_bytes`],
//! x the demand and g its growth; the lowest of the node, of control groups that hold store pages,
//! and of every NUMA node. It refuses to promise held or unwritten bytes, to grow while the demand
//! grows or tasks stall, and to believe sensors that are late or contradict each other.

use super::adaptive_interval::next_ms;
use super::asked::Asked;
use super::bounds::{Bounds, MILLISECOND_NS, action_s, step_bytes, unwritten_bytes_per_s};
use super::climb::Climb;
use super::emergency::{Emergency, Events};
use super::estimate::{Estimate, Estimator, signed};
use super::group_bounds::{gives_to_group, group_room_bytes, is_group_short};
use super::headroom::{Learned, headroom_bytes, release_bytes_per_s};
use super::hold::Hold;
use super::limits::{Ceiling, Ceilings, Foresight};
use super::{Alarm, Decision, Level, Parameters, Policy, Reason, Snapshot, StoreState};

const SECOND_NS: u64 = 1_000_000_000;
/// How long an alarm of a moment stays visible.
const ALARM_NS: u64 = SECOND_NS;
/// Growth that is braked for this long although there is room is said.
const BRAKED_NS: u64 = 60 * SECOND_NS;
const SWAP_ALARM_NS: u64 = 10 * SECOND_NS;
/// Time without a sensor after which stores fall to their guaranteed part.
const BLIND_NS: u64 = SECOND_NS;
/// Longest time by which slow spilling moves the feed-forward ahead, in seconds.
const WRITE_BACK_AHEAD_S: f64 = 1.0;

/// The policy `tidepool`.
#[derive(Default)]
pub(super) struct Tidepool {
    estimator: Estimator,
    hold: Hold,
    learned: Learned,
    ceilings: Ceilings,
    climb: Climb,
    asked: Asked,
    events: Events,
    emergency: Emergency,
    target_bytes: Option<u64>,
    headroom_bytes: Option<u64>,
    /// Capacities that the last snapshot showed.
    present_bytes: Option<u64>,
    last_ns: Option<u64>,
    limited_until_ns: u64,
    swapped_until_ns: u64,
    /// Since when nothing but the brake keeps the stores from growing.
    braked_since_ns: Option<u64>,
}

/// Time by which a growth of the demand is foreseen beyond the next command, because the bytes that
/// it will need must be written first.
fn horizon_s(snapshot: &Snapshot, slope: u64) -> f64 {
    let unwritten = snapshot.sum(|store| store.memory_only_bytes);
    let spill = unwritten_bytes_per_s(snapshot);
    if unwritten == 0 || slope == 0 {
        return 0.0;
    }
    let ready = snapshot.stored_bytes().saturating_sub(snapshot.sum(|s| s.floor_bytes()));
    let needed = slope as f64 * WRITE_BACK_AHEAD_S - ready as f64;
    (needed.max(0.0) / spill as f64).min(WRITE_BACK_AHEAD_S)
}

impl Policy for Tidepool {
    fn decide(&mut self, snapshot: &Snapshot, p: &Parameters) -> Decision {
        let at = snapshot.at_ns;
        let dt_s = self.last_ns.map_or(0.0, |last| at.saturating_sub(last) as f64 / 1e9);
        self.last_ns = Some(at);
        let bounds = Bounds::of(snapshot, p, self.target_bytes);
        let present = snapshot.sum(|store| store.capacity_bytes);
        let last = self.target_bytes.unwrap_or(present);
        let before = last.min(bounds.max);
        // A step of ours may be under way.
        let step = step_bytes(dt_s, p).saturating_mul(4).saturating_add(bounds.band);
        let before = self.asked.left_of(before, snapshot, step);
        let estimate = self.estimator.update(snapshot, p);
        let headroom = headroom_bytes(snapshot.memory_total_bytes, p);
        let in_use = snapshot.free_bytes.is_none_or(|free| free < headroom.saturating_mul(2));
        self.events.update(snapshot, in_use, dt_s);
        self.update_hold(at, &estimate, headroom, &bounds, p);
        let climb = self.climb.update(at, estimate.demand_bytes, bounds.band);
        let foresight = Foresight {
            slope_s: action_s(p) + horizon_s(snapshot, estimate.slope_bytes_per_s),
            climb_bytes_per_s: climb,
            climb_s: horizon_s(snapshot, climb),
        };
        let ceiling = self.ceilings.lowest(snapshot, &estimate, &bounds, headroom, foresight, dt_s);
        let extra = self.learned.update(estimate.slope_bytes_per_s, dt_s, snapshot, p);
        let emergency =
            self.emergency.update(snapshot, &estimate, &bounds, &self.events, headroom, before, p);
        let mut wanted = ceiling;
        if emergency.late {
            wanted = Ceiling {
                bytes: wanted.bytes.saturating_sub(signed(headroom)),
                reason: Reason::Emergency,
            };
        }
        let level = self.level(&estimate, emergency.active, p);
        let (target, reason) = if level == Level::Safe {
            self.blind(&estimate, wanted, before, &bounds, at)
        } else if wanted.bytes < signed(before) {
            self.shrink(wanted, &bounds, at, p)
        } else {
            let ceiling = self.growth_ceiling(snapshot, headroom + extra, &bounds);
            // Somebody else raised the capacities: no reason to take back what still fits. A store
            // that does not give back shows the same capacity as before.
            let found = bounds.stored.min(present).min(wanted.bytes.max(0) as u64);
            let raised = self.present_bytes.is_none_or(|before| present > before);
            let is_more = raised && found >= before.saturating_add(bounds.block);
            let before = if is_more { found } else { before };
            self.grow(before, ceiling, &estimate, &bounds, emergency.active, dt_s, snapshot, p)
        };
        let target = target.max(bounds.floor).min(bounds.max);
        let reason = told(reason, last > bounds.max, snapshot);
        let is_braked = reason == Reason::Brake;
        self.braked_since_ns = is_braked.then(|| self.braked_since_ns.unwrap_or(at));
        self.target_bytes = Some(target);
        self.asked.note(target, snapshot);
        self.present_bytes = Some(present);
        let rests = matches!(reason, Reason::Steady | Reason::Hold | Reason::LeasedCeiling);
        let calm = rests && level == Level::Normal;
        let room = if calm { self.room_bytes(snapshot, &estimate, wanted, &bounds) } else { 0 };
        Decision {
            target_bytes: target,
            demand_bytes: estimate.demand_bytes,
            slope_bytes_per_s: estimate.slope_bytes_per_s,
            reason,
            level,
            alarms: self.alarms(snapshot, &estimate, wanted, &bounds, p),
            next_ms: next_ms(room, snapshot.processors, p),
        }
    }
}

impl Tidepool {
    /// Bytes that jobs and stores may take before the stores must give; none while anything moves
    /// or is in doubt.
    fn room_bytes(
        &self,
        snapshot: &Snapshot,
        estimate: &Estimate,
        wanted: Ceiling,
        bounds: &Bounds,
    ) -> u64 {
        let moves = estimate.slope_bytes_per_s > 0 || estimate.rising || bounds.under_way > 0;
        // What must be written first is asked for long before the threshold.
        let unwritten = snapshot.sum(|store| store.memory_only_bytes) > 0;
        if moves || unwritten || estimate.disagree || estimate.stale_ns > 0 {
            return 0;
        }
        let node = wanted.bytes - signed(bounds.stored);
        let groups = group_room_bytes(snapshot, self.headroom_bytes.unwrap_or(0));
        node.min(self.ceilings.node_room_bytes).min(groups).max(0) as u64
    }

    /// Notes the demand, and what growth must wait for.
    fn update_hold(
        &mut self,
        at: u64,
        estimate: &Estimate,
        headroom: u64,
        bounds: &Bounds,
        p: &Parameters,
    ) {
        if estimate.stale_ns == 0 {
            self.hold.observe(at, estimate.demand_bytes, bounds.band, p);
        }
        if self.events.swapped {
            // Memory that is free because pages were swapped out is not free.
            self.hold.restart(at);
            self.swapped_until_ns = at.saturating_add(SWAP_ALARM_NS);
        }
        if self.headroom_bytes.replace(headroom).is_some_and(|before| before != headroom) {
            // A changed headroom moves the target: that is no flapping of jobs.
            self.hold.restart(at);
        }
    }

    fn level(&self, estimate: &Estimate, emergency: bool, p: &Parameters) -> Level {
        if is_stale(estimate, p) {
            Level::Safe
        } else if emergency {
            Level::Emergency
        } else {
            Level::Normal
        }
    }

    /// Sensors are stale: no growth, and after a while nothing but the guaranteed part. What the
    /// second reading still shows is followed meanwhile.
    fn blind(
        &mut self,
        estimate: &Estimate,
        wanted: Ceiling,
        before: u64,
        bounds: &Bounds,
        at: u64,
    ) -> (u64, Reason) {
        self.hold.restart(at);
        if estimate.stale_ns > BLIND_NS {
            return (bounds.floor, Reason::Sensors);
        }
        // What is not used yet stays allowed: an empty store would fall to nothing and then wait.
        (before.min(wanted.bytes.max(0) as u64), Reason::Sensors)
    }

    /// Down to the target at once, whole blocks toward the job.
    fn shrink(&mut self, to: Ceiling, b: &Bounds, at: u64, p: &Parameters) -> (u64, Reason) {
        let to_bytes = to.bytes.max(0) as u64;
        let target = (to_bytes - to_bytes % b.block).max(b.floor).min(b.max);
        if target < b.stored {
            self.hold.shrunk(at, b.band, p);
        } else {
            self.hold.took_unused(at);
        }
        (target, to.reason)
    }

    /// How far the store may grow: the room that the highest demand of the hold left, less a band.
    fn growth_ceiling(&mut self, snapshot: &Snapshot, headroom: u64, bounds: &Bounds) -> u64 {
        let peak = self.hold.peak_bytes(snapshot.at_ns);
        let room = snapshot.memory_total_bytes.saturating_sub(headroom).saturating_sub(peak);
        let limits = self.ceilings.limits_bytes.max(0) as u64;
        room.min(limits).saturating_sub(bounds.band).min(bounds.max)
    }

    #[expect(clippy::too_many_arguments, reason = "one call, all of it needed")]
    fn grow(
        &mut self,
        before: u64,
        ceiling: u64,
        estimate: &Estimate,
        b: &Bounds,
        emergency: bool,
        dt_s: f64,
        snapshot: &Snapshot,
        p: &Parameters,
    ) -> (u64, Reason) {
        // Capacity that is not used stays: the target follows the demand, not the capacity, so a
        // burst takes stored bytes as soon as it needs them, and a cold load is not held up.
        if emergency {
            return (before, Reason::Emergency);
        }
        if ceiling <= before {
            return (before, Reason::Steady);
        }
        if !self.hold.is_over(snapshot.at_ns) {
            return (before, Reason::Hold);
        }
        if self.ceilings.node_short {
            return (before, Reason::MemoryNode);
        }
        let moving = estimate.slope_bytes_per_s > 0 || estimate.rising;
        let doubtful = estimate.disagree || estimate.stale_ns > 0;
        let scarce = ceiling < b.stored.saturating_add(b.band.saturating_mul(4));
        let stalled = self.events.stalled(snapshot.at_ns, scarce);
        if moving || doubtful || stalled {
            return (before, Reason::Brake);
        }
        let target = before.saturating_add(step_bytes(dt_s, p)).min(ceiling);
        self.hold.grew(target - before);
        (target, Reason::Growth)
    }

    fn alarms(
        &mut self,
        snapshot: &Snapshot,
        estimate: &Estimate,
        wanted: Ceiling,
        bounds: &Bounds,
        p: &Parameters,
    ) -> Vec<Alarm> {
        let at = snapshot.at_ns;
        let slope = estimate.slope_bytes_per_s;
        let shrinking = wanted.bytes < signed(bounds.stored);
        let is_unwritten = wanted.bytes < signed(bounds.kept);
        let rate = give_bytes_per_s(snapshot, is_unwritten);
        if shrinking && rate.is_some_and(|rate| slope > rate) {
            self.limited_until_ns = at.saturating_add(ALARM_NS);
        }
        let mut alarms = Vec::new();
        let mut raise = |condition: bool, alarm| {
            if condition {
                alarms.push(alarm);
            }
        };
        raise(at < self.limited_until_ns, Alarm::ActuatorLimited);
        raise(estimate.disagree, Alarm::SensorDisagreement);
        raise(is_stale(estimate, p), Alarm::SensorStale);
        let at_minimum = wanted.bytes < signed(bounds.floor) || is_group_short(snapshot, p);
        raise(at_minimum, Alarm::AtMinimum);
        raise(at < self.swapped_until_ns, Alarm::SwapOut);
        let is_ours = bounds.stored > bounds.floor;
        raise(is_ours && self.events.is_page_cache_starved(at), Alarm::PageCacheStarved);
        let braked_ns = self.braked_since_ns.map_or(0, |since| at.saturating_sub(since));
        raise(braked_ns > BRAKED_NS, Alarm::GrowthBraked);
        raise(snapshot.stores.iter().any(|store| store.failed), Alarm::StoreFailed);
        alarms
    }
}

/// Rate at which the next bytes come back; `None` where it is not known. Where they must be written
/// first, that is the rate of writing them down.
fn give_bytes_per_s(snapshot: &Snapshot, is_unwritten: bool) -> Option<u64> {
    let release = release_bytes_per_s(snapshot);
    let spill = unwritten_bytes_per_s(snapshot);
    let spill = (is_unwritten && spill > 0).then_some(spill);
    release.into_iter().chain(spill).min()
}

/// The reason to tell, where a limit of a group, or a resize by hand, moves stores while the node
/// itself is calm.
fn told(reason: Reason, is_lowered: bool, snapshot: &Snapshot) -> Reason {
    let is_still = matches!(reason, Reason::Steady | Reason::Hold);
    let is_calm = is_still || reason == Reason::Growth;
    if is_calm && gives_to_group(snapshot) {
        return Reason::Limit;
    }
    match is_still && is_lowered {
        true if snapshot.stores.iter().any(|store| store.is_limited) => Reason::Limit,
        // That is no finding of ours.
        true if is_at_leased_ceiling(snapshot) => Reason::LeasedCeiling,
        true => Reason::Ceiling,
        false if reason == Reason::Steady && is_at_leased_ceiling(snapshot) => {
            Reason::LeasedCeiling
        }
        false => reason,
    }
}

/// Whether a store has all that a leased ceiling lets it have.
fn is_at_leased_ceiling(snapshot: &Snapshot) -> bool {
    let is_held = |store: &StoreState| store.capacity_bytes >= store.capacity_max_bytes;
    snapshot.stores.iter().any(|store| store.is_leased && is_held(store))
}

/// Whether more than three readings in a row are missing.
fn is_stale(estimate: &Estimate, p: &Parameters) -> bool {
    estimate.stale_ns > 3 * p.interval_ms.clamp(1, 1 << 30) * MILLISECOND_NS
}
