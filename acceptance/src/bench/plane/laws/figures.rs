//! The figures of one run, computed from what the watcher saw and the job wrote down. Pure
//! arithmetic.

use crate::bench::control::recording::{Recording, Sample};

const GIB: f64 = (1_u64 << 30) as f64;
const MIB: f64 = (1_u64 << 20) as f64;
/// Means and shares are over looks this far apart.
const LOOK_NS: u64 = 10_000_000;
/// What comes and goes by others' doing.
const SPREAD_BYTES: u64 = 32 << 20;
/// A demand that stood still for so long rises anew.
const PAUSE_NS: u64 = 250_000_000;
/// Smaller rises drown in what others do.
const RISE_BYTES: u64 = 64 << 20;

/// A time in which the demand rises, until it rises anew.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Rise {
    /// When it began.
    began_ns: u64,
    /// When the next one began.
    until_ns: u64,
}

/// The figures. Gibibytes, unless their names say else.
#[derive(Clone, Debug, Default)]
pub struct Figures {
    /// Least that was available, less the headroom.
    pub lowest_gib: f64,
    /// In 99 of 100 looks more was available, less the headroom.
    pub low_gib: f64,
    /// Time in which less than the headroom was available.
    pub below_s: f64,
    /// Mean of what was available beyond the headroom.
    pub excess_gib: f64,
    /// What had to leave because the capacity fell.
    pub evicted_gib: f64,
    /// What came back into the store after that.
    pub grown_gib: f64,
    /// How often the capacity became another one.
    pub changes: f64,
    /// Mean of what the store held.
    pub store_gib: f64,
    /// For each rise that had to be answered: until the first byte left.
    answers_ms: Vec<f64>,
    /// Of those, rises without an answer; they count until the next rise.
    silent: usize,
    /// How far others went up and down: what is neither available nor of the store nor of the
    /// demand.
    pub others_mib: f64,
}

impl Figures {
    /// Of a run in which the demand held so many bytes from a time on.
    pub fn of(seen: &Recording, headroom: u64, held: &[(u64, u64)]) -> Option<Figures> {
        let looks = looks(seen);
        let beyond = |sample: &Sample| (sample.available as f64 - headroom as f64) / GIB;
        let mut beyond_all: Vec<f64> = looks.iter().map(beyond).collect();
        beyond_all.sort_by(f64::total_cmp);
        let count = beyond_all.len().max(1) as f64;
        let least = headroom.saturating_sub(SPREAD_BYTES);
        let below = looks.iter().filter(|sample| sample.available < least).count();
        let (answers_ms, silent) = answers(seen, headroom, held);
        let capacities = seen.0.windows(2);
        Some(Figures {
            lowest_gib: seen.0.iter().map(beyond).reduce(f64::min)?,
            low_gib: *beyond_all.get(beyond_all.len() / 100)?,
            below_s: below as f64 * LOOK_NS as f64 / 1e9,
            excess_gib: beyond_all.iter().map(|gib| gib.max(0.0)).sum::<f64>() / count,
            evicted_gib: seen.taken() as f64 / GIB,
            grown_gib: seen.refilled() as f64 / GIB,
            changes: capacities.filter(|pair| pair[0].capacity != pair[1].capacity).count() as f64,
            store_gib: looks.iter().map(|look| look.stored as f64 / GIB).sum::<f64>() / count,
            answers_ms,
            silent,
            others_mib: others_mib(&looks, held),
        })
    }

    /// The time in which a part of all rises had their first byte.
    pub fn first_ms(&self, part: f64) -> Option<f64> {
        let mut sorted = self.answers_ms.clone();
        sorted.sort_by(f64::total_cmp);
        let last = sorted.len().checked_sub(1)?;
        Some(sorted[(last as f64 * part).ceil() as usize])
    }

    /// What a reader must know of them.
    pub fn words(&self) -> String {
        let answers: Vec<String> = self.answers_ms.iter().map(|ms| format!("{ms:.1}")).collect();
        format!(
            "first bytes after {} ms, {} rises without one; others went up and down by {:.0} MiB",
            answers.join(", "),
            self.silent,
            self.others_mib,
        )
    }
}

/// The last sample before each look.
fn looks(seen: &Recording) -> Vec<Sample> {
    let (Some(first), Some(last)) = (seen.0.first(), seen.0.last()) else { return Vec::new() };
    let times = (first.at_ns..=last.at_ns).step_by(LOOK_NS as usize);
    times
        .map(|at_ns| {
            let behind = seen.0.partition_point(|sample| sample.at_ns <= at_ns);
            seen.0[behind.saturating_sub(1)]
        })
        .collect()
}

/// The times in which the demand rises by enough.
fn rises(held: &[(u64, u64)], end_ns: u64) -> Vec<Rise> {
    // When each began, what was held before, and the most that it came to.
    let mut found: Vec<(u64, u64, u64)> = Vec::new();
    let mut last_growth_ns = None;
    for pair in held.windows(2) {
        let ((_, before), (at_ns, after)) = (pair[0], pair[1]);
        if after <= before {
            last_growth_ns = None;
            continue;
        }
        let goes_on = last_growth_ns.is_some_and(|last: u64| at_ns - last < PAUSE_NS);
        match found.last_mut().filter(|_| goes_on) {
            Some(rise) => rise.2 = after,
            None => found.push((at_ns, before, after)),
        }
        last_growth_ns = Some(at_ns);
    }
    let ends = found.iter().skip(1).map(|rise| rise.0).chain([end_ns]);
    let all = found.iter().zip(ends).filter(|((_, from, to), _)| to - from >= RISE_BYTES);
    all.map(|((began_ns, ..), until_ns)| Rise { began_ns: *began_ns, until_ns }).collect()
}

/// For each rise that took what is available below the headroom: milliseconds from then until the
/// first byte left because the capacity fell; and how many had no answer before the next rise.
fn answers(seen: &Recording, headroom: u64, held: &[(u64, u64)]) -> (Vec<f64>, usize) {
    let end_ns = seen.0.last().map_or(0, |sample| sample.at_ns);
    let (mut answers_ms, mut silent) = (Vec::new(), 0);
    for rise in rises(held, end_ns) {
        let during = seen.between(rise.began_ns, rise.until_ns);
        // A store that is all but empty has no answer to give.
        let can_answer = during.0.first().is_some_and(|sample| sample.stored >= RISE_BYTES);
        let crossed_ns = during.crossing_ns(headroom).filter(|_| can_answer);
        let Some(crossed_ns) = crossed_ns else { continue };
        let mut most = 0;
        let left = during.0.iter().find(|sample| {
            let is_less = sample.stored < most && sample.capacity < most;
            most = most.max(sample.stored);
            is_less
        });
        silent += usize::from(left.is_none());
        let left_ns = left.map_or(rise.until_ns, |sample| sample.at_ns);
        // What left before it was needed is no delay.
        answers_ms.push(left_ns.saturating_sub(crossed_ns) as f64 / 1e6);
    }
    (answers_ms, silent)
}

/// How far apart the least and the most are that others had.
fn others_mib(looks: &[Sample], held: &[(u64, u64)]) -> f64 {
    let of_others = looks.iter().map(|look| {
        let behind = held.partition_point(|(at_ns, _)| *at_ns <= look.at_ns);
        let demand = held.get(behind.wrapping_sub(1)).map_or(0, |held| held.1);
        // All memory less this; only differences are told.
        (look.available + look.stored + demand) as f64 / MIB
    });
    let least = of_others.clone().reduce(f64::min).unwrap_or(0.0);
    of_others.reduce(f64::max).unwrap_or(0.0) - least
}

#[cfg(test)]
mod tests {
    use super::{Figures, Rise, rises};
    use crate::bench::control::recording::{Recording, Sample};

    const GIB: u64 = 1 << 30;
    const MS: u64 = 1_000_000;

    /// Samples 10 ms apart: what is available, stored, and may be stored.
    fn recording(samples: &[(u64, u64, u64)]) -> Recording {
        let sample = |(at, &(available, stored, capacity)): (usize, &(u64, u64, u64))| Sample {
            at_ns: at as u64 * 10 * MS,
            available,
            stored,
            capacity,
            ..Sample::default()
        };
        Recording(samples.iter().enumerate().map(sample).collect())
    }

    #[test]
    fn demand_rises_anew_after_a_pause_or_a_release_and_small_rises_do_not_count() {
        let mib = |ms: u64, mib: u64| (ms * MS, mib << 20);
        let held = [
            mib(0, 0),
            mib(10, 60),
            mib(200, 120),
            mib(500, 200),
            mib(510, 100),
            mib(520, 180),
            mib(900, 190),
        ];
        let rise = |began: u64, until: u64| Rise { began_ns: began * MS, until_ns: until * MS };
        let expected = [rise(10, 500), rise(500, 520), rise(520, 900)];
        assert_eq!(rises(&held, 2_000 * MS), expected);
    }

    #[test]
    fn the_first_byte_counts_from_the_headroom_on() {
        let held = [(0, 0), (15 * MS, GIB)];
        let of = |samples: &[(u64, u64, u64)]| {
            let mib = |&(available, stored, most): &(u64, u64, u64)| {
                (available, stored << 20, most << 20)
            };
            let samples: Vec<_> = samples.iter().map(mib).collect();
            Figures::of(&recording(&samples), 4 * GIB, &held).unwrap()
        };
        let (calm, tight) = (5 * GIB, 3 * GIB);
        // At 20 ms it is crossed, at 40 ms the capacity falls, at 50 ms a byte has left.
        let late = of(&[
            (calm, 100, 100),
            (calm, 100, 100),
            (tight, 100, 100),
            (tight, 96, 100),
            (tight, 100, 90),
            (tight, 98, 90),
            (calm, 90, 90),
        ]);
        assert_eq!((late.answers_ms.as_slice(), late.silent), (&[30.0][..], 0));
        assert_eq!(late.first_ms(0.99), Some(30.0));
        let early = of(&[
            (calm, 100, 100),
            (calm, 100, 100),
            (calm, 100, 100),
            (calm, 90, 90),
            (tight, 90, 90),
            (tight, 90, 90),
        ]);
        assert_eq!(early.answers_ms, [0.0], "left before it was needed");
        let goes_on = of(&[
            (calm, 100, 100),
            (calm, 100, 100),
            (tight, 100, 80),
            (tight, 96, 80),
            (tight, 92, 80),
        ]);
        assert_eq!(goes_on.answers_ms, [10.0], "what was ordered before leaves");
        let never = of(&[(calm, 90, 100), (calm, 90, 100), (tight, 80, 100), (tight, 90, 100)]);
        assert_eq!((never.answers_ms.as_slice(), never.silent), (&[10.0][..], 1));
        let unasked = of(&[(calm, 90, 100); 4]);
        assert_eq!(unasked.first_ms(0.5), None, "nothing had to leave");
    }

    #[test]
    fn an_empty_store_owes_no_answer() {
        let held = [(0, 0), (15 * MS, GIB)];
        let seen = recording(&[(5 * GIB, 90, 90), (3 * GIB, 90, 90), (3 * GIB, 90, 90)]);
        assert_eq!(Figures::of(&seen, 4 * GIB, &held).unwrap().first_ms(0.5), None);
    }

    #[test]
    fn excess_is_what_stands_unused_and_churn_what_the_capacity_moves() {
        let samples =
            [(5 * GIB, 2 * GIB, 2 * GIB), (3 * GIB, 2 * GIB, 2 * GIB), (6 * GIB, GIB, GIB)];
        let figures = Figures::of(&recording(&samples), 4 * GIB, &[]).unwrap();
        assert_eq!((figures.lowest_gib, figures.below_s), (-1.0, 0.01));
        assert_eq!((figures.excess_gib, figures.low_gib), (1.0, -1.0));
        assert_eq!((figures.evicted_gib, figures.grown_gib, figures.changes), (1.0, 0.0, 1.0));
        assert_eq!(figures.store_gib, 5.0 / 3.0);
        assert!(Figures::of(&recording(&[]), GIB, &[]).is_none());
    }
}
