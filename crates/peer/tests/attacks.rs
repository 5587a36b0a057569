//! What somebody without the key does to connections: replays, changes, reflects, pretends.

mod support;

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use support::proxy::{BLOCK, BODY, CALL, CODE_BYTES, CONFIRM, CONFIRMED, Part, Proxy, REPLY};
use support::{
    Holder, LONG, identity, identity_with, patient, reach, reach_with, request, serve, serve_with,
    wait_for,
};
use tidepool_peer::{Fault, Identity, Integrity, Limits, PeerError, Server, Transport};

const MIB: usize = 1 << 20;

/// Where the integrity is in the first message and in its answer.
const HELLO_INTEGRITY: usize = 2 + 4 + 2;
const ANSWER_INTEGRITY: usize = 4 + 1 + 2;

/// One bit of a part is flipped once.
fn flip(bytes: &mut [u8], at: usize) {
    bytes[at] ^= 1;
}

fn called(server: &Server, identity: Identity) -> Result<Vec<u8>, PeerError> {
    reach_with(identity, Integrity::Headers, server.local_addr()).call("holder", b"?", LONG)
}

#[test]
fn without_the_key_nobody_is_served() {
    let holder = Arc::new(Holder::new(0));
    let server = serve(&holder);
    let refused = called(&server, identity_with("reader", "reef", 2));
    // The server proves itself first, so this is who notices.
    assert!(matches!(refused, Err(PeerError::Authentication(_))), "{refused:?}");
    assert_eq!(server.counters().authenticated, 0);
    assert_eq!(holder.calls.load(Ordering::SeqCst), 0);
}

#[test]
fn a_client_that_guesses_its_proof_is_not_served() {
    let holder = Arc::new(Holder::new(0));
    let server = serve(&holder);
    // The server's own proof, sent back; and any other.
    for reflected in [true, false] {
        let seen = Arc::new(Mutex::new(Vec::new()));
        let proxy = Proxy::start(server.local_addr(), false, move |_, part, bytes| {
            match part {
                Part::Answer => *seen.lock() = bytes[40..].to_vec(),
                Part::Proof if reflected => return Some(seen.lock().clone()),
                Part::Proof => return Some(vec![0x5a; 32]),
                _ => {}
            }
            Some(bytes)
        });
        let refused = reach(proxy.address).call("holder", b"?", LONG);
        assert!(matches!(refused, Err(PeerError::Unreachable(_))), "{refused:?}");
    }
    wait_for("both are counted", || server.counters().closed(Fault::Forged) == 2);
    assert_eq!(holder.calls.load(Ordering::SeqCst), 0);
}

#[test]
fn other_clusters_and_other_names_are_refused_with_the_reason() {
    let holder = Arc::new(Holder::new(0));
    let server = serve(&holder);
    let refused = called(&server, identity_with("reader", "atoll", 1));
    assert!(matches!(&refused, Err(PeerError::Authentication(why)) if why.contains("cluster")));
    wait_for("it is counted", || server.counters().closed(Fault::Cluster) == 1);
    // The same cluster name in another cluster's answer proves nothing either.
    let proxy = Proxy::start(server.local_addr(), false, |_, part, mut bytes| {
        if part == Part::Hello {
            let at = bytes.windows(5).position(|name| name == b"atoll").expect("the cluster");
            let rest = bytes.split_off(at + 5);
            bytes.truncate(at - 1);
            bytes.extend_from_slice(&[b"\x04reef", &rest[..]].concat());
            bytes[0] -= 1;
        }
        Some(bytes)
    });
    let stranger = identity_with("reader", "atoll", 1);
    let refused = reach_with(stranger, Integrity::Headers, proxy.address).call("holder", b"", LONG);
    assert!(matches!(refused, Err(PeerError::Authentication(_))), "{refused:?}");

    let refused = reach(server.local_addr()).call("somebody", b"?", LONG);
    assert!(matches!(&refused, Err(PeerError::Authentication(why)) if why.contains("name")));
    let refused = called(&server, identity("holder"));
    assert!(matches!(&refused, Err(PeerError::Authentication(why)) if why.contains("own")));
    wait_for("both are counted", || server.counters().closed(Fault::Name) == 2);
    assert_eq!(server.counters().authenticated, 0);
}

#[test]
fn a_connection_that_is_led_to_another_node_is_refused() {
    let holder = Arc::new(Holder::new(0));
    let other = Arc::new(Holder::new(0));
    let server = serve(&holder);
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let service = Arc::clone(&other) as Arc<dyn tidepool_peer::Service>;
    let identity = identity("other");
    let elsewhere = Server::start(listener, identity, Integrity::Headers, service, patient());
    let elsewhere = elsewhere.expect("a server");
    // Meant for the holder, led to the other; then the name is changed on its way.
    for renamed in [false, true] {
        let proxy = Proxy::start(elsewhere.local_addr(), false, move |_, part, mut bytes| {
            if part == Part::Hello && renamed {
                let at = bytes.len() - 7;
                bytes.truncate(at);
                bytes.extend_from_slice(b"\x05other");
                bytes[0] -= 1;
            }
            Some(bytes)
        });
        let refused = reach(proxy.address).call("holder", b"?", LONG);
        assert!(matches!(refused, Err(PeerError::Authentication(_))), "{refused:?}");
    }
    assert_eq!(elsewhere.counters().authenticated, 0);
    assert_eq!(server.counters().accepted, 0);
}

#[test]
fn a_hello_that_comes_back_is_no_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    let mirror = std::thread::spawn(move || {
        let (mut stream, _) = listener.accept().expect("a client");
        let mut copy = stream.try_clone().expect("a socket");
        let _ = std::io::copy(&mut stream, &mut copy);
    });
    // With a name so long that the hello is no shorter than an answer.
    let wordy = identity_with("reader", &"r".repeat(64), 1);
    let refused = reach_with(wordy, Integrity::Headers, address).call("holder", b"?", LONG);
    assert!(matches!(refused, Err(PeerError::Protocol(_))), "{refused:?}");
    mirror.join().expect("it ends with the connection");
}

#[test]
fn integrity_and_version_cannot_be_talked_down() {
    let weaken_hello = |part, bytes: &mut Vec<u8>| {
        if part == Part::Hello {
            assert_eq!(std::mem::replace(&mut bytes[HELLO_INTEGRITY], 1), 2);
        }
    };
    let weaken_answer = |part, bytes: &mut Vec<u8>| {
        if part == Part::Answer {
            assert_eq!(std::mem::replace(&mut bytes[ANSWER_INTEGRITY], 1), 2);
        }
    };
    type Weaken = fn(Part, &mut Vec<u8>);
    for (weaken, of_server) in [
        (weaken_hello as Weaken, Integrity::Headers),
        (weaken_answer as Weaken, Integrity::Headers),
        (weaken_hello as Weaken, Integrity::Full),
        (weaken_answer as Weaken, Integrity::Full),
    ] {
        let holder = Arc::new(Holder::new(MIB));
        let server = serve_with(&holder, of_server, patient());
        let proxy = Proxy::start(server.local_addr(), true, move |_, part, mut bytes| {
            weaken(part, &mut bytes);
            Some(bytes)
        });
        let transport = reach_with(identity("reader"), Integrity::Full, proxy.address);
        let mut into = vec![0; MIB];
        let refused = transport.fetch("holder", &request(0, MIB), &mut into, LONG);
        assert!(matches!(refused, Err(PeerError::Authentication(_))), "{refused:?}");
        assert_eq!(server.counters().authenticated, 0);
    }
    // Another version, said by either side.
    for (part, at) in [(Part::Hello, 2 + 4), (Part::Answer, 4 + 1)] {
        let holder = Arc::new(Holder::new(0));
        let server = serve(&holder);
        let proxy = Proxy::start(server.local_addr(), false, move |_, this, mut bytes| {
            if this == part {
                bytes[at] = 0;
            }
            Some(bytes)
        });
        let refused = reach(proxy.address).call("holder", b"?", LONG);
        assert!(matches!(&refused, Err(PeerError::Protocol(why)) if why.contains("version")));
        assert_eq!(server.counters().authenticated, 0);
    }
}

#[test]
fn a_recorded_connection_cannot_be_played_again() {
    let holder = Arc::new(Holder::new(0));
    let server = serve(&holder);
    let recorded = Arc::new(Mutex::new(Vec::new()));
    let proxy = Proxy::start(server.local_addr(), false, {
        let recorded = Arc::clone(&recorded);
        move |_, part, bytes| {
            if matches!(part, Part::Hello | Part::Proof | Part::Header(CALL) | Part::Rest(CALL)) {
                recorded.lock().extend_from_slice(&bytes);
            }
            Some(bytes)
        }
    });
    reach(proxy.address).call("holder", b"once", LONG).expect("a reply");
    let mut stream = TcpStream::connect(server.local_addr()).expect("a connection");
    stream.write_all(&recorded.lock()).expect("the server reads");
    let mut answer = Vec::new();
    // Closed with bytes that it did not read, so this may be an error.
    let _ = stream.read_to_end(&mut answer);
    wait_for("it is counted", || server.counters().closed(Fault::Forged) == 1);
    assert_eq!(holder.calls.load(Ordering::SeqCst), 1);
    assert!(answer.len() <= 72, "nothing but the server's hello");
}

#[test]
fn a_frame_that_comes_twice_is_not_answered_twice() {
    let holder = Arc::new(Holder::new(0));
    let server = serve(&holder);
    let header = Mutex::new(Vec::new());
    let proxy = Proxy::start(server.local_addr(), false, move |_, part, bytes| match part {
        Part::Header(CALL) => {
            *header.lock() = bytes.clone();
            Some(bytes)
        }
        Part::Rest(CALL) => Some([&bytes[..], &header.lock()[..], &bytes[..]].concat()),
        _ => Some(bytes),
    });
    let transport = reach(proxy.address);
    transport.call("holder", b"once", LONG).expect("the first is answered");
    wait_for("it is counted", || server.counters().closed(Fault::Replayed) == 1);
    assert_eq!(holder.calls.load(Ordering::SeqCst), 1);
}

#[test]
fn an_answer_of_before_is_no_answer() {
    // An older reply of the same connection, and one of another connection of the same number.
    for same_connection in [true, false] {
        let holder = Arc::new(Holder::new(0));
        let server = serve(&holder);
        let old = Mutex::new(Vec::new());
        let proxy = Proxy::start(server.local_addr(), false, move |_, part, bytes| {
            if matches!(part, Part::Header(REPLY) | Part::Rest(REPLY)) {
                let mut old = old.lock();
                let index = usize::from(part == Part::Rest(REPLY));
                if old.len() == 2 {
                    return Some(std::mem::take(&mut old[index]));
                }
                old.push(bytes.clone());
            }
            Some(bytes)
        });
        let transport = reach(proxy.address);
        transport.call("holder", b"1", LONG).expect("a reply");
        if !same_connection {
            transport.forget("holder");
        }
        let replayed = transport.call("holder", b"2", LONG);
        assert!(matches!(replayed, Err(PeerError::Authentication(_))), "{replayed:?}");
        assert_eq!(transport.connections("holder"), 0);
    }
}

#[test]
fn a_change_of_any_part_is_noticed() {
    let parts = [
        Part::Hello,
        Part::Answer,
        Part::Proof,
        Part::Header(CALL),
        Part::Rest(CALL),
        Part::Header(REPLY),
        Part::Rest(REPLY),
        Part::Header(BLOCK),
        Part::Rest(BLOCK),
        Part::Header(BODY),
        Part::Rest(BODY),
        Part::Header(CONFIRM),
        Part::Header(CONFIRMED),
    ];
    let length = MIB + 17;
    let holder = Arc::new(Holder::new(length));
    let server = serve_with(&holder, Integrity::Full, patient());
    for part in parts {
        for at in [0, 1, 9, 15, 16, 31, usize::MAX] {
            let proxy = Proxy::start(server.local_addr(), true, move |_, this, mut bytes| {
                if this == part {
                    let at = at.min(bytes.len() - 1);
                    flip(&mut bytes, at);
                }
                Some(bytes)
            });
            // Where the first message says that it is longer than it is, both sides wait.
            let waits = part == Part::Hello && at < 2;
            let patience = if waits { Duration::from_millis(200) } else { LONG };
            let transport = reach_with(identity("reader"), Integrity::Full, proxy.address);
            let mut into = vec![0; length];
            let outcome = transport
                .call("holder", b"?", patience)
                .and_then(|_| transport.fetch("holder", &request(0, length), &mut into, patience));
            let error = outcome.expect_err("it is noticed");
            let timed_out = matches!(error, PeerError::TimedOut);
            assert!(!timed_out || waits, "{part:?}, byte {at}: {error}");
        }
    }
    assert_eq!(server.counters().changed, 0);
}

#[test]
fn a_changed_byte_of_a_block_is_found_wherever_it_is() {
    let length = MIB + 17;
    let holder = Arc::new(Holder::new(length));
    let server = serve_with(&holder, Integrity::Full, patient());
    let at = Arc::new(AtomicUsize::new(0));
    let proxy = Proxy::start(server.local_addr(), true, {
        let at = Arc::clone(&at);
        move |_, part, mut bytes| {
            if part == Part::Rest(BODY) {
                assert_eq!(bytes.len(), length + CODE_BYTES);
                flip(&mut bytes, at.load(Ordering::SeqCst));
            }
            Some(bytes)
        }
    });
    let transport = reach_with(identity("reader"), Integrity::Full, proxy.address);
    let mut into = vec![0; length];
    for changed in [0, 1, (256 << 10) - 1, 256 << 10, 777_777, MIB, length - 1, length + 15] {
        at.store(changed, Ordering::SeqCst);
        let fetched = transport.fetch("holder", &request(0, length), &mut into, LONG);
        assert!(matches!(fetched, Err(PeerError::Authentication(_))), "{changed}: {fetched:?}");
    }
    assert_eq!(holder.confirms.load(Ordering::SeqCst), 0);
}

#[test]
fn silent_connections_do_not_keep_peers_out() {
    let holder = Arc::new(Holder::new(0));
    let server = serve(&holder);
    let most = Limits::default().unauthenticated;
    let silent: Vec<TcpStream> = (0..3 * most)
        .map(|_| TcpStream::connect(server.local_addr()).expect("a connection"))
        .collect();
    wait_for("all are accepted", || server.counters().accepted == 3 * most as u64);
    let transport = reach(server.local_addr());
    transport.call("holder", b"?", LONG).expect("a peer gets in");
    assert!(server.counters().closed(Fault::Crowded) > 2 * most as u64);
    // Those that came first had to go for it.
    for mut stream in silent.into_iter().take(2 * most) {
        stream.set_read_timeout(Some(LONG)).expect("a socket");
        match stream.read(&mut [0]) {
            Ok(read) => assert_eq!(read, 0),
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
}

#[test]
fn a_connection_that_does_not_prove_itself_in_time_is_closed() {
    let holder = Arc::new(Holder::new(0));
    let limits = Limits { handshake: Duration::from_millis(50), ..patient() };
    let server = serve_with(&holder, Integrity::Headers, limits);
    for begun in [&b""[..], b"\x80", b"\x80\x00TPpc"] {
        let mut stream = TcpStream::connect(server.local_addr()).expect("a connection");
        stream.write_all(begun).expect("the server reads");
        let _ = stream.read_to_end(&mut Vec::new());
    }
    assert_eq!(server.counters().closed(Fault::TimedOut), 3);
}

#[test]
fn what_is_no_hello_is_closed_and_counted_by_kind() {
    let holder = Arc::new(Holder::new(0));
    let server = serve(&holder);
    let closed = |bytes: &[u8], fault: Fault| {
        let before = server.counters().closed(fault);
        let mut stream = TcpStream::connect(server.local_addr()).expect("a connection");
        stream.write_all(bytes).expect("a socket takes it");
        let _ = stream.shutdown(Shutdown::Write);
        let _ = stream.read_to_end(&mut Vec::new());
        wait_for("it is counted", || server.counters().closed(fault) == before + 1);
    };
    closed(b"GET / HTTP/1.1\r\n\r\n", Fault::Garbage);
    closed(&[0xff; 1 << 10], Fault::Garbage);
    closed(b"\x00", Fault::Truncated);
    closed(&[&b"\x40\x00TPpc"[..], &[0; 30]].concat(), Fault::Truncated);
    closed(&[&b"\x40\x00TPpc\x63\x00"[..], &[0; 58]].concat(), Fault::Version);
    // A hello without names, and one with names of no bytes.
    closed(&[&b"\x27\x00TPpc\x01\x00\x01"[..], &[0; 32]].concat(), Fault::Garbage);
    closed(&[&b"\x2a\x00TPpc\x01\x00\x01"[..], &[0; 35]].concat(), Fault::Garbage);
    assert_eq!(server.counters().authenticated, 0);
}
