//! Tests of write mode `alw`: what is synced is in the burst buffers of other nodes, on their
//! disks, until the PFS has it.

mod support;

use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use support::nodes::*;
use support::{content, read_all};
use tidepool_node::Node;
use tidepool_proto::admin::{AdminReply, AdminRequest, AdminService, FlushReport};
use tidepool_proto::buffer::{BufferStatus, OwedFile};
use tidepool_proto::cluster::CopiesStatus;
use tidepool_proto::config::{BufferConfig, NodeConfig};
use tidepool_proto::stub::STUB_ATTRIBUTE;
use tidepool_proto::{Access, Error, FileService, OpenFile, OpenRequest, WriteMode};

/// Bytes of a packet, which this test knows of.
const PACKET: u64 = 512 << 10;

/// Nodes of which all but the first have a burst buffer with a disk.
struct Cluster {
    nodes: Nodes,
    configs: Vec<NodeConfig>,
    disks: tempfile::TempDir,
}

fn cluster_with(count: usize, change: impl Fn(usize, &mut NodeConfig)) -> Cluster {
    let disks = tempfile::tempdir().unwrap();
    let configs = Mutex::new(Vec::new());
    let nodes = Nodes::with(count, |node, config| {
        config.write_mode = WriteMode::Alw;
        let directory = Some(disks.path().join(node.to_string()));
        let memory_bytes = 64 << 20;
        let buffer = BufferConfig { memory_bytes, directory, disk_bytes: 1 << 30, address: None };
        config.buffer = (node > 0).then_some(buffer);
        change(node, config);
        configs.lock().unwrap().push(config.clone());
    });
    nodes.wait_joined();
    let cluster = Cluster { nodes, configs: configs.into_inner().unwrap(), disks };
    cluster.wait_for_buffers();
    cluster
}

fn cluster(count: usize) -> Cluster {
    cluster_with(count, |_, _| ())
}

impl Cluster {
    /// Until the first node knows of the buffers of the others.
    fn wait_for_buffers(&self) {
        until("the buffers are known", || {
            let file = self.create(0, "probe");
            let is_in_buffers = || self.copies(0).files > 0 || self.is_stub("probe");
            let found = is_in_buffers();
            drop(file);
            std::fs::remove_file(self.nodes.pfs("probe")).unwrap();
            found
        });
    }

    fn create(&self, node: usize, name: &str) -> Arc<dyn OpenFile> {
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).mode(0o640);
        let request = OpenRequest {
            access: Access::ReadWrite,
            created: true,
            ..OpenRequest::to_read(options.open(self.nodes.pfs(name)).unwrap().into(), 0)
        };
        self.nodes.nodes[node].open(request).unwrap()
    }

    fn copies(&self, node: usize) -> CopiesStatus {
        self.nodes.cluster(node).copies
    }

    fn buffer(&self, node: usize) -> BufferStatus {
        *self.nodes.nodes[node].status().buffer.unwrap()
    }

    /// Whether the PFS has a stub of a file, and not its bytes.
    fn is_stub(&self, name: &str) -> bool {
        let value = &mut [0; 64];
        let path = self.nodes.pfs(name);
        let got = rustix::fs::getxattr(&path, STUB_ATTRIBUTE, value);
        got.is_ok() || matches!(got, Err(rustix::io::Errno::RANGE))
    }

    fn kill(&self, node: usize) {
        self.nodes.nodes[node].stop();
    }

    /// Ends a node, and starts it again.
    fn restart(&mut self, node: usize) {
        self.end(node);
        let started = Node::start(self.configs[node].clone()).unwrap();
        self.nodes.nodes.insert(node, started);
    }

    /// Ends a node, whose place in the list the next one gets.
    fn end(&mut self, node: usize) {
        let ended = self.nodes.nodes.remove(node);
        ended.stop();
        until("nobody uses it", || Arc::strong_count(&ended) == 1);
    }

    fn on_pfs(&self, name: &str) -> Vec<u8> {
        std::fs::read(self.nodes.pfs(name)).unwrap()
    }

    fn owed_bytes(&self) -> u64 {
        (1..self.nodes.nodes.len()).map(|node| self.buffer(node).owed_bytes).sum()
    }
}

#[test]
fn what_was_synced_is_brought_to_the_pfs_when_the_node_that_wrote_it_dies() {
    let cluster = cluster(3);
    let mut bytes = content(3, 3 * PACKET as usize + 5);
    let file = cluster.create(0, "file");
    file.write_at(0, &bytes).unwrap();
    file.sync(false).unwrap();
    // A hole, an overwrite, and a cut within a packet with new bytes behind it.
    file.write_at(PACKET - 3, b"over").unwrap();
    file.sync(false).unwrap();
    file.set_size(2 * PACKET + 100).unwrap();
    file.set_size(2 * PACKET + 10_000).unwrap();
    file.write_at(9 * PACKET + 7, b"end").unwrap();
    file.sync(false).unwrap();
    bytes[PACKET as usize - 3..PACKET as usize + 1].copy_from_slice(b"over");
    bytes.truncate(2 * PACKET as usize + 100);
    bytes.resize(9 * PACKET as usize + 7, 0);
    bytes.extend_from_slice(b"end");
    assert!(cluster.is_stub("file"), "the PFS has nothing of it");
    assert!(cluster.owed_bytes() > 0, "it is on the disk of a buffer");
    // Not synced: it may be lost.
    file.write_at(0, b"later").unwrap();
    cluster.kill(0);
    until("it is on the PFS", || !cluster.is_stub("file"));
    assert!(cluster.on_pfs("file") == bytes);
    until("nothing is owed any more", || cluster.owed_bytes() == 0);
    assert!(cluster.nodes.read(1, "file").0 == bytes && cluster.nodes.read(2, "file").0 == bytes);
    assert!(cluster.disks.path().exists());
}

#[test]
fn a_file_that_is_closed_comes_to_the_pfs_by_itself_and_the_buffers_forget_it() {
    let cluster = cluster(3);
    let bytes = content(5, 5 * PACKET as usize + 77);
    let file = cluster.create(0, "file");
    file.write_at(0, &bytes).unwrap();
    file.flush().unwrap();
    assert!(cluster.is_stub("file") && cluster.owed_bytes() > 0);
    drop(file);
    until("it is on the PFS", || !cluster.is_stub("file"));
    assert!(cluster.on_pfs("file") == bytes);
    until("nothing is owed any more", || cluster.owed_bytes() == 0);
    assert_eq!((cluster.copies(0).missing, cluster.copies(0).put_in_place), (0, 0));
    assert!(cluster.nodes.read(2, "file").0 == bytes);
}

#[test]
fn both_nodes_may_end_if_the_one_with_the_disk_comes_back() {
    let mut cluster = cluster(2);
    let bytes = content(6, 2 * PACKET as usize + 1);
    let file = cluster.create(0, "file");
    file.write_at(0, &bytes).unwrap();
    file.sync(false).unwrap();
    assert!(cluster.is_stub("file"));
    drop(file);
    cluster.kill(0);
    cluster.restart(1);
    until("it is on the PFS", || !cluster.is_stub("file"));
    assert!(cluster.on_pfs("file") == bytes);
    until("nothing is owed any more", || cluster.owed_bytes() == 0);
}

#[test]
fn where_a_buffer_goes_its_files_come_to_the_pfs_and_later_ones_are_written_through() {
    let mut cluster = cluster(2);
    let bytes = content(7, PACKET as usize + 9);
    let file = cluster.create(0, "file");
    file.write_at(0, &bytes).unwrap();
    file.sync(false).unwrap();
    cluster.end(1);
    until("it is on the PFS", || !cluster.is_stub("file"));
    file.write_at(0, b"again").unwrap();
    file.sync(false).unwrap();
    let through = cluster.create(0, "through");
    through.write_at(0, &bytes).unwrap();
    through.sync(false).unwrap();
    assert!(!cluster.is_stub("through") && cluster.on_pfs("through") == bytes);
    assert_eq!(cluster.on_pfs("file")[..5], *b"again");
    assert!(cluster.on_pfs("file")[5..] == bytes[5..]);
}

#[test]
fn a_long_file_is_stored_while_it_is_written_and_whole_when_it_is_synced() {
    let cluster = cluster(3);
    // More than a block of the buffer, and more than is kept back.
    let piece = content(8, PACKET as usize * 2);
    let pieces = 144;
    let file = cluster.create(0, "file");
    for number in 0..pieces {
        file.write_at(number * 2 * PACKET, &piece).unwrap();
    }
    assert!(cluster.copies(0).pushed_bytes > 100 << 20, "it is stored while it is written");
    // What is stored already is written again, and cut.
    file.write_at(5, b"again").unwrap();
    file.set_size(139 * 2 * PACKET + 3).unwrap();
    file.write_at(140 * 2 * PACKET, b"end").unwrap();
    file.sync(false).unwrap();
    assert!(cluster.is_stub("file"));
    cluster.kill(0);
    until("it is on the PFS", || !cluster.is_stub("file"));
    let found = cluster.on_pfs("file");
    let step = 2 * PACKET as usize;
    assert_eq!(found.len(), 140 * step + 3);
    assert_eq!((&found[..5], &found[5..10]), (&piece[..5], &b"again"[..]));
    assert!(found[10..step] == piece[10..]);
    for number in 1..139 {
        assert!(found[number * step..(number + 1) * step] == piece, "piece {number}");
    }
    assert!(found[139 * step..139 * step + 3] == piece[..3]);
    assert!(found[139 * step + 3..140 * step].iter().all(|byte| *byte == 0), "it was cut");
    assert_eq!(&found[140 * step..], b"end");
    until("nothing is owed any more", || cluster.owed_bytes() == 0);
}

/// Zeros what a buffer has on its disk behind the first bytes of each file.
fn break_files(directory: &Path) {
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let file = File::options().read(true).write(true).open(&path).unwrap();
        let length = file.metadata().unwrap().len();
        // What is told of the file is short; its bytes are long.
        if length > PACKET {
            file.write_all_at(&[0; 4096], length / 2).unwrap();
        }
    }
}

#[test]
fn a_packet_that_is_broken_is_never_taken_for_bytes() {
    let mut cluster = cluster(2);
    let bytes = content(9, 2 * PACKET as usize);
    let file = cluster.create(0, "file");
    file.write_at(0, &bytes).unwrap();
    file.sync(false).unwrap();
    drop(file);
    cluster.kill(0);
    cluster.end(1);
    break_files(&cluster.disks.path().join("1"));
    let started = Node::start(cluster.configs[1].clone()).unwrap();
    cluster.nodes.nodes.insert(1, started);
    assert!(!cluster.nodes.nodes[1].status().degraded.is_empty(), "it is said at the start");
    let open = || cluster.nodes.try_open(1, "file", Access::Read).map(|open| read_all(&*open));
    let refused: Result<_, Error> = open();
    assert!(refused.is_err(), "an open tells that its bytes are lost");
    std::thread::sleep(Duration::from_secs(2));
    assert!(cluster.is_stub("file"), "the stub stays");
    assert!(cluster.owed_bytes() > 0, "what is there stays on the disk");
    // And nobody is told otherwise.
    assert!(cluster.copies(1).answered_for > 0);
    let reply = cluster.nodes.nodes[1].admin(AdminRequest::Owed, None, 0).unwrap();
    let AdminReply::Owed(owed) = reply else { panic!("{reply:?}") };
    assert!(owed[0].path == "file" && owed[0].stays_because.is_some(), "{owed:?}");
    let flushed =
        cluster.nodes.nodes[1].admin(AdminRequest::FlushAll { forgets_missing: false }, None, 0);
    assert!(flushed.is_err_and(|error| error.to_string().contains("`tidepool status --owed`")));
}

/// It came to the PFS, and who answered for it was not told.
#[test]
fn a_file_that_is_over_and_removed_leaves_nothing_with_a_node_that_was_away() {
    let mut cluster = cluster(2);
    let file = cluster.create(0, "file");
    file.write_at(0, &content(14, 1 << 20)).unwrap();
    file.sync(false).unwrap();
    cluster.end(1);
    until("it is on the PFS", || !cluster.is_stub("file"));
    drop(file);
    cluster.kill(0);
    let started = Node::start(cluster.configs[1].clone()).unwrap();
    cluster.nodes.nodes.insert(1, started);
    until("it answers for it", || cluster.copies(1).answered_for > 0);
    std::fs::remove_file(cluster.nodes.pfs("file")).unwrap();
    until("nothing is owed any more", || cluster.owed_bytes() == 0);
    assert_eq!(cluster.copies(1).answered_for, 0);
}

#[test]
fn a_file_that_gets_another_name_comes_to_the_pfs() {
    let cluster = cluster(2);
    let bytes = content(15, 3000);
    let file = cluster.create(0, "file");
    file.write_at(0, &bytes).unwrap();
    file.sync(false).unwrap();
    assert!(cluster.is_stub("file"));
    std::fs::hard_link(cluster.nodes.pfs("file"), cluster.nodes.pfs("link")).unwrap();
    until("it is on the PFS", || !cluster.is_stub("link"));
    assert!(cluster.on_pfs("file") == bytes && cluster.on_pfs("link") == bytes);
    // Before the first sync.
    let file = cluster.create(0, "other");
    file.write_at(0, &bytes).unwrap();
    std::fs::hard_link(cluster.nodes.pfs("other"), cluster.nodes.pfs("more")).unwrap();
    file.sync(false).unwrap();
    assert!(!cluster.is_stub("other") && cluster.on_pfs("more") == bytes);
}

/// Whatever became of what was stored ahead of a sync, or cut since.
#[test]
fn nothing_stays_in_the_buffers_of_files_that_are_over() {
    let cluster = cluster(3);
    let piece = content(12, 1 << 20);
    let long = |file: &dyn OpenFile, at: u64| {
        (0..24).for_each(|number| {
            file.write_at((at + number) << 20, &piece).unwrap();
        });
    };
    // Stored and cut off; never synced, and cut to nothing; and removed.
    let cut = cluster.create(0, "cut");
    long(&*cut, 0);
    long(&*cut, 130);
    cut.sync(false).unwrap();
    cut.set_size(5).unwrap();
    cut.flush().unwrap();
    let emptied = cluster.create(0, "emptied");
    long(&*emptied, 0);
    emptied.set_size(0).unwrap();
    emptied.flush().unwrap();
    let removed = cluster.create(0, "removed");
    long(&*removed, 0);
    std::fs::remove_file(cluster.nodes.pfs("removed")).unwrap();
    assert!(cluster.owed_bytes() > 48 << 20);
    drop((cut, emptied, removed));
    until("nothing is owed any more", || cluster.owed_bytes() == 0);
    assert_eq!(cluster.on_pfs("cut"), piece[..5]);
}

#[test]
fn a_node_that_dies_amid_its_first_sync_leaves_an_empty_file() {
    let cluster = cluster(2);
    let file = cluster.create(0, "file");
    let piece = content(13, 1 << 20);
    // More than is stored ahead of a sync: who answers for it was told of it.
    (0..20).for_each(|number| {
        file.write_at(number << 20, &piece).unwrap();
    });
    until("it was told of it", || cluster.owed_bytes() > 10 << 20);
    cluster.kill(0);
    until("it is no stub any more", || !cluster.is_stub("file"));
    assert_eq!(cluster.nodes.read(1, "file").0, b"", "nothing of it was promised");
    until("nothing is owed any more", || cluster.owed_bytes() == 0);
}

#[test]
fn a_flush_returns_when_the_pfs_has_it() {
    let cluster = cluster(2);
    let written = |name: &str| {
        let file = cluster.create(0, name);
        file.write_at(0, &content(11, 1000)).unwrap();
        file.sync(false).unwrap();
        file
    };
    let _open = ["one", "two", "three"].map(written);
    let flush = |node: usize, name: Option<&str>| {
        let file = name.map(|name| File::open(cluster.nodes.pfs(name)).unwrap().into());
        let what = if name.is_some() {
            AdminRequest::Flush
        } else {
            AdminRequest::FlushAll { forgets_missing: false }
        };
        cluster.nodes.nodes[node].admin(what, file, 0).unwrap()
    };
    let flushed =
        |files, bytes| AdminReply::Flushed(FlushReport { files, bytes, forgotten: Vec::new() });
    until("what is owed is counted", || {
        let copies = cluster.copies(0);
        (copies.owed_files, copies.owed_bytes) == (3, 3000)
    });
    assert_eq!(cluster.copies(1).answered_for, 3);
    for node in [0, 1] {
        let reply = cluster.nodes.nodes[node].admin(AdminRequest::Owed, None, 0).unwrap();
        let AdminReply::Owed(mut owed) = reply else { panic!("{reply:?}") };
        owed.sort_by(|a, b| a.path.cmp(&b.path));
        assert_eq!(owed.iter().map(|it| &it.path).collect::<Vec<_>>(), ["one", "three", "two"]);
        let of_it = |it: &OwedFile| (it.bytes, it.node.clone(), it.answered_by.clone());
        assert!(owed.iter().all(|it| of_it(it) == (1000, "n0".into(), "n1".into())));
        assert!(owed.iter().all(|it| it.servers == ["n1"]), "{owed:?}");
    }
    assert_eq!(flush(0, Some("one")), flushed(1, 1000));
    assert_eq!(["one", "two"].map(|name| cluster.is_stub(name)), [false, true]);
    assert_eq!(flush(1, Some("two")), flushed(0, 0), "the node that has it does it");
    assert!(!cluster.is_stub("two"));
    assert_eq!(flush(0, None), flushed(1, 1000));
    assert!(!cluster.is_stub("three"));
    until("nothing is owed any more", || cluster.owed_bytes() == 0);
    until("that is counted", || cluster.copies(0).owed_files + cluster.copies(1).answered_for == 0);
}

#[test]
fn what_becomes_of_a_name_while_its_bytes_are_owed_is_what_programs_see() {
    let cluster = cluster(3);
    let bytes = content(10, PACKET as usize + 1);
    let written = |name: &str| {
        let file = cluster.create(0, name);
        file.write_at(0, &bytes).unwrap();
        file.sync(false).unwrap();
        file
    };
    let pfs = |name: &str| cluster.nodes.pfs(name);
    // Opened elsewhere: the node that has it writes it back, and goes on durably.
    let file = written("opened");
    assert!(cluster.nodes.read(2, "opened").0 == bytes && !cluster.is_stub("opened"));
    file.write_at(0, b"later").unwrap();
    file.sync(false).unwrap();
    assert_eq!(cluster.on_pfs("opened")[..5], *b"later");
    // Emptied elsewhere, renamed, and removed, then the node dies.
    let _files = [written("emptied"), written("renamed"), written("removed")];
    let emptied = File::options().write(true).read(true).open(pfs("emptied")).unwrap();
    let request = OpenRequest {
        access: Access::ReadWrite,
        write_mode: Some(WriteMode::Through),
        ..OpenRequest::to_read(emptied.into(), 0)
    };
    let emptied = cluster.nodes.nodes[2].open(request).unwrap();
    emptied.set_size(0).unwrap();
    emptied.write_at(0, b"new").unwrap();
    emptied.sync(false).unwrap();
    std::fs::create_dir(pfs("d")).unwrap();
    std::fs::rename(pfs("renamed"), pfs("d/renamed")).unwrap();
    std::fs::remove_file(pfs("removed")).unwrap();
    cluster.kill(0);
    until("it is found by its new name", || {
        let open = cluster.nodes.try_open(2, "d/renamed", Access::Read);
        open.is_ok_and(|open| read_all(&*open).unwrap().0 == bytes)
    });
    assert_eq!(cluster.on_pfs("emptied"), b"new");
    assert!(!pfs("renamed").exists() && !pfs("removed").exists());
    until("nothing is owed any more", || cluster.owed_bytes() == 0);
}

/// Nodes that bring files to the PFS at so many bytes a second while nobody waits for them.
fn held_to(count: usize, bytes_per_s: u64) -> Cluster {
    cluster_with(count, |_, config| config.write_back_bytes_per_s = Some(bytes_per_s))
}

/// Bytes of a file that takes days at a byte a second, but for its first MiB.
const LONG: usize = 4 << 20;

impl Cluster {
    /// A file that its node closed, which is being brought to the PFS by now.
    fn under_way(&self, name: &str, bytes: &[u8]) {
        let file = self.create(0, name);
        file.write_at(0, bytes).unwrap();
        file.sync(false).unwrap();
        drop(file);
        let length = || std::fs::metadata(self.nodes.pfs(name)).unwrap().len();
        until("its node writes it", || length() == bytes.len() as u64);
        assert!(self.is_stub(name));
    }

    /// Files that nodes put beside those of programs.
    fn beside(&self) -> usize {
        let entries = std::fs::read_dir(self.nodes.pfs("")).unwrap();
        let names = entries.map(|it| it.unwrap().file_name());
        names.filter(|name| name.as_bytes().starts_with(b".tidepool-copy-")).count()
    }
}

/// Where the product is wrong these wait for days.
fn unless_it_hangs(test: fn()) {
    let (ended, end) = mpsc::channel();
    std::thread::spawn(move || {
        test();
        ended.send(()).unwrap();
    });
    end.recv_timeout(Duration::from_secs(120)).expect("it ends, and well");
}

#[test]
fn a_file_that_nobody_waits_for_comes_to_the_pfs_no_faster_than_it_may() {
    let cluster = held_to(2, 4 << 20);
    let bytes = content(14, 32 << 20);
    let begun = Instant::now();
    let file = cluster.create(0, "file");
    file.write_at(0, &bytes).unwrap();
    file.sync(false).unwrap();
    assert!(cluster.is_stub("file"));
    drop(file);
    until("it is on the PFS", || !cluster.is_stub("file"));
    // The first MiB is for nothing, and it may be 5 s before it begins.
    let took = begun.elapsed();
    assert!(took >= Duration::from_secs(7), "{took:?}");
    assert!(cluster.on_pfs("file") == bytes);
}

#[test]
fn a_file_is_written_at_once_where_somebody_waits_for_it() {
    unless_it_hangs(own_files_are_written_at_once);
}

fn own_files_are_written_at_once() {
    let cluster = held_to(2, 1);
    let bytes = content(15, LONG);
    cluster.under_way("read", &bytes);
    until("it is told", || cluster.copies(0).write_back_bytes_per_s == Some(1));
    assert!(cluster.nodes.read(1, "read").0 == bytes, "by another node");
    // It may have been read before the PFS had it.
    until("it is on the PFS", || !cluster.is_stub("read"));
    cluster.under_way("here", &bytes);
    assert!(cluster.nodes.read(0, "here").0 == bytes, "by the node that wrote it");
    let file = cluster.create(0, "written");
    file.write_at(0, &bytes).unwrap();
    file.sync(false).unwrap();
    // It is open, and at rest.
    let length = || std::fs::metadata(cluster.nodes.pfs("written")).unwrap().len();
    until("its node writes it", || length() == LONG as u64);
    file.write_at(0, b"again").unwrap();
    file.sync(false).unwrap();
    assert_eq!(cluster.on_pfs("written")[..5], *b"again");
    let names = ["one", "two"];
    names.iter().for_each(|name| cluster.under_way(name, &bytes));
    let flushed = cluster.nodes.nodes[0]
        .admin(AdminRequest::FlushAll { forgets_missing: false }, None, 0)
        .unwrap();
    let report = FlushReport { files: 2, bytes: 2 * LONG as u64, forgotten: Vec::new() };
    assert_eq!(flushed, AdminReply::Flushed(report));
    assert!(names.iter().all(|name| cluster.on_pfs(name) == bytes));
}

#[test]
fn a_file_of_a_node_that_is_gone_is_written_at_once_where_somebody_waits_for_it() {
    unless_it_hangs(files_of_others_are_written_at_once);
}

fn files_of_others_are_written_at_once() {
    let cluster = cluster_with(3, |node, config| {
        config.write_back_bytes_per_s = Some(1);
        // The other one has none.
        config.buffer = config.buffer.take().filter(|_| node == 1);
    });
    let bytes = content(16, LONG);
    let written = |node: usize, name: &str| {
        let file = cluster.create(node, name);
        file.write_at(0, &bytes).unwrap();
        file.sync(false).unwrap();
        assert!(cluster.is_stub(name));
        file
    };
    let names = ["read", "here", "emptied"];
    let _files = names.map(|name| written(0, name));
    cluster.kill(0);
    until("they are written", || cluster.beside() == 3);
    assert!(names.iter().all(|name| cluster.is_stub(name)), "and not there");
    // Nothing else waits for them.
    let owed_bytes = cluster.buffer(1).owed_bytes;
    let _file = written(2, "of-another");
    assert!(cluster.nodes.read(1, "of-another").0 == bytes);
    until("it is not owed any more", || cluster.buffer(1).owed_bytes == owed_bytes);
    let read = |node: usize, name: &str| {
        // An open that found the stub is told to open what is in its place.
        let open = || cluster.nodes.try_open(node, name, Access::Read);
        read_all(&*open().or_else(|_| open()).unwrap()).unwrap().0
    };
    assert!(read(2, "read") == bytes && read(1, "here") == bytes);
    assert!(!cluster.is_stub("read") && !cluster.is_stub("here") && cluster.is_stub("emptied"));
    let empty = || {
        let file = File::options().read(true).write(true).open(cluster.nodes.pfs("emptied"));
        let plain = OpenRequest::to_read(file.unwrap().into(), 0);
        let (access, write_mode) = (Access::ReadWrite, Some(WriteMode::Through));
        let request = OpenRequest { access, truncate: true, write_mode, ..plain };
        cluster.nodes.nodes[2].open(request)
    };
    // It need not wait until the holder counts as stuck.
    let emptied = empty().or_else(|_| empty()).unwrap();
    emptied.set_size(0).unwrap();
    assert!(!cluster.is_stub("emptied") && cluster.on_pfs("emptied").is_empty());
}

#[test]
fn a_file_without_a_name_keeps_no_other_out_of_the_buffers() {
    let cluster = cluster(2);
    let nameless = cluster.create(0, "nameless");
    std::fs::remove_file(cluster.nodes.pfs("nameless")).unwrap();
    nameless.write_at(0, b"temporary").unwrap();
    nameless.sync(false).unwrap();
    let file = cluster.create(0, "file");
    file.write_at(0, b"kept").unwrap();
    file.sync(false).unwrap();
    assert!(cluster.is_stub("file"));
}

#[test]
fn what_is_of_a_file_that_went_while_all_were_away_is_forgotten_by_command() {
    let mut cluster = cluster(2);
    for name in ["kept", "removed"] {
        let file = cluster.create(0, name);
        file.write_at(0, b"bytes").unwrap();
        file.sync(false).unwrap();
        // It stays open until its node ends.
        std::mem::forget(file);
    }
    cluster.end(1);
    cluster.kill(0);
    std::fs::remove_file(cluster.nodes.pfs("removed")).unwrap();
    let started = Node::start(cluster.configs[1].clone()).unwrap();
    cluster.nodes.nodes.insert(1, started);
    let flush = |forgets_missing| {
        let flush = AdminRequest::FlushAll { forgets_missing };
        cluster.nodes.nodes[1].admin(flush, None, 0)
    };
    until("it answers for the one that is there", || {
        cluster.copies(1).answered_for == 1 && cluster.on_pfs("kept") == b"bytes"
    });
    let told = flush(false).unwrap_err();
    assert!(told.to_string().contains("removed"), "{told}");
    assert!(told.remedy_text().is_some_and(|it| it.contains("--forget-missing")), "{told:?}");
    let AdminReply::Flushed(report) = flush(true).unwrap() else { panic!() };
    let dropped: Vec<_> = report.forgotten.iter().map(|it| (&*it.path, it.bytes)).collect();
    assert_eq!(dropped, [("removed", 5)]);
    until("nothing is owed any more", || cluster.owed_bytes() == 0);
    flush(false).unwrap();
}

#[test]
fn a_flush_brings_what_a_node_owed_that_was_started_again_at_once() {
    let mut cluster = cluster(2);
    let file = cluster.create(0, "file");
    file.write_at(0, b"bytes").unwrap();
    file.sync(false).unwrap();
    std::mem::forget(file);
    assert!(cluster.is_stub("file"));
    // Others do not see that it was away.
    cluster.kill(0);
    let again = Node::start(cluster.configs[0].clone()).unwrap();
    cluster.nodes.nodes.insert(0, again);
    let flush = AdminRequest::FlushAll { forgets_missing: false };
    cluster.nodes.nodes[2].admin(flush, None, 0).unwrap();
    assert_eq!(cluster.on_pfs("file"), b"bytes");
}

/// A new name changes no byte, and nobody waits for the PFS.
#[test]
fn a_file_gets_another_name_while_it_is_written_back_and_stays_in_memory() {
    let cluster = held_to(2, 1);
    let bytes = content(20, LONG);
    cluster.under_way("before", &bytes);
    let version = |name: &str| {
        tidepool_proto::Version::from(&std::fs::metadata(cluster.nodes.pfs(name)).unwrap())
    };
    let before = version("before");
    std::fs::rename(cluster.nodes.pfs("before"), cluster.nodes.pfs("after")).unwrap();
    cluster.nodes.nodes[0].rebase_version(&before, &version("after"), true);
    assert!(cluster.is_stub("after"), "it was not waited for");
    let flush = AdminRequest::FlushAll { forgets_missing: false };
    cluster.nodes.nodes[0].admin(flush, None, 0).unwrap();
    assert!(cluster.on_pfs("after") == bytes);
    let before = cluster.nodes.pfs_read_bytes(0);
    assert!(cluster.nodes.read(0, "after").0 == bytes);
    assert_eq!(cluster.nodes.pfs_read_bytes(0), before);
}

#[test]
fn what_was_written_back_is_in_memory_also_where_time_stamps_are_coarse() {
    let cluster = cluster_with(2, |_, config| config.timestamp_granularity_ns = Some(10_000_000));
    let bytes = content(18, 3 * BLOCK as usize);
    let file = cluster.create(0, "file");
    file.write_at(0, &bytes).unwrap();
    file.sync(false).unwrap();
    assert!(cluster.is_stub("file"));
    drop(file);
    until("it is on the PFS", || !cluster.is_stub("file"));
    // An open waits for what is left to do.
    let before = cluster.nodes.pfs_read_bytes(0);
    assert!(cluster.nodes.read(0, "file").0 == bytes);
    assert_eq!(cluster.nodes.pfs_read_bytes(0), before);
}
