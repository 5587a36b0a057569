//! `tidepool explain -r`: how much of a data set is cached, and why the rest is not.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressDrawTarget};
use serde::Serialize;
use tidepool_proto::admin::Explanation;
use tidepool_proto::{Error, Result};

use super::{Answer, ask_all, usable_bytes, why_absent};
use crate::arguments::ExplainArguments;
use crate::connection::Connection;
use crate::target::{NO_FILE, Roots, Target, files};
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::failures::Failures;
use tidepool_terminal::output::{self, Colour, coloured, count, percent, size};

/// Reasons that are printed; JSON has them all.
const REASONS_MAX: usize = 5;
/// How often the progress is drawn.
const DRAW: Duration = Duration::from_millis(200);

/// What is cached of all files below one path.
#[derive(Debug, Default, Serialize)]
struct DataSet {
    path: PathBuf,
    files: usize,
    resident_files: usize,
    partly_resident_files: usize,
    pinned_files: usize,
    failed_files: usize,
    size_bytes: u64,
    resident_bytes: u64,
    dirty_bytes: u64,
    /// Of files that are not wholly resident.
    why_not: Vec<Reason>,
    #[serde(skip)]
    reasons: BTreeMap<String, (usize, u64)>,
}

/// Why files are not wholly resident.
#[derive(Debug, Serialize)]
struct Reason {
    why: String,
    files: usize,
    absent_bytes: u64,
}

/// Runs `explain -r`. The exit code is 1 if a file could not be looked at.
pub fn explain(arguments: &ExplainArguments, node: &Connection, roots: &Roots) -> Result<Outcome> {
    let look = |named: &Path| look_at(named, node, roots, arguments.facts.json);
    let (answers, outcome) = ask_all(&arguments.paths, look);
    let sets = || {
        answers.iter().filter_map(|answer| match answer {
            Answer::Known(set) => Some(&**set),
            Answer::Failed { .. } => None,
        })
    };
    if arguments.facts.json {
        output::json(&answers)?;
    } else {
        sets().for_each(print);
    }
    let is_complete = outcome != Outcome::Done || sets().all(|set| set.failed_files == 0);
    Ok(if is_complete { outcome } else { Outcome::NotSo })
}

fn look_at(named: &Path, node: &Connection, roots: &Roots, json: bool) -> Result<DataSet> {
    let mut set = DataSet { path: named.to_owned(), ..DataSet::default() };
    let mut failures = Failures::default();
    let mut failed = |error: Error| {
        set.failed_files += 1;
        failures.add(&error);
    };
    let paths = files(roots, std::slice::from_ref(&named.to_owned()), true, &mut failed)?;
    let progress = ProgressBar::new(paths.len() as u64);
    if json {
        progress.set_draw_target(ProgressDrawTarget::hidden());
    }
    progress.enable_steady_tick(DRAW);
    for path in paths {
        match Target::open(&path).and_then(|target| node.explain(target.descriptor())) {
            Ok(file) => set.add(&file),
            Err(error) => {
                set.failed_files += 1;
                failures.add(&error);
            }
        }
        progress.inc(1);
    }
    progress.finish_and_clear();
    failures.tell();
    set.settle();
    Ok(set)
}

impl DataSet {
    fn add(&mut self, file: &Explanation) {
        self.files += 1;
        self.pinned_files += usize::from(file.pinned);
        self.size_bytes += file.size_bytes;
        let resident_bytes = usable_bytes(file);
        self.resident_bytes += resident_bytes;
        self.dirty_bytes += file.dirty_bytes;
        if resident_bytes >= file.size_bytes {
            self.resident_files += 1;
            return;
        }
        self.partly_resident_files += usize::from(resident_bytes > 0);
        let reason = self.reasons.entry(why_absent(file).swap_remove(0)).or_default();
        reason.0 += 1;
        reason.1 += file.size_bytes - resident_bytes;
    }

    /// The reasons that concern most bytes come first.
    fn settle(&mut self) {
        let reasons = std::mem::take(&mut self.reasons).into_iter();
        self.why_not = reasons
            .map(|(why, (files, absent_bytes))| Reason { why, files, absent_bytes })
            .collect();
        self.why_not.sort_by_key(|reason| std::cmp::Reverse(reason.absent_bytes));
    }
}

fn print(set: &DataSet) {
    if set.files == 0 && set.failed_files == 0 {
        output::note(NO_FILE);
    }
    output::line(&coloured(&set.path.display().to_string(), Colour::Strong));
    let cached = format!(
        "{} of {} ({})",
        size(set.resident_bytes),
        size(set.size_bytes),
        percent(set.resident_bytes, set.size_bytes)
    );
    let files = format!(
        "{}: {} wholly cached, {} partly, {} pinned",
        count(set.files as u64, "file"),
        set.resident_files,
        set.partly_resident_files,
        set.pinned_files
    );
    let mut rows = vec![("cached", cached), ("files", files)];
    if set.dirty_bytes > 0 {
        rows.push(("dirty data", coloured(&size(set.dirty_bytes), Colour::Warning)));
    }
    for reason in set.why_not.iter().take(REASONS_MAX) {
        let (files, absent) = (count(reason.files as u64, "file"), size(reason.absent_bytes));
        rows.push(("why not", format!("{absent} in {files}: {}", reason.why)));
    }
    if let Some(rest) = set.why_not.len().checked_sub(REASONS_MAX).filter(|rest| *rest > 0) {
        rows.push(("", format!("{} (all with --json)", count(rest as u64, "more reason"))));
    }
    output::pairs(&rows);
}
