//! Fills: bringing blocks in from the PFS, one read from it however many ask.
//!
//! A fill is a ticket. Read-ahead queues tickets for the transfer threads; a reader that needs a
//! block now runs its ticket itself if no thread has taken it yet, and waits otherwise. The version
//! of the file is checked after the bytes were read: a fill of a changed file is thrown away.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use tidepool_pfs::{LowerFile, cost};
use tidepool_proto::table::BlockState;
use tidepool_proto::{Error, ErrorKind, Result};
use tidepool_store::FillStart;

use crate::carry::WordWait;
use crate::core::Core;
use crate::file::content::Content;
use crate::file::state::FileState;
use crate::transient::AlignedBuffer;

/// How a fill ended.
#[derive(Clone, Debug)]
pub enum Filled {
    /// The block is in the store (or was a moment ago).
    Kept,
    /// The bytes are here; the store did not admit them.
    Passing(Arc<AlignedBuffer>),
    /// The file is not at the content's version any more.
    Changed,
    /// The PFS or the machine refused: errno and message.
    Failed(i32, String),
}

#[derive(Debug)]
enum Progress {
    Queued,
    Running,
    Done(Filled),
}

/// Where the bytes of a fill are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Source {
    /// On the PFS.
    Servers,
    /// In the kernel's page cache still: they were written a moment ago.
    PageCache,
}

/// Whether a block stays in the store once it was brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keeping {
    /// Wherever there is room.
    Always,
    /// Only where the policy gains by it: a reader streams through, or may never come.
    WhereItPays,
    /// It passes through.
    Never,
}

/// One fill of one block.
#[derive(Debug)]
pub struct Ticket {
    block: u64,
    source: Source,
    content: Arc<Content>,
    progress: Mutex<Progress>,
    finished: Condvar,
}

/// A queued ticket with what it takes to run it.
struct Job {
    ticket: Arc<Ticket>,
    /// Closed before the file is given back: who waits for the one knows of the other.
    lower: Arc<dyn LowerFile>,
    file: Arc<FileState>,
    keeping: Keeping,
}

/// The transfer threads and their queue.
#[derive(Default)]
pub struct FillPool {
    queue: Mutex<Queue>,
    work: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Nobody waits for these: blocks to keep of files that were written.
    written: VecDeque<Job>,
    stopping: bool,
}

/// Read-ahead that waits for a thread; more is dropped, the reader will ask again.
const QUEUE_MAX: usize = 1024;

impl FillPool {
    /// Starts `threads` transfer threads for `core`.
    pub fn start(&self, core: &Arc<Core>, threads: u32) -> Result<()> {
        for number in 0..threads.max(1) {
            let core = Arc::downgrade(core);
            let thread = std::thread::Builder::new()
                .name(format!("transfer-{number}"))
                .stack_size(256 << 10)
                .spawn(move || {
                    while let Some(strong) = core.upgrade() {
                        let Some(job) = strong.fills.next() else { return };
                        run(&strong, &job.file, &job.lower, &job.ticket, job.keeping);
                    }
                })
                .map_err(|error| {
                    Error::new(ErrorKind::Unsupported, "starting a transfer thread", "")
                        .caused_by(error)
                        .remedy("raise the limit of processes, or set fewer `transfers`")
                })?;
            self.threads.lock().push(thread);
        }
        Ok(())
    }

    /// Ends the transfer threads after what they are doing now.
    pub fn stop(&self) {
        let mut queue = self.queue.lock();
        queue.stopping = true;
        let mut dropped = std::mem::take(&mut queue.jobs);
        dropped.append(&mut queue.written);
        drop(queue);
        for job in dropped {
            let stopped = Filled::Failed(ErrorKind::NodeUnavailable.errno(), "stopping".into());
            finish(&job.ticket, stopped);
        }
        self.work.notify_all();
        for thread in self.threads.lock().drain(..) {
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }

    /// Drops the queued transfers of a content that nobody can read any more, and with them the
    /// descriptors that keep a removed file's room on the PFS taken. One under way stops before its
    /// next piece, since the content is superseded.
    pub fn cancel(&self, content: &Content) {
        let ours = |job: &Job| job.ticket.content.number == content.number;
        let mut dropped = VecDeque::new();
        {
            let mut queue = self.queue.lock();
            let Queue { jobs, written, .. } = &mut *queue;
            for waiting in [jobs, written] {
                let (gone, kept): (VecDeque<_>, _) =
                    std::mem::take(waiting).into_iter().partition(ours);
                *waiting = kept;
                dropped.extend(gone);
            }
        }
        for job in dropped {
            if job.ticket.take() {
                finish(&job.ticket, Filled::Changed);
            }
        }
    }

    fn next(&self) -> Option<Job> {
        let mut queue = self.queue.lock();
        loop {
            if queue.stopping {
                return None;
            }
            let job = queue.jobs.pop_front();
            if let Some(job) = job.or_else(|| queue.written.pop_front()) {
                return Some(job);
            }
            self.work.wait(&mut queue);
        }
    }

    fn push(&self, job: Job) -> bool {
        let mut queue = self.queue.lock();
        if queue.stopping {
            return false;
        }
        let jobs = match job.ticket.source {
            Source::Servers => &mut queue.jobs,
            Source::PageCache => &mut queue.written,
        };
        if jobs.len() >= QUEUE_MAX {
            return false;
        }
        jobs.push_back(job);
        drop(queue);
        self.work.notify_one();
        true
    }
}

/// Queues a fill of `block` unless one is under way or the block is resident.
pub fn prefetch(
    core: &Arc<Core>,
    file: &Arc<FileState>,
    lower: &Arc<dyn LowerFile>,
    content: &Arc<Content>,
    block: u64,
    keeping: Keeping,
) {
    if core.transient.is_nearly_full() {
        return;
    }
    let Some((ticket, is_new)) = ticket_for(core, content, block, Source::Servers) else { return };
    if is_new {
        core.ledger.read_ahead_blocks.add(1);
        let (file, lower) = (file.clone(), lower.clone());
        if !core.fills.push(Job { ticket: ticket.clone(), file, lower, keeping }) {
            finish(&ticket, Filled::Kept);
        }
    }
}

/// Queues fills of a file that was just written, from the kernel's page cache.
pub fn keep_written(
    core: &Arc<Core>,
    file: &Arc<FileState>,
    lower: &Arc<dyn LowerFile>,
    content: &Arc<Content>,
) {
    let size = content.size();
    if size <= core.config.small_file_bytes_max {
        if let Err(error) = pack_written(core, lower, content) {
            tracing::debug!(%error, "a small file is not kept in memory");
        }
        return lower.drop_cached(0, 0);
    }
    for block in 0..size.div_ceil(core.block_bytes()) {
        let ticket = ticket_for(core, content, block, Source::PageCache);
        let Some((ticket, true)) = ticket else { continue };
        let (file, source) = (file.clone(), lower.clone());
        let keeping = Keeping::WhereItPays;
        if !core.fills.push(Job { ticket: ticket.clone(), file, lower: source, keeping }) {
            finish(&ticket, Filled::Kept);
            return lower.drop_cached(block * core.block_bytes(), u64::MAX);
        }
    }
}

fn pack_written(core: &Core, lower: &Arc<dyn LowerFile>, content: &Content) -> Result<()> {
    let version = content.version();
    let mut bytes = vec![0; version.size as usize];
    // What the writer mapped he may still have, and write to.
    lower.write_back(0, version.size)?;
    if bytes.is_empty() || lower.read_at(0, &mut bytes)? < bytes.len() {
        return Ok(());
    }
    // Still the same after the bytes were read: nobody wrote beside us.
    if lower.version()?.agrees_with(&version) {
        core.store.insert_small(version.id, version, content.owner, &bytes)?;
    }
    Ok(())
}

/// Brings `block` in and waits for it.
pub fn fetch(
    core: &Arc<Core>,
    file: &Arc<FileState>,
    lower: &Arc<dyn LowerFile>,
    content: &Arc<Content>,
    block: u64,
    keeping: Keeping,
) -> Filled {
    let Some((ticket, is_new)) = ticket_for(core, content, block, Source::Servers) else {
        return Filled::Kept;
    };
    if !is_new {
        core.ledger.fills_joined.add(1);
    }
    run(core, file, lower, &ticket, keeping);
    let filled = ticket.wait();
    // It may have failed by what another reader's descriptor can do, so ours gets its own chance.
    if !is_new
        && matches!(filled, Filled::Failed(..))
        && let Some((again, _)) = ticket_for(core, content, block, Source::Servers)
    {
        run(core, file, lower, &again, keeping);
        return again.wait();
    }
    filled
}

impl Ticket {
    /// Takes the ticket to run or to end it; false where somebody else has.
    fn take(&self) -> bool {
        let mut progress = self.progress.lock();
        let is_free = matches!(*progress, Progress::Queued);
        if is_free {
            *progress = Progress::Running;
        }
        is_free
    }

    fn wait(&self) -> Filled {
        let mut progress = self.progress.lock();
        loop {
            match &*progress {
                Progress::Done(filled) => return filled.clone(),
                // Another thread brings it in.
                _ => cost::wait(|| self.finished.wait(&mut progress)),
            }
        }
    }
}

/// The ticket of a block and whether it is a new one; `None` when the block is resident.
fn ticket_for(
    core: &Core,
    content: &Arc<Content>,
    block: u64,
    source: Source,
) -> Option<(Arc<Ticket>, bool)> {
    let mut fills = content.fills.lock();
    if let Some(ticket) = fills.get(&block) {
        return Some((ticket.clone(), false));
    }
    if content.segment().is_some_and(|s| block < s.blocks() && s.state(block) != BlockState::Absent)
    {
        return None;
    }
    if let Some(buffer) = core.transient.get(content.number, block) {
        let progress = Mutex::new(Progress::Done(Filled::Passing(buffer)));
        let (content, finished) = (content.clone(), Condvar::new());
        return Some((Arc::new(Ticket { block, source, content, progress, finished }), false));
    }
    let ticket = Arc::new(Ticket {
        block,
        source,
        content: content.clone(),
        progress: Mutex::new(Progress::Queued),
        finished: Condvar::new(),
    });
    fills.insert(block, ticket.clone());
    Some((ticket, true))
}

/// Runs a ticket unless somebody else has taken it.
fn run(
    core: &Arc<Core>,
    file: &FileState,
    lower: &Arc<dyn LowerFile>,
    ticket: &Arc<Ticket>,
    keeping: Keeping,
) {
    if !ticket.take() {
        return;
    }
    // Closed to writers until nobody can join: who asks after a write must not get what was read
    // before it.
    let _unchanged_by_us = file.gate.read();
    // A panic must not leave the readers of this block waiting for ever.
    let attempt = std::panic::AssertUnwindSafe(|| {
        fill(core, lower, ticket, keeping)
            .unwrap_or_else(|error| Filled::Failed(error.errno(), error.to_string()))
    });
    let filled = std::panic::catch_unwind(attempt).unwrap_or_else(|_| {
        Filled::Failed(ErrorKind::Internal.errno(), "a transfer panicked; see the log".into())
    });
    finish(ticket, filled);
}

fn finish(ticket: &Arc<Ticket>, filled: Filled) {
    // Out of the map first: whoever asks after this finds the block, or starts anew.
    ticket.content.fills.lock().remove(&ticket.block);
    *ticket.progress.lock() = Progress::Done(filled);
    ticket.finished.notify_all();
}

/// Call with the gate of the file.
fn fill(
    core: &Arc<Core>,
    lower: &Arc<dyn LowerFile>,
    ticket: &Ticket,
    keeping: Keeping,
) -> Result<Filled> {
    let Ticket { content, block, .. } = ticket;
    let block = *block;
    if content.is_superseded() {
        return Ok(Filled::Changed);
    }
    let block_bytes = core.block_bytes();
    let offset = block * block_bytes;
    let length = content.size().saturating_sub(offset).min(block_bytes) as usize;
    if length == 0 {
        return Ok(Filled::Kept);
    }
    let start = match keeping {
        Keeping::Always if content.admit => {
            content.segment_or_create(&core.store)?.begin_fill(block)
        }
        Keeping::WhereItPays if content.admit => {
            content.segment_or_create(&core.store)?.begin_read_ahead(block)
        }
        _ => FillStart::NotAdmitted,
    };
    match start {
        FillStart::Resident | FillStart::Busy => Ok(Filled::Kept),
        FillStart::Started(mut fill) => {
            let read = transfer(core, lower, ticket, offset, &mut fill)?;
            let current = still_current(core, content, lower)?;
            if read < length || !current {
                core.ledger.fills_discarded.add(1);
                return Ok(Filled::Changed);
            }
            if ticket.source == Source::Servers {
                content.note_fresh(block, length as u64);
            }
            fill.commit(BlockState::Clean);
            core.ledger.fills.add(1);
            Ok(Filled::Kept)
        }
        FillStart::NotAdmitted => {
            core.ledger.fills_not_admitted.add(1);
            let mut buffer = core.transient.buffer(length).map_err(|error| {
                Error::new(ErrorKind::StoreFull, "getting a transfer buffer", "").caused_by(error)
            })?;
            let read = transfer(core, lower, ticket, offset, buffer.bytes_mut())?;
            let current = still_current(core, content, lower)?;
            if read < length || !current {
                core.ledger.fills_discarded.add(1);
                return Ok(Filled::Changed);
            }
            let buffer = Arc::new(buffer);
            core.transient.insert(content.number, block, buffer.clone());
            Ok(Filled::Passing(buffer))
        }
    }
}

/// Reads a block in pieces of the transfer size; short only at the end of the file, or where the
/// content was superseded meanwhile.
fn transfer(
    core: &Core,
    lower: &Arc<dyn LowerFile>,
    ticket: &Ticket,
    offset: u64,
    buffer: &mut [u8],
) -> Result<usize> {
    if ticket.source == Source::PageCache {
        lower.write_back(offset, buffer.len() as u64)?;
        let read = lower.read_at(offset, buffer)?;
        lower.drop_cached(offset, read as u64);
        return Ok(read);
    }
    let mut total = 0;
    for piece in buffer.chunks_mut(core.config.transfer_bytes as usize) {
        let read = lower.read_block(offset + total as u64, piece)?;
        core.ledger.pfs_read_bytes.add(read as u64);
        total += read;
        if read < piece.len() || ticket.content.is_superseded() {
            break;
        }
    }
    Ok(total)
}

/// Whether the file still is at the content's version, asked of the PFS. Names that come and go
/// through this node are carried along; those that another program moves make another version, for
/// its change of content could hide behind them.
pub fn still_current(core: &Core, content: &Content, lower: &Arc<dyn LowerFile>) -> Result<bool> {
    let word = WordWait::begin();
    loop {
        // In this order, so that what was carried along in between shows below.
        let ours = content.version();
        let now = lower.version()?;
        if now.agrees_with(&ours) {
            core.weigh_stamps(content, &now);
            return Ok(true);
        }
        if content.version() != ours {
            continue;
        }
        // Of another length, it is no change of metadata that is told in a moment.
        let told_soon = now.is_of_same_file(&ours) && now.size == ours.size;
        let waits = told_soon && !content.is_superseded();
        if !waits || !word.goes_on() {
            core.give_up(content);
            return Ok(false);
        }
        word.pause();
    }
}
