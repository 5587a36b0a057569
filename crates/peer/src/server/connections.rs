//! The connections that a server has, and which of them has to go when there are too many.

use std::collections::HashMap;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Instant;

use parking_lot::{Condvar, Mutex};

use super::Limits;
use crate::socket::{deadline_after, queued_bytes};

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
    activity: Activity,
    /// When it was accepted, or its activity changed.
    since: Instant,
}

/// What a connection does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Activity {
    /// It waits for a request.
    Idle,
    /// A request, or the proof, is under way.
    Serving,
    /// The last frame of an answer is on its way: the peer may close it before its thread knows.
    Finishing,
}

/// Whether a connection more can be had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Room {
    Now,
    /// When an answer has gone out.
    Soon,
    /// All are busy.
    None,
}

impl Connection {
    pub fn new(stream: TcpStream, address: SocketAddr) -> Self {
        let state = State { peer: None, activity: Activity::Serving, since: Instant::now() };
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

    fn set(&self, activity: Activity) {
        let mut state = self.state.lock();
        state.activity = activity;
        state.since = Instant::now();
    }

    fn activity(&self) -> (Activity, Instant) {
        let state = self.state.lock();
        (state.activity, state.since)
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

fn cut_longest_idle<'a>(connections: impl Iterator<Item = &'a Arc<Connection>>) -> Room {
    let mut room = Room::None;
    let mut longest: Option<(Instant, &Connection)> = None;
    for connection in connections {
        match connection.activity() {
            (Activity::Idle, since) if longest.is_none_or(|(before, _)| since < before) => {
                longest = Some((since, connection));
            }
            (Activity::Finishing, _) => room = Room::Soon,
            _ => {}
        }
    }
    if let Some((_, connection)) = longest {
        connection.cut();
        room = Room::Now;
    }
    room
}

/// All connections of a server.
#[derive(Default)]
pub(super) struct Connections {
    all: Mutex<Table>,
    /// A connection became idle or ended, while somebody waits for that.
    freed: Condvar,
    waiting: AtomicUsize,
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

    /// Cuts off what has to go for one connection more of `peer`.
    fn make_room(&self, peer: &str, limits: &Limits) -> Room {
        let of = |connection: &Connection| connection.peer();
        let of_peer = || self.live().filter(|other| of(other).is_some_and(|of| *of == *peer));
        let proven = || self.live().filter(|other| of(other).is_some());
        let mut room = Room::Now;
        if of_peer().count() >= limits.connections_per_peer {
            room = cut_longest_idle(of_peer());
        }
        if room == Room::Now && proven().count() >= limits.connections {
            room = cut_longest_idle(proven());
        }
        room
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
    /// False where all are busy: the peer has to use those that it has.
    pub fn prove(&self, connection: &Connection, peer: &str, limits: &Limits) -> bool {
        let peer: Arc<str> = Arc::from(peer);
        let deadline = deadline_after(limits.handshake);
        // Before the table is looked at: who changes something after that sees it.
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut table = self.all.lock();
        let admitted = loop {
            match table.make_room(&peer, limits) {
                Room::Now => break true,
                Room::None => break false,
                Room::Soon => {}
            }
            if self.freed.wait_until(&mut table, deadline).timed_out() {
                break false;
            }
        };
        if admitted {
            connection.state.lock().peer = Some(peer);
            connection.set(Activity::Idle);
        }
        drop(table);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        admitted
    }

    /// A connection begins or ends a request.
    pub fn set(&self, connection: &Connection, activity: Activity) {
        connection.set(activity);
        if activity == Activity::Idle {
            self.wake();
        }
    }

    fn wake(&self) {
        if self.waiting.load(Ordering::SeqCst) > 0 {
            // With the lock: nobody is between looking and waiting.
            let _table = self.all.lock();
            self.freed.notify_all();
        }
    }

    /// A connection's thread ends.
    pub fn remove(&self, id: u64) {
        self.all.lock().connections.remove(&id);
        self.wake();
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
