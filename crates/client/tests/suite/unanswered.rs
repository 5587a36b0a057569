//! Changes that the node does not answer in time: none is carried out when the call that asked for
//! it has returned well, and where that is not known, the file says so.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tidepool_client::{Client, ClientOptions, File, OpenOptions};
use tidepool_proto::{ErrorKind, Result};

use crate::scene::{Scene, eventually};

/// A node that is asked for nothing but what is held up answers much sooner.
const TIMEOUT: Duration = Duration::from_secs(4);

type Change = (&'static str, fn(&File) -> Result<()>);

const CHANGES: [Change; 4] = [
    ("write", |file| file.write_at(0, b"first")),
    ("long write", |file| file.write_at(0, &vec![b'f'; 300_000])),
    ("length", |file| file.set_size(5)),
    ("allocation", |file| file.allocate(0, 0, 500_000)),
];

fn read_write() -> OpenOptions {
    OpenOptions { create: false, ..OpenOptions::read_write() }
}

fn client(scene: &Scene) -> Client {
    Client::connect(ClientOptions { request_timeout: TIMEOUT, ..scene.options() })
}

fn under_way(scene: &Scene) -> u64 {
    scene.node.changing.load(Ordering::SeqCst)
}

/// Tries a change that the node holds up for good.
fn held_up_for_good(scene: &Scene, path: &Path, what: &str, change: fn(&File) -> Result<()>) {
    let file = client(scene).open(path, read_write()).unwrap();
    scene.node.hold_writes.set(true);
    let error = change(&file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{what}: {error}");
    assert_eq!(under_way(scene), 1, "{what}: it was asked for once");
    assert_eq!(file.write_at(0, b"x").unwrap_err().kind(), ErrorKind::Lost, "{what}: and stays so");
    assert_eq!(file.close().unwrap_err().kind(), ErrorKind::Lost, "{what}");
    scene.node.hold_writes.set(false);
    eventually("it ends", || under_way(scene) == 0);
}

#[test]
fn a_change_that_may_still_come_is_lost() {
    // Side by side, for each waits twice for its time limit.
    std::thread::scope(|scope| {
        for (what, change) in CHANGES {
            scope.spawn(move || {
                let scene = Scene::new();
                let (path, _) = scene.file("file", 300_000);
                held_up_for_good(&scene, &path, what, change);
            });
        }
    });
}

/// Tries a change that the node holds up for longer than its client waits.
fn held_up(scene: &Scene, path: &Path, what: &str, change: fn(&File) -> Result<()>) {
    let client = client(scene);
    let file = client.open(path, read_write()).unwrap();
    scene.node.hold_writes.set(true);
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            change(&file).unwrap();
            assert_eq!(under_way(scene), 0, "{what}: nothing of it can come any more");
        });
        eventually("it is under way", || under_way(scene) > 0);
        eventually("the client gave its connection up", || !client.is_connected());
        scene.node.hold_writes.set(false);
        changing.join().unwrap();
    });
    file.close().unwrap();
}

#[test]
fn a_change_that_is_made_again_has_ended_before() {
    std::thread::scope(|scope| {
        for (what, change) in CHANGES {
            scope.spawn(move || {
                let scene = Scene::new();
                let (path, _) = scene.file("file", 300_000);
                held_up(&scene, &path, what, change);
                let length = std::fs::metadata(&path).unwrap().len();
                let expected = match what {
                    "length" => 5,
                    "allocation" => 500_000,
                    _ => 300_000,
                };
                assert_eq!(length, expected, "{what}");
            });
        }
    });
}

#[test]
fn a_change_that_moves_bytes_is_not_made_twice() {
    let scene = Scene::new();
    let (path, _) = scene.file("file", 4 * 65_536);
    let client = client(&scene);
    let file = client.open(&path, read_write()).unwrap();
    scene.node.hold_writes.set(true);
    let error = file.allocate(libc::FALLOC_FL_COLLAPSE_RANGE, 0, 65_536).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    scene.node.hold_writes.set(false);
    eventually("it ends", || under_way(&scene) == 0);
    assert_eq!(std::fs::metadata(&path).unwrap().len(), 3 * 65_536);
}
