//! One connection to a node: requests of many threads over one socket.
//!
//! Threads that wait for replies take turns at reading the socket: the one that reads hands the
//! replies of others to them. One more thread watches for the end of the node, so that readers of
//! resident bytes, which send nothing, learn of it. A connection that failed is never used again.

mod inbox;

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use tidepool_pfs::cost;
use tidepool_proto::wire::socket::{Frame, ReceiveError, peer, receive_frame, send_frame};
use tidepool_proto::wire::{
    FrameLimits, Hello, REQUEST_PAYLOAD_BYTES_MAX, Reply, Request, Verdict, Welcome, WriteSource,
    decode_timed_reply, root_of_welcome,
};
use tidepool_proto::{Error, ErrorKind};

use crate::alive::Alive;
use crate::options::ClientOptions;
use crate::trace_state::Tracing;
use crate::transfer::TransferBuffer;

use inbox::Inbox;
pub(crate) use inbox::{Brief, GIVING_UP_INTERVAL, longer_silence};

/// Time for the node to take a connection and to answer the hello.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_millis(1900);
/// Time for the node to take a request off the socket.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);
/// Time for the last message on a connection, before both sides close it.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);
/// Stack of threads that only wait.
const WAITING_STACK_BYTES: usize = 64 << 10;

/// Says whether a wait shall go on; asked now and then while it lasts, with no lock held.
pub(crate) type GoOn<'a> = &'a mut dyn FnMut() -> bool;

/// Why a request has no answer.
#[derive(Debug)]
pub(crate) enum CallError {
    /// The connection is gone; whether the node did what was asked is not known.
    Gone(Error),
    /// The node refused.
    Failed(Error),
}

impl From<CallError> for Error {
    fn from(error: CallError) -> Self {
        match error {
            CallError::Gone(error) | CallError::Failed(error) => error,
        }
    }
}

/// A reply with what came along.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) reply: Reply,
    pub(crate) payload: Vec<u8>,
    pub(crate) descriptors: Vec<OwnedFd>,
}

/// A connection to a node.
#[derive(Debug)]
pub(crate) struct Connection {
    inbox: Arc<Inbox>,
    root: Option<PathBuf>,
    is_elsewhere: OnceLock<bool>,
    /// The process that connected.
    process_id: u32,
    request_timeout: Duration,
    /// Shortest time for which a node that did not answer a brief question is not asked.
    retry_interval: Duration,
    /// Until when the node, which stands alone, is not asked where splits are.
    pub(crate) alone_until: Mutex<Option<Instant>>,
    transfer: TransferBuffer,
    tracing: Tracing,
}

/// Why there is no connection.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) error: Error,
    /// A node is there and does not answer.
    pub(crate) is_silence: bool,
    /// The directory of the parallel file system that a node serves which turned this client away.
    pub(crate) root: Option<PathBuf>,
}

impl From<Error> for Refused {
    fn from(error: Error) -> Self {
        Refused { error, is_silence: false, root: None }
    }
}

fn unreachable(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::NodeUnavailable, "talking to the node", detail)
        .remedy("start one by `tidepool node start`, or pass the right --socket")
}

/// The error of a node that is there and says nothing.
fn silent(detail: impl Into<String>) -> Error {
    unreachable(detail).remedy(
        "the process that listens there is stopped or overloaded: let it go on, or end it and \
         start a node",
    )
}

impl Connection {
    /// Connects to the node at `path`, if its user is trusted. Waits for its greeting until `by`,
    /// or until `go_on` says no.
    pub(crate) fn open(
        path: &Path,
        options: &ClientOptions,
        by: Instant,
        go_on: GoOn<'_>,
    ) -> Result<Arc<Connection>, Refused> {
        let socket = connect(path)?;
        let user_id = peer(socket.as_fd())
            .map_err(|error| unreachable("its user is not known").caused_by(error))?
            .user_id;
        let own_id = rustix::process::geteuid().as_raw();
        if user_id != 0 && user_id != own_id && Some(user_id) != options.trusted_user_id {
            let detail = format!("the node at {} is user {user_id}'s", path.display());
            return Err(Error::new(ErrorKind::PermissionDenied, "connecting to the node", detail)
                .remedy("name that user in `trusted_user_id` if its node may see your files")
                .into());
        }
        let Greeting { root, trace_page } = greet(socket.as_fd(), by, go_on)?;
        let alive = Arc::new(Alive::new().map_err(|error| {
            Error::new(ErrorKind::Unsupported, "connecting to the node", "no memory for a flag")
                .caused_by(error)
        })?);
        watch(&socket, &alive)?;
        Ok(Arc::new(Connection {
            inbox: Arc::new(Inbox::new(socket, alive)),
            root,
            is_elsewhere: OnceLock::new(),
            process_id: std::process::id(),
            request_timeout: options.request_timeout,
            retry_interval: options.retry_interval,
            alone_until: Mutex::default(),
            transfer: TransferBuffer::default(),
            tracing: Tracing::new(trace_page, options.front),
        }))
    }

    /// What is recorded of requests on this connection.
    pub(crate) fn tracing(&self) -> &Tracing {
        &self.tracing
    }

    /// Whether requests on this connection are to be recorded.
    #[inline]
    pub(crate) fn is_traced(&self) -> bool {
        self.tracing.is_on() && self.is_alive()
    }

    /// The directory of the parallel file system that the node serves, where it said so.
    pub(crate) fn root(&self) -> Option<&Path> {
        self.root.as_deref()
    }

    /// Whether the node serves another directory than its client uses, found out once by `ask`.
    pub(crate) fn is_elsewhere(&self, ask: impl FnOnce() -> bool) -> bool {
        *self.is_elsewhere.get_or_init(ask)
    }

    /// Whether the node is there, as far as is known.
    pub(crate) fn is_alive(&self) -> bool {
        self.inbox.alive.is_on()
    }

    /// Takes the connection out of use. The socket stays open until the value drops: loans keep it,
    /// and the node keeps what it lent for as long as the connection is there.
    fn end(&self) {
        self.inbox.end();
    }

    /// After a request without an answer: waits until the node works on no request of this
    /// connection any more, so that none is carried out later. False if that is not known in time.
    ///
    /// The node closes a connection when its last request has ended, and the kernel does when the
    /// node's process is gone with all its threads.
    pub(crate) fn wait_for_end(&self) -> bool {
        self.end();
        let deadline = Instant::now() + self.request_timeout;
        if let Some(mut whole) = self.inbox.sending.try_lock_until(deadline) {
            // Otherwise the node ends a connection with half a message by itself.
            if std::mem::take(&mut *whole) {
                let finish = Request::Finish.encode(Vec::new()).unwrap_or_default();
                let socket = self.inbox.socket.as_fd();
                let _ = send_frame(socket, 0, &finish, &[], &[], FINISH_TIMEOUT);
            }
        }
        self.inbox.await_end(deadline)
    }

    /// Sends a request and waits for its answer. A `Failed` reply comes as an error.
    pub(crate) fn call(
        &self,
        request: &Request,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> Result<Answer, CallError> {
        self.call_within(request, payload, descriptors, self.request_timeout)
    }

    /// As `call`, with a time limit of its own.
    pub(crate) fn call_within(
        &self,
        request: &Request,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<Answer, CallError> {
        let deadline = Instant::now() + timeout;
        let answer = self.exchange(request, payload, descriptors, deadline, None)?;
        // Never without an answer: the wait is not given up.
        answer.ok_or_else(|| CallError::Gone(timed_out()))
    }

    /// As `call`, for a request without payload; `None` where `go_on`, if there is one, gave it up.
    /// The connection goes on for all threads, also for the one that gave up.
    pub(crate) fn call_while(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        go_on: Option<GoOn<'_>>,
    ) -> Result<Option<Answer>, CallError> {
        self.exchange(request, &[], descriptors, Instant::now() + self.request_timeout, go_on)
    }

    /// As `call`, without payload, but waits `patience` at most: `None` where the node did not
    /// answer by then, or did not lately. It may still do what it was asked; a file that it opens
    /// then is closed again. The connection goes on.
    pub(crate) fn call_briefly(
        &self,
        kind: Brief,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        patience: Duration,
    ) -> Result<Option<Answer>, CallError> {
        if self.inbox.is_silent(kind) {
            return Ok(None);
        }
        let deadline = Instant::now() + self.request_timeout;
        let patience = Instant::now() + patience;
        let mut go_on = || Instant::now() < patience;
        let answer = self.exchange(request, &[], descriptors, deadline, Some(&mut go_on))?;
        if answer.is_none() {
            self.inbox.note_silence(kind, self.retry_interval);
        }
        Ok(answer)
    }

    /// As `call_briefly`, until `go_on` says no, whether the node answered lately or not.
    pub(crate) fn call_until(
        &self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
        go_on: GoOn<'_>,
    ) -> Result<Option<Answer>, CallError> {
        // It is up to `go_on`: a wait that ends otherwise ends the connection.
        let deadline = Instant::now() + 2 * self.request_timeout + CONNECT_TIMEOUT;
        self.exchange(request, &[], descriptors, deadline, Some(go_on))
    }

    /// Whether the node answers before `go_on` says no, asked for nothing.
    pub(crate) fn answers_while(&self, go_on: GoOn<'_>) -> bool {
        let nothing = Request::Facts { handle: u64::MAX };
        let answer = self.call_until(&nothing, &[], go_on);
        matches!(answer, Ok(Some(_)) | Err(CallError::Failed(_)))
    }

    /// Whether the node answers within `patience`, asked for nothing.
    pub(crate) fn answers(&self, patience: Duration) -> bool {
        let nothing = Request::Facts { handle: u64::MAX };
        let answer = self.call_briefly(Brief::Open, &nothing, &[], patience);
        matches!(answer, Ok(Some(_)) | Err(CallError::Failed(_)))
    }

    /// Whether the node did not answer an open lately, and said nothing since.
    pub(crate) fn is_silent(&self) -> bool {
        self.inbox.is_silent(Brief::Open)
    }

    /// Whether the node did not say lately where splits are, and said nothing since.
    pub(crate) fn is_silent_on_splits(&self) -> bool {
        self.inbox.is_silent(Brief::Locate)
    }

    fn exchange(
        &self,
        request: &Request,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
        deadline: Instant,
        mut go_on: Option<GoOn<'_>>,
    ) -> Result<Option<Answer>, CallError> {
        self.inbox.close_strays();
        let request_id = self.inbox.expect();
        let message = (request, payload, descriptors);
        let until = go_on.as_mut().map(|go_on| &mut **go_on as GoOn<'_>);
        let received = match self.inbox.send_while(request_id, message, SEND_TIMEOUT, until) {
            Ok(true) => self.inbox.await_reply(request_id, deadline, go_on),
            Ok(false) => {
                self.inbox.expect_no_more(request_id);
                return Ok(None);
            }
            Err(error) => Err(error),
        };
        let frame = match received {
            Ok(Some(frame)) => frame,
            Ok(None) => {
                Inbox::clear(&self.inbox);
                return Ok(None);
            }
            Err(error) => {
                self.inbox.expect_no_more(request_id);
                self.end();
                if request.changes_bytes() {
                    // The node must not carry it out later, over what others wrote by then.
                    let _ = rustix::net::shutdown(&self.inbox.socket, Shutdown::Write);
                }
                return Err(CallError::Gone(error));
            }
        };
        let short = frame.descriptors.len() < frame.descriptors_announced;
        let decoded = decode_timed_reply(&frame.body).map(|(reply, pfs_us)| {
            cost::waited(Duration::from_micros(pfs_us));
            reply
        });
        match decoded {
            Ok(Reply::Failed(failure)) => Err(CallError::Failed(failure.into())),
            Ok(reply) if short => {
                self.inbox.decline(&reply);
                let detail = "this process may not open more files";
                let error = Error::new(ErrorKind::LimitReached, "taking descriptors", detail);
                Err(CallError::Failed(error.remedy("raise the limit with `ulimit -n`")))
            }
            Ok(reply) => {
                let Frame { payload, descriptors, .. } = frame;
                Ok(Some(Answer { reply, payload, descriptors }))
            }
            Err(malformed) => {
                self.end();
                let error = Error::new(ErrorKind::Protocol, "reading a reply", malformed.0);
                Err(CallError::Gone(error))
            }
        }
    }

    /// Sends a request that has no answer, if the socket takes it within `timeout`; whether it
    /// did. Without a time it does not wait: where another thread sends, it is dropped.
    pub(crate) fn tell(&self, request: &Request, timeout: Duration) -> bool {
        self.inbox.tell(request, timeout)
    }

    /// Has the node close a file that is not used any more: now, or else with what is sent next.
    pub(crate) fn close(&self, handle: u64, mapped_bytes: u64, timeout: Duration) {
        let message = Request::Close { handle, mapped_bytes };
        if !self.inbox.tell(&message, timeout) && self.is_alive() {
            self.inbox.stray(message);
        }
    }

    /// Writes `data`, at most `TRANSFER_WRITE_BYTES_MAX` bytes of it, at `offset` of an open file.
    pub(crate) fn write(
        &self,
        handle: u64,
        offset: u64,
        data: &[u8],
    ) -> Result<(u64, usize), CallError> {
        let (answer, bytes) = if data.len() <= REQUEST_PAYLOAD_BYTES_MAX as usize {
            let source = WriteSource::Payload;
            (self.call(&Request::Write { handle, offset, source }, data, &[])?, data.len())
        } else {
            let register = |memory: BorrowedFd<'_>| {
                self.call(&Request::RegisterBuffer, &[], &[memory]).is_ok()
            };
            match self.transfer.take(register) {
                Some(slot) => {
                    let (source, bytes) = slot.fill(data).map_err(CallError::Failed)?;
                    let request = Request::Write { handle, offset, source };
                    let answer = self.call(&request, &[], &[]);
                    if matches!(answer, Err(CallError::Gone(_))) {
                        // The node may still read it.
                        slot.forfeit();
                    }
                    (answer?, bytes)
                }
                // No memory for a buffer, or the node does not take it: small steps still work.
                None => {
                    let bytes = REQUEST_PAYLOAD_BYTES_MAX as usize;
                    let source = WriteSource::Payload;
                    let request = Request::Write { handle, offset, source };
                    (self.call(&request, &data[..bytes], &[])?, bytes)
                }
            }
        };
        match answer.reply {
            Reply::Written { offset } => Ok((offset, bytes)),
            _ => Err(self.unexpected("a write")),
        }
    }

    /// An answer that does not belong to its request: the connection is of no further use.
    pub(crate) fn unexpected(&self, what: &str) -> CallError {
        self.end();
        let detail = format!("the answer to {what} is of another kind");
        CallError::Gone(Error::new(ErrorKind::Protocol, "talking to the node", detail))
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        self.tell(&Request::Bye, Duration::ZERO);
        self.end();
        // A forked child must leave the socket to its parent.
        if std::process::id() == self.process_id {
            let _ = rustix::net::shutdown(&self.inbox.socket, Shutdown::Both);
        }
    }
}

fn timed_out() -> Error {
    Error::new(ErrorKind::TimedOut, "waiting for the node", "it did not answer in time")
        .remedy("look at `tidepool status`, and at the parallel file system")
}

/// A socket that the node at `path` takes, or will take when it goes on.
fn connect(path: &Path) -> Result<OwnedFd, Refused> {
    let failed = |errno: Errno| {
        let nobody = [Errno::NOENT, Errno::CONNREFUSED];
        if nobody.contains(&errno) {
            return unreachable(format!("no node is running at {}", path.display())).into();
        }
        let error = silent(format!("no node answers at {}", path.display())).caused_by(errno);
        Refused { is_silence: errno == Errno::WOULDBLOCK, ..error.into() }
    };
    let flags = SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
        .map_err(failed)?;
    // Bounds the wait at a socket whose node does not accept.
    set_socket_timeout(&socket, Timeout::Send, Some(CONNECT_TIMEOUT)).map_err(failed)?;
    let address = SocketAddrUnix::new(path).map_err(failed)?;
    rustix::net::connect(&socket, &address).map_err(failed)?;
    Ok(socket)
}

/// What a node says as it takes a client.
struct Greeting {
    /// The directory of the parallel file system that it serves, where it says so.
    root: Option<PathBuf>,
    /// The page that says whether anybody watches requests.
    trace_page: Option<OwnedFd>,
}

/// Exchanges hellos.
fn greet(socket: BorrowedFd<'_>, by: Instant, go_on: GoOn<'_>) -> Result<Greeting, Refused> {
    let operation = "greeting the node";
    // A node that turns clients away says so without waiting for the hello.
    let sent = send_frame(socket, 0, &Hello::OURS.encode(), &[], &[], CONNECT_TIMEOUT);
    let unanswered = |error: ReceiveError| {
        let is_silence = matches!(error, ReceiveError::TimedOut);
        let words = error.to_string();
        let error = if is_silence { silent(words) } else { unreachable(words) };
        Refused { is_silence, ..error.into() }
    };
    while !inbox::is_readable(socket, Some(by.min(Instant::now() + GIVING_UP_INTERVAL)))
        .map_err(unanswered)?
    {
        if Instant::now() >= by || !go_on() {
            return Err(unanswered(ReceiveError::TimedOut));
        }
    }
    let end_by = Instant::now() + CONNECT_TIMEOUT;
    let mut frame = receive_frame(socket, FrameLimits::REPLY, Some(end_by), CONNECT_TIMEOUT)
        .map_err(unanswered)?;
    let welcome = Welcome::decode(&frame.body)
        .map_err(|malformed| Error::new(ErrorKind::Protocol, operation, malformed.0))?;
    let root = root_of_welcome(&frame.payload);
    let error = match welcome.verdict {
        Verdict::Accepted => match sent {
            Ok(()) => return Ok(Greeting { root, trace_page: frame.descriptors.pop() }),
            Err(error) => unreachable("it hung up").caused_by(error),
        },
        Verdict::OtherVersion => {
            let detail = format!(
                "the node speaks version {}.{}, this library {}.{}",
                welcome.protocol,
                welcome.table_layout,
                Hello::OURS.protocol,
                Hello::OURS.table_layout
            );
            Error::new(ErrorKind::Protocol, operation, detail)
                .remedy("use the same release on both sides")
        }
        Verdict::LimitReached => {
            Error::new(ErrorKind::LimitReached, operation, "it has too many connections")
                .remedy("end clients of this user that are not needed")
        }
        Verdict::Stopping => unreachable("the node is stopping"),
    };
    Err(Refused { root, ..error.into() })
}

/// Puts `alive` out when the node closes the connection or dies.
fn watch(socket: &OwnedFd, alive: &Arc<Alive>) -> Result<(), Error> {
    let failed = |error: io::Error| {
        Error::new(ErrorKind::Unsupported, "connecting to the node", "no thread to watch it")
            .caused_by(error)
    };
    let socket = socket.try_clone().map_err(failed)?;
    let alive = Arc::clone(alive);
    let builder = std::thread::Builder::new().name("tidepool-watch".to_owned());
    let watcher = move || {
        // No events are asked for: only the end of the connection is reported.
        let mut watched = [PollFd::new(&socket, PollFlags::empty())];
        while let Ok(0) | Err(Errno::INTR) = poll(&mut watched, None) {}
        alive.put_out();
    };
    builder.stack_size(WAITING_STACK_BYTES).spawn(watcher).map(drop).map_err(failed)
}
