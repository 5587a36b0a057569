//! `tidepool load` and `tidepool pin`: brings files in, several at a time, and afterwards counts
//! what really is resident. Exit code 1 if anything is not. Ctrl-C ends the load in the node, too.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde::Serialize;
use tidepool_proto::admin::Explanation;
use tidepool_proto::{Error, ErrorKind, Result};

use super::explain::{usable_bytes, why_absent};
use crate::arguments::LoadArguments;
use crate::connection::Connection;
use crate::target::{NO_FILE, Roots, Target, files};
use tidepool_terminal::exit::{self, Outcome};
use tidepool_terminal::failures::{Failures, gone, is_gone};
use tidepool_terminal::interruption;
use tidepool_terminal::output::{self, count, size};

/// How often the node is asked how far files under way are.
const LOOK: Duration = Duration::from_millis(200);
/// Files that are not resident are named up to this number.
const NAMED_MAX: usize = 20;

/// The bar takes what the figures leave of a line; in narrow windows there are fewer of them.
const TEMPLATE: &str =
    "{wide_bar} {percent:>3}%  {bytes}/{total_bytes}  {binary_bytes_per_sec}  {eta} left  {msg}";
const TEMPLATE_NARROW: &str = "{percent:>3}%  {bytes}/{total_bytes}  {eta} left";
/// Columns that the figures beside the bar need, and some for the bar.
const COLUMNS_MIN: u16 = 88;

/// A file that is not as it was asked for.
#[derive(Clone, Debug, Serialize)]
struct Missing {
    path: PathBuf,
    size_bytes: u64,
    resident_bytes: u64,
    why: String,
}

/// What a load came to.
#[derive(Debug, Default, Serialize)]
struct Report {
    files: usize,
    resident_files: usize,
    size_bytes: u64,
    resident_bytes: u64,
    read_bytes: u64,
    elapsed_ms: f64,
    /// It was stopped before its end: what is resident is not verified, and counts what was begun.
    interrupted: bool,
    /// Files so small that they are packed, which `pin` cannot keep.
    not_pinnable_files: usize,
    /// Files that were found, and were gone at their turn or afterwards.
    gone_files: usize,
    not_resident: Vec<Missing>,
    /// Files that are resident and that `pin` could not keep.
    not_pinned: Vec<Missing>,
}

/// Runs `load`, or `pin` if `keep`.
pub fn load(arguments: &LoadArguments, keep: bool) -> Result<Outcome> {
    let begun = Instant::now();
    let node = arguments.facts.socket.connect();
    let before = node.status()?;
    let roots = Roots::of(&before);
    let mut unseen = Failures::default();
    let mut failed = |error: Error| unseen.add(&error);
    let paths = files(&roots, &arguments.paths, arguments.recursive, &mut failed)?;
    unseen.tell();
    let interrupted = interruption::watch()?;
    let sizes = paths.iter().map(|path| std::fs::metadata(path).map_or(0, |facts| facts.len()));
    let work = Work::new(&node, &paths, keep, sizes.sum(), &interrupted);
    if arguments.facts.json {
        work.progress.set_draw_target(ProgressDrawTarget::hidden());
    }
    let came_bytes = work.run(arguments.jobs.into());
    if work.is_interrupted() {
        return work.give_up(begun, came_bytes, arguments.facts.json);
    }
    // Loads that overlap cannot be told apart by the node, so its own counter is what counts.
    let read_bytes = node.status()?.pfs_read_bytes.saturating_sub(before.pfs_read_bytes);
    let report = work.verify(begun, read_bytes);
    if arguments.facts.json {
        output::json(&report)?;
    } else {
        print(&report, keep);
    }
    Ok(match unseen.is_empty() && report.is_complete() {
        true => Outcome::Done,
        // Of one file that was named, the reason says more.
        false if paths.len() == 1 && !arguments.recursive => work.outcome_of_the_first(),
        false => Outcome::NotSo,
    })
}

fn template(columns: u16) -> &'static str {
    if columns < COLUMNS_MIN { TEMPLATE_NARROW } else { TEMPLATE }
}

/// Files that wait, files under way, and how far they are.
struct Work<'a> {
    node: &'a Connection,
    paths: &'a [PathBuf],
    keep: bool,
    interrupted: &'a AtomicBool,
    next: AtomicUsize,
    finished_files: AtomicUsize,
    finished_bytes: AtomicU64,
    under_way: Mutex<HashMap<usize, std::sync::Arc<Target>>>,
    failures: Mutex<HashMap<usize, Error>>,
    ended: AtomicBool,
    progress: ProgressBar,
}

impl<'a> Work<'a> {
    fn new(
        node: &'a Connection,
        paths: &'a [PathBuf],
        keep: bool,
        total_bytes: u64,
        interrupted: &'a AtomicBool,
    ) -> Work<'a> {
        let columns = ratatui::crossterm::terminal::size().map_or(COLUMNS_MIN, |size| size.0);
        let style = ProgressStyle::with_template(template(columns));
        let style = style.expect("the templates are constant");
        let progress = ProgressBar::new(total_bytes).with_style(style);
        Work {
            node,
            paths,
            keep,
            interrupted,
            next: AtomicUsize::new(0),
            finished_files: AtomicUsize::new(0),
            finished_bytes: AtomicU64::new(0),
            under_way: Mutex::default(),
            failures: Mutex::default(),
            ended: AtomicBool::new(false),
            progress,
        }
    }

    /// Answers how far it came, in bytes.
    fn run(&self, jobs: usize) -> u64 {
        std::thread::scope(|scope| {
            let looking = scope.spawn(|| self.look());
            let loading: Vec<_> =
                (0..jobs.min(self.paths.len())).map(|_| scope.spawn(|| self.load_some())).collect();
            for thread in loading {
                thread.join().expect("loading does not panic");
            }
            self.ended.store(true, Ordering::Release);
            looking.thread().unpark();
        });
        let came_bytes = self.progress.position();
        // Which moves it to its end.
        self.progress.finish_and_clear();
        came_bytes
    }

    /// Shows how far files under way are, which for a large file is more than nothing or all.
    fn look(&self) {
        while !self.ended.load(Ordering::Acquire) {
            let under_way: Vec<_> = lock(&self.under_way).values().cloned().collect();
            let bytes: u64 = under_way
                .iter()
                .filter_map(|target| self.node.explain(target.descriptor()).ok())
                .map(|explanation| explanation.resident_bytes)
                .sum();
            self.show(bytes);
            std::thread::park_timeout(LOOK);
        }
    }

    fn show(&self, under_way_bytes: u64) {
        let finished = self.next.load(Ordering::Relaxed).min(self.paths.len());
        self.progress.set_position(self.finished_bytes.load(Ordering::Relaxed) + under_way_bytes);
        self.progress.set_message(format!("file {finished} of {}", self.paths.len()));
    }

    fn load_some(&self) {
        while !self.is_interrupted() {
            let index = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(path) = self.paths.get(index) else { return };
            if let Err(error) = self.load_one(index, path) {
                lock(&self.failures).insert(index, error);
            }
            lock(&self.under_way).remove(&index);
        }
    }

    fn load_one(&self, index: usize, path: &Path) -> Result<()> {
        let target = std::sync::Arc::new(Target::open(path)?);
        lock(&self.under_way).insert(index, target.clone());
        if self.load_in(&target)? {
            self.finished_bytes.fetch_add(target.size_bytes, Ordering::Relaxed);
            self.finished_files.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }

    /// False where it was interrupted.
    fn load_in(&self, target: &Target) -> Result<bool> {
        let loaded = self.node.load_until(target.descriptor(), self.keep, self.interrupted)?;
        Ok(loaded.is_some())
    }

    fn is_interrupted(&self) -> bool {
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Says how far it came. The node stops when this program's connection ends.
    fn give_up(&self, begun: Instant, resident_bytes: u64, json: bool) -> Result<Outcome> {
        let size_bytes = self.progress.length().unwrap_or_default();
        let report = Report {
            files: self.paths.len(),
            resident_files: self.finished_files.load(Ordering::Relaxed),
            size_bytes,
            // Files that grew meanwhile are longer than what was counted at the begin.
            resident_bytes: resident_bytes.min(size_bytes),
            elapsed_ms: begun.elapsed().as_secs_f64() * 1e3,
            interrupted: true,
            ..Report::default()
        };
        if json {
            output::json(&report)?;
        }
        output::note(&format!(
            "interrupted at {} of {}; what came in stays cached, run it again to go on",
            size(report.resident_bytes),
            size(report.size_bytes)
        ));
        Ok(Outcome::Interrupted)
    }

    fn outcome_of_the_first(&self) -> Outcome {
        match lock(&self.failures).get(&0).map(exit::code) {
            None | Some(1 | 2) => Outcome::NotSo,
            Some(code) => Outcome::Failed(code),
        }
    }

    /// Asks the node of every file again: what came in early may be gone by now.
    fn verify(&self, begun: Instant, read_bytes: u64) -> Report {
        let mut report = Report { files: self.paths.len(), read_bytes, ..Report::default() };
        let failures = lock(&self.failures);
        for (index, path) in self.paths.iter().enumerate() {
            let explained =
                Target::open(path).and_then(|target| self.node.explain(target.descriptor()));
            match explained {
                Ok(file) => report.add(path, &file, failures.get(&index), self.keep),
                Err(error) if is_gone(&error) => report.gone_files += 1,
                Err(error) => {
                    let (path, why) = (path.clone(), error.to_string());
                    let missing = Missing { path, size_bytes: 0, resident_bytes: 0, why };
                    report.not_resident.push(missing);
                }
            }
        }
        report.elapsed_ms = begun.elapsed().as_secs_f64() * 1e3;
        report
    }
}

impl Report {
    /// Counts a file: how much of its present version is in, and what became of its load.
    fn add(&mut self, path: &Path, file: &Explanation, failure: Option<&Error>, keep: bool) {
        let (size_bytes, resident_bytes) = (file.size_bytes, usable_bytes(file));
        self.size_bytes += size_bytes;
        self.resident_bytes += resident_bytes;
        // An empty file is in, unless it could not be brought in.
        let is_lost = failure.is_some_and(|it| it.kind() == ErrorKind::Lost);
        let is_in = resident_bytes >= size_bytes && !is_lost;
        if keep && failure.is_some_and(|it| it.kind() == ErrorKind::Unsupported) {
            self.not_pinnable_files += 1;
            return;
        }
        // What was brought in by somebody else is in as well; a pin is one's own.
        if is_in && (failure.is_none() || !keep) {
            self.resident_files += 1;
            return;
        }
        let why = failure.map_or_else(|| why_absent(file).join("; "), Error::to_string);
        let missing = Missing { path: path.to_owned(), size_bytes, resident_bytes, why };
        if is_in { self.not_pinned.push(missing) } else { self.not_resident.push(missing) }
    }

    /// Whether all that was found is as it was asked for.
    fn is_complete(&self) -> bool {
        let is_none_pinned = self.not_pinnable_files > 0 && self.resident_files == 0;
        let are_left_out = !self.not_resident.is_empty() || !self.not_pinned.is_empty();
        !are_left_out && !is_none_pinned && self.gone_files == 0
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

fn print(report: &Report, keep: bool) {
    let seconds = report.elapsed_ms / 1e3;
    let rate = (report.read_bytes as f64 / seconds.max(1e-3)) as u64;
    output::line(&format!(
        "{} of {} {}resident: {} of {}; {} read from the PFS in {seconds:.1} s ({}/s)",
        report.resident_files,
        count(report.files as u64, "file"),
        if keep { "pinned and " } else { "" },
        size(report.resident_bytes),
        size(report.size_bytes),
        size(report.read_bytes),
        size(rate)
    ));
    if report.not_pinnable_files > 0 {
        output::note(&format!(
            "not pinned: {} of at most `small_file_bytes_max`; they are packed together, and \
             evicted like all others",
            count(report.not_pinnable_files as u64, "small file")
        ));
    }
    if report.files == 0 {
        output::note(NO_FILE);
    }
    if report.gone_files > 0 {
        output::note(&gone(report.gone_files as u64));
    }
    name("not resident", &report.not_resident);
    name("not pinned", &report.not_pinned);
}

/// Names files that are not as they were asked for, up to a number.
fn name(what: &str, files: &[Missing]) {
    for file in files.iter().take(NAMED_MAX) {
        output::note(&format!(
            "{what}: {} ({} of {}): {}",
            file.path.display(),
            size(file.resident_bytes),
            size(file.size_bytes),
            file.why
        ));
    }
    if files.len() > NAMED_MAX {
        let more = count((files.len() - NAMED_MAX) as u64, "more file");
        output::note(&format!("{what}: {more} (all with --json)"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_of_progress_fits_its_window() {
        let widest = |template: &str| {
            let figures = [
                ("{wide_bar}", ""),
                ("{percent:>3}", "100"),
                ("{bytes}", "1023.99 GiB"),
                ("{total_bytes}", "1023.99 GiB"),
                ("{binary_bytes_per_sec}", "1023.99 MiB/s"),
                ("{eta}", "59m"),
                ("{msg}", "file 100000 of 100000"),
            ];
            let full = figures
                .iter()
                .fold(template.to_owned(), |text, (name, figure)| text.replace(name, figure));
            assert!(!full.contains('{'), "{full}");
            full.len()
        };
        assert!(widest(template(COLUMNS_MIN)) + 10 <= usize::from(COLUMNS_MIN), "and a bar");
        assert!(widest(template(40)) <= 40);
    }
}
