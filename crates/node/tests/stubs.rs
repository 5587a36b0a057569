//! Memory-only files on the PFS: a node that ends, or a PFS that fails, at every step of making one
//! and of writing it down leaves the bytes or the word that they are lost, to every later open.
//!
//! `TIDEPOOL_CRASH_STEPS=all` tries every step; otherwise every few.

mod support;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use support::hooked::{Call, HookedStore, Hooks};
use support::*;
use tidepool_node::Node;
use tidepool_pfs::{FaultStore, LowerStore, PosixOptions, PosixStore};
use tidepool_proto::admin::{AdminRequest, AdminService};
use tidepool_proto::stub::{STUB_ATTRIBUTE, marked_length};
use tidepool_proto::{
    Access, Error, ErrorKind, FileService, MemorySize, OpenFile, OpenRequest, Result, WriteMode,
};

/// What happens at a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fate {
    /// The node is killed: the step and all after it are not made.
    Killed,
    /// The same, and what was not synced is gone with the power.
    PowerLost,
    /// The same, and marks that were not synced are gone too.
    MarksLost,
    /// The step fails, and the node goes on.
    Fails,
}

const FATES: [Fate; 4] = [Fate::Killed, Fate::PowerLost, Fate::MarksLost, Fate::Fails];

/// How a memory-only file comes to be written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Drain,
    Resize,
    Allocate,
    /// The file was an ordinary one before.
    Emptied,
}

const CAUSES: [Cause; 4] = [Cause::Drain, Cause::Resize, Cause::Allocate, Cause::Emptied];

fn killed() -> Error {
    Error::pfs("using the PFS", std::io::Error::from_raw_os_error(libc::EIO))
}

/// A PFS directory, and nodes over it one after the other.
struct Ground {
    directory: tempfile::TempDir,
    posix: Arc<dyn LowerStore>,
    with_attributes: bool,
    files_made: AtomicU64,
}

impl Ground {
    fn new(with_attributes: bool) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let posix = PosixStore::open(directory.path(), PosixOptions::default()).unwrap();
        Ground { directory, posix, with_attributes, files_made: AtomicU64::new(0) }
    }

    fn node_over(&self, inner: Arc<dyn LowerStore>) -> (Arc<Node>, Arc<Hooks>) {
        let hooks = Arc::new(Hooks::default());
        if !self.with_attributes {
            hooks.take_attributes_away();
        }
        let features = inner.features().clone();
        let store = Arc::new(HookedStore { inner, features, hooks: hooks.clone() });
        (Node::start_over(config(self.directory.path(), |_| ()), store).unwrap(), hooks)
    }

    fn node(&self) -> Arc<Node> {
        self.node_over(self.posix.clone()).0
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }
}

/// How a program opens.
#[derive(Clone, Copy, Debug, Default)]
struct Manner {
    created: bool,
    truncate: bool,
    append: bool,
    memory: bool,
}

fn open(
    node: &Node,
    path: &std::path::Path,
    access: Access,
    manner: Manner,
) -> Result<Arc<dyn OpenFile>> {
    let mut options = std::fs::File::options();
    options.read(access.reads()).write(access.writes()).create(manner.created);
    if manner.append {
        options.append(true);
    }
    let lower = options.open(path).unwrap().into();
    let write_mode = manner.memory.then_some(WriteMode::Memory);
    let file = node.open(OpenRequest {
        lower,
        access,
        read_mode: None,
        write_mode,
        created: manner.created,
        append: manner.append,
        truncate: manner.truncate,
        user_id: 0,
        changes_as: None,
    })?;
    if manner.truncate {
        file.set_size(0)?;
    }
    Ok(file)
}

/// What the program was told before the node ended.
#[derive(Default)]
struct Told {
    opened: bool,
    closed: bool,
    written_down: bool,
}

/// A program that writes a file in mode `memory`, which is then written back.
fn run(ground: &Ground, node: &Arc<Node>, name: &str, bytes: &[u8], cause: Cause) -> Told {
    let mut told = Told::default();
    let path = ground.path(name);
    let emptied = cause == Cause::Emptied;
    let manner = Manner { created: !emptied, truncate: emptied, memory: true, ..Manner::default() };
    let Ok(file) = open(node, &path, Access::ReadWrite, manner) else { return told };
    told.opened = true;
    for (number, piece) in bytes.chunks(1 << 20).enumerate() {
        if file.write_at((number as u64) << 20, piece).is_err() {
            return told;
        }
    }
    told.closed = file.flush().is_ok();
    told.written_down = match cause {
        Cause::Resize => {
            node.admin(AdminRequest::Resize { size: MemorySize::Bytes(0) }, None, 0).unwrap();
            node.status().memory_only_files == 0
        }
        // Zeroes nothing and keeps the length.
        Cause::Allocate => file.allocate(libc::FALLOC_FL_KEEP_SIZE, 0, 1).is_ok(),
        Cause::Drain | Cause::Emptied => node.drain().is_ok(),
    };
    told
}

/// Stops or fails at call `step`; returns whether that call came.
fn arm(ground: &Ground, hooks: &Hooks, fate: Fate, step: u64, name: &str) -> Arc<Armed> {
    let armed = Arc::new(Armed::default());
    let (calls, path) = (AtomicU64::new(0), ground.path(name));
    let inside = armed.clone();
    hooks.set(move |call, make| {
        let number = calls.fetch_add(1, Ordering::SeqCst);
        if number == step {
            inside.came.store(true, Ordering::SeqCst);
        }
        let stops = if fate == Fate::Fails { number == step } else { number >= step };
        if stops {
            return Err(killed());
        }
        if matches!(call, Call::SetAttribute | Call::RemoveAttribute) {
            inside.durable_mark.lock().unwrap().get_or_insert_with(|| attribute(&path));
        }
        make()?;
        if call == Call::Sync {
            *inside.durable_mark.lock().unwrap() = None;
        }
        Ok(())
    });
    armed
}

#[derive(Default)]
struct Armed {
    came: AtomicBool,
    /// The mark as it was synced last, where it changed since.
    durable_mark: Mutex<Option<Option<Vec<u8>>>>,
}

fn attribute(path: &std::path::Path) -> Option<Vec<u8>> {
    let mut value = vec![0; 1024];
    let length = rustix::fs::getxattr(path, STUB_ATTRIBUTE, value.as_mut_slice()).ok()?;
    value.truncate(length);
    Some(value)
}

fn set_attribute(path: &std::path::Path, value: Option<&[u8]>) {
    let _was_not_there = match value {
        Some(value) => {
            rustix::fs::setxattr(path, STUB_ATTRIBUTE, value, rustix::fs::XattrFlags::empty())
        }
        None => rustix::fs::removexattr(path, STUB_ATTRIBUTE),
    };
}

/// One run that ends or fails at `step`. False when it ended before that step.
fn crash(ground: &Ground, size: usize, cause: Cause, fate: Fate, step: u64) -> bool {
    let name = format!("f{}", ground.files_made.fetch_add(1, Ordering::Relaxed));
    let case = format!("{size} bytes, {cause:?}, {fate:?} at step {step}");
    let (old, bytes) = (content(1, 3000), content(2, size));
    if cause == Cause::Emptied {
        std::fs::write(ground.path(&name), &old).unwrap();
    }
    let loses = matches!(fate, Fate::PowerLost | Fate::MarksLost);
    let faults = loses
        .then(|| FaultStore::new(ground.posix.clone(), "lose-unsynced".parse().unwrap()).unwrap());
    let inner = faults.clone().map_or(ground.posix.clone(), |faults| faults as Arc<dyn LowerStore>);
    let (node, hooks) = ground.node_over(inner);
    let armed = arm(ground, &hooks, fate, step, &name);
    let told = run(ground, &node, &name, &bytes, cause);
    if fate == Fate::Fails {
        hooks.clear();
        if told.opened && told.closed {
            goes_on(ground, &node, &name, &bytes, &case);
        }
    }
    node.stop();
    if let Some(faults) = faults {
        faults.lose_power().unwrap();
        if let (Fate::MarksLost, Some(mark)) = (fate, &*armed.durable_mark.lock().unwrap()) {
            set_attribute(&ground.path(&name), mark.as_deref());
        }
    }
    let came = armed.came.load(Ordering::SeqCst);
    if came && fate != Fate::Fails {
        look(ground, &name, &bytes, &old, &told, loses, &case);
    }
    let _may_be_lost = std::fs::remove_file(ground.path(&name));
    came
}

/// After a failure the same node has the bytes, and writes them down in the end.
fn goes_on(ground: &Ground, node: &Arc<Node>, name: &str, bytes: &[u8], case: &str) {
    let path = ground.path(name);
    let read = || {
        let file = open(node, &path, Access::Read, Manner::default());
        file.and_then(|file| read_all(&*file)).unwrap_or_else(|error| panic!("{case}: {error}")).0
    };
    node.admin(AdminRequest::Resize { size: MemorySize::Bytes(CAPACITY) }, None, 0).unwrap();
    if node.status().memory_only_files > 0 {
        assert!(read() == bytes, "{case}: in memory");
        node.drain().unwrap_or_else(|error| panic!("{case}: {error}"));
    }
    assert!(std::fs::read(&path).unwrap() == bytes, "{case}: on the PFS");
    assert_eq!(attribute(&path), None, "{case}: the mark is gone");
}

/// What a later node makes of the file: every kind of open agrees on bytes or `Lost`.
fn look(
    ground: &Ground,
    name: &str,
    bytes: &[u8],
    old: &[u8],
    told: &Told,
    power_lost: bool,
    case: &str,
) {
    let path = ground.path(name);
    if !path.exists() {
        assert!(power_lost && !told.closed, "{case}: the name is gone");
        return;
    }
    let node = ground.node();
    let try_open =
        |access, append| open(&node, &path, access, Manner { append, ..Manner::default() });
    let read = try_open(Access::Read, false).and_then(|file| read_all(&*file));
    let found = match &read {
        Ok((found, _)) => Some(found.as_slice()),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Lost, "{case}: {error}");
            assert_eq!(error.errno(), libc::EIO, "{case}");
            None
        }
    };
    if let Some(found) = found {
        let unheard = !told.opened || power_lost && !told.closed;
        let allowed = found == bytes || unheard && (found.is_empty() || found == old);
        assert!(allowed, "{case}: {} other bytes are served", found.len());
    }
    assert!(!told.written_down || found.is_some(), "{case}: written back and lost");
    for (access, append) in
        [(Access::ReadWrite, false), (Access::Write, false), (Access::Write, true)]
    {
        let opened = try_open(access, append);
        assert_eq!(opened.is_ok(), found.is_some(), "{case}: {access:?}, append {append}");
        if let Err(error) = opened {
            assert_eq!(error.kind(), ErrorKind::Lost, "{case}: {error}");
        }
    }
    let anew = Manner { truncate: true, ..Manner::default() };
    let writer = open(&node, &path, Access::Write, anew).unwrap();
    writer.write_at(0, b"written anew").unwrap();
    writer.flush().unwrap();
    drop(writer);
    assert_eq!(std::fs::read(&path).unwrap(), b"written anew", "{case}");
    let read = open(&node, &path, Access::Read, Manner::default()).unwrap();
    assert_eq!(read_all(&*read).unwrap().0, b"written anew", "{case}");
    node.stop();
}

/// Every step, or every few, of all runs of files of this size.
fn crash_at_every_step(with_attributes: bool, sizes: &[usize]) {
    let every_step = std::env::var("TIDEPOOL_CRASH_STEPS").is_ok_and(|steps| steps == "all");
    let ground = Ground::new(with_attributes);
    let stride = if every_step { 1 } else { 5 };
    let mut first = 0;
    let mut steps = 0;
    for (size, cause) in sizes.iter().flat_map(|size| CAUSES.map(|cause| (*size, cause))) {
        for fate in FATES {
            // Another start each time, so that a slice meets all steps of some run.
            let mut step = first % stride;
            first += 1;
            while crash(&ground, size, cause, fate, step) {
                (step, steps) = (step + stride, steps + 1);
            }
        }
    }
    assert!(steps > 0);
    println!("{steps} steps of {sizes:?} bytes were tried");
}

#[test]
fn a_node_that_ends_at_any_step_leaves_bytes_or_the_word_that_they_are_lost() {
    crash_at_every_step(true, &[1, 5000, (4 << 20) + 17]);
}

#[test]
fn the_same_where_the_pfs_has_no_attributes() {
    crash_at_every_step(false, &[1, 255, 256, 300, (4 << 20) + 17]);
}

/// A file that a node wrote in mode `memory` before it was killed.
fn lost_file(ground: &Ground, name: &str) -> Arc<Node> {
    let first = ground.node();
    let manner = Manner { created: true, memory: true, ..Manner::default() };
    let file = open(&first, &ground.path(name), Access::ReadWrite, manner).unwrap();
    file.write_at(0, &content(1, 8000)).unwrap();
    file.flush().unwrap();
    drop(file);
    first.stop();
    ground.node()
}

fn kind<T>(result: Result<T>) -> ErrorKind {
    result.err().expect("it is refused").kind()
}

#[test]
fn a_lost_file_stays_lost_to_all_but_who_empties_it() {
    for with_attributes in [true, false] {
        let ground = Ground::new(with_attributes);
        let node = lost_file(&ground, "f");
        let path = ground.path("f");
        let stub = std::fs::metadata(&path).unwrap().len();
        for access in [Access::Read, Access::Write, Access::ReadWrite] {
            for append in [false, access.writes()] {
                let manner = Manner { append, ..Manner::default() };
                assert_eq!(kind(open(&node, &path, access, manner)), ErrorKind::Lost);
            }
        }
        // A reader of what another open let go of by then, and who comes after `touch`.
        std::fs::File::options().write(true).open(&path).unwrap().set_modified(long_ago()).unwrap();
        assert_eq!(
            kind(open(&node, &path, Access::Write, Manner::default())),
            ErrorKind::Lost,
            "touched"
        );
        assert_eq!(std::fs::metadata(&path).unwrap().len(), stub, "nothing was written to it");
        let anew = Manner { truncate: true, ..Manner::default() };
        let writer = open(&node, &path, Access::ReadWrite, anew).unwrap();
        writer.write_at(0, b"new").unwrap();
        writer.flush().unwrap();
        drop(writer);
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        assert_eq!(attribute(&path), None);
        node.stop();
    }
}

fn long_ago() -> std::time::SystemTime {
    std::time::UNIX_EPOCH + std::time::Duration::from_secs(1)
}

/// `touch`, rsync and restores of times set those of stubs; nobody wrote to them.
#[test]
fn who_sets_the_times_of_a_stub_does_not_take_its_bytes_away() {
    for with_attributes in [true, false] {
        let ground = Ground::new(with_attributes);
        let node = ground.node();
        let path = ground.path("f");
        let manner = Manner { created: true, memory: true, ..Manner::default() };
        let writer = open(&node, &path, Access::ReadWrite, manner).unwrap();
        let mut bytes = content(1, 8000);
        writer.write_at(0, &bytes).unwrap();
        writer.flush().unwrap();
        let touch = || {
            let stub = std::fs::File::options().write(true).open(&path).unwrap();
            stub.set_modified(long_ago()).unwrap();
        };
        touch();
        let reader = open(&node, &path, Access::Read, Manner::default()).unwrap();
        assert!(read_all(&*reader).unwrap().0 == bytes);
        touch();
        writer.write_at(8000, b"more").unwrap();
        bytes.extend(b"more");
        touch();
        writer.flush().unwrap();
        touch();
        node.drain().unwrap();
        assert!(std::fs::read(&path).unwrap() == bytes, "attributes {with_attributes}");
        assert_eq!(attribute(&path), None);
        node.stop();
    }
}

/// Whoever asks the PFS how long a file is reads up to there: the mark may lag behind what grows,
/// and never be ahead of what was cut.
#[test]
fn a_stub_tells_no_more_bytes_than_its_readers_get() {
    for with_attributes in [true, false] {
        let ground = Ground::new(with_attributes);
        let node = ground.node();
        let path = ground.path("f");
        let told = || {
            let mark = attribute(&path).unwrap_or_else(|| std::fs::read(&path).unwrap());
            marked_length(&mark).unwrap()
        };
        let manner = Manner { created: true, memory: true, ..Manner::default() };
        let writer = open(&node, &path, Access::ReadWrite, manner).unwrap();
        writer.write_at(0, &content(1, 8000)).unwrap();
        writer.flush().unwrap();
        writer.write_at(8000, b"more").unwrap();
        assert_eq!(told(), 8000);
        writer.set_size(5).unwrap();
        assert_eq!(told(), 5, "cut, attributes {with_attributes}");
        writer.set_size(50).unwrap();
        writer.flush().unwrap();
        assert_eq!(told(), 50);
        let anew = Manner { truncate: true, memory: true, ..Manner::default() };
        let writer = open(&node, &path, Access::ReadWrite, anew).unwrap();
        assert_eq!(told(), 0, "emptied, attributes {with_attributes}");
        writer.write_at(0, b"new").unwrap();
        let reader = open(&node, &path, Access::Read, Manner::default()).unwrap();
        assert_eq!(read_all(&*reader).unwrap().0, b"new");
        writer.flush().unwrap();
        assert_eq!(told(), 3);
        node.drain().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        node.stop();
    }
}

/// What another program writes into a stub is its file, and the bytes in memory are not put over
/// it.
#[test]
fn what_another_program_writes_into_a_stub_is_kept() {
    for with_attributes in [true, false] {
        for spills in [true, false] {
            let ground = Ground::new(with_attributes);
            let node = ground.node();
            let path = ground.path("f");
            let manner = Manner { created: true, memory: true, ..Manner::default() };
            let writer = open(&node, &path, Access::ReadWrite, manner).unwrap();
            writer.write_at(0, &content(1, 8000)).unwrap();
            writer.flush().unwrap();
            // In mode `through`.
            let other = open(&node, &path, Access::ReadWrite, Manner::default()).unwrap();
            std::fs::write(&path, b"theirs").unwrap();
            if spills {
                node.drain().unwrap();
            } else {
                let reader = open(&node, &path, Access::Read, Manner::default()).unwrap();
                assert_eq!(read_all(&*reader).unwrap().0, b"theirs");
            }
            assert_eq!(std::fs::read(&path).unwrap(), b"theirs");
            assert_eq!(node.status().memory_only_files, 0);
            // What is gone is told to each that may write.
            assert_eq!(kind(other.write_at(6, b" and ours")), ErrorKind::Lost);
            assert_eq!(kind(writer.flush()), ErrorKind::Lost);
            node.resume();
            let other = open(&node, &path, Access::ReadWrite, Manner::default()).unwrap();
            // The old mark makes no stub of it later, when it has the length of one.
            other.write_at(6, b" and ours").unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"theirs and ours");
            other.set_size(0).unwrap();
            other.flush().unwrap();
            node.stop();
            let next = ground.node();
            let reader = open(&next, &path, Access::Read, Manner::default()).unwrap();
            assert_eq!(read_all(&*reader).unwrap().0, b"");
            next.stop();
        }
    }
}

/// Whoever may write a file whose bytes in memory gave way to another program's is told so by each
/// call, which changes nothing, until the file is opened again.
#[test]
fn what_a_stub_lost_to_another_program_is_told_to_each_writer() {
    type Call = fn(&dyn OpenFile) -> Result<()>;
    let calls: [Call; 6] = [
        |file| file.write_at(6, b" and ours").map(drop),
        |file| file.set_size(3),
        |file| file.allocate(0, 0, 9000),
        |file| file.sync(false),
        |file| file.sync(true),
        |file| file.flush(),
    ];
    for with_attributes in [true, false] {
        for call in calls {
            let ground = Ground::new(with_attributes);
            let node = ground.node();
            let path = ground.path("f");
            let manner = Manner { created: true, memory: true, ..Manner::default() };
            let writer = open(&node, &path, Access::ReadWrite, manner).unwrap();
            writer.write_at(0, &content(1, 8000)).unwrap();
            writer.flush().unwrap();
            let other = open(&node, &path, Access::Write, Manner::default()).unwrap();
            let reader = open(&node, &path, Access::Read, Manner::default()).unwrap();
            std::fs::write(&path, b"theirs").unwrap();
            assert_eq!(node.memory_only_size(writer.version().id, 6), None, "its length is theirs");
            let told = |call: Call| {
                for file in [&writer, &other] {
                    assert_eq!(kind(call(&**file)), ErrorKind::Lost);
                    assert_eq!(std::fs::read(&path).unwrap(), b"theirs");
                }
            };
            told(call);
            // A child may have heard the first, or the kernel may have made a short count of it.
            calls.into_iter().for_each(told);
            let later = open(&node, &path, Access::Write, Manner::default()).unwrap();
            for file in [&reader, &later] {
                file.sync(false).unwrap();
                file.flush().unwrap();
            }
            later.write_at(6, b" and ours").unwrap();
            later.flush().unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), b"theirs and ours");
            node.stop();
        }
    }
}

/// An open file whose bytes were dropped, or that became the stub of another node, is not written
/// to by those who have it open.
#[test]
fn an_open_file_is_never_written_into_a_stub() {
    let ground = Ground::new(true);
    let (one, two) = (ground.node(), ground.node());
    let path = ground.path("f");
    std::fs::write(&path, content(1, 8000)).unwrap();
    let ours = open(&one, &path, Access::ReadWrite, Manner::default()).unwrap();
    ours.write_at(0, b"ours").unwrap();
    let manner = Manner { truncate: true, memory: true, ..Manner::default() };
    let theirs = open(&two, &path, Access::ReadWrite, manner).unwrap();
    theirs.write_at(0, &content(2, 5000)).unwrap();
    theirs.flush().unwrap();
    for result in [ours.write_at(0, b"again").map(drop), ours.set_size(10), ours.set_size(0)] {
        assert_eq!(kind(result), ErrorKind::Lost);
    }
    assert_eq!(kind(ours.allocate(0, 0, 100)), ErrorKind::Lost);
    assert!(read_all(&*theirs).unwrap().0 == content(2, 5000));
    drop(ours);
    two.drain().unwrap();
    assert!(std::fs::read(&path).unwrap() == content(2, 5000));
    one.stop();
    two.stop();
}

#[test]
fn a_file_that_was_dropped_is_lost_also_to_who_has_it_open() {
    let fixture = Fixture::with(|config| {
        config.rules.push(scratch_rule("scratch"));
    });
    std::fs::create_dir(fixture.path("scratch")).unwrap();
    let writer = fixture.writer("scratch/f", Wish::default());
    writer.write_at(0, &content(1, 5 << 20)).unwrap();
    writer.flush().unwrap();
    let reader = fixture.open("scratch/f");
    fixture.node.admin(AdminRequest::Resize { size: MemorySize::Bytes(0) }, None, 0).unwrap();
    assert_eq!(fixture.node.status().memory_only_files, 0, "dropped");
    let mut buffer = [0; 10];
    assert_eq!(kind(reader.read_at(0, &mut buffer)), ErrorKind::Lost);
    assert_eq!(kind(writer.read_at(0, &mut buffer)), ErrorKind::Lost);
    assert_eq!(kind(writer.write_at(0, b"more")), ErrorKind::Lost);
    assert_eq!(kind(writer.set_size(100)), ErrorKind::Lost);
    assert_eq!(std::fs::metadata(fixture.path("scratch/f")).unwrap().len(), 0);
    let append = Wish { append: true, ..Wish::default() };
    assert_eq!(kind(fixture.try_open("scratch/f", Access::Write, append)), ErrorKind::Lost);
}
