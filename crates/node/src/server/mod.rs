//! [`Server`]: the Unix socket that client processes and the command line talk to.
//!
//! Every user may connect; what a client may read or write is decided by the descriptors it brings.
//! The server opens no name for a client, and keeps each client's mistakes to that client. Threads:
//! one accepts, one or more serve each connection (see `connection`).

mod authority;
mod connection;
mod limits;
mod linger;
mod listen;
mod session;

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use parking_lot::Mutex;
use rustix::process::{Resource, getrlimit};
use tidepool_proto::admin::AdminService;
use tidepool_proto::wire::Verdict;
use tidepool_proto::wire::socket::{peer, peer_groups};
use tidepool_proto::{Error, ErrorKind, FileService, Identity, Result};

use connection::{Connection, Shared};
use limits::ClientQuotas;
pub use limits::{ServerCounts, ServerLimits};
use listen::Listener;
use session::Session;

/// A running server.
pub struct Server {
    path: PathBuf,
    shared: Arc<Shared>,
    listener: Arc<Listener>,
    accepting: Mutex<Option<JoinHandle<()>>>,
}

impl Server {
    /// Takes the socket and serves until [`Server::stop`]. The limits are lowered where this
    /// process may not open that many descriptors.
    ///
    /// Fails with `InUse` if another node serves there, and with `InvalidInput` if the path is too
    /// long or its directory is missing.
    pub fn start(
        socket_path: &Path,
        service: Arc<dyn FileService>,
        admin: Arc<dyn AdminService>,
        limits: ServerLimits,
    ) -> Result<Server> {
        let listener = Arc::new(listen::listen(socket_path)?);
        let descriptors_max = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
        let quotas = ClientQuotas::new(limits.fitted_to(descriptors_max));
        let shared = Shared::new(quotas, admin.pfs_root());
        let reception = Reception {
            service,
            admin,
            shared: Arc::clone(&shared),
            listener: Arc::clone(&listener),
        };
        let accepting = thread::Builder::new()
            .name("accept".to_owned())
            .stack_size(limits::STACK_BYTES)
            .spawn(move || reception.run())
            .map_err(|error| {
                Error::new(ErrorKind::Unsupported, "starting the socket server", "no thread")
                    .caused_by(error)
            })?;
        let path = socket_path.to_owned();
        Ok(Server { path, shared, listener, accepting: Mutex::new(Some(accepting)) })
    }

    /// Path of the socket.
    pub fn socket_path(&self) -> &Path {
        &self.path
    }

    /// What clients use.
    pub fn counts(&self) -> ServerCounts {
        self.shared.quotas.counts()
    }

    /// Ends all connections and closes the socket. Returns when no request is worked on any
    /// more, so it must not be called from within one. Further calls do nothing.
    pub fn stop(&self) {
        self.shared.stopping.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        let _ = rustix::net::shutdown(&self.listener.socket, rustix::net::Shutdown::Both);
        if let Some(accepting) = self.accepting.lock().take()
            && accepting.join().is_err()
        {
            tracing::error!("the thread that accepts clients panicked");
        }
        self.shared.end_all();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// Pause after the process ran out of descriptors or memory, so that accepting does not spin.
const EXHAUSTED_PAUSE: Duration = Duration::from_millis(100);
/// How long a client that is turned away may take to hear it.
const TURNED_AWAY_TIMEOUT: Duration = Duration::from_millis(100);

struct Reception {
    service: Arc<dyn FileService>,
    admin: Arc<dyn AdminService>,
    shared: Arc<Shared>,
    listener: Arc<Listener>,
}

impl Reception {
    fn run(self) {
        let mut number = 0;
        let mut exhausted = false;
        while !self.shared.stopping.load(Ordering::Acquire) {
            match self.listener.socket.accept() {
                Ok((socket, _)) => {
                    number += 1;
                    exhausted = false;
                    self.receive(number, socket);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) if self.shared.stopping.load(Ordering::Acquire) => {}
                Err(error) => {
                    if !exhausted {
                        tracing::error!(%error, "cannot accept clients at the moment");
                    }
                    exhausted = true;
                    thread::sleep(EXHAUSTED_PAUSE);
                }
            }
        }
    }

    fn receive(&self, number: u64, socket: UnixStream) {
        let Ok(peer) = peer(socket.as_fd()) else { return };
        let user_id = peer.user_id;
        let ticket = match self.shared.quotas.connection(user_id) {
            Ok(ticket) => ticket,
            Err(_) => {
                let verdict = Verdict::LimitReached;
                let _ = self.shared.welcome(socket.as_fd(), verdict, None, TURNED_AWAY_TIMEOUT);
                // The hello is not read, and a close with unread bytes would take the welcome
                // along; an orderly end leaves it readable.
                let _ = socket.shutdown(Shutdown::Write);
                return;
            }
        };
        // Without its groups (Linux before 4.13) it has fewer rights, never more.
        let groups = peer_groups(socket.as_fd()).unwrap_or_default().into();
        let user = Identity { user_id, group_id: peer.group_id, groups };
        let session = Session::new(
            Arc::clone(&self.service),
            Arc::clone(&self.admin),
            Arc::clone(&self.shared.quotas),
            user,
        );
        let shared = Arc::clone(&self.shared);
        let connection = Connection::new(number, socket, peer, session, shared, ticket);
        if let Err(error) = connection.start() {
            tracing::error!(%error, "cannot start a thread for a client");
        }
    }
}
