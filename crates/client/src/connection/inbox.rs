//! Sending requests on a connection and handing replies to the threads that wait for them.
//!
//! A thread that waits only for a time leaves its reply to the thread that reads the socket then. A
//! node that did not answer in time is silent: it gets no request of that kind until it says
//! something.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex, MutexGuard};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tidepool_proto::wire::socket::{Frame, ReceiveError, receive_frame, send_frame};
use tidepool_proto::wire::{FrameLimits, Reply, Request, decode_reply};
use tidepool_proto::{Error, ErrorKind};

use super::{GoOn, timed_out, unreachable};
use crate::alive::Alive;
use crate::quiet::Quiet;

/// Time from the first to the last byte of a reply that no thread waits for.
const CLEARING_TIMEOUT: Duration = Duration::from_secs(60);
/// How often a wait that may be given up asks whether it shall go on.
pub(crate) const GIVING_UP_INTERVAL: Duration = Duration::from_millis(50);
/// Longest time for which a node that did not answer is not asked.
const SILENCE_MAX: Duration = Duration::from_secs(30);

/// Requests whose reply is waited for only a short time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Brief {
    /// To open a file, or whether it is there.
    Open,
    /// To note what a file was before a change of its metadata.
    Note,
    /// To lend bytes that could be copied as well.
    Lend,
    /// To tell where splits of a file are.
    Locate,
}

/// How long a node is not asked because it did not answer.
#[derive(Clone, Copy, Debug, Default)]
struct Silence {
    until: Option<Instant>,
    lasts: Duration,
}

/// How long a node is not asked that did not answer again, after it was not asked for `lasts`.
pub(crate) fn longer_silence(lasts: Duration, lasts_min: Duration) -> Duration {
    (2 * lasts).clamp(lasts_min, SILENCE_MAX.max(lasts_min))
}

/// A request under way.
#[derive(Debug)]
enum Awaited {
    /// A thread waits for its reply.
    Coming,
    /// The reply, for the thread that asked.
    Here(Frame),
    /// No thread waits any more; the reply is thrown away.
    GivenUp,
}

#[derive(Debug, Default)]
struct Replies {
    /// A thread reads the socket.
    reading: bool,
    /// A thread takes replies off the socket that no other waits for.
    clearing: bool,
    /// The node has closed the connection: it works on no request of it any more.
    ended: bool,
    awaited: HashMap<u64, Awaited>,
    /// Messages that give back what the node keeps and nothing uses.
    strays: Vec<Request>,
    /// By kind of question.
    silences: [Silence; 4],
}

impl Replies {
    fn has_given_up(&self) -> bool {
        self.awaited.values().any(|awaited| matches!(awaited, Awaited::GivenUp))
    }
}

/// The socket of a connection, and where its replies come in.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) socket: OwnedFd,
    pub(super) alive: Arc<Alive>,
    /// Held while a message is sent; false where the last message was not sent whole, so that no
    /// other may follow.
    pub(super) sending: Mutex<bool>,
    requests_sent: AtomicU64,
    replies: Mutex<Replies>,
    arrived: Condvar,
}

impl Inbox {
    pub(super) fn new(socket: OwnedFd, alive: Arc<Alive>) -> Inbox {
        Inbox {
            socket,
            alive,
            sending: Mutex::new(true),
            requests_sent: AtomicU64::new(0),
            replies: Mutex::default(),
            arrived: Condvar::new(),
        }
    }

    fn next_request_id(&self) -> u64 {
        self.requests_sent.fetch_add(1, Ordering::Relaxed) + 1
    }

    /// A number for a request whose reply will be waited for.
    pub(super) fn expect(&self) -> u64 {
        let request_id = self.next_request_id();
        self.replies.lock().awaited.insert(request_id, Awaited::Coming);
        request_id
    }

    /// No thread will wait for the reply to a request that was not sent, or on a dead connection.
    pub(super) fn expect_no_more(&self, request_id: u64) {
        self.replies.lock().awaited.remove(&request_id);
    }

    /// Sends a request that has no answer, if the socket takes it within `timeout`; whether it did.
    /// Without a time it does not wait: where another thread sends, it is not sent.
    pub(super) fn tell(&self, request: &Request, timeout: Duration) -> bool {
        let Ok(body) = encode(request) else { return false };
        matches!(self.send(self.next_request_id(), &body, &[], &[], timeout), Ok(true))
    }

    /// As `send`, until it is sent, the time is over, or `go_on` gives it up: then false.
    pub(super) fn send_while(
        &self,
        request_id: u64,
        message: (&Request, &[u8], &[BorrowedFd<'_>]),
        timeout: Duration,
        mut go_on: Option<GoOn<'_>>,
    ) -> Result<bool, Error> {
        let (request, payload, descriptors) = message;
        let body = encode(request)?;
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            let step = if go_on.is_some() { left.min(GIVING_UP_INTERVAL) } else { left };
            if self.send(request_id, &body, payload, descriptors, step)? {
                return Ok(true);
            }
            if go_on.as_mut().is_some_and(|go_on| !go_on()) {
                return Ok(false);
            }
            if Instant::now() >= deadline {
                return Err(timed_out());
            }
        }
    }

    /// Sends a message; false where none of it could be sent in time, so that others may.
    fn send(
        &self,
        request_id: u64,
        body: &[u8],
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
        timeout: Duration,
    ) -> Result<bool, Error> {
        debug_assert!(!Quiet::is_on(), "a message while memory of a caller is held in place");
        let Some(mut whole) = self.sending.try_lock_for(timeout) else { return Ok(false) };
        if !self.alive.is_on() || !*whole {
            return Err(unreachable("the connection was lost"));
        }
        let socket = self.socket.as_fd();
        match send_frame(socket, request_id, body, payload, descriptors, timeout) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => Ok(false),
            Err(error) => {
                *whole = false;
                Err(unreachable("the connection was lost").caused_by(error))
            }
        }
    }

    /// Whether questions of this kind are not asked at the moment.
    pub(super) fn is_silent(&self, kind: Brief) -> bool {
        let until = self.replies.lock().silences[kind as usize].until;
        until.is_some_and(|until| Instant::now() < until)
    }

    /// The node did not answer such a question: it is not asked for a time, longer each time.
    pub(super) fn note_silence(&self, kind: Brief, lasts_min: Duration) {
        let silence = &mut self.replies.lock().silences[kind as usize];
        silence.lasts = longer_silence(silence.lasts, lasts_min);
        silence.until = Some(Instant::now() + silence.lasts);
    }

    /// What the node keeps is of no use any more, and this message, which says so, cannot be sent
    /// now.
    pub(super) fn stray(&self, message: Request) {
        self.replies.lock().strays.push(message);
    }

    /// Nothing uses what came with this reply: gives it back to the node, at once if it can be.
    pub(super) fn decline(&self, reply: &Reply) {
        if let Some(message) = giving_back(reply) {
            self.stray(message);
            self.close_strays();
        }
    }

    /// Gives back what the node keeps and nothing uses, as far as the socket takes it at once.
    pub(super) fn close_strays(&self) {
        let strays = std::mem::take(&mut self.replies.lock().strays);
        for message in strays {
            if !self.tell(&message, Duration::ZERO) {
                self.stray(message);
            }
        }
    }

    pub(super) fn end(&self) {
        self.alive.put_out();
        let _replies = self.replies.lock();
        self.arrived.notify_all();
    }

    /// Waits for the reply to a request; `None` where `go_on` gave it up.
    pub(super) fn await_reply(
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
            // A thread that may give up looks up in between.
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
        replies.silences = Default::default();
        match replies.awaited.get_mut(&frame.request_id) {
            Some(Awaited::GivenUp) => {
                replies.awaited.remove(&frame.request_id);
                let declined = decode_reply(&frame.body).ok();
                replies.strays.extend(declined.as_ref().and_then(giving_back));
            }
            Some(slot) => *slot = Awaited::Here(frame),
            None => {}
        }
        Ok(true)
    }

    /// Waits until the node has closed the connection, throwing away what comes before; false if
    /// it does not in time.
    pub(super) fn await_end(&self, deadline: Instant) -> bool {
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

    /// Sees to it that replies that no thread waits for are taken: the node would end a connection
    /// that leaves them. Needs no thread as long as others wait for theirs, but they may not.
    pub(super) fn clear(inbox: &Arc<Inbox>) {
        let mut replies = inbox.replies.lock();
        if replies.clearing || !replies.has_given_up() {
            return;
        }
        replies.clearing = true;
        drop(replies);
        let this = Arc::clone(inbox);
        let builder = std::thread::Builder::new().name("tidepool-clear".to_owned());
        let started =
            builder.stack_size(super::WAITING_STACK_BYTES).spawn(move || this.take_given_up());
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
            if !replies.strays.is_empty() {
                MutexGuard::unlocked(&mut replies, || self.close_strays());
            }
        }
        replies.clearing = false;
    }
}

/// The message that gives back what the node keeps since this reply.
fn giving_back(reply: &Reply) -> Option<Request> {
    match reply {
        Reply::Opened(opened) => Some(Request::Close { handle: opened.handle, mapped_bytes: 0 }),
        Reply::Borrowed { borrow, .. } => Some(Request::Release { borrow: *borrow }),
        _ => None,
    }
}

/// Waits until the socket has bytes or has ended; false if neither happened in time.
pub(super) fn is_readable(
    socket: BorrowedFd<'_>,
    by: Option<Instant>,
) -> Result<bool, ReceiveError> {
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

fn encode(request: &Request) -> Result<Vec<u8>, Error> {
    request
        .encode(Vec::new())
        .map_err(|malformed| Error::new(ErrorKind::Internal, "encoding a request", malformed.0))
}
