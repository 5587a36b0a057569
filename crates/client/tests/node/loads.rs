//! Loads that nobody waits for end, and those that cannot fit do not begin.

use std::cell::Cell;
use std::fs::File;

use tidepool_proto::ErrorKind;
use tidepool_proto::admin::{AdminRequest, AdminService};

use crate::place::Place;

#[test]
fn a_file_longer_than_the_store_is_not_loaded() {
    let place = Place::new();
    let path = place.path("sparse");
    File::create(&path).unwrap().set_len(1 << 40).unwrap();
    let file = File::open(&path).unwrap();
    let error = place.client().admin(AdminRequest::Load, Some(std::os::fd::AsFd::as_fd(&file)));
    let error = error.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::StoreFull, "{error}");
    assert_eq!(place.node.status().pfs_read_bytes, 0);
}

#[test]
fn a_load_ends_when_nobody_waits_for_it() {
    const BLOCKS: u64 = 10;
    let place = Place::new();
    let path = place.path("file");
    File::create(&path).unwrap().set_len(BLOCKS * (4 << 20)).unwrap();
    let asked = Cell::new(0);
    let go_on = || {
        asked.set(asked.get() + 1);
        asked.get() < 3
    };
    let file = File::open(&path).unwrap();
    let outcome = place.node.admin_while(AdminRequest::Load, Some(file.into()), 0, &go_on);
    assert_eq!(outcome.unwrap_err().kind(), ErrorKind::NodeUnavailable);
    assert_eq!(asked.get(), 3, "it is asked before each block");
    let file = File::open(&path).unwrap();
    place.node.admin(AdminRequest::Load, Some(file.into()), 0).expect("the turn came back");
}
