//! [`Writes`]: which writes of an open file are not durable yet, and which are lost.
//!
//! A write is *taken* by the node, or made *past* it by this process. A sync or flush of the node
//! *settles* what it took before; a sync of this process makes durable what went past it. When the
//! node ends, the kernel of this machine has the writes that the node passed on:
//!
//! | the node took a write | not settled | settled |
//! |---|---|---|
//! | and passed it on | it counts as made past the node | it is durable |
//! | and kept it in its memory alone | it is lost | it is there, unless the stub was written over |
//!
//! Once a write is lost, all later writes, syncs and the close of the open fail.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use tidepool_pfs::{Hearing, Need, Unsynced, Work};
use tidepool_proto::{Error, ErrorKind, Result};

/// The writes of one open file.
#[derive(Debug)]
pub(super) struct Writes {
    /// Writes that the node took.
    taken: AtomicU64,
    /// Of those, how many it made durable or reported on.
    settled: AtomicU64,
    /// Writes past the node, and the name of a new file, that this process has to sync.
    past_node: Unsynced,
    /// Which of these syncs failed and were told of.
    hearing: Hearing,
    /// What the node took may be in its memory alone.
    may_be_lost: AtomicBool,
    is_lost: AtomicBool,
}

/// The writes that the node took up to a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Taken(u64);

impl Writes {
    /// Of an open that created its file, or cut it. `past_node`: its changes go past the node.
    pub(super) fn new(created: bool, truncated: bool, past_node: bool, may_be_lost: bool) -> Self {
        let unsynced = Unsynced::default();
        if truncated && past_node {
            unsynced.changed(1);
        }
        if created {
            unsynced.named();
        }
        Writes {
            taken: AtomicU64::new(u64::from(truncated && !past_node)),
            settled: AtomicU64::new(0),
            hearing: unsynced.listen(),
            past_node: unsynced,
            may_be_lost: AtomicBool::new(may_be_lost),
            is_lost: AtomicBool::new(false),
        }
    }

    /// The node took a write.
    pub(super) fn took(&self) {
        self.taken.fetch_add(1, Ordering::SeqCst);
    }

    /// What the node took so far.
    pub(super) fn taken(&self) -> Taken {
        Taken(self.taken.load(Ordering::Acquire))
    }

    /// The node settled what it took up to then.
    pub(super) fn settle(&self, taken: Taken) {
        self.settled.fetch_max(taken.0, Ordering::AcqRel);
    }

    /// This process changed `bytes` past the node, or tried to: a failed write may leave a part.
    pub(super) fn went_past_node(&self, bytes: u64) {
        self.past_node.changed(bytes);
    }

    /// Whether something that went past the node is not durable.
    pub(super) fn are_owed_past_node(&self) -> bool {
        self.past_node.dirty_bytes() > 0
    }

    /// Makes durable what went past the node: by `sync`, or by that of another thread which began
    /// late enough.
    pub(super) fn sync_past_node(
        &self,
        need: Need,
        sync: impl FnOnce(Work) -> Result<()>,
    ) -> Result<()> {
        self.past_node.settle(&self.hearing, need, sync)
    }

    /// Whether a close has nothing to make durable and nothing to report.
    pub(super) fn are_none(&self) -> bool {
        self.taken().0 == 0 && !self.are_owed_past_node() && !self.are_lost()
    }

    /// Another node has the file open from now on.
    pub(super) fn go_to_another_node(&self, may_be_lost: bool) {
        self.may_be_lost.fetch_or(may_be_lost, Ordering::AcqRel);
    }

    /// Whether what is written may be in the memory of a node alone.
    pub(super) fn may_be_lost(&self) -> bool {
        self.may_be_lost.load(Ordering::Acquire)
    }

    /// The node ended; see the table above. `is_overwritten` looks whether another program wrote
    /// over the stub.
    pub(super) fn node_ended(&self, is_overwritten: impl FnOnce() -> bool) {
        let may_be_lost = self.may_be_lost();
        let is_lost = if self.taken().0 > self.settled.load(Ordering::Acquire) {
            self.past_node.changed(1);
            may_be_lost
        } else {
            may_be_lost && self.taken().0 > 0 && is_overwritten()
        };
        if is_lost {
            self.lose();
        }
    }

    /// A write is lost, or it is not known what becomes of it.
    pub(super) fn lose(&self) {
        self.is_lost.store(true, Ordering::Release);
    }

    /// Whether a write was lost.
    pub(super) fn are_lost(&self) -> bool {
        self.is_lost.load(Ordering::Acquire)
    }

    /// Fails if a write was lost.
    pub(super) fn check(&self) -> Result<()> {
        if self.are_lost() { Err(lost()) } else { Ok(()) }
    }
}

/// The error of a write that was lost.
pub(super) fn lost() -> Error {
    let detail = "the node ended before it made earlier writes durable";
    Error::new(ErrorKind::Lost, "writing", detail).remedy("write the file again")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn writes(may_be_lost: bool) -> Writes {
        Writes::new(false, false, false, may_be_lost)
    }

    fn never() -> bool {
        panic!("the stub tells nothing here")
    }

    #[test]
    fn what_the_node_passed_on_is_synced_here_when_it_ends() {
        let writes = writes(false);
        assert!(writes.are_none());
        writes.took();
        writes.node_ended(never);
        assert!(writes.are_owed_past_node() && writes.check().is_ok());
        writes.sync_past_node(Need::Counted, |_| Ok(())).unwrap();
        writes.settle(writes.taken());
        writes.node_ended(never);
        assert!(!writes.are_owed_past_node(), "it is durable");
    }

    #[test]
    fn what_was_in_memory_alone_is_lost_unless_it_was_settled_and_its_stub_is_there() {
        let unsettled = writes(true);
        unsettled.node_ended(never);
        assert!(unsettled.check().is_ok(), "nothing was written");
        unsettled.took();
        unsettled.node_ended(never);
        assert_eq!(unsettled.check().unwrap_err().kind(), ErrorKind::Lost);
        let settled = writes(true);
        settled.took();
        settled.settle(settled.taken());
        settled.node_ended(|| false);
        assert!(settled.check().is_ok());
        settled.node_ended(|| true);
        assert!(settled.are_lost() && !settled.are_none());
    }

    #[test]
    fn a_write_after_a_sync_began_is_not_settled_by_it() {
        let writes = writes(true);
        let taken = writes.taken();
        writes.took();
        writes.settle(taken);
        writes.node_ended(never);
        assert!(writes.are_lost());
    }
}
