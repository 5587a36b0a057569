//! Kills of the node at random moments, with a ledger of what was promised: each file whose
//! `close` (or `fsync`) returned before the kill is intact after it, on the PFS and by the mount.
//!
//! What a loss of power takes is another question, on a lower store that really loses what was not
//! synced; see the crash images of the task runner and the fault store of the PFS side.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tidepool_client::{Client, ClientOptions, OpenOptions};
use tidepool_testkit::model::operation::fill;
use tidepool_testkit::needs_mount;
use tidepool_testkit::product::{Node, NodeSpec, Subject};

/// What a writer was promised.
#[derive(Clone, Debug)]
struct Promise {
    name: String,
    seed: u64,
    length: usize,
}

impl Promise {
    fn content(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.length];
        fill(self.seed, &mut bytes);
        bytes
    }
}

/// Which way a writer goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Mount,
    MountInPieces,
    Replace,
    Library,
}

const WAYS: [Way; 4] = [Way::Mount, Way::MountInPieces, Way::Replace, Way::Library];

/// Writes one file; returns only when its close or sync did.
fn write(node: &Places, way: Way, promise: &Promise) -> io::Result<()> {
    let content = promise.content();
    let path = node.mount.join(&promise.name);
    match way {
        Way::Mount => fs::write(&path, &content)?,
        Way::MountInPieces => {
            let mut file = File::create(&path)?;
            for piece in content.chunks(70_001) {
                file.write_all(piece)?;
            }
            file.sync_all()?;
        }
        Way::Replace => {
            // As editors and databases do it.
            let beside = path.with_extension("tmp");
            let mut file = File::create(&beside)?;
            file.write_all(&content)?;
            file.sync_all()?;
            drop(file);
            fs::rename(&beside, &path)?;
        }
        Way::Library => {
            let client = Client::connect(ClientOptions {
                socket: Some(node.socket.clone()),
                pfs_root: Some(node.pfs.clone()),
                notice: Arc::new(|_| ()),
                ..ClientOptions::default()
            });
            let file = client.open(node.pfs.join(&promise.name), OpenOptions::write())?;
            for (number, piece) in content.chunks(1 << 20).enumerate() {
                file.write_at((number as u64) << 20, piece)?;
            }
            file.close()?;
        }
    }
    Ok(())
}

struct Places {
    mount: std::path::PathBuf,
    pfs: std::path::PathBuf,
    socket: std::path::PathBuf,
}

/// Writes files until told to stop; returns the ledger. Failures are fine while the node is dead.
fn writer(places: &Places, way: Way, round: u64, stop: &AtomicBool) -> Vec<Promise> {
    let mut rng = fastrand::Rng::with_seed(round * 7 + way as u64);
    let mut ledger = Vec::new();
    let mut number = 0;
    while !stop.load(Ordering::Acquire) {
        number += 1;
        let length = match rng.u32(..10) {
            0 => 0,
            1..6 => rng.usize(..9000),
            6..9 => rng.usize(..600_000),
            _ => rng.usize(..9 << 20),
        };
        let name = format!("{way:?}-{round}-{number}");
        let promise = Promise { name, seed: rng.u64(..), length };
        match write(places, way, &promise) {
            Ok(()) => ledger.push(promise),
            Err(_) => std::thread::sleep(Duration::from_millis(2)),
        }
    }
    ledger
}

fn assert_kept(root: &Path, promises: &[Promise]) {
    for promise in promises {
        let seen = fs::read(root.join(&promise.name))
            .unwrap_or_else(|error| panic!("{promise:?} in {}: {error}", root.display()));
        assert!(
            seen == promise.content(),
            "{promise:?} in {}: {} bytes, others than were closed",
            root.display(),
            seen.len()
        );
    }
}

#[test]
fn what_was_closed_survives_kills_of_the_node() {
    needs_mount!();
    let rounds = std::env::var("TIDEPOOL_CRASH_ROUNDS").ok().and_then(|n| n.parse().ok());
    let mut node = Node::start(NodeSpec::default()).unwrap();
    let places = Places {
        mount: node.mount().to_owned(),
        pfs: node.pfs().to_owned(),
        socket: node.socket().to_owned(),
    };
    let mut total = 0;
    for round in 0..rounds.unwrap_or(12) {
        let stop = AtomicBool::new(false);
        let promises: Vec<Promise> = std::thread::scope(|scope| {
            let start = |way| {
                let (places, stop) = (&places, &stop);
                scope.spawn(move || writer(places, way, round, stop))
            };
            let writers: Vec<_> = WAYS.into_iter().map(start).collect();
            std::thread::sleep(Duration::from_millis(fastrand::u64(30..500)));
            Node::kill(&node).unwrap();
            stop.store(true, Ordering::Release);
            writers.into_iter().flat_map(|writer| writer.join().unwrap()).collect()
        });
        total += promises.len();
        assert_kept(node.pfs(), &promises);
        node.start_again().unwrap();
        assert_kept(node.mount(), &promises);
        assert_kept(node.mount(), &promises);
        for name in fs::read_dir(node.mount()).unwrap() {
            fs::remove_file(name.unwrap().path()).unwrap();
        }
    }
    println!("{total} promises kept");
    assert!(total > 50, "{total} files were written in all rounds");
}

#[test]
fn a_kill_leaves_no_reader_with_wrong_bytes_or_without_an_answer() {
    needs_mount!();
    let node = Node::start(NodeSpec::default()).unwrap();
    let content = Promise { name: "file".into(), seed: 3, length: 20 << 20 }.content();
    fs::write(node.pfs().join("file"), &content).unwrap();
    for _ in 0..8 {
        let stop = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let by_mount = scope.spawn(|| {
                let mut reads = 0;
                while !stop.load(Ordering::Acquire) {
                    if let Ok(bytes) = fs::read(node.mount().join("file")) {
                        assert!(bytes == content, "wrong bytes by the mount");
                        reads += 1;
                    }
                }
                reads
            });
            let by_library = scope.spawn(|| {
                let client = Client::connect(ClientOptions {
                    socket: Some(node.socket().to_owned()),
                    pfs_root: Some(node.pfs().to_owned()),
                    retry_interval: Duration::from_millis(10),
                    notice: Arc::new(|_| ()),
                    ..ClientOptions::default()
                });
                let file = client.open(node.pfs().join("file"), OpenOptions::read()).unwrap();
                let mut bytes = vec![0; 1 << 20];
                let mut reads = 0;
                while !stop.load(Ordering::Acquire) {
                    let at = fastrand::usize(..19 << 20);
                    // The file did not change, so the library has no reason ever to fail.
                    let read = file.read_at(at as u64, &mut bytes).unwrap().bytes;
                    assert!(bytes[..read] == content[at..at + read] && read == bytes.len());
                    reads += 1;
                }
                reads
            });
            std::thread::sleep(Duration::from_millis(fastrand::u64(50..300)));
            Node::kill(&node).unwrap();
            std::thread::sleep(Duration::from_millis(50));
            let output = node.try_start().unwrap();
            assert!(output.status.success(), "{output:?}");
            std::thread::sleep(Duration::from_millis(100));
            stop.store(true, Ordering::Release);
            assert!(by_mount.join().unwrap() + by_library.join().unwrap() > 0);
        });
    }
}
