//! `tidepool control decisions`: what the controller changed lately, and why.

use std::time::{SystemTime, UNIX_EPOCH};

use tidepool_proto::Result;
use tidepool_proto::control::ControlEvent;

use super::arguments::DecisionsArguments;
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::output::{self, duration, size};

/// Runs `control decisions`.
pub fn decisions(arguments: &DecisionsArguments) -> Result<Outcome> {
    let status = super::ask(&arguments.facts.socket.connect())?;
    let all = &status.decisions;
    let latest = &all[all.len().saturating_sub(arguments.count)..];
    if arguments.facts.json {
        output::json(&latest)?;
    } else if latest.is_empty() {
        output::line("no decision changed anything yet");
    } else {
        print(latest);
    }
    Ok(Outcome::Done)
}

/// Prints decisions as a table, oldest first.
pub fn print(events: &[ControlEvent]) {
    let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis();
    let row = |event: &ControlEvent| {
        let age_ms = now_ms.saturating_sub(event.at_ms.into()) as u64;
        let age = match age_ms {
            0..10_000 => format!("{age_ms} ms ago"),
            _ => format!("{} ago", duration(age_ms / 1000)),
        };
        vec![
            age,
            size(event.demand_bytes),
            size(event.target_bytes),
            size(event.resident_bytes),
            event.reason.clone(),
        ]
    };
    let rows: Vec<Vec<String>> = events.iter().map(row).collect();
    let header = ["when", "demand", "target", "held", "why"];
    output::table(&header, &[true, true, true, true, false], &rows);
}
