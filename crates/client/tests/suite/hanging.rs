//! Nodes that are there and do not answer: nobody waits for them long who can do without.

use std::ffi::CString;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use tidepool_client::{Client, ClientOptions, OpenOptions, Quiet};

use crate::fake::BLOCK_BYTES;
use crate::scene::{Scene, child, eventually, role};

const BLOCK: usize = BLOCK_BYTES as usize;
/// Far beyond what anybody waits for a node that hangs, and far below how long it hangs.
const LONG: Duration = Duration::from_secs(30);
/// What is queued somewhere has been carried out by then. Only a detection depends on it.
const CARRIED_OUT: Duration = Duration::from_millis(100);
/// A node that did not answer is not asked again within a test.
const FOR_GOOD: Duration = Duration::from_secs(1000);

fn client(scene: &Scene) -> Client {
    Client::connect(ClientOptions { retry_interval: FOR_GOOD, ..scene.options() })
}

#[test]
fn an_open_that_takes_long_goes_on_without_the_node() {
    let scene = Scene::new();
    let (path, bytes) = scene.file("file", 2 * BLOCK);
    let client = client(&scene);
    scene.node.hold_opens.set(true);
    let begun = Instant::now();
    let mut buffer = vec![0; bytes.len()];
    for _ in 0..100 {
        let file = client.open(&path, OpenOptions::read()).unwrap();
        assert_eq!(file.read_at(0, &mut buffer).unwrap().levels.pfs, bytes.len() as u64);
        assert!(buffer == bytes);
    }
    assert!(begun.elapsed() < LONG, "it was waited for once");
    assert!(client.is_connected() && !client.is_answering());
    scene.node.hold_opens.set(false);
    eventually("its answer says that it is back", || client.is_answering());
    eventually("what it opened for nobody is closed", || scene.handles() == 0);
    assert_eq!(scene.node.open_files.load(Ordering::SeqCst), 0);
    let _file = client.open(&path, OpenOptions::read()).unwrap();
    assert_eq!(scene.handles(), 1, "it is asked again");
}

#[test]
fn a_node_that_hangs_holds_up_neither_opens_nor_changes_of_names() {
    let scene = Scene::without_node();
    let (path, bytes) = scene.file("file", 2 * BLOCK);
    let node = child("death::node_process", scene.directory.path());
    eventually("the node is there", || client(&scene).is_connected());
    let client = client(&scene);
    let warm = client.open(&path, OpenOptions::read()).unwrap();
    node.hang(true);
    let begun = Instant::now();
    let mut buffer = vec![0; bytes.len()];
    for round in 0..50 {
        let name = scene.path(&format!("new-{round}"));
        let file = client.open(&name, OpenOptions::write()).unwrap();
        file.write_at(0, b"written").unwrap();
        file.close().unwrap();
        let file = client.open(&name, OpenOptions::write()).unwrap();
        file.write_at(0, b"again").unwrap();
        file.close().unwrap();
        let there = std::fs::File::open(&name).unwrap();
        client.changing_metadata(Some(there.as_fd()), || std::fs::rename(&name, &path)).unwrap();
        let file = client.open(&path, OpenOptions::read()).unwrap();
        assert_eq!(file.read_at(0, &mut buffer).unwrap().bytes, 5);
        assert_eq!(&buffer[..5], b"again");
        warm.set_keep(round % 2 == 0);
    }
    assert!(begun.elapsed() < LONG, "it was waited for a few times");
    node.hang(false);
    eventually("it is used again", || client.is_answering());
    let file = client.open(&path, OpenOptions::read()).unwrap();
    assert_eq!(file.read_at(0, &mut buffer).unwrap().bytes, 5);
    assert_eq!(&buffer[..5], b"again", "what was asked for meanwhile changed nothing");
}

#[test]
fn hints_that_nobody_takes_are_dropped_and_end_nothing() {
    let scene = Scene::without_node();
    let (path, bytes) = scene.file("file", 4 * BLOCK);
    let node = child("death::node_process", scene.directory.path());
    eventually("the node is there", || client(&scene).is_connected());
    let client = client(&scene);
    let file = client.open(&path, OpenOptions::read()).unwrap();
    node.hang(true);
    let begun = Instant::now();
    for round in 0..100_000 {
        file.set_keep(round % 2 == 0);
    }
    assert!(begun.elapsed() < LONG, "nobody waited for a full socket");
    assert!(client.is_connected());
    node.hang(false);
    let mut buffer = vec![0; bytes.len()];
    assert_eq!(file.read_at(0, &mut buffer).unwrap().bytes, bytes.len());
    assert!(buffer == bytes && client.is_connected(), "the connection goes on");
}

#[test]
fn reads_of_what_is_held_send_nothing() {
    let scene = Scene::new();
    let (path, bytes) = scene.file("file", 60 * BLOCK);
    let file = client(&scene).open(&path, OpenOptions::read()).unwrap();
    let mut buffer = vec![0; BLOCK];
    let mut held = 0;
    for at in (0..60).map(|block| (block * BLOCK) as u64) {
        let quiet = Quiet::begin();
        let outcome = file.read_held_at(at, &mut buffer).unwrap();
        drop(quiet);
        match outcome {
            Some(outcome) => {
                held += 1;
                file.read_on(at, &outcome);
            }
            None => drop(file.read_at(at, &mut buffer).unwrap()),
        }
        assert!(buffer == bytes[at as usize..at as usize + BLOCK]);
    }
    file.size().unwrap();
    assert!(held > 0 && scene.node.prefetches.load(Ordering::SeqCst) > 0);
}

/// Writes for ever, over a connection that was made before `prepare`.
fn write_for_ever(directory: &Path, prepare: impl FnOnce()) {
    let options = ClientOptions { socket: Some(directory.join("socket")), ..Default::default() };
    let client = Client::connect(options);
    let file = client.open(directory.join("file"), OpenOptions::read_write()).unwrap();
    prepare();
    loop {
        file.write_at(0, &[1; 4096]).unwrap();
    }
}

#[test]
#[ignore = "a part of other tests: a writer of another process"]
fn writer_process() {
    let Some(directory) = role() else { return };
    write_for_ever(&directory, || ());
}

#[test]
#[ignore = "a part of other tests: a writer that leaves a child behind"]
fn forking_writer_process() {
    let Some(directory) = role() else { return };
    let name = CString::new(directory.as_os_str().as_bytes()).unwrap();
    // SAFETY: the child makes these system calls alone, and ends with the directory of the test.
    write_for_ever(&directory, || unsafe {
        if libc::fork() == 0 {
            while libc::access(name.as_ptr(), libc::F_OK) == 0 {
                libc::usleep(1000);
            }
            libc::_exit(0);
        }
    });
}

/// How nobody comes to wait for a write any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum End {
    Killed,
    /// Its child, made by `fork`, keeps the socket open.
    KilledBesideChild,
    GivesUp,
}

/// Who rewrites a file past a node that hangs, after the one before him died or gave up, finds his
/// bytes there when the node goes on.
#[test]
fn a_write_that_nobody_waits_for_is_not_carried_out_later() {
    for end in [End::Killed, End::KilledBesideChild, End::GivesUp] {
        // A node that is stopped between its last look and the call carries it out: microseconds.
        assert!((0..3).any(|_| bytes_stay(&end)), "{end:?}");
    }
}

/// Whether what was written past the node that hangs is there when it goes on.
fn bytes_stay(end: &End) -> bool {
    let scene = Scene::without_node();
    let (path, _) = scene.file("file", BLOCK);
    let node = child("death::node_process", scene.directory.path());
    eventually("the node is there", || client(&scene).is_connected());
    let written = || std::fs::read(&path).unwrap()[..4096].iter().all(|byte| *byte == 1);
    if *end != End::GivesUp {
        let program = match end {
            End::KilledBesideChild => "hanging::forking_writer_process",
            _ => "hanging::writer_process",
        };
        let mut writer = child(program, scene.directory.path());
        eventually("it writes", written);
        node.hang(true);
        std::thread::sleep(CARRIED_OUT);
        writer.kill();
    } else {
        let request_timeout = Duration::from_millis(300);
        let client = Client::connect(ClientOptions { request_timeout, ..scene.options() });
        let file = client.open(&path, OpenOptions::read_write()).unwrap();
        file.write_at(0, &[1; 4096]).unwrap();
        node.hang(true);
        file.write_at(0, &[1; 4096]).unwrap_err();
        assert!(written());
    }
    std::fs::write(&path, vec![2; BLOCK]).unwrap();
    node.hang(false);
    let client = client(&scene);
    eventually("the node answers", || {
        let _ = client.open(&path, OpenOptions::read()).unwrap();
        client.is_answering()
    });
    std::thread::sleep(CARRIED_OUT);
    std::fs::read(&path).unwrap() == vec![2; BLOCK]
}
