//! The Unix socket that client processes and the command line talk to.
//!
//! Everybody may connect; what a client may read or write is decided by the descriptors it brings.
//! The server opens no name for anybody, and keeps each client's mistakes to that client.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidepool_proto::admin::AdminService;
use tidepool_proto::{Error, ErrorKind, FileService, Result};

/// What clients may use up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerLimits {
    /// Connections of all users.
    pub connections_max: usize,
    /// Connections of one user.
    pub connections_per_user_max: usize,
    /// Open files (each holds a descriptor) of all users.
    pub handles_max: usize,
    /// Open files of one user.
    pub handles_per_user_max: usize,
    /// Open files of one connection.
    pub handles_per_connection_max: usize,
    /// Borrowed ranges of one connection.
    pub borrows_per_connection_max: usize,
    /// Borrowed bytes of one user.
    pub borrowed_bytes_per_user_max: u64,
    /// Requests of one connection that are worked on at the same time; more wait in the socket.
    pub requests_in_flight_max: usize,
    /// Time for the hello.
    pub hello_timeout: Duration,
    /// Time from the first to the last byte of a message, in either direction.
    pub message_timeout: Duration,
}

impl Default for ServerLimits {
    fn default() -> Self {
        ServerLimits {
            connections_max: 4096,
            connections_per_user_max: 1024,
            handles_max: 65_536,
            handles_per_user_max: 32_768,
            handles_per_connection_max: 8192,
            borrows_per_connection_max: 1024,
            borrowed_bytes_per_user_max: 1 << 30,
            requests_in_flight_max: 16,
            hello_timeout: Duration::from_secs(5),
            message_timeout: Duration::from_secs(10),
        }
    }
}

/// What clients use at the moment, and what was refused since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounts {
    /// Connections that said hello.
    pub connections: u64,
    /// Open files.
    pub handles: u64,
    /// Borrowed ranges.
    pub borrows: u64,
    /// Borrowed bytes.
    pub borrowed_bytes: u64,
    /// Requests answered since the start.
    pub requests: u64,
    /// Requests and connections refused for a limit since the start.
    pub limited: u64,
    /// Connections ended for bytes that make no message, since the start.
    pub malformed: u64,
}

/// A running server.
pub struct Server {}

impl Server {
    /// Takes the socket and serves until [`Server::stop`].
    pub fn start(
        socket_path: &Path,
        service: Arc<dyn FileService>,
        admin: Arc<dyn AdminService>,
        limits: ServerLimits,
    ) -> Result<Server> {
        let _ = (socket_path, service, admin, limits);
        Err(Error::new(ErrorKind::Unsupported, "starting the socket server", "not built yet"))
    }

    /// What clients use.
    pub fn counts(&self) -> ServerCounts {
        ServerCounts::default()
    }

    /// Ends all connections and gives the socket up. Returns when no request is worked on.
    pub fn stop(&self) {}
}
