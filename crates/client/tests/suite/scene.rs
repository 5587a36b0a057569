//! A node in miniature behind a real server, in a directory of its own, and a child process of this
//! test that is a node or a client and can be killed.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tidepool_client::{Client, ClientOptions};
use tidepool_node::server::{Server, ServerLimits};

use crate::fake::{FakeNode, FakeService, Hooks};

/// Longest wait of a test for something that must happen.
const PATIENCE: Duration = Duration::from_secs(30);

pub struct Scene {
    pub node: Arc<FakeNode>,
    pub server: Option<Server>,
    pub directory: TempDir,
    pub notices: Arc<Mutex<Vec<String>>>,
}

pub fn start(socket: &Path, node: &Arc<FakeNode>) -> Server {
    let service = Arc::new(FakeService(Arc::clone(node)));
    Server::start(socket, Arc::clone(&service) as _, service, ServerLimits::default()).unwrap()
}

pub fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let deadline = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Bytes that tell where they belong and which generation they are of.
pub fn pattern(length: usize, generation: u8) -> Vec<u8> {
    (0..length).map(|at| ((at % 251) as u8 ^ (at >> 12) as u8).wrapping_add(generation)).collect()
}

impl Scene {
    pub fn new() -> Scene {
        let mut scene = Scene::without_node();
        scene.start();
        scene
    }

    pub fn without_node() -> Scene {
        let directory = tempfile::tempdir().unwrap();
        let pfs = directory.path().to_str().unwrap().to_owned();
        let node = Arc::new(FakeNode { pfs, ..FakeNode::default() });
        Scene { node, server: None, directory, notices: Arc::default() }
    }

    /// Starts a node that knows nothing of an earlier one.
    pub fn start(&mut self) {
        self.start_with(Hooks::default());
    }

    /// As [`Scene::start`]; the node does this otherwise.
    pub fn start_with(&mut self, hooks: Hooks) {
        self.server = None;
        let pfs = self.node.pfs.clone();
        self.node = Arc::new(FakeNode { pfs, hooks, ..FakeNode::default() });
        self.server = Some(start(&self.socket(), &self.node));
    }

    pub fn stop(&mut self) {
        self.server = None;
    }

    pub fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub fn file(&self, name: &str, length: usize) -> (PathBuf, Vec<u8>) {
        let bytes = pattern(length, 0);
        std::fs::write(self.path(name), &bytes).unwrap();
        (self.path(name), bytes)
    }

    pub fn options(&self) -> ClientOptions {
        let notices = Arc::clone(&self.notices);
        ClientOptions {
            socket: Some(self.socket()),
            retry_interval: Duration::ZERO,
            notice: Arc::new(move |line| notices.lock().unwrap().push(line.to_owned())),
            ..ClientOptions::default()
        }
    }

    pub fn client(&self) -> Client {
        Client::connect(self.options())
    }

    pub fn handles(&self) -> u64 {
        self.server.as_ref().unwrap().counts().handles
    }
}

/// A process that is killed with the value.
pub struct Kill(Child);

impl Kill {
    /// Stops the process where it stands, with all its threads, or has it go on.
    pub fn hang(&self, hangs: bool) {
        let signal =
            if hangs { rustix::process::Signal::STOP } else { rustix::process::Signal::CONT };
        rustix::process::kill_process(rustix::process::Pid::from_child(&self.0), signal).unwrap();
        let threads = PathBuf::from(format!("/proc/{}/task", self.0.id()));
        eventually("all threads stand still", || {
            !hangs
                || std::fs::read_dir(&threads).unwrap().all(|thread| {
                    let stat = std::fs::read_to_string(thread.unwrap().path().join("stat"));
                    stat.unwrap().contains(") T ")
                })
        });
    }

    pub fn kill(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Kill {
    fn drop(&mut self) {
        self.kill();
    }
}

const ROLE: &str = "TIDEPOOL_TEST_DIRECTORY";

/// Runs the ignored test `name` of this binary in a process of its own.
pub fn child(name: &str, directory: &Path) -> Kill {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(ROLE, directory)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    Kill(child)
}

/// The directory that a child process works in; `None` if this is no child process.
pub fn role() -> Option<PathBuf> {
    std::env::var_os(ROLE).map(PathBuf::from)
}
