//! Rates and processor time of block transfers over loopback, beside a bare `sendfile` server.
//!
//!     cargo run --release -p tidepool-peer --example transfer_rates [GIB [STREAMS [ROUNDS]]]
//!
//! The bare server takes 16 bytes, offset and length, and sends that part of the file: no header,
//! no proof, no confirm. Both use the same congestion control, block size and number of streams.
//! Rounds are interleaved; what is printed is the median. Processor time is that of the process,
//! so of both sides together.

#[path = "../tests/support/certificates.rs"]
mod certificates;

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};
use tidepool_peer::{
    Block, BlockRequest, Bytes, Identity, Integrity, Limits, Refusal, Server, Service, SharedKey,
    TcpTransport, Transport,
};

const BLOCK_BYTES: usize = 4 << 20;
const FILE_BYTES: usize = 256 << 20;
const GIB: f64 = (1_u64 << 30) as f64;

/// Fetches the block at an offset.
type Fetch = Box<dyn FnMut(u64, &mut [u8])>;

struct Segment(Arc<OwnedFd>);

impl Service for Segment {
    fn call(&self, _from: &str, request: &[u8]) -> Vec<u8> {
        request.to_owned()
    }

    fn block(
        &self,
        _from: &str,
        request: &BlockRequest,
        _working: &mut dyn FnMut() -> io::Result<()>,
    ) -> Result<Block, Refusal> {
        let bytes = Bytes::File { file: Arc::clone(&self.0), offset: request.offset };
        Ok(Block { bytes, confirm: Box::new(|| true) })
    }
}

/// A file in memory, of huge pages where the kernel gives them.
fn segment() -> io::Result<Arc<OwnedFd>> {
    let file = rustix::fs::memfd_create("segment", rustix::fs::MemfdFlags::CLOEXEC)?;
    let mut writer = std::fs::File::from(file.try_clone()?);
    let mut part = vec![0; 1 << 20];
    for (at, byte) in part.iter_mut().enumerate() {
        *byte = (at % 251) as u8;
    }
    for _ in 0..FILE_BYTES / part.len() {
        writer.write_all(&part)?;
    }
    Ok(Arc::new(file))
}

fn bare_server(file: Arc<OwnedFd>) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let _ = rustix::net::sockopt::set_tcp_congestion(&listener, "cubic");
    let address = listener.local_addr()?;
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let file = Arc::clone(&file);
            std::thread::spawn(move || serve_bare(stream, &file));
        }
    });
    Ok(address)
}

fn serve_bare(mut stream: TcpStream, file: &OwnedFd) -> io::Result<()> {
    stream.set_nodelay(true)?;
    loop {
        let mut request = [0; 16];
        stream.read_exact(&mut request)?;
        let (offset, length) = request.split_at(8);
        let number = |bytes: &[u8]| u64::from_le_bytes(bytes.try_into().expect("eight bytes"));
        let (mut at, mut remaining) = (number(offset), number(length) as usize);
        while remaining > 0 {
            remaining -=
                rustix::fs::sendfile(&stream, file, Some(&mut at), remaining.min(1 << 20))?;
        }
    }
}

fn processor_s() -> f64 {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Rate and processor seconds a GiB of `blocks` blocks over `streams` threads.
fn measure(blocks: usize, streams: usize, fetcher: &(dyn Fn() -> Fetch + Sync)) -> (f64, f64) {
    let next = AtomicUsize::new(0);
    let (start, processor) = (Instant::now(), processor_s());
    std::thread::scope(|scope| {
        for _ in 0..streams {
            scope.spawn(|| {
                let mut fetch = fetcher();
                let mut into = vec![0; BLOCK_BYTES];
                loop {
                    let block = next.fetch_add(1, Ordering::Relaxed);
                    if block >= blocks {
                        break;
                    }
                    let offset = block * BLOCK_BYTES % FILE_BYTES;
                    fetch(offset as u64, &mut into);
                    assert_eq!(into[12345], (12345 % 251) as u8);
                }
            });
        }
    });
    let gib = (blocks * BLOCK_BYTES) as f64 / GIB;
    (gib / start.elapsed().as_secs_f64(), (processor_s() - processor) / gib)
}

fn identity(node: &str) -> Identity {
    let key = SharedKey::from_bytes(&[9; 32]).expect("32 bytes are enough");
    Identity { cluster: "rates".to_owned(), node: node.to_owned(), key, tls: None }
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn bare_fetch(address: SocketAddr) -> Fetch {
    let mut stream = TcpStream::connect(address).expect("the bare server listens");
    stream.set_nodelay(true).expect("a socket");
    Box::new(move |offset, into| {
        let request = [offset.to_le_bytes(), (into.len() as u64).to_le_bytes()].concat();
        stream.write_all(&request).expect("a request");
        stream.read_exact(into).expect("a block");
    })
}

fn main() -> io::Result<()> {
    let argument = |at: usize, default: usize| {
        std::env::args().nth(at).and_then(|text| text.parse().ok()).unwrap_or(default)
    };
    let (gib, streams, rounds) = (argument(1, 4), argument(2, 2), argument(3, 5));
    let blocks = gib * (1 << 30) / BLOCK_BYTES;
    let file = segment()?;
    let bare = bare_server(Arc::clone(&file))?;
    let authority = certificates::Authority::new();
    let encrypted = |node: &str| Identity { tls: Some(authority.tls(node)), ..identity(node) };
    let serve = |integrity,
                 identity: &dyn Fn(&str) -> Identity|
     -> io::Result<(Server, Arc<TcpTransport>)> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let service = Arc::new(Segment(Arc::clone(&file)));
        let limits = Limits::default();
        let server = Server::start(listener, identity("holder"), integrity, service, limits)?;
        let address = server.local_addr();
        let resolve = Arc::new(move |_: &str| Some(address));
        let transport = TcpTransport::new(identity("reader"), integrity, resolve, streams);
        Ok((server, Arc::new(transport)))
    };
    let (_headers_server, headers) = serve(Integrity::Headers, &identity)?;
    let (_full_server, full) = serve(Integrity::Full, &identity)?;
    let (_tls_server, tls) = serve(Integrity::Headers, &encrypted)?;
    let through = |transport: &Arc<TcpTransport>| -> Fetch {
        let transport = Arc::clone(transport);
        Box::new(move |offset, into| {
            let request = BlockRequest {
                file: [1, 2],
                version: [1, 2, 3],
                offset,
                length: into.len() as u32,
                may_fill: false,
            };
            let silence = Duration::from_secs(10);
            transport.fetch("holder", &request, into, silence).expect("a block");
        })
    };
    let mut results = [const { Vec::new() }; 4];
    for _ in 0..rounds {
        results[0].push(measure(blocks, streams, &|| bare_fetch(bare)));
        results[1].push(measure(blocks, streams, &|| through(&headers)));
        results[2].push(measure(blocks, streams, &|| through(&full)));
        results[3].push(measure(blocks, streams, &|| through(&tls)));
    }
    println!("{gib} GiB in blocks of 4 MiB, {streams} streams, median of {rounds} rounds");
    println!("{:<16} {:>8} {:>8} {:>10}", "", "GiB/s", "/ bare", "CPU s/GiB");
    let bare_rate = median(results[0].iter().map(|(rate, _)| *rate).collect());
    for (name, results) in ["bare sendfile", "headers", "full", "TLS"].iter().zip(&results) {
        let rate = median(results.iter().map(|(rate, _)| *rate).collect());
        let processor = median(results.iter().map(|(_, processor)| *processor).collect());
        println!("{name:<16} {rate:>8.2} {:>8.2} {processor:>10.3}", rate / bare_rate);
    }
    Ok(())
}
