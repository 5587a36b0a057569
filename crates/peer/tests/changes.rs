//! Blocks that change while they are on their way: what was sent is refused, whatever it was.

mod support;

use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use rustix::fs::{FallocateFlags, fallocate, ftruncate};
use support::proxy::{BODY, CONFIRM, Gate, Part, Proxy};
use support::{
    Holder, LONG, identity, patient, pattern, reach, reach_with, request, serve, serve_with,
    wait_for,
};
use tidepool_peer::{Bytes, Integrity, PeerError, Transport};

const MIB: usize = 1 << 20;

/// Fetches a block through a man in the middle who takes none of its bytes before `change` was
/// done, which is after the holder has given all of them to its socket.
fn fetch_across_change(change: impl FnOnce(&Holder)) -> (Result<(), PeerError>, Vec<u8>) {
    fetch_across(change, |_| {})
}

/// The same, and `end` after the fetch: the next block is good.
fn fetch_across(
    change: impl FnOnce(&Holder),
    end: impl FnOnce(&Holder),
) -> (Result<(), PeerError>, Vec<u8>) {
    let holder = Arc::new(Holder::new(MIB));
    let server = serve(&holder);
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
    let mut into = vec![0; MIB];
    let fetched = std::thread::scope(|scope| {
        let fetch = scope.spawn(|| transport.fetch("holder", &request(0, MIB), &mut into, LONG));
        wait_for("all bytes are in the socket", || server.counters().block_bytes == MIB as u64);
        change(&holder);
        gate.open();
        fetch.join().expect("a result")
    });
    let counters = server.counters();
    assert_eq!(counters.copied_bytes, 0, "the pages themselves are sent");
    assert_eq!(counters.confirmed + counters.changed, 1);
    end(&holder);
    // Whatever came of it, the connection is good for the next block.
    let mut again = vec![0; MIB];
    transport.fetch("holder", &request(0, MIB), &mut again, LONG).expect("the next block");
    assert_eq!(server.counters().accepted, 1);
    (fetched, into)
}

#[test]
fn a_block_that_stays_as_it_is_is_confirmed() {
    let (fetched, bytes) = fetch_across_change(|_| {});
    fetched.expect("nothing changed");
    assert!(bytes == pattern(0, 0, MIB));
}

#[test]
fn a_block_that_is_overwritten_after_it_was_sent_is_refused() {
    let (fetched, _) = fetch_across_change(|holder| holder.write(&pattern(1, 0, MIB)));
    assert!(matches!(fetched, Err(PeerError::Changed)), "{fetched:?}");
}

#[test]
fn a_block_that_is_punched_and_filled_again_after_it_was_sent_is_refused() {
    let (fetched, _) = fetch_across_change(|holder| {
        holder.word.fetch_add(1, Ordering::SeqCst);
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&holder.file, flags, 0, MIB as u64).expect("a hole");
        holder.word.fetch_add(1, Ordering::SeqCst);
        holder.write(&pattern(0, 0, MIB));
    });
    assert!(matches!(fetched, Err(PeerError::Changed)), "{fetched:?}");
}

#[test]
fn a_block_whose_change_is_under_way_is_refused() {
    let step = |holder: &Holder| {
        holder.word.fetch_add(1, Ordering::SeqCst);
    };
    let (fetched, _) = fetch_across(step, step);
    assert!(matches!(fetched, Err(PeerError::Changed)), "{fetched:?}");
}

#[test]
fn the_holder_is_asked_only_after_all_bytes_are_received() {
    let holder = Arc::new(Holder::new(MIB));
    let server = serve(&holder);
    let gate = Arc::new(Gate::default());
    let proxy = Proxy::start(server.local_addr(), false, {
        let gate = Arc::clone(&gate);
        move |_, part, bytes| {
            if part == Part::Rest(BODY) {
                gate.wait();
            }
            // The client asks when it has the bytes, so not before the gate was opened.
            assert!(part != Part::Header(CONFIRM) || gate.arrived() == 1);
            Some(bytes)
        }
    });
    let transport = reach(proxy.address);
    let mut into = vec![0; MIB];
    std::thread::scope(|scope| {
        let fetch = scope.spawn(|| transport.fetch("holder", &request(0, MIB), &mut into, LONG));
        wait_for("the bytes are on their way", || gate.arrived() == 1);
        assert_eq!(holder.confirms.load(Ordering::SeqCst), 0);
        gate.open();
        fetch.join().expect("a result").expect("a block");
    });
    assert_eq!(holder.confirms.load(Ordering::SeqCst), 1);
    assert!(into == pattern(0, 0, MIB));
}

#[test]
fn a_file_that_became_shorter_gives_a_refused_block() {
    for (integrity, length) in [
        (Integrity::Headers, MIB),
        (Integrity::Headers, 100 << 10),
        (Integrity::Full, MIB),
        (Integrity::Full, 100 << 10),
    ] {
        let holder = Arc::new(Holder::new(2 * MIB));
        let server = serve_with(&holder, integrity, patient());
        let transport = reach_with(identity("reader"), integrity, server.local_addr());
        ftruncate(&holder.file, MIB as u64).expect("a shorter file");
        // The word says nothing of it: the transport itself must not take zeros for bytes.
        let mut into = vec![0; length];
        let beyond = request((MIB - 1000) as u64, length);
        let fetched = transport.fetch("holder", &beyond, &mut into, LONG);
        assert!(matches!(fetched, Err(PeerError::Changed)), "{fetched:?}");
        let good = request(0, length);
        transport.fetch("holder", &good, &mut into, LONG).expect("what is still there");
        assert!(into == pattern(0, 0, length));
        assert_eq!(server.counters().accepted, 1);
    }
}

#[test]
fn a_file_that_cannot_be_read_gives_a_refused_block() {
    for (integrity, length) in [(Integrity::Headers, MIB), (Integrity::Full, MIB)] {
        let holder = Arc::new(Holder::finding(0, |holder, request, _| {
            let directory = Arc::new(OwnedFd::from(File::open("/").expect("a directory")));
            Ok(holder.with(Bytes::File { file: directory, offset: request.offset }))
        }));
        let server = serve_with(&holder, integrity, patient());
        let transport = reach_with(identity("reader"), integrity, server.local_addr());
        let mut into = vec![0; length];
        let fetched = transport.fetch("holder", &request(0, length), &mut into, LONG);
        assert!(matches!(fetched, Err(PeerError::Changed)), "{fetched:?}");
        transport.call("holder", b"", LONG).expect("the connection is still good");
        assert_eq!(server.counters().accepted, 1);
    }
}

#[test]
fn copied_bytes_are_confirmed_like_others() {
    let holder = Arc::new(Holder::finding(0, |holder, request, _| {
        let block = holder.with(Bytes::Copied(vec![1; request.length as usize]));
        // Changed as soon as it was found.
        holder.write(&[]);
        Ok(block)
    }));
    let server = serve(&holder);
    let mut into = vec![0; 100];
    let fetched = reach(server.local_addr()).fetch("holder", &request(0, 100), &mut into, LONG);
    assert!(matches!(fetched, Err(PeerError::Changed)), "{fetched:?}");
    assert_eq!(server.counters().changed, 1);
}
