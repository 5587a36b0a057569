//! `tidepool resize` and `tidepool policy`: change the capacity and the eviction policy of the
//! store.

use serde::Serialize;
use tidepool_proto::admin::{AdminRequest, FreeReport, PolicyChoice, StoreStatus};
use tidepool_proto::{Error, ErrorKind, Result};

use crate::arguments::{PolicyArguments, ResizeArguments};
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::interruption;
use tidepool_terminal::output::{self, Colour, coloured, size};

/// Runs `resize`.
pub fn resize(arguments: &ResizeArguments) -> Result<Outcome> {
    let node = arguments.facts.socket.connect();
    let interrupted = interruption::watch()?;
    let Some(report) = node.resize_until(arguments.size, &interrupted)? else {
        output::note(&format!(
            "interrupted: the new capacity, {}, stays, and the node goes on giving back what is \
             beyond it (`tidepool status` says how far it is)",
            arguments.size
        ));
        return Ok(Outcome::Interrupted);
    };
    let (asked, ceiling) = (size(report.asked_bytes), size(report.ceiling_bytes));
    // To two digits they may be the same.
    if asked != ceiling {
        output::note(&format!("{asked} is {ceiling} in whole blocks"));
    }
    if arguments.facts.json {
        output::json(&report)?;
    } else {
        output::line(&format!(
            "capacity is now {}, {} in use ({} freed in {:.1} ms)",
            size(report.capacity_bytes),
            size(report.resident_bytes),
            size(report.freed_bytes),
            report.elapsed_ms
        ));
    }
    if report.capacity_bytes < report.ceiling_bytes {
        output::note(&format!(
            "a controller governs the store: {ceiling} is its new upper limit, and it decides \
             below it"
        ));
    }
    let over_bytes = report.resident_bytes.saturating_sub(report.ceiling_bytes);
    if over_bytes == 0 {
        return Ok(Outcome::Done);
    }
    let over = size(over_bytes);
    if report.ceiling_bytes >= report.ceiling_before_bytes {
        output::note(&format!(
            "{over} beyond it are still held from before (pinned, open or dirty); they go when \
             they may"
        ));
        return Ok(Outcome::Done);
    }
    output::note(&format!(
        "{over} beyond the new capacity are held (pinned, open or dirty); they go when they may"
    ));
    Ok(Outcome::NotSo)
}

/// Prints what was freed.
pub fn print_freed(what: &str, report: &FreeReport) {
    let held = match report.held_bytes {
        0 => String::new(),
        bytes => {
            let text = format!(", {} held (pinned, open or dirty)", size(bytes));
            coloured(&text, Colour::Warning)
        }
    };
    output::line(&format!(
        "{what}: {} freed in {:.1} ms, {} of {} resident{held}",
        size(report.freed_bytes),
        report.elapsed_ms,
        size(report.resident_bytes),
        size(report.capacity_bytes)
    ));
}

#[derive(Serialize)]
struct PolicyReport {
    policy: String,
    /// Absent with policies that follow no other.
    #[serde(skip_serializing_if = "Option::is_none")]
    choice: Option<PolicyChoice>,
}

/// Runs `policy`.
pub fn policy(arguments: &PolicyArguments) -> Result<Outcome> {
    let node = arguments.facts.socket.connect();
    if let Some(policy) = arguments.name.clone() {
        node.order(AdminRequest::SetPolicy { policy }, None)?;
    }
    let StoreStatus { policy, policy_choice: choice, .. } = node.status()?.store;
    if let Some(wanted) = &arguments.name
        && *wanted != policy
    {
        let detail = format!("the node still runs `{policy}`");
        return Err(Error::new(ErrorKind::Internal, "changing the policy", detail));
    }
    if arguments.facts.json {
        output::json(&PolicyReport { policy, choice })?;
    } else {
        let choice = choice.map(|choice| format!(": {}", choice.words()));
        output::line(&format!("{policy}{}", choice.unwrap_or_default()));
    }
    Ok(Outcome::Done)
}
