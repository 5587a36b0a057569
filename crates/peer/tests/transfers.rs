//! What goes well: small requests and blocks of all kinds, alone and many at once.

mod support;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use support::proxy::Gate;
use support::{
    Holder, LONG, identity, patient, pattern, reach, reach_with, request, serve, serve_with,
    wait_for,
};
use tidepool_peer::{Bytes, Fault, Integrity, Limits, PeerError, Refusal, TcpTransport, Transport};

const MIB: usize = 1 << 20;

#[test]
fn a_call_is_answered_with_the_name_of_who_asked() {
    let holder = Arc::new(Holder::new(0));
    let server = serve(&holder);
    let transport = reach(server.local_addr());
    for size in [0, 1, 100, MIB - 100] {
        let question = vec![b'q'; size];
        let reply = transport.call("holder", &question, LONG).expect("a reply");
        assert_eq!(reply, [b"reader: ", &question[..]].concat());
    }
    assert_eq!(server.counters().accepted, 1);
    assert_eq!(server.counters().calls, 4);
}

#[test]
fn what_does_not_fit_into_a_frame_is_refused_at_once() {
    let holder = Arc::new(Holder::new(0));
    let server = serve(&holder);
    let transport = reach(server.local_addr());
    let long = vec![0; MIB + 1];
    let error = transport.call("holder", &long, LONG).expect_err("too long");
    assert!(matches!(error, PeerError::Protocol(_)), "{error}");
    // The reply has the name in front, so it is longer than what fits.
    let error = transport.call("holder", &long[1..], LONG).expect_err("too long a reply");
    assert!(matches!(error, PeerError::Refused(Refusal::Unknown)), "{error}");
    let mut short = vec![0; 9];
    let error = transport.fetch("holder", &request(0, 10), &mut short, LONG).expect_err("no room");
    assert!(matches!(error, PeerError::Protocol(_)), "{error}");
    assert_eq!(holder.blocks.load(Ordering::SeqCst), 0);
    transport.call("holder", b"", LONG).expect("the connection is still good");
    assert_eq!(server.counters().accepted, 1);
}

#[test]
fn blocks_of_all_lengths_arrive_whole() {
    let whole = 4 * MIB;
    for integrity in [Integrity::Headers, Integrity::Full] {
        let holder = Arc::new(Holder::new(whole));
        let server = serve_with(&holder, integrity, patient());
        let transport = reach_with(identity("reader"), integrity, server.local_addr());
        let lengths = [0, 1, 4095, 256 << 10, (256 << 10) - 1, MIB + 3, whole - 8];
        for (number, length) in lengths.into_iter().enumerate() {
            let mut into = vec![0xff; length];
            let offset = 8;
            let fetched = transport.fetch("holder", &request(offset, length), &mut into, LONG);
            fetched.expect("a block");
            assert!(into == pattern(0, offset, length), "{integrity:?}, {length} bytes");
            assert_eq!(server.counters().confirmed, number as u64 + 1);
        }
        let counters = server.counters();
        assert_eq!(counters.accepted, 1);
        assert_eq!(counters.block_bytes, lengths.iter().sum::<usize>() as u64);
        // Without codes only what is short is copied.
        let copied = match integrity {
            Integrity::Headers => 1 + 4095 + (256 << 10) - 1,
            Integrity::Full => counters.block_bytes,
        };
        assert_eq!(counters.copied_bytes, copied);
    }
}

#[test]
fn the_stronger_integrity_of_both_sides_holds() {
    use Integrity::{Full, Headers};
    for (of_server, of_client) in [(Headers, Full), (Full, Headers)] {
        let holder = Arc::new(Holder::new(MIB));
        let server = serve_with(&holder, of_server, patient());
        let transport = reach_with(identity("reader"), of_client, server.local_addr());
        let mut into = vec![0; MIB];
        transport.fetch("holder", &request(0, MIB), &mut into, LONG).expect("a block");
        assert!(into == pattern(0, 0, MIB));
        assert_eq!(server.counters().copied_bytes, MIB as u64);
    }
}

#[test]
fn bytes_that_the_service_copied_arrive() {
    for integrity in [Integrity::Headers, Integrity::Full] {
        let holder = Arc::new(Holder::finding(0, |holder, request, _| {
            let length = if request.may_fill { 5 } else { request.length as usize };
            Ok(holder.with(Bytes::Copied(vec![7; length])))
        }));
        let server = serve_with(&holder, integrity, patient());
        let transport = reach(server.local_addr());
        let mut into = vec![0; 2 * MIB];
        transport.fetch("holder", &request(0, 2 * MIB), &mut into, LONG).expect("a block");
        assert!(into.iter().all(|byte| *byte == 7));
        // A service that gives another length than asked for.
        let wrong = tidepool_peer::BlockRequest { may_fill: true, ..request(0, 2 * MIB) };
        let error = transport.fetch("holder", &wrong, &mut into, LONG).expect_err("too short");
        assert!(matches!(error, PeerError::Refused(Refusal::Unknown)), "{error}");
    }
}

#[test]
fn a_refusal_says_why_and_keeps_the_connection() {
    let all = [Refusal::NotHeld, Refusal::Stale, Refusal::Busy, Refusal::Unknown];
    let holder = Arc::new(Holder::finding(0, move |_, request, _| {
        Err(all[usize::try_from(request.offset).expect("an index")])
    }));
    let server = serve(&holder);
    let transport = reach(server.local_addr());
    for (offset, expected) in all.into_iter().enumerate() {
        let mut into = [0; 8];
        let error = transport.fetch("holder", &request(offset as u64, 8), &mut into, LONG);
        let error = error.expect_err("refused");
        assert!(matches!(error, PeerError::Refused(refusal) if refusal == expected), "{error}");
    }
    let too_long = Limits::default().block_bytes_max as usize + 1;
    let mut into = vec![0; too_long];
    let error = transport.fetch("holder", &request(0, too_long), &mut into, LONG);
    assert!(matches!(error, Err(PeerError::Refused(Refusal::Unknown))));
    assert_eq!(holder.blocks.load(Ordering::SeqCst), 4);
    assert_eq!(server.counters().accepted, 1);
    assert_eq!(server.counters().refused, 5);
}

#[test]
fn a_request_arrives_as_it_was_made() {
    let wanted = tidepool_peer::BlockRequest {
        file: [u64::MAX, 1],
        version: [i64::MIN, -1, i64::MAX],
        offset: u64::MAX / 3,
        length: 3,
        may_fill: true,
    };
    let expected = wanted.clone();
    let holder = Arc::new(Holder::finding(0, move |holder, request, _| {
        if *request == expected {
            Ok(holder.with(Bytes::Copied(vec![1, 2, 3])))
        } else {
            Err(Refusal::Unknown)
        }
    }));
    let server = serve(&holder);
    let mut into = [0; 3];
    reach(server.local_addr()).fetch("holder", &wanted, &mut into, LONG).expect("as it was made");
    assert_eq!(into, [1, 2, 3]);
}

#[test]
fn a_holder_that_says_that_it_works_is_waited_for() {
    let silence = Duration::from_secs(2);
    let holder = Arc::new(Holder::finding(MIB, move |holder, request, working| {
        let start = std::time::Instant::now();
        while start.elapsed() < silence + silence / 4 {
            working().expect("the reader waits");
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(holder.pages(request))
    }));
    let server = serve(&holder);
    let mut into = vec![0; MIB];
    let transport = reach(server.local_addr());
    transport.fetch("holder", &request(0, MIB), &mut into, silence).expect("a filled block");
    assert!(into == pattern(0, 0, MIB));
}

#[test]
fn many_fetches_share_few_connections() {
    let (blocks, length) = (16, 300 << 10);
    let holder = Arc::new(Holder::new(blocks * length));
    let server = serve(&holder);
    let transport = reach(server.local_addr());
    std::thread::scope(|scope| {
        for reader in 0..24 {
            let transport = &transport;
            scope.spawn(move || {
                let mut into = vec![0; length];
                for round in 0..blocks {
                    let offset = ((reader * 7 + round * 5) % blocks * length) as u64;
                    let wanted = request(offset, length);
                    transport.fetch("holder", &wanted, &mut into, LONG).expect("a block");
                    assert!(into == pattern(0, offset, length));
                    let reply = transport.call("holder", b"?", LONG).expect("a reply");
                    assert_eq!(reply, b"reader: ?");
                }
            });
        }
    });
    let counters = server.counters();
    assert_eq!(counters.confirmed, 24 * blocks as u64);
    assert_eq!(counters.closed(Fault::Crowded), 0);
    wait_for("only idle connections are kept", || server.counters().connections <= 2);
    assert!(transport.connections("holder") <= 2);
    assert_eq!(server.queued_bytes(), 0);
}

#[test]
fn no_more_connections_are_opened_than_allowed() {
    let gate = Arc::new(Gate::default());
    let holder = Arc::new(Holder::finding(MIB, {
        let gate = Arc::clone(&gate);
        move |holder, request, _| {
            gate.wait();
            Ok(holder.pages(request))
        }
    }));
    let server = serve(&holder);
    let transport = reach(server.local_addr());
    std::thread::scope(|scope| {
        for _ in 0..20 {
            scope.spawn(|| {
                let mut into = vec![0; MIB];
                transport.fetch("holder", &request(0, MIB), &mut into, LONG).expect("a block");
            });
        }
        wait_for("all connections are in use", || gate.arrived() == 8);
        assert_eq!(transport.connections("holder"), 8);
        assert_eq!(server.counters().accepted, 8);
        gate.open();
    });
    assert_eq!(server.counters().confirmed, 20);
}

#[test]
fn a_peer_without_an_address_is_not_reachable() {
    let transport =
        TcpTransport::new(identity("reader"), Integrity::Headers, Arc::new(|_| None), 1);
    let error = transport.call("nobody", b"", LONG).expect_err("no address");
    assert!(matches!(error, PeerError::Unreachable(_)), "{error}");
    assert!(error.to_string().contains("nobody"), "{error}");
}

#[test]
fn a_peer_that_moved_is_found() {
    let holder = Arc::new(Holder::new(0));
    let (old, new) = (serve(&holder), serve(&holder));
    let address = Arc::new(parking_lot::Mutex::new(old.local_addr()));
    let resolve = {
        let address = Arc::clone(&address);
        Arc::new(move |_: &str| Some(*address.lock()))
    };
    let transport = TcpTransport::new(identity("reader"), Integrity::Headers, resolve, 1);
    transport.call("holder", b"", LONG).expect("the old address");
    *address.lock() = new.local_addr();
    transport.call("holder", b"", LONG).expect("the new address");
    assert_eq!((old.counters().calls, new.counters().calls), (1, 1));
    assert_eq!(transport.connections("holder"), 1);
}
