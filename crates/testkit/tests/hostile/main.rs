//! Tests of what another user on the node must not get, and of what a hostile client must not
//! break.
//!
//! All of it on a real node with a mount, run by root; the other users are threads of this process
//! with other credentials. Five parts: permissions on the mount, room on the PFS, the socket,
//! descriptors that a client was given, limits.

mod descriptors;
mod limits;
mod permissions;
mod room;
mod socket;

use std::path::PathBuf;

use tidepool_testkit::product::{Node, NodeSpec, adds_up};
use tidepool_testkit::user::User;

/// Somebody else: `nobody`, and a user that no file knows of.
fn strangers() -> [User; 2] {
    [User::new(65_534), User::new(54_321)]
}

fn node() -> Node {
    node_with(&[])
}

fn node_with(arguments: &[&str]) -> Node {
    let arguments = arguments.iter().map(|argument| (*argument).to_owned()).collect();
    Node::start(NodeSpec { arguments, ..NodeSpec::default() }).expect("a node starts")
}

/// A file of root on the PFS.
fn file(node: &Node, name: &str, mode: u32, bytes: &[u8]) -> PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let path = node.pfs().join(name);
    std::fs::write(&path, bytes).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
    path
}

/// The node is in good health: it answers, and serves this file as the PFS has it.
fn assert_well(node: &Node, name: &str) {
    // Requests of a client that is gone may be served at this moment.
    let status = node.status_when(adds_up).expect("the node answers");
    assert!(adds_up(&status), "{status:?}");
    let there = std::fs::read(node.pfs().join(name)).unwrap();
    let here = std::fs::read(node.mount().join(name)).unwrap();
    assert!(there == here, "{name} reads differently through the mount");
}
