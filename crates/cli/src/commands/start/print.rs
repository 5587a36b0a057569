//! Prints the configuration that a start took, for people.

use tidepool_daemon::Summary;
use tidepool_terminal::output::{self, Colour};

/// Prints it for people.
pub fn print(summary: &Summary) {
    let title =
        format!("node {} serves {} ({})", summary.process_id, summary.pfs, summary.pfs_type);
    output::line(&output::coloured(&title, Colour::Strong));
    let by_default = |names: &[&str]| {
        let all = names.iter().all(|name| summary.defaults.iter().any(|other| other == name));
        let mark = if all { " (default)" } else { "" };
        output::coloured(mark, Colour::Faint)
    };
    let pages = if summary.huge_pages { "2 MiB pages" } else { "4 KiB pages" };
    let capacity = output::size(summary.capacity_bytes);
    let limit = output::size(summary.memory_limit_bytes);
    let asked = match &summary.memory {
        share if share.ends_with('%') => format!("{share} of {limit}"),
        bytes if *bytes == capacity => format!("of {limit}"),
        bytes => format!("{bytes} in whole blocks, of {limit}"),
    };
    let default = by_default(&["memory"]);
    let memory = format!("{capacity} ({asked}, {}){default}", summary.memory_limit);
    let block = output::size(summary.block_bytes);
    let modes = format!("read {}, write {}", summary.read_mode, summary.write_mode);
    let mut rows = vec![
        ("mount", summary.mount.clone().unwrap_or_else(|| "none".to_owned())),
        ("socket", format!("{}{}", summary.socket, by_default(&["socket"]))),
        ("memory", memory),
        ("control", format!("{}{}", control_words(summary), by_default(&["control"]))),
        ("store", format!("blocks of {block} in {pages} of {}", summary.backing)),
        ("policy", format!("{}{}", summary.policy, by_default(&["policy"]))),
        ("modes", format!("{modes}{}", by_default(&["read_mode", "write_mode"]))),
        ("log", summary.log_file.clone().unwrap_or_else(|| "standard error".to_owned())),
    ];
    if let Some(address) = &summary.metrics_address {
        rows.push(("metrics", format!("http://{address}/metrics")));
    }
    for degraded in &summary.degraded {
        rows.push(("degraded", output::coloured(degraded, Colour::Warning)));
    }
    for note in &summary.notes {
        rows.push(("note", output::coloured(note, Colour::Warning)));
    }
    output::pairs(&rows);
}

/// What jobs may count on, and a warning where the machine has no room for it now.
fn control_words(summary: &Summary) -> String {
    let (kept_bytes, mut words) = match summary.control {
        true => {
            let min = output::size(summary.memory_min_bytes);
            (summary.memory_min_bytes, format!("on: jobs get the memory back, down to {min}"))
        }
        false => (summary.capacity_bytes, "off: jobs do not get the memory back".to_owned()),
    };
    if let Some(available) = summary.available_bytes.filter(|bytes| *bytes < kept_bytes) {
        let available = output::size(available);
        words += &format!(", and only {available} of the machine are available now");
        return output::coloured(&words, Colour::Warning);
    }
    words
}
