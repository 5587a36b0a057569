//! Parameters for a node from what was measured there, each with its reason, and what the present
//! ones risk. It changes nothing by itself.

use serde::{Deserialize, Serialize};

use tidepool_control_policy::analysis::{ramp_error_bytes, stability_limit};
use tidepool_control_policy::{ControlPolicy, NodeFacts, Parameters, Warning, headroom_bytes};

use crate::Bytes;

/// Shortest and longest interval that are recommended, in milliseconds.
const INTERVAL_MS: (u64, u64) = (5, 10);
/// Slowest and fastest growth that are recommended, in bytes per second.
const GROWTH: (u64, u64) = (500_000_000, 2_000_000_000);

/// Why a parameter has its recommended value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reasoned {
    /// Name of the field of [`Parameters`].
    pub parameter: String,
    /// Its value, with unit.
    pub value: String,
    /// Why.
    pub reason: String,
}

/// Parameters that fit a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Recommendation {
    /// The parameters, complete.
    pub parameters: Parameters,
    /// Why, one entry for each that was derived.
    pub reasons: Vec<Reasoned>,
    /// What the present parameters risk; a refusal is among them as its message.
    pub risks: Vec<Warning>,
}

/// Recommends parameters for a node with these facts, under the policy of `present`.
pub fn recommend(facts: &NodeFacts, present: &Parameters) -> Recommendation {
    let mut advised = Parameters { policy: present.policy, ..Parameters::default() };
    let mut reasons = Vec::new();
    let mut note = |parameter: &str, value: String, reason: String| {
        let parameter = parameter.to_owned();
        reasons.push(Reasoned { parameter, value, reason });
    };
    let growth = facts.growth_bytes_per_s;
    let paper = matches!(present.policy, ControlPolicy::Dynims | ControlPolicy::DynimsPrinted);
    let (interval, reason) = interval(facts, paper);
    advised.interval_ms = interval;
    note("interval_ms", format!("{interval} ms"), reason);
    if facts.delay_ms > 0.0 {
        advised.actuation_delay_ms = facts.delay_ms.ceil() as u64;
        let value = format!("{} ms", advised.actuation_delay_ms);
        note("actuation_delay_ms", value, "the measured time until memory is back".to_owned());
    }
    advised.slope_window_ms = 4 * interval;
    let value = format!("{} ms", advised.slope_window_ms);
    note("slope_window_ms", value, "four readings tell a ramp from a step".to_owned());
    advised.hold_ms = advised.hold_ms.max(20 * advised.actuation_delay_ms);
    advised.hold_max_ms = advised.hold_max_ms.max(10 * advised.hold_ms);
    let value = format!("{} ms", advised.hold_ms);
    note("hold_ms", value, "at least twenty times the time until memory is back".to_owned());
    advised.headroom_bytes = headroom(facts, &advised);
    if advised.headroom_bytes > 0 {
        let reason = format!(
            "jobs take up to {}/s, the stores give {}/s",
            Bytes::whole(growth),
            Bytes::whole(facts.release_bytes_per_s)
        );
        note("headroom_bytes", Bytes::whole(advised.headroom_bytes).to_string(), reason);
    }
    if facts.release_bytes_per_s > 0 {
        advised.growth_bytes_per_s = (facts.release_bytes_per_s / 5).clamp(GROWTH.0, GROWTH.1);
        let value = format!("{}/s", Bytes::whole(advised.growth_bytes_per_s));
        note("growth_bytes_per_s", value, "a fifth of the release rate, 0.5 to 2 GB/s".to_owned());
    }
    if paper {
        let (gain, reason) = gain(facts, interval);
        advised.gain = gain;
        note("gain", format!("{gain:.3}"), reason);
    }
    Recommendation { parameters: advised, reasons, risks: risks(facts, present) }
}

/// What the parameters risk on this node.
fn risks(facts: &NodeFacts, present: &Parameters) -> Vec<Warning> {
    match present.check(facts) {
        Ok(warnings) => warnings,
        Err(refusal) => {
            let parameter = refusal.operation().trim_start_matches("checking ").to_owned();
            vec![Warning { parameter, text: refusal.detail().to_owned() }]
        }
    }
}

/// The interval: the time in which jobs take half of what the headroom keeps for surprises.
fn interval(facts: &NodeFacts, paper: bool) -> (u64, String) {
    if paper {
        let interval = ControlPolicy::Dynims.interval_ms().max(facts.delay_ms.ceil() as u64);
        let reason = "the paper's; a shorter one only adds intervals of delay".to_owned();
        return (interval, reason);
    }
    let (min, max) = INTERVAL_MS;
    if facts.growth_bytes_per_s == 0 || facts.memory_total_bytes == 0 {
        return (max, "the growth of the demand is not known".to_owned());
    }
    let spare = facts.memory_total_bytes as f64 * 3.0 / 512.0;
    let time_ms = spare / 2.0 / facts.growth_bytes_per_s as f64 * 1e3;
    let reason = format!("jobs take half of the spare headroom in {time_ms:.0} ms");
    ((time_ms as u64).clamp(min, max), reason)
}

/// An explicit headroom where the derived one is not enough; 0 where it is.
fn headroom(facts: &NodeFacts, advised: &Parameters) -> u64 {
    let total = facts.memory_total_bytes;
    let growth = facts.growth_bytes_per_s as f64;
    if total == 0 || growth == 0.0 {
        return 0;
    }
    let reaction_s = (2 * advised.interval_ms + advised.actuation_delay_ms) as f64 / 1e3;
    let release = facts.release_bytes_per_s as f64;
    let short = if release > 0.0 { (growth - release).max(0.0) * 0.1 } else { 0.0 };
    let watermarks = (2 * facts.watermark_high_bytes).max(total / 256) + total / 512;
    let needed = (watermarks + (growth * reaction_s + short) as u64).min(total / 10);
    if needed <= headroom_bytes(total, advised) { 0 } else { needed }
}

/// A gain with a margin of three for the measured delay, and not above the paper's 0.5.
fn gain(facts: &NodeFacts, interval_ms: u64) -> (f64, String) {
    let delay = facts.delay_intervals(interval_ms);
    let gain = (stability_limit(delay) / 3.0).min(0.5);
    let lag = ramp_error_bytes(facts.growth_bytes_per_s as f64, interval_ms as f64 / 1e3, gain);
    let reason = format!(
        "a third of the limit {:.3} at a delay of {delay} intervals, at most 0.5; a ramp leads \
         by {}",
        stability_limit(delay),
        Bytes::whole(lag as u64)
    );
    (gain, reason)
}
