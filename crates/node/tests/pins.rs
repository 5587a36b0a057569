//! `tidepool pin` and `unpin`: whose pins they are, and how much each user may pin.

mod support;

use std::fs::File;

use support::*;
use tidepool_proto::admin::{AdminReply, AdminRequest, AdminService};
use tidepool_proto::{ErrorKind, Result};

const ALICE: u32 = 54_001;
const BOB: u32 = 54_002;

fn ask(fixture: &Fixture, request: AdminRequest, name: &str, user_id: u32) -> Result<AdminReply> {
    let file = File::open(fixture.path(name)).unwrap();
    fixture.node.admin(request, Some(file.into()), user_id)
}

fn pinned_bytes(fixture: &Fixture) -> u64 {
    fixture.node.status().store.pinned_bytes
}

#[test]
fn each_user_may_pin_up_to_a_limit() {
    let fixture = Fixture::with(|config| config.client_limits.pinned_bytes_max = 3 * BLOCK);
    for name in ["one", "two", "three"] {
        fixture.put(name, &content(1, 2 * BLOCK as usize));
    }
    ask(&fixture, AdminRequest::Pin, "one", ALICE).unwrap();
    ask(&fixture, AdminRequest::Pin, "one", ALICE).unwrap();
    let error = ask(&fixture, AdminRequest::Pin, "two", ALICE).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::LimitReached);
    assert!(error.to_string().contains("user_pinned_bytes_max"), "{error}");
    ask(&fixture, AdminRequest::Pin, "two", BOB).unwrap();
    ask(&fixture, AdminRequest::Pin, "three", 0).unwrap();
    assert_eq!(pinned_bytes(&fixture), 6 * BLOCK);
    ask(&fixture, AdminRequest::Unpin, "one", ALICE).unwrap();
    ask(&fixture, AdminRequest::Unpin, "two", BOB).unwrap();
    ask(&fixture, AdminRequest::Pin, "two", ALICE).unwrap();
}

#[test]
fn nobody_ends_the_pin_of_another_user() {
    let fixture = Fixture::new();
    fixture.put("f", &content(1, 2 * BLOCK as usize));
    ask(&fixture, AdminRequest::Pin, "f", ALICE).unwrap();
    let error = ask(&fixture, AdminRequest::Unpin, "f", BOB).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::PermissionDenied);
    assert_eq!(pinned_bytes(&fixture), 2 * BLOCK);
    ask(&fixture, AdminRequest::Unpin, "f", 0).unwrap();
    assert_eq!(pinned_bytes(&fixture), 0);
}

#[test]
fn a_pin_that_a_change_ended_is_given_back_to_its_user() {
    let fixture = Fixture::with(|config| config.client_limits.pinned_bytes_max = 3 * BLOCK);
    fixture.put("f", &content(1, 2 * BLOCK as usize));
    fixture.put("g", &content(2, 2 * BLOCK as usize));
    ask(&fixture, AdminRequest::Pin, "f", ALICE).unwrap();
    overwrite(&fixture.path("f"), 0, b"changed");
    fixture.read("f");
    ask(&fixture, AdminRequest::Pin, "g", ALICE).unwrap();
}

#[test]
fn the_pin_of_a_file_that_is_gone_from_the_pfs_ends() {
    let fixture = Fixture::new();
    for name in ["removed", "replaced", "moved"] {
        fixture.put(name, &content(1, 2 * BLOCK as usize));
        ask(&fixture, AdminRequest::Pin, name, 0).unwrap();
    }
    fixture.put("new", &content(2, 2 * BLOCK as usize));
    std::fs::remove_file(fixture.path("removed")).unwrap();
    std::fs::rename(fixture.path("new"), fixture.path("replaced")).unwrap();
    std::fs::rename(fixture.path("moved"), fixture.path("there")).unwrap();
    assert_eq!(pinned_bytes(&fixture), 6 * BLOCK);
    fixture.node.admin(AdminRequest::EvictAll, None, 0).unwrap();
    assert_eq!(pinned_bytes(&fixture), 2 * BLOCK, "the one that was moved");
    ask(&fixture, AdminRequest::Unpin, "there", 0).unwrap();
    assert_eq!(pinned_bytes(&fixture), 0);
}
