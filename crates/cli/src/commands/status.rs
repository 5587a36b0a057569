//! `tidepool status`: facts and counters of the node.

use tidepool_proto::admin::{NodeReport, Status, TransferStatus};
use tidepool_proto::buffer::{BufferStatus, OwedFile};
use tidepool_proto::cluster::{ChangesShown, ChangesVerdict, ClusterStatus, CopiesStatus};
use tidepool_proto::control::{ALARMS, ControlStatus};
use tidepool_proto::{Level, Result};

use crate::arguments::StatusArguments;
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::output::{self, Colour, coloured, count, percent, size};

/// Runs `status`.
pub fn status(arguments: &StatusArguments) -> Result<Outcome> {
    let facts = &arguments.facts;
    if arguments.cluster {
        let nodes = facts.socket.connect().cluster_status()?;
        match facts.json {
            true => output::json(&nodes)?,
            false => print_nodes(&nodes),
        }
        return Ok(Outcome::Done);
    }
    if arguments.owed {
        let owed = facts.socket.connect().owed()?;
        match facts.json {
            true => output::json(&owed)?,
            false => print_owed(&owed),
        }
        return Ok(Outcome::Done);
    }
    let status = facts.socket.connect().status()?;
    if facts.json {
        output::json(&status)?
    } else {
        print(&status)
    }
    Ok(Outcome::Done)
}

fn print(status: &Status) {
    let title = format!(
        "node {} ({}) over {} ({}), up {}",
        status.process_id,
        status.version,
        status.pfs,
        status.pfs_type,
        output::duration(status.uptime_s)
    );
    output::line(&coloured(&title, Colour::Strong));
    let mut rows = vec![
        ("mount", status.mount.clone().unwrap_or_else(|| "none".to_owned())),
        ("socket", status.socket.clone()),
        ("modes", modes(status)),
    ];
    rows.extend(store_rows(status));
    rows.extend(traffic_rows(status));
    rows.push(("transfers since start", transfers(&status.transfers)));
    rows.push(("control", control(&status.control)));
    let leased = status.control.leased_ceiling.iter();
    rows.extend(leased.map(|it| ("leased ceiling", super::control::status::leased_ceiling(it))));
    rows.push(("open files", format!("{}, clients {}", status.open_files, status.clients)));
    rows.push(("dirty data", dirty(status)));
    if let Some(cluster) = &status.cluster {
        rows.push(("cluster", cluster_row(cluster)));
        rows.extend(copies_row(&cluster.copies).map(|text| ("copies", text)));
        rows.extend(owed_row(&cluster.copies).map(|text| ("owed to the PFS", text)));
        rows.extend(strangers(cluster).map(|text| ("not of it", coloured(&text, Colour::Warning))));
        rows.extend(
            cluster.changes_shown.as_ref().map(|shown| ("changes elsewhere", sight(shown))),
        );
    }
    rows.extend(status.buffer.as_ref().map(|it| ("burst buffer", buffer_row(it))));
    if status.draining {
        let text = "new opens are refused until `tidepool node drain --undo`";
        rows.push(("draining", coloured(text, Colour::Warning)));
    }
    if status.traces > 0 {
        rows.push(("tracing", count(status.traces, "trace")));
    }
    for degraded in &status.degraded {
        rows.push(("degraded", coloured(degraded, Colour::Warning)));
    }
    output::pairs(&rows);
}

fn print_owed(files: &[OwedFile]) {
    for file in files {
        let OwedFile { path, bytes, age_s, node, answered_by, servers, stays_because } = file;
        output::line(&format!(
            "{path}: {} for {}, in memory of {node}, in burst buffers of {}; {answered_by} answers \
             for it",
            size(*bytes),
            output::duration(*age_s),
            servers.join(", ")
        ));
        if let Some(reason) = stays_because {
            output::line(&format!("  it stays there: {reason}"));
        }
    }
    if files.is_empty() {
        output::line("this node knows of nothing that burst buffers owe");
    }
}

fn modes(status: &Status) -> String {
    let mut text = format!("read {}, write {}", status.read_mode, status.write_mode);
    let lists = [(status.directory_rules, "directory rule"), (status.user_quotas, "user quota")];
    let lists: Vec<String> = lists
        .into_iter()
        .filter(|(number, _)| *number > 0)
        .map(|(number, noun)| count(number, noun))
        .collect();
    if !lists.is_empty() {
        text += &format!("; {} (`tidepool config` has them)", lists.join(", "));
    }
    text
}

fn transfers(transfers: &TransferStatus) -> String {
    let TransferStatus { fills, fills_joined, fills_discarded, fills_not_admitted, .. } = transfers;
    format!(
        "{} brought in, {} asked for by read-ahead; {} coalesced, {fills_discarded} \
         discarded, {fills_not_admitted} not admitted; {} invalidated, {} written back",
        count(*fills, "block"),
        transfers.read_ahead_blocks,
        count(*fills_joined, "request"),
        count(transfers.versions_invalidated, "version"),
        size(transfers.written_back_bytes)
    )
}

/// The memory control in a line; `tidepool control status` has the rest.
fn control(control: &ControlStatus) -> String {
    let alarms = ALARMS.iter().filter(|(name, _)| control.has_alarm(name));
    let alarms: Vec<&str> = alarms.map(|(name, _)| *name).collect();
    let state = match (control.lease.as_str(), control.enabled, &control.report) {
        ("governed", _, Some(report)) => format!(
            "demand {}, target {}: {}",
            size(report.demand_bytes),
            size(report.target_bytes),
            report.reason
        ),
        ("governed", _, None) => "governed".to_owned(),
        ("expired", _, _) => {
            coloured("no controller; only the guaranteed part is kept", Colour::Bad)
        }
        (_, true, _) => coloured("waiting for the controller", Colour::Warning),
        (_, false, _) => "off".to_owned(),
    };
    if alarms.is_empty() {
        return state;
    }
    format!("{state}; {}", coloured(&format!("alarms: {}", alarms.join(", ")), Colour::Bad))
}

fn store_rows(status: &Status) -> Vec<(&'static str, String)> {
    let store = &status.store;
    let pages = if store.huge_pages { "2 MiB pages" } else { "4 KiB pages" };
    let memory = format!(
        "{} of {} ({}), peak {}, pinned {} ({} held by mappings), bookkeeping {}",
        size(store.resident_bytes),
        size(store.capacity_bytes),
        percent(store.resident_bytes, store.capacity_bytes),
        size(store.resident_bytes_peak),
        size(store.pinned_bytes),
        size(store.lingering_bytes),
        size(store.bookkeeping_bytes)
    );
    let contents = format!(
        "{} in segments, {} packed, {} evicted; of a data set: tidepool explain -r DIR",
        count(store.segments, "file"),
        store.small_files,
        count(store.evicted_blocks, "block")
    );
    let block = size(store.block_bytes);
    let policy = match &store.policy_choice {
        Some(choice) => format!("{} ({} at present)", store.policy, choice.chosen),
        None => store.policy.clone(),
    };
    vec![
        ("memory", memory),
        ("contents", contents),
        ("store", format!("{policy}, blocks of {block} in {pages} of {}", store.backing)),
    ]
}

fn traffic_rows(status: &Status) -> Vec<(&'static str, String)> {
    let levels = Level::ALL.iter().filter(|level| status.served.get(**level) > 0);
    let levels: Vec<String> = levels
        .map(|level| format!("{} {}", level.name(), size(status.served.get(*level))))
        .collect();
    let mut rows = vec![("hit ratio", hit_ratio(status))];
    if status.transfers.passthrough_opens > 0 {
        rows.push(("opens", opens(status)));
    }
    if !levels.is_empty() {
        rows.push(("by level", levels.join(", ")));
    }
    if status.failed_bytes > 0 {
        rows.push(("failed", coloured(&size(status.failed_bytes), Colour::Bad)));
    }
    let lower = format!(
        "{} read from the PFS, {} written to it, {} written by programs",
        size(status.pfs_read_bytes),
        size(status.pfs_written_bytes),
        size(status.written_bytes)
    );
    rows.push(("transfers", lower));
    rows
}

/// What is known of the hit ratio: the kernel tells nobody what it reads by itself.
fn hit_ratio(status: &Status) -> String {
    let Some((least, estimated)) = status.hit_ratio_at_least.zip(status.hit_ratio_estimated) else {
        return "no reads yet".to_owned();
    };
    let (least, estimated) = (least * 100.0, estimated * 100.0);
    let counted = size(status.served.total());
    match status.transfers.passthrough_opens {
        0 => format!("{least:.1}% of {counted} read"),
        _ if status.served.pfs == 0 => "100.0%: nothing that was read came from the PFS".to_owned(),
        _ => format!(
            "at least {least:.1}% of {counted} counted; about {estimated:.1}% if each open below \
             read its file once"
        ),
    }
}

/// The opens that the kernel reads by itself, among all.
fn opens(status: &Status) -> String {
    let TransferStatus { passthrough_opens, passthrough_bytes, .. } = status.transfers;
    format!(
        "{passthrough_opens} of {} served from memory by the kernel alone, files of {} together; \
         how much of them it reads it tells nobody",
        status.reading_opens.max(passthrough_opens),
        size(passthrough_bytes)
    )
}

/// The other nodes in a line; `tidepool status --cluster` has a row for each.
fn cluster_row(cluster: &ClusterStatus) -> String {
    let ClusterStatus { blocks_fetched, blocks_missed, blocks_served, .. } = cluster;
    format!(
        "{} of {} in {} alive{}; {} from other nodes, {blocks_missed} asked for in vain, {} given",
        cluster.alive(),
        count(cluster.members.len() as u64 + 1, "node"),
        cluster.cluster,
        if cluster.encrypted { ", encrypted" } else { "" },
        count(*blocks_fetched, "block"),
        count(*blocks_served, "block"),
    )
}

/// Copies of memory-only files, here and elsewhere; `None` where there are, and were, none.
fn copies_row(copies: &CopiesStatus) -> Option<String> {
    if *copies == CopiesStatus::default() {
        return None;
    }
    let CopiesStatus { files, held, held_bytes, missing, put_in_place, .. } = copies;
    Some(format!(
        "others hold those of {}; {} held for others ({}); {missing} were missing, {put_in_place} \
         took the place of their file",
        count(*files, "file"),
        held,
        size(*held_bytes),
    ))
}

/// What burst buffers owe to the PFS of files of this node and others; `None` where it is nothing.
fn owed_row(copies: &CopiesStatus) -> Option<String> {
    let CopiesStatus { owed_files, owed_bytes, owed_oldest_s, answered_for, .. } = copies;
    if *owed_files + *answered_for == 0 {
        return None;
    }
    let age =
        owed_oldest_s.map_or(String::new(), |age| format!(" for up to {}", output::duration(age)));
    let held_to = copies.write_back_bytes_per_s.map(|rate| format!("; at most {}/s", size(rate)));
    Some(format!(
        "{} ({}) of this node, in burst buffers{age}; it answers for {} of others{}",
        count(*owed_files, "file"),
        size(*owed_bytes),
        count(*answered_for, "file"),
        held_to.unwrap_or_default(),
    ))
}

/// The burst buffer: what it has, and what of it the PFS does not have.
fn buffer_row(buffer: &BufferStatus) -> String {
    let BufferStatus { memory_bytes, memory_limit_bytes, owed_blocks, owed_bytes, .. } = buffer;
    let mut text = format!("{} of {} in memory", size(*memory_bytes), size(*memory_limit_bytes));
    match buffer.disk_limit_bytes {
        Some(limit) => {
            text += &format!(", {} of {} on its disk", size(buffer.disk_bytes), size(limit));
        }
        None => text += ", no disk: what it owes is lost with the node",
    }
    let age = buffer
        .owed_oldest_s
        .map_or(String::new(), |age| format!(" for up to {}", output::duration(age)));
    text += &format!("; {} ({}) owed{age}", count(*owed_blocks, "block"), size(*owed_bytes));
    if buffer.waiting_writers > 0 {
        text += &coloured(&format!("; full: {} wait", buffer.waiting_writers), Colour::Warning);
    }
    if buffer.failed_blocks > 0 {
        let failed = format!("; {} failed, see the log", count(buffer.failed_blocks, "block"));
        text += &coloured(&failed, Colour::Bad);
    }
    text
}

/// How soon changes of another node showed here.
fn sight(shown: &ChangesShown) -> String {
    let node = &shown.node;
    let warning = |text: String| coloured(&text, Colour::Warning);
    match shown.verdict() {
        ChangesVerdict::AtOnce => format!("of {node} are seen at once"),
        ChangesVerdict::StalePages => {
            warning(format!("of {node} are seen here, not by programs that read the PFS itself"))
        }
        ChangesVerdict::LateMs(took) => warning(format!("of {node} are seen after {took} ms")),
        ChangesVerdict::HiddenVersions => warning(format!("of {node} are not seen")),
        ChangesVerdict::HiddenBytes => warning(format!("of {node} are seen, not their bytes")),
    }
}

/// Nodes that are alive and with which no bytes are exchanged.
fn strangers(cluster: &ClusterStatus) -> impl Iterator<Item = String> {
    let refused = cluster.members.iter().filter(|member| member.state == "alive");
    refused.filter_map(|member| {
        let because = member.refused_because.as_ref()?;
        Some(format!("{}: {because}", member.node))
    })
}

fn print_nodes(nodes: &[NodeReport]) {
    let header = ["node", "state", "memory", "hit ratio", "from peers", "to peers", "from the PFS"];
    let right = [false, false, true, true, true, true, true];
    let row = |node: &NodeReport| {
        let Some(status) = &node.status else {
            let why = node.error.clone().unwrap_or_default();
            let missing = || "-".to_owned();
            let state = format!("{} ({why})", node.state);
            let [a, b, c, d, e] = [(); 5].map(|()| missing());
            return vec![node.node.clone(), state, a, b, c, d, e];
        };
        let store = &status.store;
        let ratio = status.hit_ratio_at_least.map(|share| format!("{:.1}%", share * 100.0));
        vec![
            node.node.clone(),
            node.state.clone(),
            format!("{} of {}", size(store.resident_bytes), size(store.capacity_bytes)),
            ratio.unwrap_or_else(|| "-".to_owned()),
            size(status.peer_read_bytes),
            size(status.peer_served_bytes),
            size(status.pfs_read_bytes),
        ]
    };
    output::table(&header, &right, &nodes.iter().map(row).collect::<Vec<_>>());
}

fn dirty(status: &Status) -> String {
    if status.dirty_bytes == 0 && status.memory_only_bytes == 0 {
        return "none".to_owned();
    }
    let age = status.dirty_age_ms.map(|age| format!(", oldest {age} ms")).unwrap_or_default();
    let text = format!(
        "{} under way to the PFS{age}; {} in {} in memory only",
        size(status.dirty_bytes),
        size(status.memory_only_bytes),
        count(status.memory_only_files, "file")
    );
    coloured(&text, Colour::Warning)
}
