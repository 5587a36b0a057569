//! [`Client`]: connects to a node, and opens files with and without one.
//!
//! Without a node everything goes to the parallel file system; the absence is reported once, and
//! the node is looked for again now and then. Only the command line needs a node that answers.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use tidepool_proto::admin::{AdminReply, AdminRequest};
use tidepool_proto::control::{CeilingLease, CeilingLeased, ControlStatus, Govern, Governed};
use tidepool_proto::trace::Operation;
use tidepool_proto::wire::{Reply, Request};
use tidepool_proto::{ChangeBegin, ChangeTimes, Error, ErrorKind, Result};

use crate::binding::Manner;
use crate::connection::Brief;
use crate::file::File;
use crate::lease::ReadLease;
use crate::link::Link;
use crate::lower;
use crate::options::{ClientOptions, OpenOptions};
use crate::path::{Name, is_below};
use crate::trace::{self, Asked, Outcome};

/// Time for the node to answer what is told to it of a change of metadata, before and after.
const NOTE_PATIENCE: Duration = Duration::from_millis(500);

/// How often a file is opened in whose place another one came meanwhile.
const REPLACED_MAX: usize = 16;

/// A client of the node on this machine. Clones share one connection.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) link: Arc<Link>,
}

impl Client {
    /// Connects to the node. Never fails: without a node, files are those of the parallel file
    /// system, and the client comes back by itself when the node does.
    pub fn connect(options: ClientOptions) -> Client {
        let client = Client { link: Arc::new(Link::new(options)) };
        let _ = client.link.attempt(&mut client.link.attempts.lock());
        client
    }

    /// Whether a node answers at the moment, as far as is known. Sends no message.
    pub fn is_connected(&self) -> bool {
        self.link.living().is_some()
    }

    /// As `is_connected`, but false for a node that did not answer the last open in time.
    pub fn is_answering(&self) -> bool {
        self.link.living().is_some_and(|connection| !connection.is_silent())
    }

    /// The directory that `tide:///` stands for. Fails where it was never said and no node answers.
    pub fn pfs_root(&self) -> Result<&Path> {
        self.link.pfs_root()
    }

    /// Opens a file by its path on the parallel file system, or by `tide:///` and its path there.
    /// The caller's own credentials decide, as with `open(2)`. A path outside of the directory of
    /// the parallel file system, where that is known, is served without the node.
    ///
    /// A node that does not answer is waited for about 2 s; where it alone has the bytes, as long
    /// as for any request. Where another file took the place of the one that was opened, that one
    /// is opened.
    pub fn open(&self, path: impl AsRef<Path>, options: OpenOptions) -> Result<File> {
        let opened = self.open_while(path, options, &mut || true)?;
        Ok(opened.expect("only who says no gives up"))
    }

    /// As [`Client::open`], but a long wait for a node that alone has the bytes ends with `None`
    /// when `go_on`, asked now and then, says no.
    pub fn open_while(
        &self,
        path: impl AsRef<Path>,
        options: OpenOptions,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<File>> {
        let path = match Name::parse(path.as_ref())? {
            Name::Tide(relative) => self.link.pfs_root()?.join(relative),
            Name::Plain(path) => path,
        };
        self.traced_open(Some(&path), || {
            let outside = self.link.pfs_root.get().is_some_and(|root| !is_below(&path, root));
            for _ in 0..REPLACED_MAX {
                let (descriptor, created) = lower::open(&path, &options)?;
                let truncate = options.truncate && !created && options.access.writes();
                let manner = Manner { created, truncate };
                let opened = lower::known_inode(&descriptor);
                let file = File::open(&self.link, descriptor, options, manner, outside, go_on);
                let may_be_replaced = match &file {
                    Err(error) => matches!(error.kind(), ErrorKind::Changed | ErrorKind::Lost),
                    // The node may have put another file there, and ended before it said so.
                    Ok(file) => !outside && file.as_ref().is_some_and(File::is_unbound),
                };
                if !may_be_replaced || created || !lower::leads_elsewhere(&path, opened) {
                    return file;
                }
            }
            let detail = "other files take its place again and again";
            Err(Error::new(ErrorKind::Changed, format!("opening {}", path.display()), detail))
        })
    }

    /// Opens by `open`; where somebody watches the node, that is recorded. Of files that the node
    /// could not serve nothing is.
    fn traced_open(
        &self,
        path: Option<&Path>,
        open: impl FnOnce() -> Result<Option<File>>,
    ) -> Result<Option<File>> {
        let Some(connection) = self.link.any().filter(|connection| connection.is_traced()) else {
            return open();
        };
        let root = connection.root();
        if path.zip(root).is_some_and(|(path, root)| !is_below(path, root)) {
            return open();
        }
        let path = path.map(|path| path.to_string_lossy().into_owned());
        let asked = Asked { operation: Operation::Open, handle: 0, path, range: (None, None) };
        trace::recorded(&connection, asked, open, |opened| {
            let file = opened.as_ref().filter(|file| !file.is_without_node())?;
            Some(Outcome { handle: file.handle(), ..Outcome::default() })
        })
    }

    /// Serves a file that the caller opened, by its descriptor. Options about creation are
    /// ignored.
    pub fn open_descriptor(&self, descriptor: OwnedFd, options: OpenOptions) -> Result<File> {
        let manner = Manner { created: false, truncate: false };
        let opened = self.traced_open(None, || {
            File::open(&self.link, descriptor, options, manner, false, &mut || true)
        })?;
        Ok(opened.expect("only who says no gives up"))
    }

    /// Changes names or metadata of a file on the parallel file system by `change`, and tells the
    /// node, so that what it has of the file serves on, or is let go where the last name went.
    /// `file` is the file that changes, open in any way but by path alone; without it, or without
    /// a node, this is `change` alone. What the node thinks of it changes no result.
    ///
    /// What the node has is read again unless a lease tells that no process had the file open for
    /// writing meanwhile, which takes a `file` that is open for reading alone and is the caller's.
    /// `change` must not open the file for writing: that would wait for the lease.
    pub fn changing_metadata<T>(
        &self,
        file: Option<BorrowedFd<'_>>,
        change: impl FnOnce() -> T,
    ) -> T {
        let noted = file.and_then(|file| {
            let connection = self.link.living()?;
            let request = Request::NoteVersion;
            let answer = connection.call_briefly(Brief::Note, &request, &[file], NOTE_PATIENCE);
            match answer.ok()??.reply {
                Reply::Noted { note } => Some((connection, note)),
                _ => None,
            }
        });
        let Some((connection, note)) = noted else { return change() };
        let look = || lower::version(file?).ok().map(|version| version.changed_ns);
        let lease = file.and_then(ReadLease::take);
        let (begin, before_ns) = (ChangeBegin::now(), look());
        let outcome = change();
        let times = before_ns.zip(look()).filter(|_| begin.is_recent());
        let leased = lease.as_ref().is_some_and(ReadLease::holds);
        drop(lease);
        let times = times.map(|(before_ns, after_ns)| ChangeTimes { before_ns, after_ns, leased });
        // Waited for, so that the next open finds what the node has of the file.
        let request = Request::MetadataChanged { note, times };
        let _ = connection.call_briefly(Brief::Note, &request, &[], NOTE_PATIENCE);
        outcome
    }

    /// Sends a request of the command line; fails if no node answers.
    pub fn admin(
        &self,
        request: AdminRequest,
        descriptor: Option<BorrowedFd<'_>>,
    ) -> Result<AdminReply> {
        let reply = self.admin_while(request, descriptor, &mut || true)?;
        Ok(reply.expect("only who says no gives up"))
    }

    /// As [`Client::admin`], but the wait ends with `None` when `go_on`, asked now and then, says
    /// no. The node goes on until it is done or this client and its clones are gone.
    pub fn admin_while(
        &self,
        request: AdminRequest,
        descriptor: Option<BorrowedFd<'_>>,
        go_on: &mut dyn FnMut() -> bool,
    ) -> Result<Option<AdminReply>> {
        let connection = {
            let mut attempts = self.link.attempts.lock();
            self.link.attempt(&mut attempts)?
        };
        let descriptors: Vec<BorrowedFd<'_>> = descriptor.into_iter().collect();
        let request = Request::Admin(request);
        match connection.call_while(&request, &descriptors, Some(go_on))?.map(|got| got.reply) {
            None => Ok(None),
            Some(Reply::Admin(reply)) => Ok(Some(reply)),
            Some(_) => Err(connection.unexpected("an administrative request").into()),
        }
    }

    /// Sends a message of a memory controller and waits for its answer until `timeout`; the node
    /// may carry it out all the same. The answer to an attachment comes with the control page and
    /// the heartbeat.
    pub fn govern(&self, message: Govern, timeout: Duration) -> Result<(Governed, Vec<OwnedFd>)> {
        let connection = {
            let mut attempts = self.link.attempts.lock();
            self.link.attempt(&mut attempts)?
        };
        let request = Request::Admin(AdminRequest::Govern(message));
        let answer = connection.call_within(&request, &[], &[], timeout)?;
        match answer.reply {
            Reply::Admin(AdminReply::Governed(governed)) => Ok((*governed, answer.descriptors)),
            _ => Err(connection.unexpected("a message of a controller").into()),
        }
    }

    /// A read-only descriptor of the node's control page, for somebody who only looks.
    pub fn observe(&self, timeout: Duration) -> Result<OwnedFd> {
        let (reply, mut descriptors) = self.admin_within(AdminRequest::Observe, timeout)?;
        match (reply, descriptors.pop()) {
            (AdminReply::Observed, Some(page)) => Ok(page),
            (reply, _) => Err(unexpected(&reply)),
        }
    }

    /// Leases a ceiling of a store and waits for the answer until `timeout`; the node may carry it
    /// out all the same.
    pub fn lease_ceiling(&self, message: CeilingLease, timeout: Duration) -> Result<CeilingLeased> {
        match self.admin_within(AdminRequest::LeaseCeiling(message), timeout)?.0 {
            AdminReply::CeilingLeased(leased) => Ok(leased),
            reply => Err(unexpected(&reply)),
        }
    }

    /// The control of the node's memory as operators see it.
    pub fn control_status(&self, timeout: Duration) -> Result<ControlStatus> {
        match self.admin_within(AdminRequest::ControlStatus, timeout)?.0 {
            AdminReply::Control(status) => Ok(*status),
            reply => Err(unexpected(&reply)),
        }
    }

    fn admin_within(
        &self,
        request: AdminRequest,
        timeout: Duration,
    ) -> Result<(AdminReply, Vec<OwnedFd>)> {
        let connection = {
            let mut attempts = self.link.attempts.lock();
            self.link.attempt(&mut attempts)?
        };
        let answer = connection.call_within(&Request::Admin(request), &[], &[], timeout)?;
        match answer.reply {
            Reply::Admin(reply) => Ok((reply, answer.descriptors)),
            _ => Err(connection.unexpected("an administrative request").into()),
        }
    }
}

fn unexpected(reply: &AdminReply) -> Error {
    let detail = match reply {
        AdminReply::Failed { message, .. } => message.clone(),
        _ => "it answered something else".to_owned(),
    };
    Error::new(ErrorKind::Protocol, "asking the node", detail)
        .remedy("use the same release on both sides")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use tidepool_proto::ErrorKind;

    #[test]
    fn absence_is_told_once() {
        let told = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&told);
        let directory = tempfile::tempdir().unwrap();
        let client = Client::connect(ClientOptions {
            socket: Some(directory.path().join("socket")),
            retry_interval: std::time::Duration::ZERO,
            notice: Arc::new(move |_| {
                counter.fetch_add(1, Ordering::Relaxed);
            }),
            ..ClientOptions::default()
        });
        assert!(!client.is_connected());
        let path = directory.path().join("file");
        std::fs::write(&path, b"bytes").unwrap();
        for _ in 0..3 {
            let file = client.open(&path, OpenOptions::read()).unwrap();
            let mut buffer = [0; 8];
            let outcome = file.read_at(0, &mut buffer).unwrap();
            assert_eq!((&buffer[..5], outcome.levels.pfs), (&b"bytes"[..], 5));
        }
        assert_eq!(told.load(Ordering::Relaxed), 1);
        let error = client.admin(AdminRequest::Status, None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NodeUnavailable);
    }
}
