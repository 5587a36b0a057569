//! Thousands of connections with random bytes leave nothing behind.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use support::proxy::{Part, Proxy};
use support::{Holder, LONG, reach, request, serve, wait_for};
use tidepool_peer::{Fault, Transport};

/// A generator whose numbers are the same in each run.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn bytes(&mut self, length_max: usize) -> Vec<u8> {
        let length = usize::try_from(self.next()).expect("64 bits") % (length_max + 1);
        (0..length).map(|_| self.next().to_le_bytes()[3]).collect()
    }
}

fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages: usize = text.split(' ').nth(1).and_then(|field| field.parse().ok()).expect("pages");
    pages * 4096
}

fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("Linux").count()
}

/// One test: what it measures is of the whole process.
#[test]
fn random_bytes_are_closed_counted_and_leave_no_memory() {
    let holder = Arc::new(Holder::new(1 << 20));
    let server = serve(&holder);
    let mut random = Random(7);
    let mut sent = 0;
    let mut send = |rounds: u64| {
        for _ in 0..rounds {
            let mut bytes = random.bytes(600);
            // Half of them look like the beginning of a hello.
            if random.next().is_multiple_of(2) && bytes.len() > 50 {
                let length = (39 + random.next() % 200) as u16;
                bytes[..2].copy_from_slice(&length.to_le_bytes());
                bytes[2..9].copy_from_slice(b"TPpc\x01\x00\x01");
            }
            let mut stream = TcpStream::connect(server.local_addr()).expect("a connection");
            // The server may have closed it already.
            let _ = stream.write_all(&bytes);
            let _ = stream.shutdown(Shutdown::Write);
            let _ = stream.read_to_end(&mut Vec::new());
        }
        sent += rounds;
        let counted = || Fault::ALL.iter().map(|fault| server.counters().closed(*fault)).sum();
        wait_for("each is counted", || sent == counted());
        wait_for("no thread of them is left", || threads() <= 4);
    };
    send(1_000);
    let before = resident_bytes();
    send(9_000);
    let growth = resident_bytes().saturating_sub(before);
    assert!(growth < 16 << 20, "{growth} bytes more");
    let counters = server.counters();
    assert_eq!((counters.authenticated, counters.connections), (0, 0));
    assert!(counters.closed(Fault::Garbage) > 500 && counters.closed(Fault::Truncated) > 500);
    members_bytes_are_checked_too(&server, &holder);
}

/// The same in the middle of connections that were proven.
fn members_bytes_are_checked_too(server: &tidepool_peer::Server, holder: &Holder) {
    let seed = AtomicU64::new(1);
    let proxy = Proxy::start(server.local_addr(), false, move |_, part, bytes| {
        let mut random = Random(seed.fetch_add(1, Ordering::SeqCst));
        match part {
            // A frame of the client becomes anything.
            Part::Header(1..=3) if random.next().is_multiple_of(2) => Some(random.bytes(2_000)),
            _ => Some(bytes),
        }
    });
    let transport = reach(proxy.address);
    let mut failed = 0;
    for _ in 0..300 {
        let mut into = vec![0; 4096];
        let patience = std::time::Duration::from_millis(100);
        failed += u64::from(transport.call("holder", b"?", patience).is_err());
        let fetched = transport.fetch("holder", &request(0, 4096), &mut into, patience);
        failed += u64::from(fetched.is_err());
        transport.forget("holder");
    }
    drop(proxy);
    assert!(failed > 100, "{failed}");
    wait_for("all connections end", || server.counters().connections == 0);
    let served = server.counters();
    assert_eq!(holder.confirms.load(Ordering::SeqCst) as u64, served.confirmed + served.changed);
    reach(server.local_addr()).call("holder", b"?", LONG).expect("the server goes on");
}
