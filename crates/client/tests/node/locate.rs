//! Where splits are, as a client asks: a node that stands alone says so, and is asked no more.

use std::fs::File;
use std::os::fd::AsFd;

use tidepool_client::{Client, ClientOptions};
use tidepool_proto::locality::SplitRange;

use crate::place::Place;

const RANGE: SplitRange = SplitRange { split_bytes: 1 << 20, first: 0, count: 9 };

#[test]
fn a_node_that_stands_alone_is_asked_once_in_a_while() {
    let place = Place::new();
    let path = place.file("file", b"bytes", 0, 0o644);
    let client = place.client();
    // Not being asked about a file that it may serve says nothing.
    let write_only = File::options().write(true).open(&path).unwrap();
    assert_eq!(client.locate(write_only.as_fd(), RANGE), None);
    assert!(client.may_locate(), "it may be of a cluster");
    let file = File::open(&path).unwrap();
    assert_eq!(client.locate(file.as_fd(), RANGE), None);
    assert!(!client.may_locate(), "it stands alone");
}

#[test]
fn nothing_is_known_without_a_node() {
    let directory = tempfile::tempdir().unwrap();
    let socket = Some(directory.path().join("socket"));
    let client = Client::connect(ClientOptions { socket, ..ClientOptions::default() });
    let file = tempfile::tempfile().unwrap();
    assert!(!client.may_locate());
    assert_eq!(client.locate(file.as_fd(), RANGE), None);
}
