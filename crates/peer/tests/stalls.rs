//! Peers that say nothing, drip, break off, restart or do not take what they asked for.

mod support;

use std::io::{BufReader, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use support::proxy::{BODY, CALL, Gate, Part, Proxy};
use support::{
    Holder, LONG, identity, patient, pattern, reach, request, serve, serve_with, wait_for,
};
use tidepool_peer::{Fault, Integrity, Limits, PeerError, Refusal, Server, Service, Transport};

const MIB: usize = 1 << 20;
const SHORT: Duration = Duration::from_millis(100);

#[test]
fn a_peer_that_accepts_and_says_nothing_is_not_waited_for() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let transport = reach(listener.local_addr().expect("an address"));
    let mut into = vec![0; 100];
    let fetched = transport.fetch("holder", &request(0, 100), &mut into, SHORT);
    assert!(matches!(fetched, Err(PeerError::TimedOut)), "{fetched:?}");
    let called = transport.call("holder", b"", SHORT);
    assert!(matches!(called, Err(PeerError::TimedOut)), "{called:?}");
    assert_eq!(transport.connections("holder"), 0);
}

#[test]
fn a_peer_where_nothing_listens_is_unreachable() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    drop(listener);
    let called = reach(address).call("holder", b"", LONG);
    assert!(matches!(called, Err(PeerError::Unreachable(_))), "{called:?}");
}

#[test]
fn a_peer_that_stops_within_a_block_is_given_up_with_its_connection() {
    let holder = Arc::new(Holder::new(MIB));
    let server = serve(&holder);
    let gate = Arc::new(Gate::default());
    let proxy = Proxy::start(server.local_addr(), false, {
        let gate = Arc::clone(&gate);
        move |number, part, mut bytes| {
            if number == 0 && part == Part::Header(BODY) {
                return Some(bytes);
            }
            if number == 0 && part == Part::Rest(BODY) {
                gate.wait();
                bytes.truncate(0);
            }
            Some(bytes)
        }
    });
    let transport = reach(proxy.address);
    let mut into = vec![0; MIB];
    let fetched = transport.fetch("holder", &request(0, MIB), &mut into, Duration::from_secs(1));
    assert!(matches!(fetched, Err(PeerError::TimedOut)), "{fetched:?}");
    assert_eq!(transport.connections("holder"), 0, "it is never used again");
    transport.fetch("holder", &request(0, MIB), &mut into, LONG).expect("a fresh connection");
    assert!(into == pattern(0, 0, MIB));
    assert_eq!(server.counters().accepted, 2);
    gate.open();
}

#[test]
fn a_peer_that_drips_is_given_up_after_twenty_silences() {
    let silence = Duration::from_millis(300);
    let holder = Arc::new(Holder::new(MIB));
    let server = serve(&holder);
    let ended = Arc::new(AtomicBool::new(false));
    // A man in the middle of his own: the other one passes parts on as a whole.
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let transport = reach(listener.local_addr().expect("an address"));
    let upstream = server.local_addr();
    let dripping = {
        let ended = Arc::clone(&ended);
        std::thread::spawn(move || {
            let (mut client, _) = listener.accept().expect("a client");
            let server = TcpStream::connect(upstream).expect("a server");
            let (mut requests, mut to_server) =
                (client.try_clone().expect("a socket"), server.try_clone().expect("a socket"));
            std::thread::spawn(move || std::io::copy(&mut requests, &mut to_server));
            let mut passed = 0;
            for byte in BufReader::new(server).bytes().map_while(Result::ok) {
                if std::io::Write::write_all(&mut client, &[byte]).is_err() {
                    break;
                }
                passed += 1;
                // The answer, a header, and from then on slowly.
                if passed > 72 + 32 {
                    std::thread::sleep(Duration::from_millis(5));
                }
            }
            ended.store(true, Ordering::SeqCst);
        })
    };
    let mut into = vec![0; MIB];
    let fetched = transport.fetch("holder", &request(0, MIB), &mut into, silence);
    assert!(matches!(fetched, Err(PeerError::TimedOut)), "{fetched:?}");
    wait_for("the end of the connection", || ended.load(Ordering::SeqCst));
    dripping.join().expect("it dripped");
}

#[test]
fn a_fill_that_never_ends_is_given_up_on_both_sides() {
    let gave_up = Arc::new(AtomicUsize::new(0));
    let holder = Arc::new(Holder::finding(0, {
        let gave_up = Arc::clone(&gave_up);
        move |_, _, working| {
            while working().is_ok() {
                std::thread::sleep(Duration::from_millis(5));
            }
            gave_up.fetch_add(1, Ordering::SeqCst);
            Err(Refusal::NotHeld)
        }
    }));
    let server = serve(&holder);
    let transport = reach(server.local_addr());
    let mut into = vec![0; 100];
    // On a busy machine not even the request may go out in so short a time.
    while holder.blocks.load(Ordering::SeqCst) == 0 {
        let fetched = transport.fetch("holder", &request(0, 100), &mut into, SHORT);
        assert!(matches!(fetched, Err(PeerError::TimedOut)), "{fetched:?}");
    }
    wait_for("the holder gives up too", || gave_up.load(Ordering::SeqCst) == 1);
}

#[test]
fn a_connection_that_breaks_within_a_block_is_an_error() {
    let holder = Arc::new(Holder::new(MIB));
    let server = serve(&holder);
    let proxy = Proxy::start(server.local_addr(), false, |_, part, bytes| {
        (part != Part::Rest(BODY)).then_some(bytes)
    });
    let transport = reach(proxy.address);
    let mut into = vec![0; MIB];
    for _ in 0..3 {
        let fetched = transport.fetch("holder", &request(0, MIB), &mut into, LONG);
        assert!(matches!(fetched, Err(PeerError::Unreachable(_))), "{fetched:?}");
        assert_eq!(transport.connections("holder"), 0);
    }
    assert_eq!(holder.confirms.load(Ordering::SeqCst), 0);
}

/// Bytes that the kernel keeps for sockets of a port, closed ones too.
fn kernel_queue_bytes(address: SocketAddr) -> u64 {
    let port = format!(":{:04X}", address.port());
    let sockets = std::fs::read_to_string("/proc/net/tcp").expect("Linux");
    let queued = sockets.lines().skip(1).filter_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        let of_port = fields.next()?.ends_with(&port);
        let (_peer, _state) = (fields.next()?, fields.next()?);
        let (queued, _) = fields.next()?.split_once(':')?;
        u64::from_str_radix(queued, 16).ok().filter(|_| of_port)
    });
    queued.sum()
}

#[test]
fn a_reader_that_takes_nothing_is_reset_and_its_memory_let_go() {
    let length = 16 * MIB;
    let holder = Arc::new(Holder::new(length));
    let limits = Limits { drain: Duration::from_secs(1), ..patient() };
    let server = serve_with(&holder, Integrity::Headers, limits);
    let gate = Arc::new(Gate::default());
    let proxy = Proxy::start(server.local_addr(), false, {
        let gate = Arc::clone(&gate);
        move |_, part, bytes| {
            if part == Part::Header(BODY) {
                gate.wait();
            }
            Some(bytes)
        }
    });
    let transport = reach(proxy.address);
    let mut into = vec![0; length];
    std::thread::scope(|scope| {
        let fetch = scope.spawn(|| transport.fetch("holder", &request(0, length), &mut into, LONG));
        wait_for("the queue holds pages", || server.queued_bytes() > 0);
        assert!(server.queued_bytes() <= length as u64);
        assert!(kernel_queue_bytes(server.local_addr()) > 0);
        wait_for("the reset", || server.counters().closed(Fault::TimedOut) == 1);
        wait_for("the queue is dropped", || server.queued_bytes() == 0);
        wait_for("the kernel has none of it", || kernel_queue_bytes(server.local_addr()) == 0);
        gate.open();
        let fetched = fetch.join().expect("a result");
        assert!(matches!(fetched, Err(PeerError::Unreachable(_))), "{fetched:?}");
    });
    assert_eq!(holder.confirms.load(Ordering::SeqCst), 0);
}

#[test]
fn a_reader_that_never_confirms_is_reset() {
    let holder = Arc::new(Holder::new(MIB));
    let limits = Limits { drain: Duration::from_secs(1), ..patient() };
    let server = serve_with(&holder, Integrity::Headers, limits);
    let gate = Arc::new(Gate::default());
    let proxy = Proxy::start(server.local_addr(), false, {
        let gate = Arc::clone(&gate);
        move |_, part, bytes| {
            if part == Part::Rest(BODY) {
                gate.wait();
            }
            Some(bytes)
        }
    });
    let transport = reach(proxy.address);
    let mut into = vec![0; MIB];
    std::thread::scope(|scope| {
        let fetch = scope.spawn(|| transport.fetch("holder", &request(0, MIB), &mut into, LONG));
        wait_for("the reset", || server.counters().closed(Fault::TimedOut) == 1);
        gate.open();
        fetch.join().expect("a result").expect_err("no confirm");
    });
    assert_eq!(Arc::strong_count(&holder.word), 1, "what the block held is let go");
}

#[test]
fn a_peer_that_was_restarted_is_asked_again() {
    let holder = Arc::new(Holder::new(MIB));
    let server = serve(&holder);
    let address = server.local_addr();
    let transport = reach(address);
    transport.call("holder", b"", LONG).expect("a reply");
    drop(server);
    transport.call("holder", b"", LONG).expect_err("nobody is there");
    let listener = TcpListener::bind(address).expect("the same port");
    let service = Arc::clone(&holder) as Arc<dyn Service>;
    let identity = identity("holder");
    let server = Server::start(listener, identity, Integrity::Headers, service, patient());
    let server = server.expect("a server");
    transport.call("holder", b"", LONG).expect("a reply of the new one");
    assert_eq!(server.counters().calls, 1);
}

#[test]
fn an_idle_connection_that_breaks_under_a_request_is_replaced_once() {
    let holder = Arc::new(Holder::new(0));
    let server = serve(&holder);
    let calls = AtomicUsize::new(0);
    let proxy = Proxy::start(server.local_addr(), false, move |number, part, bytes| {
        let first = part == Part::Header(CALL) && calls.fetch_add(1, Ordering::SeqCst) == 0;
        // The second request of the first connection, and all of the third.
        let breaks = part == Part::Header(CALL) && (number == 0 && !first || number == 2);
        (!breaks).then_some(bytes)
    });
    let transport = reach(proxy.address);
    transport.call("holder", b"1", LONG).expect("the first connection");
    transport.call("holder", b"2", LONG).expect("the second, without a word");
    assert_eq!(server.counters().accepted, 2);
    transport.forget("holder");
    let called = transport.call("holder", b"3", LONG);
    assert!(matches!(called, Err(PeerError::Unreachable(_))), "a fresh one is not replaced");
    assert_eq!(server.counters().accepted, 3);
}

#[test]
fn what_is_forgotten_fails_at_once_and_can_be_reached_again() {
    let gate = Arc::new(Gate::default());
    let holder = Arc::new(Holder::finding(0, {
        let gate = Arc::clone(&gate);
        move |_, _, _| {
            gate.wait();
            Err(Refusal::NotHeld)
        }
    }));
    let server = serve(&holder);
    let transport = reach(server.local_addr());
    // One connection that is idle, and so is used for the fetch.
    transport.call("holder", b"", LONG).expect("a reply");
    std::thread::scope(|scope| {
        let fetch = scope.spawn(|| {
            let mut into = [0; 8];
            transport.fetch("holder", &request(0, 8), &mut into, LONG)
        });
        wait_for("the fetch is under way", || gate.arrived() == 1);
        transport.forget("holder");
        let fetched = fetch.join().expect("a result");
        assert!(matches!(fetched, Err(PeerError::Unreachable(_))), "{fetched:?}");
    });
    assert_eq!(server.counters().accepted, 1, "a peer that is down is not asked again");
    assert_eq!(transport.connections("holder"), 0);
    gate.open();
    transport.call("holder", b"", LONG).expect("it is up again");
}

#[test]
fn a_server_stops_while_transfers_run() {
    let holder = Arc::new(Holder::finding(4 * MIB, |holder, request, working| {
        if request.may_fill {
            while working().is_ok() {
                std::thread::sleep(Duration::from_millis(1));
            }
            return Err(Refusal::NotHeld);
        }
        Ok(holder.pages(request))
    }));
    let server = serve(&holder);
    let address = server.local_addr();
    std::thread::scope(|scope| {
        for reader in 0..6 {
            scope.spawn(move || {
                let transport = reach(address);
                let mut into = vec![0; 4 * MIB];
                let mut wanted = request(0, 4 * MIB);
                wanted.may_fill = reader == 0;
                let error = loop {
                    match transport.fetch("holder", &wanted, &mut into, LONG) {
                        Ok(()) => assert!(into == pattern(0, 0, 4 * MIB)),
                        Err(error) => break error,
                    }
                };
                assert!(matches!(error, PeerError::Unreachable(_)), "{error}");
            });
        }
        wait_for("transfers run", || server.counters().confirmed > 10);
        drop(server);
    });
    assert_eq!(Arc::strong_count(&holder), 1, "no thread of the server is left");
    assert_eq!(Arc::strong_count(&holder.word), 1, "nor a block that is not confirmed");
}

#[test]
fn peers_have_a_bounded_number_of_connections() {
    let gate = Arc::new(Gate::default());
    let holder = Arc::new(Holder::finding(0, {
        let gate = Arc::clone(&gate);
        move |_, _, _| {
            gate.wait();
            Err(Refusal::NotHeld)
        }
    }));
    let limits = Limits { connections_per_peer: 2, ..patient() };
    let server = serve_with(&holder, Integrity::Headers, limits);
    let transport = reach(server.local_addr());
    let fetch = || {
        let mut into = [0; 8];
        transport.fetch("holder", &request(0, 8), &mut into, LONG)
    };
    std::thread::scope(|scope| {
        let fetches = [scope.spawn(fetch), scope.spawn(fetch)];
        wait_for("both are under way", || gate.arrived() == 2);
        let third = fetch();
        assert!(matches!(third, Err(PeerError::Refused(Refusal::Busy))), "{third:?}");
        gate.open();
        for fetch in fetches {
            let fetched = fetch.join().expect("a result");
            assert!(matches!(fetched, Err(PeerError::Refused(Refusal::NotHeld))), "{fetched:?}");
        }
    });
    transport.forget("holder");
    wait_for("its connections end", || server.counters().connections == 0);
    // The node is started anew, and the server has its idle connections still.
    let left_over = [reach(server.local_addr()), reach(server.local_addr())];
    for transport in &left_over {
        transport.call("holder", b"", LONG).expect("there is room");
    }
    assert_eq!(server.counters().connections, 2);
    let anew = reach(server.local_addr());
    anew.call("holder", b"", LONG).expect("the connection that is idle for longest goes for it");
    assert_eq!(server.counters().connections, 2);
    left_over[0].call("holder", b"", LONG).expect("what was cut off is replaced");
}
