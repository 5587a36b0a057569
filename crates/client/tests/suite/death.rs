//! Nodes that end, and come back; clients that are killed; processes that fork.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tidepool_client::{Client, ClientOptions, OpenOptions};
use tidepool_proto::ErrorKind;

use crate::fake::{BLOCK_BYTES, FakeNode};
use crate::scene::{Scene, child, eventually, pattern, role, start};

const BLOCK: usize = BLOCK_BYTES as usize;

#[test]
fn reads_go_on_without_the_node_and_with_the_next_one() {
    let mut scene = Scene::new();
    let (path, bytes) = scene.file("file", 4 * BLOCK);
    let client = scene.client();
    let file = client.open(&path, OpenOptions::read()).unwrap();
    let mut buffer = vec![0; bytes.len()];
    for _ in 0..5 {
        file.read_at(0, &mut buffer).unwrap();
        assert!(buffer == bytes);
        scene.stop();
        eventually("its end is noticed", || !client.is_connected());
        buffer.fill(0);
        let outcome = file.read_at(0, &mut buffer).unwrap();
        assert!(buffer == bytes);
        assert_eq!(outcome.levels.pfs, bytes.len() as u64);
        scene.start();
        buffer.fill(0);
        file.read_at(0, &mut buffer).unwrap();
        let outcome = file.read_at(0, &mut buffer).unwrap();
        assert!(buffer == bytes);
        assert_eq!(outcome.levels.mapped, bytes.len() as u64);
    }
    let notices = scene.notices.lock().unwrap();
    let absences = notices.iter().filter(|line| line.contains("without a node")).count();
    assert_eq!(absences, 5, "once each time: {notices:?}");
}

#[test]
fn a_change_while_the_node_is_gone_is_not_mixed_in() {
    let mut scene = Scene::new();
    let (path, _) = scene.file("file", 4 * BLOCK);
    let client = scene.client();
    let file = client.open(&path, OpenOptions::read()).unwrap();
    let mut buffer = vec![0; BLOCK];
    file.read_at(0, &mut buffer).unwrap();
    scene.stop();
    eventually("its end is noticed", || !client.is_connected());
    std::fs::write(&path, pattern(4 * BLOCK, 9)).unwrap();
    for offset in [0, BLOCK_BYTES] {
        let error = file.read_at(offset, &mut buffer).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Changed);
    }
    scene.start();
    let error = file.read_at(0, &mut buffer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed, "also when a node is back");
    let file = client.open(&path, OpenOptions::read()).unwrap();
    file.read_at(0, &mut buffer).unwrap();
    assert!(buffer == pattern(BLOCK, 9));
}

#[test]
fn a_change_of_metadata_while_the_node_is_gone_breaks_no_reader() {
    use std::os::unix::fs::PermissionsExt;
    let mut scene = Scene::new();
    let (path, bytes) = scene.file("file", 4 * BLOCK);
    let (link, other) = (scene.path("link"), scene.path("other"));
    let client = scene.client();
    let file = client.open(&path, OpenOptions::read()).unwrap();
    scene.stop();
    eventually("its end is noticed", || !client.is_connected());
    let bare = client.open(&path, OpenOptions::read()).unwrap();
    let changes: [(&str, &dyn Fn() -> std::io::Result<()>); 4] = [
        ("chmod", &|| std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640))),
        ("link", &|| std::fs::hard_link(&path, &link)),
        ("rename", &|| std::fs::rename(&path, &other)),
        ("unlink", &|| std::fs::remove_file(&link).and_then(|()| std::fs::remove_file(&other))),
    ];
    let mut buffer = vec![0; BLOCK];
    for (what, change) in changes {
        change().unwrap();
        for file in [&file, &bare] {
            file.read_at(BLOCK_BYTES, &mut buffer)
                .unwrap_or_else(|error| panic!("{what}: {error}"));
            assert!(buffer == bytes[BLOCK..2 * BLOCK], "{what}");
        }
    }
    scene.start();
    for file in [&file, &bare] {
        file.read_at(0, &mut buffer).unwrap();
        assert!(buffer == bytes[..BLOCK], "at the node that is back");
    }
    assert!(client.is_connected());
}

#[test]
#[ignore = "a part of other tests: the node of another process"]
fn node_process() {
    let Some(directory) = role() else { return };
    let node = FakeNode::new();
    let _server = start(&directory.join("socket"), &node);
    let mut seed = 1;
    loop {
        seed = 6_364_136_223_846_793_005_u64.wrapping_mul(seed).wrapping_add(1);
        node.evict_some(seed >> 3);
        std::thread::sleep(Duration::from_micros(300));
    }
}

#[test]
#[ignore = "a part of other tests: a client of another process"]
fn client_process() {
    let Some(directory) = role() else { return };
    let options = ClientOptions { socket: Some(directory.join("socket")), ..Default::default() };
    let client = Client::connect(options);
    let mut kept = Vec::new();
    for round in 0..u64::MAX {
        let file = client.open(directory.join("file"), OpenOptions::read_write()).unwrap();
        let mut buffer = vec![0; 3 * BLOCK];
        file.read_at(round % BLOCK_BYTES, &mut buffer).unwrap();
        file.write_at(round % BLOCK_BYTES, &buffer[..100]).unwrap();
        kept.push(file.borrow(0, BLOCK).unwrap());
        if kept.len() > 20 {
            kept.clear();
        }
    }
}

#[test]
fn killed_nodes_cost_no_byte() {
    let scene = Scene::without_node();
    let (path, bytes) = scene.file("file", 20 * BLOCK);
    let client = scene.client();
    let (rounds, mapped) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let (client, path, bytes) = (&client, &path, &bytes);
            let (rounds, mapped) = (&rounds, &mapped);
            scope.spawn(move || {
                let file = client.open(path, OpenOptions::read()).unwrap();
                let mut buffer = vec![0; 100_000];
                let mut at = thread;
                while rounds.load(Ordering::Relaxed) < 8 {
                    at = (at * 48_271 + 11) % (19 * BLOCK_BYTES);
                    let outcome = file.read_at(at, &mut buffer).unwrap();
                    assert_eq!(outcome.levels.total(), outcome.bytes as u64);
                    mapped.fetch_add(outcome.levels.mapped, Ordering::Relaxed);
                    let expected = &bytes[at as usize..at as usize + outcome.bytes];
                    assert!(buffer[..outcome.bytes] == *expected, "wrong bytes at {at}");
                    assert_eq!(outcome.bytes, (bytes.len() - at as usize).min(100_000));
                }
            });
        }
        for _ in 0..8 {
            let mut node = child("death::node_process", scene.directory.path());
            eventually("the node is there", || {
                let _ = client.admin(tidepool_proto::admin::AdminRequest::Status, None);
                client.is_connected()
            });
            std::thread::sleep(Duration::from_millis(50));
            node.kill();
            rounds.fetch_add(1, Ordering::Relaxed);
        }
    });
    assert!(mapped.into_inner() > 0, "their segments were read as long as they lived");
}

#[test]
fn killed_clients_leave_nothing_behind() {
    let scene = Scene::new();
    let (path, bytes) = scene.file("file", 10 * BLOCK);
    for _ in 0..5 {
        let mut other = child("death::client_process", scene.directory.path());
        eventually("it holds something", || {
            scene.server.as_ref().unwrap().counts().borrowed_bytes > 0
        });
        std::thread::sleep(Duration::from_millis(20));
        other.kill();
        eventually("nothing is held any more", || {
            let counts = scene.server.as_ref().unwrap().counts();
            counts.connections + counts.handles + counts.borrowed_bytes == 0
        });
    }
    assert!(std::fs::read(path).unwrap() == bytes);
    eventually("files are closed", || scene.node.open_files.load(Ordering::SeqCst) == 0);
}

#[test]
fn a_forked_child_speaks_on_a_connection_of_its_own() {
    let scene = Scene::new();
    let (path, bytes) = scene.file("file", 4 * BLOCK);
    let client = scene.client();
    let file = client.open(&path, OpenOptions::read()).unwrap();
    let mut buffer = vec![0; 1000];
    file.read_at(0, &mut buffer).unwrap();
    // SAFETY: the child calls nothing that another thread of this process may hold a lock of but
    // the allocator, which is prepared for forks, and ends without running anything else.
    let process_id = unsafe { libc::fork() };
    if process_id == 0 {
        let right = (0..4).all(|block| {
            let at = block * BLOCK_BYTES;
            file.read_at(at, &mut buffer).is_ok_and(|outcome| outcome.bytes == 1000)
                && buffer == bytes[at as usize..at as usize + 1000]
        });
        drop(file);
        drop(client);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(if right { 0 } else { 1 }) };
    }
    for block in (0..4).rev() {
        let at = block * BLOCK_BYTES;
        file.read_at(at, &mut buffer).unwrap();
        assert!(buffer == bytes[at as usize..at as usize + 1000]);
    }
    let mut status = 0;
    // SAFETY: waits for the child made above, into a variable of our own.
    assert_eq!(unsafe { libc::waitpid(process_id, &mut status, 0) }, process_id);
    assert_eq!(status, 0, "the child read wrong bytes or none");
    assert!(client.is_connected(), "its end is not the parent's");
    scene.node.evict_all();
    file.read_at(0, &mut buffer).unwrap();
    // The node hears of the child's end a moment after this process does.
    eventually("the node closes the child's file", || scene.handles() == 1);
}
