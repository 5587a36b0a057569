//! `Sizes`: how much memory each part of one run has, and what is left to others.

use std::time::Duration;

use anyhow::Result;

use super::super::Scale;
use crate::environment;

/// What is never taken from others.
pub const LEAVE_BYTES: u64 = 4 << 30;
/// A gibibyte, to print sizes.
pub const GIB: f64 = (1_u64 << 30) as f64;

/// Sizes of one run.
#[derive(Clone, Copy, Debug)]
pub struct Sizes {
    /// What a job takes at once.
    pub burst: u64,
    /// What the store holds before.
    pub store: u64,
    /// Room before the threshold is crossed.
    pub slack: u64,
    pub steps: u64,
    pub step: u64,
    pub teeth: u32,
    pub regrowth: Duration,
    /// What is never taken from others.
    pub leave: u64,
    pub quick: bool,
}

impl Sizes {
    /// As the scale and the memory that is available have it.
    pub fn of(scale: &Scale) -> Result<Self> {
        let quick = scale.free_bytes < 1 << 30;
        if quick {
            let regrowth = Duration::from_secs(1);
            let (burst, store) = (128 << 20, 256 << 20);
            let slack = 16 << 20;
            return Ok(Sizes {
                burst,
                store,
                slack,
                steps: 3,
                step: 32 << 20,
                teeth: 1,
                regrowth,
                leave: LEAVE_BYTES,
                quick,
            });
        }
        // A fixed store stays while the job takes: both must fit beside the floor.
        let room = environment::memory_available_bytes()?.saturating_sub(LEAVE_BYTES + (1 << 30));
        let burst = scale.free_bytes.min(room * 2 / 5) >> 22 << 22;
        let regrowth = Duration::from_secs(40);
        let (slack, step) = (256 << 20, 64 << 20);
        let store = burst + (512 << 20);
        let leave = LEAVE_BYTES;
        Ok(Sizes { burst, store, slack, steps: 32, step, teeth: 8, regrowth, leave, quick })
    }
}
