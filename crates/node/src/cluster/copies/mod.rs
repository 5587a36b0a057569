//! Copies of memory-only files on other nodes (rule option `copies`).
//!
//! * `push`: the node that has a file brings the copies up to date before a sync returns.
//! * `owing`: the same for files that are in burst buffers. `owed`: what this node answers for.
//! * `held`: what this node holds of others' files.
//! * `audit`: both sides compare what is counted on and what is held.
//! * `give_back`: a copy is needed, or its memory, or the node of the file is gone; `replace`: it
//!   is put in the place of the file, `place`. `claim`: the right to it; `pass`: what a node left
//!   that had it and is gone, or does not get on (`stuck`); `unsettled`: a copy that may have taken
//!   another file's place.
//! * `waiting`: what is brought to the PFS beside the thread that does all this.
//! * `find`: who has the bytes of a stub that is opened.
//! * `message`: what is said.
//!
//! # Invariants
//!
//! 1. A sync in mode `memory` returns when each node in the mark has all bytes, or the PFS has
//!    them. A node that missed one message takes no later one.
//! 2. Which nodes the mark names does not change while the file is in memory alone. Where one of
//!    them is missing the file is written back, and its sync waits for that.
//! 3. What takes the place of a stub is settled on the PFS: see `replace`.

mod audit;
pub(super) mod claim;
mod find;
mod give_back;
mod held;
pub(super) mod message;
mod owed;
pub(crate) mod owing;
mod pass;
mod place;
mod push;
mod replace;
mod stuck;
mod unsettled;
mod waiting;

use std::collections::{HashSet, VecDeque};
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use parking_lot::{Condvar, Mutex};
use tidepool_cluster::{FileKey, NodeName};
use tidepool_proto::FileId;
use tidepool_proto::cluster::CopiesStatus;

use self::held::HeldCopies;
use self::message::{Asked, AuditAnswer, PushAnswer};
use self::stuck::Watched;
use self::waiting::{OthersFiles, OwnFiles};
use super::Cluster;
use super::recall::{Answer, Recalls};
use crate::core::Core;
use crate::counters::Counter;
use crate::file::copied::Copied;

pub use self::audit::{Follow, follow};

/// See the module's documentation.
#[derive(Default)]
pub struct FileCopies {
    held: HeldCopies,
    /// Copies that are being given back, by what their time in memory is called.
    giving: Arc<Recalls<u64>>,
    /// Files of this node that are written back for want of a copy, and those that are because it
    /// is time.
    over: OwnFiles,
    due: OwnFiles,
    /// Files of nodes that are gone.
    others: OthersFiles,
    /// Holders that were sent anything since the last comparison.
    pushed_to: Mutex<HashSet<NodeName>>,
    /// Bytes that the store needs of what copies hold.
    wanted_bytes: Mutex<u64>,
    wake: Condvar,
    /// A file of this node was renamed since its holders were told of names.
    are_names_new: AtomicBool,
    /// Files of this node with copies elsewhere, at the last look.
    copied_files: AtomicU64,
    /// Claims of others.
    watched: Watched,
    /// What an earlier start of this node answered for was read from its burst buffer.
    is_owed_read: AtomicBool,
    /// What of it is not known, by the name of the time in memory, and why.
    unknown: Mutex<Vec<(u64, owed::NotKnown, String)>>,
    /// What burst buffers owe of it, then.
    owed: Mutex<CopiesStatus>,
    /// Too few nodes were there for the last file.
    is_short: AtomicBool,
    pushed_bytes: Counter,
    missing: Counter,
    put_in_place: Counter,
    /// Files of this node that it gave up to a copy, the oldest first.
    given_up: Mutex<VecDeque<(Arc<Copied>, FileId)>>,
    /// Times in memory whose copies were put in place here, the oldest first.
    placed: Mutex<VecDeque<u64>>,
}

/// Times in memory that are remembered so.
const PLACED_MAX: usize = 16_384;
/// Files that are remembered so.
const GIVEN_UP_MAX: usize = 1024;

impl FileCopies {
    /// Says once, and again after it was otherwise, that there are too few nodes.
    fn note_placed(&self, is_placed: bool, copies: u32) {
        let was_short = self.is_short.swap(!is_placed, Ordering::Relaxed);
        if !is_placed && !was_short {
            tracing::warn!(
                copies,
                "too few other nodes are there to hold copies: files are written through"
            );
        }
    }

    /// Copies that are held for others, and their bytes.
    pub fn held(&self) -> (u64, u64) {
        (self.held.count(), self.held.bytes())
    }

    /// What there is of them, and was done.
    pub fn status(&self, write_back_bytes_per_s: Option<u64>) -> CopiesStatus {
        let (held, held_bytes) = self.held();
        let owed = self.owed.lock().clone();
        let answered_for = self.held.all().iter().filter(|it| it.owed().is_some()).count() as u64;
        let is_owed = owed.owed_files + answered_for > 0;
        CopiesStatus {
            files: self.copied_files.load(Ordering::Relaxed),
            held,
            held_bytes,
            pushed_bytes: self.pushed_bytes.get(),
            missing: self.missing.get(),
            put_in_place: self.put_in_place.get(),
            answered_for,
            write_back_bytes_per_s: write_back_bytes_per_s.filter(|_| is_owed),
            ..owed
        }
    }

    /// Remembers that a file of this node was given up to a copy. Until that is in its place all
    /// holders keep theirs.
    pub fn note_given_up(&self, copied: &Arc<Copied>, id: FileId) {
        let mut given_up = self.given_up.lock();
        given_up.push_back((copied.clone(), id));
        while given_up.len() > GIVEN_UP_MAX {
            given_up.pop_front();
        }
    }

    /// Whether a file was given up so.
    pub fn was_given_up(&self, id: FileId) -> bool {
        self.given_up.lock().iter().any(|(_, known)| *known == id)
    }

    /// Remembers that a copy of this node took the place of its file.
    fn note_put_in_place(&self, epoch: u64) {
        self.put_in_place.add(1);
        self.note_replaced(epoch);
    }

    /// Notes that another file is in the place of one of which there may be copies.
    fn note_replaced(&self, epoch: u64) {
        let mut placed = self.placed.lock();
        placed.push_back(epoch);
        while placed.len() > PLACED_MAX {
            placed.pop_front();
        }
    }

    /// Has copies given back until so many bytes are free.
    pub fn make_room(&self, bytes: u64) {
        if bytes > 0 && self.held.bytes() > 0 {
            let mut wanted = self.wanted_bytes.lock();
            *wanted = (*wanted).max(bytes);
            self.wake.notify_one();
        }
    }

    /// Has holders be told where files of this node are now.
    pub fn note_renamed(&self) {
        self.are_names_new.store(true, Ordering::Release);
        drop(self.wanted_bytes.lock());
        self.wake.notify_all();
    }

    /// Lets the thread see that the node stops.
    pub fn stop(&self) {
        // Whoever is about to wait saw that it stops, or waits by now.
        drop(self.wanted_bytes.lock());
        self.wake.notify_all();
    }
}

/// Answers another node.
pub fn answer(cluster: &Cluster, from: &NodeName, request: &[u8]) -> Vec<u8> {
    let Ok((asked, bytes)) = postcard::take_from_bytes::<Asked>(request) else { return Vec::new() };
    let core = cluster.core.upgrade().filter(|_| !cluster.is_stopping());
    let is_met = cluster.proofs.holds(from);
    let core = core.filter(|_| is_met);
    let unmet = || match is_met {
        true => "it ends".to_owned(),
        false => cluster
            .proofs
            .refused_because(from)
            .unwrap_or_else(|| "it did not find out yet that both see the same files".to_owned()),
    };
    let reply = match (asked, core) {
        (Asked::Push(push), Some(core)) => {
            postcard::to_stdvec(&cluster.take_push(&core, from, &push, bytes))
        }
        (Asked::Push(_), None) => postcard::to_stdvec(&PushAnswer::Err(unmet())),
        (Asked::Audit(audit), Some(_)) => {
            postcard::to_stdvec(&AuditAnswer::Ok(cluster.answer_audit(from, &audit)))
        }
        (Asked::Audit(_), None) => postcard::to_stdvec(&AuditAnswer::Err(unmet())),
        (Asked::Owe(owe), Some(core)) => postcard::to_stdvec(&cluster.take_owe(&core, from, owe)),
        (Asked::Owe(_), None) => postcard::to_stdvec(&PushAnswer::Err(unmet())),
        (Asked::GiveBack(asked), Some(core)) => {
            postcard::to_stdvec(&cluster.answer_give_back(&core, &asked))
        }
        (Asked::IsStart(node), Some(core)) => {
            postcard::to_stdvec(&(core.memory_only.node() == node))
        }
        // It is not said to whom this one did not meet, nor by one that ends.
        (Asked::IsStart(_), None) => Ok(Vec::new()),
        (Asked::Hurry(epoch), _) => {
            let copy = cluster.copies.held.get(epoch);
            postcard::to_stdvec(&copy.map(|copy| copy.hurry()).is_some())
        }
        (Asked::WasPlaced(epoch), _) => {
            postcard::to_stdvec(&cluster.copies.placed.lock().contains(&epoch))
        }
        (Asked::GiveBack(_), None) => postcard::to_stdvec(&match is_met {
            true => Answer::Stays(unmet()),
            false => cluster.proofs.differs_because(from).map_or(Answer::NotMet, Answer::Stays),
        }),
    };
    reply.unwrap_or_default()
}

impl Cluster {
    fn take_push(
        &self,
        core: &Core,
        from: &NodeName,
        push: &message::Push,
        bytes: &[u8],
    ) -> PushAnswer {
        if core.drained.is_on() {
            return Err("it is being drained".to_owned());
        }
        if push.number == 1 {
            let path = push.begin.as_ref().ok_or("it is not told where the file is")?.path();
            let stub = self.check_stub_of(core, &path, (push.file(), push.epoch, &push.node))?;
            self.copies.held.begin(core, from, push, stub)?;
        }
        self.copies.held.push(core, from, push, bytes)
    }

    /// Whether this node finds the stub, so that it could put the copy in its place; how it finds
    /// it again.
    fn check_stub_of(
        &self,
        core: &Core,
        path: &Path,
        (file, epoch, node): (FileKey, u64, &str),
    ) -> Result<OwnedFd, String> {
        let unseen = || "it does not see the stub of the file as it is told of it".to_owned();
        let (mark, stub) = place::mark_at(core, path, file)?.ok_or_else(unseen)?;
        let copies = mark.copies.as_ref();
        let is_named = copies.is_some_and(|copies| {
            copies.epoch == epoch && copies.holders.iter().any(|it| it == self.me.as_str())
        });
        if is_named && mark.node == node { Ok(stub) } else { Err(unseen()) }
    }
}
