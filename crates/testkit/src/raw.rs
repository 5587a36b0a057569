//! A client that speaks the wire protocol by hand and may send anything, also messages that the
//! library never would.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use tidepool_proto::wire::socket::{Frame, receive_frame, send_frame};
use tidepool_proto::wire::{
    FrameLimits, Hello, Open, Reply, Request, Verdict, Want, Welcome, decode_reply,
};
use tidepool_proto::{Access, ErrorKind};

/// How long an answer may take before the node counts as stuck.
const ANSWER_LIMIT: Duration = Duration::from_secs(30);

/// A connection to a node.
#[derive(Debug)]
pub struct RawClient {
    /// The socket.
    pub stream: UnixStream,
    next: u64,
}

/// An answer with all that came along.
#[derive(Debug)]
pub struct RawReply {
    /// The message.
    pub reply: Reply,
    /// Raw bytes.
    pub payload: Vec<u8>,
    /// Descriptors.
    pub descriptors: Vec<OwnedFd>,
}

impl RawReply {
    /// The kind of the failure, or `None` for a success.
    pub fn failure(&self) -> Option<ErrorKind> {
        match &self.reply {
            Reply::Failed(failure) => Some(failure.kind),
            _ => None,
        }
    }

    /// The number of the file that was opened.
    ///
    /// # Panics
    /// If nothing was opened.
    pub fn handle(&self) -> u64 {
        match &self.reply {
            Reply::Opened(opened) => opened.handle,
            other => panic!("not opened: {other:?}"),
        }
    }
}

/// An open for reading that asks for descriptors.
pub fn open_for(access: Access) -> Request {
    Request::Open(Open {
        access,
        read_mode: None,
        write_mode: None,
        created: false,
        append: false,
        truncate: false,
        want_descriptors: true,
        inline_bytes_max: 0,
    })
}

/// A read of bytes in the answer.
pub fn read_of(handle: u64, offset: u64, length: u32) -> Request {
    Request::Read { handle, offset, length, want: Want::Inline }
}

impl RawClient {
    /// Connects and says hello; returns what the node thinks of it.
    pub fn connect(socket: &Path) -> io::Result<(RawClient, Verdict)> {
        let stream = UnixStream::connect(socket)?;
        // A node that turns us away may have closed already; its verdict is still there to read.
        let hello = Hello::OURS.encode();
        let _ = send_frame(stream.as_fd(), 0, &hello, &[], &[], ANSWER_LIMIT);
        let begin_by = Some(Instant::now() + ANSWER_LIMIT);
        let frame = receive_frame(stream.as_fd(), FrameLimits::REPLY, begin_by, ANSWER_LIMIT);
        let welcome =
            Welcome::decode(&frame.map_err(io::Error::other)?.body).map_err(io::Error::other)?;
        Ok((RawClient { stream, next: 0 }, welcome.verdict))
    }

    /// Connects; must be accepted.
    ///
    /// # Panics
    /// If it is not.
    pub fn accepted(socket: &Path) -> RawClient {
        let (client, verdict) = RawClient::connect(socket).expect("the node answers a hello");
        assert_eq!(verdict, Verdict::Accepted);
        client
    }

    /// Sends a request without waiting for the answer.
    pub fn send(
        &mut self,
        request: &Request,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<()> {
        let body = request.encode(Vec::new()).map_err(io::Error::other)?;
        self.next += 1;
        let socket = self.stream.as_fd();
        send_frame(socket, self.next, &body, payload, descriptors, ANSWER_LIMIT)
    }

    /// Takes one answer.
    pub fn receive(&mut self) -> io::Result<RawReply> {
        let begin_by = Some(Instant::now() + ANSWER_LIMIT);
        let frame = receive_frame(self.stream.as_fd(), FrameLimits::REPLY, begin_by, ANSWER_LIMIT);
        let Frame { body, payload, descriptors, .. } = frame.map_err(io::Error::other)?;
        let reply = decode_reply(&body).map_err(io::Error::other)?;
        Ok(RawReply { reply, payload, descriptors })
    }

    /// Sends a request and takes its answer.
    pub fn ask(
        &mut self,
        request: &Request,
        descriptors: &[BorrowedFd<'_>],
    ) -> io::Result<RawReply> {
        self.send(request, &[], descriptors)?;
        self.receive()
    }
}
