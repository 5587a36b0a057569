//! A man in the middle who knows the layout of the protocol, and not the key.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

/// A part of a stream. Kinds of frames are the first byte of their header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    Hello,
    Answer,
    Proof,
    /// A frame's header, of the client or of the server.
    Header(u8),
    /// What follows it.
    Rest(u8),
}

pub const CALL: u8 = 1;
pub const BLOCK: u8 = 2;
pub const CONFIRM: u8 = 3;
pub const REPLY: u8 = 16;
pub const BODY: u8 = 18;
pub const CONFIRMED: u8 = 20;
pub const CODE_BYTES: usize = 16;

/// What the man in the middle does with a part: number of the connection, part, bytes. What it
/// returns goes on; none ends the connection.
pub type Edit = dyn Fn(usize, Part, Vec<u8>) -> Option<Vec<u8>> + Send + Sync;

pub struct Proxy {
    pub address: SocketAddr,
    stopping: Arc<AtomicBool>,
    streams: Arc<Mutex<Vec<TcpStream>>>,
    acceptor: Option<JoinHandle<()>>,
}

impl Proxy {
    /// `full`: blocks have codes.
    pub fn start(
        upstream: SocketAddr,
        full: bool,
        edit: impl Fn(usize, Part, Vec<u8>) -> Option<Vec<u8>> + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let stopping = Arc::new(AtomicBool::new(false));
        let streams = Arc::new(Mutex::new(Vec::new()));
        let edit: Arc<Edit> = Arc::new(edit);
        let acceptor = {
            let (stopping, streams) = (Arc::clone(&stopping), Arc::clone(&streams));
            std::thread::spawn(move || {
                let number = AtomicUsize::new(0);
                for client in listener.incoming().map_while(Result::ok) {
                    if stopping.load(Ordering::SeqCst) {
                        break;
                    }
                    let server = TcpStream::connect(upstream).expect("the server listens");
                    client.set_nodelay(true).expect("a socket");
                    server.set_nodelay(true).expect("a socket");
                    let copy = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
                    streams.lock().extend([copy(&client), copy(&server)]);
                    let number = number.fetch_add(1, Ordering::SeqCst);
                    for (from, to, of_client) in
                        [(copy(&client), copy(&server), true), (server, client, false)]
                    {
                        let edit = Arc::clone(&edit);
                        std::thread::spawn(move || {
                            relay(&from, &to, of_client, full, number, &*edit);
                            let _ = from.shutdown(Shutdown::Both);
                            let _ = to.shutdown(Shutdown::Both);
                        });
                    }
                }
            })
        };
        Self { address, stopping, streams, acceptor: Some(acceptor) }
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.stopping.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.address);
        for stream in self.streams.lock().drain(..) {
            let _ = stream.shutdown(Shutdown::Both);
        }
        if let Some(acceptor) = self.acceptor.take() {
            acceptor.join().expect("the proxy accepts until the end");
        }
    }
}

/// Passes one direction on, part by part. None when it ends.
fn relay(
    mut from: &TcpStream,
    mut to: &TcpStream,
    of_client: bool,
    full: bool,
    number: usize,
    edit: &Edit,
) -> Option<()> {
    let mut pass = |part: Part, bytes: Vec<u8>| -> Option<()> {
        to.write_all(&edit(number, part, bytes)?).ok()
    };
    let mut read = |length: usize| -> Option<Vec<u8>> {
        let mut bytes = vec![0; length];
        from.read_exact(&mut bytes).ok()?;
        Some(bytes)
    };
    if of_client {
        let mut hello = read(2)?;
        let length = u16::from_le_bytes([hello[0], hello[1]]);
        hello.append(&mut read(usize::from(length))?);
        pass(Part::Hello, hello)?;
        pass(Part::Proof, read(32)?)?;
    } else {
        pass(Part::Answer, read(72)?)?;
    }
    loop {
        let header = read(32)?;
        let kind = header[0];
        let length = u32::from_le_bytes([header[4], header[5], header[6], header[7]]) as usize;
        pass(Part::Header(kind), header)?;
        let coded = matches!(kind, CALL | BLOCK | REPLY) || kind == BODY && full;
        let length = length + if coded { CODE_BYTES } else { 0 };
        if length > 0 {
            pass(Part::Rest(kind), read(length)?)?;
        }
    }
}

/// Holds threads back until it is opened.
#[derive(Default)]
pub struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicUsize,
}

impl Gate {
    pub fn wait(&self) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut open = self.open.lock();
        self.opened.wait_while(&mut open, |open| !*open);
    }

    pub fn open(&self) {
        *self.open.lock() = true;
        self.opened.notify_all();
    }

    /// How many came to it.
    pub fn arrived(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }
}
