//! The contract suite, which users run on their own PFS: what it keeps of POSIX, how fast it is,
//! and what Tidepool does where something is missing.
//!
//! Works in one directory that it makes and removes, also after a failed check or a cancel. Every
//! check runs in a directory and a thread of its own, so that a call that never returns costs one
//! check. Writes a bounded number of bytes, and judges no speed.

mod data;
mod ground;
mod io;
mod locks;
mod names;
mod options;
mod speed;
mod times;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};

use self::ground::{Check, Ground, Verdict};
pub use self::options::{ContractOptions, Outcome};

/// One check.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CheckResult {
    /// Stable name, words joined by dashes.
    pub name: String,
    /// How it ended.
    pub outcome: Outcome,
    /// What was seen, in words and figures.
    pub measured: String,
    /// What Tidepool loses and does instead; empty where nothing is lost.
    pub consequence: String,
    /// Milliseconds it took.
    pub elapsed_ms: f64,
}

/// All checks.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ContractReport {
    /// The directory examined.
    pub root: String,
    /// Type of the file system.
    pub fs_type: String,
    /// In the order in which they ran.
    pub checks: Vec<CheckResult>,
    /// Milliseconds in total.
    pub elapsed_ms: f64,
}

impl ContractReport {
    /// Number of checks that ended so.
    pub fn count(&self, outcome: Outcome) -> usize {
        self.checks.iter().filter(|check| check.outcome == outcome).count()
    }
}

/// When a check is given up. The whole suite stays under a minute on a healthy mount.
const CHECK_TIME_MAX: Duration = Duration::from_secs(20);

const NO_ROOM: &str = "not made: there is no room, or the quota is used up";
const MAKE_ROOM: &str = "make room there, or raise the quota, and run this again: a directory \
     that is full says nothing of its file system";

/// All checks, in the order in which they run.
fn checks() -> impl Iterator<Item = &'static Check> {
    [names::CHECKS, data::CHECKS, io::CHECKS, times::CHECKS, locks::CHECKS, speed::CHECKS]
        .into_iter()
        .flatten()
}

/// Runs the suite in a new directory below `root` and removes it. Calls `progress` after each.
pub fn run(
    root: &Path,
    options: ContractOptions,
    progress: &mut dyn FnMut(&CheckResult),
) -> ContractReport {
    let began = Instant::now();
    let mut report =
        ContractReport { root: root.display().to_string(), ..ContractReport::default() };
    let opened = began.elapsed();
    match Ground::prepare(root, options.clone()) {
        Ok(ground) => {
            report.fs_type.clone_from(&ground.fs_type);
            let ground = Arc::new(ground);
            let made = Verdict::ok(format!("made {}", ground.directory.display()));
            push(&mut report, progress, "open-and-write", made, opened);
            for check in checks() {
                let started = Instant::now();
                let verdict = match options.cancelled() {
                    true => Verdict::skipped("cancelled"),
                    false => run_check(check, &ground),
                };
                push(&mut report, progress, check.name, verdict, started.elapsed());
            }
            let without_room = report.checks.iter().filter(|check| check.measured == NO_ROOM);
            if let unmade @ 1.. = without_room.count() {
                let measured = format!("no room for {unmade} of {} checks", checks().count());
                let verdict = Verdict::failed(measured, MAKE_ROOM);
                push(&mut report, progress, "room", verdict, Duration::ZERO);
            }
            let started = Instant::now();
            let verdict = ground.remove();
            push(&mut report, progress, "clean-up", verdict, started.elapsed());
        }
        Err((fs_type, verdict)) => {
            report.fs_type = fs_type;
            push(&mut report, progress, "open-and-write", verdict, began.elapsed());
            for check in checks() {
                let verdict = Verdict::skipped("the directory cannot be written");
                push(&mut report, progress, check.name, verdict, Duration::ZERO);
            }
        }
    }
    report.elapsed_ms = milliseconds(began.elapsed());
    report
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

fn push(
    report: &mut ContractReport,
    progress: &mut dyn FnMut(&CheckResult),
    name: &str,
    verdict: Verdict,
    elapsed: Duration,
) {
    let result = CheckResult {
        name: name.to_owned(),
        outcome: verdict.outcome,
        measured: verdict.measured,
        consequence: verdict.consequence,
        elapsed_ms: milliseconds(elapsed),
    };
    progress(&result);
    report.checks.push(result);
}

/// A check whose calls failed. Where they lacked room, that is no fault of the file system.
fn failed(check: &Check, error: &std::io::Error) -> Verdict {
    use std::io::ErrorKind::{QuotaExceeded, StorageFull};
    match error.kind() {
        StorageFull | QuotaExceeded => Verdict::skipped(NO_ROOM),
        _ => Verdict::failed(error.to_string(), check.if_failed),
    }
}

fn run_check(check: &'static Check, ground: &Arc<Ground>) -> Verdict {
    let (sender, receiver) = std::sync::mpsc::sync_channel(1);
    let ground = match ground.plot(check.name) {
        Ok(plot) => plot,
        Err(error) => return failed(check, &error),
    };
    let thread = std::thread::Builder::new().name(check.name.to_owned()).spawn(move || {
        let _given_up = sender.send((check.run)(&ground));
    });
    if let Err(error) = thread {
        return Verdict::skipped(format!("no thread for it: {error}"));
    }
    match receiver.recv_timeout(CHECK_TIME_MAX) {
        Ok(Ok(verdict)) => verdict,
        Ok(Err(error)) => failed(check, &error),
        Err(std::sync::mpsc::RecvTimeoutError::Timeout) => Verdict::failed(
            format!("no answer in {} s", CHECK_TIME_MAX.as_secs()),
            "the mount hangs; Tidepool would hang with it",
        ),
        Err(std::sync::mpsc::RecvTimeoutError::Disconnected) => {
            Verdict::failed("the check itself broke".to_owned(), "please report this")
        }
    }
}
