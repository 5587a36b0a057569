//! A node's side that asks: connections to peers, kept and shared.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use crate::{BlockRequest, Identity, Integrity, PeerError, Transport};

/// Finds the address of a peer by its name.
pub type Resolve = Arc<dyn Fn(&str) -> Option<SocketAddr> + Send + Sync>;

/// The transport over TCP.
pub struct TcpTransport {}

impl TcpTransport {
    /// A transport that keeps up to `connections_per_peer` idle connections to each peer, and has
    /// at most four times as many open.
    pub fn new(
        _identity: Identity,
        _integrity: Integrity,
        _resolve: Resolve,
        _connections_per_peer: usize,
    ) -> Self {
        todo!()
    }
}

impl Transport for TcpTransport {
    fn call(&self, _: &str, _: &[u8], _: Duration) -> Result<Vec<u8>, PeerError> {
        todo!()
    }

    fn fetch(&self, _: &str, _: &BlockRequest, _: &mut [u8], _: Duration) -> Result<(), PeerError> {
        todo!()
    }

    fn forget(&self, _: &str) {
        todo!()
    }
}
