//! A client that speaks the wire protocol by hand, so that tests can speak it wrongly.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidepool_node::server::{Server, ServerCounts, ServerLimits};
use tidepool_proto::wire::socket::{Frame, ReceiveError, receive_frame, send_frame};
use tidepool_proto::wire::{
    FrameLimits, Hello, Open, Opened, Reply, Request, Verdict, Welcome, decode_reply,
};
use tidepool_proto::{Access, ErrorKind};

use crate::fake::{FakeNode, FakeService, version_of};

/// Longest wait of a test for something that must happen.
pub const PATIENCE: Duration = Duration::from_secs(30);

/// A server over a node in miniature, in a directory of its own.
pub struct Scene {
    pub node: Arc<FakeNode>,
    pub server: Server,
    pub directory: TempDir,
}

impl Scene {
    pub fn new(limits: ServerLimits) -> Scene {
        let directory = tempfile::tempdir().unwrap();
        let device = version_of(&std::fs::File::open(directory.path()).unwrap()).id.device;
        let pfs = directory.path().to_str().unwrap().to_owned();
        let node = Arc::new(FakeNode { device, pfs, ..FakeNode::default() });
        let server = start(&directory.path().join("socket"), &node, limits).unwrap();
        Scene { node, server, directory }
    }

    pub fn file(&self, name: &str, length: usize) -> (PathBuf, Vec<u8>) {
        let path = self.directory.path().join(name);
        let bytes = pattern(length);
        std::fs::write(&path, &bytes).unwrap();
        (path, bytes)
    }

    pub fn connect(&self) -> Raw {
        Raw::connect(self.server.socket_path())
    }

    /// Waits until nothing is held for any client.
    pub fn wait_until_idle(&self) {
        let idle = |counts: &ServerCounts| {
            counts.connections + counts.handles + counts.borrows + counts.borrowed_bytes == 0
        };
        eventually("nothing is held for clients", || idle(&self.server.counts()));
        eventually("no file is open", || {
            self.node.open_files.load(std::sync::atomic::Ordering::SeqCst) == 0
        });
    }
}

pub fn start(
    path: &Path,
    node: &Arc<FakeNode>,
    limits: ServerLimits,
) -> tidepool_proto::Result<Server> {
    let service = Arc::new(FakeService(Arc::clone(node)));
    Server::start(path, Arc::clone(&service) as _, service, limits)
}

pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes that tell where they belong.
pub fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| (at % 251) as u8 ^ (at >> 12) as u8).collect()
}

pub struct Raw {
    pub socket: UnixStream,
    request_id: u64,
}

impl Raw {
    /// Connects without a hello.
    pub fn silent(path: &Path) -> Raw {
        let socket = UnixStream::connect(path).unwrap();
        socket.set_write_timeout(Some(PATIENCE)).unwrap();
        Raw { socket, request_id: 0 }
    }

    pub fn connect(path: &Path) -> Raw {
        let mut raw = Raw::silent(path);
        assert_eq!(raw.greet().unwrap(), Verdict::Accepted);
        raw
    }

    pub fn greet(&mut self) -> Result<Verdict, ReceiveError> {
        Ok(Welcome::decode(&self.greeted()?.body).unwrap().verdict)
    }

    /// The answer to a hello.
    pub fn greeted(&mut self) -> Result<Frame, ReceiveError> {
        let _ = send_frame(self.socket.as_fd(), 0, &Hello::OURS.encode(), &[], &[], PATIENCE);
        self.receive()
    }

    pub fn receive(&mut self) -> Result<Frame, ReceiveError> {
        let by = Instant::now() + PATIENCE;
        receive_frame(self.socket.as_fd(), FrameLimits::REPLY, Some(by), PATIENCE)
    }

    pub fn send(&mut self, request: &Request, payload: &[u8], descriptors: &[BorrowedFd<'_>]) {
        self.request_id += 1;
        let body = request.encode(Vec::new()).unwrap();
        let socket = self.socket.as_fd();
        send_frame(socket, self.request_id, &body, payload, descriptors, PATIENCE).unwrap();
    }

    pub fn send_bytes(&mut self, bytes: &[u8]) -> std::io::Result<()> {
        self.socket.write_all(bytes)
    }

    pub fn call(
        &mut self,
        request: &Request,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> (Reply, Frame) {
        self.send(request, payload, descriptors);
        let frame = self.receive().unwrap();
        assert_eq!(frame.request_id, self.request_id);
        (decode_reply(&frame.body).unwrap(), frame)
    }

    pub fn open(&mut self, descriptor: impl AsFd, access: Access) -> Result<Opened, ErrorKind> {
        match self.call(&open_request(access), &[], &[descriptor.as_fd()]).0 {
            Reply::Opened(opened) => Ok(opened),
            Reply::Failed(failure) => Err(failure.kind),
            other => panic!("an open was answered by {other:?}"),
        }
    }

    pub fn error(
        &mut self,
        request: &Request,
        payload: &[u8],
        descriptors: &[BorrowedFd<'_>],
    ) -> ErrorKind {
        match self.call(request, payload, descriptors).0 {
            Reply::Failed(failure) => failure.kind,
            other => panic!("{request:?} was answered by {other:?}"),
        }
    }

    /// Whether the server ended the connection, waiting for it.
    pub fn is_ended(&mut self) -> bool {
        loop {
            match self.receive() {
                Ok(_) => {}
                Err(ReceiveError::TimedOut) => return false,
                Err(_) => return true,
            }
        }
    }
}

pub fn open_request(access: Access) -> Request {
    Request::Open(Open {
        access,
        read_mode: None,
        write_mode: None,
        created: false,
        append: false,
        truncate: false,
        want_descriptors: true,
        inline_bytes_max: 1 << 20,
    })
}
