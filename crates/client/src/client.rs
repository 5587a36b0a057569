//! [`Client`]: connects to a node, and opens files with and without one.
//!
//! Without a node everything goes to the parallel file system; the absence is reported once, and
//! the node is looked for again now and then. Only the command line needs a node that answers.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use arc_swap::ArcSwapOption;
use parking_lot::Mutex;
use tidepool_proto::admin::{AdminReply, AdminRequest};
use tidepool_proto::control::{Govern, Governed};
use tidepool_proto::trace::Operation;
use tidepool_proto::wire::{Reply, Request};
use tidepool_proto::{ChangeBegin, ChangeTimes, Error, ErrorKind, Habit, Result};

use crate::binding::Manner;
use crate::connection::{
    Brief, CONNECT_TIMEOUT, Connection, GIVING_UP_INTERVAL, GoOn, Refused, longer_silence,
};
use crate::file::File;
use crate::lease::ReadLease;
use crate::lower;
use crate::options::{ClientOptions, OpenOptions};
use crate::path::{Name, is_below};
use crate::root;
use crate::trace::{self, Asked, Outcome};

/// Time for the node to answer what is told to it of a change of metadata, before and after.
const NOTE_PATIENCE: Duration = Duration::from_millis(500);

/// A client of the node on this machine. Clones share one connection.
#[derive(Clone, Debug)]
pub struct Client {
    pub(crate) link: Arc<Link>,
}

/// The connection as it comes and goes.
#[derive(Debug)]
pub(crate) struct Link {
    pub(crate) options: ClientOptions,
    socket: Option<PathBuf>,
    root_is_stated: bool,
    /// What `tide:///` stands for, once it was asked for.
    pfs_root: OnceLock<PathBuf>,
    /// The directory of the first node that served a file of this client.
    first_root: OnceLock<PathBuf>,
    connection: ArcSwapOption<Connection>,
    attempts: Mutex<Attempts>,
    /// Whether readers go on from the heads of files.
    pub(crate) habit: Arc<Habit>,
    /// When a refused open was told of last.
    refusal_told: Mutex<Option<Instant>>,
}

/// Refused opens are told of no more often: beyond a limit of the node each open is one.
const REFUSALS_APART: Duration = Duration::from_secs(60);

#[derive(Debug, Default)]
struct Attempts {
    next: Option<Instant>,
    /// How long the node was not looked for because it was there and did not answer.
    silence: Duration,
    /// The last attempt found a node that did not answer.
    is_silent: bool,
    absence_told: bool,
    /// Why the last attempt failed.
    failed: Option<String>,
}

impl Link {
    fn new(options: ClientOptions) -> Link {
        let environment =
            |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let socket = options.socket.clone().or_else(|| environment("TIDEPOOL_SOCKET"));
        let stated_root = options.pfs_root.clone().or_else(|| environment("TIDEPOOL_PFS"));
        let pfs_root = OnceLock::new();
        if let Some(root) = stated_root.clone() {
            let _ = pfs_root.set(root);
        }
        Link {
            options,
            socket,
            root_is_stated: stated_root.is_some(),
            pfs_root,
            first_root: OnceLock::new(),
            connection: ArcSwapOption::empty(),
            attempts: Mutex::default(),
            habit: Arc::default(),
            refusal_told: Mutex::default(),
        }
    }

    /// The connection, if the node is there; looks for it where it is time to. `None` also for a
    /// node that serves another directory than this client uses.
    pub(crate) fn connection(&self) -> Option<Arc<Connection>> {
        let connection = match self.any() {
            Some(connection) => connection,
            None => {
                // Another thread connects: do not wait, the parallel file system is there.
                let mut attempts = self.attempts.try_lock()?;
                if attempts.next.is_some_and(|next| Instant::now() < next) {
                    return None;
                }
                self.attempt(&mut attempts).ok()?
            }
        };
        self.used(connection)
    }

    /// Tells that the node refused an open, which goes on without it; once in a while.
    pub(crate) fn tell_refusal(&self, error: &Error) {
        let mut told = self.refusal_told.lock();
        if told.is_some_and(|told| told.elapsed() < REFUSALS_APART) {
            return;
        }
        *told = Some(Instant::now());
        drop(told);
        (self.options.notice)(&format!(
            "opened without the node, at the speed of the parallel file system, told once a \
             minute at most: {error}"
        ));
    }

    /// A connection that files are to use, unless its node serves another directory.
    fn used(&self, connection: Arc<Connection>) -> Option<Arc<Connection>> {
        if !self.is_served_by(&connection) {
            return None;
        }
        if self.first_root.get().is_none()
            && let Some(root) = connection.root()
        {
            let _ = self.first_root.set(root.to_owned());
        }
        Some(connection)
    }

    /// The connection to whichever node is there.
    fn any(&self) -> Option<Arc<Connection>> {
        self.connection.load().as_ref().filter(|connection| connection.is_alive()).cloned()
    }

    /// The connection to a node of this client's directory.
    fn living(&self) -> Option<Arc<Connection>> {
        self.any().filter(|connection| self.is_served_by(connection))
    }

    /// Whether the node serves the directory that this client uses: the one that it was told to
    /// use, or else that of the first node. Another node may have taken the socket since.
    fn is_served_by(&self, connection: &Connection) -> bool {
        let ours = self.pfs_root.get().or_else(|| self.first_root.get());
        let (Some(ours), Some(theirs)) = (ours, connection.root()) else { return true };
        ours == theirs
            || !connection.is_elsewhere(|| {
                let is_elsewhere = !root::is_same_place(ours, theirs, self.root_is_stated);
                if is_elsewhere {
                    (self.options.notice)(&format!(
                        "going on without the node, at the speed of the parallel file system: it \
                         serves {}, and this client uses {}",
                        theirs.display(),
                        ours.display()
                    ));
                }
                is_elsewhere
            })
    }

    /// As `connection`, but waits for a node that is there and does not answer; `None` where
    /// `go_on` gave it up. Fails where no node is there, or it is of no use.
    pub(crate) fn awaited_connection(&self, go_on: GoOn<'_>) -> Result<Option<Arc<Connection>>> {
        loop {
            if let Some(connection) = self.any() {
                let elsewhere = || {
                    let detail = "the node there serves another directory";
                    Error::new(ErrorKind::NodeUnavailable, "looking for the node", detail)
                };
                return self.used(connection).map(Some).ok_or_else(elsewhere);
            }
            if let Some(mut attempts) = self.attempts.try_lock_for(GIVING_UP_INTERVAL) {
                let by = Instant::now() + self.options.request_timeout;
                match self.attempt_until(&mut attempts, by, go_on) {
                    Ok(_) => continue,
                    Err(error) if !attempts.is_silent => return Err(error),
                    Err(_) => {}
                }
            }
            if !go_on() {
                return Ok(None);
            }
        }
    }

    /// Whether a node is there and did not answer lately.
    pub(crate) fn is_silent(&self) -> bool {
        match self.any() {
            Some(connection) => connection.is_silent(),
            None => self.attempts.try_lock().is_some_and(|attempts| attempts.is_silent),
        }
    }

    fn attempt(&self, attempts: &mut Attempts) -> Result<Arc<Connection>> {
        self.attempt_until(attempts, Instant::now() + CONNECT_TIMEOUT, &mut || true)
    }

    fn attempt_until(
        &self,
        attempts: &mut Attempts,
        by: Instant,
        go_on: GoOn<'_>,
    ) -> Result<Arc<Connection>> {
        if let Some(connection) = self.any() {
            return Ok(connection);
        }
        let options = &self.options;
        let opened = match &self.socket {
            Some(path) => Connection::open(path, options, by, go_on),
            None => Err(Error::new(
                ErrorKind::NodeUnavailable,
                "looking for the node",
                "neither a socket nor TIDEPOOL_SOCKET is given",
            )
            .remedy("pass --socket, or set TIDEPOOL_SOCKET")
            .into()),
        };
        match opened {
            Ok(connection) => {
                self.keep_root(connection.root());
                self.connection.store(Some(Arc::clone(&connection)));
                if attempts.absence_told && self.is_served_by(&connection) {
                    (options.notice)("the node is back");
                }
                *attempts = Attempts::default();
                Ok(connection)
            }
            Err(Refused { error, is_silence, root }) => {
                self.keep_root(root.as_deref());
                let pause = match is_silence {
                    true => longer_silence(attempts.silence, options.retry_interval),
                    false => options.retry_interval,
                };
                attempts.silence = if is_silence { pause } else { Duration::ZERO };
                attempts.is_silent = is_silence;
                attempts.next = Some(Instant::now() + pause);
                attempts.failed = Some(error.to_string());
                if self.socket.is_some() && !attempts.absence_told {
                    attempts.absence_told = true;
                    (options.notice)(&format!(
                        "going on without a node, at the speed of the parallel file system: {error}"
                    ));
                }
                Err(error)
            }
        }
    }

    fn pfs_root(&self) -> Result<&Path> {
        if let Some(root) = self.pfs_root.get().or_else(|| self.first_root.get()) {
            return Ok(self.pfs_root.get_or_init(|| root.clone()));
        }
        match self.connection().as_deref().and_then(Connection::root) {
            Some(root) => Ok(self.pfs_root.get_or_init(|| root.to_owned())),
            None => self.pfs_root_without_node(),
        }
    }

    /// The root as a node on this socket said it last, or as the options have it for the case.
    fn pfs_root_without_node(&self) -> Result<&Path> {
        if let Some(root) = self.socket.as_deref().and_then(root::kept) {
            return Ok(self.pfs_root.get_or_init(|| root));
        }
        self.options.pfs_root_without_node.as_deref().ok_or_else(|| {
            let detail = "the directory that tide:/// stands for is not known without a node";
            let why = self.attempts.try_lock().and_then(|attempts| attempts.failed.clone());
            let detail = why.map_or(detail.to_owned(), |why| format!("{detail}: {why}"));
            Error::new(ErrorKind::InvalidInput, "reading a tide name", detail)
                .remedy("set TIDEPOOL_PFS, or start the node")
        })
    }

    fn keep_root(&self, root: Option<&Path>) {
        if let (Some(socket), Some(root)) = (&self.socket, root) {
            root::keep(socket, root);
        }
    }
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
    /// as for any request.
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
            let (descriptor, created) = lower::open(&path, &options)?;
            let truncate = options.truncate && !created && options.access.writes();
            let manner = Manner { created, truncate };
            File::open(&self.link, descriptor, options, manner, outside, go_on)
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
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn thousands_of_refused_opens_are_one_line() {
        let told = Arc::new(AtomicUsize::new(0));
        let counter = Arc::clone(&told);
        let link = Link::new(ClientOptions {
            notice: Arc::new(move |line: &str| {
                assert!(line.contains("at most 6562"), "{line}");
                counter.fetch_add(1, Ordering::Relaxed);
            }),
            ..ClientOptions::default()
        });
        let error = Error::new(ErrorKind::LimitReached, "serving a client", "at most 6562");
        (0..1_000).for_each(|_| link.tell_refusal(&error));
        assert_eq!(told.load(Ordering::Relaxed), 1);
    }

    #[test]
    fn a_node_that_does_not_greet_is_looked_for_more_and_more_seldom() {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("socket");
        let listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let retry_interval = Duration::from_secs(4);
        let notice: crate::Notice = Arc::new(|_| ());
        let options = ClientOptions { retry_interval, notice, ..ClientOptions::default() };
        let link = Link::new(ClientOptions { socket: Some(socket.clone()), ..options });
        let mut attempts = link.attempts.lock();
        let mut pauses_s = Vec::new();
        for _ in 0..5 {
            let begun = Instant::now();
            assert!(link.attempt_until(&mut attempts, begun, &mut || true).is_err());
            assert!(attempts.next.unwrap() >= begun + attempts.silence);
            pauses_s.push(attempts.silence.as_secs());
        }
        assert_eq!(pauses_s, [4, 8, 16, 30, 30]);
        drop(listener);
        assert!(link.attempt(&mut attempts).is_err());
        assert_eq!(attempts.silence, Duration::ZERO, "that nobody is there costs no wait");
    }

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
