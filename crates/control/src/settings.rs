//! Converts settings of the node, text in the grammar of its options, to the parameters of the
//! policies. The name of an option is `control_` and the name of the parameter; the table of
//! options has the grammar, `Parameters` the meaning.

use serde_json::{Map, Value};
use tidepool_control_policy::Parameters;
use tidepool_proto::control::{ControlSetting, PARAMETER_PREFIX};
use tidepool_proto::option::{OptionKind, option};
use tidepool_proto::{ByteSize, Error, ErrorKind, Result};

/// The parameters that `settings` ask for; those not named keep their defaults.
///
/// # Errors
///
/// `InvalidInput` where a name is no parameter or a value is not valid for it.
pub fn parameters(settings: &[ControlSetting]) -> Result<Parameters> {
    let mut fields = Map::new();
    for ControlSetting { name, value } in settings {
        let invalid = |why: &str| {
            Error::new(ErrorKind::InvalidInput, format!("setting `{name}`"), why.to_owned())
                .remedy("`tidepool control status` lists the settings and their values")
        };
        let field = name
            .strip_prefix(PARAMETER_PREFIX)
            .ok_or_else(|| invalid("it is no parameter of a control policy"))?;
        let spec = option(name).ok_or_else(|| invalid("there is no such setting"))?;
        spec.kind.check(value).map_err(|why| invalid(&format!("`{value}` {why}")))?;
        let value = typed(spec.kind, value.trim()).ok_or_else(|| invalid("it has no number"))?;
        fields.insert(field.to_owned(), value);
    }
    let read = serde_json::from_value::<Parameters>(Value::Object(fields));
    let mut parameters = read.map_err(|error| {
        Error::new(ErrorKind::InvalidInput, "reading the control's settings", error.to_string())
            .remedy("use the same release on both sides")
    })?;
    if parameters.interval_ms == 0 {
        parameters.interval_ms = parameters.policy.interval_ms();
    }
    Ok(parameters)
}

fn typed(kind: OptionKind, text: &str) -> Option<Value> {
    Some(match kind {
        OptionKind::Bytes { .. } => text.parse::<ByteSize>().ok()?.0.into(),
        OptionKind::Count { .. } => text.parse::<u64>().ok()?.into(),
        OptionKind::Share | OptionKind::Number { .. } => text.parse::<f64>().ok()?.into(),
        _ => text.into(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use tidepool_proto::control::parameter_options;

    fn setting(name: &str, value: &str) -> ControlSetting {
        ControlSetting { name: name.to_owned(), value: value.to_owned() }
    }

    #[test]
    fn options_and_parameters_are_the_same_with_the_same_defaults() {
        let defaults: Vec<ControlSetting> = parameter_options()
            .map(|spec| setting(spec.name, spec.default.expect("every parameter has a default")))
            .collect();
        assert_eq!(parameters(&defaults).unwrap(), Parameters::default());
        let fields = serde_json::to_value(Parameters::default()).unwrap();
        let fields = fields.as_object().unwrap();
        for field in fields.keys() {
            let name = format!("{PARAMETER_PREFIX}{field}");
            assert!(option(&name).is_some_and(|spec| spec.live), "`{name}` is no live option");
        }
        assert_eq!(fields.len(), defaults.len());
    }

    #[test]
    fn every_policy_and_alarm_has_its_name_in_the_tables() {
        use tidepool_control_policy::{Alarm, ControlPolicy};
        use tidepool_proto::control::{ALARMS, CONTROL_POLICIES, PFS_FULL};
        for (name, _) in CONTROL_POLICIES {
            serde_json::from_value::<ControlPolicy>(name.into()).unwrap();
            parameters(&[setting("control_policy", name)]).unwrap();
        }
        for (name, _) in ALARMS.iter().filter(|(name, _)| *name != PFS_FULL) {
            serde_json::from_value::<Alarm>((*name).into()).unwrap();
        }
    }

    #[test]
    fn each_policy_has_its_own_interval_unless_one_is_set() {
        let interval_ms = |policy: &str, set: &str| {
            let set = setting("control_interval_ms", set);
            parameters(&[setting("control_policy", policy), set]).unwrap().interval_ms
        };
        for (policy, interval) in
            [("tidepool", 10), ("static", 10), ("dynims", 100), ("dynims-printed", 100)]
        {
            assert_eq!(interval_ms(policy, "0"), interval, "{policy}");
            assert_eq!(interval_ms(policy, "20"), 20, "{policy}");
        }
    }

    #[test]
    fn units_are_understood_and_bad_values_refused() {
        let changed = parameters(&[
            setting("control_headroom_bytes", "2GiB"),
            setting("control_gain", "1"),
            setting("control_hold_ms", " 5 "),
        ])
        .unwrap();
        let wanted =
            Parameters { headroom_bytes: 2 << 30, gain: 1.0, hold_ms: 5, ..Parameters::default() };
        assert_eq!(changed, wanted);
        for (name, value) in [
            ("control_gain", "-1"),
            ("control_gain", "much"),
            ("control_speed", "1"),
            ("memory", "1GiB"),
            ("control_lease_ms", "1000"),
        ] {
            let error = parameters(&[setting(name, value)]).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::InvalidInput, "{name} {value}: {error}");
        }
    }
}
