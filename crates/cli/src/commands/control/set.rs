//! `tidepool control set`: changes a setting of the running control.

use tidepool_proto::Result;
use tidepool_proto::admin::{AdminRequest, ConfigEntry};
use tidepool_proto::control::PARAMETER_PREFIX;
use tidepool_proto::option::option;

use super::arguments::SetArguments;
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::output;

/// Runs `control set` and prints what is in force then.
pub fn set(arguments: &SetArguments) -> Result<Outcome> {
    let node = arguments.facts.socket.connect();
    let name = full_name(&arguments.name);
    let value = arguments.value.clone();
    node.order(AdminRequest::SetControl { name: name.clone(), value }, None)?;
    let status = super::ask(&node)?;
    let entry = status.settings.into_iter().find(|entry| entry.name == name);
    let entry = entry.unwrap_or_else(|| ConfigEntry { name: name.clone(), ..Default::default() });
    if arguments.facts.json {
        output::json(&entry)?;
    } else {
        output::line(&super::setting(&entry));
    }
    for warning in &status.warnings {
        output::note(&format!("warning: {warning}"));
    }
    let is_missing = name == "control" && status.enabled && status.lease != "governed";
    if is_missing {
        output::note("no controller governs yet; the log of the node and `control status` say why");
    }
    Ok(if is_missing { Outcome::NotSo } else { Outcome::Done })
}

/// Parameters may be named without their prefix, and with dashes as flags are.
fn full_name(name: &str) -> String {
    let name = name.replace('-', "_");
    let prefixed = format!("{PARAMETER_PREFIX}{name}");
    if option(&name).is_none() || option(&prefixed).is_some() { prefixed } else { name }
}

#[cfg(test)]
mod tests {
    use super::full_name;

    #[test]
    fn names_may_be_short() {
        for (given, meant) in [
            ("gain", "control_gain"),
            ("control_gain", "control_gain"),
            ("hold-max-ms", "control_hold_max_ms"),
            ("memory_min", "memory_min"),
            ("policy", "control_policy"),
            ("control", "control"),
        ] {
            assert_eq!(full_name(given), meant);
        }
    }
}
