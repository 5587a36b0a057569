//! `tidepool evict`, `unpin` and `flush`: evict the cached bytes of files, allow their eviction, or
//! bring what is in memory alone to the PFS.

use serde::Serialize;
use tidepool_proto::admin::{AdminRequest, FlushReport, ForgottenFile, FreeReport};
use tidepool_proto::{Error, ErrorKind, Result};

use super::store::print_freed;
use crate::arguments::{EvictArguments, FlushArguments, UnpinArguments};
use crate::target::{Roots, Target, files};
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::failures::Failures;
use tidepool_terminal::output;

/// Sum of the evictions of several files.
#[derive(Serialize)]
struct EvictReport {
    files: usize,
    #[serde(flatten)]
    freed: FreeReport,
}

#[derive(Default, Serialize)]
struct UnpinReport {
    /// Files that were pinned.
    files: u64,
    /// Files that were looked at and were not.
    not_pinned_files: u64,
}

/// Runs `evict`.
pub fn evict(arguments: &EvictArguments) -> Result<Outcome> {
    let node = arguments.facts.socket.connect();
    if arguments.all {
        let freed = node.free(AdminRequest::EvictAll, None)?;
        return print(arguments, "all", EvictReport { files: 0, freed }, true);
    }
    let roots = Roots::of(&node.status()?);
    let mut failures = Failures::default();
    let mut failed = |error: Error| failures.add(&error);
    let paths = files(&roots, &arguments.paths, arguments.recursive, &mut failed)?;
    let mut total = EvictReport { files: 0, freed: FreeReport::default() };
    for path in paths {
        let evicted = Target::open(&path)
            .and_then(|target| node.free(AdminRequest::Evict, Some(target.descriptor())));
        match evicted {
            Ok(freed) => add(&mut total, freed),
            Err(error) if arguments.recursive => failed(error),
            Err(error) => return Err(error),
        }
    }
    failures.tell();
    let what = output::count(total.files as u64, "file");
    print(arguments, &what, total, failures.is_empty())
}

fn add(total: &mut EvictReport, freed: FreeReport) {
    total.files += 1;
    total.freed = FreeReport {
        freed_bytes: total.freed.freed_bytes + freed.freed_bytes,
        held_bytes: total.freed.held_bytes + freed.held_bytes,
        elapsed_ms: total.freed.elapsed_ms + freed.elapsed_ms,
        ..freed
    };
}

fn print(
    arguments: &EvictArguments,
    what: &str,
    report: EvictReport,
    complete: bool,
) -> Result<Outcome> {
    if arguments.facts.json {
        output::json(&report)?;
    } else {
        print_freed(what, &report.freed);
    }
    Ok(if complete && report.freed.held_bytes == 0 { Outcome::Done } else { Outcome::NotSo })
}

/// Runs `flush`.
pub fn flush(arguments: &FlushArguments) -> Result<Outcome> {
    let node = arguments.facts.socket.connect();
    let mut failures = Failures::default();
    let report = if arguments.paths.is_empty() {
        node.flush_all(arguments.forget_missing)?
    } else {
        let roots = Roots::of(&node.status()?);
        let mut failed = |error: Error| failures.add(&error);
        let mut report = FlushReport::default();
        for path in files(&roots, &arguments.paths, arguments.recursive, &mut failed)? {
            let flush = || {
                let target = Target::open(&path)?;
                node.flush(target.descriptor())
            };
            let is_replaced = |error: &Error| error.kind() == ErrorKind::Changed;
            // A copy of it may have come in its place in this moment.
            match flush().or_else(|error| if is_replaced(&error) { flush() } else { Err(error) }) {
                Ok(one) => {
                    report.files += one.files;
                    report.bytes += one.bytes;
                }
                Err(error) if arguments.recursive => failed(error),
                Err(error) => return Err(error),
            }
        }
        report
    };
    failures.tell();
    if arguments.facts.json {
        output::json(&report)?;
    } else {
        let FlushReport { files, bytes, forgotten } = report;
        let files = output::count(files, "file");
        output::line(&format!("{files} written to the PFS, {}", output::size(bytes)));
        for ForgottenFile { path, node, bytes } in forgotten {
            let bytes = output::size(bytes);
            output::line(&format!("dropped, as it is nowhere: {path} of {node}, {bytes}"));
        }
    }
    Ok(if failures.is_empty() { Outcome::Done } else { Outcome::NotSo })
}

/// Runs `unpin`.
pub fn unpin(arguments: &UnpinArguments) -> Result<Outcome> {
    let node = arguments.facts.socket.connect();
    let roots = Roots::of(&node.status()?);
    let mut report = UnpinReport::default();
    let mut failures = Failures::default();
    let mut failed = |error: Error| failures.add(&error);
    for path in files(&roots, &arguments.paths, arguments.recursive, &mut failed)? {
        match Target::open(&path).and_then(|target| node.unpin(target.descriptor())) {
            Ok(true) => report.files += 1,
            Ok(false) => report.not_pinned_files += 1,
            Err(error) if arguments.recursive => failed(error),
            Err(error) => return Err(error),
        }
    }
    failures.tell();
    if arguments.facts.json {
        output::json(&report)?;
    } else {
        let others = match report.not_pinned_files {
            0 => String::new(),
            files => format!(", {} not pinned before", output::count(files, "file")),
        };
        output::line(&format!("{} unpinned{others}", output::count(report.files, "file")));
    }
    Ok(if failures.is_empty() { Outcome::Done } else { Outcome::NotSo })
}
