//! Tests of the times of files that are in memory alone, and of the moment when their bytes come to
//! the PFS: a time that moved tells programs that a file changed.

mod support;

use std::fs::{File, FileTimes};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, SystemTime};

use support::content;
use support::hooked::{Call, Hooks, inode};
use support::nodes::*;
use tidepool_proto::stub::STUB_ATTRIBUTE;
use tidepool_proto::{Access, FileService, OpenFile};

const LENGTH: usize = 3 * BLOCK as usize;

fn modified(nodes: &Nodes, name: &str) -> SystemTime {
    std::fs::metadata(nodes.pfs(name)).unwrap().modified().unwrap()
}

fn create(nodes: &Nodes, name: &str) -> Arc<dyn OpenFile> {
    let file = nodes.create_in_memory(1, name);
    file.write_at(0, &content(2, LENGTH)).unwrap();
    file.flush().unwrap();
    file
}

fn set_modified(nodes: &Nodes, name: &str, time: SystemTime) {
    let file = File::options().write(true).open(nodes.pfs(name)).unwrap();
    file.set_times(FileTimes::new().set_modified(time)).unwrap();
}

/// Brings a file to the PFS, by an open on the other node.
fn bring(nodes: &Nodes, name: &str) {
    assert!(nodes.read(0, name).0 == content(2, LENGTH));
    assert_eq!(std::fs::metadata(nodes.pfs(name)).unwrap().len(), LENGTH as u64);
}

#[test]
fn a_file_keeps_its_time_when_it_is_written_back() {
    let nodes = Nodes::joined(2);
    drop(create(&nodes, "plain"));
    drop(create(&nodes, "set"));
    // As `cp -p` over a file that was there.
    let between = SystemTime::now() - Duration::from_millis(1);
    set_modified(&nodes, "set", between);
    let before = (modified(&nodes, "plain"), modified(&nodes, "set"));
    std::thread::sleep(Duration::from_millis(1200));
    for name in ["plain", "set"] {
        bring(&nodes, name);
    }
    assert_eq!((modified(&nodes, "plain"), modified(&nodes, "set")), before);
    // And it stays in the memory of its node.
    let read = nodes.pfs_read_bytes(1);
    assert!(nodes.read(1, "plain").0 == content(2, LENGTH));
    assert_eq!(nodes.pfs_read_bytes(1), read);
}

#[test]
fn a_file_that_is_written_for_a_while_has_the_time_of_its_close() {
    let nodes = Nodes::joined(2);
    let file = create(&nodes, "file");
    let first = modified(&nodes, "file");
    std::thread::sleep(Duration::from_millis(1200));
    file.write_at(7, &content(2, LENGTH)[7..9]).unwrap();
    file.flush().unwrap();
    let last = modified(&nodes, "file");
    assert!(last > first + Duration::from_secs(1));
    // A time that a program sets stays, until it is written again.
    set_modified(&nodes, "file", first);
    file.flush().unwrap();
    assert_eq!(modified(&nodes, "file"), first);
    drop(nodes.try_open(1, "file", Access::Read).unwrap());
    file.write_at(7, &content(2, LENGTH)[7..9]).unwrap();
    file.flush().unwrap();
    assert!(modified(&nodes, "file") > last);
    drop(file);
    let last = modified(&nodes, "file");
    bring(&nodes, "file");
    assert_eq!(modified(&nodes, "file"), last);
}

#[test]
fn a_time_that_is_set_amid_a_write_back_stays() {
    let hooks = Arc::<Hooks>::default();
    let nodes = Nodes::hooked(2, &hooks, |_| ());
    nodes.wait_joined();
    drop(create(&nodes, "file"));
    let number = std::fs::metadata(nodes.pfs("file")).unwrap().ino();
    let ((began, is_begun), (go, going)) = (mpsc::channel(), mpsc::channel::<()>());
    let (going, steps) = (std::sync::Mutex::new(going), AtomicU32::new(0));
    hooks.set(move |call, make| {
        make()?;
        // After the version behind the first write was asked for, before the next one.
        let order = Ordering::SeqCst;
        let is_next = |next, from| {
            let is_it = call == next && inode() == number;
            is_it && steps.compare_exchange(from, from + 1, order, order).is_ok()
        };
        if !is_next(Call::Write, 0) && is_next(Call::Version, 1) {
            began.send(()).unwrap();
            let _ = going.lock().unwrap().recv_timeout(Duration::from_secs(20));
        }
        Ok(())
    });
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000);
    std::thread::scope(|scope| {
        let opening = scope.spawn(|| nodes.read(0, "file").0);
        is_begun.recv_timeout(Duration::from_secs(20)).expect("it is written back");
        set_modified(&nodes, "file", old);
        go.send(()).unwrap();
        assert!(opening.join().unwrap() == content(2, LENGTH));
    });
    hooks.clear();
    assert_eq!(modified(&nodes, "file"), old);
}

#[test]
fn a_time_that_is_set_before_the_first_write_of_a_write_back_stays() {
    let hooks = Arc::<Hooks>::default();
    let nodes = Nodes::hooked(2, &hooks, |_| ());
    nodes.wait_joined();
    drop(create(&nodes, "file"));
    let number = std::fs::metadata(nodes.pfs("file")).unwrap().ino();
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(1_500_000_000);
    let (path, is_first) = (nodes.pfs("file"), AtomicBool::new(true));
    hooks.set(move |call, make| {
        make()?;
        if call == Call::SetSize && inode() == number && is_first.swap(false, Ordering::SeqCst) {
            let file = File::options().write(true).open(&path).unwrap();
            file.set_times(FileTimes::new().set_modified(old)).unwrap();
        }
        Ok(())
    });
    bring(&nodes, "file");
    hooks.clear();
    assert_eq!(modified(&nodes, "file"), old);
}

/// A program writes to the file when its mark has just gone, and sets its time back.
#[test]
fn a_change_behind_a_mark_that_goes_slowly_is_seen() {
    let hooks = Arc::<Hooks>::default();
    let nodes = Nodes::hooked(2, &hooks, |_| ());
    nodes.wait_joined();
    drop(create(&nodes, "file"));
    let (path, number) = (nodes.pfs("file"), std::fs::metadata(nodes.pfs("file")).unwrap().ino());
    let is_first = AtomicBool::new(true);
    hooks.set(move |call, make| {
        make()?;
        let is_marked = || rustix::fs::getxattr(&path, STUB_ATTRIBUTE, &mut [0; 4096]).is_ok();
        let is_it = call == Call::RemoveAttribute && inode() == number && !is_marked();
        if is_it && is_first.swap(false, Ordering::SeqCst) {
            let file = File::options().write(true).open(&path).unwrap();
            let before = file.metadata().unwrap().modified().unwrap();
            file.write_all_at(&content(3, LENGTH), 0).unwrap();
            file.set_times(FileTimes::new().set_modified(before)).unwrap();
            std::thread::sleep(Duration::from_millis(60));
        }
        Ok(())
    });
    // What is read amid that may be the file of before.
    nodes.read(0, "file");
    hooks.clear();
    for node in [0, 1] {
        assert!(nodes.read(node, "file").0 == content(3, LENGTH), "node {node}");
    }
}

/// The kernel holds the directory while a second name is made, whoever asks for it.
#[test]
fn a_second_name_does_not_wait_for_a_slow_pfs() {
    let hooks = Arc::<Hooks>::default();
    let nodes = Nodes::hooked(2, &hooks, |_| ());
    nodes.wait_joined();
    drop(create(&nodes, "file"));
    let number = std::fs::metadata(nodes.pfs("file")).unwrap().ino();
    let ((go, going), was_held) = (mpsc::channel::<()>(), Arc::new(AtomicBool::new(false)));
    let (going, held) = (std::sync::Mutex::new(Some(going)), was_held.clone());
    hooks.set(move |call, make| {
        if call == Call::Write
            && inode() == number
            && let Some(going) = going.lock().unwrap().take()
        {
            let gone = going.recv_timeout(Duration::from_secs(20));
            held.store(gone.is_ok(), Ordering::SeqCst);
        }
        make()
    });
    for node in [0, 1] {
        let file = File::open(nodes.pfs("file")).unwrap();
        nodes.nodes[node].bring_to_pfs(file.into(), 0).unwrap();
    }
    // Else it was held no more.
    go.send(()).unwrap();
    // It is brought there all the same.
    until("it is on the PFS", || std::fs::read(nodes.pfs("file")).unwrap() == content(2, LENGTH));
    assert!(was_held.load(Ordering::SeqCst), "it waited for the PFS");
}
