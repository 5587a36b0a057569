//! A node stands still, or dies, between two steps of putting its copy in the place of a file whose
//! node is gone, and others go on from there: what was promised is under the name of the file, and
//! nothing is left beside it.

mod support;

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::fs::{CWD, RenameFlags, XattrFlags, renameat_with, setxattr};
use support::hooked::{Call, Hooks, inode};
use support::nodes::*;
use support::scratch_rule;
use tidepool_proto::admin::{AdminRequest, AdminService};
use tidepool_proto::config::NodeConfig;
use tidepool_proto::stub::{Mark, STUB_ATTRIBUTE, taken_attribute};
use tidepool_proto::{Access, Error, ErrorKind, FileService, OpenFile, OpenRequest, WriteMode};

const OLD: &[u8] = b"what was synced";
const NEW: &[u8] = b"what was written later";

/// Nodes of which one writes and others have its copies.
fn nodes(count: usize, copies: u32) -> Nodes {
    hooked(&Arc::default(), count, copies)
}

/// Calls of all but the first one are hooked.
fn hooked(hooks: &Arc<Hooks>, count: usize, copies: u32) -> Nodes {
    let nodes = Nodes::hooked(count, hooks, |config: &mut NodeConfig| {
        let mut rule = scratch_rule("d");
        (rule.expendable, rule.copies) = (false, copies);
        config.rules.push(rule);
    });
    nodes.wait_joined();
    std::fs::create_dir(nodes.pfs("d")).unwrap();
    nodes
}

fn synced(nodes: &Nodes, name: &str) -> Arc<dyn OpenFile> {
    synced_by(nodes, 0, name)
}

fn synced_by(nodes: &Nodes, node: usize, name: &str) -> Arc<dyn OpenFile> {
    let file = nodes.create_in_memory(node, name);
    file.write_at(0, OLD).unwrap();
    file.sync(false).unwrap();
    file
}

/// A node that wrote its copy beside a stub, claimed the right, and stands still.
struct Stalled {
    stub: PathBuf,
    beside: PathBuf,
}

fn mark_of(nodes: &Nodes, name: &str) -> Mark {
    let mut value = vec![0; 4096];
    let length = rustix::fs::getxattr(nodes.pfs(name), STUB_ATTRIBUTE, &mut value).unwrap();
    Mark::parse(&value[..length]).unwrap()
}

impl Stalled {
    fn new(nodes: &Nodes, name: &str) -> Self {
        Self::of(nodes, name, "nobody")
    }

    fn of(nodes: &Nodes, name: &str, member: &str) -> Self {
        let stub = nodes.pfs(name);
        let epoch = mark_of(nodes, name).copies.unwrap().epoch;
        let number = std::fs::metadata(&stub).unwrap().ino();
        let beside = stub.with_file_name(format!(".tidepool-copy-{epoch:016x}-{number:x}-7"));
        std::fs::write(&beside, OLD).unwrap();
        let (inode, born) = key_of(&beside);
        let (file, name) = (beside.file_name().unwrap(), stub.file_name().unwrap());
        let claim = format!("{member}:0:{}:{inode}.{born}:{}", file.display(), name.display());
        let (attribute, claim) = (taken_attribute(epoch, 1), sealed_claim(&stub, epoch, &claim));
        setxattr(&stub, &*attribute, &claim, XattrFlags::CREATE).unwrap();
        Stalled { stub, beside }
    }

    /// Its copy takes the place of what is there.
    fn exchanges(self) -> Self {
        renameat_with(CWD, &self.beside, CWD, &self.stub, RenameFlags::EXCHANGE).unwrap();
        self
    }

    /// The same, where there is a copy still; what came out is put back, or removed, as it does.
    fn goes_on(&self) {
        match renameat_with(CWD, &self.beside, CWD, &self.stub, RenameFlags::EXCHANGE) {
            Err(errno) => assert_eq!(errno, rustix::io::Errno::NOENT),
            Ok(()) => std::fs::remove_file(&self.beside).unwrap(),
        }
    }
}

/// An open that empties a file and writes it through.
fn emptying(file: File) -> OpenRequest {
    let (access, write_mode) = (Access::ReadWrite, Some(WriteMode::Through));
    let plain = OpenRequest::to_read(file.into(), 0);
    OpenRequest { access, truncate: true, write_mode, ..plain }
}

fn held(nodes: &Nodes) -> u64 {
    (1..nodes.nodes.len()).map(|node| nodes.cluster(node).copies.held).sum()
}

fn on_pfs(nodes: &Nodes, name: &str) -> Vec<u8> {
    std::fs::read(nodes.pfs(name)).unwrap()
}

fn nothing_is_left_beside(nodes: &Nodes) {
    for entry in std::fs::read_dir(nodes.pfs("d")).unwrap() {
        let name = entry.unwrap().file_name().into_string().unwrap();
        assert!(!name.contains("tidepool"), "{name}");
    }
}

#[test]
fn who_stood_still_after_its_exchange_is_done_for_all_others() {
    let nodes = nodes(3, 3);
    drop(synced(&nodes, "d/file"));
    nodes.nodes[0].stop();
    let stalled = Stalled::new(&nodes, "d/file").exchanges();
    until("no copy is needed", || held(&nodes) == 0);
    assert_eq!(on_pfs(&nodes, "d/file"), OLD);
    nothing_is_left_beside(&nodes);
    assert!(!stalled.beside.exists(), "it finds nothing to go on with");
    assert_eq!(nodes.read(1, "d/file").0, OLD);
}

#[test]
fn who_stood_still_before_its_exchange_is_kept_from_it() {
    let nodes = nodes(3, 2);
    for name in ["d/file", "d/renewed"] {
        drop(synced(&nodes, name));
    }
    nodes.nodes[0].stop();
    let stalled = ["d/file", "d/renewed"].map(|name| Stalled::new(&nodes, name));
    until("the copies are in their places", || held(&nodes) == 0);
    std::fs::write(nodes.pfs("d/renewed"), NEW).unwrap();
    stalled.iter().for_each(Stalled::goes_on);
    assert_eq!(on_pfs(&nodes, "d/file"), OLD);
    assert_eq!(on_pfs(&nodes, "d/renewed"), NEW);
    nothing_is_left_beside(&nodes);
}

#[test]
fn the_node_of_a_file_that_was_exchanged_promises_nothing_of_it() {
    let nodes = nodes(2, 2);
    let file = synced(&nodes, "d/file");
    // The holder goes with its copy, so that the next sync has to write the file back.
    nodes.nodes[1].stop();
    let _stalled = Stalled::new(&nodes, "d/file").exchanges();
    let synced = file.write_at(0, NEW).and_then(|_| file.sync(false));
    let error = synced.expect_err("its bytes would be in a file without a name");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    assert_eq!(on_pfs(&nodes, "d/file"), OLD);
    nothing_is_left_beside(&nodes);
}

#[test]
fn an_open_that_empties_a_stub_that_was_exchanged_is_led_to_the_file() {
    let nodes = nodes(3, 2);
    drop(synced(&nodes, "d/file"));
    let holder = (1..3).find(|node| nodes.cluster(*node).copies.held > 0).unwrap();
    let open = || File::options().read(true).write(true).open(nodes.pfs("d/file")).unwrap();
    let stub = open();
    nodes.nodes[0].stop();
    let _stalled = Stalled::new(&nodes, "d/file").exchanges();
    let node = &nodes.nodes[3 - holder];
    let emptied = |file: File| node.open(emptying(file));
    let error = emptied(stub).map(drop).expect_err("it is not the file any more");
    assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
    let file = emptied(open()).unwrap();
    file.set_size(0).unwrap();
    file.write_at(0, NEW).unwrap();
    file.sync(false).unwrap();
    until("no copy is needed", || held(&nodes) == 0);
    assert_eq!(on_pfs(&nodes, "d/file"), NEW);
    nothing_is_left_beside(&nodes);
}

/// Before its exchange, that is, and after its last look.
#[test]
fn what_another_program_did_just_before_the_exchange_goes_back() {
    let nodes = nodes(2, 2);
    let names = ["d/written", "d/replaced", "d/directory"];
    names.iter().for_each(|name| drop(synced(&nodes, name)));
    let moved = nodes.pfs("moved");
    nodes.nodes[0].stop();
    let stalled = names.map(|name| Stalled::new(&nodes, name));
    let stub = File::options().write(true).open(&stalled[0].stub).unwrap();
    stub.write_all_at(NEW, 0).unwrap();
    std::fs::write(&moved, NEW).unwrap();
    std::fs::rename(&moved, &stalled[1].stub).unwrap();
    std::fs::remove_file(&stalled[2].stub).unwrap();
    std::fs::create_dir(&stalled[2].stub).unwrap();
    let [written, _replaced, _directory] = stalled.map(Stalled::exchanges);
    assert_eq!(on_pfs(&nodes, "d/written"), OLD, "for a moment");
    until("no copy is needed", || held(&nodes) == 0);
    assert_eq!(on_pfs(&nodes, "d/written"), NEW);
    assert!(!written.beside.exists());
}

#[test]
fn a_mark_that_a_user_made_frees_no_copy_of_another_file() {
    let nodes = nodes(3, 2);
    drop(synced(&nodes, "d/file"));
    let mut value = vec![0; 4096];
    let length = rustix::fs::getxattr(nodes.pfs("d/file"), STUB_ATTRIBUTE, &mut value).unwrap();
    // A file of two names stays in memory.
    std::fs::hard_link(nodes.pfs("d/file"), nodes.pfs("d/other")).unwrap();
    nodes.nodes[0].stop();
    let forged = nodes.pfs("forged");
    // Of a node that is not there, with copies on another one.
    let mark = String::from_utf8(value[..length].to_vec()).unwrap();
    let word = |word: &str| match word.split_once('=') {
        Some(("member", _)) => "member=zz".to_owned(),
        Some(("copies", copies)) => {
            format!("copies={}:zz:synced", copies.split(':').next().unwrap())
        }
        _ => word.to_owned(),
    };
    let mark = mark.split(' ').map(word).collect::<Vec<_>>().join(" ");
    for node in 1..3 {
        let _ = std::fs::remove_file(&forged);
        std::fs::write(&forged, b"").unwrap();
        setxattr(&forged, STUB_ATTRIBUTE, mark.as_bytes(), XattrFlags::CREATE).unwrap();
        let open = || File::options().read(true).write(true).open(&forged).unwrap();
        let emptied = nodes.nodes[node].open(emptying(open()));
        let error = emptied.map(drop).expect_err("an empty file took its place");
        assert_eq!(error.kind(), ErrorKind::Changed);
        drop(nodes.nodes[node].open(emptying(open())).unwrap());
        assert_eq!(held(&nodes), 1, "node {node}");
    }
    std::fs::remove_file(nodes.pfs("d/other")).unwrap();
    until("the copy is in its place", || on_pfs(&nodes, "d/file") == OLD);
}

#[test]
fn who_was_started_anew_does_not_keep_others_from_a_file() {
    let nodes = nodes(3, 2);
    drop(synced(&nodes, "d/file"));
    let other = (1..3).find(|node| nodes.cluster(*node).copies.held == 0).unwrap();
    nodes.nodes[0].stop();
    let _claimed = Stalled::of(&nodes, "d/file", &format!("n{other}"));
    until("the copy is in its place", || held(&nodes) == 0);
    assert_eq!(on_pfs(&nodes, "d/file"), OLD);
    nothing_is_left_beside(&nodes);
}

#[test]
fn a_file_that_is_renamed_while_it_is_written_back_is_not_taken_for_replaced() {
    let hooks = Arc::<Hooks>::default();
    let nodes = hooked(&hooks, 2, 2);
    drop(synced_by(&nodes, 1, "d/file"));
    let (names, count) = (["d/file", "d/other"].map(|name| nodes.pfs(name)), AtomicU64::new(0));
    hooks.set(move |call, make| {
        make()?;
        // As soon as a name is told another one holds; not for ever.
        if call == Call::Name && count.fetch_add(1, Ordering::SeqCst) < 12 {
            let _ = std::fs::rename(&names[0], &names[1])
                .or_else(|_| std::fs::rename(&names[1], &names[0]));
        }
        Ok(())
    });
    nodes.nodes[0].stop();
    let there = || ["d/file", "d/other"].into_iter().find(|name| nodes.pfs(name).exists());
    until("it is written back", || there().is_some_and(|name| on_pfs(&nodes, name) == OLD));
    hooks.clear();
    assert_eq!(nodes.read(1, there().unwrap()).0, OLD);
}

#[test]
fn memory_of_a_removed_file_is_freed_where_the_pfs_takes_nothing_for_it() {
    let hooks = Arc::<Hooks>::default();
    let nodes = hooked(&hooks, 2, 2);
    drop(synced_by(&nodes, 1, "d/file"));
    let removed = std::fs::metadata(nodes.pfs("d/file")).unwrap().ino();
    std::fs::remove_file(nodes.pfs("d/file")).unwrap();
    // As GlusterFS answers.
    let changes = [Call::GetAttribute, Call::SetAttribute, Call::SetSize, Call::Write];
    hooks.set(move |call, make| match inode() == removed && changes.contains(&call) {
        true => Err(Error::pfs("changing it", std::io::Error::from_raw_os_error(libc::ESTALE))),
        false => make(),
    });
    let files = || nodes.nodes[1].status().memory_only_files;
    until("it is freed", || files() == 0);
    nodes.nodes[1].drain().unwrap();
}

#[test]
fn a_file_whose_first_name_was_removed_is_found_by_its_other_one() {
    let nodes = nodes(2, 2);
    let file = synced(&nodes, "d/file");
    std::fs::hard_link(nodes.pfs("d/file"), nodes.pfs("d/other")).unwrap();
    std::fs::remove_file(nodes.pfs("d/file")).unwrap();
    // The holder goes, after one that is gone had claimed it.
    let _stalled = Stalled::new(&nodes, "d/other");
    nodes.nodes[1].stop();
    file.write_at(0, NEW).and_then(|_| file.sync(false)).unwrap();
    assert_eq!(on_pfs(&nodes, "d/other"), NEW);
    nothing_is_left_beside(&nodes);
}

#[test]
fn a_file_that_a_user_calls_like_a_copy_is_a_file_like_any_other() {
    let nodes = nodes(3, 2);
    for name in ["d/.tidepool-copy-mine", "d/.tidepool-copy-other"] {
        drop(synced(&nodes, name));
    }
    assert_eq!(nodes.read(2, "d/.tidepool-copy-mine").0, OLD);
    nodes.nodes[0].drain().unwrap();
    assert_eq!(on_pfs(&nodes, "d/.tidepool-copy-other"), OLD);
}

#[test]
fn who_failed_to_put_its_copy_in_place_keeps_nobody_waiting() {
    let nodes = nodes(3, 2);
    let file = synced(&nodes, "d/file");
    let epoch = mark_of(&nodes, "d/file").copies.unwrap().epoch;
    let path = nodes.pfs("d/file");
    setxattr(&path, &*taken_attribute(epoch, 1), b"failed n2", XattrFlags::CREATE).unwrap();
    drop(file);
    assert_eq!(nodes.read(1, "d/file").0, OLD);
}

/// Claims of two holders that fail again and again take little of what an inode has for attributes.
#[test]
fn who_fails_again_and_again_leaves_little_on_the_pfs() {
    let hooks = Arc::<Hooks>::default();
    let nodes = hooked(&hooks, 3, 2);
    let file = synced(&nodes, "d/file");
    let holder = (1..3).find(|node| nodes.cluster(*node).copies.held == 1).unwrap();
    let epoch = mark_of(&nodes, "d/file").copies.unwrap().epoch;
    // As another holder left them.
    let path = nodes.pfs("d/file");
    for number in 1..20 {
        let name = taken_attribute(epoch, number);
        setxattr(&path, &*name, b"failed n9", XattrFlags::CREATE).unwrap();
    }
    // The last one is its own: it takes that up again.
    let own = format!("failed n{holder}");
    setxattr(&path, &*taken_attribute(epoch, 20), own.as_bytes(), XattrFlags::CREATE).unwrap();
    // So no further attribute is made.
    let number = std::fs::metadata(&path).unwrap().ino();
    let found = Arc::new(AtomicU64::new(0));
    let (most, stub) = (found.clone(), path.clone());
    hooks.set(move |call, make| {
        let made = make();
        if inode() == number && call == Call::SetAttribute {
            let next = rustix::fs::getxattr(&stub, &*taken_attribute(epoch, 21), &mut [0; 512]);
            most.fetch_max(20 + u64::from(next.is_ok()), Ordering::SeqCst);
        }
        made
    });
    drop(file);
    nodes.nodes[0].stop();
    until("the copy is in its place", || held(&nodes) == 0);
    assert_eq!((on_pfs(&nodes, "d/file"), found.load(Ordering::SeqCst)), (OLD.to_vec(), 20));
    nothing_is_left_beside(&nodes);
}

#[test]
fn a_mark_that_cannot_be_read_once_costs_no_byte_of_a_file_that_is_written_back() {
    let hooks = Arc::<Hooks>::default();
    let nodes = hooked(&hooks, 2, 2);
    for (failing, errno) in (0..12).flat_map(|at| [libc::EIO, libc::ESTALE].map(|it| (at, it))) {
        let name = format!("d/file-{failing}-{errno}");
        drop(synced_by(&nodes, 1, &name));
        let number = std::fs::metadata(nodes.pfs(&name)).unwrap().ino();
        let asked = AtomicU64::new(0);
        hooks.set(move |call, make| {
            let is_it = inode() == number && call == Call::GetAttribute;
            match is_it && asked.fetch_add(1, Ordering::SeqCst) == failing {
                true => Err(Error::pfs("asking", std::io::Error::from_raw_os_error(errno))),
                false => make(),
            }
        });
        let flush = || {
            let file = File::open(nodes.pfs(&name)).unwrap().into();
            nodes.nodes[1].admin(AdminRequest::Flush, Some(file), 0)
        };
        let _ = flush();
        hooks.clear();
        flush().unwrap();
        assert_eq!(on_pfs(&nodes, &name), OLD, "{failing} {errno}");
        assert_eq!(nodes.read(0, &name).0, OLD, "{failing} {errno}");
    }
    until("no copy is left", || held(&nodes) == 0);
}

/// A ticket that ran out, or identities that a PFS maps: to root nothing is hidden otherwise.
#[test]
fn a_mark_that_cannot_be_read_is_not_taken_for_none() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    for errno in [libc::EACCES, libc::EPERM] {
        let hooks = Arc::<Hooks>::default();
        let nodes = hooked(&hooks, 3, 2);
        let file = synced(&nodes, "d/file");
        let number = std::fs::metadata(nodes.pfs("d/file")).unwrap().ino();
        hooks.set(move |call, make| match inode() == number && call == Call::GetAttribute {
            true => Err(Error::pfs("asking", std::io::Error::from_raw_os_error(errno))),
            false => make(),
        });
        let error = nodes.try_open(1, "d/file", Access::ReadWrite).map(drop).unwrap_err();
        assert_eq!(error.errno(), errno, "an open is told, and finds no empty file");
        // Nor do holders throw their copies away.
        drop(file);
        nodes.nodes[0].stop();
        std::thread::sleep(std::time::Duration::from_secs(4));
        assert_eq!(held(&nodes), 1);
        hooks.clear();
        until("the copy is in its place", || held(&nodes) == 0);
        assert_eq!(on_pfs(&nodes, "d/file"), OLD);
    }
}

#[test]
fn a_new_file_of_the_number_of_a_copy_is_no_copy() {
    let nodes = nodes(2, 2);
    drop(synced(&nodes, "d/file"));
    let stalled = Stalled::new(&nodes, "d/file");
    // A program wrote to the stub in the moment before the exchange.
    std::fs::write(&stalled.stub, b"in between").unwrap();
    let stalled = stalled.exchanges();
    // The number of the copy is that of a file which was made and renamed to the name since.
    let (inode, born) = key_of(&stalled.stub);
    let epoch =
        mark_of(&nodes, stalled.beside.strip_prefix(nodes.pfs("")).unwrap().to_str().unwrap());
    let epoch = epoch.copies.unwrap().epoch;
    let beside = stalled.beside.file_name().unwrap().display();
    let claim = format!("nobody:0:{beside}:{inode}.{}:file", born - 1);
    let name = taken_attribute(epoch, 1);
    let claim = sealed_claim(&stalled.beside, epoch, &claim);
    setxattr(&stalled.beside, &*name, &claim, XattrFlags::REPLACE).unwrap();
    std::fs::write(&stalled.stub, NEW).unwrap();
    nodes.nodes[0].stop();
    until("no copy is needed", || held(&nodes) == 0);
    assert_eq!(on_pfs(&nodes, "d/file"), NEW);
}

#[test]
fn a_claim_that_a_user_made_up_moves_no_file() {
    let nodes = nodes(2, 2);
    drop(synced(&nodes, "d/file"));
    let stub = nodes.pfs("d/file");
    // Another one's file, and one of the user's, which is to take its place.
    std::fs::write(nodes.pfs("d/secret"), OLD).unwrap();
    let epoch = mark_of(&nodes, "d/file").copies.unwrap().epoch;
    let number = std::fs::metadata(&stub).unwrap().ino();
    let planted = stub.with_file_name(format!(".tidepool-copy-{epoch:016x}-{number:x}-1"));
    std::fs::write(&planted, NEW).unwrap();
    let (inode, born) = key_of(&nodes.pfs("d/secret"));
    let words = format!("zz:0:{}:{inode}.{born}:secret", planted.file_name().unwrap().display());
    let forged = [&b"0".repeat(64)[..], b":", words.as_bytes()].concat();
    setxattr(&stub, &*taken_attribute(epoch, 1), &forged, XattrFlags::CREATE).unwrap();
    nodes.nodes[0].stop();
    until("the copy is in its place", || held(&nodes) == 0);
    assert_eq!(on_pfs(&nodes, "d/secret"), OLD);
    assert_eq!(on_pfs(&nodes, "d/file"), OLD);
}

/// The file is given up to the copy while the sync waits for its turn.
#[test]
fn a_sync_that_waits_while_a_file_is_given_up_tells_that_bytes_are_lost() {
    let hooks = Arc::<Hooks>::default();
    let nodes = hooked(&hooks, 3, 2);
    let file = synced_by(&nodes, 1, "d/file");
    file.write_at(0, NEW).unwrap();
    let stalled = Stalled::new(&nodes, "d/file");
    let number = std::fs::metadata(&stalled.stub).unwrap().ino();
    stalled.exchanges();
    let (begun, goes_on) = (Arc::<AtomicBool>::default(), Arc::<AtomicBool>::default());
    hooks.set({
        let (begun, goes_on) = (begun.clone(), goes_on.clone());
        move |call, make| {
            // The write-back asks for the version under the gate.
            if call == Call::Version && inode() == number && !begun.swap(true, Ordering::SeqCst) {
                until("the sync waits", || goes_on.load(Ordering::SeqCst));
            }
            make()
        }
    });
    let synced: Result<(), Error> = std::thread::scope(|scope| {
        scope.spawn(|| {
            nodes.nodes[1].admin(AdminRequest::FlushAll { forgets_missing: false }, None, 0)
        });
        until("it is being written back", || begun.load(Ordering::SeqCst));
        let sync = scope.spawn(|| file.sync(false));
        std::thread::sleep(Duration::from_millis(300));
        goes_on.store(true, Ordering::SeqCst);
        sync.join().unwrap()
    });
    assert_eq!(synced.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(on_pfs(&nodes, "d/file"), OLD);
}
