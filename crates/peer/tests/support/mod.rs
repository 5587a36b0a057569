//! What the tests of this crate share: identities, a holder of blocks, waiting for a condition.
#![allow(dead_code, reason = "each test program uses a part of it")]

pub mod certificates;
pub mod proxy;

use std::fs::File;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tidepool_peer::{
    Block, BlockRequest, Bytes, Identity, Integrity, Limits, Refusal, Server, Service, SharedKey,
    TcpTransport,
};

/// Longer than anything takes that goes well.
pub const LONG: Duration = Duration::from_secs(60);

pub fn identity(node: &str) -> Identity {
    identity_with(node, "reef", 1)
}

pub fn identity_with(node: &str, cluster: &str, key: u8) -> Identity {
    let key = SharedKey::from_bytes(&[key; 32]).expect("32 bytes are enough");
    Identity { cluster: cluster.to_owned(), node: node.to_owned(), key, tls: None }
}

pub fn request(offset: u64, length: usize) -> BlockRequest {
    BlockRequest {
        file: [1, 2],
        version: [3, -4, 5],
        offset,
        length: u32::try_from(length).expect("a block"),
        may_fill: false,
    }
}

/// Bytes that tell where they are in which generation.
pub fn pattern(generation: u64, offset: u64, length: usize) -> Vec<u8> {
    let words = (offset / 8..).map(|at| (at ^ (generation << 56)).to_le_bytes());
    words.flatten().skip((offset % 8) as usize).take(length).collect()
}

/// Waits for a condition; a test that hangs names it.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    let start = Instant::now();
    while !condition() {
        assert!(start.elapsed() < LONG, "never came: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

pub type Working<'a> = &'a mut dyn FnMut() -> io::Result<()>;
type Find = dyn Fn(&Holder, &BlockRequest, Working<'_>) -> Result<Block, Refusal> + Send + Sync;

/// A node with one file in memory and a word that tells whether it changed.
pub struct Holder {
    pub file: Arc<OwnedFd>,
    pub word: Arc<AtomicU64>,
    pub calls: AtomicUsize,
    pub blocks: AtomicUsize,
    pub confirms: Arc<AtomicUsize>,
    find: Box<Find>,
}

impl Holder {
    pub fn new(bytes: usize) -> Self {
        Self::finding(bytes, |holder, request, _| Ok(holder.pages(request)))
    }

    /// A holder that finds blocks in another way.
    pub fn finding(
        bytes: usize,
        find: impl Fn(&Self, &BlockRequest, Working<'_>) -> Result<Block, Refusal>
        + Send
        + Sync
        + 'static,
    ) -> Self {
        let flags = rustix::fs::MemfdFlags::CLOEXEC;
        let file = rustix::fs::memfd_create("segment", flags).expect("a memory file");
        let holder = Self {
            file: Arc::new(file),
            word: Arc::default(),
            calls: AtomicUsize::new(0),
            blocks: AtomicUsize::new(0),
            confirms: Arc::default(),
            find: Box::new(find),
        };
        holder.write(&pattern(0, 0, bytes));
        holder
    }

    /// Changes the bytes in place, as the residency protocol does: the word is odd meanwhile.
    pub fn write(&self, bytes: &[u8]) {
        self.word.fetch_add(1, Ordering::SeqCst);
        let file = File::from(self.file.try_clone().expect("a descriptor"));
        file.write_all_at(bytes, 0).expect("memory for the file");
        self.word.fetch_add(1, Ordering::SeqCst);
    }

    /// The block as pages of the file.
    pub fn pages(&self, request: &BlockRequest) -> Block {
        let file = Arc::clone(&self.file);
        self.with(Bytes::File { file, offset: request.offset })
    }

    /// `bytes`, which are good while the word stays as it is.
    pub fn with(&self, bytes: Bytes) -> Block {
        let before = self.word.load(Ordering::SeqCst);
        let (word, confirms) = (Arc::clone(&self.word), Arc::clone(&self.confirms));
        let confirm = Box::new(move || {
            confirms.fetch_add(1, Ordering::SeqCst);
            before.is_multiple_of(2) && word.load(Ordering::SeqCst) == before
        });
        Block { bytes, confirm }
    }
}

impl Service for Holder {
    fn call(&self, from: &str, request: &[u8]) -> Vec<u8> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        [from.as_bytes(), b": ", request].concat()
    }

    fn block(
        &self,
        _from: &str,
        request: &BlockRequest,
        working: Working<'_>,
    ) -> Result<Block, Refusal> {
        self.blocks.fetch_add(1, Ordering::SeqCst);
        (self.find)(self, request, working)
    }
}

/// Limits that no test runs into by a busy machine.
pub fn patient() -> Limits {
    // Sending has longer than a test waits: where silence has to end it, nothing else does.
    Limits { handshake: LONG, drain: LONG, send: 10 * LONG, ..Limits::default() }
}

/// The server of a node called "holder".
pub fn serve(holder: &Arc<Holder>) -> Server {
    serve_with(holder, Integrity::Headers, patient())
}

pub fn serve_with(holder: &Arc<Holder>, integrity: Integrity, limits: Limits) -> Server {
    serve_as(identity("holder"), holder, integrity, limits)
}

pub fn serve_as(
    identity: Identity,
    holder: &Arc<Holder>,
    integrity: Integrity,
    limits: Limits,
) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let service = Arc::clone(holder) as Arc<dyn Service>;
    Server::start(listener, identity, integrity, service, limits).expect("a server")
}

/// The transport of a node called "reader" to peers at `address`.
pub fn reach(address: SocketAddr) -> TcpTransport {
    reach_with(identity("reader"), Integrity::Headers, address)
}

pub fn reach_with(identity: Identity, integrity: Integrity, address: SocketAddr) -> TcpTransport {
    TcpTransport::new(identity, integrity, Arc::new(move |_| Some(address)), 2)
}
