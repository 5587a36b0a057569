//! Tests of reads of files that another node owes to the PFS, before the PFS has them.

mod support;

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, SystemTime};

use support::hooked::{Call, Hooks, inode};
use support::nodes::*;
use support::{content, read_all};
use tidepool_proto::config::{BufferConfig, NodeConfig};
use tidepool_proto::stub::STUB_ATTRIBUTE;
use tidepool_proto::{
    Access, Error, ErrorKind, FileService, OpenFile, OpenRequest, Result, Version, WriteMode,
};

const LENGTH: usize = 4 * BLOCK as usize + 77;
/// Who reads, and who writes over the PFS of the test.
const READER: usize = 0;
const WRITER: usize = 1;
/// Who reads over it.
const OTHER: usize = 2;

/// Nodes that write by `alw`, and a PFS that takes no bytes of some files while they are held.
struct Cluster {
    nodes: Nodes,
    held: Arc<Held>,
    _disks: tempfile::TempDir,
}

#[derive(Default)]
struct Held {
    /// Inodes that no bytes are written to.
    inodes: Mutex<Vec<u64>>,
    changed: Condvar,
    /// Writes to them fail.
    fails: AtomicBool,
    /// An attribute that goes takes so long.
    removal_ms: AtomicU64,
    /// Changes of attributes of this inode fail, but for so many before.
    unchangeable: Mutex<Option<(u64, u64)>>,
    /// Attributes are told slowly to threads of this name.
    slow_thread: Mutex<Option<&'static str>>,
    /// What is done once, when the node that reads this file looks at it after its mark went.
    amid_hand_over: Mutex<Option<(PathBuf, Act)>>,
}

type Act = Box<dyn FnOnce() + Send>;

fn has_mark(path: &Path) -> bool {
    let got = rustix::fs::getxattr(path, STUB_ATTRIBUTE, &mut [0; 64]);
    got.is_ok() || matches!(got, Err(rustix::io::Errno::RANGE))
}

fn is_thread(name: &str) -> bool {
    std::thread::current().name() == Some(name)
}

impl Held {
    /// After an attribute was told.
    fn tell_attribute(&self) {
        if self.slow_thread.lock().unwrap().is_some_and(is_thread) {
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Before the version of a file is told.
    fn look(&self) {
        let mut amid = self.amid_hand_over.lock().unwrap();
        let is_now = |(path, _): &(PathBuf, _)| is_thread("owed-read") && !has_mark(path);
        if amid.as_ref().is_some_and(is_now) {
            let (_, act) = amid.take().unwrap();
            drop(amid);
            act();
        }
    }

    fn change_attribute(&self, inode: u64) -> Result<()> {
        match &mut *self.unchangeable.lock().unwrap() {
            Some((it, 0)) if *it == inode => {
                let failed = std::io::Error::from_raw_os_error(libc::EIO);
                Err(Error::pfs("changing an attribute", failed))
            }
            Some((it, left)) if *it == inode => {
                *left -= 1;
                Ok(())
            }
            _ => Ok(()),
        }
    }

    fn pass(&self, inode: u64) -> Result<()> {
        let mut inodes = self.inodes.lock().unwrap();
        while inodes.contains(&inode) {
            if self.fails.load(Ordering::SeqCst) {
                let full = std::io::Error::from_raw_os_error(libc::ENOSPC);
                return Err(Error::pfs("writing", full));
            }
            inodes = self.changed.wait(inodes).unwrap();
        }
        Ok(())
    }
}

impl Cluster {
    fn new() -> Self {
        Self::with(|_| ())
    }

    fn with(change: impl Fn(&mut NodeConfig)) -> Self {
        let (hooks, held) = (Arc::<Hooks>::default(), Arc::<Held>::default());
        let disks = tempfile::tempdir().unwrap();
        let passing = held.clone();
        hooks.set(move |call, make| {
            if call == Call::Write {
                passing.pass(inode())?;
            }
            if matches!(call, Call::SetAttribute | Call::RemoveAttribute) {
                passing.change_attribute(inode())?;
            }
            if call == Call::Version {
                passing.look();
            }
            make()?;
            if call == Call::GetAttribute {
                passing.tell_attribute();
            }
            if call == Call::RemoveAttribute {
                let removal_ms = passing.removal_ms.load(Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(removal_ms));
            }
            Ok(())
        });
        let nodes = Nodes::hooked(3, &hooks, |config| {
            config.write_mode = WriteMode::Alw;
            let name = config.cluster.as_ref().and_then(|it| it.node_name.clone()).unwrap();
            let directory = Some(disks.path().join(name));
            let memory_bytes = 64 << 20;
            let buffer =
                BufferConfig { memory_bytes, directory, disk_bytes: 1 << 30, address: None };
            config.buffer = Some(buffer);
            change(config);
        });
        nodes.wait_joined();
        // A test that fails, or takes too long, does not wait for the PFS for ever.
        let held_until = held.clone();
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_secs(90));
            held_until.inodes.lock().unwrap().clear();
            held_until.changed.notify_all();
        });
        let cluster = Cluster { nodes, held, _disks: disks };
        until("the buffers are known", || {
            let probe = cluster.create("probe", &content(1, 10));
            let is_stub = cluster.is_stub("probe");
            drop(probe);
            std::fs::remove_file(cluster.nodes.pfs("probe")).unwrap();
            is_stub
        });
        cluster
    }

    /// Begins a file, whose bytes the PFS does not take.
    fn begin(&self, name: &str) -> Arc<dyn OpenFile> {
        let mut options = File::options();
        let options = options.read(true).write(true).create(true).mode(0o640);
        let file = options.open(self.nodes.pfs(name)).unwrap();
        if name != "probe" {
            self.held.inodes.lock().unwrap().push(file.metadata().unwrap().ino());
        }
        let request = OpenRequest {
            access: Access::ReadWrite,
            created: true,
            ..OpenRequest::to_read(file.into(), 0)
        };
        self.nodes.nodes[WRITER].open(request).unwrap()
    }

    /// The same with these bytes in it, all promised.
    fn create(&self, name: &str, bytes: &[u8]) -> Arc<dyn OpenFile> {
        let file = self.begin(name);
        file.write_at(0, bytes).unwrap();
        file.sync(false).unwrap();
        file
    }

    /// From now on the PFS takes all bytes.
    fn release(&self) {
        self.held.inodes.lock().unwrap().clear();
        self.held.changed.notify_all();
    }

    fn is_stub(&self, name: &str) -> bool {
        has_mark(&self.nodes.pfs(name))
    }

    fn open(&self, name: &str) -> Arc<dyn OpenFile> {
        self.nodes.open(READER, name)
    }

    /// Whether an open reads the file that the PFS has.
    fn has_gone_on(&self, open: &dyn OpenFile, name: &str) -> bool {
        let facts = std::fs::metadata(self.nodes.pfs(name)).unwrap();
        open.version().agrees_with(&Version::from(&facts))
    }

    fn memory_only_files(&self) -> u64 {
        self.nodes.nodes[WRITER].status().memory_only_files
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.release();
    }
}

fn read(file: &dyn OpenFile, offset: u64, length: usize) -> Result<Vec<u8>> {
    let mut bytes = vec![0; length];
    let read = file.read_at(offset, &mut bytes)?.bytes;
    bytes.truncate(read);
    Ok(bytes)
}

#[test]
fn a_file_is_read_elsewhere_before_the_pfs_has_it_and_stays_in_memory_there() {
    let cluster = Cluster::new();
    let mut bytes = content(1, LENGTH);
    // With a hole of more than a block.
    bytes[BLOCK as usize..3 * BLOCK as usize].fill(0);
    let writer = cluster.begin("file");
    writer.write_at(0, &bytes[..BLOCK as usize]).unwrap();
    writer.write_at(3 * BLOCK, &bytes[3 * BLOCK as usize..]).unwrap();
    writer.flush().unwrap();
    drop(writer);
    let (first, second) = (cluster.open("file"), cluster.open("file"));
    assert_eq!((first.size().unwrap(), first.version().size), (LENGTH as u64, LENGTH as u64));
    assert!(read(&*first, 0, LENGTH).unwrap() == bytes);
    assert!(
        read(&*second, BLOCK + 5, 3 * BLOCK as usize).unwrap()[..]
            == bytes[BLOCK as usize + 5..][..3 * BLOCK as usize]
    );
    assert!(cluster.is_stub("file"), "the PFS does not have it");
    assert!(first.is_owed() && second.is_owed(), "who asks it for holes must know");
    assert_eq!(cluster.nodes.pfs_read_bytes(READER), 0);
    cluster.release();
    until("the PFS has it", || !cluster.is_stub("file"));
    assert!(std::fs::read(cluster.nodes.pfs("file")).unwrap() == bytes);
    until("they go on with the file", || {
        cluster.has_gone_on(&*first, "file") && cluster.has_gone_on(&*second, "file")
    });
    let third = cluster.open("file");
    for open in [&first, &second, &third] {
        assert!(read_all(&**open).unwrap().0 == bytes);
        assert_eq!(open.version(), third.version());
        assert!(!open.is_owed(), "holes are those of the file");
    }
    assert_eq!(cluster.nodes.pfs_read_bytes(READER), 0, "what came from there is kept");
}

/// As far as the node knows, somebody may have written to the file while its mark went.
#[test]
fn an_open_that_has_read_some_goes_on_where_the_mark_goes_slowly() {
    let cluster = Cluster::new();
    let mut bytes = content(5, LENGTH);
    bytes[BLOCK as usize..2 * BLOCK as usize].fill(0);
    let writer = cluster.begin("file");
    writer.write_at(0, &bytes[..BLOCK as usize]).unwrap();
    writer.write_at(2 * BLOCK, &bytes[2 * BLOCK as usize..]).unwrap();
    writer.flush().unwrap();
    drop(writer);
    let open = cluster.open("file");
    assert!(read(&*open, 0, 10).unwrap() == bytes[..10]);
    cluster.held.removal_ms.store(300, Ordering::SeqCst);
    cluster.release();
    until("it goes on with the file", || cluster.has_gone_on(&*open, "file"));
    assert!(read_all(&*open).unwrap().0 == bytes);
}

#[test]
fn an_open_that_has_read_some_never_goes_on_with_other_bytes() {
    let cluster = Cluster::new();
    let others: Vec<_> =
        (0..4).map(|at| cluster.create(&format!("{at}"), &content(at, LENGTH))).collect();
    // They hold up all turns to be written back for other nodes: this one stays where it is.
    let opens: Vec<_> = (0..4).map(|at| cluster.open(&format!("{at}"))).collect();
    let bytes = content(9, LENGTH);
    let writer = cluster.create("file", &bytes);
    let open = cluster.open("file");
    assert!(read(&*open, 0, 10).unwrap() == bytes[..10]);
    writer.write_at(2 * BLOCK, b"later").unwrap();
    let error = read(&*open, 2 * BLOCK, 5).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
    writer.sync(false).unwrap();
    assert!(read(&*open, 2 * BLOCK, 5).is_err(), "also once they are promised");
    let again = cluster.open("file");
    assert_eq!(read(&*again, 2 * BLOCK, 5).unwrap(), b"later");
    writer.set_size(7).unwrap();
    assert!(read(&*again, 3 * BLOCK, 5).is_err());
    drop((opens, others));
}

#[test]
fn bytes_that_no_sync_promised_are_waited_for() {
    let cluster = Cluster::new();
    let bytes = content(5, LENGTH);
    let writer = cluster.create("file", &bytes);
    writer.write_at(0, b"unpromised").unwrap();
    let opened = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| {
            let open = cluster.open("file");
            opened.store(true, Ordering::SeqCst);
            read(&*open, 0, LENGTH).unwrap()
        });
        std::thread::sleep(Duration::from_millis(500));
        assert!(!opened.load(Ordering::SeqCst), "they could be lost after they were read");
        cluster.release();
        let read = opening.join().unwrap();
        assert!(read[..10] == *b"unpromised" && read[10..] == bytes[10..]);
    });
}

#[test]
fn changes_right_after_the_pfs_has_a_file_never_mix_with_what_was_read_before() {
    let cluster = Cluster::new();
    let (mut whole, mut refused) = (0, 0);
    for round in 0..12 {
        let name = format!("{round}");
        let old = content(round, LENGTH);
        let writer = cluster.create(&name, &old);
        let open = cluster.open(&name);
        assert!(read(&*open, 0, BLOCK as usize).unwrap() == old[..BLOCK as usize]);
        let new = vec![0xee; LENGTH];
        std::thread::scope(|scope| {
            let writing = scope.spawn(|| writer.write_at(0, &new).unwrap());
            if round % 3 == 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
            cluster.release();
            if round % 2 == 0 {
                writing.join().unwrap();
            }
            match read(&*open, 0, LENGTH) {
                Ok(read) if read == old => whole += 1,
                Ok(_) => panic!("round {round}: two versions"),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
                    refused += 1;
                }
            }
        });
        writer.sync(false).unwrap();
        assert!(cluster.nodes.read(READER, &name).0 == new);
    }
    assert_eq!(whole + refused, 12);
}

#[test]
fn a_file_that_a_full_pfs_does_not_take_is_read_elsewhere() {
    let cluster = Cluster::new();
    cluster.held.fails.store(true, Ordering::SeqCst);
    let bytes = content(6, LENGTH);
    drop(cluster.create("file", &bytes));
    let open = cluster.open("file");
    std::thread::sleep(Duration::from_millis(200));
    assert!(read(&*open, 0, LENGTH).unwrap() == bytes);
    assert!(cluster.is_stub("file"));
    cluster.release();
    until("it goes on with the file", || cluster.has_gone_on(&*open, "file"));
    assert!(std::fs::read(cluster.nodes.pfs("file")).unwrap() == bytes);
    assert!(read_all(&*open).unwrap().0 == bytes);
}

#[test]
fn a_file_that_is_removed_is_read_to_its_end_and_then_let_go() {
    let cluster = Cluster::new();
    let bytes = content(7, LENGTH);
    drop(cluster.create("file", &bytes));
    let open = cluster.open("file");
    let id = open.version().id;
    std::fs::remove_file(cluster.nodes.pfs("file")).unwrap();
    cluster.nodes.nodes[READER].removed(id);
    let holder = cluster.nodes.nodes[WRITER].clone();
    // Beside: what lets a file go waits for what is being written of it.
    let removing = std::thread::spawn(move || holder.removed(id));
    std::thread::sleep(Duration::from_millis(100));
    assert!(read(&*open, 0, LENGTH).unwrap() == bytes);
    cluster.release();
    removing.join().unwrap();
    until("it is let go", || cluster.memory_only_files() == 0);
    assert!(read_all(&*open).unwrap().0 == bytes);
}

#[test]
fn where_the_node_that_owes_a_file_dies_its_readers_are_told_and_nothing_is_lost() {
    let cluster = Cluster::new();
    let bytes = content(8, LENGTH);
    let writer = cluster.create("file", &bytes);
    let (some, none) = (cluster.open("file"), cluster.open("file"));
    assert!(read(&*some, 0, 9).unwrap() == bytes[..9]);
    cluster.nodes.nodes[WRITER].stop();
    cluster.release();
    for open in [some, none] {
        match read(&*open, BLOCK, LENGTH) {
            Ok(read) => assert!(read == bytes[BLOCK as usize..]),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Changed, "{error}"),
        }
    }
    until("the copy is in its place", || !cluster.is_stub("file"));
    assert!(cluster.nodes.read(READER, "file").0 == bytes);
    drop(writer);
}

#[test]
fn a_writer_elsewhere_waits_for_the_pfs_and_readers_of_its_node_go_on() {
    let cluster = Cluster::new();
    let bytes = content(3, LENGTH);
    drop(cluster.create("file", &bytes));
    let reader = cluster.open("file");
    assert!(read(&*reader, 0, 9).unwrap() == bytes[..9]);
    std::thread::scope(|scope| {
        let open = || cluster.nodes.try_open(READER, "file", Access::ReadWrite).unwrap();
        let opening = scope.spawn(open);
        std::thread::sleep(Duration::from_millis(100));
        assert!(cluster.is_stub("file"));
        cluster.release();
        let writer = opening.join().unwrap();
        writer.write_at(BLOCK, b"new").unwrap();
        writer.sync(false).unwrap();
    });
    let found = read(&*reader, 0, LENGTH).unwrap();
    assert!(found[..BLOCK as usize] == bytes[..BLOCK as usize]);
    assert_eq!(found[BLOCK as usize..][..3], *b"new", "as readers of one node follow it");
}

/// As by `cp -p` over a file that has these times.
#[test]
fn a_change_whose_time_is_set_back_never_mixes_with_what_was_read_before() {
    let cluster = Cluster::new();
    for round in 0..4 {
        let name = format!("{round}");
        let (old, new) = (content(round, LENGTH), content(round + 100, LENGTH));
        let set_time = || {
            let file = File::options().write(true).open(cluster.nodes.pfs(&name)).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000)).unwrap();
        };
        let writer = cluster.create(&name, &old);
        set_time();
        drop(writer);
        let open = cluster.open(&name);
        assert!(read(&*open, 0, BLOCK as usize).unwrap() == old[..BLOCK as usize]);
        // Until the node that reads asks less often.
        std::thread::sleep(Duration::from_millis(300));
        cluster.release();
        until("the PFS has it", || !cluster.is_stub(&name));
        let other = cluster.nodes.try_open(OTHER, &name, Access::ReadWrite).unwrap();
        other.write_at(0, &new).unwrap();
        other.sync(false).unwrap();
        drop(other);
        set_time();
        std::thread::sleep(Duration::from_millis(500));
        match read(&*open, 0, LENGTH) {
            Ok(found) => assert!(found == old, "two versions"),
            Err(error) => assert_eq!(error.kind(), ErrorKind::Changed, "{error}"),
        }
        assert!(cluster.nodes.read(READER, &name).0 == new, "a later open");
    }
}

#[test]
fn a_read_that_does_not_fit_in_the_store_ends() {
    let cluster = Cluster::with(|config| {
        let name = config.cluster.as_ref().and_then(|it| it.node_name.clone());
        if name.as_deref() == Some("n0") {
            config.capacity_bytes = 2 * BLOCK;
        }
    });
    let bytes = content(11, LENGTH);
    drop(cluster.create("file", &bytes));
    let open = cluster.open("file");
    assert!(read(&*open, 100, LENGTH).unwrap() == bytes[100..]);
    assert!(cluster.is_stub("file"));
    let fetched = cluster.nodes.nodes[READER].status().peer_read_bytes;
    assert!(fetched < 10 * LENGTH as u64, "{fetched}");
}

#[test]
fn opens_that_are_over_leave_no_threads() {
    let cluster = Cluster::new();
    drop(cluster.create("file", &content(12, LENGTH)));
    for _ in 0..30 {
        let open = cluster.open("file");
        assert_eq!(read(&*open, 0, 10).unwrap(), content(12, 10));
    }
    let threads = || {
        let tasks = std::fs::read_dir("/proc/self/task").unwrap().flatten();
        let names = tasks.filter_map(|it| std::fs::read_to_string(it.path().join("comm")).ok());
        names.filter(|name| name.trim() == "owed-read").count()
    };
    until("they end", || threads() == 0);
    assert!(cluster.is_stub("file"), "though the PFS does not have it");
}

#[test]
fn an_empty_file_is_there_wherever_its_write_back_failed() {
    let cluster = Cluster::new();
    for passing in 0..5 {
        let name = format!("empty-{passing}");
        let file = cluster.begin(&name);
        file.sync(false).unwrap();
        let inode = std::fs::metadata(cluster.nodes.pfs(&name)).unwrap().ino();
        *cluster.held.unchangeable.lock().unwrap() = Some((inode, passing));
        drop(file);
        // Has its node write it back.
        _ = cluster.nodes.try_open(READER, &name, Access::Read);
        *cluster.held.unchangeable.lock().unwrap() = None;
        let read = cluster.nodes.try_open(READER, &name, Access::Read);
        let read = read.map(|file| file.size().unwrap());
        assert_eq!(read.ok(), Some(0), "failing after {passing} changes");
        until("its mark is gone", || !cluster.is_stub(&name));
    }
}

/// Its node lets go of what waited for the file while the open looks at the file.
#[test]
fn an_open_that_finds_the_file_on_the_pfs_after_a_moment_is_one_of_its_node() {
    let cluster = Cluster::new();
    *cluster.held.slow_thread.lock().unwrap() = Some("opening");
    for round in 0..6 {
        let name = format!("{round}");
        let bytes = content(round, LENGTH);
        let writer = cluster.create(&name, &bytes);
        cluster.release();
        let open = std::thread::scope(|scope| {
            let opening = std::thread::Builder::new().name("opening".into());
            let open = || cluster.nodes.open(OTHER, &name);
            opening.spawn_scoped(scope, open).unwrap().join().unwrap()
        });
        let other = cluster.nodes.try_open(OTHER, &name, Access::ReadWrite).unwrap();
        other.write_at(BLOCK, b"new").unwrap();
        other.sync(false).unwrap();
        let found = read(&*open, 0, LENGTH).unwrap();
        assert_eq!(found[BLOCK as usize..][..3], *b"new", "as readers of one node follow it");
        assert!(found[..BLOCK as usize] == bytes[..BLOCK as usize]);
        drop(writer);
    }
}

/// Has a node read some of a file, and something happen while it goes over to the PFS; what it
/// reads then, and the bytes of the file before.
fn read_beside(
    cluster: &Cluster,
    amid: impl FnOnce(PathBuf) + Send + 'static,
) -> (Result<Vec<u8>>, Vec<u8>) {
    let bytes = content(21, LENGTH);
    drop(cluster.create("file", &bytes));
    let open = cluster.nodes.open(OTHER, "file");
    assert!(read(&*open, BLOCK, 10).unwrap() == bytes[BLOCK as usize..][..10]);
    let path = cluster.nodes.pfs("file");
    let of = path.clone();
    *cluster.held.amid_hand_over.lock().unwrap() = Some((path, Box::new(|| amid(of))));
    cluster.release();
    until("it happened", || cluster.held.amid_hand_over.lock().unwrap().is_none());
    (read(&*open, 0, LENGTH), bytes)
}

#[test]
fn a_new_mode_and_name_amid_the_last_steps_end_no_reader() {
    let cluster = Cluster::new();
    let (found, bytes) = read_beside(&cluster, |path| {
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::rename(&path, path.with_extension("later")).unwrap();
    });
    assert!(found.unwrap() == bytes);
}

#[test]
fn other_bytes_amid_the_last_steps_are_never_mixed_in() {
    let cluster = Cluster::new();
    let (found, _) = read_beside(&cluster, |path| {
        let times = std::fs::metadata(&path).unwrap().modified().unwrap();
        let file = File::options().write(true).open(&path).unwrap();
        // Time stamps of the PFS may be as coarse as the kernel's clock.
        std::thread::sleep(Duration::from_millis(30));
        file.write_all_at(&[0xee; LENGTH], 0).unwrap();
        file.set_modified(times).unwrap();
    });
    let error = found.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
}

#[test]
fn a_node_that_dies_right_after_it_brought_a_file_to_the_pfs_ends_no_reader() {
    let cluster = Cluster::new();
    let holder = cluster.nodes.nodes[WRITER].clone();
    let (found, bytes) = read_beside(&cluster, move |_| holder.stop());
    assert!(found.unwrap() == bytes);
}
