//! `tidepool load --spread`: each split of a file comes into the memory of one node of the cluster.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Instant;

use indicatif::{ProgressBar, ProgressDrawTarget};
use serde::Serialize;
use tidepool_proto::admin::SpreadReport;
use tidepool_proto::{Error, Result};

use crate::arguments::LoadArguments;
use crate::connection::Connection;
use crate::target::{NO_FILE, Roots, Target, files};
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::failures::{Failures, is_gone};
use tidepool_terminal::interruption;
use tidepool_terminal::output::{self, count, size};

/// Files that are not in memory whole are named up to this number.
const NAMED_MAX: usize = 20;

/// What a file lacks.
#[derive(Clone, Debug, Serialize)]
struct Missing {
    path: PathBuf,
    /// The node that was to have it; absent where the file could not be asked about.
    node: Option<String>,
    why: String,
}

/// What it came to.
#[derive(Debug, Default, Serialize)]
struct Report {
    files: usize,
    size_bytes: u64,
    /// In memory already.
    held_bytes: u64,
    /// Brought in, by node.
    brought_in_bytes: BTreeMap<String, u64>,
    gone_files: usize,
    missing: Vec<Missing>,
    elapsed_ms: f64,
    interrupted: bool,
}

impl Report {
    fn add(&mut self, path: &std::path::Path, file: SpreadReport) {
        self.size_bytes += file.size_bytes;
        self.held_bytes += file.held_bytes;
        for share in file.nodes {
            *self.brought_in_bytes.entry(share.node.clone()).or_default() += share.resident_bytes;
            if let Some(why) = share.error {
                let (path, node) = (path.to_owned(), Some(share.node));
                self.missing.push(Missing { path, node, why });
            }
        }
    }

    fn fail(&mut self, path: &std::path::Path, error: &Error) {
        if is_gone(error) {
            self.gone_files += 1;
            return;
        }
        let (path, why) = (path.to_owned(), error.to_string());
        self.missing.push(Missing { path, node: None, why });
    }
}

/// Runs `load --spread`.
pub fn spread(arguments: &LoadArguments) -> Result<Outcome> {
    let begun = Instant::now();
    let node = arguments.facts.socket.connect();
    let roots = Roots::of(&node.status()?);
    let mut unseen = Failures::default();
    let mut failed = |error: Error| unseen.add(&error);
    let paths = files(&roots, &arguments.paths, arguments.recursive, &mut failed)?;
    unseen.tell();
    let interrupted = interruption::watch()?;
    let json = arguments.facts.json;
    let mut report = run(&node, &paths, arguments.jobs.into(), json, &interrupted);
    report.elapsed_ms = begun.elapsed().as_secs_f64() * 1e3;
    report.interrupted = interrupted.load(Ordering::Relaxed);
    match json {
        true => output::json(&report)?,
        false => print(&report),
    }
    Ok(match unseen.is_empty() && report.missing.is_empty() && report.gone_files == 0 {
        _ if report.interrupted => Outcome::Interrupted,
        true => Outcome::Done,
        false => Outcome::NotSo,
    })
}

fn run(
    node: &Connection,
    paths: &[PathBuf],
    jobs: usize,
    json: bool,
    interrupted: &AtomicBool,
) -> Report {
    let progress = ProgressBar::new(paths.len() as u64);
    if json {
        progress.set_draw_target(ProgressDrawTarget::hidden());
    }
    let report = Mutex::new(Report { files: paths.len(), ..Report::default() });
    let next = AtomicUsize::new(0);
    let work = || {
        while !interrupted.load(Ordering::Relaxed) {
            let Some(path) = paths.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
            let spread = Target::open(path)
                .and_then(|target| node.spread_until(target.descriptor(), interrupted));
            let mut report = report.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            match spread {
                Ok(Some(file)) => report.add(path, file),
                Ok(None) => return,
                Err(error) => report.fail(path, &error),
            }
            drop(report);
            progress.inc(1);
        }
    };
    std::thread::scope(|scope| (0..jobs.min(paths.len())).for_each(|_| _ = scope.spawn(work)));
    progress.finish_and_clear();
    report.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn print(report: &Report) {
    let brought: u64 = report.brought_in_bytes.values().sum();
    output::line(&format!(
        "{} of {}: {} were in memory, {} came in {:.1} s",
        count(report.files as u64, "file"),
        size(report.size_bytes),
        size(report.held_bytes),
        size(brought),
        report.elapsed_ms / 1e3
    ));
    let rows: Vec<Vec<String>> = report
        .brought_in_bytes
        .iter()
        .map(|(node, bytes)| vec![node.clone(), size(*bytes)])
        .collect();
    if !rows.is_empty() {
        output::table(&["node", "brought in"], &[false, true], &rows);
    }
    if report.files == 0 {
        output::note(NO_FILE);
    }
    for missing in report.missing.iter().take(NAMED_MAX) {
        let at = missing.node.as_ref().map(|node| format!(" at {node}")).unwrap_or_default();
        output::note(&format!("not in memory{at}: {}: {}", missing.path.display(), missing.why));
    }
    if report.missing.len() > NAMED_MAX {
        let more = count((report.missing.len() - NAMED_MAX) as u64, "more");
        output::note(&format!("not in memory: {more} (all with --json)"));
    }
    if report.interrupted {
        output::note("interrupted; what came in stays cached, run it again to go on");
    }
}
