//! A recorded demand for memory, and a job that plays it: it really takes the memory and gives it
//! back.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::bench::plane::rig::Rig;
use crate::hog::{CHUNK_BYTES, Report, Step, now_ns};

/// How long the end is watched.
const TAIL: Duration = Duration::from_secs(3);

/// Times in seconds from 0, and bytes.
pub struct Demand(Vec<(f64, u64)>);

impl Demand {
    /// Reads a trace of time in seconds and bytes, scaled so that it takes `peak_bytes` at most,
    /// until `length_s`.
    pub fn read(path: &Path, peak_bytes: u64, length_s: f64) -> Result<Demand> {
        let text = std::fs::read_to_string(path).with_context(|| path.display().to_string())?;
        let demand = Demand::parse(&text, peak_bytes, length_s);
        ensure!(demand.0.len() > 1, "{} is no trace", path.display());
        Ok(demand)
    }

    fn parse(text: &str, peak_bytes: u64, length_s: f64) -> Demand {
        let point = |line: &str| {
            let (time, bytes) = line.split_once(',')?;
            Some((time.parse::<f64>().ok()?, bytes.trim().parse::<f64>().ok()?))
        };
        let points: Vec<(f64, f64)> = text.lines().filter_map(point).collect();
        let peak = points.iter().map(|point| point.1).fold(1.0, f64::max);
        let whole = |bytes: f64| {
            let chunks = bytes / peak * peak_bytes as f64 / CHUNK_BYTES as f64;
            chunks.round() as u64 * CHUNK_BYTES
        };
        let early = points.into_iter().take_while(|point| point.0 <= length_s);
        Demand(early.map(|(time_s, bytes)| (time_s, whole(bytes))).collect())
    }

    fn peak_bytes(&self) -> u64 {
        self.0.iter().map(|point| point.1).max().unwrap_or(0)
    }

    /// What the job does, each with the time at which it begins.
    fn steps(&self) -> Vec<(Duration, Step)> {
        let step = |pair: &[(f64, u64)]| {
            let ((from_s, from), (until_s, until)) = (pair[0], pair[1]);
            let seconds = (until_s - from_s).max(0.001);
            if until > from {
                let bytes = until - from;
                let rate = (bytes as f64 / seconds) as u64;
                Some((Duration::from_secs_f64(from_s), Step::Take { bytes, rate }))
            } else {
                let bytes = from - until;
                (bytes > 0).then(|| (Duration::from_secs_f64(until_s), Step::Release(bytes)))
            }
        };
        self.0.windows(2).filter_map(step).collect()
    }

    /// Plays it; returns what the job says, and when it began and ended.
    pub fn play(&self, rig: &Rig) -> Result<(Report, [u64; 2])> {
        let mut job = rig.job_of(self.peak_bytes())?;
        let (began_ns, began) = (now_ns(), Instant::now());
        for (at, step) in self.steps() {
            std::thread::sleep(at.saturating_sub(began.elapsed()));
            job.step(step)?;
        }
        std::thread::sleep(TAIL);
        let ended_ns = now_ns();
        Ok((job.finish()?, [began_ns, ended_ns]))
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::Demand;
    use crate::hog::{CHUNK_BYTES, Step};

    #[test]
    fn a_trace_is_scaled_and_becomes_steps() {
        let text = "time_s,demand_bytes\n0.0,0\n1.0,0\n1.5,50\n2.0,100\n3.0,100\n3.1,25\n9.0,0\n";
        let demand = Demand::parse(text, 4 * CHUNK_BYTES, 8.0);
        assert_eq!(demand.peak_bytes(), 4 * CHUNK_BYTES);
        let take = |rate| Step::Take { bytes: 2 * CHUNK_BYTES, rate };
        let expected = [
            (1.0, take(4 * CHUNK_BYTES)),
            (1.5, take(4 * CHUNK_BYTES)),
            (3.1, Step::Release(3 * CHUNK_BYTES)),
        ];
        let expected = expected.map(|(at_s, step)| (Duration::from_secs_f64(at_s), step));
        assert_eq!(demand.steps(), expected, "and what is beyond the end is left out");
    }
}
