//! Tests of the limits of one client. Beyond a limit the client gets an error, and other clients
//! are not affected.

use std::fs::File;
use std::os::fd::AsFd;

use tidepool_proto::admin::Status;
use tidepool_proto::wire::{Reply, Request, Verdict};
use tidepool_proto::{Access, ErrorKind};
use tidepool_testkit::needs_mount;
use tidepool_testkit::raw::{RawClient, open_for, read_of};

use super::{assert_well, file, node_with, strangers};

#[test]
fn open_files_of_a_connection() {
    needs_mount!();
    let node = node_with(&["--client-descriptors-max", "16"]);
    let path = file(&node, "public", 0o644, &[1; 1000]);
    strangers()[0].run(|| {
        let descriptor = File::open(&path).unwrap();
        let mut client = RawClient::accepted(node.socket());
        let mut handles = Vec::new();
        let mut refused = None;
        for _ in 0..40 {
            let reply = client.ask(&open_for(Access::Read), &[descriptor.as_fd()]).unwrap();
            match &reply.reply {
                Reply::Opened(opened) => handles.push(opened.handle),
                _ => refused = reply.failure(),
            }
        }
        assert_eq!(refused, Some(ErrorKind::LimitReached));
        assert_eq!(handles.len(), 16);
        let close = Request::Close { handle: handles[0], mapped_bytes: 0 };
        client.send(&close, &[], &[]).unwrap();
        let reply = client.ask(&open_for(Access::Read), &[descriptor.as_fd()]).unwrap();
        assert!(reply.failure().is_none(), "room again after a close: {reply:?}");
    });
    assert_well(&node, "public");
}

#[test]
fn connections_of_a_user() {
    needs_mount!();
    let node = node_with(&["--user-connections-max", "4"]);
    file(&node, "public", 0o644, &[1; 1000]);
    let [nobody, other] = strangers();
    let held = nobody.run(|| {
        let connect = |_| RawClient::connect(node.socket()).unwrap();
        let connections: Vec<_> = (0..8).map(connect).collect();
        let accepted =
            connections.iter().filter(|(_, verdict)| *verdict == Verdict::Accepted).count();
        assert_eq!(accepted, 4);
        assert!(connections.iter().any(|(_, verdict)| *verdict == Verdict::LimitReached));
        connections
    });
    other.run(|| drop(RawClient::accepted(node.socket())));
    assert_well(&node, "public");
    drop(held);
}

#[test]
fn borrowed_bytes_of_a_user() {
    needs_mount!();
    let node = node_with(&["--user-pinned-bytes-max", "4MiB"]);
    let paths: Vec<_> = (0..6)
        .map(|number| file(&node, &format!("public{number}"), 0o644, &vec![1; 3 << 19]))
        .collect();
    for path in &paths {
        node.command(&["load"]).arg(path).status().unwrap();
    }
    strangers()[0].run(|| {
        let (mut lent_files, mut clients) = (0, Vec::new());
        // A byte of a file keeps all of it, so it counts as all of it, once.
        for path in paths.iter().chain(&paths) {
            let descriptor = File::open(path).unwrap();
            let mut client = RawClient::accepted(node.socket());
            let opened = client.ask(&open_for(Access::Read), &[descriptor.as_fd()]).unwrap();
            let borrow = Request::Borrow { handle: opened.handle(), offset: 0, length: 1 };
            let reply = client.ask(&borrow, &[]).unwrap();
            lent_files += u32::from(matches!(reply.reply, Reply::Borrowed { .. }));
            clients.push(client);
        }
        assert_eq!(lent_files, 4, "two files of 1.5 MiB, twice each");
    });
    // What a client held is free when it is gone, so that the store can shrink.
    node.ask(&["resize", "0"]).unwrap();
    let is_empty = |status: &Status| status.store.resident_bytes == 0;
    assert!(is_empty(&node.status_when(is_empty).unwrap()));
    assert_well(&node, "public0");
}

#[test]
fn requests_in_flight() {
    needs_mount!();
    let node = node_with(&["--client-requests-max", "2"]);
    let path = file(&node, "public", 0o644, &vec![1; 8 << 20]);
    strangers()[0].run(|| {
        let descriptor = File::open(&path).unwrap();
        let mut client = RawClient::accepted(node.socket());
        let opened = client.ask(&open_for(Access::Read), &[descriptor.as_fd()]).unwrap();
        // As many as a socket holds the answers of: a client that sends more has to take some
        // first.
        for number in 0..60 {
            let offset = (number % 8) << 20;
            client.send(&read_of(opened.handle(), offset, 64), &[], &[]).unwrap();
        }
        for _ in 0..60 {
            assert_eq!(client.receive().unwrap().payload.len(), 64, "waiting is no failure");
        }
    });
    assert_well(&node, "public");
}
