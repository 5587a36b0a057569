//! The thread of one connection: proves who it is, then answers one request after another.

use std::io;
use std::net::TcpStream;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use super::connections::{Activity, Connection};
use super::faults::Fault;
use super::sending::CopyBuffer;
use super::{Counts, Shared};
use crate::frame::{BadFrame, CODE_BYTES, HEADER_BYTES, Header, Kind, PAYLOAD_BYTES_MAX};
use crate::handshake::{self, HandshakeError, Session};
use crate::socket::{Patience, deadline_after, has_ended, queued_bytes, reset_on_close};
use crate::wire::Wire;
use crate::{Block, BlockRequest, Refusal};

/// How long an idle connection keeps its buffer.
const BUFFER_KEPT: Duration = Duration::from_secs(1);

/// Why a connection ends.
#[derive(Debug)]
pub(super) enum End {
    /// The peer closed it between two requests.
    Closed,
    /// Something is wrong with it.
    Fault(Fault),
}

impl From<io::Error> for End {
    fn from(error: io::Error) -> Self {
        Self::Fault(match error.kind() {
            io::ErrorKind::TimedOut => Fault::TimedOut,
            io::ErrorKind::UnexpectedEof => Fault::Truncated,
            // What TLS says of bytes that were changed.
            io::ErrorKind::InvalidData => Fault::Forged,
            _ => Fault::Socket,
        })
    }
}

impl From<BadFrame> for End {
    fn from(fault: BadFrame) -> Self {
        Self::Fault(match fault {
            BadFrame::Forged => Fault::Forged,
            BadFrame::OutOfOrder => Fault::Replayed,
            BadFrame::Unknown => Fault::Garbage,
            BadFrame::Oversized => Fault::Oversized,
        })
    }
}

impl From<HandshakeError> for End {
    fn from(error: HandshakeError) -> Self {
        Self::Fault(match error {
            HandshakeError::Io(error) => return error.into(),
            HandshakeError::Garbage => Fault::Garbage,
            HandshakeError::Version(_) => Fault::Version,
            HandshakeError::Cluster => Fault::Cluster,
            HandshakeError::Name => Fault::Name,
            HandshakeError::Proof => Fault::Forged,
            HandshakeError::Tls(_) | HandshakeError::TlsOnly | HandshakeError::TlsUnknown => {
                Fault::Tls
            }
        })
    }
}

/// Serves a connection until it ends.
pub(super) fn serve(shared: &Shared, connection: &Connection) {
    let end = serve_until_end(shared, connection);
    if let End::Fault(fault) = end {
        if !connection.cut.load(Ordering::Acquire) {
            let peer = connection.peer();
            shared.faults.note(fault, connection.address, peer.as_deref());
        }
        // What it has queued pins memory, and nobody waits for it. A refused hello is let through.
        if connection.peer().is_some() {
            reset_on_close(&connection.stream);
        }
    }
}

fn serve_until_end(shared: &Shared, connection: &Connection) -> End {
    let patience = Patience::within(shared.limits.handshake);
    let stream = &connection.stream;
    let (wire, session) =
        match handshake::accept(stream, &shared.identity, shared.integrity, patience) {
            Ok(accepted) => accepted,
            Err(error) => return error.into(),
        };
    let admitted = shared.connections.prove(connection, &session.peer, &shared.limits);
    let mut serving = Serving { shared, connection, wire, session, buffer: CopyBuffer::default() };
    if !admitted {
        return serving.turn_away();
    }
    shared.counts.add(|counts| &counts.authenticated, 1);
    loop {
        if let Err(end) = serving.request() {
            return end;
        }
    }
}

/// One connection after its handshake.
pub(super) struct Serving<'a> {
    pub shared: &'a Shared,
    pub connection: &'a Connection,
    pub wire: Wire<&'a TcpStream>,
    pub session: Session,
    pub buffer: CopyBuffer,
}

impl Serving<'_> {
    /// Waits for one request and answers it.
    fn request(&mut self) -> Result<(), End> {
        self.wait_idle()?;
        self.set(Activity::Serving);
        let header = self.header()?;
        let payload = match header.kind {
            Kind::Call | Kind::Block => self.payload(&header)?,
            _ => return Err(End::Fault(Fault::Garbage)),
        };
        if header.kind == Kind::Call { self.call(&payload) } else { self.block(&payload) }?;
        self.set(Activity::Idle);
        Ok(())
    }

    /// Answers the first request with "busy".
    fn turn_away(&mut self) -> End {
        let refused = self
            .header()
            .and_then(|header| self.payload(&header))
            .and_then(|_| self.refuse(Refusal::Busy));
        refused.err().unwrap_or(End::Fault(Fault::Crowded))
    }

    /// Waits without end for the first byte of a request.
    fn wait_idle(&mut self) -> Result<(), End> {
        let mut wait = BUFFER_KEPT;
        while !self.wire.is_readable(wait)? {
            self.buffer.free();
            wait = Duration::from_secs(3600);
        }
        if has_ended(&self.connection.stream) { Err(End::Closed) } else { Ok(()) }
    }

    /// How long a peer may take for a small frame.
    fn patience(&self) -> Patience {
        Patience::within(self.shared.limits.drain)
    }

    fn header(&mut self) -> Result<Header, End> {
        let mut bytes = [0; HEADER_BYTES];
        let patience = self.patience();
        self.wire.receive_exact(&mut bytes, patience)?;
        Ok(self.session.opening.header(&bytes)?)
    }

    fn payload(&mut self, header: &Header) -> Result<Vec<u8>, End> {
        let mut followed = vec![0; header.length + CODE_BYTES];
        let patience = self.patience();
        self.wire.receive_exact(&mut followed, patience)?;
        let length = self.session.opening.payload(header, &followed)?.len();
        followed.truncate(length);
        Ok(followed)
    }

    fn set(&self, activity: Activity) {
        self.shared.connections.set(self.connection, activity);
    }

    /// Sends the last frame of an answer.
    fn send_last(&mut self, frame: &[u8]) -> Result<(), End> {
        self.set(Activity::Finishing);
        let patience = self.patience();
        Ok(self.wire.send_all(frame, false, patience)?)
    }

    fn count(&self, counter: impl Fn(&Counts) -> &std::sync::atomic::AtomicU64, by: u64) {
        self.shared.counts.add(counter, by);
    }

    fn call(&mut self, request: &[u8]) -> Result<(), End> {
        self.count(|counts| &counts.calls, 1);
        let reply = self.shared.service.call(&self.session.peer, request);
        if reply.len() > PAYLOAD_BYTES_MAX {
            tracing::error!(bytes = reply.len(), "a reply to a peer is too long to be sent");
            return self.refuse(Refusal::Unknown);
        }
        let frame = self.session.sealing.frame(Kind::Reply, &reply);
        self.send_last(&frame)
    }

    fn refuse(&mut self, refusal: Refusal) -> Result<(), End> {
        self.count(|counts| &counts.refused, 1);
        let header = self.session.sealing.header(Kind::Refused, detail_of(refusal), 0);
        self.send_last(&header)
    }

    fn block(&mut self, payload: &[u8]) -> Result<(), End> {
        self.count(|counts| &counts.blocks, 1);
        let request = match postcard::take_from_bytes::<BlockRequest>(payload) {
            Ok((request, [])) => request,
            _ => return Err(End::Fault(Fault::Garbage)),
        };
        if request.length > self.shared.limits.block_bytes_max {
            return self.refuse(Refusal::Unknown);
        }
        let Block { bytes, confirm } = match self.find(&request)? {
            Ok(block) => block,
            Err(refusal) => return self.refuse(refusal),
        };
        let until = deadline_after(self.shared.limits.send);
        let patience = Patience { silence: self.shared.limits.drain, until };
        let Some(whole) = self.send_block(&bytes, request.length as usize, patience)? else {
            return self.refuse(Refusal::Unknown);
        };
        self.await_confirm(until)?;
        self.connection.file_bytes.store(0, Ordering::Release);
        let good = confirm() && whole;
        self.count(|counts| if good { &counts.confirmed } else { &counts.changed }, 1);
        let header = self.session.sealing.header(Kind::Confirmed, u8::from(good), 0);
        self.send_last(&header)
    }

    /// Asks the service for a block, and tells the peer meanwhile that it works.
    fn find(&mut self, request: &BlockRequest) -> Result<Result<Block, Refusal>, End> {
        let (stream, wire) = (&self.connection.stream, &mut self.wire);
        let sealing = &mut self.session.sealing;
        let drain = self.shared.limits.drain;
        let mut broken = None;
        let mut working = || {
            // After a frame that was sent in part nothing can follow.
            if broken.is_some() || has_ended(stream) {
                return Err(io::ErrorKind::ConnectionAborted.into());
            }
            let frame = sealing.header(Kind::Working, 0, 0);
            wire.send_all(&frame, false, Patience::within(drain)).map_err(|error| {
                let kind = error.kind();
                broken = Some(error);
                io::Error::from(kind)
            })
        };
        let found = self.shared.service.block(&self.session.peer, request, &mut working);
        broken.map_or(Ok(found), |error| Err(error.into()))
    }

    /// Waits until the peer says that it has all bytes. A peer that still takes some is waited for.
    fn await_confirm(&mut self, until: Instant) -> Result<(), End> {
        let stream = &self.connection.stream;
        loop {
            let before = queued_bytes(stream);
            if self.wire.is_readable(self.shared.limits.drain)? {
                break;
            }
            let takes = before > 0 && queued_bytes(stream) < before;
            if !takes || Instant::now() >= until {
                return Err(End::Fault(Fault::TimedOut));
            }
        }
        match self.header()?.kind {
            Kind::Confirm => Ok(()),
            _ => Err(End::Fault(Fault::Garbage)),
        }
    }
}

/// The detail of a frame that stands for a refusal.
fn detail_of(refusal: Refusal) -> u8 {
    match refusal {
        Refusal::NotHeld => 1,
        Refusal::Stale => 2,
        Refusal::Busy => 3,
        Refusal::Unknown => 4,
    }
}
