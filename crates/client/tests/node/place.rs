//! A real node with its server over a directory that all users may use, and other users.

use std::fs::{File, OpenOptions, Permissions};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use tempfile::TempDir;
use tidepool_client::{Client, ClientOptions};
use tidepool_node::Node;
use tidepool_node::server::{Server, ServerCounts, ServerLimits};
use tidepool_proto::config::NodeConfig;

const CAPACITY: u64 = 64 << 20;
pub const NOBODY: u32 = 65_534;
/// A user that no file of the system knows of.
pub const OTHER: u32 = 54_321;

/// Whether the test may run here; says so where not.
pub fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        println!("SKIPPED: needs root, to act as other users");
    }
    root
}

/// A node with its server. Fields end in their order.
pub struct Place {
    /// `None` while nobody is there.
    server: Option<Server>,
    pub node: Arc<Node>,
    /// Nodes that ended as if they had been killed: nothing of theirs was written back.
    killed: Vec<Arc<Node>>,
    _image: Option<Image>,
    root: PathBuf,
    directory: TempDir,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.server = None;
        self.node.stop();
    }
}

impl Place {
    pub fn new() -> Place {
        Place::over(|_| None)
    }

    /// Over a PFS with faults.
    pub fn with_faults(rules: &str) -> Place {
        Place::of(|_| None, |config| config.fault = Some(rules.to_owned()))
    }

    /// Over a small ext4 of its own, which gives inode numbers to new files soon.
    pub fn with_few_inodes() -> Place {
        Place::over(|directory| Some(Image::mount(directory, &["-N", "128"])))
    }

    /// Over a small ext4 of its own, part of which is kept for root.
    pub fn with_reserve() -> Place {
        Place::over(|directory| Some(Image::mount(directory, &["-m", "30"])))
    }

    fn over(image: impl FnOnce(&Path) -> Option<Image>) -> Place {
        Place::of(image, |_| ())
    }

    fn of(
        image: impl FnOnce(&Path) -> Option<Image>,
        change: impl FnOnce(&mut NodeConfig),
    ) -> Place {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().join("pfs");
        std::fs::create_dir(&root).unwrap();
        let image = image(directory.path());
        for path in [directory.path(), &root] {
            std::fs::set_permissions(path, Permissions::from_mode(0o777)).unwrap();
        }
        let (server, node) = start(&root, &directory.path().join("socket"), change);
        Place { server: Some(server), node, killed: Vec::new(), _image: image, root, directory }
    }

    /// Ends the node with all that it has in memory alone, and nobody is there.
    pub fn kill_node(&mut self) {
        self.server = None;
        self.killed.push(self.node.clone());
    }

    /// Ends the node, which writes everything down first, and nobody is there.
    pub fn stop_node(&mut self) {
        self.server = None;
        self.node.drain().unwrap();
        self.node.stop();
    }

    /// Another node takes the place of one that ended.
    pub fn start_node(&mut self) {
        let (server, node) = start(&self.root, &self.directory.path().join("socket"), |_| ());
        (self.server, self.node) = (Some(server), node);
    }

    /// What the server holds for clients.
    pub fn counts(&self) -> ServerCounts {
        self.server.as_ref().unwrap().counts()
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// A file on the PFS of this owner and mode.
    pub fn file(&self, name: &str, bytes: &[u8], owner: u32, mode: u32) -> PathBuf {
        let path = self.path(name);
        std::fs::write(&path, bytes).unwrap();
        chown(&path, Some(owner), Some(owner)).unwrap();
        std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
        path
    }

    /// A client of the user that the calling thread is.
    pub fn client(&self) -> Client {
        self.client_with(ClientOptions::default())
    }

    /// The same with other options.
    pub fn client_with(&self, options: ClientOptions) -> Client {
        let socket = Some(self.directory.path().join("socket"));
        let client = Client::connect(ClientOptions { socket, ..options });
        assert!(client.is_connected());
        client
    }
}

fn start(root: &Path, socket: &Path, change: impl FnOnce(&mut NodeConfig)) -> (Server, Arc<Node>) {
    let mut config = tidepool_proto::resolve::defaults(root, socket, CAPACITY).unwrap();
    change(&mut config);
    let node = Node::start(config).unwrap();
    let limits = ServerLimits::default();
    let server = Server::start(socket, node.clone(), node.clone(), limits).unwrap();
    (server, node)
}

/// An ext4 in a file, mounted at `pfs` beside it.
struct Image(PathBuf);

impl Image {
    fn mount(directory: &Path, options: &[&str]) -> Image {
        let (image, at) = (directory.join("image"), directory.join("pfs"));
        File::create(&image).unwrap().set_len(64 << 20).unwrap();
        run(Command::new("mkfs.ext4").args(["-q", "-F"]).args(options).arg(&image));
        run(Command::new("mount").args(["-o", "loop"]).arg(&image).arg(&at));
        Image(at)
    }
}

impl Drop for Image {
    fn drop(&mut self) {
        run(Command::new("umount").arg("-l").arg(&self.0));
    }
}

fn run(command: &mut Command) {
    let output = command.output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Runs `act` in a thread that is this user, and in no group but its own.
pub fn as_user<T: Send>(id: u32, act: impl FnOnce() -> T + Send) -> T {
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            // SAFETY: raw system calls on numbers, of this thread alone, which ends after it.
            let changed = unsafe {
                libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<u32>())
                    + libc::syscall(libc::SYS_setresgid, id, id, id)
                    + libc::syscall(libc::SYS_setresuid, id, id, id)
            };
            assert_eq!(changed, 0);
            act()
        });
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

pub fn writable(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).open(path).unwrap()
}
