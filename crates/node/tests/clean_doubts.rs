//! Tests of what a node has of files that it wrote in modes `adw` and `bld` while another program
//! wrote to them too, which no time stamp shows: it is compared with the PFS before others get it.

mod support;

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use support::content;
use support::hooked::{Call, Hooks, inode};
use support::nodes::*;
use tidepool_proto::admin::{AdminRequest, AdminService};
use tidepool_proto::cluster::CleanCopiesStatus;
use tidepool_proto::config::BufferConfig;
use tidepool_proto::{Access, FileService, OpenFile, OpenRequest, WriteMode};

/// Bytes of a packet, which this test knows of.
const PACKET: u64 = 512 << 10;

struct Cluster(Nodes);

impl Cluster {
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
}

/// Nodes that all have a burst buffer, over a file system whose calls a test sees.
fn hooked_cluster(count: usize, hooks: &Arc<Hooks>) -> Cluster {
    let nodes = Nodes::hooked(count, hooks, |config| {
        config.write_mode = WriteMode::Adw;
        let (memory_bytes, disk_bytes) = (64 << 20, 1 << 30);
        let buffer = BufferConfig { memory_bytes, directory: None, disk_bytes, address: None };
        config.buffer = Some(buffer);
    });
    nodes.wait_joined();
    // Until all know of all buffers, for which they ask every 2 s.
    std::thread::sleep(Duration::from_secs(5));
    Cluster(nodes)
}

/// From now on another program writes to a file right before the node's next write to it.
fn write_past_the_next_write(hooks: &Hooks, path: PathBuf, offset: u64) {
    let number = std::fs::metadata(&path).unwrap().ino();
    let is_done = AtomicBool::new(false);
    hooks.set(move |call, make| {
        if call == Call::Write && inode() == number && !is_done.swap(true, Ordering::SeqCst) {
            let past = File::options().write(true).open(&path).unwrap();
            past.write_all_at(b"past", offset).unwrap();
        }
        make()
    });
}

/// Our own write moves the time stamps after it.
#[test]
fn what_another_program_wrote_right_before_a_write_of_ours_is_read() {
    let hooks = Arc::<Hooks>::default();
    let cluster = hooked_cluster(3, &hooks);
    let mut bytes = content(13, 8 * PACKET as usize);
    let file = cluster.open_to_write(1, "file");
    file.write_at(0, &bytes).unwrap();
    write_past_the_next_write(&hooks, cluster.0.pfs("file"), PACKET + 9);
    file.write_at(3 * PACKET, b"ours").unwrap();
    file.flush().unwrap();
    bytes[PACKET as usize + 9..][..4].copy_from_slice(b"past");
    bytes[3 * PACKET as usize..][..4].copy_from_slice(b"ours");
    drop(file);
    // Nobody else gets what its node has, which finds out that this is wrong.
    for _ in 0..20 {
        assert!(cluster.0.read(0, "file").0 == bytes);
        std::thread::sleep(Duration::from_millis(100));
        cluster.0.nodes[0].admin(AdminRequest::EvictAll, None, 0).unwrap();
    }
    until("its node reads it as it is", || cluster.0.read(1, "file").0 == bytes);
    until("it was sent", || cluster.clean(1).pushed_bytes >= bytes.len() as u64);
    // What is equal comes from buffers in the end, and until then all is right.
    until("some of it comes from buffers", || cluster.read_anew(2, "file", &bytes) > 0);
    cluster.read_anew(0, "file", &bytes);
}

/// What a node has in memory of a file from before is not sent when it writes to another part.
#[test]
fn what_another_program_wrote_to_a_part_that_a_node_only_read_is_read() {
    let hooks = Arc::<Hooks>::default();
    let cluster = hooked_cluster(2, &hooks);
    let mut bytes = content(14, 8 * PACKET as usize);
    std::fs::write(cluster.0.pfs("file"), &bytes).unwrap();
    until("its node has it in memory", || {
        let before = cluster.0.pfs_read_bytes(1);
        cluster.0.read(1, "file").0 == bytes && cluster.0.pfs_read_bytes(1) == before
    });
    let file = cluster.open_to_write(1, "file");
    write_past_the_next_write(&hooks, cluster.0.pfs("file"), 5 * PACKET);
    file.write_at(7, b"ours").unwrap();
    file.flush().unwrap();
    drop(file);
    bytes[7..][..4].copy_from_slice(b"ours");
    bytes[5 * PACKET as usize..][..4].copy_from_slice(b"past");
    is_read_everywhere(&cluster, &bytes);
}

/// A small file is packed, and has no packets.
#[test]
fn what_another_program_wrote_to_a_small_file_right_after_a_write_of_ours_is_read() {
    let hooks = Arc::<Hooks>::default();
    let cluster = hooked_cluster(2, &hooks);
    let mut bytes = content(15, 3000);
    let file = cluster.open_to_write(1, "file");
    let path = cluster.0.pfs("file");
    let number = std::fs::metadata(&path).unwrap().ino();
    let is_done = AtomicBool::new(false);
    hooks.set(move |call, make| {
        make()?;
        if call == Call::Write && inode() == number && !is_done.swap(true, Ordering::SeqCst) {
            let past = File::options().write(true).open(&path).unwrap();
            past.write_all_at(b"past", 2000).unwrap();
        }
        Ok(())
    });
    file.write_at(0, &bytes).unwrap();
    file.flush().unwrap();
    drop(file);
    bytes[2000..][..4].copy_from_slice(b"past");
    is_read_everywhere(&cluster, &bytes);
}

/// A file that the second node wrote is read as it is: at once by the other one, and in the end by
/// its node.
fn is_read_everywhere(cluster: &Cluster, bytes: &[u8]) {
    for _ in 0..20 {
        assert!(cluster.0.read(0, "file").0 == bytes, "elsewhere");
        std::thread::sleep(Duration::from_millis(100));
        cluster.0.nodes[0].admin(AdminRequest::EvictAll, None, 0).unwrap();
    }
    until("its node reads it as it is", || cluster.0.read(1, "file").0 == bytes);
}

/// In the middle of what a comparison reads.
fn is_written_while_it_is_compared(is_closed_before: bool) {
    let hooks = Arc::<Hooks>::default();
    let cluster = hooked_cluster(2, &hooks);
    let mut bytes = content(16, 8 * PACKET as usize);
    let file = cluster.open_to_write(1, "file");
    file.write_at(0, &bytes).unwrap();
    let path = cluster.0.pfs("file");
    let number = std::fs::metadata(&path).unwrap().ino();
    let ((began, is_begun), (go, going)) = (mpsc::channel(), mpsc::channel::<()>());
    let (going, is_first) = (Mutex::new(going), AtomicBool::new(true));
    let hides = Arc::new(AtomicBool::new(false));
    let hiding = hides.clone();
    hooks.set(move |call, make| {
        if inode() == number && call == Call::Read && is_first.swap(false, Ordering::SeqCst) {
            began.send(()).unwrap();
            let _ = going.lock().unwrap().recv_timeout(Duration::from_secs(20));
        }
        if inode() == number && call == Call::Write && hiding.swap(false, Ordering::SeqCst) {
            let past = File::options().write(true).open(&path).unwrap();
            past.write_all_at(b"past", PACKET + 9).unwrap();
        }
        make()
    });
    file.flush().unwrap();
    drop(file);
    is_begun.recv_timeout(Duration::from_secs(20)).expect("it is compared");
    let file = cluster.open_to_write(1, "file");
    hides.store(true, Ordering::SeqCst);
    file.write_at(3 * PACKET, b"ours").unwrap();
    if !is_closed_before {
        go.send(()).unwrap();
        std::thread::sleep(Duration::from_millis(300));
    }
    file.flush().unwrap();
    drop(file);
    if is_closed_before {
        std::thread::sleep(Duration::from_millis(300));
        go.send(()).unwrap();
    }
    bytes[PACKET as usize + 9..][..4].copy_from_slice(b"past");
    bytes[3 * PACKET as usize..][..4].copy_from_slice(b"ours");
    is_read_everywhere(&cluster, &bytes);
}

#[test]
fn a_file_that_is_written_and_closed_while_it_is_compared_is_compared_again() {
    is_written_while_it_is_compared(true);
}

#[test]
fn a_file_that_is_written_while_it_is_compared_and_closed_later_is_compared_again() {
    is_written_while_it_is_compared(false);
}

#[test]
fn a_comparison_that_fails_is_made_again() {
    let hooks = Arc::<Hooks>::default();
    let cluster = hooked_cluster(2, &hooks);
    let mut bytes = content(17, 8 * PACKET as usize);
    let file = cluster.open_to_write(1, "file");
    file.write_at(0, &bytes).unwrap();
    let path = cluster.0.pfs("file");
    let number = std::fs::metadata(&path).unwrap().ino();
    let (reads, hides) = (AtomicBool::new(false), AtomicBool::new(true));
    hooks.set(move |call, make| {
        if inode() == number && call == Call::Read && !reads.swap(true, Ordering::SeqCst) {
            let refused = std::io::Error::from_raw_os_error(libc::EIO);
            return Err(tidepool_proto::Error::pfs("reading", refused));
        }
        if inode() == number && call == Call::Write && hides.swap(false, Ordering::SeqCst) {
            let past = File::options().write(true).open(&path).unwrap();
            past.write_all_at(b"past", PACKET + 9).unwrap();
        }
        make()
    });
    file.write_at(3 * PACKET, b"ours").unwrap();
    file.flush().unwrap();
    drop(file);
    // Nobody else reads it meanwhile: the first read is that of the comparison.
    std::thread::sleep(Duration::from_secs(4));
    bytes[PACKET as usize + 9..][..4].copy_from_slice(b"past");
    bytes[3 * PACKET as usize..][..4].copy_from_slice(b"ours");
    is_read_everywhere(&cluster, &bytes);
}

#[test]
fn a_file_that_one_program_closes_and_another_one_writes_on_is_compared_in_the_end() {
    let hooks = Arc::<Hooks>::default();
    let cluster = hooked_cluster(2, &hooks);
    let mut bytes = content(18, 8 * PACKET as usize);
    let file = cluster.open_to_write(1, "file");
    file.write_at(0, &bytes).unwrap();
    let other = cluster.open_to_write(1, "file");
    file.flush().unwrap();
    drop(file);
    // For longer than a file is looked at that does not rest.
    let begun = Instant::now();
    let mut is_hidden = false;
    while begun.elapsed() < Duration::from_secs(10) {
        if !is_hidden && begun.elapsed() > Duration::from_secs(8) {
            is_hidden = true;
            write_past_the_next_write(&hooks, cluster.0.pfs("file"), PACKET + 9);
        }
        other.write_at(3 * PACKET, b"ours").unwrap();
        std::thread::sleep(Duration::from_millis(200));
    }
    std::thread::sleep(Duration::from_millis(2500));
    other.flush().unwrap();
    drop(other);
    bytes[PACKET as usize + 9..][..4].copy_from_slice(b"past");
    bytes[3 * PACKET as usize..][..4].copy_from_slice(b"ours");
    is_read_everywhere(&cluster, &bytes);
}

#[test]
fn a_file_that_gets_room_after_a_write_is_compared() {
    let hooks = Arc::<Hooks>::default();
    let cluster = hooked_cluster(2, &hooks);
    let mut bytes = content(19, 8 * PACKET as usize);
    let file = cluster.open_to_write(1, "file");
    file.write_at(0, &bytes).unwrap();
    write_past_the_next_write(&hooks, cluster.0.pfs("file"), PACKET + 9);
    file.write_at(3 * PACKET, b"ours").unwrap();
    file.allocate(0, 0, 4096).unwrap();
    file.flush().unwrap();
    drop(file);
    bytes[PACKET as usize + 9..][..4].copy_from_slice(b"past");
    bytes[3 * PACKET as usize..][..4].copy_from_slice(b"ours");
    is_read_everywhere(&cluster, &bytes);
}

/// Of a file that its node only has in memory, and does not write to.
#[test]
fn a_file_that_only_gets_another_length_is_compared() {
    let hooks = Arc::<Hooks>::default();
    let cluster = hooked_cluster(2, &hooks);
    let mut bytes = content(20, 8 * PACKET as usize);
    std::fs::write(cluster.0.pfs("file"), &bytes).unwrap();
    until("its node has it in memory", || {
        let before = cluster.0.pfs_read_bytes(1);
        cluster.0.read(1, "file").0 == bytes && cluster.0.pfs_read_bytes(1) == before
    });
    let path = cluster.0.pfs("file");
    let number = std::fs::metadata(&path).unwrap().ino();
    let is_done = AtomicBool::new(false);
    hooks.set(move |call, make| {
        if call == Call::SetSize && inode() == number && !is_done.swap(true, Ordering::SeqCst) {
            let past = File::options().write(true).open(&path).unwrap();
            past.write_all_at(b"past", 5 * PACKET).unwrap();
        }
        make()
    });
    let file = cluster.open_to_write(1, "file");
    file.set_size(8 * PACKET + 4096).unwrap();
    file.flush().unwrap();
    drop(file);
    bytes[5 * PACKET as usize..][..4].copy_from_slice(b"past");
    bytes.resize(8 * PACKET as usize + 4096, 0);
    is_read_everywhere(&cluster, &bytes);
}
