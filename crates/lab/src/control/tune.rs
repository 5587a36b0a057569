//! `tidepool control tune`: parameters for this node from what was measured, with reasons, and what
//! the present ones risk. Changes nothing.

use serde::Serialize;
use tidepool_control_policy::{Journal, NodeFacts, Parameters};
use tidepool_model::{Recommendation, recommend};
use tidepool_proto::Result;

use super::arguments::{TuneArguments, with_settings};
use super::replay::read;
use crate::calibrate::machine;
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::output;

/// The names are stable.
#[derive(Serialize)]
struct Report {
    facts: NodeFacts,
    present: Parameters,
    #[serde(flatten)]
    recommendation: Recommendation,
}

/// Runs `control tune`.
pub fn tune(arguments: &TuneArguments) -> Result<Outcome> {
    let (mut facts, mut present) = match &arguments.log {
        Some(path) => measured(&read(path)?),
        None => (NodeFacts::default(), Parameters::default()),
    };
    let bytes = |size: Option<tidepool_model::Bytes>, before: u64| {
        size.map_or(before, |size| size.get() as u64)
    };
    let rate = |rate: Option<tidepool_model::BytesPerSecond>, before: u64| {
        rate.map_or(before, |rate| rate.get() as u64)
    };
    facts.memory_total_bytes = bytes(arguments.memory, facts.memory_total_bytes);
    if facts.memory_total_bytes == 0 {
        facts.memory_total_bytes = machine::describe().memory_bytes;
    }
    facts.capacity_max_bytes = bytes(arguments.store, facts.capacity_max_bytes);
    facts.capacity_min_bytes = bytes(arguments.store_min, facts.capacity_min_bytes);
    facts.release_bytes_per_s = rate(arguments.release, facts.release_bytes_per_s);
    facts.growth_bytes_per_s = rate(arguments.growth, facts.growth_bytes_per_s);
    facts.delay_ms = arguments.delay_ms.unwrap_or(facts.delay_ms);
    present.policy = arguments.policy.unwrap_or(present.policy);
    let present = with_settings(&present, &arguments.settings)?;
    let recommendation = recommend(&facts, &present);
    let report = Report { facts, present, recommendation };
    if arguments.json {
        output::json(&report)?;
    } else {
        print(&report);
    }
    Ok(Outcome::Done)
}

/// What a log tells of its node, and the parameters at its end.
fn measured(journal: &Journal) -> (NodeFacts, Parameters) {
    let parameters = journal.entries.iter().rev().find_map(|entry| entry.parameters.clone());
    let Some(last) = journal.entries.last() else {
        return (NodeFacts::default(), parameters.unwrap_or_default());
    };
    let stores = &last.snapshot.stores;
    let slopes = journal.entries.iter().map(|entry| entry.decision.slope_bytes_per_s);
    let facts = NodeFacts {
        memory_total_bytes: last.snapshot.memory_total_bytes,
        capacity_min_bytes: stores.iter().map(|store| store.capacity_min_bytes).sum(),
        capacity_max_bytes: stores.iter().map(|store| store.capacity_max_bytes).sum(),
        block_bytes: stores.iter().map(|store| store.block_bytes).max().unwrap_or(0),
        release_bytes_per_s: stores.iter().map(|store| store.release_bytes_per_s).sum(),
        growth_bytes_per_s: slopes.max().unwrap_or(0),
        delay_ms: delay_ms(journal),
        ..NodeFacts::default()
    };
    (facts, parameters.unwrap_or_default())
}

/// Median time from a decision that takes bytes to the first reading that shows fewer in Tidepool's
/// own store, which comes first: others may be slow, and what they take says nothing about it.
fn delay_ms(journal: &Journal) -> f64 {
    let mut delays = Vec::new();
    let mut asked: Option<(u64, u64)> = None;
    for entry in &journal.entries {
        let (at_ns, stored) = (entry.snapshot.at_ns, entry.snapshot.stored_bytes());
        let own = entry.snapshot.stores.first().map_or(0, |store| store.resident_bytes);
        if let Some((since_ns, before)) = asked
            && own < before
        {
            delays.push(at_ns.saturating_sub(since_ns));
            asked = None;
        }
        if entry.decision.target_bytes >= stored {
            asked = None;
        } else if asked.is_none() {
            asked = Some((at_ns, own));
        }
    }
    delays.sort_unstable();
    delays.get(delays.len() / 2).map_or(0.0, |delay_ns| *delay_ns as f64 / 1e6)
}

fn print(report: &Report) {
    let recommendation = &report.recommendation;
    let rows: Vec<Vec<String>> = recommendation
        .reasons
        .iter()
        .map(|one| vec![one.parameter.clone(), one.value.clone(), one.reason.clone()])
        .collect();
    output::table(&["parameter", "recommended", "why"], &[false, true, false], &rows);
    output::line("");
    if recommendation.risks.is_empty() {
        output::line("The present parameters risk nothing that is known.");
    }
    for risk in &recommendation.risks {
        output::line(&format!("present {}: {}", risk.parameter, risk.text));
    }
}

#[cfg(test)]
mod tests {
    use tidepool_control_policy::{Decision, JournalEntry, Level, Reason, Snapshot, StoreState};

    use super::*;

    #[test]
    fn a_slow_store_beside_tells_nothing_of_our_delay() {
        let entry = |at_ms: u64, own: u64, other: u64| {
            let store = |resident_bytes| StoreState { resident_bytes, ..StoreState::default() };
            let stores = vec![store(own), store(other)];
            let snapshot = Snapshot { at_ns: at_ms * 1_000_000, stores, ..Snapshot::default() };
            let decision = Decision {
                target_bytes: 50,
                demand_bytes: 0,
                slope_bytes_per_s: 0,
                reason: Reason::Demand,
                level: Level::Normal,
                alarms: Vec::new(),
                next_ms: 0,
            };
            JournalEntry { snapshot, parameters: None, decision }
        };
        // Ours gives within 2 ms, the other after a second, of which nothing more comes from ours.
        let entries = vec![
            entry(0, 100, 100),
            entry(2, 20, 100),
            entry(1000, 20, 60),
            entry(2000, 20, 40),
            entry(3000, 20, 30),
        ];
        let journal = Journal { entries, from_start: true, cut_bytes: 0 };
        assert_eq!(delay_ms(&journal), 2.0);
    }
}
