//! Reports the failure of a command: a line for people on standard error, and an object on standard
//! output for programs that asked for JSON, unless they have an answer there already.

use std::ffi::{OsStr, OsString};

use serde::Serialize;
use tidepool_proto::{Error, ErrorKind};

use crate::{interruption, output};

/// What programs read of an error.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Facts {
    /// Stable name of the kind; `interrupted` where the command was asked to stop.
    kind: String,
    /// What was being done, and what went wrong.
    message: String,
    /// What to do about it.
    remedy: Option<String>,
}

#[derive(Serialize)]
struct Failure {
    error: Facts,
}

impl Facts {
    /// Of an error.
    pub fn of(error: &Error) -> Facts {
        let remedy = error.remedy_text().map(str::to_owned);
        Facts { kind: kind_name(error.kind()), message: error.message(), remedy }
    }
}

/// The stable name of a kind.
pub fn kind_name(kind: ErrorKind) -> String {
    match serde_json::to_value(kind) {
        Ok(serde_json::Value::String(name)) => name,
        _ => String::new(),
    }
}

/// Says why the command failed.
pub fn tell(error: &Error) {
    let mut facts = Facts::of(error);
    if interruption::came() {
        facts.kind = "interrupted".to_owned();
    }
    tell_programs(facts);
    output::note(&format!("tidepool: {error}"));
}

/// Says to programs what is wrong with the arguments; people are told by the parser.
pub fn tell_usage(error: &clap::Error) {
    let text = error.render().to_string();
    let first = text.lines().next().unwrap_or_default();
    let message = first.strip_prefix("error: ").unwrap_or(first).to_owned();
    let remedy = Some("`--help` lists the arguments".to_owned());
    tell_programs(Facts { kind: kind_name(ErrorKind::InvalidInput), message, remedy });
}

fn tell_programs(error: Facts) {
    let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
    if wants_json(&arguments) && !output::has_printed() {
        // Facts are plain text, which becomes JSON.
        let _ = output::json(&Failure { error });
    }
}

/// Whether JSON is asked for. Arguments that cannot be read may ask for it as well. A daemon's
/// standard output is its log.
fn wants_json(arguments: &[OsString]) -> bool {
    let is = |argument: &OsStr, name: &str| {
        let bytes = argument.as_encoded_bytes().strip_prefix(name.as_bytes());
        bytes.is_some_and(|rest| rest.is_empty() || rest[0] == b'=')
    };
    let options = || arguments.iter().take_while(|argument| *argument != "--");
    options().any(|argument| is(argument, "--json"))
        && !options().any(|argument| is(argument, "--ready-descriptor"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_is_told_in_parts() {
        let error = Error::new(ErrorKind::NodeUnavailable, "asking", "nobody").remedy("start one");
        let facts = Facts::of(&error);
        assert_eq!(facts.kind, "node-unavailable");
        assert_eq!(facts.message, "while asking: nobody");
        assert_eq!(facts.remedy.as_deref(), Some("start one"));
        assert_eq!(error.to_string(), "while asking: nobody (start one)");
    }

    #[test]
    fn who_asks_for_json_is_known_by_the_arguments() {
        let wants = |arguments: &[&str]| {
            wants_json(&arguments.iter().map(OsString::from).collect::<Vec<_>>())
        };
        assert!(wants(&["status", "--json"]) && wants(&["top", "--json=2"]));
        assert!(!wants(&["status"]) && !wants(&["load", "--", "--json"]));
        assert!(!wants(&["load", "--jsonx"]));
        assert!(!wants(&["node", "start", "--json", "--ready-descriptor=3"]));
    }
}
