//! Waits for a node that are given up: whoever waits no more leaves nothing behind.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tidepool_client::{Client, ClientOptions, OpenOptions};
use tidepool_node::server::{Server, ServerLimits};

use crate::fake::{BLOCK_BYTES, FakeService};
use crate::scene::Scene;

const BLOCK: usize = BLOCK_BYTES as usize;
/// How long the node of a test waits for a client that does not take a reply.
const REPLY_TIMEOUT: Duration = Duration::from_secs(2);

/// Says to go on twice.
fn twice() -> impl FnMut() -> bool {
    let mut asked = 0;
    move || {
        asked += 1;
        asked < 3
    }
}

#[test]
fn a_wait_that_is_given_up_leaves_the_connection_to_others() {
    for map_segments in [true, false] {
        let scene = Scene::new();
        let (path, bytes) = scene.file("file", 20 * BLOCK);
        let client = Client::connect(ClientOptions { map_segments, ..scene.options() });
        let file = client.open(&path, OpenOptions::read()).unwrap();
        let other = client.open(&path, OpenOptions::read()).unwrap();
        scene.node.hold_reads.set(true);
        let mut buffer = vec![0; bytes.len()];
        let mut others = buffer.clone();
        std::thread::scope(|scope| {
            let patient = scope.spawn(|| other.read_at(0, &mut others).unwrap().bytes);
            for _ in 0..3 {
                let outcome = file.read_at_while(0, &mut buffer, &mut twice()).unwrap();
                assert!(outcome.is_none(), "nothing came");
            }
            assert!(client.is_connected() && !patient.is_finished());
            scene.node.hold_reads.set(false);
            assert_eq!(patient.join().unwrap(), bytes.len());
        });
        assert!(others == bytes);
        let outcome = file.read_at_while(0, &mut buffer, &mut || true).unwrap().unwrap();
        assert!(outcome.bytes == bytes.len() && buffer == bytes);
        assert_eq!(scene.server.as_ref().unwrap().counts().connections, 1);
        assert!(scene.notices.lock().unwrap().is_empty());
    }
}

#[test]
fn what_was_read_before_comes() {
    let scene = Scene::new();
    let (path, bytes) = scene.file("file", 2 * BLOCK);
    let file = scene.client().open(&path, OpenOptions::read()).unwrap();
    let mut buffer = vec![0; bytes.len()];
    file.read_at(0, &mut buffer[..10]).unwrap();
    scene.node.hold_reads.set(true);
    let outcome = file.read_at_while(0, &mut buffer, &mut twice()).unwrap().unwrap();
    assert_eq!(outcome.bytes, BLOCK);
    assert!(buffer[..BLOCK] == bytes[..BLOCK]);
    scene.node.hold_reads.set(false);
}

/// The node would end the connection, with all that others have on it.
#[test]
fn replies_that_nobody_waits_for_are_taken_off_the_socket() {
    let mut scene = Scene::new();
    let service = Arc::new(FakeService(Arc::clone(&scene.node)));
    let limits = ServerLimits { message_timeout: REPLY_TIMEOUT, ..ServerLimits::default() };
    scene.stop();
    let socket = scene.socket();
    let _server = Server::start(&socket, Arc::clone(&service) as _, service, limits).unwrap();
    // Replies that are longer than what a socket holds.
    let (path, bytes) = scene.file("file", 40 * BLOCK);
    let client = Client::connect(ClientOptions { map_segments: false, ..scene.options() });
    let file = client.open(&path, OpenOptions::read()).unwrap();
    scene.node.hold_reads.set(true);
    let mut buffer = vec![0; bytes.len()];
    for _ in 0..2 {
        assert!(file.read_at_while(0, &mut buffer, &mut twice()).unwrap().is_none());
    }
    scene.node.hold_reads.set(false);
    let upto = Instant::now() + 2 * REPLY_TIMEOUT;
    while Instant::now() < upto {
        assert!(client.is_connected(), "the node gave the client up");
        std::thread::sleep(Duration::from_millis(50));
    }
    assert_eq!(file.read_at(0, &mut buffer).unwrap().bytes, bytes.len());
    assert!(buffer == bytes);
}
