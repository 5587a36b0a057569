//! A node's side that gives: one thread a connection.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::time::Duration;

use crate::{Identity, Integrity, Service};

/// Bounds of what peers can take of a node.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Connections in all.
    pub connections: usize,
    /// Connections of one peer.
    pub connections_per_peer: usize,
    /// Connections that have not proved yet whose they are.
    pub unauthenticated: usize,
    /// How long a connection has for that proof.
    pub handshake: Duration,
    /// A peer that takes nothing for so long is cut off.
    pub drain: Duration,
    /// A block that is not sent by then is given up.
    pub send: Duration,
    /// Most bytes of a block.
    pub block_bytes_max: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            connections: 1024,
            connections_per_peer: 8,
            unauthenticated: 64,
            handshake: Duration::from_secs(2),
            drain: Duration::from_secs(5),
            send: Duration::from_secs(60),
            block_bytes_max: 16 << 20,
        }
    }
}

/// What a server did since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counters {}

impl Counters {
    /// Connections and messages that were refused.
    pub fn rejected(&self) -> u64 {
        todo!()
    }
}

/// Serves peers until it is dropped, which waits for its threads.
pub struct Server {}

impl Server {
    /// Serves on `listener`.
    ///
    /// # Errors
    /// No thread or no descriptor to start with.
    pub fn start(
        _listener: TcpListener,
        _identity: Identity,
        _integrity: Integrity,
        _service: Arc<dyn Service>,
        _limits: Limits,
    ) -> io::Result<Self> {
        todo!()
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        todo!()
    }

    /// What it did since its start.
    pub fn counters(&self) -> Counters {
        todo!()
    }

    /// Bytes of blocks in files that sockets have and peers have not acknowledged, now. They pin
    /// memory: pages that the store frees meanwhile are not free before the peer has them.
    pub fn queued_bytes(&self) -> u64 {
        todo!()
    }
}
