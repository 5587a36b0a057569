//! Another program writes a file and sets its time back while the file's name or mode is being
//! changed through Tidepool: between two looks at a PFS that takes its time, and while the node
//! stands still in the middle. Later opens read what the PFS has.

use std::fs::{self, File, FileTimes, Permissions};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime};

use tidepool_client::{Client, ClientOptions};
use tidepool_testkit::needs_mount;
use tidepool_testkit::product::{Node, NodeSpec, signal};
use tidepool_testkit::weak_pfs::{WeakPfs, Weakness};

/// Lengths of a packed file and of one with a segment.
const LENGTHS: [usize; 2] = [30_000, 300_000];
const PATIENCE: Duration = Duration::from_secs(60);
/// Longer than two looks may lie apart of which it is believed that nothing came in between.
const STANDSTILL: Duration = Duration::from_millis(300);

struct Scene {
    // Dropped in this order.
    node: Node,
    client: Client,
    pfs: WeakPfs,
}

impl Scene {
    fn new(arguments: &[&str]) -> Scene {
        let pfs = WeakPfs::mount(Weakness::default()).unwrap();
        let node = Node::start(NodeSpec {
            pfs: Some(pfs.root().to_owned()),
            arguments: arguments.iter().map(|&argument| argument.to_owned()).collect(),
            ..NodeSpec::default()
        })
        .unwrap();
        let socket = Some(node.socket().to_owned());
        let client = Client::connect(ClientOptions { socket, ..ClientOptions::default() });
        assert!(client.is_connected());
        Scene { node, client, pfs }
    }

    /// A file whose bytes are in memory, and the time of its content.
    fn cached(&self, name: &str, length: usize) -> SystemTime {
        let modified = SystemTime::now() - Duration::from_secs(3600);
        let behind = self.pfs.behind().join(name);
        fs::write(&behind, vec![1; length]).unwrap();
        set_modified(&behind, modified);
        let path = self.node.mount().join(name);
        let begun = Instant::now();
        // Its stamps have to settle before.
        while self.pfs.asked_by(|| assert_bytes(&path, 1, length)).1.contains_key("read") {
            assert!(begun.elapsed() < PATIENCE, "{name} becomes resident");
            std::thread::sleep(Duration::from_millis(20));
        }
        modified
    }
}

fn set_modified(path: &Path, modified: SystemTime) {
    let file = File::options().write(true).open(path).unwrap();
    file.set_times(FileTimes::new().set_modified(modified)).unwrap();
}

fn assert_bytes(path: &Path, byte: u8, length: usize) {
    assert!(fs::read(path).unwrap() == vec![byte; length], "{}", path.display());
}

/// A change of name or mode, what the PFS is asked for it, and the name afterwards.
type Change = (&'static str, &'static str, fn(&Scene, &str) -> PathBuf);

const CHANGES: [Change; 5] = [
    ("rename", "rename", |scene, name| {
        let to = scene.node.mount().join(format!("{name}-renamed"));
        fs::rename(scene.node.mount().join(name), &to).unwrap();
        to
    }),
    ("mode", "setattr", |scene, name| {
        let path = scene.node.mount().join(name);
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        path
    }),
    ("link", "link", |scene, name| {
        let to = scene.node.mount().join(format!("{name}-linked"));
        fs::hard_link(scene.node.mount().join(name), &to).unwrap();
        to
    }),
    ("rename by the library", "rename", |scene, name| {
        let renamed = format!("{name}-renamed");
        let (from, to) = (scene.pfs.root().join(name), scene.pfs.root().join(&renamed));
        let file = File::open(&from).unwrap();
        scene.client.changing_metadata(Some(file.as_fd()), || fs::rename(&from, &to)).unwrap();
        scene.node.mount().join(renamed)
    }),
    ("mode by the library", "setattr", |scene, name| {
        let path = scene.pfs.root().join(name);
        let file = File::open(&path).unwrap();
        let set = || fs::set_permissions(&path, Permissions::from_mode(0o640));
        scene.client.changing_metadata(Some(file.as_fd()), set).unwrap();
        scene.node.mount().join(name)
    }),
];

/// Where the node, or else nobody, stands still.
fn write_in_the_middle(scene: &Scene, stands_still: bool) {
    for (what, kind, change) in CHANGES {
        for length in LENGTHS {
            let name = format!("{} {length}", what.replace(' ', "-"));
            let modified = scene.cached(&name, length);
            let behind = scene.pfs.behind().join(&name);
            let hold = scene.pfs.hold(kind);
            let after = std::thread::scope(|scope| {
                let changing = scope.spawn(|| change(scene, &name));
                let begun = Instant::now();
                while scene.pfs.waiting(kind) == 0 {
                    assert!(begun.elapsed() < PATIENCE, "{what}: the PFS is not asked");
                    std::thread::yield_now();
                }
                let node = scene.node.process_id().unwrap();
                if stands_still {
                    signal(node, libc::SIGSTOP);
                    std::thread::sleep(STANDSTILL);
                }
                let file = File::options().write(true).open(&behind).unwrap();
                file.write_all_at(&vec![2; length], 0).unwrap();
                set_modified(&behind, modified);
                drop(hold);
                if stands_still {
                    signal(node, libc::SIGCONT);
                }
                changing.join().unwrap()
            });
            assert_bytes(&after, 2, length);
        }
    }
}

#[test]
fn what_is_written_between_two_looks_at_a_slow_pfs_is_read() {
    needs_mount!();
    write_in_the_middle(&Scene::new(&[]), false);
}

/// On a PFS whose stamps tell each change, so that nothing but the time between the looks can.
#[test]
fn what_is_written_while_the_node_stands_still_in_a_change_of_metadata_is_read() {
    needs_mount!();
    write_in_the_middle(&Scene::new(&["--timestamp-granularity-ns", "0"]), true);
}
