//! `tidepool control replay`: decides a log again and says whether the same comes out.

use std::path::Path;

use serde::Serialize;
use tidepool_control_policy::{Decision, Journal, JournalEntry, Replay};
use tidepool_model::Bytes;
use tidepool_proto::{Error, Result};

use super::arguments::ReplayArguments;
use super::pictures::{self, Course, Moment};
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::output;

/// Mismatches that are printed.
const SHOWN: usize = 10;

/// The names are stable.
#[derive(Serialize)]
struct Report {
    from_start: bool,
    cut_bytes: usize,
    #[serde(flatten)]
    replay: Replay,
    /// What the log holds, oldest first.
    entries: Vec<Logged>,
}

/// A decision of the log and what it was made from. The names are stable.
#[derive(Serialize)]
struct Logged {
    at_ns: u64,
    available_bytes: Option<u64>,
    stored_bytes: u64,
    memory_only_bytes: u64,
    #[serde(flatten)]
    decision: Decision,
}

impl Logged {
    fn of(entry: &JournalEntry) -> Self {
        let snapshot = &entry.snapshot;
        let memory_only_bytes = snapshot.stores.iter().map(|store| store.memory_only_bytes);
        Logged {
            at_ns: snapshot.at_ns,
            available_bytes: snapshot.available_bytes,
            stored_bytes: snapshot.stored_bytes(),
            memory_only_bytes: memory_only_bytes.fold(0, u64::saturating_add),
            decision: entry.decision.clone(),
        }
    }
}

/// Reads a log from a file.
pub fn read(path: &Path) -> Result<Journal> {
    let bytes = std::fs::read(path)
        .map_err(|source| Error::pfs(format!("reading {}", path.display()), source))?;
    Journal::read(&bytes)
}

/// Runs `control replay`.
pub fn replay(arguments: &ReplayArguments) -> Result<Outcome> {
    let journal = read(&arguments.log)?;
    let replay = journal.replay();
    if let Some(path) = &arguments.picture {
        pictures::write(path, vec![course(&journal)])?;
    }
    let same = replay.mismatches.is_empty();
    let (from_start, cut_bytes) = (journal.from_start, journal.cut_bytes);
    let mut report = Report { from_start, cut_bytes, replay, entries: Vec::new() };
    if arguments.json {
        report.entries = journal.entries.iter().map(Logged::of).collect();
        output::json(&report)?;
    } else {
        print(&report);
    }
    Ok(if same { Outcome::Done } else { Outcome::NotSo })
}

fn moments(journal: &Journal) -> Vec<Moment> {
    let moment = |entry: &JournalEntry| Moment {
        time_s: entry.snapshot.at_ns as f64 / 1e9,
        demand_bytes: entry.decision.demand_bytes,
        stored_bytes: entry.snapshot.stored_bytes(),
        target_bytes: entry.decision.target_bytes,
        free_bytes: entry.snapshot.available_bytes.unwrap_or(0),
    };
    journal.entries.iter().map(moment).collect()
}

fn course(journal: &Journal) -> Course {
    let moments = moments(journal);
    let stored = || moments.iter().map(|moment| moment.stored_bytes);
    let size = |bytes: Option<u64>| Bytes::whole(bytes.unwrap_or_default());
    let title = format!(
        "Recorded memory control: {} decisions, store from {} to {}",
        journal.entries.len(),
        size(stored().min()),
        size(stored().max())
    );
    let total = journal.entries.iter().map(|entry| entry.snapshot.memory_total_bytes);
    Course { title, memory_bytes: total.max().unwrap_or_default(), moments }
}

fn print(report: &Report) {
    let replay = &report.replay;
    if report.cut_bytes > 0 {
        output::line(&format!("{} bytes at the end make no whole decision", report.cut_bytes));
    }
    if !report.from_start {
        output::line(&format!(
            "the log begins in the middle of a run: {} decisions not compared",
            replay.warm_up
        ));
    }
    for mismatch in replay.mismatches.iter().take(SHOWN) {
        output::line(&format!(
            "decision {} at {:.3} s: target {} ({:?}) in the log, {} ({:?}) now",
            mismatch.entry,
            mismatch.at_ns as f64 / 1e9,
            Bytes::whole(mismatch.logged.target_bytes),
            mismatch.logged.reason,
            Bytes::whole(mismatch.replayed.target_bytes),
            mismatch.replayed.reason,
        ));
    }
    let (all, other) = (replay.decisions, replay.mismatches.len());
    output::line(&if other == 0 {
        format!("{all} decisions, all the same")
    } else {
        format!("{other} of {all} decisions came out otherwise")
    });
}
