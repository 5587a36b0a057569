//! `tidepool resize` and `tidepool policy`: the store as a whole.

use serde::Serialize;
use tidepool_proto::admin::{AdminRequest, FreeReport, PolicyChoice, StoreStatus};
use tidepool_proto::{Error, ErrorKind, MemorySize, Result};

use crate::arguments::{PolicyArguments, ResizeArguments};
use crate::exit::Outcome;
use crate::output::{self, Colour, coloured, size};
use crate::{interruption, machine};

/// Runs `resize`.
pub fn resize(arguments: &ResizeArguments) -> Result<Outcome> {
    let node = arguments.facts.socket.connect();
    let status = node.status()?;
    let wanted_bytes = match arguments.size {
        MemorySize::Bytes(bytes) => bytes,
        share @ MemorySize::Percent(_) => {
            share.resolve(machine::memory_limit_of(status.process_id)?.bytes)
        }
    };
    let block_bytes = status.store.block_bytes.max(1);
    let capacity_bytes = wanted_bytes / block_bytes * block_bytes;
    if capacity_bytes < wanted_bytes {
        let (wanted, block) = (size(wanted_bytes), size(block_bytes));
        if capacity_bytes == 0 {
            let detail = format!("{wanted} is less than one block of {block}");
            return Err(Error::new(ErrorKind::InvalidInput, "resizing the store", detail)
                .remedy("ask for at least one block, or for 0 to empty it"));
        }
        let capacity = size(capacity_bytes);
        // To two digits they may be the same.
        if capacity != wanted {
            output::note(&format!("{wanted} is {capacity} in whole blocks of {block}"));
        }
    }
    let interrupted = interruption::watch()?;
    let Some(report) = node.free_until(AdminRequest::Resize { capacity_bytes }, &interrupted)?
    else {
        let capacity = size(capacity_bytes);
        output::note(&format!(
            "interrupted: the new capacity, {capacity}, stays, and the node goes on giving back \
             what is beyond it (`tidepool status` says how far it is)"
        ));
        return Ok(Outcome::Interrupted);
    };
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
    if report.capacity_bytes < capacity_bytes {
        output::note(&format!(
            "a controller governs the store: {} is its new upper limit, and it decides below it",
            size(capacity_bytes)
        ));
    }
    let over_bytes = report.resident_bytes.saturating_sub(capacity_bytes);
    if over_bytes == 0 {
        return Ok(Outcome::Done);
    }
    let over = size(over_bytes);
    if capacity_bytes >= status.control.ceiling_bytes {
        output::note(&format!(
            "{over} beyond it are still held from before (pinned, open or owed); they go when they \
             may"
        ));
        return Ok(Outcome::Done);
    }
    output::note(&format!(
        "{over} beyond the new capacity are held (pinned, open or owed); they go when they may"
    ));
    Ok(Outcome::NotSo)
}

/// Prints what was freed.
pub fn print_freed(what: &str, report: &FreeReport) {
    let held = match report.held_bytes {
        0 => String::new(),
        bytes => {
            let text = format!(", {} held (pinned, open or owed)", size(bytes));
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
