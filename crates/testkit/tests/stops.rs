//! Tests of a node that stops while programs go on: bytes that they stored or wrote before their
//! front end was gone are on the PFS afterwards.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags};
use tidepool_client::{Client, ClientOptions, OpenOptions};
use tidepool_testkit::needs_mount;
use tidepool_testkit::product::{COMMAND_LIMIT, Node, NodeSpec, signal};

const PAGE_BYTES: usize = 4096;
/// As many pages as the kernel does not write in one moment.
const LENGTH: usize = 16 << 20;

/// How a node is asked to stop.
#[derive(Clone, Copy, Debug)]
enum Stop {
    /// `node stop`, also while programs use the mount.
    Command,
    /// As the system ends it.
    Signal,
}

impl Stop {
    fn of(self, node: &Node) {
        let process_id = node.process_id().unwrap();
        match self {
            Stop::Command => drop(node.ask(&["node", "stop", "--force"]).unwrap()),
            Stop::Signal => signal(process_id, libc::SIGTERM),
        }
        let deadline = Instant::now() + COMMAND_LIMIT;
        while Path::new(&format!("/proc/{process_id}")).exists() {
            assert!(Instant::now() < deadline, "{self:?}: it runs on");
            std::thread::sleep(Duration::from_millis(10));
        }
    }
}

fn start(arguments: &[&str]) -> Node {
    let arguments = arguments.iter().map(|&argument| argument.into()).collect();
    Node::start(NodeSpec { arguments, ..NodeSpec::default() }).unwrap()
}

/// Stores to a mapping whose descriptor is closed, and keeps it mapped while the node stops.
fn store_and_stop(arguments: &[&str], stop: Stop) {
    let node = start(arguments);
    let path = node.mount().join("file");
    let opened = File::options().read(true).write(true).create_new(true).open(path).unwrap();
    opened.write_all_at(&vec![1; LENGTH], 0).unwrap();
    let (protection, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED);
    // SAFETY: a new mapping at an address of the kernel's choice, unmapped below.
    let base = unsafe {
        rustix::mm::mmap(std::ptr::null_mut(), LENGTH, protection, flags, &opened, 0).unwrap()
    };
    drop(opened);
    // SAFETY: inside the mapping; nobody else has it, and the file is never shorter.
    let bytes = unsafe { std::slice::from_raw_parts_mut(base.cast::<u8>(), LENGTH) };
    bytes.chunks_exact_mut(PAGE_BYTES).for_each(|page| page[17] = 2);
    stop.of(&node);
    // SAFETY: the whole mapping, which nobody uses any more.
    unsafe { rustix::mm::munmap(base, LENGTH).unwrap() };
    let kept = fs::read(node.pfs().join("file")).unwrap();
    assert_eq!(kept.len(), LENGTH, "{arguments:?} {stop:?}");
    let lost = kept.chunks_exact(PAGE_BYTES).filter(|page| page[17] != 2).count();
    assert_eq!(lost, 0, "{arguments:?} {stop:?}: pages without what was stored to them");
}

#[test]
fn stores_to_a_living_mapping_are_on_the_pfs_after_a_stop() {
    needs_mount!();
    let ways: [&[&str]; 3] =
        [&["--passthrough", "off"], &["--direct-io", "off"], &["--write-mode", "memory"]];
    std::thread::scope(|scope| {
        for arguments in ways {
            for stop in [Stop::Command, Stop::Signal] {
                scope.spawn(move || store_and_stop(arguments, stop));
            }
        }
    });
}

/// Writes numbers until that fails or the time is over; the last one that was taken, and the one
/// that was refused.
fn count(go_on: &AtomicBool, mut write: impl FnMut(&[u8]) -> bool) -> (u64, u64) {
    let mut number = 0_u64;
    while go_on.load(Ordering::Relaxed) && write(&(number + 1).to_le_bytes()) {
        number += 1;
    }
    (number, number + 1)
}

/// Programs write one number after another, each to its file, while the node stops; one begins when
/// the node takes no new file any more.
fn write_and_stop(arguments: &[&str], stop: Stop) {
    let node = start(arguments);
    let by_mount = File::create(node.mount().join("mount")).unwrap();
    let late = File::create(node.mount().join("late")).unwrap();
    let client = Client::connect(ClientOptions {
        socket: Some(node.socket().to_owned()),
        pfs_root: Some(node.pfs().to_owned()),
        notice: Arc::new(|_| ()),
        ..ClientOptions::default()
    });
    let options = OpenOptions { create: true, ..OpenOptions::read_write() };
    let by_library = client.open(node.pfs().join("library"), options).unwrap();
    let go_on = AtomicBool::new(true);
    let (mount, late, library) = std::thread::scope(|scope| {
        let mount = scope.spawn(|| count(&go_on, |bytes| by_mount.write_all_at(bytes, 0).is_ok()));
        let late = scope.spawn(|| {
            while File::create(node.mount().join("new")).is_ok() {}
            late.set_len(0).unwrap();
            count(&go_on, |bytes| late.write_all_at(bytes, 0).is_ok())
        });
        let library = scope.spawn(|| count(&go_on, |bytes| by_library.write_at(0, bytes).is_ok()));
        std::thread::sleep(Duration::from_millis(100));
        stop.of(&node);
        go_on.store(false, Ordering::Relaxed);
        (mount.join().unwrap(), late.join().unwrap(), library.join().unwrap())
    });
    // A program that goes on without the node has the PFS.
    let _ = by_library.sync();
    for (name, (taken, refused)) in [("mount", mount), ("late", late), ("library", library)] {
        assert!(taken > 0, "{name}: nothing was written");
        let kept = fs::read(node.pfs().join(name)).unwrap();
        let kept = kept.as_slice().try_into().map_or(0, u64::from_le_bytes);
        // What was refused may have come through before the answer was lost.
        let right = kept == taken || kept == refused;
        assert!(right, "{arguments:?} {stop:?} {name}: {taken} was taken, {kept} is kept");
    }
}

#[test]
fn what_is_written_while_a_node_stops_is_kept_or_refused() {
    needs_mount!();
    std::thread::scope(|scope| {
        for arguments in [&["--write-mode", "memory"][..], &["--write-mode", "through"]] {
            for stop in [Stop::Command, Stop::Signal] {
                scope.spawn(move || write_and_stop(arguments, stop));
            }
        }
    });
}
