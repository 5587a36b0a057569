//! Parameters of the policies, all changeable while the controller runs.

use serde::{Deserialize, Serialize};
use tidepool_proto::control::policy_interval_ms;

/// The policies.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ControlPolicy {
    /// Demand estimate, absolute target, slope feed-forward, slow growth.
    #[default]
    Tidepool,
    /// The control law of the DynIMS paper (dissertation, equation 4-1) as printed, dead band
    /// included.
    DynimsPrinted,
    /// The same policy with its two faults corrected.
    Dynims,
    /// A fixed size.
    Static,
}

impl ControlPolicy {
    /// Time between two decisions in milliseconds where nobody set one.
    pub fn interval_ms(self) -> u64 {
        let name = match self {
            ControlPolicy::Tidepool => "tidepool",
            ControlPolicy::Dynims => "dynims",
            ControlPolicy::DynimsPrinted => "dynims-printed",
            ControlPolicy::Static => "static",
        };
        policy_interval_ms(name)
    }
}

/// Parameters of all policies.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Parameters {
    /// Which policy decides.
    pub policy: ControlPolicy,
    /// Time between two decisions in milliseconds.
    pub interval_ms: u64,
    /// Bytes kept free for jobs above their present demand. 0: derived from the node.
    pub headroom_bytes: u64,
    /// Time from a command until memory is back, for the slope feed-forward, in milliseconds.
    pub actuation_delay_ms: u64,
    /// Window of the slope in milliseconds.
    pub slope_window_ms: u64,
    /// Time without growth after a shrink in milliseconds; doubles on flapping.
    pub hold_ms: u64,
    /// Upper bound of the doubled hold in milliseconds.
    pub hold_max_ms: u64,
    /// Rate of growth in bytes per second.
    pub growth_bytes_per_s: u64,
    /// Growth stops this far below the target, as a share of the node's memory (at least 2 blocks).
    pub growth_band_share: f64,
    /// Two estimates may differ by this share of the node's memory.
    pub disagreement_share: f64,
    /// Gain λ of the paper's law.
    pub gain: f64,
    /// Target share r0 of used memory of the paper's law.
    pub used_share_target: f64,
}

impl Default for Parameters {
    fn default() -> Self {
        Parameters {
            policy: ControlPolicy::Tidepool,
            interval_ms: 10,
            headroom_bytes: 0,
            actuation_delay_ms: 10,
            slope_window_ms: 40,
            hold_ms: 2_000,
            hold_max_ms: 60_000,
            growth_bytes_per_s: 2 << 30,
            growth_band_share: 0.005,
            disagreement_share: 0.03,
            gain: 0.5,
            used_share_target: 0.95,
        }
    }
}
