//! [`Trace`]: the demand of jobs over time, as points joined by straight lines, read from and
//! written to text.
//!
//! Text names its units in its column names, and text that makes no sense is refused with the
//! line or entry at fault. Opens no file.

mod generate;
mod text;

use tidepool_proto::{Error, ErrorKind, Result};

pub use generate::{Bursts, Storm};

/// Nanoseconds of a second.
pub(super) const SECOND_NS: u64 = 1_000_000_000;

/// Demand of jobs at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TracePoint {
    /// Nanoseconds since the start of the trace.
    pub at_ns: u64,
    /// Bytes that jobs ask for.
    pub demand_bytes: u64,
}

/// Demand of jobs over time. Between two points it changes evenly; before the first and after the
/// last it stays as there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trace {
    points: Vec<TracePoint>,
}

fn refuse(detail: impl Into<String>, remedy: impl Into<String>) -> Error {
    let operation = "reading a trace of memory demand";
    Error::new(ErrorKind::InvalidInput, operation, detail).remedy(remedy)
}

impl Trace {
    /// A trace of points; refuses none at all and times that do not rise.
    pub fn new(points: Vec<TracePoint>) -> Result<Self> {
        if points.is_empty() {
            return Err(refuse("it has no points", "a trace has at least one point in time"));
        }
        let falls = points.windows(2).position(|pair| pair[1].at_ns <= pair[0].at_ns);
        if let Some(index) = falls {
            let seconds = |at: usize| points[at].at_ns as f64 / SECOND_NS as f64;
            let (before, after) = (seconds(index), seconds(index + 1));
            let detail = format!("point {} is at {after} s, after one at {before} s", index + 2);
            return Err(refuse(detail, "times must rise from point to point"));
        }
        Ok(Trace { points })
    }

    /// The points, in rising order of time.
    pub fn points(&self) -> &[TracePoint] {
        &self.points
    }

    /// Demand at a moment, in bytes.
    pub fn demand_bytes(&self, at_ns: u64) -> u64 {
        let after = self.points.partition_point(|point| point.at_ns <= at_ns);
        let Some(left) = after.checked_sub(1).map(|index| self.points[index]) else {
            return self.points[0].demand_bytes;
        };
        let Some(right) = self.points.get(after) else { return left.demand_bytes };
        let (span, part) = (right.at_ns - left.at_ns, at_ns - left.at_ns);
        let share = |bytes: u64| (u128::from(bytes) * u128::from(part) / u128::from(span)) as u64;
        if right.demand_bytes >= left.demand_bytes {
            left.demand_bytes + share(right.demand_bytes - left.demand_bytes)
        } else {
            left.demand_bytes - share(left.demand_bytes - right.demand_bytes)
        }
    }

    /// Time of the last point in nanoseconds.
    pub fn duration_ns(&self) -> u64 {
        self.points[self.points.len() - 1].at_ns
    }

    /// The highest demand in bytes.
    pub fn peak_bytes(&self) -> u64 {
        self.points.iter().map(|point| point.demand_bytes).max().unwrap_or(0)
    }

    /// Bytes that jobs asked for in all: the sum of all rises.
    pub fn asked_bytes(&self) -> u64 {
        let rise = |pair: &[TracePoint]| pair[1].demand_bytes.saturating_sub(pair[0].demand_bytes);
        self.points.windows(2).map(rise).fold(0, u64::saturating_add)
    }

    /// When the demand changed for the last time, in nanoseconds; 0 where it never does.
    pub fn last_change_ns(&self) -> u64 {
        let changed = |pair: &&[TracePoint]| pair[0].demand_bytes != pair[1].demand_bytes;
        self.points.windows(2).rfind(changed).map_or(0, |pair| pair[1].at_ns)
    }

    /// Both demands together.
    #[must_use]
    pub fn plus(&self, other: &Trace) -> Trace {
        let all = self.points.iter().chain(&other.points);
        let mut times: Vec<u64> = all.map(|point| point.at_ns).collect();
        times.sort_unstable();
        times.dedup();
        let sum = |at_ns: u64| TracePoint {
            at_ns,
            demand_bytes: self.demand_bytes(at_ns).saturating_add(other.demand_bytes(at_ns)),
        };
        Trace { points: times.into_iter().map(sum).collect() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn point(at_ns: u64, demand_bytes: u64) -> TracePoint {
        TracePoint { at_ns, demand_bytes }
    }

    #[test]
    fn demand_changes_evenly_between_points_and_stays_outside() {
        let trace = Trace::new(vec![point(10, 100), point(20, 200), point(30, 0)]).unwrap();
        let at = [0, 10, 15, 20, 25, 30, 99].map(|at| trace.demand_bytes(at));
        assert_eq!(at, [100, 100, 150, 200, 100, 0, 0]);
        assert_eq!(
            (trace.peak_bytes(), trace.duration_ns(), trace.last_change_ns()),
            (200, 30, 30)
        );
        assert_eq!(trace.asked_bytes(), 100);
        let huge = Trace::new(vec![point(0, 0), point(u64::MAX, u64::MAX)]).unwrap();
        assert_eq!(huge.demand_bytes(1 << 40), 1 << 40, "no overflow");
    }

    #[test]
    fn traces_add_at_all_their_points() {
        let one = Trace::new(vec![point(0, 0), point(10, 100)]).unwrap();
        let two = Trace::new(vec![point(5, 7)]).unwrap();
        let sum = one.plus(&two);
        assert_eq!(sum.points(), [point(0, 7), point(5, 57), point(10, 107)]);
    }

    #[test]
    fn a_trace_without_points_or_with_falling_times_is_refused() {
        for (points, said) in [
            (vec![], "no points"),
            (vec![point(5, 1), point(5, 2)], "point 2"),
            (vec![point(0, 1), point(5, 1), point(4, 2)], "point 3"),
        ] {
            let error = Trace::new(points).unwrap_err();
            assert!(error.to_string().contains(said), "{error}");
        }
    }
}
