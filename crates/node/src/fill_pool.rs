//! [`FillPool`]: the transfer threads and the queue of their [`Job`]s. Blocks that a reader will
//! want go before blocks that are kept of files that were written.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use tidepool_pfs::{LowerFile, ServerKey};
use tidepool_proto::ErrorKind;

use crate::file::cached_version::CachedVersion;
use crate::file::state::FileState;
use crate::server_loads::ServerLoads;
use crate::ticket::{Filled, Origin, Ticket};

/// Whether a block stays in the store once it was brought in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission {
    /// Wherever there is room.
    Always,
    /// Only where the policy gains by it: a reader streams through, or may never come.
    IfBeneficial,
    /// It passes through.
    Never,
}

/// A queued ticket with what it takes to run it.
pub struct Job {
    /// The fill.
    pub ticket: Arc<Ticket>,
    /// The version that the block must belong to.
    pub cached: Arc<CachedVersion>,
    /// The descriptor that is read from. Closed before `file` is dropped: a removal waits for the
    /// latter to know of the former.
    pub lower: Arc<dyn LowerFile>,
    /// Which file.
    pub file: Arc<FileState>,
    /// Whether the block stays.
    pub admission: Admission,
}

/// Which jobs a thread takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Line {
    /// Those of this node, which may wait for other nodes.
    Own,
    /// Those for which other nodes wait. They read from the PFS, so that no circle of nodes waits
    /// whose threads all wait for each other.
    ForPeers,
}

impl Line {
    /// Name of its threads.
    pub fn thread_name(self) -> &'static str {
        match self {
            Line::Own => "transfer",
            Line::ForPeers => "peer-fill",
        }
    }
}

/// The transfer threads and their queues.
#[derive(Default)]
pub struct FillPool {
    queue: Mutex<Queue>,
    work: Condvar,
    work_for_peers: Condvar,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    /// Nobody waits for these: blocks to keep of files that were written.
    written: VecDeque<Job>,
    for_peers: VecDeque<Job>,
    loads: ServerLoads,
    stopping: bool,
}

/// A job that a transfer thread has taken; it counts as its server's until this is dropped.
pub struct Running<'a> {
    /// What is to be run.
    pub job: Job,
    server: Option<ServerKey>,
    pool: &'a FillPool,
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if let Some(server) = self.server {
            self.pool.queue.lock().loads.end(server);
        }
    }
}

impl Job {
    /// The data server that it reads from, where that is known.
    fn server(&self, block_bytes: u64) -> Option<ServerKey> {
        if self.ticket.origin == Origin::PageCache {
            return None;
        }
        Some(self.cached.placement.get()?.server_of(self.ticket.block * block_bytes))
    }
}

/// Read-ahead that waits for a thread; more is dropped, the reader will ask again.
const QUEUE_MAX: usize = 1024;

impl FillPool {
    /// Keeps a transfer thread until [`stop`](Self::stop).
    pub fn add_thread(&self, thread: JoinHandle<()>) {
        self.threads.lock().push(thread);
    }

    /// Ends the transfer threads after what they are doing now.
    pub fn stop(&self) {
        let mut queue = self.queue.lock();
        queue.stopping = true;
        let mut dropped = std::mem::take(&mut queue.jobs);
        dropped.append(&mut queue.written);
        dropped.append(&mut queue.for_peers);
        drop(queue);
        for job in dropped {
            let stopped = Filled::Failed(ErrorKind::NodeUnavailable.errno(), "stopping".into());
            job.cached.end_fill(&job.ticket, stopped);
        }
        self.work.notify_all();
        self.work_for_peers.notify_all();
        for thread in self.threads.lock().drain(..) {
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }

    /// Drops the queued transfers of a cached version that nobody can read any more, and with them
    /// the descriptors that keep a removed file's room on the PFS taken. One under way stops before
    /// its next piece, since the cached version is invalidated.
    pub fn cancel(&self, cached: &CachedVersion) {
        let ours = |job: &Job| job.cached.number == cached.number;
        let mut dropped = VecDeque::new();
        {
            let mut queue = self.queue.lock();
            let Queue { jobs, written, for_peers, .. } = &mut *queue;
            for waiting in [jobs, written, for_peers] {
                let (gone, kept): (VecDeque<_>, _) =
                    std::mem::take(waiting).into_iter().partition(ours);
                *waiting = kept;
                dropped.extend(gone);
            }
        }
        for job in dropped {
            if job.ticket.take() {
                cached.end_fill(&job.ticket, Filled::Changed);
            }
        }
    }

    /// Waits for the next job of a line; `None` once the node stops.
    pub fn next(&self, line: Line, block_bytes: u64) -> Option<Running<'_>> {
        let mut guard = self.queue.lock();
        loop {
            let queue = &mut *guard;
            if queue.stopping {
                return None;
            }
            let Queue { jobs, written, for_peers, loads, .. } = queue;
            let (waiting, work) = match line {
                Line::Own if jobs.is_empty() => (written, &self.work),
                Line::Own => (jobs, &self.work),
                Line::ForPeers => (for_peers, &self.work_for_peers),
            };
            let next = loads.choose(waiting.iter().map(|job| job.server(block_bytes)));
            if let Some(job) = next.and_then(|next| waiting.remove(next)) {
                let server = job.server(block_bytes);
                server.into_iter().for_each(|server| loads.begin(server));
                drop(guard);
                return Some(Running { job, server, pool: self });
            }
            work.wait(&mut guard);
        }
    }

    /// Queues a job. False: the queue is full, or the node stops.
    pub fn push(&self, job: Job) -> bool {
        let line: fn(&mut Queue) -> &mut VecDeque<Job> = match job.ticket.origin {
            Origin::Servers | Origin::OwnShare => |queue| &mut queue.jobs,
            Origin::PageCache => |queue| &mut queue.written,
        };
        self.push_into(line, &self.work, job)
    }

    /// Queues a job for which another node waits. False: as for [`push`](Self::push).
    pub fn push_for_peer(&self, job: Job) -> bool {
        self.push_into(|queue| &mut queue.for_peers, &self.work_for_peers, job)
    }

    fn push_into(
        &self,
        line: fn(&mut Queue) -> &mut VecDeque<Job>,
        work: &Condvar,
        job: Job,
    ) -> bool {
        let mut queue = self.queue.lock();
        if queue.stopping {
            return false;
        }
        let jobs = line(&mut queue);
        if jobs.len() >= QUEUE_MAX {
            return false;
        }
        jobs.push_back(job);
        drop(queue);
        work.notify_one();
        true
    }
}
