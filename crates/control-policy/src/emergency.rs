//! Emergencies, which are worse than a demand: headroom nearly gone, tasks that stall, limits that
//! are hit, pages swapped out. A state that no store can cure is never one: a job at its own limit,
//! or stores that are at their guaranteed part.

use super::bounds::{Bounds, MILLISECOND_NS};
use super::estimate::Estimate;
use super::{Limit, Parameters, Snapshot};

/// An emergency is over this long after its last cause.
const QUIET_NS: u64 = 100 * MILLISECOND_NS;
/// Growth waits this long after a stall, and after files were read again.
const STALL_BRAKE_NS: u64 = 500 * MILLISECOND_NS;
const REFAULT_BRAKE_NS: u64 = 1_000 * MILLISECOND_NS;
/// Files that are read again for this long are a working set that does not fit.
const STARVED_NS: u64 = 5_000 * MILLISECOND_NS;
/// A group is near its limit where less than this part of it is free of what cannot be dropped.
const NEAR_DIVISOR: u64 = 8;
/// Share of time in which a task waited for memory that counts as a stall.
const STALL_SHARE: f64 = 0.01;
/// Pages swapped out per second that count although memory is not scarce: 40 MB/s. Fewer are idle
/// pages that the kernel puts aside, as with compressed swap.
const SWAPS_PER_S: f64 = 10_000.0;
/// Pages read again per second that count, and least number at once.
const REFAULTS_PER_S: f64 = 10_000.0;
const REFAULTS_MIN: u64 = 64;

/// Release rate while none was measured: pages of 4 KiB by one thread.
const RELEASE_PRIOR_BYTES_PER_S: f64 = 5e9;

/// What counters of the kernel did since the last snapshot.
#[derive(Default)]
pub(super) struct Events {
    some_us: Option<u64>,
    full_us: Option<u64>,
    swapped_pages: Option<u64>,
    refaulted_pages: Option<u64>,
    refaults_read_ns: Option<u64>,
    hits: Option<u64>,
    stalled_until_ns: u64,
    refaulted_until_ns: u64,
    /// Since when files are read again and again although they were in memory.
    refaulted_since_ns: Option<u64>,
    /// All tasks waited for memory.
    pub full: bool,
    /// Pages were swapped out for want of memory.
    pub swapped: bool,
    /// A control group that holds store pages hit its limit.
    pub hit: bool,
}

impl Events {
    /// Takes in the counters of `snapshot`, `dt_s` seconds after the last. Where the node's memory
    /// is not `in_use`, page cache included, the kernel reclaims for a group's own limit, or what
    /// is idle: neither is a matter of the stores.
    pub(super) fn update(&mut self, snapshot: &Snapshot, in_use: bool, dt_s: f64) {
        let at = snapshot.at_ns;
        let some = rise(&mut self.some_us, snapshot.pressure.map(|pressure| pressure.some_us));
        let full = rise(&mut self.full_us, snapshot.pressure.map(|pressure| pressure.full_us));
        let refaulted = rise(&mut self.refaulted_pages, snapshot.refaulted_pages);
        // The counter is read less often than a decision is made.
        let read_ns = snapshot.events_at_ns.unwrap_or(at);
        let before_ns = self.refaults_read_ns.replace(read_ns).unwrap_or(read_ns);
        let since_s = read_ns.saturating_sub(before_ns) as f64 / 1e9;
        self.full = full > 0;
        let swapped = rise(&mut self.swapped_pages, snapshot.swapped_out_pages);
        self.swapped = swapped > 0 && (in_use || swapped as f64 > SWAPS_PER_S * since_s.max(dt_s));
        // A group of some of the stores is relieved by those alone.
        let holds = |limit: &&Limit| limit.holds_store && limit.charges_all(&snapshot.stores);
        let holders = || snapshot.limits.iter().filter(holds);
        let hits = holders().fold(0, |sum: u64, limit| sum.saturating_add(limit.hits));
        // A group's limit is also hit by page cache, which the kernel drops without harm.
        let near = holders().any(is_near);
        self.hit = rise(&mut self.hits, Some(hits)) > 0 && near;
        if some as f64 > STALL_SHARE * dt_s * 1e6 {
            self.stalled_until_ns = at.saturating_add(STALL_BRAKE_NS);
        }
        if in_use && refaulted >= REFAULTS_MIN && refaulted as f64 > REFAULTS_PER_S * since_s {
            self.refaulted_until_ns = at.saturating_add(REFAULT_BRAKE_NS);
        }
        self.refaulted_since_ns = match at < self.refaulted_until_ns {
            true => self.refaulted_since_ns.or(Some(at)),
            false => None,
        };
    }

    /// Whether growth should wait. Stalls count only where memory is `scarce`: with plenty of it
    /// they come from a job at its own limit.
    pub(super) fn stalled(&self, at: u64, scarce: bool) -> bool {
        at < self.refaulted_until_ns || (scarce && at < self.stalled_until_ns)
    }

    /// Whether jobs read files again and again that were in memory, for longer than a moment.
    pub(super) fn is_page_cache_starved(&self, at: u64) -> bool {
        self.refaulted_since_ns.is_some_and(|since| at.saturating_sub(since) > STARVED_NS)
    }
}

/// Whether a group is near its limit by what cannot be dropped.
pub(super) fn is_near(limit: &Limit) -> bool {
    limit.limit_bytes.saturating_sub(limit.used_bytes) <= limit.limit_bytes / NEAR_DIVISOR
}

/// Growth of a counter; none where it was not readable, or started again.
pub(super) fn rise(before: &mut Option<u64>, now: Option<u64>) -> u64 {
    let rise = before.zip(now).map_or(0, |(before, now)| now.saturating_sub(before));
    *before = now.or(*before);
    rise
}

/// State of the emergency.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Now {
    /// New bytes are refused.
    pub active: bool,
    /// It should have been over by now: more must go than the demand asks for.
    pub late: bool,
}

/// Recognises emergencies.
#[derive(Default)]
pub(super) struct Emergency {
    since_ns: Option<u64>,
    until_ns: u64,
    due_ns: u64,
}

impl Emergency {
    /// Weighs one snapshot. `before` is the last target.
    #[expect(clippy::too_many_arguments, reason = "one call, all of it needed")]
    pub(super) fn update(
        &mut self,
        snapshot: &Snapshot,
        estimate: &Estimate,
        bounds: &Bounds,
        events: &Events,
        headroom: u64,
        before: u64,
        p: &Parameters,
    ) -> Now {
        let at = snapshot.at_ns;
        let used = estimate.demand_bytes.saturating_add(bounds.stored);
        let left = snapshot.memory_total_bytes.saturating_sub(used);
        let cause = left < headroom / 2 || (events.full && left < headroom) || events.hit;
        let can_give = bounds.stored > bounds.floor || before > bounds.floor;
        if !can_give {
            *self = Emergency::default();
            return Now::default();
        }
        if cause {
            self.until_ns = at.saturating_add(QUIET_NS);
            if self.since_ns.is_none() {
                self.since_ns = Some(at);
                self.due_ns =
                    at.saturating_add(expected_ns(snapshot, headroom.saturating_sub(left), p));
            }
        } else if at >= self.until_ns {
            self.since_ns = None;
        }
        // What was asked for and does not come is not made to come by asking for more, unless
        // there is another store to ask.
        let lacking = headroom.saturating_sub(left);
        let is_asked = match snapshot.stores.len() {
            1 => bounds.under_way > 0 && bounds.under_way >= lacking,
            _ => snapshot.stores.iter().any(|store| store.failed) && bounds.under_way > 0,
        };
        Now { active: self.since_ns.is_some(), late: cause && at > self.due_ns && !is_asked }
    }
}

/// Time within which `bytes` should be back, twice over.
fn expected_ns(snapshot: &Snapshot, bytes: u64, p: &Parameters) -> u64 {
    let action_ms = p.interval_ms.saturating_mul(3).saturating_add(p.actuation_delay_ms);
    let action_ns = action_ms.min(1 << 30) * MILLISECOND_NS;
    let rate = super::headroom::release_bytes_per_s(snapshot);
    let release_s = bytes as f64 / rate.map_or(RELEASE_PRIOR_BYTES_PER_S, |rate| rate as f64);
    2 * (action_ns + (release_s.min(60.0) * 1e9) as u64)
}
