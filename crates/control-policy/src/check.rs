//! Checks whether parameters fit a node before they are used: refusals where the loop would be
//! unstable or meaningless, warnings where it would be poor; each with the figure that matters. It
//! measures nothing: it is given the facts.

use serde::{Deserialize, Serialize};
use tidepool_proto::{ByteSize, Error, ErrorKind, Result};

use super::analysis::{behaviour, gain_margin, monotone_limit, stability_limit};
use super::{Behaviour, ControlPolicy, Parameters, headroom_bytes};

/// Margin of the gain that is recommended.
const MARGIN: f64 = 3.0;

/// What is known of a node and its stores. Zero: not known.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeFacts {
    /// Memory of the node in bytes.
    pub memory_total_bytes: u64,
    /// Sum of the kernel's high watermarks in bytes.
    pub watermark_high_bytes: u64,
    /// Bytes that all stores together keep.
    pub capacity_min_bytes: u64,
    /// Bytes that all stores together may hold at most.
    pub capacity_max_bytes: u64,
    /// Unit of a capacity in bytes.
    pub block_bytes: u64,
    /// Measured time from a command until memory is back, in milliseconds.
    pub delay_ms: f64,
    /// Measured rate at which the stores give memory back.
    pub release_bytes_per_s: u64,
    /// Steepest growth of the demand that was seen.
    pub growth_bytes_per_s: u64,
}

impl NodeFacts {
    /// Measured delay in whole intervals, rounded up.
    pub fn delay_intervals(&self, interval_ms: u64) -> u32 {
        (self.delay_ms / interval_ms.max(1) as f64).ceil() as u32
    }
}

/// Something that works, but not well.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// Name of the field of [`Parameters`] or [`NodeFacts`].
    pub parameter: String,
    /// What will happen, with the figure, and what would be better.
    pub text: String,
}

fn warning(parameter: &str, text: String) -> Warning {
    Warning { parameter: parameter.to_owned(), text }
}

fn refuse(parameter: &str, detail: String, remedy: String) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("checking {parameter}"), detail).remedy(remedy)
}

/// As everywhere where memory is meant: in binary units.
fn size(bytes: u64) -> ByteSize {
    ByteSize(bytes)
}

impl Parameters {
    /// Checks the parameters against each other and against what is known of the node.
    ///
    /// # Errors
    /// `InvalidInput` for the first parameter under which the loop would be unstable or without
    /// meaning, with the figure and what to set instead.
    pub fn check(&self, facts: &NodeFacts) -> Result<Vec<Warning>> {
        self.refuse_meaningless()?;
        self.refuse_sizes(facts)?;
        if self.is_paper() {
            self.refuse_unstable(facts)?;
        }
        let mut warnings = Vec::new();
        self.warn_times(facts, &mut warnings);
        self.warn_rates(facts, &mut warnings);
        self.warn_sizes(facts, &mut warnings);
        if self.is_paper() {
            self.warn_paper(facts, &mut warnings);
        }
        Ok(warnings)
    }

    fn is_paper(&self) -> bool {
        matches!(self.policy, ControlPolicy::Dynims | ControlPolicy::DynimsPrinted)
    }

    fn refuse_meaningless(&self) -> Result<()> {
        let times = [
            ("interval_ms", self.interval_ms, 1, 10_000),
            ("actuation_delay_ms", self.actuation_delay_ms, 0, 60_000),
            ("slope_window_ms", self.slope_window_ms, 1, 60_000),
            ("hold_ms", self.hold_ms, 0, 3_600_000),
            ("hold_max_ms", self.hold_max_ms, self.hold_ms, 86_400_000),
        ];
        for (name, value, min, max) in times {
            if !(min..=max).contains(&value) {
                let detail = format!("{value} ms is not between {min} ms and {max} ms");
                return Err(refuse(name, detail, format!("set {min} to {max}")));
            }
        }
        let shares = [
            ("used_share_target", self.used_share_target, 0.1, 1.0),
            ("growth_band_share", self.growth_band_share, 0.0, 0.5),
            ("disagreement_share", self.disagreement_share, 0.001, 0.5),
        ];
        for (name, value, min, max) in shares {
            if !(min..=max).contains(&value) {
                let detail = format!("{value} is no share between {min} and {max}");
                return Err(refuse(name, detail, format!("set {min} to {max}")));
            }
        }
        if !self.gain.is_finite() || self.gain <= 0.0 {
            let detail = format!("a gain of {} never reaches the target", self.gain);
            return Err(refuse("gain", detail, "set 0.5".to_owned()));
        }
        Ok(())
    }

    fn refuse_sizes(&self, facts: &NodeFacts) -> Result<()> {
        let (min, max) = (facts.capacity_min_bytes, facts.capacity_max_bytes);
        if max > 0 && min > max {
            let detail =
                format!("the guaranteed part {} is above the capacity {}", size(min), size(max));
            let remedy = "lower the guaranteed part, or raise the capacity".to_owned();
            return Err(refuse("capacity_min_bytes", detail, remedy));
        }
        let total = facts.memory_total_bytes;
        let asked = self.headroom_bytes;
        if total == 0 || asked == 0 {
            return Ok(());
        }
        let derived = headroom_bytes(total, &Parameters { headroom_bytes: 0, ..self.clone() });
        let remedy = format!("set 0 (derived here: {})", size(derived));
        if asked >= total {
            let detail = format!("{} leave nothing of the node's {}", size(asked), size(total));
            return Err(refuse("headroom_bytes", detail, remedy));
        }
        if asked < facts.watermark_high_bytes {
            let detail = format!(
                "{} is below the kernel's high watermark of {}: it would reclaim all the time",
                size(asked),
                size(facts.watermark_high_bytes)
            );
            return Err(refuse("headroom_bytes", detail, remedy));
        }
        Ok(())
    }

    fn refuse_unstable(&self, facts: &NodeFacts) -> Result<()> {
        let delay = facts.delay_intervals(self.interval_ms);
        let found = behaviour(self.gain, delay);
        if found.settles() {
            return Ok(());
        }
        let limit = stability_limit(delay);
        let how = match found {
            Behaviour::Cycle(period) => format!("swings for ever with a period of {period}"),
            Behaviour::Escapes => "leaves every bound".to_owned(),
            _ => "never settles".to_owned(),
        };
        let detail = format!(
            "a gain of {} with a delay of {delay} intervals of {} ms {how}; the limit is \
             {limit:.3}",
            self.gain, self.interval_ms
        );
        Err(refuse("gain", detail, format!("set {:.2} or less", limit / MARGIN)))
    }

    fn warn_times(&self, facts: &NodeFacts, warnings: &mut Vec<Warning>) {
        let interval = self.interval_ms;
        if interval > 100 {
            let text =
                format!("{interval} ms until a change is seen; 10 is usual, 100 the paper's");
            warnings.push(warning("interval_ms", text));
        }
        let window = self.slope_window_ms / interval.max(1);
        if !(2..=16).contains(&window) && self.policy == ControlPolicy::Tidepool {
            let text = format!(
                "{} ms are {window} intervals; 2 to 16 are used, 4 are good",
                self.slope_window_ms
            );
            warnings.push(warning("slope_window_ms", text));
        }
        if facts.delay_ms > self.actuation_delay_ms as f64 {
            let text = format!(
                "memory comes back after {:.0} ms, but only {} ms are foreseen; set {:.0}",
                facts.delay_ms,
                self.actuation_delay_ms,
                facts.delay_ms.ceil()
            );
            warnings.push(warning("actuation_delay_ms", text));
        }
    }

    fn warn_rates(&self, facts: &NodeFacts, warnings: &mut Vec<Warning>) {
        let (release, growth) = (facts.release_bytes_per_s, facts.growth_bytes_per_s);
        if self.growth_bytes_per_s == 0 {
            warnings.push(warning("growth_bytes_per_s", "the store never grows back".to_owned()));
        }
        if release > 0 && self.growth_bytes_per_s > release / 2 {
            let text = format!(
                "grows by {}/s where only {}/s come back",
                size(self.growth_bytes_per_s),
                size(release)
            );
            warnings.push(warning("growth_bytes_per_s", text));
        }
        if release > 0 && growth > release {
            let text = format!(
                "jobs take up to {}/s, the stores give {}/s: each second of that lacks {}, \
                 whatever the policy; use 2 MiB pages or more headroom",
                size(growth),
                size(release),
                size(growth - release)
            );
            warnings.push(warning("headroom_bytes", text));
        }
    }

    fn warn_sizes(&self, facts: &NodeFacts, warnings: &mut Vec<Warning>) {
        let total = facts.memory_total_bytes;
        if total == 0 {
            return;
        }
        let headroom = headroom_bytes(total, self);
        let derived = headroom_bytes(total, &Parameters { headroom_bytes: 0, ..self.clone() });
        if headroom < derived {
            let text =
                format!("{} is less than this node needs: {}", size(headroom), size(derived));
            warnings.push(warning("headroom_bytes", text));
        }
        if facts.capacity_min_bytes > total - headroom.min(total) {
            let text = format!(
                "the guaranteed part {} and the headroom {} are more than the node's {}",
                size(facts.capacity_min_bytes),
                size(headroom),
                size(total)
            );
            warnings.push(warning("capacity_min_bytes", text));
        }
        if facts.block_bytes > total / 100 {
            let text =
                format!("a block of {} is coarse for {}", size(facts.block_bytes), size(total));
            warnings.push(warning("block_bytes", text));
        }
    }

    fn warn_paper(&self, facts: &NodeFacts, warnings: &mut Vec<Warning>) {
        let delay = facts.delay_intervals(self.interval_ms);
        let margin = gain_margin(self.gain, delay);
        if margin < MARGIN {
            let text = format!(
                "{} is stable, but with a margin of {margin:.1} at a delay of {delay} intervals; \
                 {:.2} would have {MARGIN}",
                self.gain,
                stability_limit(delay) / MARGIN
            );
            warnings.push(warning("gain", text));
        }
        if self.gain > monotone_limit(delay) {
            let text = format!(
                "{} passes the target before it settles; up to {:.3} does not",
                self.gain,
                monotone_limit(delay)
            );
            warnings.push(warning("gain", text));
        }
        if self.policy == ControlPolicy::DynimsPrinted {
            let text = "as printed the law never gives capacity back; `dynims` does".to_owned();
            warnings.push(warning("policy", text));
        }
    }
}
