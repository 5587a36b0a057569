//! Estimates the demand of everything but the stores, and its growth, from noisy, late and
//! sometimes wrong sensors. It decides nothing, and it never takes a doubtful sensor for a free
//! node: of two readings that disagree the one that leaves jobs more memory counts.
//!
//! Demand x = total - available - stored, without what is stored in the page cache: that counts as
//! available already. Available memory lies in two ways that matter: freed
//! pages hide in per-CPU lists for minutes, and a sensor can freeze or jump. The second reading,
//! the sum of the kinds of used pages, sees neither; the difference of the two (the gap) is nearly
//! constant, so a sudden change of the gap tells one from the other.

use super::{Parameters, Snapshot};

const SECOND_NS: u64 = 1_000_000_000;
/// Second differences kept for the noise estimate; odd, so that there is a middle one.
const NOISE_SAMPLES: usize = 33;
/// Differences kept for the slope.
const SLOPE_SAMPLES: usize = 16;
/// An uncorroborated jump counts as real when it lasted this long.
const JUMP_ACCEPTED_NS: u64 = SECOND_NS / 2;
/// Time constant of the gap's slow drift, in seconds.
const GAP_DRIFT_S: f64 = 30.0;
/// Rate at which freed pages leave the per-CPU lists at least.
const HIDDEN_DRAIN_BYTES_PER_S: f64 = 4e6;
/// What has not shown up this long after it was freed is hidden; the rest of what was freed is not.
/// Where the lists are counted as available, nothing hides so long: what is missing is used.
const FREED_SETTLED_NS: u64 = SECOND_NS / 5;
/// Steepest growth of a demand that is believed: about what a node's memory can take.
pub(super) const SLOPE_MAX_BYTES_PER_S: f64 = 64e9;
/// Less than this part of the memory is hardly anything: half of the smallest headroom.
const LOW_PART: u64 = 256;
/// Share of time in which a task waited for memory that counts.
const STALLED_SHARE: f64 = 0.01;
/// The kernel keeps at most this part of a zone in per-CPU lists.
const HIDDEN_PART: u64 = 8;

/// What is known of the demand at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Estimate {
    /// Demand in bytes.
    pub demand_bytes: u64,
    /// Growth of the demand in bytes per second; 0 below the noise floor.
    pub slope_bytes_per_s: u64,
    /// Standard deviation of the noise on the demand.
    pub noise_bytes: u64,
    /// The demand rose since the last reading, by more than noise.
    pub rising: bool,
    /// Freed bytes that available memory does not show yet.
    pub hidden_bytes: u64,
    /// Time since the main sensor was last readable and plausible.
    pub stale_ns: u64,
    /// The two readings differ by more than they may.
    pub disagree: bool,
}

/// One plausible reading of both sensors.
#[derive(Clone, Copy)]
struct Reading {
    /// Demand by available memory.
    main: i64,
    /// Demand by kinds of pages, without the gap.
    kinds: Option<i64>,
    stored: i64,
}

/// State of the estimator.
#[derive(Default)]
pub(super) struct Estimator {
    started_ns: Option<u64>,
    good_ns: u64,
    last_ns: u64,
    last: Option<Reading>,
    /// The last three corrected demands, newest first.
    recent: [i64; 3],
    slopes: Ring<SLOPE_SAMPLES>,
    noise: Ring<NOISE_SAMPLES>,
    /// Usual difference of the two readings.
    gap: Option<f64>,
    /// Bytes freed lately, which may hide.
    freed: f64,
    freed_ns: u64,
    stalled_us: Option<u64>,
    /// Since when hardly anything is available.
    low_since_ns: Option<u64>,
    /// Since when available memory has jumped without corroboration.
    jumped_ns: Option<u64>,
    /// Since when the readings disagree.
    disagree_ns: Option<u64>,
    stuck: Stuck,
    present: Estimate,
}

impl Estimator {
    /// Takes in one snapshot.
    pub(super) fn update(&mut self, snapshot: &Snapshot, parameters: &Parameters) -> Estimate {
        let at = snapshot.at_ns;
        let started = *self.started_ns.get_or_insert(at);
        self.good_ns = self.good_ns.max(started);
        let allowed = allowed_disagreement(snapshot, parameters);
        let reading = self.read(snapshot);
        let trusted = reading.filter(|reading| !self.jumps(reading, at, allowed));
        match trusted {
            Some(reading) => self.accept(reading, snapshot, parameters, allowed),
            None => self.miss(snapshot),
        }
        self.present.stale_ns = at.saturating_sub(self.good_ns);
        self.last_ns = at;
        self.present
    }

    /// Both readings, or nothing where the main one is missing, impossible or stuck.
    fn read(&mut self, snapshot: &Snapshot) -> Option<Reading> {
        let total = snapshot.memory_total_bytes;
        let available = snapshot.available_bytes?;
        let stored = snapshot.occupied_bytes();
        let kinds = snapshot.used_kinds_bytes.filter(|used| *used <= total);
        let demand = kinds.map_or(stored, |kinds| kinds.saturating_sub(stored));
        let stuck = self.stuck.watch(available, demand, total);
        // Stores and free memory cannot be more than all memory; readings are not simultaneous.
        let possible = available <= total
            && available.saturating_add(stored) <= total.saturating_add(total / 50);
        (possible && total > 0 && !stuck).then(|| Reading {
            main: signed(total) - signed(available) - signed(stored),
            kinds: kinds.map(|kinds| signed(kinds) - signed(stored)),
            stored: signed(stored),
        })
    }

    /// Whether available memory jumped further than it may without the second reading following.
    fn jumps(&mut self, reading: &Reading, at: u64, allowed: i64) -> bool {
        let Some((last, kinds, before)) =
            self.last.and_then(|last| Some((last, reading.kinds?, last.kinds?)))
        else {
            self.jumped_ns = None;
            return false;
        };
        let main = reading.main - last.main;
        let second = kinds - before;
        // Pages of the store that were just freed may hide: that is no jump.
        let freed = (last.stored - reading.stored).max(0);
        let alone = (main - second).abs() - freed;
        if alone <= allowed || alone <= main.abs() / 2 {
            self.jumped_ns = None;
            return false;
        }
        let since = *self.jumped_ns.get_or_insert(at);
        let doubtful = at.saturating_sub(since) < JUMP_ACCEPTED_NS;
        if !doubtful {
            self.jumped_ns = None;
        }
        doubtful
    }

    /// No trustworthy main reading: the second one may still raise the demand.
    fn miss(&mut self, snapshot: &Snapshot) {
        self.present.slope_bytes_per_s = 0;
        self.present.rising = false;
        self.slopes.clear();
        let kinds = snapshot.used_kinds_bytes.filter(|used| *used <= snapshot.memory_total_bytes);
        if let (Some(kinds), Some(gap)) = (kinds, self.gap) {
            let demand = signed(kinds) - signed(snapshot.occupied_bytes()) + gap as i64;
            self.present.demand_bytes = self.present.demand_bytes.max(unsigned(demand));
        }
    }

    fn accept(&mut self, reading: Reading, snapshot: &Snapshot, p: &Parameters, allowed: i64) {
        let at = snapshot.at_ns;
        let interval_ns = p.interval_ms.clamp(1, 1 << 30) * 1_000_000;
        let dt_ns = at.saturating_sub(self.last_ns);
        let dt_s = dt_ns as f64 / SECOND_NS as f64;
        self.good_ns = at;
        let hidden = self.hidden(&reading, snapshot, dt_s, allowed);
        let corrected = reading.main - hidden;
        let first = self.last.is_none() || dt_ns == 0;
        let before = if first { [corrected; 3] } else { self.recent };
        if first {
            self.slopes.clear();
        } else {
            // After a sleep this is the mean rate of the sleep.
            self.slopes.push((corrected - before[0]) as f64 / dt_s);
        }
        // A reading after a sleep stands alone, so that it acts at once; what was read before the
        // sleep says nothing of the noise.
        let slept = dt_ns > 5 * interval_ns;
        if slept {
            self.recent = [corrected; 3];
        } else {
            self.recent = [corrected, before[0], before[1]];
        }
        if !first && !slept {
            self.noise.push((corrected - 2 * before[0] + before[1]).abs() as f64);
        }
        // The median absolute second difference of white noise is 1.65 standard deviations.
        let noise = (self.noise.middle() / 1.65) as i64;
        let demand = self.filtered(&reading, noise);
        let demand = self.compare(&reading, demand, hidden, at, dt_s, allowed);
        let rise = corrected - before[0];
        self.present = Estimate {
            demand_bytes: unsigned(demand),
            slope_bytes_per_s: self.slope(snapshot, p, noise),
            noise_bytes: unsigned(noise),
            rising: rise > noise.max(signed(snapshot.memory_total_bytes) / 65_536),
            hidden_bytes: unsigned(hidden),
            stale_ns: 0,
            disagree: self.disagree_ns.is_some(),
        };
        self.last = Some(reading);
    }

    /// Freed bytes that available memory does not show: no more than were freed lately, and no
    /// more than the gap grew.
    fn hidden(&mut self, reading: &Reading, s: &Snapshot, dt_s: f64, allowed: i64) -> i64 {
        let is_drained = self.is_drained(s, dt_s);
        let Some(kinds) = reading.kinds else { return 0 };
        let gap = (reading.main - kinds) as f64;
        let usual = *self.gap.get_or_insert(gap.max(-(allowed as f64)));
        let excess = (gap - usual).max(0.0);
        if let Some((last, before)) = self.last.and_then(|last| Some((last, last.kinds?))) {
            let freed = (last.stored - reading.stored).max(0) + (before - kinds).max(0);
            if s.has_lists {
                // What is freed all the time, or only seems to be, explains nothing older.
                self.freed -= self.freed * (dt_s * 1e9 / FREED_SETTLED_NS as f64).min(1.0);
            }
            self.freed = (self.freed - HIDDEN_DRAIN_BYTES_PER_S * dt_s).max(0.0);
            self.freed += freed as f64;
            if freed > 0 {
                self.freed_ns = s.at_ns;
            } else if s.at_ns.saturating_sub(self.freed_ns) > FREED_SETTLED_NS {
                self.freed = self.freed.min(excess);
            }
            self.freed = self.freed.min((s.memory_total_bytes / HIDDEN_PART) as f64);
            if is_drained {
                self.freed = 0.0;
            }
        }
        excess.min(self.freed) as i64
    }

    /// Whether nothing can hide any more: before tasks wait for memory, the kernel takes what is in
    /// its lists. Where it does not count waits, a second of hardly any memory says the same.
    fn is_drained(&mut self, s: &Snapshot, dt_s: f64) -> bool {
        let some_us = s.pressure.map(|pressure| pressure.some_us);
        let before = std::mem::replace(&mut self.stalled_us, some_us);
        let low = s.available_bytes.is_some_and(|bytes| bytes < s.memory_total_bytes / LOW_PART);
        self.low_since_ns = low.then(|| self.low_since_ns.unwrap_or(s.at_ns));
        let Some(since) = self.low_since_ns else { return false };
        match before.zip(some_us) {
            Some((before, now)) => now.saturating_sub(before) as f64 > STALLED_SHARE * dt_s * 1e6,
            None => s.at_ns.saturating_sub(since) > SECOND_NS,
        }
    }

    /// Median of three; a rise that the second reading shares counts at once.
    fn filtered(&self, reading: &Reading, noise: i64) -> i64 {
        let mut sorted = self.recent;
        sorted.sort_unstable();
        let [newest, _, _] = self.recent;
        let median = sorted[1];
        let shared = reading.kinds.zip(self.gap).is_some_and(|(kinds, gap)| {
            let risen = newest - median;
            kinds + gap as i64 - median >= risen / 2 && risen > noise
        });
        if shared { newest } else { median }
    }

    /// Weighs the two readings, and lets the usual gap follow slow drift.
    fn compare(
        &mut self,
        r: &Reading,
        demand: i64,
        hidden: i64,
        at: u64,
        dt_s: f64,
        ok: i64,
    ) -> i64 {
        let (Some(kinds), Some(usual)) = (r.kinds, self.gap) else {
            self.disagree_ns = None;
            return demand;
        };
        let off = (r.main - hidden - kinds) as f64 - usual;
        if off.abs() <= ok as f64 {
            self.disagree_ns = None;
            if hidden == 0 {
                self.gap = Some(usual + off * (dt_s / GAP_DRIFT_S).min(1.0));
            }
            return demand;
        }
        let since = *self.disagree_ns.get_or_insert(at);
        // Memory that no kind counts may be a driver's: after ten seconds it is usual. Memory that
        // is said to be free against the kinds is never believed.
        if off > 0.0 && at.saturating_sub(since) > 10 * SECOND_NS {
            self.gap = Some(usual + off * (dt_s / 10.0).min(1.0));
        }
        demand.max(kinds + usual as i64)
    }

    /// The lower middle of the last rates: a step gives none, a ramp its own after three readings.
    fn slope(&self, snapshot: &Snapshot, parameters: &Parameters, noise: i64) -> u64 {
        let interval = parameters.interval_ms.max(1);
        let count = (parameters.slope_window_ms / interval).clamp(2, SLOPE_SAMPLES as u64) as usize;
        let Some((rate, newest)) = self.slopes.lower_middle(count) else { return 0 };
        let rise = rate * count as f64 * interval as f64 / 1e3;
        let floor = (4 * noise).max(signed(snapshot.memory_total_bytes) / 8_192);
        if newest <= 0.0 || rise <= floor as f64 {
            return 0;
        }
        rate.min(SLOPE_MAX_BYTES_PER_S) as u64
    }
}

/// Bytes by which the two readings may differ.
fn allowed_disagreement(snapshot: &Snapshot, parameters: &Parameters) -> i64 {
    (parameters.disagreement_share.max(0.0) * snapshot.memory_total_bytes as f64) as i64
}

/// Bytes for signed arithmetic, bounded so that sums of a dozen sizes do not overflow.
pub(super) fn signed(bytes: u64) -> i64 {
    bytes.min(1 << 56) as i64
}

fn unsigned(bytes: i64) -> u64 {
    bytes.max(0) as u64
}

/// Notices an available memory that does not move by a byte while the demand does. A store that
/// gives just what jobs take keeps it level, but never to the byte.
#[derive(Default)]
struct Stuck {
    available: Option<u64>,
    demand: u64,
}

impl Stuck {
    fn watch(&mut self, available: u64, demand: u64, total: u64) -> bool {
        if self.available != Some(available) {
            *self = Stuck { available: Some(available), demand };
        }
        // Zero is where a node without memory stays.
        available > 0 && demand.abs_diff(self.demand) > total / 200
    }
}

/// The last numbers, newest last, in place.
struct Ring<const N: usize> {
    values: [f64; N],
    next: usize,
    count: usize,
}

impl<const N: usize> Default for Ring<N> {
    fn default() -> Self {
        Ring { values: [0.0; N], next: 0, count: 0 }
    }
}

impl<const N: usize> Ring<N> {
    fn clear(&mut self) {
        self.count = 0;
    }

    fn push(&mut self, value: f64) {
        self.values[self.next] = value;
        self.next = (self.next + 1) % N;
        self.count = (self.count + 1).min(N);
    }

    /// Median of all; 0 of none.
    fn middle(&self) -> f64 {
        if self.count == 0 {
            return 0.0;
        }
        // Before the ring is full the values are at its beginning: it is never cleared for noise.
        let mut sorted = self.values;
        let sorted = &mut sorted[..self.count];
        sorted.sort_unstable_by(f64::total_cmp);
        sorted[self.count / 2]
    }

    /// The lower median of the newest `count`, and the newest.
    fn lower_middle(&self, count: usize) -> Option<(f64, f64)> {
        if self.count < count || count == 0 || count > N {
            return None;
        }
        let mut newest = [0.0; N];
        for (back, slot) in newest[..count].iter_mut().enumerate() {
            *slot = self.values[(self.next + N - 1 - back) % N];
        }
        let last = newest[0];
        newest[..count].sort_unstable_by(f64::total_cmp);
        Some((newest[(count - 1) / 2], last))
    }
}
