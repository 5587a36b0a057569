//! The plane's own state as metrics: gauges in the text format of Prometheus, for the files that
//! its node exporter reads. Metrics of a node itself are in `proto/src/administration/metric.rs`.

use tidepool_terminal::output;

use super::alarms;
use super::view::Site;

/// A gauge: its name, what it says, its value where there is one.
type Gauge = (&'static str, &'static str, fn(&Site) -> Option<f64>);

/// All gauges without labels.
const GAUGES: [Gauge; 15] = [
    ("tidepool_plane_nodes", "Nodes that the job heard from.", |it| whole(it.sums.nodes)),
    ("tidepool_plane_nodes_silent", "Nodes that are silent.", |it| whole(it.sums.silent_nodes)),
    ("tidepool_plane_summary_age_seconds", "Age of the job's last summary.", |it| {
        it.age_ms.map(|age_ms| age_ms as f64 / 1000.0)
    }),
    ("tidepool_plane_samples_per_second", "Samples taken.", |it| Some(it.samples_per_s)),
    ("tidepool_plane_decisions_per_second", "Decisions taken.", |it| Some(it.decisions_per_s)),
    ("tidepool_plane_ceilings_per_second", "Ceilings sent.", |it| Some(it.ceilings_per_s)),
    ("tidepool_plane_lag_seconds", "Longest time from the broker to a decision.", |it| {
        it.lag_ms.map(|lag_ms| lag_ms as f64 / 1000.0)
    }),
    ("tidepool_plane_demand_bytes", "Memory that jobs use.", |it| whole(it.sums.demand_bytes)),
    ("tidepool_plane_memory_bytes", "Memory of nodes.", |it| whole(it.sums.memory_total_bytes)),
    ("tidepool_plane_available_bytes", "Memory that jobs could have more.", |it| {
        whole(it.sums.available_bytes)
    }),
    ("tidepool_plane_resident_bytes", "Bytes in stores.", |it| whole(it.sums.resident_bytes)),
    ("tidepool_plane_capacity_bytes", "Capacity of stores.", |it| whole(it.sums.capacity_bytes)),
    ("tidepool_plane_ceiling_bytes", "Ceilings in force.", |it| whole(it.sums.ceiling_bytes)),
    ("tidepool_plane_job_silent", "1 where no summary comes.", |it| whole(u64::from(it.is_silent))),
    ("tidepool_plane_alarms", "Alarms that hold.", |it| whole(it.alarms.len() as u64)),
];
/// One for each alarm that there could be.
const ALARM: &str = "tidepool_plane_alarm";

fn whole(number: u64) -> Option<f64> {
    Some(number as f64)
}

/// Prints all of them.
pub fn print(site: &Site) {
    output::text(text(site).trim_end());
}

fn text(site: &Site) -> String {
    let mut text = String::new();
    for (name, what, value) in GAUGES {
        text += &format!("# HELP {name} {what}\n# TYPE {name} gauge\n");
        if let Some(value) = value(site) {
            text += &format!("{name} {value}\n");
        }
    }
    text += &format!("# HELP {ALARM} 1 where the alarm holds.\n# TYPE {ALARM} gauge\n");
    for name in alarms::NAMES {
        let holds = site.alarms.iter().any(|alarm| alarm.name == name);
        text += &format!("{ALARM}{{name=\"{name}\"}} {}\n", u8::from(holds));
    }
    text
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::super::summary::tests::message;
    use super::super::view::tests::site;
    use super::*;

    #[test]
    fn gauges_have_one_line_each() {
        let text = text(&site(&[message("plane", "", "", 1)], Some(Duration::from_millis(500))));
        for expected in [
            "\ntidepool_plane_nodes 3\n",
            "\ntidepool_plane_summary_age_seconds 0.5\n",
            "\ntidepool_plane_lag_seconds 0.004\n",
            "\ntidepool_plane_alarm{name=\"silent\"} 0\n",
        ] {
            assert!(text.contains(expected), "{expected} is not in {text}");
        }
        let silent = super::text(&site(&[message("plane", "", "", 1)], None));
        assert!(silent.contains("\ntidepool_plane_alarm{name=\"silent\"} 1\n"), "{silent}");
        assert!(!silent.contains("\ntidepool_plane_summary_age_seconds "), "unknown: {silent}");
    }

    #[test]
    fn the_dashboard_asks_for_metrics_that_exist() {
        let dashboard = include_str!("../../../../deploy/grafana/tidepool-plane.json");
        let words = dashboard.split(|it: char| !it.is_ascii_alphanumeric() && it != '_');
        let asked: Vec<&str> = words.filter(|word| word.starts_with("tidepool_plane_")).collect();
        assert!(asked.len() >= 8, "{asked:?}");
        for name in asked {
            let is_known = name == ALARM || GAUGES.iter().any(|(gauge, ..)| *gauge == name);
            assert!(is_known, "no metric {name}");
        }
    }
}
