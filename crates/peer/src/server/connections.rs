//! The connections that a server has, and which of them has to go when there are too many.

use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use parking_lot::Mutex;

use super::Limits;
use crate::socket::queued_bytes;

/// One connection.
pub(super) struct Connection {
    pub stream: TcpStream,
    pub address: SocketAddr,
    /// Bytes of a block in a file that may still be in the socket's queue.
    pub file_bytes: AtomicU64,
    /// Somebody cut it off: its end is no fault of the peer.
    pub cut: AtomicBool,
    state: Mutex<State>,
}

struct State {
    /// Who it is, once that is proven.
    peer: Option<Arc<str>>,
    /// A request is under way.
    serving: bool,
    /// When it was accepted, proven, or a request ended.
    since: Instant,
}

impl Connection {
    pub fn new(stream: TcpStream, address: SocketAddr) -> Self {
        let state = State { peer: None, serving: true, since: Instant::now() };
        Self {
            stream,
            address,
            file_bytes: AtomicU64::new(0),
            cut: AtomicBool::new(false),
            state: Mutex::new(state),
        }
    }

    /// Ends it from outside: its thread sees the end of the stream.
    pub fn cut(&self) {
        self.cut.store(true, Ordering::Release);
        // A socket that is closed already is well.
        let _ = self.stream.shutdown(Shutdown::Both);
    }

    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }

    /// A request begins or ends.
    pub fn set_serving(&self, serving: bool) {
        let mut state = self.state.lock();
        state.serving = serving;
        state.since = Instant::now();
    }

    /// Since when it is idle; none while it serves.
    fn idle_since(&self) -> Option<Instant> {
        let state = self.state.lock();
        (!state.serving && state.peer.is_some()).then_some(state.since)
    }

    /// Who it is, as far as that is proven.
    pub fn peer(&self) -> Option<Arc<str>> {
        self.state.lock().peer.clone()
    }

    /// Bytes of blocks in files that the peer has not acknowledged.
    fn queued_file_bytes(&self) -> u64 {
        match self.file_bytes.load(Ordering::Acquire) {
            0 => 0,
            sent => queued_bytes(&self.stream).min(sent),
        }
    }
}

/// All connections of a server.
#[derive(Default)]
pub(super) struct Connections {
    all: Mutex<Table>,
}

#[derive(Default)]
struct Table {
    next: u64,
    connections: HashMap<u64, Arc<Connection>>,
    closed: bool,
}

impl Table {
    /// Connections that nobody cut off.
    fn live(&self) -> impl Iterator<Item = &Arc<Connection>> {
        self.connections.values().filter(|connection| !connection.is_cut())
    }
}

impl Connections {
    /// Takes in a connection that has proved nothing yet. Where there are too many of these the
    /// oldest is cut off: a peer proves itself in a round trip, so the oldest is none.
    ///
    /// Returns its number, and whether one was cut off for it; none where even so there are too
    /// many threads, or the server stops.
    pub fn admit(&self, connection: &Arc<Connection>, limits: &Limits) -> Option<(u64, bool)> {
        let mut table = self.all.lock();
        let most = limits.connections + 2 * limits.unauthenticated;
        if table.closed || table.connections.len() >= most {
            return None;
        }
        let unproven = || table.live().filter(|connection| connection.peer().is_none());
        let crowded = unproven().count() >= limits.unauthenticated;
        if crowded {
            let oldest = unproven().min_by_key(|connection| connection.state.lock().since);
            oldest?.cut();
        }
        let id = table.next;
        table.next += 1;
        table.connections.insert(id, Arc::clone(connection));
        Some((id, crowded))
    }

    /// A connection proved whose it is. Where its peer, or all, have too many, the one that is idle
    /// for the longest is cut off: it may be left over from a peer that was started anew.
    ///
    /// False where none is idle: the peer has to use those that it has.
    pub fn prove(&self, connection: &Connection, peer: &str, limits: &Limits) -> bool {
        let table = self.all.lock();
        let peer: Arc<str> = Arc::from(peer);
        let of_peer = || table.live().filter(|other| other.peer().is_some_and(|of| of == peer));
        let proven = || table.live().filter(|other| other.peer().is_some());
        let longest_idle = |connections: &mut dyn Iterator<Item = &Arc<Connection>>| {
            let idle = connections.filter_map(|other| Some((other.idle_since()?, other)));
            idle.min_by_key(|(since, _)| *since).map(|(_, other)| other.cut()).is_some()
        };
        let mut admitted = true;
        if of_peer().count() >= limits.connections_per_peer {
            admitted = longest_idle(&mut of_peer());
        }
        if admitted && proven().count() >= limits.connections {
            admitted = longest_idle(&mut proven());
        }
        if admitted {
            let mut state = connection.state.lock();
            state.peer = Some(peer);
            state.serving = false;
            state.since = Instant::now();
        }
        admitted
    }

    /// A connection's thread ends.
    pub fn remove(&self, id: u64) {
        self.all.lock().connections.remove(&id);
    }

    /// Cuts off all, and takes in no more.
    pub fn close(&self) {
        let mut table = self.all.lock();
        table.closed = true;
        for connection in table.connections.values() {
            connection.cut();
        }
    }

    /// How many have proved whose they are.
    pub fn proven(&self) -> usize {
        self.all.lock().live().filter(|connection| connection.peer().is_some()).count()
    }

    /// Bytes of blocks in files that peers have not acknowledged.
    pub fn queued_file_bytes(&self) -> u64 {
        let table = self.all.lock();
        table.connections.values().map(|connection| connection.queued_file_bytes()).sum()
    }
}
