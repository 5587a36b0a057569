//! Draws a site for people: as `tidepool status` does, with tables of sites, racks and jobs.

use tidepool_terminal::output::{self, Colour, coloured, count, size};

use super::view::{Group, Groups, Site};

/// Letters of a name that are shown in tables.
const NAME_CHARS_MAX: usize = 40;

/// Prints a site.
pub fn site(site: &Site) {
    output::line(&coloured(&title(site), Colour::Strong));
    if site.span_ms > 0 {
        output::pairs(&rows(site));
    }
    for alarm in &site.alarms {
        let colour = if alarm.is_critical { Colour::Bad } else { Colour::Warning };
        let head = coloured("alarm", colour);
        output::hanging(&format!("{head}  "), &format!("{}: {}", alarm.text, alarm.remedy));
    }
    table("site", &site.sites);
    table("rack", &site.racks);
    table("job", &site.jobs);
}

fn title(site: &Site) -> String {
    if site.span_ms == 0 {
        return format!("plane: nothing is known of it in the topic {}", site.topic);
    }
    let plane = site.plane.as_deref().unwrap_or("unknown");
    let policy = site.policy.as_deref().unwrap_or("unknown");
    let age = match site.age_ms {
        Some(age_ms) => format!("{:.1} s old", age_ms as f64 / 1000.0),
        None => "of unknown age".to_owned(),
    };
    format!("plane: run {plane}, policy {policy}; summary {age}")
}

fn rows(site: &Site) -> Vec<(&'static str, String)> {
    let sums = &site.sums;
    let lag = site.lag_ms.map_or("unknown lag".to_owned(), |lag_ms| format!("lag {lag_ms} ms"));
    vec![
        ("nodes", format!("{} heard from, {} silent", sums.nodes, sums.silent_nodes)),
        ("samples", format!("{:.0} a second, {lag}", site.samples_per_s)),
        (
            "decisions",
            format!(
                "{:.0} a second, {:.1} ceilings sent a second",
                site.decisions_per_s, site.ceilings_per_s
            ),
        ),
        (
            "memory",
            format!(
                "{} used by jobs, {} available of {}",
                size(sums.demand_bytes),
                size(sums.available_bytes),
                size(sums.memory_total_bytes)
            ),
        ),
        (
            "stores",
            format!(
                "{} resident, capacity {}, ceilings {}",
                size(sums.resident_bytes),
                size(sums.capacity_bytes),
                size(sums.ceiling_bytes)
            ),
        ),
    ]
}

fn table(what: &str, groups: &Groups) {
    if groups.first.is_empty() {
        return;
    }
    let mut heads = vec![what, "nodes", "silent", "demand", "available", "resident", "ceilings"];
    let is_job = groups.first.iter().any(|group| group.job_bytes.is_some());
    if is_job {
        heads[3] = "job's memory";
    }
    let right: Vec<bool> = (0..heads.len()).map(|column| column > 0).collect();
    let cells: Vec<Vec<String>> = groups.first.iter().map(row).collect();
    output::line("");
    output::table(&heads, &right, &cells);
    let more = groups.count - groups.first.len();
    if more > 0 {
        output::line(&format!("and {}; --top shows more", count(more as u64, what)));
    }
}

fn row(group: &Group) -> Vec<String> {
    let name = match &group.name {
        Some(name) => format!("{}/{name}", group.cluster),
        None => group.cluster.clone(),
    };
    let sums = &group.sums;
    vec![
        shortened(&name),
        sums.nodes.to_string(),
        sums.silent_nodes.to_string(),
        size(group.job_bytes.unwrap_or(sums.demand_bytes)),
        size(sums.available_bytes),
        size(sums.resident_bytes),
        size(sums.ceiling_bytes),
    ]
}

/// Long names keep their end, in which they differ.
fn shortened(name: &str) -> String {
    let length = name.chars().count();
    if length <= NAME_CHARS_MAX {
        return name.to_owned();
    }
    let end: String = name.chars().skip(length + 3 - NAME_CHARS_MAX).collect();
    format!("...{end}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_names_keep_their_end() {
        assert_eq!(shortened("site1/r1"), "site1/r1");
        let shown = shortened(&format!("{}/r17", "x".repeat(200)));
        assert_eq!(shown.chars().count(), NAME_CHARS_MAX);
        assert!(shown.starts_with("...") && shown.ends_with("/r17"), "{shown}");
    }
}
