//! The headroom: bytes that stay free for jobs above their present demand.
//!
//! `headroom_bytes` of the parameters, or where that is 0:
//!
//! `H = M/256 + M/512 + g0 (2 T + t_act)`, not below M/128 and not above M/20
//!
//! - M/256: twice the kernel's high watermark, which is about 0.2 % of a node;
//! - M/512: freed pages that no counter shows yet;
//! - g0 (2 T + t_act): what jobs take at g0 = 10 GB/s until a reading, a decision and the release.
//!   g0 is one processor filling huge pages.
//!
//! Growth keeps more free, so that what was learned never causes an eviction by itself:
//!
//! `H_growth = H + max(0, g - g0) (2 T + t_act) + max(0, g - R) t_burst`, not above M/10
//!
//! where g is the steepest growth of the demand seen lately, R the measured release rate of the
//! stores, and t_burst = 100 ms.

use super::{Parameters, Snapshot};

/// Growth of the demand that is expected of any node, in bytes per second.
pub(super) const GROWTH_PRIOR_BYTES_PER_S: f64 = 10e9;
const BURST_S: f64 = 0.1;
/// Time constant with which the steepest growth is forgotten, in seconds.
const FORGET_S: f64 = 600.0;

/// Time from a change of the demand to memory given back: one interval until it is read, one until
/// the next command, and the actuator.
pub(super) fn reaction_s(parameters: &Parameters) -> f64 {
    let interval_ms = parameters.interval_ms.saturating_mul(2);
    interval_ms.saturating_add(parameters.actuation_delay_ms) as f64 / 1e3
}

/// Headroom in bytes by which jobs are served; the same for the same node and parameters.
pub fn headroom_bytes(memory_total_bytes: u64, parameters: &Parameters) -> u64 {
    let total = memory_total_bytes;
    if parameters.headroom_bytes > 0 {
        return parameters.headroom_bytes.min(total);
    }
    let growth = (GROWTH_PRIOR_BYTES_PER_S * reaction_s(parameters)) as u64;
    (total / 256 + total / 512).saturating_add(growth).min(total / 20).max(total / 128)
}

/// The part of the headroom that is learned, for growth alone.
#[derive(Default)]
pub(super) struct Learned {
    steepest_bytes_per_s: f64,
}

impl Learned {
    /// Takes in the slope of `dt_s` seconds and returns the bytes that growth keeps free on top.
    pub(super) fn update(&mut self, slope: u64, dt_s: f64, s: &Snapshot, p: &Parameters) -> u64 {
        let forgotten = self.steepest_bytes_per_s * (dt_s / FORGET_S).min(1.0);
        self.steepest_bytes_per_s = (self.steepest_bytes_per_s - forgotten).max(slope as f64);
        let steepest = self.steepest_bytes_per_s;
        let release = release_bytes_per_s(s).map_or(f64::INFINITY, |rate| rate as f64);
        let late = (steepest - GROWTH_PRIOR_BYTES_PER_S).max(0.0) * reaction_s(p);
        let short = (steepest - release).max(0.0) * BURST_S;
        let bound = (s.memory_total_bytes / 10).saturating_sub(s.memory_total_bytes / 20);
        ((late + short) as u64).min(bound)
    }
}

/// Rate at which the stores together give memory back; `None` while no store's was measured.
pub(super) fn release_bytes_per_s(snapshot: &Snapshot) -> Option<u64> {
    let works = |store: &&super::StoreState| !store.failed && store.resident_bytes > 0;
    let rates = snapshot.stores.iter().filter(works).map(|store| store.release_bytes_per_s);
    let sum = rates.fold(0, u64::saturating_add);
    (sum > 0).then_some(sum)
}
