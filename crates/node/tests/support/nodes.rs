//! Several nodes over one directory, which know each other.

use std::fs::File;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, CWD, StatxFlags};
use tidepool_node::Node;
use tidepool_peer::{Identity, Seal, SharedKey};
use tidepool_proto::admin::{AdminReply, AdminRequest, AdminService, Explanation};
use tidepool_proto::cluster::ClusterStatus;
use tidepool_proto::config::{ClusterConfig, NodeConfig};
use tidepool_proto::locality::{Locality, SplitRange};
use tidepool_proto::{
    Access, FileService, OpenFile, OpenRequest, ReadOutcome, Result, Version, WriteMode,
};

use tidepool_pfs::{LowerStore, PosixOptions, PosixStore};

use super::hooked::{HookedStore, Hooks};
use super::read_all;

#[path = "../../../peer/tests/support/certificates.rs"]
pub mod certificates;

pub const BLOCK: u64 = 2 << 20;
pub const CAPACITY: u64 = 256 << 20;

/// Nodes over one directory, or each over its own.
pub struct Nodes {
    pub directory: tempfile::TempDir,
    pub nodes: Vec<Arc<Node>>,
}

/// Names and addresses of `count` nodes that no other test of this machine has.
pub fn member_list(count: usize) -> String {
    static NEXT: AtomicU32 = AtomicU32::new(1);
    let (process, group) = (std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let host = |node: usize| {
        // Processes that run at the same time differ in these bits of their numbers.
        let (high, low) = (64 + (process >> 8) % 128, process & 0xff);
        format!("n{node}=127.{high}.{low}.{}", (group as usize * 8 + node) % 250 + 2)
    };
    (0..count).map(host).collect::<Vec<_>>().join(",")
}

pub fn write_key(directory: &Path, byte: u8) -> std::path::PathBuf {
    let path = directory.join(format!("key-{byte}"));
    let mut options = File::options();
    let key = options.write(true).create(true).truncate(true).mode(0o600).open(&path).unwrap();
    key.write_all_at(&[byte; 32], 0).unwrap();
    path
}

/// What a node of these tests writes to a stub that claims the right to it, in these words.
pub fn sealed_claim(stub: &Path, epoch: u64, words: &str) -> Vec<u8> {
    let key = SharedKey::from_bytes(&[7; 32]).unwrap();
    let (cluster, node) = ("test".to_owned(), "n9".to_owned());
    let seal = Seal::of(&Identity { cluster, node, key, tls: None });
    let (inode, born) = key_of(stub);
    let sealed = seal.of_words(format!("claim {inode:x}.{born:x} {epoch:x} {words}").as_bytes());
    format!("{sealed}:{words}").into_bytes()
}

/// Number of a file, and when it was made.
pub fn key_of(path: &Path) -> (u64, u64) {
    let flags = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    let statx = rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, flags).unwrap();
    let version = Version::from(&statx);
    (version.id.inode, version.born_ns as u64)
}

impl Nodes {
    pub fn new(count: usize) -> Self {
        Self::with(count, |_, _| ())
    }

    /// Nodes whose configuration `change` changes, by number.
    pub fn with(count: usize, change: impl Fn(usize, &mut NodeConfig)) -> Self {
        Self::started(count, change, |_, config| Node::start(config).unwrap())
    }

    /// The same, of which all but the first tell `hooks` what they call.
    pub fn hooked(count: usize, hooks: &Arc<Hooks>, change: impl Fn(&mut NodeConfig)) -> Self {
        let start = |number: usize, config: NodeConfig| {
            if number == 0 {
                return Node::start(config).unwrap();
            }
            let inner = PosixStore::open(&config.pfs, PosixOptions::default()).unwrap();
            let features = inner.features().clone();
            let store = HookedStore { inner, features, hooks: hooks.clone() };
            Node::start_over(config, Arc::new(store)).unwrap()
        };
        Self::started(count, |_, config| change(config), start)
    }

    fn started(
        count: usize,
        change: impl Fn(usize, &mut NodeConfig),
        start_one: impl Fn(usize, NodeConfig) -> Arc<Node>,
    ) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let pfs = directory.path().join("pfs");
        std::fs::create_dir(&pfs).unwrap();
        let key_file = write_key(directory.path(), 7);
        let list = member_list(count);
        let start = |number: usize| {
            let config = super::config(&pfs, |config| {
                config.capacity_bytes = CAPACITY;
                config.block_bytes = BLOCK;
                // Files of these tests are old enough by what the kernel stamps at once.
                config.timestamp_granularity_ns = Some(0);
                config.cluster = Some(ClusterConfig {
                    nodes: list.clone(),
                    cluster_name: "test".into(),
                    key_file: key_file.clone(),
                    node_name: Some(format!("n{number}")),
                    peer_port: 7478,
                    peer_timeout: Duration::from_millis(500),
                    is_integrity_full: false,
                    tls: None,
                    node_address: None,
                    buffer_local_bytes: u64::MAX,
                    buffer_servers: Vec::new(),
                });
                change(number, config);
            });
            start_one(number, config)
        };
        let nodes = (0..count).map(start).collect();
        Nodes { directory, nodes }
    }

    /// The same, once all know that they see the same files.
    pub fn joined(count: usize) -> Self {
        let nodes = Self::new(count);
        nodes.wait_joined();
        nodes
    }

    pub fn wait_joined(&self) {
        until("all nodes joined", || (0..self.nodes.len()).all(|node| self.knows_all(node)));
    }

    pub fn knows_all(&self, node: usize) -> bool {
        self.cluster(node).members.iter().all(|it| it.state == "alive" && it.sees_same_pfs)
    }

    pub fn cluster(&self, node: usize) -> ClusterStatus {
        *self.nodes[node].status().cluster.unwrap()
    }

    pub fn pfs(&self, name: &str) -> std::path::PathBuf {
        self.directory.path().join("pfs").join(name)
    }

    pub fn open(&self, node: usize, name: &str) -> Arc<dyn OpenFile> {
        self.try_open(node, name, Access::Read).unwrap()
    }

    pub fn try_open(&self, node: usize, name: &str, access: Access) -> Result<Arc<dyn OpenFile>> {
        let mut options = File::options();
        let file = options.read(true).write(access.writes()).open(self.pfs(name)).unwrap();
        let request = OpenRequest { access, ..OpenRequest::to_read(file.into(), 0) };
        self.nodes[node].open(request)
    }

    /// Makes a file that is in the memory of a node alone; the open that writes it.
    pub fn create_in_memory(&self, node: usize, name: &str) -> Arc<dyn OpenFile> {
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).mode(0o640);
        let request = OpenRequest {
            access: Access::ReadWrite,
            write_mode: Some(WriteMode::Memory),
            created: true,
            ..OpenRequest::to_read(options.open(self.pfs(name)).unwrap().into(), 0)
        };
        self.nodes[node].open(request).unwrap()
    }

    pub fn read(&self, node: usize, name: &str) -> (Vec<u8>, ReadOutcome) {
        read_all(&*self.open(node, name)).unwrap()
    }

    /// Hosts of the first splits of a file as a node tells them, with a star where they hold it.
    pub fn locate(&self, node: usize, name: &str, split_bytes: u64, count: u32) -> Vec<String> {
        let file = File::open(self.pfs(name)).unwrap().into();
        let range = SplitRange { split_bytes, first: 0, count };
        let reply = self.nodes[node].admin(AdminRequest::Locate(range), Some(file), 0).unwrap();
        let AdminReply::Located(Locality::Splits(answer)) = reply else { panic!("{reply:?}") };
        let words = |split| {
            let names: Vec<&str> = answer.names_of(split).collect();
            format!("{}{}", names.join("+"), if split.in_memory { "*" } else { "" })
        };
        answer.splits.iter().map(words).collect()
    }

    pub fn explain(&self, node: usize, name: &str) -> Explanation {
        let file = File::open(self.pfs(name)).unwrap().into();
        match self.nodes[node].admin(AdminRequest::Explain, Some(file), 0).unwrap() {
            AdminReply::Explain(answer) => *answer,
            other => panic!("{other:?}"),
        }
    }

    pub fn pfs_read_bytes(&self, node: usize) -> u64 {
        self.nodes[node].status().pfs_read_bytes
    }

    /// Waits until the homes of all files know of so many held blocks.
    pub fn wait_announced(&self, blocks: u64) {
        until("what is held is announced", || self.announced() == blocks);
    }

    /// Held blocks that the homes of all files know of.
    pub fn announced(&self) -> u64 {
        (0..self.nodes.len()).map(|node| self.cluster(node).location_entries).sum()
    }
}

impl Drop for Nodes {
    fn drop(&mut self) {
        self.nodes.iter().for_each(|node| node.stop());
    }
}

/// Waits for a condition that comes true unless something is broken.
pub fn until(what: &str, condition: impl Fn() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
