//! Files that are brought to the PFS beside the thread that looks after copies: those of this node
//! ([`OwnFiles`]), and those of nodes that are gone ([`OthersFiles`]).

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use parking_lot::Mutex;
use tidepool_proto::FileId;

use super::held::HeldCopy;
use crate::cluster::Cluster;
use crate::cluster::recall::Recalls;
use crate::core::Core;

/// Files of this node that are written back while nobody waits for them, at a time: more would
/// share one rate, and all be late.
const OWN_MAX: usize = 4;
/// Files of others at a time; one fewer than may be, so that opens need not wait.
const OTHERS_MAX: usize = 3;

/// Files of this node that are to be written back.
#[derive(Default)]
pub struct OwnFiles {
    /// Those that wait for their turn, and what their time in memory is called.
    pub waiting: Mutex<VecDeque<(u64, FileId)>>,
    /// Those whose turn it is.
    pub running: Arc<Recalls<u64>>,
}

impl OwnFiles {
    /// Whether another one may begin of those that nobody waits for. One that the PFS does not
    /// answer for keeps none of them waiting.
    pub fn has_turn_in_background(&self, core: &Core) -> bool {
        let hanging = core.memory_only.steps().hanging().len();
        self.running.has_turn() && self.running.count() < OWN_MAX + hanging
    }
}

/// Files of others, in burst buffers, for which nobody waits.
#[derive(Default)]
pub struct OthersFiles {
    waiting: Mutex<VecDeque<Arc<HeldCopy>>>,
    threads: AtomicUsize,
    failed: Mutex<Vec<(Arc<HeldCopy>, String)>>,
}

/// A thread that brings them to the PFS.
struct Worker(Arc<Cluster>);

impl Drop for Worker {
    fn drop(&mut self) {
        self.0.copies.others.threads.fetch_sub(1, Ordering::AcqRel);
    }
}

impl OthersFiles {
    /// Those that stay in burst buffers, and why, since the last call.
    pub fn take_failed(&self) -> Vec<(Arc<HeldCopy>, String)> {
        std::mem::take(&mut *self.failed.lock())
    }
}

impl Cluster {
    /// Brings these files to the PFS, and none that waited before.
    pub(super) fn bring_in_background(&self, core: &Arc<Core>, files: VecDeque<Arc<HeldCopy>>) {
        let others = &self.copies.others;
        let count = files.len().min(OTHERS_MAX);
        *others.waiting.lock() = files;
        // One thread alone begins others.
        for _ in others.threads.load(Ordering::Acquire)..count {
            let Some(cluster) = self.myself.upgrade() else { return };
            others.threads.fetch_add(1, Ordering::AcqRel);
            let (worker, core) = (Worker(cluster), core.clone());
            let run = move || {
                let (cluster, others) = (&*worker.0, &worker.0.copies.others);
                while !cluster.is_stopping() {
                    let Some(copy) = others.waiting.lock().pop_front() else { return };
                    // It was among those that wait while another thread failed at it.
                    if others.failed.lock().iter().any(|(it, _)| it.epoch == copy.epoch) {
                        continue;
                    }
                    if let Err(reason) = cluster.give_back_now(&core, &copy) {
                        others.failed.lock().push((copy, reason));
                    }
                }
            };
            // Where no thread is to be had it is tried at the next look.
            if std::thread::Builder::new().name("copies-owed".into()).spawn(run).is_err() {
                return;
            }
        }
    }
}
