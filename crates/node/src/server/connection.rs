//! One client's connection: hello, then requests, until either side ends it.
//!
//! A connection has one thread that waits for the next request. Where a request may take long, a
//! further thread takes over the waiting (up to a limit), so that requests of several threads of a
//! client proceed side by side without a queue or a hand-over. What is wrong with a connection
//! ends that connection, and is logged once.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, poll};
use tidepool_pfs::asked::{self, Asker};
use tidepool_proto::wire::socket::{Frame, Peer, ReceiveError, receive_frame, send_frame};
use tidepool_proto::wire::{
    FrameLimits, Hello, Malformed, REPLY_BODY_BYTES_MAX, Reply, Request, Verdict, Welcome,
    WriteSource, decode_request,
};
use tidepool_proto::{Error, ErrorKind};

use super::limits::{ClientQuotas, STACK_BYTES, Ticket};
use super::linger::{AT_ONCE, Lingering, Whereabouts};
use super::session::{Answer, Session};

/// Threads that may stand by for the next request: one waits for it, one takes over from that one.
const WAITING_MAX: usize = 2;
/// Buffers that are kept for further writes; each is as long as the longest write.
/// Requests that wait for other nodes and do not count as in flight.
const AWAY_MAX: usize = 64;
const SCRATCH_BUFFERS_MAX: usize = 16;

/// What all connections of a server share.
pub(super) struct Shared {
    pub(super) quotas: Arc<ClientQuotas>,
    pub(super) stopping: Arc<AtomicBool>,
    lingering: Arc<Lingering>,
    /// The directory of the parallel file system, which each client is told.
    root: PathBuf,
    open: Mutex<HashMap<u64, Arc<Connection>>>,
    all_ended: Condvar,
    scratch: Mutex<Vec<Vec<u8>>>,
    threads: AtomicUsize,
    complaints: Complaints,
}

impl Shared {
    pub(super) fn new(quotas: Arc<ClientQuotas>, root: PathBuf) -> Arc<Shared> {
        let stopping = Arc::new(AtomicBool::new(false));
        Arc::new(Shared {
            quotas,
            lingering: Lingering::new(&stopping),
            stopping,
            root,
            open: Mutex::default(),
            all_ended: Condvar::new(),
            scratch: Mutex::default(),
            threads: AtomicUsize::new(0),
            complaints: Complaints::default(),
        })
    }

    /// Tells a client the verdict on its hello, and which directory this node serves. Whom it takes
    /// gets the page that says whether anybody watches.
    pub(super) fn welcome(
        &self,
        socket: BorrowedFd<'_>,
        verdict: Verdict,
        page: Option<OwnedFd>,
        timeout: Duration,
    ) -> io::Result<()> {
        let welcome = Welcome {
            protocol: tidepool_proto::wire::PROTOCOL_VERSION,
            table_layout: tidepool_proto::wire::TABLE_LAYOUT_VERSION,
            verdict,
            process_id: std::process::id(),
        };
        let root = self.root.as_os_str().as_bytes();
        let page: Vec<BorrowedFd<'_>> = page.iter().map(AsFd::as_fd).collect();
        send_frame(socket, 0, &welcome.encode(), root, &page, timeout)
    }

    /// Ends all connections; returns when no request is worked on any more. A request that waits
    /// for a file system that does not answer is left behind after a time: it ends with the
    /// process, and its client hears nothing before.
    pub(super) fn end_all(&self) {
        let deadline = Instant::now() + self.quotas.limits().stop_timeout;
        let mut open = self.open.lock();
        for connection in open.values() {
            connection.take_no_more();
        }
        while !open.is_empty() {
            if self.all_ended.wait_until(&mut open, deadline).timed_out() {
                let connections = open.len();
                tracing::warn!(connections, "stopping with requests that do not end");
                break;
            }
        }
        drop(open);
        self.lingering.leave();
    }
}

/// Keeps a flood of bad clients from becoming a flood of log lines: one line a second.
#[derive(Default)]
struct Complaints(Mutex<(Option<Instant>, u64)>);

impl Complaints {
    fn log(&self, user_id: u32, process_id: Option<u32>, reason: &str) {
        let mut state = self.0.lock();
        let now = Instant::now();
        if state.0.is_some_and(|last| now.duration_since(last).as_secs() < 1) {
            state.1 += 1;
            return;
        }
        let unreported = std::mem::take(&mut state.1);
        state.0 = Some(now);
        let process_id = process_id.unwrap_or(0);
        tracing::warn!(user_id, process_id, unreported, reason, "ended a client's connection");
    }
}

/// A connection of one client process.
pub(super) struct Connection {
    number: u64,
    socket: UnixStream,
    user_id: u32,
    process_id: Option<u32>,
    /// The process that connected.
    process: Whereabouts,
    session: Session,
    shared: Arc<Shared>,
    /// Its holder waits for the next request; true when the connection has ended.
    turn: Mutex<bool>,
    /// Its holder sends a reply.
    sending: Mutex<()>,
    threads: AtomicUsize,
    waiting: AtomicUsize,
    /// Requests that wait for other nodes.
    away: AtomicUsize,
    /// It was ended from this side.
    cut_off: AtomicBool,
    /// It does not take replies.
    deaf: AtomicBool,
    /// This side takes no more requests.
    closing: AtomicBool,
    /// The client sends no more, and so waits for nothing.
    left: AtomicBool,
    ticket: Arc<Ticket>,
}

impl Connection {
    pub(super) fn new(
        number: u64,
        socket: UnixStream,
        peer: Peer,
        session: Session,
        shared: Arc<Shared>,
        ticket: Ticket,
    ) -> Arc<Connection> {
        let Peer { user_id, process_id, .. } = peer;
        let process = Whereabouts::of_peer(socket.as_fd(), process_id);
        let connection = Arc::new(Connection {
            number,
            socket,
            user_id,
            process_id,
            process,
            session,
            shared,
            turn: Mutex::new(false),
            sending: Mutex::new(()),
            threads: AtomicUsize::new(0),
            waiting: AtomicUsize::new(0),
            away: AtomicUsize::new(0),
            cut_off: AtomicBool::new(false),
            deaf: AtomicBool::new(false),
            closing: AtomicBool::new(false),
            left: AtomicBool::new(false),
            ticket: Arc::new(ticket),
        });
        connection.shared.open.lock().insert(number, Arc::clone(&connection));
        connection
    }

    /// Starts to serve.
    pub(super) fn start(self: &Arc<Self>) -> io::Result<()> {
        let started = self.spawn(|connection| {
            if connection.greet() {
                connection.serve();
            }
        });
        if started.is_err() {
            self.shared.open.lock().remove(&self.number);
        }
        started
    }

    fn spawn(self: &Arc<Self>, work: fn(&Arc<Connection>)) -> io::Result<()> {
        self.threads.fetch_add(1, Ordering::AcqRel);
        self.shared.threads.fetch_add(1, Ordering::AcqRel);
        let connection = Arc::clone(self);
        let builder = thread::Builder::new().name("client".to_owned()).stack_size(STACK_BYTES);
        let started = builder.spawn(move || {
            // Also when a request panics: the connection must not stay in the books.
            let leaver = Leaver(Some(connection));
            if let Some(connection) = &leaver.0 {
                work(connection);
            }
        });
        if let Err(error) = started {
            self.threads.fetch_sub(1, Ordering::AcqRel);
            self.shared.threads.fetch_sub(1, Ordering::AcqRel);
            return Err(error);
        }
        Ok(())
    }

    /// Takes no further request. The client sees the end of the connection only when no request of
    /// it is worked on any more, so that it knows of all what became of them.
    fn take_no_more(&self) {
        self.session.hurry();
        self.closing.store(true, Ordering::Release);
        // Fails only if the other side is gone already.
        let _ = self.socket.shutdown(std::net::Shutdown::Read);
    }

    /// Says why the connection ends, though the client may not want it to.
    fn cut_off(&self, reason: &str) {
        self.cut_off.store(true, Ordering::Release);
        self.complain(reason);
    }

    fn complain(&self, reason: &str) {
        self.shared.complaints.log(self.user_id, self.process_id, reason);
    }

    fn greet(&self) -> bool {
        let limits = self.shared.quotas.limits();
        let by = Instant::now() + limits.hello_timeout;
        let received = receive_frame(
            self.socket.as_fd(),
            FrameLimits::REQUEST,
            Some(by),
            limits.hello_timeout,
        );
        let hello = match received {
            Ok(frame) => match Hello::decode(&frame.body) {
                Ok(hello) => hello,
                Err(malformed) => {
                    self.refuse_malformed(malformed);
                    return false;
                }
            },
            Err(error) => {
                self.note_end(&error);
                return false;
            }
        };
        let verdict = if self.shared.stopping.load(Ordering::Acquire) {
            Verdict::Stopping
        } else if hello != Hello::OURS {
            Verdict::OtherVersion
        } else {
            Verdict::Accepted
        };
        let socket = self.socket.as_fd();
        let page = self.session.trace_page().filter(|_| verdict == Verdict::Accepted);
        let sent = self.shared.welcome(socket, verdict, page, limits.message_timeout);
        sent.is_ok() && verdict == Verdict::Accepted
    }

    fn refuse_malformed(&self, malformed: Malformed) {
        self.shared.quotas.malformed.fetch_add(1, Ordering::Relaxed);
        self.cut_off(malformed.0);
    }

    fn note_end(&self, error: &ReceiveError) {
        if matches!(error, ReceiveError::Closed | ReceiveError::Truncated)
            && !self.closing.load(Ordering::Acquire)
        {
            self.left.store(true, Ordering::Release);
        }
        match error {
            // It gave up what it was waiting for, and may still look at what it borrowed.
            ReceiveError::Closed if self.is_half_closed() => {
                self.cut_off.store(true, Ordering::Release);
            }
            ReceiveError::Closed => {}
            ReceiveError::Malformed(malformed) => self.refuse_malformed(*malformed),
            ReceiveError::TimedOut => self.cut_off(&error.to_string()),
            ReceiveError::Truncated | ReceiveError::Failed(_) => {
                self.complain(&error.to_string());
            }
        }
    }

    fn serve(self: &Arc<Self>) {
        loop {
            if self.waiting.fetch_add(1, Ordering::AcqRel) >= WAITING_MAX {
                self.waiting.fetch_sub(1, Ordering::AcqRel);
                return;
            }
            let mut ended = self.turn.lock();
            let request = if *ended { None } else { self.next_request() };
            self.waiting.fetch_sub(1, Ordering::AcqRel);
            let Some((request, frame)) = request else {
                *ended = true;
                self.take_no_more();
                return;
            };
            if self.session.is_quick(&request) {
                self.work(request, frame);
                continue;
            }
            drop(ended);
            self.stand_by();
            self.work(request, frame);
        }
    }

    /// Sees to it that a thread waits for the next request. Without a further thread, requests
    /// wait for this one to be done, which is slower and still right.
    fn stand_by(self: &Arc<Self>) {
        let away = self.away.load(Ordering::Acquire).min(AWAY_MAX);
        let limit = self.shared.quotas.limits().requests_in_flight_max + away;
        if self.waiting.load(Ordering::Acquire) == 0 && self.threads.load(Ordering::Acquire) < limit
        {
            let _ = self.spawn(Connection::serve);
        }
    }

    fn next_request(&self) -> Option<(Request, Frame)> {
        let limits = self.shared.quotas.limits();
        let received =
            receive_frame(self.socket.as_fd(), FrameLimits::REQUEST, None, limits.message_timeout);
        let frame = match received {
            Ok(frame) => frame,
            Err(error) => {
                self.note_end(&error);
                return None;
            }
        };
        match decode_request(&frame.body) {
            Ok(Request::Bye) => None,
            Ok(Request::Finish) => {
                // It lives, and may look at what it borrowed.
                self.cut_off.store(true, Ordering::Release);
                None
            }
            Ok(request) => Some((request, frame)),
            Err(malformed) => {
                self.refuse_malformed(malformed);
                None
            }
        }
    }

    fn work(self: &Arc<Self>, request: Request, frame: Frame) {
        let request_id = frame.request_id;
        if let Request::Traced { front, records, dropped } = request {
            return self.session.take_traced(front, records, dropped, self.process_id);
        }
        if !request.is_answered() {
            self.session.note(&request);
            return;
        }
        let changes = request.changes_bytes();
        if changes && !self.still_asks() {
            // A later writer of the file must not find it changed by a client that is gone.
            return;
        }
        let answer = if frame.descriptors.len() < frame.descriptors_announced {
            self.shared.quotas.limited.fetch_add(1, Ordering::Relaxed);
            let detail = "they did not arrive; the node may have no room for more";
            let error = Error::new(ErrorKind::LimitReached, "taking descriptors", detail);
            Reply::Failed((&error).into()).into()
        } else if changes || matches!(request, Request::Open(_)) {
            asked::on_behalf_of(Arc::clone(self) as _, || self.answer(request, frame))
        } else {
            self.answer(request, frame)
        };
        self.shared.quotas.requests.fetch_add(1, Ordering::Relaxed);
        if let Err(error) = self.send(request_id, &answer) {
            if matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock) {
                self.cut_off("it does not take its replies");
            }
            self.deaf.store(true, Ordering::Release);
            // Wakes the thread that waits for the next request.
            self.take_no_more();
        }
    }

    /// Whether no client waits for answers any more: the client is gone, or said so. Its children
    /// may keep the socket open; they never speak on it.
    fn is_abandoned(&self) -> bool {
        let (ended, is_gone) = self.ended_by_client();
        is_gone
            || ended.contains(PollFlags::HUP)
            || self.left.load(Ordering::Acquire)
            || ended.contains(PollFlags::RDHUP) && !self.closing.load(Ordering::Acquire)
    }

    /// Whether the client sends no more and is still there.
    fn is_half_closed(&self) -> bool {
        !self.ended_by_client().0.contains(PollFlags::HUP)
    }

    /// What the other side ended of the socket, and whether the process that connected ended.
    fn ended_by_client(&self) -> (PollFlags, bool) {
        let process = self.process.descriptor();
        let mut watched = [
            PollFd::new(&self.socket, PollFlags::RDHUP),
            PollFd::from_borrowed_fd(process.unwrap_or(self.socket.as_fd()), PollFlags::IN),
        ];
        let watched = match process {
            Some(_) => &mut watched[..],
            None => &mut watched[..1],
        };
        if poll(watched, Some(&AT_ONCE)).is_err() {
            return (PollFlags::empty(), false);
        }
        let is_gone = match self.process {
            Whereabouts::Gone => true,
            _ => watched.get(1).is_some_and(|process| !process.revents().is_empty()),
        };
        (watched[0].revents(), is_gone)
    }

    fn answer(&self, request: Request, frame: Frame) -> Answer {
        let buffered = matches!(request, Request::Write { source: WriteSource::Buffer { .. }, .. });
        let mut scratch = Vec::new();
        if buffered {
            scratch = self.shared.scratch.lock().pop().unwrap_or_default();
        }
        let answer = self.session.answer_traced(request, frame, &mut scratch);
        if buffered {
            let mut kept = self.shared.scratch.lock();
            if kept.len() < SCRATCH_BUFFERS_MAX {
                kept.push(scratch);
            }
        }
        answer
    }

    fn send(&self, request_id: u64, answer: &Answer) -> io::Result<()> {
        let body = match answer.reply.encode_timed(Vec::new(), answer.pfs_us) {
            Ok(body) if body.len() <= REPLY_BODY_BYTES_MAX as usize => body,
            _ => {
                let error = Error::new(ErrorKind::Internal, "answering", "the reply is too long");
                Reply::Failed((&error).into())
                    .encode(Vec::new())
                    .map_err(|malformed| io::Error::other(malformed.0))?
            }
        };
        let descriptors: Vec<BorrowedFd<'_>> = answer.descriptors.iter().map(AsFd::as_fd).collect();
        let timeout = self.shared.quotas.limits().message_timeout;
        let _sending = self.sending.lock();
        if self.deaf.load(Ordering::Acquire) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        let socket = self.socket.as_fd();
        send_frame(socket, request_id, &body, &answer.payload, &descriptors, timeout)
    }
}

impl Asker for Connection {
    fn still_asks(&self) -> bool {
        let is_abandoned = self.is_abandoned();
        if is_abandoned {
            self.shared.quotas.abandoned.fetch_add(1, Ordering::Relaxed);
        }
        !is_abandoned
    }

    fn begin_wait(self: Arc<Self>) {
        self.away.fetch_add(1, Ordering::AcqRel);
        self.stand_by();
    }

    fn end_wait(self: Arc<Self>) {
        self.away.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Takes a thread off a connection; the last one cleans up.
struct Leaver(Option<Arc<Connection>>);

impl Drop for Leaver {
    fn drop(&mut self) {
        let Some(connection) = self.0.take() else { return };
        if thread::panicking() {
            connection.cut_off("a request of it made the node panic");
            // First, because the thread that receives has the turn until the socket ends.
            connection.take_no_more();
            *connection.turn.lock() = true;
        }
        let shared = Arc::clone(&connection.shared);
        shared.threads.fetch_sub(1, Ordering::AcqRel);
        // References go under this lock, so that nothing of a connection is left when a stop
        // finds none in the books.
        let open = shared.open.lock();
        if connection.threads.fetch_sub(1, Ordering::AcqRel) > 1 {
            drop(connection);
            return;
        }
        drop(open);
        let process = connection.process.now();
        // Nothing is worked on any more, and this says so.
        let _ = connection.socket.shutdown(std::net::Shutdown::Both);
        let (errors, borrows) = connection.session.end();
        for error in errors {
            let user_id = connection.user_id;
            tracing::error!(user_id, %error, "a client ended before its write did");
        }
        let process = match process {
            Whereabouts::Gone => None,
            Whereabouts::Here(process) => Some(Some(process)),
            Whereabouts::Unknown => Some(None),
        };
        let may_look_on =
            connection.cut_off.load(Ordering::Acquire) || shared.stopping.load(Ordering::Acquire);
        if may_look_on
            && !borrows.is_empty()
            && let Some(process) = process
        {
            let ticket = Arc::clone(&connection.ticket);
            shared.lingering.keep(borrows, process, ticket);
        }
        let mut open = shared.open.lock();
        open.remove(&connection.number);
        drop(connection);
        if open.is_empty() {
            shared.all_ended.notify_all();
        }
    }
}
