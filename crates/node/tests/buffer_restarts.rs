//! Tests of burst buffers whose node is started again over its disk as it was at a kill, or as a
//! broken disk left it.

mod support;

use std::fs::File;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::sync::{Arc, Mutex};

use support::content;
use support::hooked::{Hooks, inode};
use support::nodes::*;
use tidepool_node::Node;
use tidepool_proto::admin::{AdminReply, AdminRequest, AdminService};
use tidepool_proto::buffer::OwedFile;
use tidepool_proto::config::{BufferConfig, NodeConfig};
use tidepool_proto::stub::STUB_ATTRIBUTE;
use tidepool_proto::{Access, FileService, OpenFile, OpenRequest, Result, WriteMode};

/// Bytes of a packet, which this test knows of.
const PACKET: u64 = 512 << 10;

/// A node that writes by `alw`, and one with a burst buffer on a disk.
struct Cluster {
    nodes: Nodes,
    configs: Vec<NodeConfig>,
    disks: tempfile::TempDir,
}

impl Cluster {
    fn new(hooks: &Arc<Hooks>) -> Self {
        let disks = tempfile::tempdir().unwrap();
        let configs = Mutex::new(Vec::new());
        let nodes = Nodes::hooked(2, hooks, |config| {
            config.write_mode = WriteMode::Alw;
            let name = config.cluster.as_ref().and_then(|it| it.node_name.clone()).unwrap();
            let directory = Some(disks.path().join(name));
            let memory_bytes = 64 << 20;
            let buffer =
                BufferConfig { memory_bytes, directory, disk_bytes: 1 << 30, address: None };
            config.buffer = Some(buffer);
            configs.lock().unwrap().push(config.clone());
        });
        nodes.wait_joined();
        let cluster = Cluster { nodes, configs: configs.into_inner().unwrap(), disks };
        until("the buffer is known", || {
            let probe = cluster.create("probe", b"probe");
            let is_stub = cluster.is_stub("probe");
            drop(probe);
            std::fs::remove_file(cluster.nodes.pfs("probe")).unwrap();
            is_stub
        });
        until("nothing of it is owed", || cluster.owed_bytes() == 0);
        cluster
    }

    /// A file of the first node, all promised.
    fn create(&self, name: &str, bytes: &[u8]) -> Arc<dyn OpenFile> {
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).mode(0o640);
        let request = OpenRequest {
            access: Access::ReadWrite,
            created: true,
            ..OpenRequest::to_read(options.open(self.nodes.pfs(name)).unwrap().into(), 0)
        };
        let file = self.nodes.nodes[0].open(request).unwrap();
        file.write_at(0, bytes).unwrap();
        file.sync(false).unwrap();
        file
    }

    fn is_stub(&self, name: &str) -> bool {
        let got = rustix::fs::getxattr(self.nodes.pfs(name), STUB_ATTRIBUTE, &mut [0; 64]);
        got.is_ok() || matches!(got, Err(rustix::io::Errno::RANGE))
    }

    fn disk(&self) -> std::path::PathBuf {
        self.disks.path().join("n1")
    }

    /// Ends the node with the buffer, and starts it again once its disk was changed.
    fn restart(&mut self, change: impl FnOnce(&Path)) {
        let ended = self.nodes.nodes.remove(1);
        ended.stop();
        until("nobody uses it", || Arc::strong_count(&ended) == 1);
        drop(ended);
        change(&self.disk());
        self.nodes.nodes.push(Node::start(self.configs[1].clone()).unwrap());
    }

    fn owed_bytes(&self) -> u64 {
        self.nodes.nodes[1].status().buffer.unwrap().owed_bytes
    }

    fn owed_files(&self) -> Vec<OwedFile> {
        let reply = self.nodes.nodes[1].admin(AdminRequest::Owed, None, 0).unwrap();
        let AdminReply::Owed(files) = reply else { panic!("{reply:?}") };
        files
    }

    fn flush(&self, forgets_missing: bool) -> Result<AdminReply> {
        self.nodes.nodes[1].admin(AdminRequest::FlushAll { forgets_missing }, None, 0)
    }
}

/// What is in a directory, without its directories.
fn copy_files(from: &Path, to: &Path) {
    let _ = std::fs::remove_dir_all(to);
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        // One that goes meanwhile is not there.
        let _ = std::fs::copy(entry.path(), to.join(entry.file_name()));
    }
}

/// A buffer node is killed when its copy has just taken the place of the file.
#[test]
fn a_copy_that_took_its_place_right_before_a_kill_is_known_after_it() {
    let hooks = Arc::<Hooks>::default();
    let mut cluster = Cluster::new(&hooks);
    let bytes = content(31, PACKET as usize + 9);
    drop(cluster.create("file", &bytes));
    // What is on the disk at each call for the stub, up to the last one, behind the exchange.
    let number = std::fs::metadata(cluster.nodes.pfs("file")).unwrap().ino();
    let saved = cluster.disks.path().join("saved");
    let (from, to) = (cluster.disk(), saved.clone());
    hooks.set(move |_, make| {
        if inode() == number {
            copy_files(&from, &to);
        }
        make()
    });
    cluster.nodes.nodes[0].stop();
    until("it is on the PFS", || !cluster.is_stub("file"));
    until("nothing is owed any more", || cluster.owed_bytes() == 0);
    hooks.clear();
    std::fs::rename(cluster.nodes.pfs("file"), cluster.nodes.pfs("renamed")).unwrap();
    cluster.restart(|disk| copy_files(&saved, disk));
    assert!(cluster.owed_bytes() > 0, "its disk is as it was");
    until("it is not owed any more", || cluster.owed_bytes() == 0);
    assert!(std::fs::read(cluster.nodes.pfs("renamed")).unwrap() == bytes);
}

#[test]
fn what_is_owed_of_a_file_that_is_not_known_is_named_until_it_is_forgotten() {
    let mut cluster = Cluster::new(&Arc::default());
    drop(cluster.create("file", &content(32, PACKET as usize + 9)));
    cluster.nodes.nodes[0].stop();
    cluster.restart(|disk| {
        for entry in std::fs::read_dir(disk).unwrap() {
            let path = entry.unwrap().path();
            // What is told of the file is short; its bytes are long.
            let length = path.metadata().unwrap().len();
            if (100..PACKET).contains(&length) {
                File::options().write(true).open(path).unwrap().set_len(length - 1).unwrap();
            }
        }
    });
    until("it is listed", || !cluster.owed_files().is_empty());
    let owed = cluster.owed_files();
    assert_eq!(owed.len(), 1, "{owed:?}");
    assert!(owed[0].path.contains("not known") && owed[0].bytes > PACKET, "{owed:?}");
    let told = cluster.flush(false).unwrap_err();
    assert!(told.to_string().contains("damaged"), "{told}");
    let AdminReply::Flushed(report) = cluster.flush(true).unwrap() else { panic!() };
    assert_eq!(report.forgotten.len(), 1);
    until("it is forgotten", || cluster.owed_bytes() == 0 && cluster.owed_files().is_empty());
    cluster.flush(false).unwrap();
}
