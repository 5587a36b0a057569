//! The whole state of one node in the cluster.

use std::sync::Arc;

use crate::{
    ChunkPlan, Counters, FileKey, FileLookup, HolderRun, Lookup, MemberView, NodeName, Roster,
    Settings, SharedVersion, Time,
};

/// What a node wants done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Output {
    /// Send this datagram; it may be lost.
    Datagram {
        /// To whom.
        to: NodeName,
        /// What, at most [`Settings::datagram_bytes_max`] bytes.
        bytes: Vec<u8>,
    },
    /// Send this request by the transport, then say [`ClusterNode::call_done`] or
    /// [`ClusterNode::call_failed`]. There is at most one call to a member at a time.
    Call {
        /// To whom.
        to: NodeName,
        /// What, at most 256 KiB.
        request: Vec<u8>,
    },
    /// A member came, or came back as another incarnation.
    Up(NodeName),
    /// A member is down or has left.
    Down(NodeName),
}

/// Membership and locations of one node.
pub struct ClusterNode;

#[expect(unused_variables, reason = "being written")]
impl ClusterNode {
    /// A node that knows the list and nobody yet.
    ///
    /// `incarnation` grows with each start of the node (the time of the start will do). The node
    /// need not be in the roster; then others ignore it. `seed` makes all choices.
    #[must_use]
    pub fn new(
        settings: Settings,
        me: NodeName,
        incarnation: u64,
        roster: &Roster,
        seed: u64,
        now: Time,
    ) -> Self {
        todo!()
    }

    /// A membership datagram, already authenticated as sent by a holder of the key. Garbage is
    /// counted and ignored.
    pub fn receive(&mut self, now: Time, bytes: &[u8]) {
        todo!()
    }

    /// Does what is due. Returns when it wants to be called next at the latest.
    pub fn tick(&mut self, now: Time) -> Time {
        todo!()
    }

    /// What is to be done now; `None` when nothing is.
    pub fn poll(&mut self) -> Option<Output> {
        todo!()
    }

    /// Answers a request of another node that came over the transport. Never panics.
    pub fn serve(&mut self, now: Time, from: &NodeName, request: &[u8]) -> Vec<u8> {
        todo!()
    }

    /// The sending of an [`Output::Call`] failed: what it said is announced again later, if the
    /// member is still one.
    pub fn call_failed(&mut self, now: Time, to: &NodeName) {
        todo!()
    }

    /// An [`Output::Call`] was answered.
    pub fn call_done(&mut self, now: Time, to: &NodeName, reply: &[u8]) {
        todo!()
    }

    /// This node now holds these blocks of that version.
    pub fn hold(
        &mut self,
        now: Time,
        file: FileKey,
        version: SharedVersion,
        first_block: u32,
        count: u32,
    ) {
        todo!()
    }

    /// This node holds these blocks of that version no more.
    pub fn release(
        &mut self,
        now: Time,
        file: FileKey,
        version: SharedVersion,
        first_block: u32,
        count: u32,
    ) {
        todo!()
    }

    /// This node holds nothing of the file any more.
    pub fn release_file(&mut self, now: Time, file: FileKey) {
        todo!()
    }

    /// Where the blocks of a chunk come from.
    pub fn lookup(
        &mut self,
        now: Time,
        file: FileKey,
        version: SharedVersion,
        chunk: u32,
    ) -> Lookup {
        todo!()
    }

    /// Takes the home's reply to [`Lookup::Ask`]; `None` when it cannot be read.
    pub fn learn(&mut self, now: Time, home: &NodeName, reply: &[u8]) -> Option<Arc<ChunkPlan>> {
        todo!()
    }

    /// A holder did not have the block after all: it is left out of the remembered plan, and the
    /// home is told with the next batch.
    pub fn not_held(&mut self, now: Time, file: FileKey, block: u32, holder: &NodeName) {
        todo!()
    }

    /// Whether the member counts as one now; this node always does.
    #[must_use]
    pub fn is_alive(&self, name: &NodeName) -> bool {
        todo!()
    }

    /// All members of the roster, in its order.
    #[must_use]
    pub fn members(&self) -> Vec<MemberView> {
        todo!()
    }

    /// Stable owner of a split for schedulers. It moves only with members that come or go; a
    /// member that is down keeps its splits for [`Settings::owner_grace`].
    #[must_use]
    pub fn owner(&self, file: FileKey, split: u64) -> NodeName {
        todo!()
    }

    /// The member that keeps the locations of the file.
    #[must_use]
    pub fn home(&self, file: FileKey) -> NodeName {
        todo!()
    }

    /// Holders of each block of the whole file.
    pub fn lookup_file(&mut self, now: Time, file: FileKey, version: SharedVersion) -> FileLookup {
        todo!()
    }

    /// Takes the home's reply to [`FileLookup::Ask`]; `None` when it cannot be read.
    pub fn learn_file(
        &mut self,
        now: Time,
        home: &NodeName,
        reply: &[u8],
    ) -> Option<Vec<HolderRun>> {
        todo!()
    }

    /// Says good-bye to the others; the messages follow by [`Self::poll`].
    pub fn leave(&mut self, now: Time) {
        todo!()
    }

    /// Counts and sizes.
    #[must_use]
    pub fn counters(&self) -> Counters {
        todo!()
    }
}
