//! A process that may open hardly anything more: it goes on with what there is, and the node keeps
//! nothing for it that never arrived.

use std::os::fd::AsRawFd;
use std::sync::atomic::Ordering;

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use tidepool_client::{Client, ClientOptions, OpenOptions};

use crate::fake::BLOCK_BYTES;
use crate::scene::{Scene, child, eventually, pattern, role};

const BLOCK: usize = BLOCK_BYTES as usize;
/// An open of the library takes one descriptor of its own and gets three.
const FREE_MAX: u64 = 4;

/// Leaves this process so many descriptors that it may still open.
fn leave_free(free: u64) {
    let next = std::fs::File::open("/dev/null").unwrap().as_raw_fd();
    let limit = getrlimit(Resource::Nofile);
    let current = Some(u64::from(next.cast_unsigned()) + free);
    setrlimit(Resource::Nofile, Rlimit { current, ..limit }).unwrap();
}

#[test]
#[ignore = "a part of another test: a client of another process"]
fn client_process() {
    let Some(directory) = role() else { return };
    let (path, bytes) = (directory.join("file"), pattern(4 * BLOCK, 0));
    let socket = Some(directory.join("socket"));
    let notice = std::sync::Arc::new(|_: &str| ());
    let client = Client::connect(ClientOptions { socket, notice, ..ClientOptions::default() });
    let unlimited = getrlimit(Resource::Nofile);
    let mut buffer = vec![0; bytes.len()];
    let kept = client.open(&path, OpenOptions::read()).unwrap();
    kept.read_at(0, &mut buffer).unwrap();
    for free in 0..=FREE_MAX {
        leave_free(free);
        for _ in 0..20 {
            let lent = kept.borrow(0, BLOCK).unwrap();
            assert!(*lent == bytes[..BLOCK]);
            drop(lent);
            let Ok(file) = client.open(&path, OpenOptions::read()) else { continue };
            buffer.fill(0);
            file.read_at(0, &mut buffer).unwrap();
            assert!(buffer == bytes);
        }
        setrlimit(Resource::Nofile, unlimited).unwrap();
    }
    assert!(client.is_connected());
    drop(kept);
    std::fs::write(directory.join("done"), b"").unwrap();
    // The connection stays until this process is killed: its end would give everything back.
    loop {
        std::thread::park();
    }
}

#[test]
fn what_finds_no_room_at_the_client_is_given_back_to_the_node() {
    let scene = Scene::new();
    scene.file("file", 4 * BLOCK);
    let _client = child("few_descriptors::client_process", scene.directory.path());
    eventually("the client is through", || scene.path("done").exists());
    let counts = || scene.server.as_ref().unwrap().counts();
    eventually("its files are closed", || counts().handles == 0);
    eventually("its loans are given back", || counts().borrows == 0);
    assert_eq!(counts().connections, 1);
    eventually("no file is open", || scene.node.open_files.load(Ordering::SeqCst) == 0);
}
