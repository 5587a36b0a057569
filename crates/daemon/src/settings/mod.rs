//! Options of a node as they were set. Gathers them from configuration file, environment and
//! command line, in that order of precedence from low to high. What the values mean is decided by
//! `tidepool_proto::resolve`.

mod file;

use std::ffi::OsString;
use std::path::Path;

use tidepool_proto::option::{OPTIONS, Origin, RawConfig, RawOptions, Setting};
use tidepool_proto::{Error, ErrorKind, Result};

/// Environment variables that are ours without being options.
const OTHER_VARIABLES: [&str; 1] = ["TIDEPOOL_CONFIG"];

/// Everything that was set, with warnings about what is probably a mistake.
pub fn gather(
    file: Option<&Path>,
    environment: impl Iterator<Item = (OsString, OsString)>,
    flags: &RawOptions,
) -> Result<(RawConfig, Vec<String>)> {
    let mut raw = match file {
        Some(path) => file::read(path)?,
        None => RawConfig::default(),
    };
    let warnings = overlay_environment(&mut raw.options, environment)?;
    for spec in OPTIONS {
        if let Some(setting) = flags.get(spec.name) {
            *raw.options.slot(spec.name).expect("every option has a slot") = Some(setting.clone());
        }
    }
    Ok((raw, warnings))
}

fn overlay_environment(
    options: &mut RawOptions,
    environment: impl Iterator<Item = (OsString, OsString)>,
) -> Result<Vec<String>> {
    let mut warnings = Vec::new();
    let ours = environment.filter_map(|(name, value)| {
        let name = name.into_string().ok().filter(|name| name.starts_with("TIDEPOOL_"))?;
        Some((name, value))
    });
    for (name, value) in ours {
        let Some(spec) = OPTIONS.iter().find(|spec| spec.environment() == name) else {
            if !OTHER_VARIABLES.contains(&name.as_str()) {
                let known = OPTIONS.iter().map(|spec| spec.environment());
                let meant = did_you_mean(&name, known);
                warnings.push(format!("environment variable {name} is no option{meant}"));
            }
            continue;
        };
        let text = value.into_string().map_err(|_| {
            let operation = format!("reading environment variable {name}");
            Error::new(ErrorKind::InvalidInput, operation, "the value is not UTF-8")
        })?;
        *options.slot(spec.name).expect("every option has a slot") =
            Some(Setting { text, origin: Origin::Environment(name) });
    }
    Ok(warnings)
}

/// ` (did you mean ...?)` for the most similar of `known`, or nothing.
pub fn did_you_mean(text: &str, known: impl Iterator<Item = String>) -> String {
    let scored = known.map(|name| (strsim::jaro_winkler(text, &name), name));
    let best = scored.max_by(|(left, _), (right, _)| left.total_cmp(right));
    match best {
        Some((score, name)) if score > 0.8 => format!(" (did you mean `{name}`?)"),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests;
