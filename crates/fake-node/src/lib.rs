//! A node in miniature for tests of its front ends: the mount, the server and the client library.
//! It keeps the contracts of the service traits; has no policy, no quota and no capacity. What it
//! keeps of files is chosen by [`Keeps`]; what a test wants otherwise are [`Hooks`].

mod open;
mod segment;

use std::collections::HashMap;
use std::fs::File;
use std::ops::Deref;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tidepool_proto::admin::{AdminReply, AdminRequest, AdminService, LoadReport, Status};
use tidepool_proto::{
    BytesByLevel, ChangeTimes, Error, ErrorKind, FileId, FileService, MetadataWatch, OpenFile,
    OpenRequest, Result, Version,
};

pub use open::FakeFile;

/// Block size of the fake: small, so that small tests cross many borders.
pub const BLOCK_BYTES: u64 = 64 << 10;
/// Longest file that has no segment where files are kept by blocks.
pub const SMALL_BYTES: u64 = 16 << 10;

/// What the node keeps of files. Writes go through to the files below in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Keeps {
    /// Blocks that were read, in segments with real residency tables, until a test evicts them or
    /// a write changes them.
    #[default]
    Blocks,
    /// Each file whole, from its open on. Writes change what is kept as well.
    Files,
    /// Nothing: every byte comes from the file below.
    Nothing,
}

/// What a test has the node do otherwise. Where a file is meant, they are told the length that it
/// had when it was opened.
#[derive(Clone, Copy)]
pub struct Hooks {
    /// A file was opened; its opener is not answered yet. What it is told where it fails.
    pub opened: fn(&FakeNode, &Version) -> Result<()>,
    /// Whether bytes that are kept of a file may be called resident.
    pub is_resident: fn(&FakeNode, u64) -> bool,
    /// A file is about to be read from an offset on; how many bytes of the length are.
    pub read: fn(&FakeNode, u64, u64, usize) -> usize,
    /// Whether a file is another node's to give.
    pub is_owed: fn(u64) -> bool,
    /// What a flush of a file returns.
    pub flush: fn(&FakeNode, u64) -> Result<()>,
}

impl Default for Hooks {
    fn default() -> Self {
        Hooks {
            opened: |_, _| Ok(()),
            is_resident: |_, _| true,
            read: |_, _, _, length| length,
            is_owed: |_| false,
            flush: |_, _| Ok(()),
        }
    }
}

/// The node.
#[derive(Default)]
pub struct FakeNode {
    /// Directory that it says it serves.
    pub pfs: String,
    /// Device of the only file system it takes, 0 for any.
    pub device: u64,
    /// What it keeps.
    pub keeps: Keeps,
    /// Nothing is pinned, so the kernel reads nothing by itself.
    pub without_pins: bool,
    /// Bytes are the node's to write, whoever wrote them, as those that may be lost.
    pub writes_as_node: bool,
    /// What it does otherwise.
    pub hooks: Hooks,
    /// For hooks to wait at.
    pub gate: Gate,
    /// Files that were opened, at their latest version.
    pub files: Mutex<HashMap<FileId, Arc<FakeFile>>>,
    /// Lengths of files whose bytes it says live in memory only.
    pub memory_only: Mutex<HashMap<FileId, u64>>,
    /// It says that it is one of several nodes.
    pub has_other_nodes: bool,
    /// Bytes that clients said they read by themselves.
    pub mapped_bytes: AtomicU64,
    /// Blocks filled so far, or whole files.
    pub fills: AtomicU64,
    /// Pins so far.
    pub pins: AtomicU64,
    /// Ranges asked for ahead.
    pub prefetches: AtomicU64,
    /// Flushes so far.
    pub flushes: AtomicU64,
    /// Open files at the moment.
    pub open_files: AtomicU64,
    /// Segments are handed out writable: an error that the server must not pass on.
    pub careless: AtomicBool,
    /// Changes of metadata that were told, and notes of versions that were carried.
    pub carried: AtomicU64,
    /// While set, opens wait.
    pub hold_opens: Gate,
    /// While set, reads that reach the node wait.
    pub hold_reads: Gate,
    /// While set, writes and changes of length that reach the node wait.
    pub hold_writes: Gate,
    /// Of these, how many are under way.
    pub changing: AtomicU64,
    /// While set, loads go on for as long as they are let.
    pub endless_loads: AtomicBool,
    /// Such a load is under way.
    pub loading: AtomicBool,
}

/// Something to wait at.
#[derive(Default)]
pub struct Gate {
    closed: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicUsize,
}

impl Gate {
    /// A gate that is closed.
    pub fn closed() -> Self {
        Gate { closed: Mutex::new(true), ..Gate::default() }
    }

    /// Closes or opens the gate.
    pub fn set(&self, closed: bool) {
        *self.closed.lock() = closed;
        self.opened.notify_all();
    }

    /// Waits while it is closed.
    pub fn pass(&self) {
        let mut closed = self.closed.lock();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.opened.wait_while(&mut closed, |closed| *closed);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }

    /// As [`Gate::pass`], until it is refused to wait on.
    pub fn pass_unless<E>(&self, refused: impl Fn() -> Result<(), E>) -> Result<(), E> {
        const LOOK_INTERVAL: Duration = Duration::from_millis(5);
        let mut closed = self.closed.lock();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut outcome = Ok(());
        while *closed && outcome.is_ok() {
            self.opened.wait_for(&mut closed, LOOK_INTERVAL);
            outcome = refused();
        }
        self.waiting.fetch_sub(1, Ordering::SeqCst);
        outcome
    }

    /// How many wait.
    pub fn waiting(&self) -> usize {
        self.waiting.load(Ordering::SeqCst)
    }
}

/// The version of an open file.
pub fn version_of(file: &File) -> Version {
    Version::from(&file.metadata().expect("a fake node has its memory and files"))
}

impl FakeNode {
    /// A node that takes files of any file system.
    pub fn new() -> Arc<FakeNode> {
        Arc::default()
    }

    /// Drops a block of some file, chosen by `seed`, unless it is pinned.
    pub fn evict_some(&self, seed: u64) {
        let files: Vec<_> = self.files.lock().values().cloned().collect();
        if files.is_empty() {
            return;
        }
        let file = &files[(seed % files.len() as u64) as usize];
        let block = (seed >> 8) % file.blocks();
        file.evict(block..block + 1);
    }

    /// Drops everything that is not pinned.
    pub fn evict_all(&self) {
        for file in self.files.lock().values() {
            file.evict(0..file.blocks());
        }
    }

    /// Blocks that clients touched since the last call.
    pub fn take_touches(&self) -> usize {
        self.files.lock().values().map(|file| file.take_touches()).sum()
    }
}

/// The service as front ends want it: an `Arc` that opens can keep.
pub struct FakeService(pub Arc<FakeNode>);

impl FakeService {
    /// The service of a node.
    pub fn of(node: FakeNode) -> Arc<FakeService> {
        Arc::new(FakeService(Arc::new(node)))
    }

    /// Of a node that keeps nothing.
    pub fn bypass() -> Arc<FakeService> {
        FakeService::of(FakeNode { keeps: Keeps::Nothing, ..FakeNode::default() })
    }

    /// Of a node that keeps every file whole, for the kernel to read by itself.
    pub fn memory() -> Arc<FakeService> {
        FakeService::of(FakeNode { keeps: Keeps::Files, ..FakeNode::default() })
    }

    /// Of a node that keeps every file whole, and has the kernel ask.
    pub fn memory_without_pins() -> Arc<FakeService> {
        let keeps = Keeps::Files;
        FakeService::of(FakeNode { keeps, without_pins: true, ..FakeNode::default() })
    }
}

impl Deref for FakeService {
    type Target = FakeNode;

    fn deref(&self) -> &FakeNode {
        &self.0
    }
}

/// A note of no file.
struct FakeNote(Arc<FakeNode>);

impl MetadataWatch for FakeNote {
    fn carry(self: Box<Self>, _: Option<ChangeTimes>) -> Result<()> {
        self.0.carried.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

impl FileService for FakeService {
    fn open(&self, request: OpenRequest) -> Result<Arc<dyn OpenFile>> {
        let file = open::open(&self.0, request)?;
        (self.hooks.opened)(self, &file.version())?;
        Ok(file)
    }

    fn rebase_version(&self, before: &Version, after: &Version, alone: bool) {
        self.carried.fetch_add(1, Ordering::SeqCst);
        if let Some(file) = self.files.lock().get(&before.id) {
            file.rebase(before, after, alone);
        }
    }

    fn watch_metadata(&self, _lower: OwnedFd) -> Result<Box<dyn MetadataWatch>> {
        Ok(Box::new(FakeNote(Arc::clone(&self.0))))
    }

    fn memory_only_size(&self, id: FileId, _: u64) -> Option<u64> {
        self.memory_only.lock().get(&id).copied()
    }

    fn has_memory_only(&self) -> bool {
        !self.memory_only.lock().is_empty()
    }

    fn has_other_nodes(&self) -> bool {
        self.has_other_nodes
    }

    fn removed(&self, id: FileId) {
        self.files.lock().remove(&id);
    }
}

impl AdminService for FakeService {
    fn pfs_root(&self) -> PathBuf {
        PathBuf::from(&self.0.pfs)
    }

    fn admin_while(
        &self,
        request: AdminRequest,
        descriptor: Option<OwnedFd>,
        _: u32,
        go_on: &dyn Fn() -> bool,
    ) -> Result<AdminReply> {
        while self.0.endless_loads.load(Ordering::SeqCst) && request == AdminRequest::Load {
            self.0.loading.store(true, Ordering::SeqCst);
            if !go_on() {
                self.0.loading.store(false, Ordering::SeqCst);
                return Err(Error::new(ErrorKind::NodeUnavailable, "loading", "nobody waits"));
            }
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        Ok(match request {
            AdminRequest::Status => AdminReply::Status(Box::new(Status {
                process_id: std::process::id(),
                pfs: self.0.pfs.clone(),
                served: BytesByLevel::default(),
                ..Status::default()
            })),
            AdminRequest::EvictAll => {
                self.0.evict_all();
                AdminReply::Done
            }
            AdminRequest::Load => {
                let size_bytes = version_of(&File::from(descriptor.expect("a file"))).size;
                AdminReply::Loaded(LoadReport { size_bytes, ..LoadReport::default() })
            }
            AdminRequest::Metrics => AdminReply::Metrics("x".repeat(100_000)),
            _ => AdminReply::Done,
        })
    }
}
