//! [`Ticket`]: one fill of one block, which one thread runs and others wait for.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidepool_pfs::cost;

use crate::block_buffers::AlignedBuffer;

/// How a fill ended.
#[derive(Clone, Debug)]
pub enum Filled {
    /// The block is in the store (or was a moment ago).
    Kept,
    /// The bytes are here; the store did not admit them.
    Passing(Arc<AlignedBuffer>),
    /// The file is not at the cached version any more.
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
pub enum Origin {
    /// On the PFS, or in other nodes' memory.
    Servers,
    /// On the PFS, and this node is to have them from there: no other node is asked.
    OwnShare,
    /// In the kernel's page cache still: they were written a moment ago.
    PageCache,
}

/// One fill of one block.
#[derive(Debug)]
pub struct Ticket {
    /// Which block.
    pub block: u64,
    /// Where its bytes are.
    pub origin: Origin,
    /// Whether another node is asked to fill it, once that is decided.
    asks_filler: OnceLock<bool>,
    progress: Mutex<Progress>,
    finished: Condvar,
}

impl Ticket {
    /// A fill that nobody runs yet.
    pub fn queued(block: u64, origin: Origin) -> Arc<Self> {
        Ticket::new(block, origin, Progress::Queued)
    }

    /// A fill that has ended.
    pub fn ended(block: u64, origin: Origin, filled: Filled) -> Arc<Self> {
        Ticket::new(block, origin, Progress::Done(filled))
    }

    fn new(block: u64, origin: Origin, progress: Progress) -> Arc<Self> {
        let progress = Mutex::new(progress);
        let asks_filler = OnceLock::new();
        Arc::new(Ticket { block, origin, asks_filler, progress, finished: Condvar::new() })
    }

    /// Takes the ticket to run or to end it; false where another thread has.
    pub fn take(&self) -> bool {
        let mut progress = self.progress.lock();
        let is_free = matches!(*progress, Progress::Queued);
        if is_free {
            *progress = Progress::Running;
        }
        is_free
    }

    /// Decides whether another node is asked to fill the block, and tells what was decided first.
    /// A node that fills for another one goes to the PFS: two that waited for each other would wait
    /// for ever. Whoever asks a node that holds the block need not decide: that one waits for
    /// nobody.
    pub fn decide_on_filler(&self, asks: bool) -> bool {
        *self.asks_filler.get_or_init(|| asks)
    }

    /// Whether another node waits for this fill, so that the PFS is read.
    pub fn is_for_peer(&self) -> bool {
        self.asks_filler.get() == Some(&false)
    }

    /// Ends the fill for those that wait for it.
    pub fn finish(&self, filled: Filled) {
        *self.progress.lock() = Progress::Done(filled);
        self.finished.notify_all();
    }

    /// Waits for the end of the fill, at most for `timeout`.
    pub fn wait_for(&self, timeout: Duration) -> Option<Filled> {
        let mut progress = self.progress.lock();
        if !matches!(*progress, Progress::Done(_)) {
            self.finished.wait_for(&mut progress, timeout);
        }
        match &*progress {
            Progress::Done(filled) => Some(filled.clone()),
            _ => None,
        }
    }

    /// Waits for the end of the fill.
    pub fn wait(&self) -> Filled {
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
