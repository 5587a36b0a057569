//! Arguments of `tidepool control simulate`, `replay` and `tune`, and the reading of parameters.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use serde_json::{Map, Value};
use tidepool_control_policy::{ControlPolicy, Parameters};
use tidepool_model::{Bytes, BytesPerSecond};
use tidepool_proto::{Error, ErrorKind, Result};

/// Arguments of `control simulate`.
#[derive(Args, Debug)]
pub struct SimulateArguments {
    /// Demand of jobs over time: CSV or JSON with columns such as time_s and demand_bytes
    #[arg(value_name = "TRACE", value_hint = ValueHint::FilePath)]
    pub trace: PathBuf,
    /// Policy; several are run side by side [default: tidepool]
    #[arg(long = "policy", value_name = "NAME", value_parser = policy)]
    pub policies: Vec<ControlPolicy>,
    /// Parameter of the policies, such as headroom_bytes=4GiB or hold_ms=3000
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub settings: Vec<String>,
    /// Memory of the node [default: that of this machine]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// Largest capacity of the store, which is full at the start [default: half of the memory]
    #[arg(long, value_name = "SIZE")]
    pub store: Option<Bytes>,
    /// Guaranteed part of the store
    #[arg(long, value_name = "SIZE", default_value = "0B")]
    pub store_min: Bytes,
    /// Rate at which the store gives memory back
    #[arg(long, value_name = "RATE", default_value = "125GB/s")]
    pub release: BytesPerSecond,
    /// Time from a command to its first effect
    #[arg(long, value_name = "MILLISECONDS", default_value_t = 1)]
    pub delay_ms: u64,
    /// The store has 4 KiB pages, which hide in lists of the kernel when they are freed
    #[arg(long)]
    pub small_pages: bool,
    /// Readings of the sensors are off by up to this
    #[arg(long, value_name = "SIZE", default_value = "1MiB")]
    pub sensor_noise: Bytes,
    /// Draw demand, store, target and free memory into this file, .svg or .png
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub picture: Option<PathBuf>,
    /// Write the decisions of the first policy into this file, for `control replay`
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub log: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `control replay`.
#[derive(Args, Debug)]
pub struct ReplayArguments {
    /// Log of decisions
    #[arg(value_name = "LOG", value_hint = ValueHint::FilePath)]
    pub log: PathBuf,
    /// Draw demand, store, target and free memory into this file, .svg or .png
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub picture: Option<PathBuf>,
    /// Print JSON, with every decision of the log and its reason
    #[arg(long)]
    pub json: bool,
}

/// Arguments of `control tune`.
#[derive(Args, Debug)]
pub struct TuneArguments {
    /// Take what was measured, and the present parameters, from this log of decisions
    #[arg(long, value_name = "LOG", value_hint = ValueHint::FilePath)]
    pub log: Option<PathBuf>,
    /// Policy [default: that of the log, or tidepool]
    #[arg(long, value_name = "NAME", value_parser = policy)]
    pub policy: Option<ControlPolicy>,
    /// Present parameter, such as gain=0.5, where it is not the default or that of the log
    #[arg(long = "set", value_name = "NAME=VALUE")]
    pub settings: Vec<String>,
    /// Memory of the node [default: that of the log, or of this machine]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// Largest capacity of the stores
    #[arg(long, value_name = "SIZE")]
    pub store: Option<Bytes>,
    /// Guaranteed part of the stores
    #[arg(long, value_name = "SIZE")]
    pub store_min: Option<Bytes>,
    /// Measured rate at which the stores give memory back
    #[arg(long, value_name = "RATE")]
    pub release: Option<BytesPerSecond>,
    /// Measured time from a command until memory is back
    #[arg(long, value_name = "MILLISECONDS", value_parser = milliseconds)]
    pub delay_ms: Option<f64>,
    /// Steepest growth of the demand that was seen
    #[arg(long, value_name = "RATE")]
    pub growth: Option<BytesPerSecond>,
    /// Print JSON
    #[arg(long)]
    pub json: bool,
}

/// Reads the name of a policy.
fn policy(text: &str) -> std::result::Result<ControlPolicy, String> {
    let named = serde_json::from_value(Value::from(text));
    named.map_err(|_| "is none of tidepool, dynims, dynims-printed, static".to_owned())
}

/// Reads a time.
fn milliseconds(text: &str) -> std::result::Result<f64, String> {
    let number = text.parse().ok().filter(|ms: &f64| ms.is_finite() && *ms >= 0.0);
    number.ok_or_else(|| "is no time in milliseconds".to_owned())
}

/// Name of a policy.
pub fn policy_name(policy: ControlPolicy) -> String {
    serde_json::to_value(policy)
        .ok()
        .and_then(|name| name.as_str().map(str::to_owned))
        .unwrap_or_default()
}

fn refuse(setting: &str, detail: String, remedy: String) -> Error {
    Error::new(ErrorKind::InvalidInput, format!("reading --set {setting}"), detail).remedy(remedy)
}

/// `parameters` with settings such as `hold_ms=3000` applied.
pub fn with_settings(parameters: &Parameters, settings: &[String]) -> Result<Parameters> {
    let internal = |error: serde_json::Error| {
        Error::new(ErrorKind::Internal, "reading parameters", error.to_string())
    };
    let mut fields: Map<String, Value> =
        serde_json::to_value(parameters).and_then(serde_json::from_value).map_err(internal)?;
    for setting in settings {
        let form = || "write it like hold_ms=3000".to_owned();
        let (name, text) = setting
            .split_once('=')
            .ok_or_else(|| refuse(setting, "there is no `=`".to_owned(), form()))?;
        let Some(field) = fields.get_mut(name) else {
            let names: Vec<&str> = fields.keys().map(String::as_str).collect();
            let detail = format!("there is no parameter `{name}`");
            return Err(refuse(setting, detail, format!("name one of {}", names.join(", "))));
        };
        *field = value(setting, name, text, field)?;
    }
    let text = Value::Object(fields);
    serde_json::from_value(text).map_err(|error| {
        let detail = error.to_string();
        refuse(&settings.join(" "), detail, "give values that fit the parameters".to_owned())
    })
}

/// The value of one parameter: sizes and rates may have units.
fn value(setting: &str, name: &str, text: &str, before: &Value) -> Result<Value> {
    let wrong = |error: Error| refuse(setting, error.detail().to_owned(), "give a size".to_owned());
    if name.ends_with("_bytes_per_s") && text.parse::<u64>().is_err() {
        let rate: BytesPerSecond = text.parse().map_err(wrong)?;
        return Ok(Value::from(rate.get() as u64));
    }
    if name.ends_with("_bytes") && text.parse::<u64>().is_err() {
        let size: Bytes = text.parse().map_err(wrong)?;
        return Ok(Value::from(size.get() as u64));
    }
    if before.is_string() {
        return Ok(Value::from(text));
    }
    let number = match before {
        Value::Number(number) if number.is_u64() => text.parse::<u64>().ok().map(Value::from),
        _ => text.parse::<f64>().ok().filter(|number| number.is_finite()).map(Value::from),
    };
    number.ok_or_else(|| {
        let example = format!("write it like {name}={before}");
        refuse(setting, format!("`{text}` is not such a number"), example)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_change_what_they_name_and_nothing_else() {
        let settings = ["hold_ms=7", "headroom_bytes=4GiB", "growth_bytes_per_s=2GB/s", "gain=1"];
        let settings = settings.map(str::to_owned);
        let changed = with_settings(&Parameters::default(), &settings).unwrap();
        let expected = Parameters {
            hold_ms: 7,
            headroom_bytes: 4 << 30,
            growth_bytes_per_s: 2_000_000_000,
            gain: 1.0,
            ..Parameters::default()
        };
        assert_eq!(changed, expected);
        for (setting, said) in [
            ("hold_ms", "no `=`"),
            ("hold=1", "no parameter `hold`"),
            ("hold_ms=-1", "not such a number"),
            ("gain=NaN", "not such a number"),
            ("headroom_bytes=4", ""),
            ("headroom_bytes=4furlongs", "unknown unit"),
            ("policy=best", "unknown variant"),
        ] {
            let changed = with_settings(&Parameters::default(), &[setting.to_owned()]);
            match changed {
                Ok(_) => assert!(said.is_empty(), "{setting}"),
                Err(error) => {
                    assert!(!said.is_empty() && error.to_string().contains(said), "{error}");
                }
            }
        }
    }
}
