//! A node's side that gives: one thread a connection.

mod connections;
mod faults;
mod sending;
mod serving;

use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};

pub use self::faults::Fault;

use self::connections::{Connection, Connections};
use self::faults::Faults;
use crate::socket::{prepare, prepare_sender, ready};
use crate::{Identity, Integrity, Service};

/// How long the server waits where the process has no descriptor or thread left.
const PAUSE: Duration = Duration::from_millis(100);

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
    /// A peer that sends nothing of what it began, or takes nothing, for so long is cut off.
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
pub struct Counters {
    /// Connections that were accepted.
    pub accepted: u64,
    /// Connections that proved whose they are.
    pub authenticated: u64,
    /// Connections that are open now and proved whose they are.
    pub connections: u64,
    /// Small requests.
    pub calls: u64,
    /// Requests for blocks.
    pub blocks: u64,
    /// Bytes of blocks that were sent.
    pub block_bytes: u64,
    /// Those of them that were copied.
    pub copied_bytes: u64,
    /// Blocks that were still good when the peer had them.
    pub confirmed: u64,
    /// Blocks that were not.
    pub changed: u64,
    /// Requests that were refused.
    pub refused: u64,
    faults: [u64; Fault::ALL.len()],
}

impl Counters {
    /// Connections that were closed for this reason.
    pub fn closed(&self, fault: Fault) -> u64 {
        self.faults[fault as usize]
    }
}

/// The counters while they count.
#[derive(Default)]
struct Counts {
    accepted: AtomicU64,
    authenticated: AtomicU64,
    calls: AtomicU64,
    blocks: AtomicU64,
    block_bytes: AtomicU64,
    copied_bytes: AtomicU64,
    confirmed: AtomicU64,
    changed: AtomicU64,
    refused: AtomicU64,
}

impl Counts {
    fn add(&self, counter: impl Fn(&Self) -> &AtomicU64, by: u64) {
        counter(self).fetch_add(by, Ordering::Relaxed);
    }
}

/// What the threads of a server share.
struct Shared {
    identity: Identity,
    integrity: Integrity,
    limits: Limits,
    service: Arc<dyn Service>,
    connections: Connections,
    counts: Counts,
    faults: Faults,
    stopping: AtomicBool,
    /// Readable when the server stops.
    stop: OwnedFd,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Serves peers until it is dropped, which waits for its threads.
pub struct Server {
    shared: Arc<Shared>,
    local_addr: SocketAddr,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves on `listener`.
    ///
    /// # Errors
    /// No thread or no descriptor to start with, or a name in `identity` that cannot be sent.
    pub fn start(
        listener: TcpListener,
        identity: Identity,
        integrity: Integrity,
        service: Arc<dyn Service>,
        limits: Limits,
    ) -> io::Result<Self> {
        identity.check()?;
        listener.set_nonblocking(true)?;
        prepare_sender(&listener);
        let local_addr = listener.local_addr()?;
        let shared = Arc::new(Shared {
            identity,
            integrity,
            limits,
            service,
            connections: Connections::default(),
            counts: Counts::default(),
            faults: Faults::default(),
            stopping: AtomicBool::new(false),
            stop: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
            threads: Mutex::default(),
        });
        let acceptor = {
            let shared = Arc::clone(&shared);
            std::thread::Builder::new()
                .name("peer-accept".to_owned())
                .spawn(move || shared.accept_until_stopped(&listener))?
        };
        Ok(Self { shared, local_addr, acceptor: Some(acceptor) })
    }

    /// Where it listens.
    pub fn local_addr(&self) -> SocketAddr {
        self.local_addr
    }

    /// What it did since its start.
    pub fn counters(&self) -> Counters {
        let counts = &self.shared.counts;
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counters {
            accepted: read(&counts.accepted),
            authenticated: read(&counts.authenticated),
            connections: self.shared.connections.proven() as u64,
            calls: read(&counts.calls),
            blocks: read(&counts.blocks),
            block_bytes: read(&counts.block_bytes),
            copied_bytes: read(&counts.copied_bytes),
            confirmed: read(&counts.confirmed),
            changed: read(&counts.changed),
            refused: read(&counts.refused),
            faults: self.shared.faults.counts(),
        }
    }

    /// Bytes of blocks in files that sockets have and peers have not acknowledged, now. They pin
    /// memory: pages that the store frees meanwhile are not free before the peer has them.
    pub fn queued_bytes(&self) -> u64 {
        self.shared.connections.queued_file_bytes()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shared.stopping.store(true, Ordering::Release);
        // An eventfd with room takes eight bytes.
        let _ = rustix::io::write(&self.shared.stop, &1_u64.to_ne_bytes());
        self.shared.connections.close();
        if let Some(acceptor) = self.acceptor.take() {
            let _ = acceptor.join();
        }
        // A thread that the acceptor started last is among these too.
        let threads = std::mem::take(&mut *self.shared.threads.lock());
        for thread in threads {
            // A thread that panicked has said so, and its connection is closed.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    fn accept_until_stopped(self: &Arc<Self>, listener: &TcpListener) {
        while !self.is_stopping() {
            match listener.accept() {
                Ok((stream, address)) => self.admit(stream, address),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    if self.wait_for_connection(listener).is_err() {
                        self.pause();
                    }
                }
                Err(error) if is_of_one_connection(&error) => {}
                Err(error) => {
                    tracing::debug!(%error, "no peer can be accepted");
                    self.pause();
                }
            }
        }
    }

    fn wait_for_connection(&self, listener: &TcpListener) -> io::Result<()> {
        let mut descriptors = [
            PollFd::new(listener, PollFlags::IN),
            PollFd::from_borrowed_fd(self.stop.as_fd(), PollFlags::IN),
        ];
        match poll(&mut descriptors, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Waits a moment, or until the server stops.
    fn pause(&self) {
        if ready(&self.stop, PollFlags::IN, PAUSE).is_err() {
            std::thread::sleep(PAUSE);
        }
    }

    /// Starts the thread of a connection.
    fn admit(self: &Arc<Self>, stream: TcpStream, address: SocketAddr) {
        self.counts.add(|counts| &counts.accepted, 1);
        if let Err(error) = prepare(&stream) {
            tracing::debug!(%error, "a connection broke before it was served");
            return;
        }
        let connection = Arc::new(Connection::new(stream, address));
        let Some((id, crowded)) = self.connections.admit(&connection, &self.limits) else {
            if !self.is_stopping() {
                self.faults.note(Fault::Crowded, address, None);
            }
            return;
        };
        if crowded {
            self.faults.note(Fault::Crowded, address, None);
        }
        let shared = Arc::clone(self);
        let thread = std::thread::Builder::new().name("peer".to_owned()).spawn(move || {
            let _removal = Removal { shared: &shared, id };
            serving::serve(&shared, &connection);
        });
        let mut threads = self.threads.lock();
        threads.retain(|thread| !thread.is_finished());
        match thread {
            Ok(thread) => threads.push(thread),
            Err(error) => {
                drop(threads);
                self.connections.remove(id);
                tracing::debug!(%error, "no thread for a peer");
                self.pause();
            }
        }
    }
}

/// Takes a connection out of the table when its thread ends, also by a panic of the service.
struct Removal<'a> {
    shared: &'a Shared,
    id: u64,
}

impl Drop for Removal<'_> {
    fn drop(&mut self) {
        self.shared.connections.remove(self.id);
    }
}

/// Whether an error of `accept` concerns one connection that broke before it was accepted.
fn is_of_one_connection(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::Interrupted
            | io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::PermissionDenied
    )
}
