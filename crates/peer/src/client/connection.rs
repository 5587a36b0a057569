//! One connection to a peer, one request at a time.

use std::io;
use std::net::{SocketAddr, TcpStream};
use std::sync::Arc;

use crate::frame::{
    BadFrame, CODE_BYTES, HEADER_BYTES, Header, Kind, Opening, PAYLOAD_BYTES_MAX, Sealing,
};
use crate::handshake::{self, HandshakeError};
use crate::socket::{self, Patience, limit_waits};
use crate::wire::Wire;
use crate::{BlockRequest, Identity, Integrity, PeerError, Refusal};

/// Bytes that are hashed at once: while they are in the processor's cache, and enough of them for
/// wide instructions.
const HASH_BYTES: usize = 256 << 10;

/// A connection to a peer that proved who it is.
pub(super) struct Connection {
    pub address: SocketAddr,
    wire: Wire<Arc<TcpStream>>,
    sealing: Sealing,
    opening: Opening,
    integrity: Integrity,
}

/// A request that failed.
#[derive(Debug)]
pub(super) struct Failure {
    pub error: PeerError,
    /// The peer said something after the request.
    pub answered: bool,
    /// The connection is where it was before the request.
    pub reusable: bool,
}

impl From<io::Error> for PeerError {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::TimedOut => Self::TimedOut,
            io::ErrorKind::UnexpectedEof => Self::Unreachable(io::Error::new(
                io::ErrorKind::ConnectionReset,
                "the peer closed the connection",
            )),
            io::ErrorKind::InvalidData => {
                Self::Authentication(format!("what came over TLS is not what was sent: {error}"))
            }
            _ => Self::Unreachable(error),
        }
    }
}

impl From<BadFrame> for PeerError {
    fn from(fault: BadFrame) -> Self {
        match fault {
            BadFrame::Forged | BadFrame::OutOfOrder => Self::Authentication(fault.to_string()),
            BadFrame::Unknown | BadFrame::Oversized => Self::Protocol(fault.to_string()),
        }
    }
}

/// What a failed handshake with `peer` means for the caller.
fn no_session(error: HandshakeError, peer: &str) -> PeerError {
    match error {
        HandshakeError::Io(error) => error.into(),
        HandshakeError::Garbage => PeerError::Protocol(format!(
            "what listens at the address of {peer} is no Tidepool node"
        )),
        HandshakeError::Version(version) => PeerError::Protocol(format!(
            "{peer} speaks version {version} of the protocol between nodes, this node speaks {}",
            handshake::VERSION
        )),
        HandshakeError::Cluster => {
            PeerError::Authentication(format!("{peer} says that it belongs to another cluster"))
        }
        HandshakeError::Name => PeerError::Authentication(format!(
            "the node at the address of {peer} has another name, or this node's own"
        )),
        HandshakeError::Proof => {
            PeerError::Authentication(format!("{peer} does not prove that it holds the key"))
        }
        HandshakeError::Tls(what) => PeerError::Certificate(format!("no TLS with {peer}: {what}")),
        HandshakeError::TlsOnly => {
            PeerError::Certificate(format!("{peer} speaks TLS only, and this node has none"))
        }
        HandshakeError::TlsUnknown => {
            PeerError::Certificate(format!("{peer} speaks TLS, and this node has none"))
        }
    }
}

/// The refusal that a frame's detail stands for.
pub(crate) fn refusal_of(detail: u8) -> Refusal {
    match detail {
        1 => Refusal::NotHeld,
        2 => Refusal::Stale,
        3 => Refusal::Busy,
        _ => Refusal::Unknown,
    }
}

impl Connection {
    /// A proven connection to `peer`.
    pub fn open(
        identity: &Identity,
        integrity: Integrity,
        peer: &str,
        address: SocketAddr,
        stream: Arc<TcpStream>,
        patience: Patience,
    ) -> Result<Self, PeerError> {
        let (wire, session) = handshake::connect(stream, identity, integrity, peer, patience)
            .map_err(|error| no_session(error, peer))?;
        Ok(Self {
            address,
            wire,
            sealing: session.sealing,
            opening: session.opening,
            integrity: session.integrity,
        })
    }

    /// A small request and its reply.
    pub fn call(&mut self, request: &[u8], patience: Patience) -> Result<Vec<u8>, Failure> {
        let header = self.ask(Kind::Call, request, patience)?;
        let answer = match header.kind {
            Kind::Reply => self.payload(&header, patience),
            Kind::Refused => return Err(refused(&header)),
            _ => Err(unexpected(&header)),
        };
        answer.map_err(answered)
    }

    /// A block into `into`, confirmed.
    pub fn fetch(
        &mut self,
        request: &BlockRequest,
        into: &mut [u8],
        patience: Patience,
    ) -> Result<(), Failure> {
        let payload = postcard::to_stdvec(request).map_err(|error| Failure {
            error: PeerError::Protocol(format!("the request cannot be encoded: {error}")),
            answered: false,
            reusable: true,
        })?;
        let mut header = self.ask(Kind::Block, &payload, patience)?;
        while header.kind == Kind::Working {
            header = self.header(patience).map_err(answered)?;
        }
        match header.kind {
            Kind::Body if header.length == into.len() => {}
            Kind::Body => {
                let what = format!(
                    "the peer sends {} bytes where {} were asked for",
                    header.length,
                    into.len()
                );
                return Err(answered(PeerError::Protocol(what)));
            }
            Kind::Refused => return Err(refused(&header)),
            _ => return Err(answered(unexpected(&header))),
        }
        self.body(&header, into, patience).map_err(answered)?;
        if self.confirmed(patience).map_err(answered)? {
            Ok(())
        } else {
            Err(Failure { error: PeerError::Changed, answered: true, reusable: true })
        }
    }

    /// Sends a request and waits for what comes first.
    fn ask(&mut self, kind: Kind, payload: &[u8], patience: Patience) -> Result<Header, Failure> {
        let unanswered = |error: PeerError| Failure { error, answered: false, reusable: false };
        let frame = self.sealing.frame(kind, payload);
        let sent = self.wire.send_all(&frame, false, patience);
        // A server that does not want more may have said why before it closed.
        if let Err(error) = sent {
            return Err(unanswered(error.into()));
        }
        self.header(patience).map_err(unanswered)
    }

    fn header(&mut self, patience: Patience) -> Result<Header, PeerError> {
        let mut bytes = [0; HEADER_BYTES];
        self.wire.receive_exact(&mut bytes, patience)?;
        Ok(self.opening.header(&bytes)?)
    }

    fn payload(&mut self, header: &Header, patience: Patience) -> Result<Vec<u8>, PeerError> {
        let mut followed = vec![0; header.length + CODE_BYTES];
        self.wire.receive_exact(&mut followed, patience)?;
        let length = self.opening.payload(header, &followed)?.len();
        followed.truncate(length);
        Ok(followed)
    }

    fn body(
        &mut self,
        header: &Header,
        into: &mut [u8],
        patience: Patience,
    ) -> Result<(), PeerError> {
        limit_waits(self.wire.socket(), patience.silence)?;
        let full = self.integrity == Integrity::Full;
        let mut hasher = self.opening.payload_hasher(header);
        let (mut received, mut hashed) = (0, 0);
        while received < into.len() {
            received += self.wire.receive_body(&mut into[received..], patience)?;
            if !full {
                continue;
            }
            let whole = received - received % HASH_BYTES;
            let until = if received == into.len() { received } else { whole };
            if until > hashed {
                hasher.update(&into[hashed..until]);
                hashed = until;
            }
        }
        if !full {
            return Ok(());
        }
        let mut code = [0; CODE_BYTES];
        self.wire.receive_exact(&mut code, patience)?;
        Ok(self.opening.check(&hasher, &code)?)
    }

    /// Asks, now that all bytes are here, whether they are still what the block is.
    fn confirmed(&mut self, patience: Patience) -> Result<bool, PeerError> {
        let confirm = self.sealing.header(Kind::Confirm, 0, 0);
        self.wire.send_all(&confirm, false, patience)?;
        let header = self.header(patience)?;
        match header.kind {
            Kind::Confirmed => Ok(header.detail == 1),
            _ => Err(unexpected(&header)),
        }
    }

    /// Whether an idle connection cannot be used any more.
    pub fn is_broken(&self) -> bool {
        socket::is_broken(self.wire.socket())
    }
}

/// Whether a request fits into a frame.
pub(super) fn check_request(request: &[u8]) -> Result<(), PeerError> {
    if request.len() <= PAYLOAD_BYTES_MAX {
        return Ok(());
    }
    let length = request.len();
    Err(PeerError::Protocol(format!(
        "a request of {length} bytes is longer than {PAYLOAD_BYTES_MAX}, which a peer takes"
    )))
}

fn answered(error: PeerError) -> Failure {
    Failure { error, answered: true, reusable: false }
}

fn refused(header: &Header) -> Failure {
    let error = PeerError::Refused(refusal_of(header.detail));
    Failure { error, answered: true, reusable: true }
}

fn unexpected(header: &Header) -> PeerError {
    PeerError::Protocol(format!("the peer answered with a frame of kind {:?}", header.kind))
}
