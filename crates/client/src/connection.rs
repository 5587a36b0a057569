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

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, Shutdown, SocketAddrUnix, SocketFlags, SocketType};
use tidepool_proto::wire::socket::{Frame, ReceiveError, peer, receive_frame, send_frame};
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
/// Time for the last message on a connection, before both sides close it.
const FINISH_TIMEOUT: Duration = Duration::from_secs(1);
/// Time from the first to the last byte of a reply that nobody waits for.
const CLEARING_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a wait that may be given up asks whether it shall go on.
const GIVING_UP_INTERVAL: Duration = Duration::from_millis(50);
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

/// A request under way.
#[derive(Debug)]
enum Awaited {
    /// Somebody waits for its reply.
    Coming,
    /// The reply, for whom it was meant.
    Here(Frame),
    /// Nobody waits any more; the reply is thrown away.
    GivenUp,
}

#[derive(Debug, Default)]
struct Replies {
    /// A thread reads the socket.
    reading: bool,
    /// A thread takes replies off the socket that nobody waits for.
    clearing: bool,
    /// The node has closed the connection: it works on no request of it any more.
    ended: bool,
    awaited: HashMap<u64, Awaited>,
}

impl Replies {
    fn has_given_up(&self) -> bool {
        self.awaited.values().any(|awaited| matches!(awaited, Awaited::GivenUp))
    }
}

/// Where the replies of a connection come in.
#[derive(Debug)]
struct Inbox {
    socket: OwnedFd,
    alive: Arc<Alive>,
    replies: Mutex<Replies>,
    arrived: Condvar,
}

/// A connection to a node.
#[derive(Debug)]
pub(crate) struct Connection {
    inbox: Arc<Inbox>,
    /// The process that connected.
    process_id: u32,
    /// Whoever holds it sends; false where the last message was not sent whole, so that no other
    /// may follow.
    sending: Mutex<bool>,
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
        let (replies, arrived) = (Mutex::default(), Condvar::new());
        Ok(Arc::new(Connection {
            inbox: Arc::new(Inbox { socket, alive, replies, arrived }),
            process_id: std::process::id(),
            sending: Mutex::new(true),
            requests_sent: AtomicU64::new(0),
            request_timeout,
            transfer: TransferBuffer::default(),
        }))
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
        if let Some(mut whole) = self.sending.try_lock_until(deadline) {
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
        // Never without an answer: only who was asked whether to go on gives up.
        answer.ok_or_else(|| CallError::Gone(timed_out()))
    }

    /// As `call`, for a request without payload; `None` where `go_on`, if there is one, gave it up.
    /// The connection goes on for others, and for whoever gave up.
    pub(crate) fn call_while(
        &self,
        request: &Request,
        go_on: Option<GoOn<'_>>,
    ) -> Result<Option<Answer>, CallError> {
        self.exchange(request, &[], &[], Instant::now() + self.request_timeout, go_on)
    }

    fn exchange(
        &self,
        request: &Request,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
        deadline: Instant,
        go_on: Option<GoOn<'_>>,
    ) -> Result<Option<Answer>, CallError> {
        let request_id = self.requests_sent.fetch_add(1, Ordering::Relaxed) + 1;
        self.inbox.replies.lock().awaited.insert(request_id, Awaited::Coming);
        let sent = self.send(request_id, request, payload, descriptors, SEND_TIMEOUT);
        let received = sent.and_then(|()| self.inbox.await_reply(request_id, deadline, go_on));
        let frame = match received {
            Ok(Some(frame)) => frame,
            Ok(None) => {
                Inbox::clear(&self.inbox);
                return Ok(None);
            }
            Err(error) => {
                self.inbox.replies.lock().awaited.remove(&request_id);
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
        let mut whole = self.sending.lock();
        if !self.is_alive() || !*whole {
            return Err(unreachable("the connection was lost"));
        }
        send_frame(self.inbox.socket.as_fd(), request_id, &body, payload, descriptors, timeout)
            .inspect_err(|_| *whole = false)
            .map_err(|error| unreachable("the connection was lost").caused_by(error))
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

impl Inbox {
    fn end(&self) {
        self.alive.put_out();
        let _replies = self.replies.lock();
        self.arrived.notify_all();
    }

    /// Waits for the reply to a request; `None` where `go_on` gave it up.
    fn await_reply(
        &self,
        request_id: u64,
        deadline: Instant,
        mut go_on: Option<GoOn<'_>>,
    ) -> Result<Option<Frame>, Error> {
        let mut replies = self.replies.lock();
        loop {
            if let Some(Awaited::Here(_)) = replies.awaited.get(&request_id)
                && let Some(Awaited::Here(frame)) = replies.awaited.remove(&request_id)
            {
                return Ok(Some(frame));
            }
            if !self.alive.is_on() {
                return Err(unreachable("the connection was lost"));
            }
            if Instant::now() >= deadline {
                return Err(timed_out());
            }
            // Whoever may give up looks up in between.
            let upto = match &go_on {
                Some(_) => deadline.min(Instant::now() + GIVING_UP_INTERVAL),
                None => deadline,
            };
            let waited = if replies.reading {
                self.arrived.wait_until(&mut replies, upto).timed_out()
            } else {
                !self.read_one(&mut replies, Some((upto, deadline)))?
            };
            if waited
                && let Some(go_on) = &mut go_on
                && !MutexGuard::unlocked(&mut replies, go_on)
                && !matches!(replies.awaited.get(&request_id), Some(Awaited::Here(_)))
            {
                replies.awaited.insert(request_id, Awaited::GivenUp);
                return Ok(None);
            }
        }
    }

    /// Reads a frame off the socket, with the lock given up meanwhile, and puts it where it
    /// belongs; false if none came. `within` is when it must have begun, and when it must have
    /// ended; without it, it may begin at any time.
    fn read_one(
        &self,
        replies: &mut MutexGuard<'_, Replies>,
        within: Option<(Instant, Instant)>,
    ) -> Result<bool, Error> {
        replies.reading = true;
        let received = MutexGuard::unlocked(replies, || {
            if !is_readable(self.socket.as_fd(), within.map(|(begin_by, _)| begin_by))? {
                return Ok(None);
            }
            let now = Instant::now();
            let end_by = within.map_or(now + CLEARING_TIMEOUT, |(_, end_by)| end_by);
            let left = end_by.saturating_duration_since(now);
            receive_frame(self.socket.as_fd(), FrameLimits::REPLY, Some(end_by), left).map(Some)
        });
        replies.reading = false;
        self.arrived.notify_all();
        let received = received.map_err(|error| match error {
            ReceiveError::TimedOut => timed_out(),
            ReceiveError::Failed(error) => unreachable("the connection was lost").caused_by(error),
            other => unreachable(other.to_string()),
        })?;
        let Some(frame) = received else { return Ok(false) };
        match replies.awaited.get_mut(&frame.request_id) {
            Some(Awaited::GivenUp) => {
                replies.awaited.remove(&frame.request_id);
            }
            Some(slot) => *slot = Awaited::Here(frame),
            None => {}
        }
        Ok(true)
    }

    /// Waits until the node has closed the connection, throwing away what comes before; false if
    /// it does not in time.
    fn await_end(&self, deadline: Instant) -> bool {
        let mut replies = self.replies.lock();
        loop {
            if replies.ended {
                return true;
            }
            if Instant::now() >= deadline {
                return false;
            }
            if replies.reading {
                self.arrived.wait_until(&mut replies, deadline);
                continue;
            }
            replies.reading = true;
            let ended = MutexGuard::unlocked(&mut replies, || self.skip(deadline));
            replies.reading = false;
            replies.ended |= ended;
            self.arrived.notify_all();
        }
    }

    /// Throws away what the socket has, waiting for it; whether it has ended.
    fn skip(&self, deadline: Instant) -> bool {
        if !is_readable(self.socket.as_fd(), Some(deadline)).unwrap_or(false) {
            return false;
        }
        let mut bytes = [0; 4096];
        match rustix::io::read(&self.socket, &mut bytes) {
            Ok(count) => count == 0,
            Err(rustix::io::Errno::INTR) => false,
            // The node closed it with bytes of ours unread.
            Err(_) => true,
        }
    }

    /// Sees to it that replies that nobody waits for are taken: the node would end a connection
    /// that leaves them. Needs no thread as long as others wait for theirs, but they may not.
    fn clear(inbox: &Arc<Inbox>) {
        let mut replies = inbox.replies.lock();
        if replies.clearing || !replies.has_given_up() {
            return;
        }
        replies.clearing = true;
        drop(replies);
        let this = Arc::clone(inbox);
        let builder = std::thread::Builder::new().name("tidepool-clear".to_owned());
        let started = builder.stack_size(WAITING_STACK_BYTES).spawn(move || this.take_given_up());
        if started.is_err() {
            inbox.replies.lock().clearing = false;
        }
    }

    /// Ends with the connection, or when everything that was given up has come.
    fn take_given_up(&self) {
        let mut replies = self.replies.lock();
        while self.alive.is_on() && replies.has_given_up() {
            if replies.reading {
                self.arrived.wait(&mut replies);
                continue;
            }
            if self.read_one(&mut replies, None).is_err() {
                drop(replies);
                self.end();
                return;
            }
        }
        replies.clearing = false;
    }
}

/// Waits until the socket has bytes or has ended; false if neither happened in time.
fn is_readable(socket: BorrowedFd<'_>, by: Option<Instant>) -> Result<bool, ReceiveError> {
    loop {
        let left = by.map(|by| by.saturating_duration_since(Instant::now()));
        let timeout = left.map(|left| Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        match poll(&mut [PollFd::from_borrowed_fd(socket, PollFlags::IN)], timeout.as_ref()) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(ReceiveError::Failed(error.into())),
        }
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
    builder.stack_size(WAITING_STACK_BYTES).spawn(watcher).map(drop).map_err(failed)
}
