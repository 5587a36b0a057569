//! Tests of how many requests the mount sends to the PFS, against a program on the PFS itself: a
//! server round trip each. The limits are the numbers of today, ends of opens included, which no
//! caller waits for. The kernel caches nothing here, so each look-up of a name by the mount looks
//! up its directory, the name and the file again, and leaves a descriptor by which later requests
//! reach the file alone. Also covered: descriptors that lead nowhere, and requests that were left
//! out.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::ops::Range;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use tidepool_fuse::{Mount, MountConfig};
use tidepool_node::Node;
use tidepool_proto::{FileService, OpenRequest};
use tidepool_testkit::needs_mount;
use tidepool_testkit::weak_pfs::{Questions, WeakPfs, Weakness};

/// The fewest questions of so many rounds count: the node's own work asks as well.
const ROUNDS: usize = 7;

/// Nobody asks for so long: all is done that was begun.
const QUIET: Duration = Duration::from_millis(50);

/// What is done, and how many questions more it may be.
type Row = (&'static str, fn(&Path, usize), u64);

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

/// Waits until the file is read without the PFS: what was just changed is not kept at once.
fn settle(scene: &Scene) {
    let end = Instant::now() + Duration::from_secs(60);
    while scene.pfs.asked_by(|| read(scene.upper.path(), 0)).1.contains_key("read") {
        assert!(Instant::now() < end, "the file becomes resident");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The fewest questions that a round of `work` asked.
fn fewest(pfs: &WeakPfs, rounds: Range<usize>, work: impl Fn(usize)) -> Questions {
    wait_for_quiet(pfs);
    let asked = rounds.map(|round| {
        let worked = || {
            work(round);
            wait_for_quiet(pfs);
        };
        pfs.asked_by(worked).1
    });
    asked.min_by_key(total).unwrap()
}

/// Waits for the ends of opens; not for ever, because somebody else may ask something all the time.
fn wait_for_quiet(pfs: &WeakPfs) {
    let end = Instant::now() + 40 * QUIET;
    let mut before = Questions::default();
    while before != pfs.questions() && Instant::now() < end {
        before = pfs.questions();
        std::thread::sleep(QUIET);
    }
}

fn total(questions: &Questions) -> u64 {
    questions.values().sum()
}

fn create(directory: &Path, round: usize) {
    let mut file = File::create(directory.join(format!("new{round}"))).unwrap();
    file.write_all(&[1; 4096]).unwrap();
}

fn create_below(directory: &Path, round: usize) {
    create(&directory.join("one/two"), round);
}

fn read(directory: &Path, _: usize) {
    assert_eq!(fs::read(directory.join("resident")).unwrap().len(), 4096);
}

fn stat(directory: &Path, _: usize) {
    assert_eq!(fs::symlink_metadata(directory.join("resident")).unwrap().len(), 4096);
}

fn unlink(directory: &Path, round: usize) {
    fs::remove_file(directory.join(format!("new{round}"))).unwrap();
}

#[test]
fn the_mount_asks_the_pfs_little_more_than_a_program_on_it() {
    needs_mount!();
    let scene = scene();
    fs::write(scene.pfs.root().join("resident"), [7; 4096]).unwrap();
    fs::create_dir_all(scene.pfs.root().join("one/two")).unwrap();
    let mut over = Vec::new();
    settle(&scene);
    // What the first row makes goes in the last one.
    let rows: [Row; 5] = [
        ("create, write, close", create, 8),
        ("the same in a directory below", create_below, 10),
        ("open, read, close", read, 0),
        ("stat", stat, 1),
        ("unlink", unlink, 3),
    ];
    for (name, work, more) in rows {
        let bare = fewest(&scene.pfs, 0..ROUNDS, |round| work(scene.pfs.root(), round));
        let rounds = ROUNDS..2 * ROUNDS;
        let by_mount = fewest(&scene.pfs, rounds, |round| work(scene.upper.path(), round));
        println!("{name}: {} against {}: {by_mount:?} {bare:?}", total(&by_mount), total(&bare));
        if total(&by_mount) > total(&bare) + more {
            over.push((name, by_mount, bare));
        }
    }
    assert!(over.is_empty(), "{over:#?}");
}

#[test]
fn a_file_that_its_server_does_not_know_any_more_is_reached_by_its_name() {
    needs_mount!();
    let scene = scene();
    fs::write(scene.pfs.root().join("file"), [7; 4096]).unwrap();
    let path = scene.upper.path().join("file");
    let held = rustix::fs::open(path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty()).unwrap();
    // Opened by this way, no name is looked up before.
    let again = format!("/proc/self/fd/{}", held.as_raw_fd());
    scene.pfs.forget_files();
    assert_eq!(rustix::fs::fstat(&held).unwrap().st_size, 4096);
    scene.pfs.forget_files();
    let mut bytes = Vec::new();
    File::open(&again).unwrap().read_to_end(&mut bytes).unwrap();
    assert_eq!(bytes, [7; 4096]);
    scene.pfs.forget_files();
    File::options().append(true).open(&again).unwrap().write_all(&[8]).unwrap();
    assert_eq!(fs::read(scene.pfs.behind().join("file")).unwrap().len(), 4097);
}

/// An open past the mount, as the library's.
fn to_read(path: &Path) -> OpenRequest {
    OpenRequest::to_read(File::open(path).unwrap().into(), 0)
}

#[test]
fn who_has_a_file_open_by_the_node_alone_reads_on_when_its_name_goes() {
    needs_mount!();
    const LENGTH: usize = 4 << 20;
    let scene = scene();
    let path = scene.pfs.root().join("file");
    fs::write(&path, vec![7; LENGTH]).unwrap();
    let open = scene.node.open(to_read(&path)).unwrap();
    fs::remove_file(scene.upper.path().join("file")).unwrap();
    let mut bytes = vec![0; LENGTH];
    assert_eq!(open.read_at(0, &mut bytes).unwrap().bytes, LENGTH);
    assert!(bytes.iter().all(|byte| *byte == 7));
}

#[test]
fn a_name_that_goes_leaves_what_is_kept_of_a_file_that_was_linked_meanwhile() {
    const LENGTH: usize = 32 << 20;
    needs_mount!();
    let scene = scene();
    let path = scene.pfs.root().join("large");
    // More than is read before the name goes: what follows is read as the same version.
    fs::write(&path, vec![7; LENGTH]).unwrap();
    let open = scene.node.open(to_read(&path)).unwrap();
    let mut bytes = vec![0; LENGTH];
    open.read_at(0, &mut bytes[..4096]).unwrap();
    std::thread::scope(|scope| {
        let hold = scene.pfs.hold("unlink");
        let unlinks = scope.spawn(|| fs::remove_file(scene.upper.path().join("large")));
        let end = Instant::now() + Duration::from_secs(60);
        while scene.pfs.waiting("unlink") == 0 {
            assert!(Instant::now() < end && !unlinks.is_finished(), "the PFS is asked");
            std::thread::sleep(Duration::from_millis(1));
        }
        fs::hard_link(scene.pfs.behind().join("large"), scene.pfs.behind().join("other")).unwrap();
        drop(hold);
        unlinks.join().unwrap().unwrap();
    });
    let read = open.read_at(0, &mut bytes).expect("who has it open reads on");
    assert!(read.bytes == LENGTH && bytes.iter().all(|byte| *byte == 7));
    assert_eq!(fs::read(scene.upper.path().join("other")).unwrap(), bytes);
}

#[test]
fn what_is_removed_is_held_by_no_read_ahead() {
    needs_mount!();
    let scene = scene();
    scene.pfs.set(|weakness| weakness.hides_held = true);
    let mut rounds_held = 0;
    for round in 0..6 {
        let directory = scene.upper.path().join(format!("d{round}"));
        let behind = scene.pfs.behind().join(format!("d{round}"));
        fs::create_dir(&directory).unwrap();
        fs::write(behind.join("file"), vec![1; 40 << 20]).unwrap();
        fs::write(behind.join("other"), "x").unwrap();
        let mut file = File::open(directory.join("file")).unwrap();
        scene.pfs.set(|weakness| weakness.delay = Duration::from_millis(5));
        file.read_exact(&mut vec![0; 8 << 20]).unwrap();
        // What is read ahead now takes its time.
        let held = scene.pfs.hold("read");
        scene.pfs.set(|weakness| weakness.delay = Duration::ZERO);
        drop(file);
        // The kernel does not wait for the end of an open.
        std::thread::sleep(Duration::from_millis(50));
        rounds_held += u32::from(scene.pfs.waiting("read") > 0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(Duration::from_millis(100));
                drop(held);
            });
            match round % 2 {
                0 => fs::remove_file(directory.join("file")).unwrap(),
                _ => fs::rename(directory.join("other"), directory.join("file")).unwrap(),
            }
        });
        for left in ["file", "other"] {
            let _one_of_them_is_there = fs::remove_file(directory.join(left));
        }
        fs::remove_dir(&directory).unwrap();
    }
    assert!(rounds_held > 0, "nothing was read ahead");
}
