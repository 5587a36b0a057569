//! Memory that jobs take over time, the memory it leaves to the store, and the hit ratio that
//! follows. Computed as a chain of steady states: the store follows at once, and what a shrink
//! evicts is brought in again by the next pass.

use serde::{Deserialize, Serialize};
use tidepool_proto::{Error, ErrorKind, Result};

use crate::hit_ratio::{Access, Policy, hit_ratio};
use crate::quantity::{Bytes, Seconds, Share};

/// Memory that the jobs of one node take over time, from a controller's record.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DemandTrace {
    /// When each demand began, in rising order of time.
    steps: Vec<(Seconds, Bytes)>,
    end: Seconds,
}

fn refuse(detail: String, remedy: &str) -> Error {
    Error::new(ErrorKind::InvalidInput, "reading a trace of memory demand", detail).remedy(remedy)
}

impl DemandTrace {
    /// A trace from points in time; the last point only ends the one before.
    pub fn new(points: &[(Seconds, Bytes)]) -> Result<Self> {
        let Some(((end, _), steps)) = points.split_last().filter(|(_, steps)| !steps.is_empty())
        else {
            let detail = format!("{} points", points.len());
            return Err(refuse(detail, "a trace has at least two points in time"));
        };
        if let Some(pair) = points.windows(2).find(|pair| pair[1].0 <= pair[0].0) {
            let detail = format!("{} after {}", pair[1].0, pair[0].0);
            return Err(refuse(detail, "times must rise from line to line"));
        }
        Ok(DemandTrace { steps: steps.to_vec(), end: *end })
    }

    /// A trace from lines of `seconds,bytes`; a first line without digits is a header.
    pub fn parse(text: &str) -> Result<Self> {
        let mut points = Vec::new();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim();
            let is_header = number == 1 && !line.starts_with(|c: char| c.is_ascii_digit());
            if line.is_empty() || line.starts_with('#') || is_header {
                continue;
            }
            let malformed = || refuse(format!("line {number}: `{line}`"), "write `seconds,bytes`");
            let (time, taken) = line.split_once(',').ok_or_else(malformed)?;
            let time: f64 = time.trim().parse().map_err(|_| malformed())?;
            let taken: f64 = taken.trim().parse().map_err(|_| malformed())?;
            let point = Seconds::new(time).and_then(|time| Ok((time, Bytes::new(taken)?)));
            points.push(point.map_err(|_| malformed())?);
        }
        Self::new(&points)
    }

    fn spans(&self) -> impl Iterator<Item = (f64, Bytes)> {
        let ends = self.steps.iter().skip(1).map(|(time, _)| *time).chain([self.end]);
        self.steps.iter().zip(ends).map(|((begin, taken), end)| (end.get() - begin.get(), *taken))
    }

    fn mean(&self, memory: Bytes, value: impl Fn(Bytes) -> Result<f64>) -> Result<f64> {
        let (mut sum, mut time) = (0.0, 0.0);
        for (span, taken) in self.spans() {
            sum += span * value(memory.less(taken))?;
            time += span;
        }
        Ok(sum / time)
    }

    /// What is left of `memory` bytes a node, averaged over time.
    pub fn mean_left(&self, memory: Bytes) -> Bytes {
        let mean = self.mean(memory, |left| Ok(left.get()));
        mean.and_then(Bytes::new).expect("a mean of sizes is a size")
    }

    /// The highest demand.
    pub fn most(&self) -> Bytes {
        let none = Bytes::default();
        self.spans().fold(none, |most, (_, taken)| if taken > most { taken } else { most })
    }

    /// f averaged over time for a part of `set` bytes a node, where the store has what jobs leave
    /// of `memory`.
    pub fn hit_ratio(
        &self,
        memory: Bytes,
        set: Bytes,
        block: Bytes,
        policy: Policy,
        access: Access,
    ) -> Result<Share> {
        let share = |left| Ok(hit_ratio(left, set, block, policy, access)?.get());
        Ok(Share::clamped(self.mean(memory, share)?))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_weighs_each_demand() {
        let trace = DemandTrace::parse("seconds,bytes\n0,100\n10,0\n# gone\n30,100\n40,100\n");
        let trace = trace.unwrap();
        let memory = Bytes::whole(100);
        assert_eq!(trace.mean_left(memory), Bytes::whole(50));
        assert_eq!(trace.mean_left(Bytes::whole(50)), Bytes::whole(25), "never less than none");
        let block = Bytes::whole(1);
        let share = trace.hit_ratio(memory, memory, block, Policy::Lru, Access::Cyclic).unwrap();
        assert!((share.get() - 0.5).abs() < 1e-12, "none is left for half of the time: {share:?}");
    }

    #[test]
    fn a_trace_that_makes_no_sense_is_refused_with_its_line() {
        for text in [
            "",
            "0,1",
            "seconds,bytes\n0,1",
            "0,1\n0,2",
            "5,1\n1,1",
            "0,x\n1,1",
            "0;1\n1;1",
            "0,-1\n1,1",
            "0,1\n1",
        ] {
            let error = DemandTrace::parse(text).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{text}");
        }
        let error = DemandTrace::parse("0,1\n1,oops").unwrap_err();
        assert!(error.to_string().contains("line 2"), "{error}");
    }
}
