//! Fills: bringing blocks in from the PFS, one read from it however many ask.
//!
//! A fill is a [`Ticket`]. Read-ahead queues tickets for the transfer threads; a reader that needs
//! a block now runs its ticket itself if no thread has taken it yet, and waits otherwise. The
//! version of the file is checked after the bytes were read (invariant 3 of [`crate::file`]): a
//! fill of a changed file is discarded.

use std::sync::Arc;
use std::time::Instant;

use tidepool_pfs::LowerFile;
use tidepool_proto::table::BlockState;
use tidepool_proto::{Error, ErrorKind, Level, Result};
use tidepool_store::{FillStart, Segment};

use crate::core::Core;
use crate::file::cached_version::CachedVersion;
use crate::file::gate::SharedGate;
use crate::file::state::FileState;
use crate::fill_pool::{Admission, Job, Line};
use crate::metadata_change::NotificationWait;
use crate::ticket::{Filled, Origin, Ticket};

/// Starts `count` transfer threads, and as many that fill for other nodes where there are any.
pub fn start_threads(core: &Arc<Core>, count: u32) -> Result<()> {
    let lines = [Line::Own, Line::ForPeers];
    let lines = if core.config.cluster.is_some() { &lines[..] } else { &lines[..1] };
    for (line, number) in lines.iter().flat_map(|line| (0..count.max(1)).map(move |it| (line, it)))
    {
        let (weak, line) = (Arc::downgrade(core), *line);
        let thread = std::thread::Builder::new()
            .name(format!("{}-{number}", line.thread_name()))
            .stack_size(256 << 10)
            .spawn(move || {
                while let Some(strong) = weak.upgrade() {
                    let next = strong.fills.next(line, strong.block_bytes());
                    let Some(running) = next else { return };
                    let Job { ticket, cached, lower, .. } = &running.job;
                    if ticket.origin != Origin::PageCache {
                        strong.find_placement(cached, &**lower);
                    }
                    running.job.run(&strong);
                }
            })
            .map_err(|error| {
                Error::new(ErrorKind::Unsupported, "starting a transfer thread", "")
                    .caused_by(error)
                    .remedy("raise the limit of processes, or set fewer `transfers`")
            })?;
        core.fills.add_thread(thread);
    }
    Ok(())
}

/// Where the blocks of one cached version come from: the file, by the descriptor of one open.
#[derive(Clone, Copy)]
pub struct BlockSource<'a> {
    /// The node's shared state.
    pub core: &'a Arc<Core>,
    /// Which file.
    pub file: &'a Arc<FileState>,
    /// The descriptor that is read from.
    pub lower: &'a Arc<dyn LowerFile>,
    /// The version that the blocks must belong to.
    pub cached: &'a Arc<CachedVersion>,
    /// Where they are.
    pub origin: Origin,
}

impl BlockSource<'_> {
    /// Brings `block` in and waits for it.
    pub fn fetch(&self, block: u64, admission: Admission) -> Filled {
        let Some((ticket, is_new)) = self.ticket(block, self.origin) else {
            return Filled::Kept;
        };
        if !is_new {
            self.core.counters.fills_joined.add(1);
        }
        let filled = self.job(ticket, admission).run_or_wait(self.core);
        // Another reader's fill may have failed for a reason that its descriptor alone has, so
        // this one gets its own chance.
        if !is_new
            && matches!(filled, Filled::Failed(..))
            && let Some((again, _)) = self.ticket(block, self.origin)
        {
            return self.job(again, admission).run_or_wait(self.core);
        }
        filled
    }

    /// Queues a fill of `block` unless one is under way or the block is resident.
    pub fn prefetch(&self, block: u64, admission: Admission) {
        if self.core.buffers.is_nearly_full() {
            return;
        }
        let Some((ticket, true)) = self.ticket(block, self.origin) else { return };
        self.core.counters.read_ahead_blocks.add(1);
        self.queue(ticket, admission);
    }

    /// Has a block read from the PFS for another node. `None`: it is resident, or this node asked
    /// another one to fill it.
    pub fn fill_for_peer(&self, block: u64) -> Option<Arc<Ticket>> {
        let (ticket, is_new) = self.ticket(block, self.origin)?;
        if ticket.decide_on_filler(false) {
            return None;
        }
        // Also where it waits among this node's own: those may all wait for other nodes.
        let job = self.job(ticket.clone(), Admission::Always);
        let is_queued = self.core.fills.push_for_peer(job);
        if is_new && !is_queued {
            self.cached.end_fill(&ticket, Filled::Kept);
        }
        Some(ticket)
    }

    /// Queues fills of a file that was just written, from the kernel's page cache.
    pub fn keep_written(&self) {
        let BlockSource { core, lower, cached, .. } = *self;
        let size = cached.size();
        if size <= core.config.small_file_bytes_max {
            if let Err(error) = self.pack_written() {
                tracing::debug!(%error, "a small file is not kept in memory");
            }
            return lower.drop_cached(0, 0);
        }
        for block in 0..size.div_ceil(core.block_bytes()) {
            let ticket = self.ticket(block, self.origin);
            let Some((ticket, true)) = ticket else { continue };
            if !self.queue(ticket, Admission::IfBeneficial) {
                return lower.drop_cached(block * core.block_bytes(), u64::MAX);
            }
        }
    }

    fn pack_written(&self) -> Result<()> {
        let BlockSource { core, lower, cached, .. } = *self;
        let version = cached.version();
        let mut bytes = vec![0; version.size as usize];
        // The writer may still have the file mapped, and write to it.
        lower.write_back(0, version.size)?;
        if bytes.is_empty() || lower.read_current(0, &mut bytes)? < bytes.len() {
            return Ok(());
        }
        // Still the same after the bytes were read: nobody wrote at the same time.
        if lower.version()?.agrees_with(&version) {
            core.store.insert_small(version.id, version, cached.owner, &bytes)?;
        }
        Ok(())
    }

    /// The ticket of a block and whether it is a new one; `None` when the block is resident.
    fn ticket(&self, block: u64, origin: Origin) -> Option<(Arc<Ticket>, bool)> {
        let cached = self.cached;
        let mut fills = cached.fills.lock();
        if let Some(ticket) = fills.get(&block) {
            return Some((ticket.clone(), false));
        }
        let is_resident = |segment: &Arc<Segment>| {
            block < segment.blocks() && segment.state(block) != BlockState::Absent
        };
        if cached.segment().is_some_and(is_resident) {
            return None;
        }
        if let Some(buffer) = self.core.buffers.get(cached.number, block) {
            return Some((Ticket::ended(block, origin, Filled::Passing(buffer)), false));
        }
        let ticket = Ticket::queued(block, origin);
        fills.insert(block, ticket.clone());
        Some((ticket, true))
    }

    fn job(&self, ticket: Arc<Ticket>, admission: Admission) -> Job {
        let (cached, lower, file) = (self.cached.clone(), self.lower.clone(), self.file.clone());
        Job { ticket, cached, lower, file, admission }
    }

    /// Queues a new ticket. False: the queue is full, and the ticket ends as if there were none.
    fn queue(&self, ticket: Arc<Ticket>, admission: Admission) -> bool {
        let is_queued = self.core.fills.push(self.job(ticket.clone(), admission));
        if !is_queued {
            self.cached.end_fill(&ticket, Filled::Kept);
        }
        is_queued
    }
}

impl Job {
    /// Runs the ticket unless another thread has taken it, then waits for its end.
    fn run_or_wait(&self, core: &Core) -> Filled {
        self.run(core);
        self.ticket.wait()
    }

    /// Runs the ticket unless another thread has taken it.
    fn run(&self, core: &Core) {
        if !self.ticket.take() {
            return;
        }
        // Closed to writers until nobody can join: a reader that asks after a write must not get
        // what was read before it.
        let gate = self.file.share_gate();
        // A panic must not leave the readers of this block waiting for ever.
        let attempt = std::panic::AssertUnwindSafe(|| {
            self.fill(core, &gate)
                .unwrap_or_else(|error| Filled::Failed(error.errno(), error.to_string()))
        });
        let filled = std::panic::catch_unwind(attempt).unwrap_or_else(|_| {
            Filled::Failed(ErrorKind::Internal.errno(), "a transfer panicked; see the log".into())
        });
        self.cached.end_fill(&self.ticket, filled);
    }

    fn fill(&self, core: &Core, gate: &SharedGate<'_>) -> Result<Filled> {
        let (cached, Ticket { block, origin, .. }) = (&self.cached, &*self.ticket);
        let (block, block_bytes) = (*block, core.block_bytes());
        if cached.is_invalidated() {
            return Ok(Filled::Changed);
        }
        let offset = block * block_bytes;
        let length = cached.size().saturating_sub(offset).min(block_bytes) as usize;
        if length == 0 {
            return Ok(Filled::Kept);
        }
        let start = match self.admission {
            Admission::Always if cached.admit => {
                cached.segment_or_create(&core.store)?.begin_fill(block)
            }
            Admission::IfBeneficial if cached.admit => {
                cached.segment_or_create(&core.store)?.begin_read_ahead(block)
            }
            _ => FillStart::NotAdmitted,
        };
        match start {
            FillStart::Resident | FillStart::Busy => Ok(Filled::Kept),
            FillStart::Started(mut fill) => {
                let Some(level) = self.read_whole(core, gate, offset, &mut fill[..], length)?
                else {
                    return Ok(Filled::Changed);
                };
                if *origin != Origin::PageCache {
                    cached.note_unread(block, length as u64, level);
                }
                fill.commit(BlockState::Clean);
                core.counters.fills.add(1);
                if let Some(cluster) = core.cluster() {
                    cluster.note_filled(core, cached, block);
                }
                Ok(Filled::Kept)
            }
            FillStart::NotAdmitted => {
                core.counters.fills_not_admitted.add(1);
                let mut buffer = core.buffers.buffer(length).map_err(|error| {
                    let what = "getting a transfer buffer";
                    Error::new(ErrorKind::StoreFull, what, "").caused_by(error)
                })?;
                let read = self.read_whole(core, gate, offset, buffer.bytes_mut(), length)?;
                let Some(level) = read else { return Ok(Filled::Changed) };
                buffer.level = level;
                let buffer = Arc::new(buffer);
                core.buffers.insert(cached.number, block, buffer.clone());
                Ok(Filled::Passing(buffer))
            }
        }
    }

    /// Fills `buffer`, whose first `length` bytes are in the file, and tells where from. `None`
    /// where they are not those of the cached version.
    fn read_whole(
        &self,
        core: &Core,
        gate: &SharedGate<'_>,
        offset: u64,
        buffer: &mut [u8],
        length: usize,
    ) -> Result<Option<Level>> {
        if let Some(owed) = self.cached.owed() {
            // Never from the PFS, which has a stub or a part of it.
            let is_whole = core.cluster().is_some_and(|cluster| {
                cluster.fetch_owed(core, owed, offset, &mut buffer[..length])
            });
            return Ok(is_whole.then_some(Level::Peer));
        }
        let is_from_memory = self.ask_peers(core, &mut buffer[..length])
            || self.ask_buffers(core, offset, &mut buffer[..length]);
        let (read, level) = match is_from_memory {
            true => (length, Level::Peer),
            false => (self.transfer(core, offset, buffer)?, Level::Pfs),
        };
        let is_current = core.still_current(gate, &self.cached, &*self.lower)?;
        let is_whole = read >= length && is_current;
        if !is_whole {
            core.counters.fills_discarded.add(1);
        }
        Ok(is_whole.then_some(level))
    }

    /// Whether another node's memory gave the block.
    fn ask_peers(&self, core: &Core, bytes: &mut [u8]) -> bool {
        let Some(cluster) = core.cluster() else { return false };
        self.ticket.origin == Origin::Servers
            && !self.ticket.is_for_peer()
            && cluster.fetch(core, &self.cached, &self.ticket, bytes)
    }

    /// Whether burst buffers gave the block.
    fn ask_buffers(&self, core: &Core, offset: u64, bytes: &mut [u8]) -> bool {
        let Some(cluster) = core.cluster() else { return false };
        self.ticket.origin == Origin::Servers
            && cluster.fetch_clean(core, &self.cached, offset, bytes)
    }

    /// Reads a block in pieces of the transfer size; short only at the end of the file, or where
    /// the cached version was invalidated meanwhile.
    fn transfer(&self, core: &Core, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let lower = &self.lower;
        if self.ticket.origin == Origin::PageCache {
            lower.write_back(offset, buffer.len() as u64)?;
            let read = lower.read_current(offset, buffer)?;
            lower.drop_cached(offset, read as u64);
            return Ok(read);
        }
        let (began, mut total) = (Instant::now(), 0);
        let reading = core.background.begin_read();
        for piece in buffer.chunks_mut(core.config.transfer_bytes as usize) {
            let read = lower.read_block(offset + total as u64, piece)?;
            core.counters.pfs_read_bytes.add(read as u64);
            total += read;
            if read < piece.len() || self.cached.is_invalidated() {
                break;
            }
        }
        reading.end(total as u64);
        if let Some(cluster) = core.cluster() {
            cluster.note_pfs_read(total as u64, began.elapsed());
        }
        Ok(total)
    }
}

impl Core {
    /// Whether the file still is at the version that is cached, asked of the PFS. Names that come
    /// and go through this node keep the version; those that another program moves make another
    /// version, for its change of content could hide behind them.
    pub fn still_current(
        &self,
        _gate: &SharedGate<'_>,
        cached: &CachedVersion,
        lower: &dyn LowerFile,
    ) -> Result<bool> {
        let notification = NotificationWait::begin();
        loop {
            // In this order, so that a notification in between shows below.
            let ours = cached.version();
            let now = lower.version()?;
            if now.agrees_with(&ours) {
                self.check_racy(cached, &now);
                return Ok(true);
            }
            if cached.version() != ours {
                continue;
            }
            // Of another length, it is no change of metadata that is told in a moment.
            let told_soon = now.is_of_same_file(&ours) && now.size == ours.size;
            let waits = told_soon && !cached.is_invalidated();
            if !waits || !notification.goes_on() {
                self.invalidate(cached);
                return Ok(false);
            }
            notification.pause();
        }
    }
}
