//! `tidepool control status`: the memory control as an operator wants to know it.

use tidepool_proto::Result;
use tidepool_proto::control::{ALARMS, ControlReport, ControlStatus, LeasedCeiling, PfsFull};

use super::decisions;
use crate::arguments::Facts;
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::output::{self, Colour, coloured, count, duration, size};

/// Decisions shown below the facts.
const DECISIONS_SHOWN: usize = 5;

/// Runs `control status`. It is not so where a controller should govern and does not.
pub fn status(facts: &Facts) -> Result<Outcome> {
    let status = super::ask(&facts.socket.connect())?;
    if facts.json {
        output::json(&status)?;
    } else {
        print(&status);
    }
    let is_missing = status.enabled && status.lease != "governed";
    Ok(if is_missing { Outcome::NotSo } else { Outcome::Done })
}

fn print(status: &ControlStatus) {
    output::line(&coloured(&title(status), Colour::Strong));
    let mut rows = vec![("store", store(status))];
    rows.extend(status.leased_ceiling.iter().map(|it| ("leased ceiling", leased_ceiling(it))));
    if let Some(report) = &status.report {
        rows.extend(report_rows(report));
    }
    if status.memory_only_bytes > 0 || status.write_back_bytes_per_s > 0 {
        let rate = match status.write_back_bytes_per_s {
            0 => "not measured yet".to_owned(),
            rate => format!("{}/s when measured", size(rate)),
        };
        rows.push(("in memory only", format!("{}, {rate}", size(status.memory_only_bytes))));
    }
    for (name, meaning) in ALARMS.iter().filter(|(name, _)| status.has_alarm(name)) {
        rows.push(("alarm", coloured(&format!("{name}: {meaning}"), Colour::Bad)));
    }
    rows.extend(status.pfs_full.iter().map(|full| ("no room", no_room(full))));
    rows.push(("history", history(status)));
    for setting in status.settings.iter().filter(|setting| setting.origin != "default") {
        rows.push(("setting", format!("{} ({})", super::setting(setting), setting.origin)));
    }
    for warning in &status.warnings {
        rows.push(("warning", coloured(warning, Colour::Warning)));
    }
    output::pairs(&rows);
    let events = &status.decisions[status.decisions.len().saturating_sub(DECISIONS_SHOWN)..];
    if !events.is_empty() {
        decisions::print(events);
    }
}

fn title(status: &ControlStatus) -> String {
    let process = status.process_id.map_or_else(String::new, |id| format!(" process {id}"));
    match (status.lease.as_str(), status.enabled) {
        ("governed", _) => {
            let since = status.attached_s.map(duration).unwrap_or_default();
            format!("memory control: governed by{process} for {since}")
        }
        ("expired", _) if status.process_id.is_none() => {
            "memory control: no controller has attached; the store keeps its guaranteed part \
             until one governs"
                .to_owned()
        }
        ("expired", _) => {
            let silent = status.silent_ms.unwrap_or(0);
            format!(
                "memory control: the controller{process} has been silent for {silent} ms; the \
                 store keeps its guaranteed part until one governs again"
            )
        }
        (_, true) => "memory control: waiting for the controller to attach".to_owned(),
        (_, false) => "memory control: off; the capacity stays as it is set".to_owned(),
    }
}

fn store(status: &ControlStatus) -> String {
    format!(
        "{} resident of {}, between {} guaranteed and {}; {} pinned or lent",
        size(status.resident_bytes),
        size(status.capacity_bytes),
        size(status.guaranteed_bytes),
        size(status.ceiling_bytes),
        size(status.held_bytes)
    )
}

/// A ceiling that holds for a while.
pub(in crate::commands) fn leased_ceiling(ceiling: &LeasedCeiling) -> String {
    let LeasedCeiling { ceiling_bytes, asked_bytes, left_ms, source } = ceiling;
    let asked = match asked_bytes == ceiling_bytes {
        true => String::new(),
        false => format!(" ({} were asked for)", size(*asked_bytes)),
    };
    format!("{}{asked} for {left_ms} ms more, by {source}", size(*ceiling_bytes))
}

fn report_rows(report: &ControlReport) -> Vec<(&'static str, String)> {
    let free = report.available_bytes.map_or("unknown".to_owned(), size);
    let mut rows = vec![
        (
            "demand",
            format!(
                "{} of {}, growing {}/s; {free} available",
                size(report.demand_bytes),
                size(report.memory_total_bytes),
                size(report.slope_bytes_per_s)
            ),
        ),
        ("target", format!("{} for all stores: {}", size(report.target_bytes), report.reason)),
        ("headroom", format!("{} kept free above the demand", size(report.headroom_bytes))),
        (
            "policy",
            format!("{}, {}, {}", report.policy, count(report.decisions, "decision"), report.level),
        ),
    ];
    if let Some(group) = &report.group {
        let (demand, limit) = (size(group.demand_bytes), size(group.limit_bytes));
        let left = size(group.available_bytes);
        let text = format!("demand {demand} of the {limit} of {}; {left} available", group.name);
        rows.insert(1, ("control group", text));
    }
    if report.reaction_us_max > 0 {
        let (median, max) = (report.reaction_us_median, report.reaction_us_max);
        let rate = size(report.release_bytes_per_s);
        let text = format!("half within {median} us, all within {max} us; {rate}/s come back");
        rows.push(("releases", text));
    }
    let others = report.stores.iter().filter(|store| store.name != "tidepool" || store.failed);
    for store in others {
        let failed = if store.failed { ", failed" } else { "" };
        let (held, of) = (size(store.resident_bytes), size(store.capacity_bytes));
        let leased = match store.capacity_max_bytes < store.capacity_configured_bytes {
            true => format!(", at most {} for now", size(store.capacity_max_bytes)),
            false => String::new(),
        };
        let kept = match store.held_bytes {
            0 => String::new(),
            bytes => format!(", {} of it did not go", size(bytes)),
        };
        let text = format!("{}: {held} of {of}{leased}{kept}{failed}", store.name);
        rows.push(("other store", text));
    }
    for note in &report.notes {
        rows.push(("degraded", coloured(note, Colour::Warning)));
    }
    rows
}

/// What the PFS refused, and what to do.
fn no_room(full: &PfsFull) -> String {
    let users: Vec<String> = full.users.iter().map(u32::to_string).collect();
    let remedy = match users.as_slice() {
        [] => "make room on the PFS".to_owned(),
        users => format!("raise the quota of user {}, or make room in it", users.join(", ")),
    };
    let unsynced = match full.dirty_bytes {
        0 => String::new(),
        bytes => format!("; {} of open files are not synced", size(bytes)),
    };
    let again = match full.again_s {
        Some(seconds) => format!("; tried again in {}", duration(seconds)),
        None => String::new(),
    };
    format!("for {}{unsynced}{again}: {remedy} ({})", duration(full.since_s), full.why)
}

fn history(status: &ControlStatus) -> String {
    format!(
        "{}, {} of {} ms expired, {}, {} refused, {}, {} of which {} ran out",
        count(status.attachments, "attachment"),
        count(status.expirations, "lease"),
        status.lease_ms,
        count(status.restarts, "restart"),
        status.refusals,
        count(status.foreign_changes, "foreign change"),
        count(status.ceiling_leases, "leased ceiling"),
        status.ceiling_expirations
    )
}
