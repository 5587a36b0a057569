//! [`Cluster`]: this node as one of several that read from each other's memory.
//!
//! What is decided is pure and elsewhere: who is a member, who holds which block, whom to ask
//! (`tidepool-cluster`). How bytes travel is elsewhere too (`tidepool-peer`). Here both meet the
//! node's files, clocks and sockets:
//!
//! * `start`: assembles it; `threads`: what runs while the node runs.
//! * `etcd`: the list of nodes, where etcd has it.
//! * `join`: whether another node sees the same files.
//! * `sight`: whether what another node changes on the PFS shows here.
//! * `shared`: how a file and its version are called between nodes.
//! * `beneath`: files that another node tells the paths of.
//! * `fetch`: a block from another node's memory; `provider`: a block for another node.
//! * `holdings`: what this node announces that it holds.
//! * `spread`: files brought in by the owners of their splits.
//! * `hand_on`: what a node that goes has others bring in.
//! * `recall`: files in the memory of one node alone that are opened on another.
//! * `owed_reads`: the same, read there before the PFS has them.
//! * `copies`: files in memory alone of which other nodes hold copies.
//! * `buffers`: burst buffers of other nodes.
//! * `splits`: where schedulers are to have a file read.
//! * `measure`: latency and rate between nodes.
//! * `status`: what it tells of itself.
//!
//! # Invariants
//!
//! 1. Bytes are given, and taken, of versions only whose time stamps are not racy: an equal version
//!    then means equal bytes, whichever node saw it.
//! 2. A block counts as received only after its holder confirmed, when all bytes had arrived, that
//!    it still is what it was when it was sent. The store may write a block in place, and what was
//!    queued in a socket follows the page.
//! 3. The receiver asks the PFS for the version after that, as after a read from the PFS; not for
//!    what the PFS does not have yet (`owed_reads`).
//! 4. No bytes go between nodes of which one did not prove to the other that both see the same
//!    files by the same inode numbers.
//! 5. No lock of a file is held while another node is waited for, but the shared gate of a fill,
//!    and the gate of a file whose copies are brought up to date. A node that fills for another one
//!    reads from the PFS, and one that takes a copy waits for nothing, so no circle of nodes waits.

mod beneath;
mod buffers;
pub mod clean;
pub(crate) mod copies;
mod etcd;
mod fetch;
mod hand_on;
mod holdings;
mod join;
mod measure;
pub(crate) mod owed_reads;
mod provider;
pub(crate) mod recall;
mod removed;
mod shared;
mod sight;
mod splits;
mod spread;
mod start;
mod status;
mod threads;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use parking_lot::{Mutex, RwLock};
use tidepool_cluster::{ClusterNode, NodeName, Peers, Roster};
use tidepool_peer::{Seal, Server, Transport};
use tidepool_proto::config::ClusterConfig;

use crate::core::Core;
use crate::counters::Counter;
use crate::node::Node;

use buffers::Buffers;
use clean::CleanCopies;
use copies::FileCopies;
use holdings::Holdings;
use join::Proofs;
use measure::Measuring;
use owed_reads::give::Given;
use owed_reads::take::Taken;
use recall::Recalls;
use sight::Sight;
use start::Addresses;
use threads::Signal;

/// See the module's documentation.
pub struct Cluster {
    core: Weak<Core>,
    /// Whose facts other nodes are told, once it is there.
    node: OnceLock<Weak<Node>>,
    config: ClusterConfig,
    /// What tells words that nodes left on the PFS from those of users.
    seal: Seal,
    me: NodeName,
    roster: Arc<RwLock<Roster>>,
    addresses: Arc<Addresses>,
    /// Time of the pure parts counts from here.
    started: Instant,
    members: Mutex<ClusterNode>,
    peers: Mutex<Peers>,
    transport: Arc<dyn Transport>,
    server: Mutex<Option<Server>>,
    proofs: Proofs,
    sight: Sight,
    measuring: Measuring,
    recalls: Arc<Recalls>,
    /// Reads of files that this node owes, and of those that others owe.
    pub(crate) given: Given,
    pub(crate) taken: Taken,
    /// Copies of memory-only files, here and elsewhere.
    pub(crate) copies: FileCopies,
    buffers: Buffers,
    /// Of files that the PFS has.
    pub(crate) clean: CleanCopies,
    /// For threads that end before it.
    myself: Weak<Cluster>,
    holdings: Holdings,
    counts: Counts,
    /// Plans that are being asked for: one question however many blocks wait for it.
    asking: [Mutex<()>; ASKING],
    threads: Mutex<Vec<JoinHandle<()>>>,
    /// Wakes the thread that sends what the members have to say.
    signal: Signal,
    stopping: AtomicBool,
}

/// Questions for plans that may be under way at a time.
const ASKING: usize = 16;
/// Longest wait for threads at the end; one of them may wait for the PFS.
const STOP_LIMIT: Duration = Duration::from_secs(5);

/// What happened between this node and others.
#[derive(Debug, Default)]
struct Counts {
    fetched: Counter,
    missed: Counter,
    changed: Counter,
    served: Counter,
    filled_for_peers: Counter,
    datagrams_rejected: Counter,
}

impl Cluster {
    fn now(&self) -> Duration {
        self.started.elapsed()
    }

    /// Whether the node ends.
    pub(crate) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    /// Whether files may begin in burst buffers.
    pub(crate) fn are_buffers_well(&self) -> bool {
        self.buffers.are_well()
    }

    /// Lets other nodes ask for the facts of this one.
    pub fn tell_of(&self, node: &Arc<Node>) {
        let is_first = self.node.set(Arc::downgrade(node)).is_ok();
        debug_assert!(is_first, "a cluster belongs to one node");
    }

    /// Whether a node is this one, or can be asked.
    pub fn is_there(&self, node: &NodeName) -> bool {
        *node == self.me || self.why_not_asked(node).is_none()
    }

    /// The node, until it ends.
    pub fn node(&self) -> Option<Arc<Node>> {
        self.node.get().and_then(Weak::upgrade)
    }

    /// A read from the PFS, to compare other nodes with.
    pub fn note_pfs_read(&self, bytes: u64, took: Duration) {
        self.peers.lock().pfs_read(self.now(), bytes, took);
    }

    /// Leaves the cluster and ends the threads.
    pub fn stop(&self) {
        if self.stopping.swap(true, Ordering::AcqRel) {
            return;
        }
        self.members.lock().leave(self.now());
        self.signal.raise();
        self.copies.stop();
        self.clean.stop();
        self.given.close();
        // Its connections end with what they are doing, for which they may look at it.
        let server = self.server.lock().take();
        drop(server);
        self.join_threads();
        self.proofs.remove_own(self.core.upgrade().as_deref());
    }

    /// Waits for the threads, but no longer than a moment for one that a PFS holds up.
    fn join_threads(&self) {
        let mut threads: Vec<_> = self.threads.lock().drain(..).collect();
        threads.retain(|thread| thread.thread().id() != std::thread::current().id());
        let deadline = Instant::now() + STOP_LIMIT;
        while threads.iter().any(|thread| !thread.is_finished()) && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        for thread in threads {
            match thread.is_finished() {
                true => drop(thread.join()),
                false => tracing::warn!(
                    thread = thread.thread().name(),
                    "it waits for the PFS and is left behind"
                ),
            }
        }
    }
}
