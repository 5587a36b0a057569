//! `tidepool metrics`: the metrics of the node, as Prometheus reads them or as JSON.

use std::collections::BTreeMap;

use serde::Serialize;
use tidepool_proto::admin::{AdminReply, AdminRequest};
use tidepool_proto::{Error, ErrorKind, Result};

use crate::arguments::Facts;
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::output;

/// A value.
#[derive(Debug, PartialEq, Serialize)]
struct Sample<'a> {
    name: &'a str,
    labels: BTreeMap<&'a str, &'a str>,
    value: f64,
}

/// Runs `metrics`.
pub fn metrics(facts: &Facts) -> Result<Outcome> {
    let AdminReply::Metrics(text) = facts.socket.connect().ask(AdminRequest::Metrics, None)? else {
        return Err(Error::new(ErrorKind::Protocol, "asking for metrics", "the answer is none"));
    };
    if facts.json {
        output::json(&text.lines().filter_map(sample).collect::<Vec<_>>())?;
    } else {
        output::text(text.trim_end());
    }
    Ok(Outcome::Done)
}

/// Reads `name{label="value",...} number`. No value of a label has quotes or commas in it.
fn sample(line: &str) -> Option<Sample<'_>> {
    let (series, value) = line.rsplit_once(' ').filter(|_| !line.starts_with('#'))?;
    let (name, labels) = series.split_once('{').unwrap_or((series, ""));
    let labels = labels.trim_end_matches('}').split(',').filter_map(|label| label.split_once('='));
    let labels = labels.map(|(label, value)| (label, value.trim_matches('"'))).collect();
    Some(Sample { name, labels, value: value.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_become_samples() {
        assert_eq!(sample("# HELP a text"), None);
        let plain = sample("tidepool_uptime_seconds 12").unwrap();
        assert_eq!((plain.name, plain.value), ("tidepool_uptime_seconds", 12.0));
        let labelled = sample("a_total{level=\"pfs\",kind=\"x\"} 3.5").unwrap();
        let labels = BTreeMap::from([("level", "pfs"), ("kind", "x")]);
        assert_eq!(labelled, Sample { name: "a_total", labels, value: 3.5 });
    }
}
