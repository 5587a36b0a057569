//! Taking and giving up the socket: stale ones, ones in use, and paths that cannot be.

use std::os::unix::net::UnixListener;
use std::sync::Arc;

use crate::fake::FakeNode;
use crate::raw::{Raw, Scene, start};
use tidepool_node::server::ServerLimits;
use tidepool_proto::ErrorKind;
use tidepool_proto::wire::Request;

#[test]
fn a_second_node_is_refused_and_told_who_is_there() {
    let scene = Scene::new(ServerLimits::default());
    let path = scene.server.socket_path();
    let node = FakeNode::new();
    let error = start(path, &node, ServerLimits::default()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InUse);
    let process_id = std::process::id().to_string();
    assert!(error.to_string().contains(&process_id), "{error}");

    // Also where the lock file is gone.
    std::fs::remove_file(path.with_file_name("socket.lock")).unwrap();
    let error = start(path, &node, ServerLimits::default()).err().unwrap();
    assert_eq!(error.kind(), ErrorKind::InUse);
    assert!(error.to_string().contains(&process_id), "{error}");
    assert!(Raw::connect(path).socket.peer_addr().is_ok(), "the first one goes on");
}

#[test]
fn a_stale_socket_is_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("socket");
    drop(UnixListener::bind(&path).unwrap());
    assert!(path.exists());
    let server = start(&path, &FakeNode::new(), ServerLimits::default()).unwrap();
    Raw::connect(&path);
    server.stop();
    drop(server);
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0, "nothing is left");
    let server = start(&path, &FakeNode::new(), ServerLimits::default()).unwrap();
    Raw::connect(&path);
    drop(server);
}

#[test]
fn paths_that_cannot_be_sockets_are_refused() {
    let directory = tempfile::tempdir().unwrap();
    let node = FakeNode::new();
    let refused = |path: &std::path::Path| {
        start(path, &node, ServerLimits::default()).err().expect("refused")
    };
    let file = directory.path().join("file");
    std::fs::write(&file, b"precious").unwrap();
    assert_eq!(refused(&file).kind(), ErrorKind::InUse);
    assert_eq!(std::fs::read(&file).unwrap(), b"precious");
    let long = directory.path().join("x".repeat(108));
    let error = refused(&long);
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    assert!(error.to_string().contains("107"), "{error}");
    let missing = directory.path().join("missing/socket");
    assert_eq!(refused(&missing).kind(), ErrorKind::InvalidInput);
}

#[test]
fn stopping_ends_connections_and_waits_for_requests() {
    let scene = Scene::new(ServerLimits::default());
    let (path, _) = scene.file("file", 100);
    let mut clients: Vec<Raw> = (0..20).map(|_| scene.connect()).collect();
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path).unwrap();
    for client in &mut clients {
        client.open(&file, tidepool_proto::Access::ReadWrite).unwrap();
        client.send(&Request::Flush { handle: 1 }, &[], &[]);
    }
    scene.server.stop();
    assert_eq!(scene.server.counts().connections, 0);
    scene.wait_until_idle();
    for client in &mut clients {
        assert!(client.is_ended());
    }
    scene.server.stop();
    assert_eq!(Arc::strong_count(&scene.node), 1, "nothing of the service is kept");
}

#[test]
fn everybody_may_connect() {
    use std::os::unix::fs::PermissionsExt;
    let scene = Scene::new(ServerLimits::default());
    let mode = std::fs::metadata(scene.server.socket_path()).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666);
}
