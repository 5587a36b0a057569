//! Tests of owners of record locks that close the file while the PFS has not answered them yet:
//! nothing stays locked for them, and what they lock afterwards is locked.

use std::fs::{self, File};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use tidepool_fuse::{Mount, MountConfig};
use tidepool_node::Node;
use tidepool_testkit::needs_mount;
use tidepool_testkit::weak_pfs::{WeakPfs, Weakness};

/// What takes longer hangs.
const LIMIT: Duration = Duration::from_secs(60);
/// For a request that comes to wait behind another. If it takes longer, less is tested.
const ARRIVES: Duration = Duration::from_millis(50);
/// Each has the requests arrive in the order that is wanted, unless the machine is very busy.
const ROUNDS: usize = 10;

struct Scene {
    // Dropped in this order.
    _mount: Mount,
    node: Arc<Node>,
    pfs: WeakPfs,
    upper: tempfile::TempDir,
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.node.stop();
    }
}

fn scene() -> Scene {
    let pfs = WeakPfs::mount(Weakness::default()).unwrap();
    let upper = tempfile::tempdir().unwrap();
    let socket = upper.path().with_extension("sock");
    let config = tidepool_proto::resolve::defaults(pfs.root(), &socket, 64 << 20).unwrap();
    let node = Node::start(config).unwrap();
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root: OwnedFd = rustix::fs::open(pfs.root(), flags, Mode::empty()).unwrap();
    let config = MountConfig::new(root, pfs.root().to_owned(), upper.path().to_owned());
    let mount = tidepool_fuse::mount(node.clone(), config).unwrap();
    Scene { _mount: mount, node, pfs, upper }
}

/// Both ends of one file: through the mount, and on what is behind the PFS.
fn file(scene: &Scene, name: String) -> (PathBuf, File) {
    let behind = scene.pfs.behind().join(&name);
    fs::write(&behind, [0; 100]).unwrap();
    (scene.upper.path().join(name), open(behind))
}

fn open(path: PathBuf) -> File {
    File::options().read(true).write(true).open(path).unwrap()
}

/// Locks ten bytes: for the process, or for the open file.
fn lock(file: &File, command: i32, start: i64) -> std::io::Result<()> {
    let lock = libc::flock {
        l_type: libc::F_WRLCK as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start,
        l_len: 10,
        l_pid: 0,
    };
    // SAFETY: the commands used read the one `flock` that is passed.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, &raw const lock) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

fn until(what: &str, seen: impl Fn() -> bool) {
    let end = Instant::now() + LIMIT;
    while !seen() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[test]
fn an_owner_that_closes_while_the_pfs_answers_keeps_no_lock() {
    needs_mount!();
    let scene = scene();
    for round in 0..ROUNDS {
        let (upper, behind) = file(&scene, format!("file{round}"));
        let (locked, closed) = (open(upper.clone()), open(upper));
        std::thread::scope(|scope| {
            let hold = scene.pfs.hold("setlk");
            let locks = scope.spawn(|| lock(&locked, libc::F_SETLK, 0));
            until("the PFS is asked", || scene.pfs.waiting("setlk") > 0);
            let closes = scope.spawn(|| drop(closed));
            std::thread::sleep(ARRIVES);
            drop(hold);
            locks.join().unwrap().unwrap();
            closes.join().unwrap();
        });
        // The end of the node's own descriptor is told a moment later.
        until("nothing is locked", || lock(&behind, libc::F_OFD_SETLK, 0).is_ok());
    }
}

#[test]
fn what_is_locked_right_after_a_close_is_locked() {
    needs_mount!();
    let scene = scene();
    let mut held = 0;
    for round in 0..ROUNDS {
        let (upper, behind) = file(&scene, format!("file{round}"));
        let (locked, closed) = (open(upper.clone()), open(upper));
        std::thread::scope(|scope| {
            let hold = scene.pfs.hold("setlk");
            let first = scope.spawn(|| lock(&locked, libc::F_SETLK, 0));
            until("the PFS is asked", || scene.pfs.waiting("setlk") > 0);
            let closes = scope.spawn(|| drop(closed));
            std::thread::sleep(ARRIVES);
            let second = scope.spawn(|| lock(&locked, libc::F_SETLK, 20));
            std::thread::sleep(ARRIVES);
            drop(hold);
            first.join().unwrap().unwrap();
            second.join().unwrap().unwrap();
            closes.join().unwrap();
        });
        until("the first lock is gone", || lock(&behind, libc::F_OFD_SETLK, 0).is_ok());
        held += usize::from(lock(&behind, libc::F_OFD_SETLK, 20).is_err());
    }
    // The close takes it away where it came last.
    assert!(held > 0, "nothing is locked though the owner was told that it is");
}
