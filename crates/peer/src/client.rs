//! A node's side that asks: connections to peers, kept and shared.

mod connection;
mod pool;

use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::Duration;

use self::connection::{Connection, Failure, check_request};
use self::pool::Pool;
use crate::socket::{Patience, deadline_after};
use crate::{BlockRequest, Identity, Integrity, PeerError, Transport};

/// Finds the address of a peer by its name.
pub type Resolve = Arc<dyn Fn(&str) -> Option<SocketAddr> + Send + Sync>;

/// How many times the silence that a caller bears a whole fetch may take.
const SILENCES_MAX: u32 = 20;

/// The transport over TCP.
pub struct TcpTransport {
    identity: Identity,
    integrity: Integrity,
    pool: Pool,
}

impl TcpTransport {
    /// A transport that keeps up to `connections_per_peer` idle connections to each peer, and has
    /// at most four times as many open. At least one is kept.
    pub fn new(
        identity: Identity,
        integrity: Integrity,
        resolve: Resolve,
        connections_per_peer: usize,
    ) -> Self {
        Self { identity, integrity, pool: Pool::new(resolve, connections_per_peer.max(1)) }
    }

    /// Connections to `peer` that are open now, idle ones too.
    pub fn connections(&self, peer: &str) -> usize {
        self.pool.open(peer)
    }

    /// Proves both sides on a socket that is connected.
    fn open(
        &self,
        peer: &str,
        address: SocketAddr,
        stream: Arc<TcpStream>,
        patience: Patience,
    ) -> Result<Connection, PeerError> {
        self.identity.check_name(peer).map_err(|error| PeerError::Protocol(error.to_string()))?;
        Connection::open(&self.identity, self.integrity, peer, address, stream, patience)
    }

    /// Carries out `request` on a connection to `peer`. An idle connection that turns out to be
    /// broken before the peer said anything is replaced once: the peer was started anew.
    fn with_connection<T>(
        &self,
        peer: &str,
        patience: Patience,
        mut request: impl FnMut(&mut Connection) -> Result<T, Failure>,
    ) -> Result<T, PeerError> {
        let mut fresh = false;
        loop {
            let mut lease = self.pool.lease(self, peer, fresh, patience)?;
            let failure = match request(lease.connection()) {
                Ok(done) => {
                    lease.keep();
                    return Ok(done);
                }
                Err(failure) => failure,
            };
            let broken = matches!(failure.error, PeerError::Unreachable(_));
            fresh = lease.reused && broken && !failure.answered && !lease.is_forgotten();
            if failure.reusable {
                lease.keep();
            }
            if !fresh {
                return Err(failure.error);
            }
        }
    }
}

impl Transport for TcpTransport {
    fn call(&self, peer: &str, request: &[u8], deadline: Duration) -> Result<Vec<u8>, PeerError> {
        check_request(request)?;
        let patience = Patience::within(deadline);
        self.with_connection(peer, patience, |connection| connection.call(request, patience))
    }

    fn fetch(
        &self,
        peer: &str,
        request: &BlockRequest,
        into: &mut [u8],
        silence: Duration,
    ) -> Result<(), PeerError> {
        if into.len() != request.length as usize {
            return Err(PeerError::Protocol(format!(
                "{} bytes are asked for, and there is room for {}",
                request.length,
                into.len()
            )));
        }
        let until = deadline_after(silence.saturating_mul(SILENCES_MAX));
        let patience = Patience { silence, until };
        self.with_connection(peer, patience, |connection| connection.fetch(request, into, patience))
    }

    fn forget(&self, peer: &str) {
        self.pool.forget(peer);
    }
}
