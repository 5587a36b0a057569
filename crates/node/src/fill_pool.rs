//! [`FillPool`]: the transfer threads and the queue of their [`Job`]s. Blocks that a reader will
//! want go before blocks that are kept of files that were written.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use tidepool_pfs::LowerFile;
use tidepool_proto::ErrorKind;

use crate::file::cached_version::CachedVersion;
use crate::file::state::FileState;
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
        drop(queue);
        for job in dropped {
            let stopped = Filled::Failed(ErrorKind::NodeUnavailable.errno(), "stopping".into());
            job.cached.end_fill(&job.ticket, stopped);
        }
        self.work.notify_all();
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
                cached.end_fill(&job.ticket, Filled::Changed);
            }
        }
    }

    /// Waits for the next job; `None` once the node stops.
    pub fn next(&self) -> Option<Job> {
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

    /// Queues a job. False: the queue is full, or the node stops.
    pub fn push(&self, job: Job) -> bool {
        let mut queue = self.queue.lock();
        if queue.stopping {
            return false;
        }
        let jobs = match job.ticket.origin {
            Origin::Servers => &mut queue.jobs,
            Origin::PageCache => &mut queue.written,
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
