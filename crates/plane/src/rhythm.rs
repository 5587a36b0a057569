//! [`Rhythm`]: how often samples are taken, and how many of them wait for one message. Pure.
//!
//! Kafka costs by the message, so samples of a node at rest wait for each other. They must not wait
//! for so long that the job takes the node for silent, or that its ceiling runs out: the job leases
//! it again with the first sample behind half of the lease, and that one waits too.

use tidepool_proto::{Error, ErrorKind, Result};

use crate::sample::Movement;

/// Half of the time after which the job takes a node for silent.
const MESSAGE_MS_MAX: u64 = 5000;
/// Where nobody says how many: as many as come in this time, and no more than so many.
const USUAL_MS: u64 = 1000;
const USUAL_SAMPLES_MAX: u64 = 10;
/// Of a lease, the part that samples may wait for: the half until the job leases anew and this one
/// leave a sixth for the way.
const LEASE_PARTS: u64 = 3;
/// Samples in a message where memory moves, and the time in which they must come.
const MOVING_SAMPLES_MAX: u64 = 3;
const MOVING_MS_MAX: u64 = 300;

/// How often samples are taken and sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rhythm {
    /// Time between two readings.
    pub interval_ms: u64,
    /// Readings of which one becomes a sample: that with the least available memory.
    pub readings: u64,
    /// Samples in one message at most; fewer where memory moves or leases are short.
    pub batch: u64,
}

impl Rhythm {
    /// As it was asked for: the time between two readings, that between two samples where it is
    /// another one, and samples in a message.
    ///
    /// # Errors
    /// `InvalidInput` for messages so seldom that the job would take the node for silent.
    pub fn new(interval_ms: u64, summary_ms: Option<u64>, batch: Option<u64>) -> Result<Rhythm> {
        let readings = summary_ms.map_or(1, |summary_ms| (summary_ms / interval_ms).max(1));
        let mut rhythm = Rhythm { interval_ms, readings, batch: 1 };
        let step_ms = rhythm.step_ms();
        rhythm.batch = batch.unwrap_or((USUAL_MS / step_ms).clamp(1, USUAL_SAMPLES_MAX));
        let most = (MESSAGE_MS_MAX / step_ms).max(1);
        if rhythm.batch <= most {
            return Ok(rhythm);
        }
        let Rhythm { batch, .. } = rhythm;
        let detail = format!(
            "{batch} samples in a message, one each {step_ms} ms, are a message each {} ms: more \
             than {MESSAGE_MS_MAX}, and the job takes a node for silent after twice that",
            batch.saturating_mul(step_ms)
        );
        Err(Error::new(ErrorKind::InvalidInput, "starting the agent", detail)
            .remedy(format!("--batch {most}, or less")))
    }

    /// Time between two samples.
    pub fn step_ms(&self) -> u64 {
        self.interval_ms.saturating_mul(self.readings)
    }

    /// Samples in a message while nothing moves, where the ceiling that holds has this lease.
    pub fn batch_within(&self, lease_ms: Option<u64>) -> u64 {
        let by_lease =
            lease_ms.map_or(u64::MAX, |lease_ms| lease_ms / LEASE_PARTS / self.step_ms());
        by_lease.clamp(1, self.batch)
    }

    /// Samples that wait for a message, the last of which moved so.
    pub fn message_samples(&self, movement: Movement, lease_ms: Option<u64>) -> u64 {
        let at_rest = self.batch_within(lease_ms);
        match movement {
            Movement::Rests => at_rest,
            Movement::Moves => {
                (MOVING_MS_MAX / self.step_ms()).clamp(1, MOVING_SAMPLES_MAX).min(at_rest)
            }
            Movement::Jumps => 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [Movement; 3] = [Movement::Rests, Movement::Moves, Movement::Jumps];

    fn of(interval_ms: u64, summary_ms: Option<u64>, batch: Option<u64>) -> Rhythm {
        Rhythm::new(interval_ms, summary_ms, batch).unwrap()
    }

    #[test]
    fn a_sample_waits_the_less_the_more_moved() {
        let samples = |rhythm: Rhythm| ALL.map(|movement| rhythm.message_samples(movement, None));
        assert_eq!(samples(of(100, None, Some(10))), [10, 3, 1]);
        assert_eq!(samples(of(100, None, Some(2))), [2, 2, 1]);
        assert_eq!(samples(of(10, None, Some(64))), [64, 3, 1]);
        assert_eq!(samples(of(200, None, Some(5))), [5, 1, 1], "three take too long");
        assert_eq!(samples(of(100, Some(1000), Some(5))), [5, 1, 1]);
    }

    #[test]
    fn as_many_samples_as_come_in_a_second_are_in_a_message() {
        let usual = |interval_ms, summary_ms| of(interval_ms, summary_ms, None).batch;
        assert_eq!([10, 100, 200, 1000, 60_000].map(|it| usual(it, None)), [10, 10, 5, 1, 1]);
        assert_eq!([500, 1000, 600_000].map(|it| usual(100, Some(it))), [2, 1, 1]);
    }

    #[test]
    fn messages_come_before_the_job_takes_the_node_for_silent() {
        assert_eq!(of(100, Some(1000), Some(5)).batch, 5);
        let error = Rhythm::new(100, Some(1000), Some(6)).unwrap_err();
        assert!(error.to_string().contains("each 6000 ms"), "{error}");
        assert!(Rhythm::new(1000, None, Some(6)).is_err() && of(1000, None, Some(5)).batch == 5);
        assert_eq!(of(60_000, None, Some(1)).batch, 1, "one is a message as ever");
        assert!(Rhythm::new(60_000, None, Some(2)).is_err());
    }

    #[test]
    fn no_sample_waits_until_the_ceiling_runs_out() {
        let summaries = of(100, Some(1000), Some(5));
        let within = |rhythm: Rhythm, lease_ms| rhythm.batch_within(Some(lease_ms));
        assert_eq!([20_000, 15_000, 14_999, 5000].map(|it| within(summaries, it)), [5, 5, 4, 1]);
        assert_eq!([5000, 1000].map(|it| within(of(100, None, None), it)), [10, 3]);
        assert_eq!(summaries.batch_within(None), 5, "no ceiling, no lease");
        for (lease_ms, step_ms) in [(1000, 10), (1000, 100), (5000, 1000), (60_000, 1000)] {
            let most = 64.min(MESSAGE_MS_MAX / step_ms);
            let rhythm = of(step_ms, None, Some(most));
            let waits_ms = within(rhythm, lease_ms) * step_ms;
            assert!(lease_ms / 2 + waits_ms < lease_ms, "{waits_ms} ms of {lease_ms}");
        }
    }
}
