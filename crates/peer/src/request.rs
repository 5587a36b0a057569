//! What a node asks its peers for.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::PeerError;

/// What a peer is asked for. Opaque to the transport but for `length`.
#[derive(Serialize, Deserialize, Clone, Debug, PartialEq)]
pub struct BlockRequest {
    /// The file, the same on all nodes.
    pub file: [u64; 2],
    /// The version of the file.
    pub version: [i64; 3],
    /// Where the block starts in the file, bytes.
    pub offset: u64,
    /// How many bytes.
    pub length: u32,
    /// The peer may read it from the PFS for us.
    pub may_fill: bool,
}

/// What of a block's transfer is protected against change on the way.
///
/// Of two nodes that differ the stronger setting holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Integrity {
    /// Requests, replies and the headers of blocks, but not the bytes of blocks.
    Headers,
    /// The bytes of blocks too, by a keyed BLAKE3 over them. They are copied for it.
    Full,
}

/// How a node reaches its peers.
pub trait Transport: Send + Sync {
    /// A small request and its reply, each of at most 1 MiB.
    ///
    /// The peer may carry it out twice, where a connection broke before the reply came: requests
    /// are to be idempotent.
    ///
    /// # Errors
    /// See [`PeerError`]; after `deadline` [`PeerError::TimedOut`].
    fn call(&self, peer: &str, request: &[u8], deadline: Duration) -> Result<Vec<u8>, PeerError>;

    /// The whole of a block into `into`, which has exactly `request.length` bytes.
    ///
    /// Returns only after the holder confirmed, after receipt, that the bytes it sent are still of
    /// that version. On any error `into` holds garbage that the caller discards.
    ///
    /// # Errors
    /// See [`PeerError`]. [`PeerError::TimedOut`] when the peer sends nothing for `silence` (while
    /// it fills the block it says each 100 ms that it works), and after 20 times that in any case.
    fn fetch(
        &self,
        peer: &str,
        request: &BlockRequest,
        into: &mut [u8],
        silence: Duration,
    ) -> Result<(), PeerError>;

    /// Closes the connections to a peer that is down. Requests under way fail.
    fn forget(&self, peer: &str);
}
