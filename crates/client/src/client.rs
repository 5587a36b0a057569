//! The client: the way to a node, and to files with and without one.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;

use tidepool_proto::admin::{AdminReply, AdminRequest};
use tidepool_proto::{Error, ErrorKind, Result};

use crate::file::File;
use crate::options::{ClientOptions, OpenOptions};

fn unfinished<T>(operation: &str) -> Result<T> {
    Err(Error::new(ErrorKind::Unsupported, operation, "not built yet"))
}

/// A client of the node on this machine.
#[derive(Clone, Debug)]
pub struct Client {
    options: ClientOptions,
}

impl Client {
    /// Connects to the node. Never fails: without a node, files are those of the parallel file
    /// system, and the client comes back by itself when the node does.
    pub fn connect(options: ClientOptions) -> Client {
        Client { options }
    }

    /// Whether a node answers at the moment.
    pub fn is_connected(&self) -> bool {
        let _ = &self.options;
        false
    }

    /// Opens a file by its path on the parallel file system, or by `tide:///` and its path there.
    pub fn open(&self, path: impl AsRef<Path>, options: OpenOptions) -> Result<File> {
        let _ = (path.as_ref(), options);
        unfinished("opening a file")
    }

    /// Serves a file that the caller opened, by its descriptor.
    pub fn open_descriptor(&self, descriptor: OwnedFd, options: OpenOptions) -> Result<File> {
        let _ = (descriptor, options);
        unfinished("opening a file")
    }

    /// Sends a request of the command line; fails if no node answers.
    pub fn admin(
        &self,
        request: AdminRequest,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<AdminReply> {
        let _ = (request, descriptor);
        unfinished("asking the node")
    }
}
