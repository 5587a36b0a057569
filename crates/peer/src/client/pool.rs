//! The connections to each peer: kept while idle, bounded, closed together when the peer is down.

use std::collections::HashMap;
use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Arc, Weak};

use parking_lot::{Condvar, Mutex};

use super::connection::Connection;
use super::{Resolve, TcpTransport};
use crate::PeerError;
use crate::socket::{self, Patience, deadline_after};

/// Open connections for each idle one that is kept.
const OPEN_PER_KEPT: usize = 4;

/// The connections to all peers.
pub(super) struct Pool {
    resolve: Resolve,
    kept_max: usize,
    peers: Mutex<HashMap<String, Arc<Peer>>>,
}

/// The connections to one peer.
#[derive(Default)]
struct Peer {
    state: Mutex<State>,
    /// A connection became idle or was closed.
    freed: Condvar,
}

#[derive(Default)]
struct State {
    idle: Vec<Connection>,
    /// Idle, in use or being opened.
    open: usize,
    /// The sockets of all of them, to cut them off.
    sockets: Vec<Weak<TcpStream>>,
    forgotten: bool,
}

impl State {
    /// Closes an idle connection.
    fn close(&mut self, connection: Connection) {
        drop(connection);
        self.open -= 1;
    }
}

/// A connection in use. Closed when dropped, unless it is kept.
pub(super) struct Lease {
    peer: Arc<Peer>,
    kept_max: usize,
    connection: Option<Connection>,
    /// It was idle before.
    pub reused: bool,
}

impl Lease {
    /// The connection.
    pub fn connection(&mut self) -> &mut Connection {
        self.connection.as_mut().expect("there is one until the lease ends")
    }

    /// Whether this node cut it off itself.
    pub fn is_forgotten(&self) -> bool {
        self.peer.state.lock().forgotten
    }

    /// Gives it back for the next request.
    pub fn keep(mut self) {
        let mut state = self.peer.state.lock();
        if !state.forgotten && state.idle.len() < self.kept_max {
            state.idle.extend(self.connection.take());
            drop(state);
            self.peer.freed.notify_one();
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take() {
            drop(connection);
            self.peer.close_one();
        }
    }
}

impl Peer {
    fn close_one(&self) {
        self.state.lock().open -= 1;
        self.freed.notify_one();
    }

    /// Waits until there may be one more connection. An idle one to `address` is taken, unless it
    /// has to be a fresh one; others are closed.
    fn reserve(
        &self,
        address: SocketAddr,
        fresh: bool,
        open_max: usize,
        patience: Patience,
    ) -> Result<Option<Connection>, PeerError> {
        let until = patience.until.min(deadline_after(patience.silence));
        let mut state = self.state.lock();
        loop {
            while let Some(connection) = state.idle.pop() {
                let usable = !fresh && connection.address == address && !connection.is_broken();
                if usable {
                    return Ok(Some(connection));
                }
                state.close(connection);
            }
            if state.forgotten {
                return Err(PeerError::Unreachable(forgotten()));
            }
            if state.open < open_max {
                state.open += 1;
                return Ok(None);
            }
            if self.freed.wait_until(&mut state, until).timed_out() {
                return Err(PeerError::TimedOut);
            }
        }
    }

    /// Lets `forget` reach a socket.
    fn register(&self, stream: &Arc<TcpStream>) -> Result<(), PeerError> {
        let mut state = self.state.lock();
        if state.forgotten {
            return Err(PeerError::Unreachable(forgotten()));
        }
        state.sockets.retain(|socket| socket.strong_count() > 0);
        state.sockets.push(Arc::downgrade(stream));
        Ok(())
    }

    fn forget(&self) {
        let mut state = self.state.lock();
        state.forgotten = true;
        for socket in state.sockets.drain(..).filter_map(|socket| socket.upgrade()) {
            // Its user sees the end of the stream. A socket that is closed already is well.
            let _ = socket.shutdown(Shutdown::Both);
        }
        while let Some(connection) = state.idle.pop() {
            state.close(connection);
        }
        drop(state);
        self.freed.notify_all();
    }
}

fn forgotten() -> io::Error {
    io::Error::new(io::ErrorKind::ConnectionAborted, "this node takes the peer for down")
}

/// Gives a reservation back when there comes no connection of it.
struct Reservation<'a>(Option<&'a Peer>);

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        if let Some(peer) = self.0 {
            peer.close_one();
        }
    }
}

impl Pool {
    pub fn new(resolve: Resolve, kept_max: usize) -> Self {
        Self { resolve, kept_max, peers: Mutex::default() }
    }

    /// A connection to `name`, idle or new.
    pub fn lease(
        &self,
        transport: &TcpTransport,
        name: &str,
        fresh: bool,
        patience: Patience,
    ) -> Result<Lease, PeerError> {
        let address = (self.resolve)(name).ok_or_else(|| {
            let what = format!("no address of a peer called {name} is known");
            PeerError::Unreachable(io::Error::new(io::ErrorKind::NotFound, what))
        })?;
        let peer = Arc::clone(self.peers.lock().entry(name.to_owned()).or_default());
        let open_max = self.kept_max * OPEN_PER_KEPT;
        let idle = peer.reserve(address, fresh, open_max, patience)?;
        let reused = idle.is_some();
        let connection = match idle {
            Some(connection) => connection,
            None => {
                let mut reservation = Reservation(Some(&*peer));
                let stream = Arc::new(socket::connect(address, patience)?);
                peer.register(&stream)?;
                let connection = transport.open(name, address, stream, patience)?;
                reservation.0 = None;
                connection
            }
        };
        Ok(Lease { peer, kept_max: self.kept_max, connection: Some(connection), reused })
    }

    /// Closes all connections to `name`.
    pub fn forget(&self, name: &str) {
        let peer = self.peers.lock().remove(name);
        if let Some(peer) = peer {
            peer.forget();
        }
    }

    /// Connections to `name` that are open.
    pub fn open(&self, name: &str) -> usize {
        let peer = self.peers.lock().get(name).cloned();
        peer.map_or(0, |peer| peer.state.lock().open)
    }
}
