//! Tests of the client library where the PFS is slow or fails: several threads that make one open
//! file durable, and a write that hangs beside programs that look the file up.

use std::io::Read;
use std::path::Path;
use std::sync::mpsc;
use std::time::{Duration, Instant};

use tidepool_client::{Client, ClientOptions, File, OpenOptions};
use tidepool_proto::{ErrorKind, Result};
use tidepool_testkit::needs_mount;
use tidepool_testkit::product::{Node, NodeSpec};
use tidepool_testkit::weak_pfs::{WeakPfs, Weakness};

const PATIENCE: Duration = Duration::from_secs(60);
/// A caller that is answered too early has its answer by then. Only a detection depends on it.
const TOO_EARLY: Duration = Duration::from_millis(30);

/// A way to make a file durable.
type Way = (&'static str, fn(&File) -> Result<()>);

const WAYS: [Way; 3] =
    [("sync", File::sync), ("sync_data", File::sync_data), ("flush", File::flush)];

fn library(root: &Path, socket: &Path) -> Client {
    Client::connect(ClientOptions {
        socket: Some(socket.to_owned()),
        pfs_root: Some(root.to_owned()),
        ..ClientOptions::default()
    })
}

fn syncs(pfs: &WeakPfs) -> u64 {
    pfs.questions().get("fsync").copied().unwrap_or_default()
}

fn eventually(what: &str, condition: impl Fn() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < PATIENCE, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// One thread begins to make a file with fresh bytes durable, another one follows while that
/// hangs; then the PFS answers. What both hear, and the syncs that the PFS was asked for.
fn overlap(pfs: &WeakPfs, ways: (Way, Way), fails: bool) -> (Result<()>, Result<()>, u64) {
    let client = library(pfs.root(), &pfs.behind().join("no node"));
    let options = OpenOptions { create: true, ..OpenOptions::read_write() };
    let file = client.open(pfs.root().join("file"), options).unwrap();
    // The name is durable from here on.
    file.sync().unwrap();
    file.write_at(0, b"fresh bytes").unwrap();
    let before = syncs(pfs);
    pfs.set(|weakness| weakness.syncs_fail = fails);
    let held = pfs.hold("fsync");
    let (first, second) = std::thread::scope(|scope| {
        let first = scope.spawn(|| ways.0.1(&file));
        eventually("the first sync begins", || syncs(pfs) > before);
        let second = scope.spawn(|| ways.1.1(&file));
        std::thread::sleep(TOO_EARLY);
        assert!(!second.is_finished(), "{} while {} is under way", ways.1.0, ways.0.0);
        drop(held);
        (first.join().unwrap(), second.join().unwrap())
    });
    let asked = syncs(pfs) - before;
    pfs.set(|weakness| weakness.syncs_fail = false);
    (first, second, asked)
}

#[test]
fn threads_of_one_file_hear_success_when_its_bytes_are_durable_and_no_earlier() {
    needs_mount!();
    let pfs = WeakPfs::mount(Weakness::default()).unwrap();
    for first in WAYS {
        for second in WAYS {
            let (one, other, asked) = overlap(&pfs, (first, second), false);
            one.and(other).unwrap_or_else(|error| panic!("{}, {}: {error}", first.0, second.0));
            assert!(asked > 0);
        }
    }
}

#[test]
fn threads_of_one_file_hear_that_its_sync_failed() {
    needs_mount!();
    let pfs = WeakPfs::mount(Weakness::default()).unwrap();
    for first in WAYS {
        for second in WAYS {
            let (one, other, _) = overlap(&pfs, (first, second), true);
            for (heard, way) in [(one, first), (other, second)] {
                let error = heard.expect_err(way.0);
                assert_eq!(error.kind(), ErrorKind::Pfs, "{}, {}: {error}", first.0, second.0);
            }
        }
    }
}

/// Reads a file that is written meanwhile: always opens, and opens again where the version that it
/// opened is gone.
fn read_all(path: &Path) -> Vec<u8> {
    loop {
        let mut bytes = Vec::new();
        let mut file = std::fs::File::open(path).expect("an open finds the file as it is");
        match file.read_to_end(&mut bytes) {
            Err(error) if error.raw_os_error() == Some(libc::ESTALE) => {}
            read => {
                read.expect("nothing else keeps a reader from its version");
                return bytes;
            }
        }
    }
}

#[test]
fn a_write_of_the_library_that_hangs_stops_nobody_who_looks_the_file_up() {
    needs_mount!();
    let pfs = WeakPfs::mount(Weakness::default()).unwrap();
    for name in ["file", "other"] {
        std::fs::write(pfs.root().join(name), vec![1; 3 << 20]).unwrap();
    }
    let spec = NodeSpec { pfs: Some(pfs.root().to_owned()), ..NodeSpec::default() };
    let node = Node::start(spec).expect("a node starts");
    let client = library(node.pfs(), node.socket());
    let file = client.open(node.pfs().join("file"), OpenOptions::read_write()).unwrap();
    std::fs::read(node.mount().join("other")).unwrap();
    let writes = || pfs.questions().get("write").copied().unwrap_or_default();
    let before = writes();
    let held = pfs.hold("write");
    let path = node.mount().join("file");
    std::thread::scope(|scope| {
        let write = scope.spawn(|| file.write_at(0, b"new"));
        eventually("the write hangs", || writes() > before);
        // Readers of the file wait for the write.
        let opens: Vec<_> = (0..20).map(|_| scope.spawn(|| read_all(&path))).collect();
        let (done, waits) = mpsc::channel();
        let mount = node.mount();
        let beside = scope.spawn(move || {
            for _ in 0..20 {
                assert_eq!(std::fs::metadata(mount.join("file")).unwrap().len(), 3 << 20);
                assert_eq!(std::fs::read_dir(mount).unwrap().count(), 2);
            }
            done.send(()).unwrap();
        });
        let went_on = waits.recv_timeout(PATIENCE);
        let is_under_way = !write.is_finished();
        drop(held);
        write.join().unwrap().unwrap();
        beside.join().unwrap();
        for open in opens {
            assert_eq!(open.join().unwrap().len(), 3 << 20);
        }
        assert!(is_under_way && went_on.is_ok(), "look-ups wait for a write");
    });
    file.close().unwrap();
}
