//! `tidepool doctor --cluster`: what the nodes of the cluster say of themselves and of each other,
//! and latency and rate of every pair.

use indicatif::{ProgressBar, ProgressDrawTarget};
use serde::Serialize;
use tidepool_pfs::contract::{CheckResult, Outcome as Found};
use tidepool_proto::Result;
use tidepool_proto::admin::NodeReport;
use tidepool_proto::cluster::{ChangesShown, ChangesVerdict, PairReport};

use super::{Findings, summarise};
use crate::arguments::DoctorArguments;
use crate::connection::Connection;
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::interruption;
use tidepool_terminal::output::{self, size};

/// Clocks further apart than this are told, in milliseconds: nothing of the node depends on them,
/// but logs are hard to read together.
const CLOCK_AHEAD_MS_MAX: i64 = 1000;
/// A pair is slow with less than this part of the median rate,
const SLOW_SHARE: u64 = 3;
/// or with so many times the median latency.
const SLOW_TIMES: u64 = 10;

#[derive(Serialize)]
struct Report {
    /// Whether all listed nodes are members that measured all others, and none hides changes.
    healthy: bool,
    checks: Vec<CheckResult>,
    pairs: Vec<PairReport>,
}

/// Examines the cluster of the node at the socket.
pub fn examine(arguments: &DoctorArguments) -> Result<Outcome> {
    let interrupted = interruption::watch()?;
    let connection = arguments.facts.socket.connect();
    let nodes = connection.cluster_status()?;
    let json = arguments.facts.json;
    let mut findings = Findings { print: !json, checks: Vec::new(), interrupted };
    for node in &nodes {
        findings.check(&format!("node {}", node.node), || membership(node, &nodes));
    }
    let pairs = measure(&connection, nodes.len(), &findings, json)?;
    findings.check("clocks", || clocks(&pairs));
    findings.check("pairs", || evenness(&pairs));
    let healthy = !findings.has(Found::Failed);
    let is_interrupted = findings.is_interrupted();
    match json {
        true => output::json(&Report { healthy, checks: findings.checks, pairs })?,
        false => {
            print_pairs(&pairs);
            summarise(&findings.checks);
        }
    }
    if is_interrupted {
        output::note("interrupted: pairs that are not shown were not measured");
        return Ok(Outcome::Interrupted);
    }
    Ok(if healthy { Outcome::Done } else { Outcome::NotSo })
}

/// All pairs, a shift of the list at a time.
fn measure(
    connection: &Connection,
    nodes: usize,
    findings: &Findings,
    json: bool,
) -> Result<Vec<PairReport>> {
    let progress = ProgressBar::new(nodes.saturating_sub(1) as u64);
    if json {
        progress.set_draw_target(ProgressDrawTarget::hidden());
    }
    let mut pairs = Vec::new();
    for shift in 1..nodes as u32 {
        if findings.is_interrupted() {
            break;
        }
        progress.set_message(format!("{} measured", output::count(pairs.len() as u64, "pair")));
        pairs.extend(connection.measure_nodes(shift)?);
        progress.inc(1);
    }
    progress.finish_and_clear();
    Ok(pairs)
}

type Finding = (Found, String, String);

/// How the other nodes see a node, and how it sees changes of others.
fn membership(node: &NodeReport, nodes: &[NodeReport]) -> Finding {
    let Some(status) = &node.status else {
        let why = node.error.clone().unwrap_or_default();
        let remedy = "start it, or see its log: the key, the name of the cluster and the port must \
                      be those of the others";
        return (Found::Failed, format!("{}: {why}", node.state), remedy.to_owned());
    };
    let others = nodes.iter().filter_map(|other| other.status.as_ref()?.cluster.as_deref());
    let refused = others
        .filter_map(|other| {
            let seen = other.members.iter().find(|member| member.node == node.node)?;
            Some(format!("{}: {}", other.node, seen.refused_because.as_ref()?))
        })
        .next();
    if let Some(refused) = refused {
        let consequence = "no bytes go between it and that node";
        return (Found::Failed, refused, consequence.to_owned());
    }
    match status.cluster.as_ref().and_then(|cluster| cluster.changes_shown.as_ref()) {
        Some(shown) => changes(shown),
        None => (Found::Ok, node.state.clone(), String::new()),
    }
}

/// What it means how soon changes of another node showed.
pub fn changes(shown: &ChangesShown) -> Finding {
    let node = &shown.node;
    let (found, measured, consequence) = match shown.verdict() {
        ChangesVerdict::AtOnce => (Found::Ok, format!("sees changes of {node} at once"), ""),
        ChangesVerdict::StalePages => (
            Found::Degraded,
            format!("sees changes of {node}; plain reads of the PFS do not"),
            "programs that read the PFS directory itself get bytes of before the change from the \
             page cache; through Tidepool they get the new ones. Mount GlusterFS with \
             fopen-keep-cache=off",
        ),
        ChangesVerdict::LateMs(took) => (
            Found::Degraded,
            format!("sees changes of {node} after {took} ms"),
            "the PFS's client remembers attributes: bare reads are as late, and files that changed \
             a moment ago are not kept",
        ),
        ChangesVerdict::HiddenVersions | ChangesVerdict::HiddenBytes => (
            Found::Failed,
            format!("changes of {node} do not show"),
            "nothing is kept in memory there: mount the PFS without caches of attributes, and \
             restart the node",
        ),
    };
    (found, measured, consequence.to_owned())
}

fn clocks(pairs: &[PairReport]) -> Finding {
    let ahead = |pair: &&PairReport| pair.clock_ahead_ms.unwrap_or(0).abs();
    match pairs.iter().max_by_key(ahead) {
        Some(pair) if ahead(&pair) > CLOCK_AHEAD_MS_MAX => {
            let ahead = pair.clock_ahead_ms.unwrap_or(0);
            let measured = format!("{} is {ahead} ms ahead of {}", pair.to, pair.from);
            let consequence = "no data depends on it; logs and ages are hard to compare";
            (Found::Degraded, measured, consequence.to_owned())
        }
        Some(pair) => (Found::Ok, format!("within {} ms", ahead(&pair)), String::new()),
        None => (Found::Skipped, "no pair was measured".to_owned(), String::new()),
    }
}

fn median(mut values: Vec<u64>) -> Option<u64> {
    values.sort_unstable();
    values.get(values.len() / 2).copied()
}

/// Whether a pair failed, or is much slower than the others.
fn evenness(pairs: &[PairReport]) -> Finding {
    let failed: Vec<&PairReport> = pairs.iter().filter(|pair| pair.error.is_some()).collect();
    if let Some(first) = failed.first() {
        let why = first.error.clone().unwrap_or_default();
        let number = output::count(failed.len() as u64, "pair");
        let measured = format!("{number} failed; {} from {}: {why}", first.from, first.to);
        let remedy = "reads between these nodes go to the PFS instead: see whether the port is \
                      open both ways, TCP and UDP";
        return (Found::Failed, measured, remedy.to_owned());
    }
    let rate = median(pairs.iter().filter_map(|pair| pair.rate_bytes_per_s).collect());
    let latency = median(pairs.iter().filter_map(|pair| pair.latency_us).collect());
    let (Some(rate), Some(latency)) = (rate, latency) else {
        return (Found::Skipped, "no pair was measured".to_owned(), String::new());
    };
    let is_slow = |pair: &&PairReport| {
        pair.rate_bytes_per_s.is_some_and(|own| own < rate / SLOW_SHARE)
            || pair.latency_us.is_some_and(|own| own > latency * SLOW_TIMES)
    };
    let measured = format!("median {latency} us, {}/s", size(rate));
    match pairs.iter().find(is_slow) {
        None => (Found::Ok, measured, String::new()),
        Some(slow) => {
            let measured = format!("{measured}; much slower: {} from {}", slow.from, slow.to);
            let consequence = "what is nearer is asked first; look at the links of both";
            (Found::Degraded, measured, consequence.to_owned())
        }
    }
}

fn print_pairs(pairs: &[PairReport]) {
    let header = ["reader", "holder", "latency", "longest", "rate"];
    let text = |value: Option<String>| value.unwrap_or_else(|| "-".to_owned());
    let row = |pair: &PairReport| {
        vec![
            pair.from.clone(),
            pair.to.clone(),
            text(pair.latency_us.map(|time| format!("{time} us"))),
            text(pair.latency_us_max.map(|time| format!("{time} us"))),
            text(pair.rate_bytes_per_s.map(|rate| format!("{}/s", size(rate)))),
        ]
    };
    if !pairs.is_empty() {
        output::table(
            &header,
            &[false, false, true, true, true],
            &pairs.iter().map(row).collect::<Vec<_>>(),
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair(to: &str, latency_us: u64, rate: u64) -> PairReport {
        PairReport {
            from: "a".into(),
            to: to.into(),
            latency_us: Some(latency_us),
            rate_bytes_per_s: Some(rate),
            ..PairReport::default()
        }
    }

    #[test]
    fn a_pair_that_failed_or_is_slow_is_named() {
        let even = [pair("b", 50, 900), pair("c", 60, 800), pair("d", 55, 850)];
        assert_eq!(evenness(&even).0, Found::Ok);
        let slow = [pair("b", 50, 900), pair("c", 60, 100), pair("d", 55, 850)];
        let (outcome, measured, _) = evenness(&slow);
        assert_eq!(outcome, Found::Degraded);
        assert!(measured.contains("a from c"), "{measured}");
        let late = [pair("b", 50, 900), pair("c", 5000, 900), pair("d", 55, 850)];
        assert_eq!(evenness(&late).0, Found::Degraded);
        let failed = PairReport { error: Some("refused".into()), ..pair("c", 1, 1) };
        let (outcome, measured, _) = evenness(&[pair("b", 50, 900), failed]);
        assert_eq!(outcome, Found::Failed);
        assert!(measured.contains("a from c: refused"), "{measured}");
        assert_eq!(evenness(&[]).0, Found::Skipped);
    }

    #[test]
    fn clocks_far_apart_are_told() {
        let ahead = |ms| PairReport { clock_ahead_ms: Some(ms), ..pair("b", 1, 1) };
        assert_eq!(clocks(&[ahead(3), ahead(-20)]).0, Found::Ok);
        assert_eq!(clocks(&[ahead(3), ahead(-3_600_000)]).0, Found::Degraded);
    }

    #[test]
    fn what_changes_of_others_mean_is_said() {
        let node = || "b".to_owned();
        let shown = |version_ms, bytes_ms| ChangesShown {
            node: node(),
            version_ms,
            bytes_ms,
            stale_pages: false,
        };
        let stale = ChangesShown { stale_pages: true, ..shown(Some(1), Some(1)) };
        assert_eq!(changes(&stale).0, Found::Degraded);
        assert_eq!(changes(&shown(Some(1), Some(2))).0, Found::Ok);
        assert_eq!(changes(&shown(Some(1), Some(900))).0, Found::Degraded);
        assert_eq!(changes(&shown(None, Some(2))).0, Found::Failed);
        assert_eq!(changes(&shown(Some(2), None)).0, Found::Failed);
    }
}
