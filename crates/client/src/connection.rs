//! One connection to a node: requests of many threads over one socket.
//!
//! Threads that wait for replies take turns at reading the socket: whoever reads hands replies of
//! others to them. A thread of its own only watches for the node's end, so that readers of
//! resident bytes, who send nothing, hear of it. A connection that failed is never used again.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use tidepool_proto::wire::socket::{Frame, peer, receive_frame, send_frame};
use tidepool_proto::wire::{
    FrameLimits, Hello, REQUEST_PAYLOAD_BYTES_MAX, Reply, Request, Verdict, Welcome, WriteSource,
    decode_reply,
};
use tidepool_proto::{Error, ErrorKind};

use crate::alive::Alive;
use crate::transfer::TransferBuffer;

/// Time for the node to take a connection and to answer the hello.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Time for the node to take a request off the socket.
const SEND_TIMEOUT: Duration = Duration::from_secs(60);

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

#[derive(Debug, Default)]
struct Replies {
    /// A thread reads the socket.
    reading: bool,
    /// Requests under way, with their replies once they came.
    awaited: HashMap<u64, Option<Frame>>,
}

/// A connection to a node.
#[derive(Debug)]
pub(crate) struct Connection {
    socket: OwnedFd,
    alive: Arc<Alive>,
    /// The process that connected.
    process_id: u32,
    sending: Mutex<()>,
    replies: Mutex<Replies>,
    arrived: Condvar,
    requests_sent: AtomicU64,
    request_timeout: Duration,
    transfer: TransferBuffer,
}

fn unreachable(detail: impl Into<String>) -> Error {
    Error::new(ErrorKind::NodeUnavailable, "talking to the node", detail)
        .remedy("start one (`tidepool node start`), or pass the right --socket")
}

impl Connection {
    /// Connects to the node at `path`, if its user is trusted.
    pub(crate) fn open(
        path: &Path,
        trusted_user_id: Option<u32>,
        request_timeout: Duration,
    ) -> Result<Arc<Connection>, Error> {
        let failed = |error: rustix::io::Errno| {
            unreachable(format!("no node answers at {}", path.display())).caused_by(error)
        };
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)
            .map_err(failed)?;
        // Bounds the wait at a socket whose node does not accept.
        set_socket_timeout(&socket, Timeout::Send, Some(CONNECT_TIMEOUT)).map_err(failed)?;
        let address = SocketAddrUnix::new(path).map_err(failed)?;
        rustix::net::connect(&socket, &address).map_err(failed)?;
        let user_id = peer(socket.as_fd())
            .map_err(|error| unreachable("its user is not known").caused_by(error))?
            .user_id;
        let own_id = rustix::process::geteuid().as_raw();
        if user_id != 0 && user_id != own_id && Some(user_id) != trusted_user_id {
            let detail = format!("the node at {} is user {user_id}'s", path.display());
            return Err(Error::new(ErrorKind::PermissionDenied, "connecting to the node", detail)
                .remedy("name that user in `trusted_user_id` if its node may see your files"));
        }
        greet(socket.as_fd())?;
        let alive = Arc::new(Alive::new().map_err(|error| {
            Error::new(ErrorKind::Unsupported, "connecting to the node", "no memory for a flag")
                .caused_by(error)
        })?);
        watch(&socket, &alive)?;
        Ok(Arc::new(Connection {
            socket,
            alive,
            process_id: std::process::id(),
            sending: Mutex::new(()),
            replies: Mutex::default(),
            arrived: Condvar::new(),
            requests_sent: AtomicU64::new(0),
            request_timeout,
            transfer: TransferBuffer::default(),
        }))
    }

    /// Whether the node is there, as far as is known.
    pub(crate) fn is_alive(&self) -> bool {
        self.alive.is_on()
    }

    /// Takes the connection out of use. The socket stays open until the value drops: loans keep it,
    /// and the node keeps what it lent for as long as the connection is there.
    fn end(&self) {
        self.alive.put_out();
        let _replies = self.replies.lock();
        self.arrived.notify_all();
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
        let request_id = self.requests_sent.fetch_add(1, Ordering::Relaxed) + 1;
        self.replies.lock().awaited.insert(request_id, None);
        let sent = self.send(request_id, request, payload, descriptors, SEND_TIMEOUT);
        let received = sent.and_then(|()| self.await_reply(request_id, deadline));
        let frame = match received {
            Ok(frame) => frame,
            Err(error) => {
                self.replies.lock().awaited.remove(&request_id);
                self.end();
                return Err(CallError::Gone(error));
            }
        };
        let short = frame.descriptors.len() < frame.descriptors_announced;
        match decode_reply(&frame.body) {
            Ok(Reply::Failed(failure)) => Err(CallError::Failed(failure.into())),
            Ok(_) if short => {
                let detail = "this process may not open more files";
                let error = Error::new(ErrorKind::LimitReached, "taking descriptors", detail);
                Err(CallError::Failed(error.remedy("raise the limit with `ulimit -n`")))
            }
            Ok(reply) => {
                Ok(Answer { reply, payload: frame.payload, descriptors: frame.descriptors })
            }
            Err(malformed) => {
                self.end();
                let error = Error::new(ErrorKind::Protocol, "reading a reply", malformed.0);
                Err(CallError::Gone(error))
            }
        }
    }

    /// Sends a request that has no answer, if the socket takes it at once or within `timeout`.
    pub(crate) fn tell(&self, request: &Request, timeout: Duration) {
        let request_id = self.requests_sent.fetch_add(1, Ordering::Relaxed) + 1;
        let _ = self.send(request_id, request, &[], &[], timeout);
    }

    fn send(
        &self,
        request_id: u64,
        request: &Request,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<(), Error> {
        let body = request
            .encode(Vec::new())
            .map_err(|m| Error::new(ErrorKind::Internal, "encoding a request", m.0))?;
        let _sending = self.sending.lock();
        if !self.alive.is_on() {
            return Err(unreachable("the connection was lost"));
        }
        send_frame(self.socket.as_fd(), request_id, &body, payload, descriptors, timeout)
            .map_err(|error| unreachable("the connection was lost").caused_by(error))
    }

    fn await_reply(&self, request_id: u64, deadline: Instant) -> Result<Frame, Error> {
        let mut replies = self.replies.lock();
        loop {
            if let Some(Some(_)) = replies.awaited.get(&request_id)
                && let Some(Some(frame)) = replies.awaited.remove(&request_id)
            {
                return Ok(frame);
            }
            if !self.alive.is_on() {
                return Err(unreachable("the connection was lost"));
            }
            if replies.reading {
                if self.arrived.wait_until(&mut replies, deadline).timed_out() {
                    return Err(timed_out());
                }
                continue;
            }
            replies.reading = true;
            drop(replies);
            let left = deadline.saturating_duration_since(Instant::now());
            let received =
                receive_frame(self.socket.as_fd(), FrameLimits::REPLY, Some(deadline), left);
            replies = self.replies.lock();
            replies.reading = false;
            self.arrived.notify_all();
            let frame = received.map_err(|error| {
                use tidepool_proto::wire::socket::ReceiveError;
                match error {
                    ReceiveError::TimedOut => timed_out(),
                    ReceiveError::Failed(error) => {
                        unreachable("the connection was lost").caused_by(error)
                    }
                    other => unreachable(other.to_string()),
                }
            })?;
            if let Some(slot) = replies.awaited.get_mut(&frame.request_id) {
                *slot = Some(frame);
            }
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
            match self.transfer.take(self) {
                Some(slot) => {
                    let (source, bytes) = slot.fill(data).map_err(CallError::Failed)?;
                    (self.call(&Request::Write { handle, offset, source }, &[], &[])?, bytes)
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
            let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
        }
    }
}

fn timed_out() -> Error {
    Error::new(ErrorKind::TimedOut, "waiting for the node", "it did not answer in time")
        .remedy("look at `tidepool status`, and at the parallel file system")
}

fn greet(socket: BorrowedFd<'_>) -> Result<(), Error> {
    let operation = "greeting the node";
    // A node that turns clients away says so without waiting for the hello.
    let sent = send_frame(socket, 0, &Hello::OURS.encode(), &[], &[], CONNECT_TIMEOUT);
    let by = Instant::now() + CONNECT_TIMEOUT;
    let frame = receive_frame(socket, FrameLimits::REPLY, Some(by), CONNECT_TIMEOUT)
        .map_err(|error| unreachable(error.to_string()))?;
    let welcome = Welcome::decode(&frame.body)
        .map_err(|malformed| Error::new(ErrorKind::Protocol, operation, malformed.0))?;
    match welcome.verdict {
        Verdict::Accepted => sent.map_err(|error| unreachable("it hung up").caused_by(error)),
        Verdict::OtherVersion => {
            let detail = format!(
                "the node speaks version {}.{}, this library {}.{}",
                welcome.protocol,
                welcome.table_layout,
                Hello::OURS.protocol,
                Hello::OURS.table_layout
            );
            Err(Error::new(ErrorKind::Protocol, operation, detail)
                .remedy("use the same release on both sides"))
        }
        Verdict::LimitReached => {
            Err(Error::new(ErrorKind::LimitReached, operation, "it has too many connections"))
        }
        Verdict::Stopping => Err(unreachable("the node is stopping")),
    }
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
        while let Ok(0) | Err(rustix::io::Errno::INTR) = poll(&mut watched, None) {}
        alive.put_out();
    };
    builder.stack_size(64 << 10).spawn(watcher).map(drop).map_err(failed)
}
