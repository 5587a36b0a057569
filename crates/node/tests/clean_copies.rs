//! Tests of write modes `adw` and `bld`: the PFS has the bytes when a file is closed, and readers
//! on other nodes have them from burst buffers.

mod support;

use std::cell::Cell;
use std::fs::File;
use std::net::TcpListener;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::Arc;
use std::time::{Duration, Instant};

use support::content;
use support::nodes::*;
use tidepool_buffer::client::{Client, ClientSettings, Keep, tcp};
use tidepool_buffer::key::{LAST_BLOCK, PacketKey};
use tidepool_buffer::memory::Memory;
use tidepool_buffer::placement::{Member, Placement, Pool};
use tidepool_buffer::server::{InMemory, Server, Settings};
use tidepool_node::Node;
use tidepool_proto::admin::{AdminRequest, AdminService};
use tidepool_proto::cluster::CleanCopiesStatus;
use tidepool_proto::config::{BufferConfig, NodeConfig};
use tidepool_proto::{Access, FileService, MemorySize, OpenFile, OpenRequest, WriteMode};

/// Bytes of a packet, which this test knows of.
const PACKET: u64 = 512 << 10;

/// Nodes of which all but the first have a burst buffer in memory.
struct Cluster(Nodes);

fn cluster_with(count: usize, mode: WriteMode, change: impl Fn(&mut NodeConfig)) -> Cluster {
    let nodes = Nodes::with(count, |node, config| {
        config.write_mode = mode;
        let (memory_bytes, disk_bytes) = (64 << 20, 1 << 30);
        let buffer = BufferConfig { memory_bytes, directory: None, disk_bytes, address: None };
        config.buffer = (node > 0).then_some(buffer);
        change(config);
    });
    nodes.wait_joined();
    let cluster = Cluster(nodes);
    // Until all know of all buffers.
    (0..count).for_each(|node| cluster.wait_for_buffers(node));
    cluster
}

impl Cluster {
    fn wait_for_buffers(&self, node: usize) {
        let name = format!("probe-{node}");
        until("the buffers are known", || {
            let before = self.clean(node).pushed_bytes;
            self.write(node, &name, &content(1, 4 * PACKET as usize));
            std::thread::sleep(Duration::from_millis(50));
            self.clean(node).pushed_bytes > before
        });
        std::fs::remove_file(self.0.pfs(&name)).unwrap();
    }

    fn open_to_write(&self, node: usize, name: &str) -> Arc<dyn OpenFile> {
        let path = self.0.pfs(name);
        let created = !path.exists();
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).truncate(false).mode(0o640);
        let lower = options.open(path).unwrap().into();
        let access = Access::ReadWrite;
        let request = OpenRequest { access, created, ..OpenRequest::to_read(lower, 0) };
        self.0.nodes[node].open(request).unwrap()
    }

    /// Writes a file, until its packets were sent: what is evicted before is not.
    fn write_with_copies(&self, node: usize, name: &str, bytes: &[u8]) {
        let before = self.clean(node).pushed_bytes;
        self.write(node, name, bytes);
        let is_sent = || self.clean(node).pushed_bytes >= before + bytes.len() as u64;
        until("it was sent", is_sent);
    }

    /// Writes a file piece by piece, and closes it.
    fn write(&self, node: usize, name: &str, bytes: &[u8]) {
        let file = self.open_to_write(node, name);
        let step = 300_000;
        for (number, piece) in bytes.chunks(step).enumerate() {
            file.write_at((number * step) as u64, piece).unwrap();
        }
        file.flush().unwrap();
    }

    fn clean(&self, node: usize) -> CleanCopiesStatus {
        self.0.cluster(node).clean_copies
    }

    /// Bytes that any node had from burst buffers: one may ask another one to bring them in.
    fn fetched_bytes(&self) -> u64 {
        (0..self.0.nodes.len()).map(|node| self.clean(node).fetched_bytes).sum()
    }

    /// Reads a file which no node has in its store; what came from burst buffers.
    fn read_anew(&self, node: usize, name: &str, expected: &[u8]) -> u64 {
        for node in &self.0.nodes {
            node.admin(AdminRequest::EvictAll, None, 0).unwrap();
        }
        let before = self.fetched_bytes();
        assert!(self.0.read(node, name).0 == expected, "{name} on node {node}");
        self.fetched_bytes() - before
    }

    /// Until all of a file, written on the first node, comes from burst buffers on another one. It
    /// is written again now and then: a buffer that takes long to answer ends the copies of a file.
    fn wait_for_copies(&self, node: usize, name: &str, expected: &[u8]) {
        let written = Cell::new(Instant::now());
        until("it comes from burst buffers", || {
            if written.get().elapsed() > Duration::from_secs(10) {
                self.write(0, name, expected);
                written.set(Instant::now());
            }
            self.read_anew(node, name, expected) == expected.len() as u64
        });
    }
}

fn is_read_from_buffers_when_its_writer_is_gone(mode: WriteMode) {
    let cluster = cluster_with(3, mode, |_| ());
    let bytes = content(3, 7 * PACKET as usize + 77);
    cluster.write_with_copies(0, "file", &bytes);
    assert!(std::fs::read(cluster.0.pfs("file")).unwrap() == bytes, "the PFS has it");
    cluster.wait_for_copies(1, "file", &bytes);
    cluster.0.nodes[0].stop();
    let from_pfs = || cluster.0.pfs_read_bytes(1) + cluster.0.pfs_read_bytes(2);
    // Not at a moment when a server counts as slow.
    until("nothing comes from the PFS", || {
        let before = from_pfs();
        cluster.read_anew(2, "file", &bytes) == bytes.len() as u64 && from_pfs() == before
    });
}

#[test]
fn a_file_of_mode_adw_is_read_from_buffers_when_its_writer_is_gone() {
    is_read_from_buffers_when_its_writer_is_gone(WriteMode::Adw);
}

#[test]
fn a_file_of_mode_bld_is_read_from_buffers_when_its_writer_is_gone() {
    is_read_from_buffers_when_its_writer_is_gone(WriteMode::Bld);
}

/// As on most parallel file systems.
#[test]
fn where_time_stamps_are_coarse_a_file_is_told_of_after_a_while() {
    let cluster = cluster_with(2, WriteMode::Adw, |config| {
        config.timestamp_granularity_ns = Some(10_000_000);
    });
    let bytes = content(9, 6 * PACKET as usize + 1);
    cluster.write_with_copies(0, "file", &bytes);
    cluster.wait_for_copies(1, "file", &bytes);
}

#[test]
fn what_is_written_after_a_record_is_never_read_as_it_was() {
    let cluster = cluster_with(3, WriteMode::Adw, |_| ());
    let mut bytes = content(4, 9 * PACKET as usize + 5);
    cluster.write_with_copies(0, "file", &bytes);
    cluster.wait_for_copies(1, "file", &bytes);
    // An overwrite, a cut within a packet, a hole behind it, and an end.
    let file = cluster.open_to_write(0, "file");
    file.write_at(2 * PACKET + 9, b"over").unwrap();
    bytes[2 * PACKET as usize + 9..][..4].copy_from_slice(b"over");
    for node in [1, 2] {
        cluster.read_anew(node, "file", &bytes);
    }
    file.set_size(4 * PACKET + 100).unwrap();
    bytes.truncate(4 * PACKET as usize + 100);
    cluster.read_anew(1, "file", &bytes);
    file.write_at(7 * PACKET + 3, b"end").unwrap();
    bytes.resize(7 * PACKET as usize + 3, 0);
    bytes.extend_from_slice(b"end");
    cluster.read_anew(1, "file", &bytes);
    file.flush().unwrap();
    cluster.read_anew(2, "file", &bytes);
    drop(file);
    // Written whole again, what was stored before is replaced.
    bytes = content(8, bytes.len());
    cluster.write_with_copies(0, "file", &bytes);
    cluster.wait_for_copies(1, "file", &bytes);
    // Past Tidepool.
    let past = File::options().write(true).open(cluster.0.pfs("file")).unwrap();
    past.write_all_at(b"past", 5).unwrap();
    bytes[5..9].copy_from_slice(b"past");
    assert_eq!(cluster.read_anew(1, "file", &bytes), 0, "no record is of this version");
}

#[test]
fn a_file_that_is_renamed_or_whose_times_are_set_is_found_again() {
    let cluster = cluster_with(2, WriteMode::Bld, |_| ());
    let bytes = content(5, 3 * PACKET as usize);
    cluster.write_with_copies(0, "file", &bytes);
    cluster.wait_for_copies(1, "file", &bytes);
    let open = cluster.open_to_write(0, "file");
    std::fs::rename(cluster.0.pfs("file"), cluster.0.pfs("name")).unwrap();
    // As a mount of the first node does it: the node is told, and what it has stays.
    let lower = File::open(cluster.0.pfs("name")).unwrap();
    let request = OpenRequest::to_read(lower.into(), 0);
    let again = cluster.0.nodes[0].open(request).unwrap();
    drop((open, again));
    assert!(cluster.0.read(1, "name").0 == bytes);
}

#[test]
fn what_buffers_forgot_is_read_from_the_pfs() {
    // Fewer bytes than the files of this test have.
    let cluster = cluster_with(2, WriteMode::Bld, |_| ());
    let names: Vec<String> = (0..8).map(|number| format!("file-{number}")).collect();
    let bytes: Vec<Vec<u8>> = (0..8).map(|seed| content(seed, 12 << 20)).collect();
    for (name, bytes) in names.iter().zip(&bytes) {
        cluster.write_with_copies(0, name, bytes);
    }
    cluster.wait_for_copies(1, &names[7], &bytes[7]);
    let fetched: Vec<u64> =
        names.iter().zip(&bytes).map(|(name, it)| cluster.read_anew(1, name, it)).collect();
    assert!(fetched.iter().sum::<u64>() <= 64 << 20, "{fetched:?}");
    assert!(fetched.iter().any(|bytes| *bytes < 12 << 20), "{fetched:?}");
}

#[test]
fn beyond_its_part_a_writer_keeps_nothing_of_mode_bld_and_reads_it_from_buffers() {
    let cluster = cluster_with(2, WriteMode::Bld, |config| {
        let cluster = config.cluster.as_mut().unwrap();
        cluster.buffer_local_bytes = 0;
    });
    let bytes = content(6, 24 << 20);
    cluster.write(0, "file", &bytes);
    until("it is on the buffers alone", || {
        cluster.0.nodes[0].status().store.resident_bytes <= 4 << 20
    });
    until("it comes from there", || cluster.read_anew(0, "file", &bytes) >= 16 << 20);
}

#[test]
fn where_no_buffer_is_there_the_pfs_has_it_all_the_same() {
    let mut cluster = cluster_with(2, WriteMode::Adw, |_| ());
    let bytes = content(7, 5 * PACKET as usize);
    cluster.write_with_copies(0, "file", &bytes);
    cluster.wait_for_copies(1, "file", &bytes);
    let ended: Arc<Node> = cluster.0.nodes.remove(1);
    ended.stop();
    drop(ended);
    cluster.write(0, "later", &bytes);
    assert!(std::fs::read(cluster.0.pfs("later")).unwrap() == bytes);
    cluster.read_anew(0, "file", &bytes);
    cluster.read_anew(0, "later", &bytes);
}

#[test]
fn a_file_that_is_emptied_and_written_in_another_mode_is_read_as_it_is() {
    let cluster = cluster_with(2, WriteMode::Adw, |_| ());
    let modes = [WriteMode::Memory, WriteMode::Through, WriteMode::Bypass];
    for (number, mode) in modes.into_iter().enumerate() {
        let name = format!("file-{number}");
        let bytes = content(number as u64, 5 * PACKET as usize);
        cluster.write_with_copies(0, &name, &bytes);
        cluster.wait_for_copies(1, &name, &bytes);
        let lower = File::options().read(true).write(true).open(cluster.0.pfs(&name)).unwrap();
        let access = Access::ReadWrite;
        let write_mode = Some(mode);
        let plain = OpenRequest::to_read(lower.into(), 0);
        let request = OpenRequest { access, write_mode, truncate: true, ..plain };
        let file = cluster.0.nodes[0].open(request).unwrap();
        file.set_size(0).unwrap();
        let later = content(100 + number as u64, bytes.len());
        file.write_at(0, &later).unwrap();
        file.flush().unwrap();
        cluster.0.nodes[0]
            .admin(AdminRequest::FlushAll { forgets_missing: false }, None, 0)
            .unwrap();
        // Longer than files are looked at again.
        for _ in 0..3 {
            std::thread::sleep(Duration::from_millis(700));
            cluster.read_anew(1, &name, &later);
        }
    }
}

/// Who reaches the servers can store what it likes under each key, with a right checksum.
#[test]
fn what_somebody_else_stored_on_a_server_of_memcached_is_never_read() {
    let memory = Arc::new(Memory::new(64 << 20));
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    let settings = Settings::default();
    let _server =
        Server::start(Some(listener), settings, memory.clone(), Box::new(InMemory)).unwrap();
    let nodes = Nodes::with(2, |_, config| {
        config.write_mode = WriteMode::Bld;
        config.cluster.as_mut().unwrap().buffer_servers = vec![address.to_string()];
    });
    nodes.wait_joined();
    let cluster = Cluster(nodes);
    let bytes = content(10, 6 * PACKET as usize + 7);
    cluster.write_with_copies(0, "file", &bytes);
    cluster.wait_for_copies(1, "file", &bytes);
    let mut keys = Vec::new();
    memory.for_each(|key, _| keys.extend(PacketKey::parse(key)));
    assert_eq!(keys.len(), 8, "the packets, and a record");
    let pool = Pool::new(vec![Member { name: "s".into(), weight: 1.0 }], Placement::Block);
    let client = Client::new(pool.unwrap(), vec![tcp(address)], ClientSettings::default());
    let other = content(11, PACKET as usize);
    for key in keys.iter().filter(|key| key.block.block != LAST_BLOCK) {
        client.put(&key.block, &[(key.packet, &other)], Keep::Clean).unwrap();
    }
    assert_eq!(cluster.read_anew(1, "file", &bytes), 0, "it comes from the PFS");
    let record = keys.iter().find(|key| key.block.block == LAST_BLOCK).unwrap();
    client.put(&record.block, &[(0, &other[..400])], Keep::Clean).unwrap();
    assert_eq!(cluster.read_anew(0, "file", &bytes), 0);
}

/// What the jobs of a buffer node need goes to them at once, but for what is owed.
#[test]
fn a_buffer_gives_memory_back_with_the_store_of_its_node() {
    let cluster = cluster_with(2, WriteMode::Adw, |_| ());
    let bytes = content(12, 48 << 20);
    cluster.write_with_copies(0, "file", &bytes);
    let buffer = || *cluster.0.nodes[1].status().buffer.unwrap();
    assert!(buffer().memory_bytes >= 48 << 20);
    let resize = |bytes| {
        let size = AdminRequest::Resize { size: MemorySize::Bytes(bytes) };
        cluster.0.nodes[1].admin(size, None, 0).unwrap();
    };
    let before = resident_bytes();
    resize(CAPACITY / 8);
    let now = buffer();
    assert!(now.memory_limit_bytes == 8 << 20 && now.memory_bytes <= 8 << 20, "{now:?}");
    let given_back = before.saturating_sub(resident_bytes());
    assert!(given_back >= 32 << 20, "{given_back} bytes went back to the system");
    resize(CAPACITY);
    assert_eq!(buffer().memory_limit_bytes, 64 << 20);
    cluster.read_anew(1, "file", &bytes);
}

/// Memory of this process that no file is behind.
fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}
