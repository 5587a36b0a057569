//! A node over a temporary directory, driven through the traits its front ends use.

#![expect(dead_code, reason = "each test file uses a part")]

pub mod hooked;
pub mod nodes;

use std::fs::{File, OpenOptions};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use tidepool_node::Node;
use tidepool_pfs::{FaultStore, Features, LowerStore, PosixOptions, PosixStore};
use tidepool_proto::config::{DirectoryRule, NodeConfig};
use tidepool_proto::{
    Access, FileService, OpenFile, OpenRequest, ReadMode, ReadOutcome, Result, WriteMode,
};

pub const BLOCK: u64 = 4 << 20;
pub const CAPACITY: u64 = 64 << 20;

pub struct Fixture {
    pub directory: tempfile::TempDir,
    pub node: Arc<Node>,
}

/// What an open asks for; the rest is as a program without wishes has it.
#[derive(Clone, Copy, Default)]
pub struct Wish {
    pub read: Option<ReadMode>,
    pub write: Option<WriteMode>,
    pub append: bool,
}

/// A rule under which files of a directory are in memory only, and dropped where it is needed.
pub fn scratch_rule(path: &str) -> DirectoryRule {
    DirectoryRule {
        path: path.into(),
        read_mode: None,
        write_mode: Some(WriteMode::Memory),
        time_to_live: None,
        quota_bytes: None,
        admit: true,
        expendable: true,
        copies: 1,
        stripe: Default::default(),
    }
}

impl Fixture {
    pub fn new() -> Self {
        Self::with(|_| ())
    }

    pub fn with(change: impl FnOnce(&mut NodeConfig)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let config = config(directory.path(), change);
        let node = Node::start(config).unwrap();
        Fixture { directory, node }
    }

    /// A node over a store with faults.
    pub fn faulty(rules: &str) -> (Self, Arc<FaultStore>) {
        Self::faulty_with(rules, |_| ())
    }

    /// The same with another configuration.
    pub fn faulty_with(
        rules: &str,
        change: impl FnOnce(&mut NodeConfig),
    ) -> (Self, Arc<FaultStore>) {
        let directory = tempfile::tempdir().unwrap();
        let posix = PosixStore::open(directory.path(), PosixOptions::default()).unwrap();
        let faults = FaultStore::new(posix, rules.parse().unwrap()).unwrap();
        let lower: Arc<dyn LowerStore> = faults.clone();
        let node = Node::start_over(config(directory.path(), change), lower).unwrap();
        (Fixture { directory, node }, faults)
    }

    /// A node over a store that tells of each call.
    pub fn hooked(change: impl FnOnce(&mut NodeConfig)) -> (Self, Arc<hooked::Hooks>) {
        Self::hooked_with(|_| (), change)
    }

    /// The same with other features of the store.
    pub fn hooked_with(
        change_features: impl FnOnce(&mut Features),
        change: impl FnOnce(&mut NodeConfig),
    ) -> (Self, Arc<hooked::Hooks>) {
        let directory = tempfile::tempdir().unwrap();
        let posix = PosixStore::open(directory.path(), PosixOptions::default()).unwrap();
        let hooks = Arc::<hooked::Hooks>::default();
        let mut features = posix.features().clone();
        change_features(&mut features);
        let lower = Arc::new(hooked::HookedStore { inner: posix, features, hooks: hooks.clone() });
        let node = Node::start_over(config(directory.path(), change), lower).unwrap();
        (Fixture { directory, node }, hooks)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Puts a file on the PFS without the node.
    pub fn put(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }

    pub fn open(&self, name: &str) -> Arc<dyn OpenFile> {
        self.try_open(name, Access::Read, Wish::default()).unwrap()
    }

    pub fn try_open(&self, name: &str, access: Access, wish: Wish) -> Result<Arc<dyn OpenFile>> {
        let path = self.path(name);
        let created = access.writes() && !path.exists();
        let lower: OwnedFd = OpenOptions::new()
            .read(access.reads())
            .write(access.writes())
            .create(created)
            .open(path)
            .unwrap()
            .into();
        self.node.open(OpenRequest {
            lower,
            access,
            read_mode: wish.read,
            write_mode: wish.write,
            created,
            append: wish.append,
            truncate: false,
            user_id: 0,
            changes_as: None,
        })
    }

    pub fn writer(&self, name: &str, wish: Wish) -> Arc<dyn OpenFile> {
        self.try_open(name, Access::ReadWrite, wish).unwrap()
    }

    /// Reads a whole file by a fresh open.
    pub fn read(&self, name: &str) -> (Vec<u8>, ReadOutcome) {
        read_all(&*self.open(name)).unwrap()
    }

    /// Bytes that the node read from the PFS so far.
    pub fn pfs_read_bytes(&self) -> u64 {
        self.node.status().pfs_read_bytes
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        self.node.stop();
    }
}

pub fn config(pfs: &Path, change: impl FnOnce(&mut NodeConfig)) -> NodeConfig {
    let socket = pfs.join(".socket");
    let mut config = tidepool_proto::resolve::defaults(pfs, &socket, CAPACITY).unwrap();
    change(&mut config);
    config
}

pub fn read_all(file: &dyn OpenFile) -> Result<(Vec<u8>, ReadOutcome)> {
    let mut bytes = vec![0; file.size()? as usize];
    let mut total = ReadOutcome::default();
    let mut at = 0;
    while at < bytes.len() {
        let end = (at + (1 << 20)).min(bytes.len());
        let outcome = file.read_at(at as u64, &mut bytes[at..end])?;
        assert!(outcome.bytes > 0, "no progress at {at}");
        assert_eq!(outcome.levels.total(), outcome.bytes as u64, "levels conserve bytes");
        total.bytes += outcome.bytes;
        total.levels.merge(&outcome.levels);
        at += outcome.bytes;
    }
    Ok((bytes, total))
}

/// Bytes that differ for each seed and position.
pub fn content(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Overwrites bytes of a file behind the node's back.
pub fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    use std::os::unix::fs::FileExt;
    let file: File = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, offset).unwrap();
}

/// An open to write in mode `memory` that says that it created the file, as is true of a new one.
pub fn open_as_created(node: &Node, path: &Path) -> Result<Arc<dyn OpenFile>> {
    let mut options = std::fs::File::options();
    let lower = options.read(true).write(true).create(true).truncate(false).open(path).unwrap();
    node.open(OpenRequest {
        lower: lower.into(),
        access: Access::ReadWrite,
        read_mode: None,
        write_mode: Some(WriteMode::Memory),
        created: true,
        append: false,
        truncate: false,
        user_id: 0,
        changes_as: None,
    })
}
