//! Control theory of the paper's policy (an integrator of gain λ), before it runs: limits of
//! stability, settling, ramp errors. It refuses nothing; [`Parameters::check`] does.
//!
//! Without delay and with a full store, equation 4-1 of the dissertation gives the used memory
//! `v' = v (1 + λ (1 - v / V))`: the logistic map with the parameter 1 + λ. Near the target it is
//! `e' = e - λ e(i - d)`, with d whole intervals of delay.
//!
//! [`Parameters::check`]: super::Parameters::check

use serde::{Deserialize, Serialize};

/// Gain above which a cycle of four follows the cycle of two: √6.
const FOUR_CYCLE: f64 = 2.449_489_742_783_178;
/// Gain at which cycles of eight begin.
const EIGHT_CYCLE: f64 = 2.544_09;
/// Gain at which period doubling has no end.
const CHAOS: f64 = 2.569_945_7;
/// Gain above which used memory leaves every bound.
const ESCAPE: f64 = 3.0;
/// Steps after which a loop counts as never settling.
const STEPS_MAX: u32 = 100_000;

/// How a loop behaves after a step of the demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Behaviour {
    /// The gain is zero or less: the target is never reached.
    Inert,
    /// Reaches the target without passing it.
    Monotone,
    /// Passes the target and settles.
    Damped,
    /// Swings around the target for ever, with this period in intervals.
    Cycle(u32),
    /// Never settles and never repeats.
    Unstable,
    /// Leaves every bound.
    Escapes,
}

impl Behaviour {
    /// Whether the loop comes to rest at its target.
    pub fn settles(self) -> bool {
        matches!(self, Behaviour::Monotone | Behaviour::Damped)
    }
}

/// Largest stable gain with `delay_intervals` whole intervals of delay beyond the one of the loop:
/// `2 sin(π / (2 (2 d + 1)))`; 2, 1, 0.618, 0.445, 0.347, 0.285 for 0 to 5.
pub fn stability_limit(delay_intervals: u32) -> f64 {
    let periods = 2.0 * f64::from(delay_intervals) + 1.0;
    2.0 * (std::f64::consts::FRAC_PI_2 / periods).sin()
}

/// Largest gain without overshoot: `d^d / (d + 1)^(d + 1)`; 1, 0.25, 0.148, ... from 0.
pub fn monotone_limit(delay_intervals: u32) -> f64 {
    let delay = f64::from(delay_intervals);
    // d^d / (d + 1)^(d + 1), written so that large delays do not overflow.
    (delay / (delay + 1.0)).powf(delay) / (delay + 1.0)
}

/// Factor by which the gain may grow before the loop is unstable; 3 is a good one. Loops on one
/// node add their gains.
pub fn gain_margin(gain: f64, delay_intervals: u32) -> f64 {
    stability_limit(delay_intervals) / gain
}

/// Behaviour of the paper's law. Without delay this is exact for a full store; with delay it is
/// that of small errors.
pub fn behaviour(gain: f64, delay_intervals: u32) -> Behaviour {
    if gain.is_nan() || gain <= 0.0 {
        return Behaviour::Inert;
    }
    if gain <= monotone_limit(delay_intervals) {
        return Behaviour::Monotone;
    }
    if gain < stability_limit(delay_intervals) {
        return Behaviour::Damped;
    }
    match (delay_intervals, gain) {
        (0, gain) if gain <= FOUR_CYCLE => Behaviour::Cycle(2),
        (0, gain) if gain <= EIGHT_CYCLE => Behaviour::Cycle(4),
        (0, gain) if gain < CHAOS => Behaviour::Cycle(8),
        (0, gain) if gain > ESCAPE => Behaviour::Escapes,
        _ => Behaviour::Unstable,
    }
}

/// Intervals until the error of a step stays within the share `tolerance` of the step, for small
/// errors; `None` where it never does.
pub fn settling_intervals(gain: f64, delay_intervals: u32, tolerance: f64) -> Option<u32> {
    if !behaviour(gain, delay_intervals).settles() || tolerance.is_nan() || tolerance <= 0.0 {
        return None;
    }
    let delay = delay_intervals as usize;
    // The error now and the ones that are still to act, newest first.
    let mut errors = vec![1.0_f64; delay + 1];
    let mut within_since = None;
    for step in 1..=STEPS_MAX {
        let next = errors[0] - gain * errors[delay];
        errors.rotate_right(1);
        errors[0] = next;
        if next.abs() > tolerance {
            within_since = None;
            continue;
        }
        let since = *within_since.get_or_insert(step);
        // The sum of all that is still to act bounds what can come back.
        let left: f64 = errors.iter().map(|error| error.abs()).sum();
        if left <= tolerance || step - since > 20 * (delay_intervals + 1) {
            return Some(since);
        }
    }
    None
}

/// Bytes by which an integrating loop lags behind a demand that grows by `slope_bytes_per_s`:
/// `g T / λ`.
pub fn ramp_error_bytes(slope_bytes_per_s: f64, interval_s: f64, gain: f64) -> f64 {
    slope_bytes_per_s * interval_s / gain
}

/// Bytes above the target when the demand grows faster than memory is given back, after
/// `duration_s`: `(g - R) t`. No policy helps.
pub fn actuator_excess_bytes(slope_bytes_per_s: f64, release_bytes_per_s: f64, time_s: f64) -> f64 {
    (slope_bytes_per_s - release_bytes_per_s).max(0.0) * time_s
}
