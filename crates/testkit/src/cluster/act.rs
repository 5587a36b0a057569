//! Carries one operation out, on a thread of its own, and looks at what came of it.

use std::fs::{self, File, FileTimes};
use std::io::{self, Write};
use std::os::fd::{AsFd, IntoRawFd};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tidepool_client::OpenOptions;
use tidepool_proto::admin::{AdminReply, AdminRequest};
use tidepool_proto::size::MemorySize;

use super::content::{Blend, Content, Wrong, encode};
use super::held::Reader;
use super::nodes::Nodes;
use super::operation::{Author, Change, Operation, is_kept, name, name_beside};
use super::world::{Pending, View};
use crate::model::files::Failure;

/// An operation with all that is known when its batch begins.
pub struct Job {
    /// What to do.
    pub operation: Operation,
    /// Where.
    pub nodes: Arc<Nodes>,
    /// The content of its file.
    pub before: Content,
    /// The change of its file in the same batch.
    pub pending: Option<Pending>,
    /// Its node is down, or is killed in the same batch: what its own programs are told is any
    /// error.
    pub is_lost: bool,
    /// What is in its slot.
    pub held: Option<(Arc<Reader>, View)>,
}

/// What came of an operation.
#[derive(Debug, PartialEq)]
pub enum Outcome {
    /// What was asked for.
    Done,
    /// The version that was opened is gone.
    Stale,
    /// An error of a node that is lost.
    Lost,
    /// What must not be.
    Wrong(Wrong),
}

/// An outcome with what else is of interest.
pub struct Report {
    /// What came of it.
    pub outcome: Outcome,
    /// An open to be kept.
    pub opened: Option<Reader>,
    /// Bytes that the library said came from other nodes.
    pub peer_bytes: u64,
    /// How long it took.
    pub took: Duration,
}

impl Report {
    fn of(outcome: Outcome) -> Report {
        Report { outcome, opened: None, peer_bytes: 0, took: Duration::ZERO }
    }
}

/// What the owner of a program may be told by an operation on a node's own command line.
const ADMIN_REFUSALS: [i32; 3] = [libc::ENOSPC, libc::ESTALE, libc::EOPNOTSUPP];

impl Job {
    /// Does it.
    pub fn run(&self) -> Report {
        match &self.operation {
            Operation::Read { pieces, .. } => self.read(pieces),
            Operation::Hold { .. } => self.hold(),
            Operation::ReadHeld { first, pages, .. } => self.read_held(*first, *pages),
            Operation::Change { .. } => Report::of(self.change()),
            other => Report::of(self.administer(other)),
        }
    }

    /// What an error means.
    fn failed(&self, what: &str, failure: &Failure, may_be_stale: bool) -> Outcome {
        let vanishes =
            matches!(self.pending, Some(Pending { change: Change::Recreate { .. }, .. }));
        match failure.errno {
            libc::ESTALE | libc::EFAULT if may_be_stale => Outcome::Stale,
            libc::ENOENT if vanishes => Outcome::Stale,
            _ if self.is_lost => Outcome::Lost,
            errno => Outcome::Wrong(format!("{what}: {} (errno {errno})", failure.message)),
        }
    }

    fn open(&self) -> Result<Option<Reader>, Outcome> {
        let (Operation::Read { node, way, file, .. } | Operation::Hold { node, way, file, .. }) =
            &self.operation
        else {
            return Ok(None);
        };
        Reader::open(&self.nodes, *node, *way, *file)
            .map_err(|failure| self.failed("open", &failure, self.pending.is_some()))
    }

    fn read(&self, pieces: &[(usize, usize)]) -> Report {
        let reader = match self.open() {
            Ok(Some(reader)) => reader,
            Ok(None) => return Report::of(Outcome::Done),
            Err(outcome) => return Report::of(outcome),
        };
        let mut fresh = Fresh::new(self);
        let mut report = Report::of(Outcome::Done);
        for (first, pages) in pieces.iter().copied() {
            let Some(pages) = fresh.limit(&reader, first, pages) else { continue };
            match reader.read(first, pages) {
                Ok(piece) => {
                    report.peer_bytes += piece.peer_bytes;
                    if let Err(wrong) = fresh.check(first, pages, &piece.bytes) {
                        report.outcome = Outcome::Wrong(wrong);
                        return report;
                    }
                }
                Err(failure) => {
                    let what = format!("read of {pages} pages at page {first}");
                    report.outcome = self.failed(&what, &failure, self.pending.is_some());
                    return report;
                }
            }
        }
        report
    }

    fn hold(&self) -> Report {
        match self.open() {
            Ok(opened) => Report { opened, ..Report::of(Outcome::Done) },
            Err(outcome) => Report::of(outcome),
        }
    }

    fn read_held(&self, first: usize, pages: usize) -> Report {
        let Some((reader, view)) = &self.held else { return Report::of(Outcome::Done) };
        let follows = self.pending.as_ref().filter(|it| view.follows(it.change, it.author));
        let may_be_stale = view.is_left || self.pending.is_some();
        let mut wanted = pages;
        let mut may_end_early = may_be_stale;
        if let Some(most) = reader.pages_max() {
            let end = follows.map_or(usize::MAX, |it| it.after.pages());
            let end = end.min(view.content.pages()).min(most);
            wanted = pages.min(end.saturating_sub(first));
            may_end_early |= view.ends.iter().any(|end| *end < first + wanted);
        }
        if wanted == 0 {
            return Report::of(Outcome::Done);
        }
        let piece = match reader.read(first, wanted) {
            Ok(piece) => piece,
            Err(failure) => {
                let way = view.way;
                let what = format!("read of {wanted} pages at page {first}, kept open by {way:?}");
                return Report::of(self.failed(&what, &failure, may_end_early));
            }
        };
        let mut ends = view.ends.clone();
        if reader.pages_max().is_some() {
            ends = vec![first + wanted];
        }
        let file = view.file;
        let current = match follows {
            None => view.content.check(file, first, wanted, &ends, &piece.bytes),
            Some(pending) => {
                let (after, empties) = (&pending.after, pending.change.empties());
                // It may also stay at an earlier end of a file that grew.
                let least = ends.iter().copied().min().unwrap_or(0).min(after.pages());
                let empties = empties || least < view.content.pages().min(after.pages());
                let blend = Blend { before: &view.content, after, empties };
                blend.check(file, first, wanted, &piece.bytes)
            }
        };
        let is_earlier =
            |it: &Content| it.check(file, first, wanted, &[it.pages()], &piece.bytes).is_ok();
        let outcome = match current {
            Err(wrong) if !view.earlier.iter().any(is_earlier) => {
                Outcome::Wrong(format!("kept open by {:?} at n{}: {wrong}", view.way, view.node))
            }
            _ => Outcome::Done,
        };
        Report { peer_bytes: piece.peer_bytes, ..Report::of(outcome) }
    }

    fn change(&self) -> Outcome {
        let (Operation::Change { file, author, generation, manner, .. }, Some(pending)) =
            (&self.operation, &self.pending)
        else {
            return Outcome::Done;
        };
        let writer = Writer {
            nodes: &self.nodes,
            file: *file,
            author: *author,
            generation: *generation,
            before: &self.before,
            restores_times: manner.restores_times && *author == Author::Behind,
        };
        pause_us(manner.after_us);
        if let Err(failure) = writer.carry_out(pending.change) {
            return self.failed("change", &failure, false);
        }
        if is_kept(*file) && *author != Author::Behind {
            return Outcome::Done; // it is in memory, or is not: both are right
        }
        // What was closed is on the PFS.
        let bytes = match fs::read(self.nodes.pfs().join(name(*file))) {
            Ok(bytes) => bytes,
            Err(error) => return Outcome::Wrong(format!("after a change, on the PFS: {error}")),
        };
        let pages = pending.after.pages();
        match pending.after.check(*file, 0, pages + 1, &[pages], &bytes) {
            Ok(()) => Outcome::Done,
            Err(wrong) => Outcome::Wrong(format!("after a change, on the PFS: {wrong}")),
        }
    }

    fn administer(&self, operation: &Operation) -> Outcome {
        let pause = |ms: u64| pause_us(ms * 1000);
        let member = |node: usize| &self.nodes.members[node];
        let done = match operation {
            Operation::Evict { node, file, after_us } => {
                pause_us(*after_us);
                self.ask(*node, AdminRequest::Evict, Some(*file))
            }
            Operation::Load { node, file } => self.ask(*node, AdminRequest::Load, Some(*file)),
            Operation::EvictAll { node, after_us } => {
                pause_us(*after_us);
                self.ask(*node, AdminRequest::EvictAll, None)
            }
            Operation::Resize { node, bytes } => {
                let size = MemorySize::Bytes(*bytes);
                self.ask(*node, AdminRequest::Resize { size }, None)
            }
            Operation::SetPolicy { node, policy } => {
                self.ask(*node, AdminRequest::SetPolicy { policy: policy.clone() }, None)
            }
            Operation::Drain { node } => self
                .ask(*node, AdminRequest::Drain { stop: false }, None)
                .and_then(|()| self.ask(*node, AdminRequest::HandOn { limit_ms: 1000 }, None))
                .and_then(|()| self.ask(*node, AdminRequest::Resume, None)),
            Operation::Pause { node, after_ms, for_ms } => {
                pause(*after_ms);
                member(*node).signal(libc::SIGSTOP);
                pause(*for_ms);
                member(*node).signal(libc::SIGCONT);
                Ok(())
            }
            Operation::Rest { for_ms } => {
                pause(*for_ms);
                Ok(())
            }
            Operation::Kill { node, after_ms } => {
                pause(*after_ms);
                member(*node).node.kill().map_err(Failure::from)
            }
            Operation::Stop { node } => member(*node).node.stop().map_err(Failure::from),
            Operation::Start { node } => member(*node).start_again().map_err(Failure::from),
            Operation::Link { from, to, weather } => {
                self.nodes.set_link(*from, *to, *weather);
                Ok(())
            }
            _ => Ok(()),
        };
        match done {
            Ok(()) => Outcome::Done,
            Err(failure) if ADMIN_REFUSALS.contains(&failure.errno) => Outcome::Stale,
            Err(failure) => self.failed("command", &failure, self.pending.is_some()),
        }
    }

    fn ask(&self, node: usize, request: AdminRequest, file: Option<usize>) -> Result<(), Failure> {
        let path = |file: usize| self.nodes.pfs().join(name(file));
        let file = file.map(|file| File::open(path(file))).transpose()?;
        let client = &self.nodes.members[node].client;
        match client.admin(request, file.as_ref().map(AsFd::as_fd))? {
            AdminReply::Failed { message, errno, .. } => Err(Failure { errno, message }),
            _ => Ok(()),
        }
    }
}

/// An open that began in this batch: which versions it may be of.
struct Fresh<'a> {
    job: &'a Job,
    file: usize,
    /// Versions that all reads until now agree with.
    candidates: Vec<&'a Content>,
}

impl<'a> Fresh<'a> {
    fn new(job: &'a Job) -> Fresh<'a> {
        let after = job.pending.as_ref().map(|pending| &pending.after);
        let candidates = std::iter::once(&job.before).chain(after).collect();
        Fresh { job, file: job.operation.file().unwrap_or_default(), candidates }
    }

    /// How many pages can be read: a mapping is not read beyond its file.
    fn limit(&self, reader: &Reader, first: usize, pages: usize) -> Option<usize> {
        let Some(most) = reader.pages_max() else { return Some(pages) };
        let shortest = self.candidates.iter().map(|it| it.pages()).min().unwrap_or(0);
        let pages = pages.min(most.min(shortest).saturating_sub(first));
        // Beside a change that empties the file a page may be gone any time.
        (pages > 0).then_some(pages)
    }

    fn check(&mut self, first: usize, pages: usize, bytes: &[u8]) -> Result<(), Wrong> {
        if let Some(Pending { change, after, .. }) = &self.job.pending
            && !matches!(change, Change::Replace { .. })
        {
            let blend = Blend { before: &self.job.before, after, empties: change.empties() };
            return blend.check(self.file, first, pages, bytes);
        }
        let mut wrong = Vec::new();
        let file = self.file;
        self.candidates.retain(|content| {
            let seen = content.check(file, first, pages, &[content.pages()], bytes);
            seen.map_err(|reason| wrong.push(reason)).is_ok()
        });
        match self.candidates.is_empty() {
            true => Err(format!("of no version that the file had: {}", wrong.join("; or "))),
            false => Ok(()),
        }
    }
}

/// Who changes a file, and how.
struct Writer<'a> {
    nodes: &'a Nodes,
    file: usize,
    author: Author,
    generation: u64,
    before: &'a Content,
    restores_times: bool,
}

type Done = Result<(), Failure>;

impl Writer<'_> {
    fn carry_out(&self, change: Change) -> Done {
        match self.author {
            Author::Behind => self.by_calls(&self.nodes.pfs(), change),
            Author::Mount(node) => self.by_calls(self.nodes.members[node].node.mount(), change),
            Author::Library(node) => self.by_library(node, change),
        }
    }

    fn pages(&self, first: usize, count: usize) -> Vec<u8> {
        encode(self.file, first, count, self.generation)
    }

    fn beside(&self, directory: &Path) -> PathBuf {
        directory.join(name_beside(self.file))
    }

    fn by_calls(&self, directory: &Path, change: Change) -> Done {
        let path = directory.join(name(self.file));
        let at = |page: usize| (page * super::content::PAGE_BYTES) as u64;
        let old = self.restores_times.then(|| fs::metadata(&path)).transpose()?;
        let finish = |file: File| -> Done {
            if let Some(old) = &old {
                let times = FileTimes::new().set_accessed(old.accessed()?);
                file.set_times(times.set_modified(old.modified()?))?;
            }
            if self.generation.is_multiple_of(2) && self.author != Author::Behind {
                file.sync_all()?;
            }
            close(file)
        };
        match change {
            Change::Overwrite { first, pages } => {
                let first = first.min(self.before.pages());
                let file = File::options().write(true).open(&path)?;
                file.write_all_at(&self.pages(first, pages), at(first))?;
                finish(file)
            }
            Change::Append { pages } => {
                let mut file = File::options().append(true).open(&path)?;
                file.write_all(&self.pages(self.before.pages(), pages))?;
                finish(file)
            }
            Change::Truncate { pages } => {
                let file = File::options().write(true).open(&path)?;
                file.set_len(at(pages))?;
                finish(file)
            }
            Change::Rewrite { pages } => {
                let mut file = File::create(&path)?;
                file.write_all(&self.pages(0, pages))?;
                finish(file)
            }
            Change::Replace { pages } => {
                let beside = self.beside(directory);
                let mut file = File::create(&beside)?;
                file.write_all(&self.pages(0, pages))?;
                finish(file)?;
                Ok(fs::rename(beside, path)?)
            }
            Change::Recreate { pages } => {
                remove(&path)?;
                let mut file = File::create_new(&path)?;
                file.write_all(&self.pages(0, pages))?;
                finish(file)
            }
        }
    }

    fn by_library(&self, node: usize, change: Change) -> Done {
        let pfs = self.nodes.pfs();
        let path = pfs.join(name(self.file));
        let client = &self.nodes.members[node].client;
        let at = |page: usize| (page * super::content::PAGE_BYTES) as u64;
        let finish = |file: tidepool_client::File| -> Done {
            if self.generation.is_multiple_of(2) {
                file.sync()?;
            }
            Ok(file.close()?)
        };
        let in_place = OpenOptions { create: false, ..OpenOptions::read_write() };
        match change {
            Change::Overwrite { first, pages } => {
                let first = first.min(self.before.pages());
                let file = client.open(&path, in_place)?;
                file.write_at(at(first), &self.pages(first, pages))?;
                finish(file)
            }
            Change::Append { pages } => {
                let file = client.open(&path, OpenOptions { append: true, ..in_place })?;
                file.append(&self.pages(self.before.pages(), pages))?;
                finish(file)
            }
            Change::Truncate { pages } => {
                let file = client.open(&path, in_place)?;
                file.set_size(at(pages))?;
                finish(file)
            }
            Change::Rewrite { pages } => {
                let file = client.open(&path, OpenOptions::write())?;
                file.write_at(0, &self.pages(0, pages))?;
                finish(file)
            }
            Change::Replace { pages } => {
                let beside = self.beside(&pfs);
                let file = client.open(&beside, OpenOptions::write())?;
                file.write_at(0, &self.pages(0, pages))?;
                finish(file)?;
                Ok(fs::rename(beside, path)?)
            }
            Change::Recreate { pages } => {
                remove(&path)?;
                let file = client.open(&path, OpenOptions::write())?;
                file.write_at(0, &self.pages(0, pages))?;
                finish(file)
            }
        }
    }
}

/// Lets others go first.
fn pause_us(after_us: u64) {
    std::thread::sleep(Duration::from_micros(after_us));
}

/// Removes a file; one that is not there is fine: the first change makes it.
fn remove(path: &Path) -> Done {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
        _ => Ok(()),
    }
}

/// Closes with the error that dropping would hide.
fn close(file: File) -> Done {
    // SAFETY: the descriptor was this file's alone and is not used after this.
    match unsafe { libc::close(file.into_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error().into()),
    }
}
