//! Another program writes into a stub between any two steps that the node makes on the PFS.

mod support;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use support::hooked::{Call, HookedStore, Hooks};
use support::*;
use tidepool_node::Node;
use tidepool_pfs::{LowerStore, PosixOptions, PosixStore};
use tidepool_proto::stub::STUB_ATTRIBUTE;
use tidepool_proto::{Error, ErrorKind, FileService, OpenFile, OpenRequest, Result, WriteMode};

type Step = fn(&dyn OpenFile) -> Result<()>;

const CALLS: [(&str, Step); 5] = [
    ("close", |file| file.flush()),
    ("fsync", |file| file.sync(false)),
    ("shorter", |file| file.set_size(3)),
    ("longer", |file| file.set_size(9000)),
    ("write", |file| file.write_at(8000, b"more").map(drop)),
];

/// That call or the next tells it, and nothing is written over what the other program wrote.
#[test]
fn what_another_program_writes_amid_a_call_is_kept_and_told() {
    let mut steps = 0;
    for (name, call) in CALLS {
        // The first time a stub is made durable, and later.
        for was_recorded in [false, true] {
            while amid(name, call, was_recorded, steps) {
                steps += 1;
            }
            assert!(steps > 0, "{name} asks the PFS nothing");
            steps = 0;
        }
    }
}

/// False where the call ended before so many steps.
fn amid(name: &str, call: Step, was_recorded: bool, step: u64) -> bool {
    let case = format!("{name}, recorded {was_recorded}, after step {step}");
    let (directory, path) = directory_of_one();
    let (node, hooks) = node_over(directory.path());
    let file = written(&node, &path);
    if was_recorded {
        file.flush().unwrap();
        file.write_at(0, &content(2, 8000)).unwrap();
    }
    let (made, theirs) = (Arc::new(AtomicU64::new(0)), path.clone());
    let counter = made.clone();
    hooks.set(move |_, make| {
        make()?;
        if counter.fetch_add(1, Ordering::SeqCst) == step {
            std::fs::write(&theirs, b"theirs").unwrap();
        }
        Ok(())
    });
    let called = call(&*file);
    let came = made.load(Ordering::SeqCst) > step;
    hooks.clear();
    if came {
        for told in [called.and_then(|()| file.flush()), file.sync(false), file.flush()] {
            assert_eq!(told.map_err(|error| error.kind()), Err(ErrorKind::Lost), "{case}");
        }
        node.drain().unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"theirs", "{case}");
    }
    node.stop();
    came
}

/// Its bytes are on the PFS by then; nothing was lost, and nothing old is read.
#[test]
fn what_another_program_writes_when_a_file_was_just_written_back_is_read() {
    let mut steps = 0;
    for theirs in [content(3, 8000), content(4, 9000)] {
        let mut step = 0;
        while after_the_mark_went(&theirs, step) {
            (step, steps) = (step + 1, steps + 1);
        }
    }
    assert!(steps > 2, "steps follow the one that takes the mark off");
}

/// False where the write-back ended before so many steps.
fn after_the_mark_went(theirs: &[u8], step: u64) -> bool {
    let (directory, path) = directory_of_one();
    let (node, hooks) = node_over(directory.path());
    let file = written(&node, &path);
    file.flush().unwrap();
    // A node that stands still for longer than time stamps are racy.
    let (count, came) = (AtomicU64::new(0), Arc::new(AtomicBool::new(false)));
    let (written, target, theirs_too) = (came.clone(), path.clone(), theirs.to_vec());
    hooks.set(move |call, make| {
        make()?;
        let is_gone = call == Call::RemoveAttribute || count.load(Ordering::SeqCst) > 0;
        if is_gone && count.fetch_add(1, Ordering::SeqCst) == step {
            std::thread::sleep(std::time::Duration::from_millis(20));
            overwrite(&target, 0, &theirs_too);
            std::thread::sleep(std::time::Duration::from_millis(200));
            written.store(true, Ordering::SeqCst);
        }
        Ok(())
    });
    node.drain().unwrap();
    hooks.clear();
    node.resume();
    let came = came.load(Ordering::SeqCst);
    if came {
        let open = open_to_read(&node, &path);
        assert!(read_all(&*open).unwrap().0 == theirs, "after step {step}");
        assert_eq!(file.flush().map_err(|error| error.kind()), Ok(()), "nothing was lost");
    }
    node.stop();
    came
}

fn open_to_read(node: &Arc<Node>, path: &std::path::Path) -> Arc<dyn OpenFile> {
    let descriptor = std::fs::File::open(path).unwrap().into();
    node.open(OpenRequest::to_read(descriptor, 0)).unwrap()
}

/// A write-back fails and leaves a stub; the other program writes to it before the node has looked
/// at what it left.
#[test]
fn what_another_program_writes_after_a_failed_write_down_is_kept() {
    let (directory, path) = directory_of_one();
    let (node, hooks) = node_over(directory.path());
    let file = written(&node, &path);
    file.flush().unwrap();
    let (failed, wrote) = (AtomicBool::new(false), Arc::new(AtomicBool::new(false)));
    let (theirs, seen) = (path.clone(), wrote.clone());
    hooks.set(move |call, make| {
        if call == Call::Write && !failed.swap(true, Ordering::SeqCst) {
            return Err(Error::pfs("writing", std::io::Error::from_raw_os_error(libc::EIO)));
        }
        make()?;
        let is_stub_again = call == Call::SetAttribute && failed.load(Ordering::SeqCst);
        if is_stub_again && is_held(&theirs) && !seen.swap(true, Ordering::SeqCst) {
            std::fs::write(&theirs, b"theirs").unwrap();
        }
        Ok(())
    });
    node.drain().unwrap_err();
    hooks.clear();
    assert!(wrote.load(Ordering::SeqCst), "the stub is made again");
    assert_eq!(file.flush().unwrap_err().kind(), ErrorKind::Lost);
    node.drain().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"theirs");
    node.stop();
}

fn is_held(path: &std::path::Path) -> bool {
    let mut mark = [0; 512];
    let length = rustix::fs::getxattr(path, STUB_ATTRIBUTE, &mut mark[..]).unwrap();
    String::from_utf8_lossy(&mark[..length]).contains("state=held")
}

fn directory_of_one() -> (tempfile::TempDir, std::path::PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("f");
    (directory, path)
}

/// A new file of 8000 bytes that were not synced.
fn written(node: &Arc<Node>, path: &std::path::Path) -> Arc<dyn OpenFile> {
    let file = open_as_created(node, path).unwrap();
    file.write_at(0, &content(1, 8000)).unwrap();
    file
}

fn node_over(directory: &std::path::Path) -> (Arc<Node>, Arc<Hooks>) {
    let posix = PosixStore::open(directory, PosixOptions::default()).unwrap();
    let hooks = Arc::new(Hooks::default());
    let features = posix.features().clone();
    let store = Arc::new(HookedStore { inner: posix, features, hooks: hooks.clone() });
    (Node::start_over(config(directory, |_| ()), store).unwrap(), hooks)
}

/// What a reader asks for goes while it is being read, and comes again.
#[test]
fn a_read_beside_a_file_that_is_emptied_and_written_anew_finds_no_zeros() {
    const ROUNDS: usize = 200;
    let fixture = Fixture::new();
    let bytes = vec![0xaa; 8 * BLOCK as usize];
    let wish = Wish { write: Some(WriteMode::Memory), ..Wish::default() };
    let writer = fixture.writer("file", wish);
    writer.write_at(0, &bytes).unwrap();
    let reader = fixture.open("file");
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let reading = scope.spawn(|| {
            let (mut buffer, mut reads) = (vec![0; bytes.len()], 0);
            while !is_over.load(Ordering::SeqCst) {
                let read = reader.read_at(0, &mut buffer).unwrap().bytes;
                assert!(buffer[..read].iter().all(|byte| *byte == 0xaa), "read {reads}");
                reads += 1;
            }
            reads
        });
        for _ in 0..ROUNDS {
            writer.set_size(0).unwrap();
            writer.write_at(0, &bytes).unwrap();
        }
        is_over.store(true, Ordering::SeqCst);
        assert!(reading.join().unwrap() > 0);
    });
}
