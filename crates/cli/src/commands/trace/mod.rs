//! `tidepool trace`: prints the requests of a running node as they are served, with the level that
//! served each and its wait for the parallel file system, and a summary at the end.

mod print;
mod summary;
mod wish;

use std::os::fd::BorrowedFd;
use std::os::unix::fs::MetadataExt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use tidepool_proto::Result;
use tidepool_proto::trace::{TRACE_LATE, TraceBatch, TraceRequest};

use crate::arguments::TraceArguments;
use crate::connection::{Connection, SocketArgument};
use crate::target::{Roots, Target};
use print::Printer;
use tidepool_terminal::exit::Outcome;
use tidepool_terminal::interruption;
use tidepool_terminal::output;
use wish::Wish;

/// How long the node may take to answer after this command was asked to end.
const END_PATIENCE: Duration = Duration::from_secs(2);
/// How long records are fetched after the end, however many there are.
const FETCH_MAX: Duration = Duration::from_secs(2);

/// Runs `trace`.
pub fn trace(arguments: &TraceArguments) -> Result<Outcome> {
    let wish = Wish::parse(&arguments.what)?;
    let node = arguments.socket.connect();
    let roots = Roots::of(&node.status()?);
    let file = wish.file.as_deref().map(|path| roots.locate(path)).transpose()?;
    let file = file.map(|path| Target::open(&path)).transpose()?;
    wish.check_process()?;
    let interrupted = interruption::watch()?;
    let watcher = Watcher { node, interrupted: &interrupted };
    let start = TraceRequest::Start { process_id: wish.process_id, has_file: file.is_some() };
    watcher.ask(start, file.as_ref().map(Target::descriptor))?;
    output::note(&format!("tidepool: tracing {}", wish.words()));
    if let Some(note) = narrow_sight(&arguments.socket) {
        output::note(&note);
    }
    let mut printer = Printer::new(arguments.json);
    let watched = watcher.follow(wish.lasts, &mut printer);
    // Also where the node ended: what was seen is worth its summary.
    printer.finish()?;
    watched?;
    Ok(match interrupted.load(Ordering::Relaxed) {
        true => Outcome::Interrupted,
        false => Outcome::Done,
    })
}

/// A note for users that get only their own requests.
fn narrow_sight(socket: &SocketArgument) -> Option<String> {
    let user_id = rustix::process::geteuid().as_raw();
    let owner = std::fs::metadata(socket.path()).ok()?.uid();
    (user_id != 0 && user_id != owner)
        .then(|| format!("tidepool: only requests of user {user_id} are shown; root sees all"))
}

/// The node that is watched.
struct Watcher<'a> {
    node: Connection,
    interrupted: &'a AtomicBool,
}

impl Watcher<'_> {
    /// Asks; `None` where the node does not answer and Ctrl-C came.
    fn ask(
        &self,
        request: TraceRequest,
        file: Option<BorrowedFd<'_>>,
    ) -> Result<Option<TraceBatch>> {
        let mut asked_to_end = None;
        self.node.trace(request, file, &mut || {
            if !self.interrupted.load(Ordering::Relaxed) {
                return true;
            }
            asked_to_end.get_or_insert_with(Instant::now).elapsed() < END_PATIENCE
        })
    }

    fn follow(&self, lasts: Option<Duration>, printer: &mut Printer) -> Result<()> {
        let end = lasts.map(|lasts| Instant::now() + lasts);
        let is_over = || end.is_some_and(|end| Instant::now() >= end);
        while !is_over() && !self.interrupted.load(Ordering::Relaxed) {
            let Some(batch) = self.ask(TraceRequest::Next, None)? else { return Ok(()) };
            printer.batch(&batch);
        }
        self.ask(TraceRequest::Stop, None)?;
        printer.stopped();
        let stopped = Instant::now();
        loop {
            let Some(batch) = self.ask(TraceRequest::Next, None)? else { return Ok(()) };
            printer.batch(&batch);
            let is_empty = batch.records.is_empty() && stopped.elapsed() >= TRACE_LATE;
            if is_empty || stopped.elapsed() >= FETCH_MAX {
                return Ok(());
            }
        }
    }
}
