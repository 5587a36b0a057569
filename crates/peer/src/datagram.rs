//! Datagrams of membership: sealed by the sender, opened once by each receiver.

use crate::Identity;

/// Why a datagram is not opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rejected {
    /// Not a datagram of this protocol, or cut.
    Garbage,
    /// Of another cluster.
    Cluster,
    /// Not sealed with the key.
    Forged,
    /// Opened before, or too old to tell.
    Replayed,
    /// One's own, come back.
    Reflected,
}

/// Seals datagrams of one node.
pub struct Sealer {}

impl Sealer {
    /// A sealer for the datagrams of this node.
    pub fn new(_identity: &Identity) -> Self {
        todo!()
    }

    /// The datagram for `message`.
    pub fn seal(&self, _message: &[u8]) -> Vec<u8> {
        todo!()
    }
}

/// Opens datagrams of the other nodes.
pub struct Opener {}

impl Opener {
    /// An opener for the datagrams that this node receives.
    pub fn new(_identity: &Identity) -> Self {
        todo!()
    }

    /// The sender and the message.
    ///
    /// # Errors
    /// Why it is not to be used.
    pub fn open(&self, _datagram: &[u8]) -> Result<(String, Vec<u8>), Rejected> {
        todo!()
    }
}
