//! What a node gives to its peers.

use std::io;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use crate::{BlockRequest, Refusal};

/// What the node gives to peers. Called by one thread a connection.
pub trait Service: Send + Sync {
    /// Answers a small request of the peer `from`, in at most 1 MiB.
    fn call(&self, from: &str, request: &[u8]) -> Vec<u8>;

    /// The bytes of a block for the peer `from`.
    ///
    /// The service calls `working` while it waits for a fill, at least each 100 ms; `working` fails
    /// when the peer is gone, and then the service gives up.
    ///
    /// # Errors
    /// Why the node does not give the block.
    fn block(
        &self,
        from: &str,
        request: &BlockRequest,
        working: &mut dyn FnMut() -> io::Result<()>,
    ) -> Result<Block, Refusal>;
}

/// A block on its way to a peer.
pub struct Block {
    /// Its bytes.
    pub bytes: Bytes,
    /// Called after the peer has all bytes: true when what was sent is still what `bytes` was.
    /// Dropped without a call when the peer went away.
    pub confirm: Box<dyn FnOnce() -> bool + Send>,
}

/// Where the bytes of a block are. As many as the request says.
pub enum Bytes {
    /// In a file, which may change while they are sent.
    File {
        /// The file.
        file: Arc<OwnedFd>,
        /// Where the block starts in it, bytes.
        offset: u64,
    },
    /// Here. Of another length than the request's they are refused.
    Copied(Vec<u8>),
}
