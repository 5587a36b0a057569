//! Tests of memory-only files of which other nodes hold copies.

mod support;

use std::fs::File;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use support::nodes::*;
use support::{content, read_all, scratch_rule};
use tidepool_proto::admin::{AdminRequest, AdminService};
use tidepool_proto::cluster::CopiesStatus;
use tidepool_proto::config::NodeConfig;
use tidepool_proto::size::MemorySize;
use tidepool_proto::stub::{Mark, STUB_ATTRIBUTE, StubState, taken_attribute};
use tidepool_proto::{Access, ErrorKind, OpenFile};

/// Nodes that keep `copies` of each file in directory `d`.
fn nodes_with(count: usize, copies: u32, change: impl Fn(usize, &mut NodeConfig)) -> Nodes {
    let nodes = Nodes::with(count, |node: usize, config: &mut NodeConfig| {
        let mut rule = scratch_rule("d");
        (rule.expendable, rule.copies) = (false, copies);
        config.rules.push(rule);
        change(node, config);
    });
    nodes.wait_joined();
    std::fs::create_dir(nodes.pfs("d")).unwrap();
    nodes
}

fn nodes(count: usize, copies: u32) -> Nodes {
    nodes_with(count, copies, |_, _| ())
}

fn copies(nodes: &Nodes, node: usize) -> CopiesStatus {
    nodes.cluster(node).copies
}

/// The node dies with all that is in its memory: nothing is written back.
fn kill(nodes: &Nodes, node: usize) {
    nodes.nodes[node].stop();
}

fn is_stub(nodes: &Nodes, name: &str) -> bool {
    std::fs::metadata(nodes.pfs(name)).unwrap().len() == 0
}

/// Opens a file as a program does: where the file was replaced meanwhile, by its name again.
fn read(nodes: &Nodes, node: usize, name: &str) -> Vec<u8> {
    match nodes.try_open(node, name, Access::Read) {
        Ok(open) => read_all(&*open).unwrap().0,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
            nodes.read(node, name).0
        }
    }
}

#[test]
fn what_was_synced_survives_the_node_that_wrote_it() {
    let nodes = nodes(3, 2);
    let mut bytes = content(3, 3 * BLOCK as usize + 5);
    let file = nodes.create_in_memory(0, "d/file");
    file.write_at(0, &bytes).unwrap();
    file.sync(false).unwrap();
    // A hole, an overwrite, and a cut with new bytes behind it.
    file.write_at(BLOCK - 3, b"over").unwrap();
    file.sync(false).unwrap();
    file.set_size(2 * BLOCK + 100).unwrap();
    file.set_size(2 * BLOCK + 10_000).unwrap();
    file.write_at(3 * BLOCK + 7, b"end").unwrap();
    file.sync(false).unwrap();
    bytes[BLOCK as usize - 3..BLOCK as usize + 1].copy_from_slice(b"over");
    bytes.truncate(2 * BLOCK as usize + 100);
    bytes.resize(3 * BLOCK as usize + 7, 0);
    bytes.extend_from_slice(b"end");
    assert!(is_stub(&nodes, "d/file"));
    let held: Vec<u64> = (0..3).map(|node| copies(&nodes, node).held).collect();
    assert_eq!((held[0], held[1] + held[2]), (0, 1));
    // Not synced: it may be lost.
    file.write_at(0, b"later").unwrap();
    kill(&nodes, 0);
    until("the copy is in the place of the file", || !is_stub(&nodes, "d/file"));
    assert!(std::fs::read(nodes.pfs("d/file")).unwrap() == bytes, "without anybody who asks");
    until("it is freed", || (1..3).all(|node| copies(&nodes, node).held == 0));
    let mode = std::fs::metadata(nodes.pfs("d/file")).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o640);
    assert_eq!(std::fs::read_dir(nodes.pfs("d")).unwrap().count(), 1, "nothing is left beside it");
    assert!(nodes.read(1, "d/file").0 == bytes && nodes.read(2, "d/file").0 == bytes);
}

#[test]
fn a_file_that_is_opened_elsewhere_comes_from_whoever_has_it() {
    let nodes = nodes(3, 2);
    let bytes = content(4, 100_000);
    // From the node that wrote it, while it is there.
    let file = nodes.create_in_memory(0, "d/one");
    file.write_at(0, &bytes).unwrap();
    file.sync(false).unwrap();
    assert!(nodes.read(1, "d/one").0 == bytes && nodes.read(2, "d/one").0 == bytes);
    until("its copy is freed", || (0..3).all(|node| copies(&nodes, node).held == 0));
    assert_eq!(copies(&nodes, 0).missing, 0);
    // From who has the copy.
    let file = nodes.create_in_memory(0, "d/two");
    file.write_at(0, &bytes).unwrap();
    file.sync(false).unwrap();
    let names = ["d/two", "e/moved"];
    std::fs::create_dir(nodes.pfs("e")).unwrap();
    std::fs::rename(nodes.pfs(names[0]), nodes.pfs(names[1])).unwrap();
    // A file of a user, with the mark of the other: it tells nothing of where that one is.
    let mark = mark_of(&nodes, names[1]);
    File::create(nodes.pfs("d/forged")).unwrap();
    set_attribute(&nodes, "d/forged", STUB_ATTRIBUTE, mark.text().as_bytes());
    let explained = || {
        let answer = nodes.explain(1, names[1]);
        (answer.cached_as, answer.size_bytes, answer.holders)
    };
    let is_elsewhere = |name: &str| ("elsewhere".to_owned(), 100_000, vec![name.to_owned()]);
    assert_eq!(explained(), is_elsewhere(&mark.member));
    kill(&nodes, 0);
    until("the node is known to be gone", || {
        (1..3).all(|node| nodes.cluster(node).members[0].state != "alive")
    });
    assert_eq!(nodes.try_open(1, "d/forged", Access::Read).err().unwrap().kind(), ErrorKind::Lost);
    assert!(read(&nodes, 1, names[1]) == bytes, "also by a name that the holder was not told");
    assert!(read(&nodes, 2, names[1]) == bytes);
}

/// Without anybody who opens it: programs write a file beside its place and rename it.
#[test]
fn a_file_that_was_renamed_is_found_by_who_has_its_copy() {
    let nodes = nodes(2, 2);
    std::fs::create_dir(nodes.pfs("e")).unwrap();
    synced(&nodes, "d/.file.new", b"beside");
    synced(&nodes, "d/part", b"elsewhere");
    synced(&nodes, "d/removed", b"removed");
    synced(&nodes, "d/late", b"late");
    std::fs::rename(nodes.pfs("d/part"), nodes.pfs("e/part")).unwrap();
    // Its node tells that within seconds.
    std::thread::sleep(Duration::from_secs(5));
    std::fs::rename(nodes.pfs("d/.file.new"), nodes.pfs("d/file")).unwrap();
    std::fs::rename(nodes.pfs("d/late"), nodes.pfs("e/late")).unwrap();
    std::fs::remove_file(nodes.pfs("d/removed")).unwrap();
    kill(&nodes, 0);
    let there = [("d/file", b"beside".as_slice()), ("e/part", b"elsewhere"), ("e/late", b"late")];
    for (name, bytes) in there {
        until("the copy is in its place", || !is_stub(&nodes, name));
        assert_eq!(std::fs::read(nodes.pfs(name)).unwrap(), bytes);
    }
    assert_eq!(std::fs::read_dir(nodes.pfs("d")).unwrap().count(), 1, "nothing comes back");
    until("the copy of what was removed is freed", || copies(&nodes, 1).held == 0);
    nodes.nodes[1].drain().unwrap();
}

#[test]
fn where_a_copy_is_not_to_be_had_the_pfs_has_the_bytes() {
    let nodes = nodes(2, 2);
    let bytes = content(5, 100_000);
    let file = nodes.create_in_memory(0, "d/file");
    file.write_at(0, &bytes).unwrap();
    file.sync(false).unwrap();
    assert!(is_stub(&nodes, "d/file") && copies(&nodes, 1).held == 1);
    kill(&nodes, 1);
    file.write_at(0, b"more").unwrap();
    file.sync(false).unwrap();
    let expected = [b"more", &bytes[4..]].concat();
    assert!(std::fs::read(nodes.pfs("d/file")).unwrap() == expected);
    // The next one has nobody to hold it.
    until("the other one is known to be gone", || nodes.cluster(0).members[0].state != "alive");
    let file = nodes.create_in_memory(0, "d/next");
    file.write_at(0, &bytes).unwrap();
    file.sync(false).unwrap();
    assert!(std::fs::read(nodes.pfs("d/next")).unwrap() == bytes);
}

#[test]
fn a_file_whose_copy_went_is_written_back_without_a_sync() {
    let nodes = nodes(2, 2);
    let bytes = content(6, 100_000);
    let file = nodes.create_in_memory(0, "d/file");
    file.write_at(0, &bytes).unwrap();
    file.sync(false).unwrap();
    kill(&nodes, 1);
    until("it is written back", || !is_stub(&nodes, "d/file"));
    until("all of it", || std::fs::read(nodes.pfs("d/file")).unwrap() == bytes);
}

#[test]
fn a_node_that_was_cut_off_does_not_write_over_the_copy() {
    let nodes = nodes(2, 2);
    let bytes = content(7, 100_000);
    let file = nodes.create_in_memory(0, "d/file");
    file.write_at(0, &bytes).unwrap();
    file.sync(false).unwrap();
    let inode = std::fs::metadata(nodes.pfs("d/file")).unwrap().ino();
    file.write_at(0, b"unsynced").unwrap();
    // It goes on, and nobody hears of it.
    kill(&nodes, 0);
    until("the copy is in its place", || !is_stub(&nodes, "d/file"));
    assert_ne!(std::fs::metadata(nodes.pfs("d/file")).unwrap().ino(), inode);
    let writer = nodes.try_open(1, "d/file", Access::ReadWrite).unwrap();
    writer.write_at(0, b"newer").unwrap();
    writer.sync(false).unwrap();
    let error = file.sync(false).expect_err("what it wrote last is lost");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    let expected = [b"newer", &bytes[5..]].concat();
    assert!(std::fs::read(nodes.pfs("d/file")).unwrap() == expected);
}

fn mark_of(nodes: &Nodes, name: &str) -> Mark {
    let mut value = vec![0; 4096];
    let file = File::open(nodes.pfs(name)).unwrap();
    let length = rustix::fs::fgetxattr(&file, STUB_ATTRIBUTE, &mut value).unwrap();
    Mark::parse(&value[..length]).unwrap()
}

/// The copies that the mark of a stub names.
fn marked(nodes: &Nodes, name: &str) -> tidepool_proto::stub::Copies {
    mark_of(nodes, name).copies.unwrap()
}

fn set_attribute(nodes: &Nodes, name: &str, attribute: &str, value: &[u8]) {
    let file = File::options().write(true).open(nodes.pfs(name)).unwrap();
    rustix::fs::fsetxattr(&file, attribute, value, rustix::fs::XattrFlags::empty()).unwrap();
}

fn synced(nodes: &Nodes, name: &str, bytes: &[u8]) -> Arc<dyn OpenFile> {
    let file = nodes.create_in_memory(0, name);
    file.write_at(0, bytes).unwrap();
    file.sync(false).unwrap();
    file
}

#[test]
fn of_two_copies_one_takes_the_place_also_after_another_died_at_it() {
    let nodes = nodes(3, 3);
    let bytes = content(8, 100_000);
    for name in ["d/one", "d/two"] {
        synced(&nodes, name, &bytes);
    }
    assert!((1..3).all(|node| copies(&nodes, node).held == 2));
    let epoch = marked(&nodes, "d/two").epoch;
    // A holder that is gone had the right, and wrote a part of it.
    let inode = std::fs::metadata(nodes.pfs("d/two")).unwrap().ino();
    let beside = format!(".tidepool-copy-{epoch:016x}-{inode:x}-1234");
    let half = nodes.pfs(&format!("d/{beside}"));
    std::fs::write(&half, b"half").unwrap();
    let (number, born) = key_of(&half);
    let claim = format!("nobody:0123:{beside}:{number}.{born}:");
    let claim = sealed_claim(&nodes.pfs("d/two"), epoch, &claim);
    set_attribute(&nodes, "d/two", &taken_attribute(epoch, 1), &claim);
    kill(&nodes, 0);
    until("both are there", || !is_stub(&nodes, "d/one") && !is_stub(&nodes, "d/two"));
    until("all copies are freed", || (1..3).all(|node| copies(&nodes, node).held == 0));
    for name in ["d/one", "d/two"] {
        assert!(std::fs::read(nodes.pfs(name)).unwrap() == bytes, "{name}");
    }
    let placed: u64 = (1..3).map(|node| copies(&nodes, node).put_in_place).sum();
    assert_eq!(placed, 2, "each once");
    assert_eq!(
        std::fs::read_dir(nodes.pfs("d")).unwrap().count(),
        2,
        "nothing is left beside them"
    );
}

#[test]
fn what_the_node_itself_wrote_back_stays_where_it_died_before_it_said_so() {
    let nodes = nodes(2, 2);
    let file = synced(&nodes, "d/file", b"synced");
    let epoch = marked(&nodes, "d/file").epoch;
    // As it dies between its two last steps: all bytes are durable, and the mark is still there.
    let newer = b"written back, and newer than the copy";
    std::fs::write(nodes.pfs("d/file"), newer).unwrap();
    let mark = mark_of(&nodes, "d/file");
    let mark = Mark { state: StubState::Writing, ..mark }.text();
    set_attribute(&nodes, "d/file", STUB_ATTRIBUTE, mark.as_bytes());
    set_attribute(&nodes, "d/file", &taken_attribute(epoch, 1), b"owner");
    kill(&nodes, 0);
    until("its copy is freed", || copies(&nodes, 1).held == 0);
    assert_eq!(nodes.read(1, "d/file").0, newer);
    drop(file);
}

#[test]
fn a_node_that_wrote_back_all_leaves_no_right_behind() {
    let nodes = nodes(2, 2);
    let file = synced(&nodes, "d/file", b"one");
    let epoch = marked(&nodes, "d/file").epoch;
    assert_eq!(nodes.read(1, "d/file").0, b"one", "it is written back");
    let stub = File::open(nodes.pfs("d/file")).unwrap();
    let mut names = vec![0; 4096];
    let length = rustix::fs::flistxattr(&stub, &mut names).unwrap();
    let names = String::from_utf8_lossy(&names[..length]).into_owned();
    assert!(!names.contains("tidepool"), "{names}");
    // In memory alone again, it is another time.
    file.set_size(0).unwrap();
    file.write_at(0, b"two").unwrap();
    file.sync(false).unwrap();
    assert!(is_stub(&nodes, "d/file") && marked(&nodes, "d/file").epoch != epoch);
    kill(&nodes, 0);
    until("the copy is in its place", || !is_stub(&nodes, "d/file"));
    assert_eq!(read(&nodes, 1, "d/file"), b"two");
}

#[test]
fn a_holder_gives_back_what_it_holds_when_it_needs_the_memory_or_goes() {
    let nodes = nodes(2, 2);
    let bytes = content(9, 10 * BLOCK as usize);
    synced(&nodes, "d/one", &bytes);
    let held = copies(&nodes, 1).held_bytes;
    assert!(held >= 10 * BLOCK);
    let page = nodes.nodes[1].store().control_page();
    let counted = || page.memory_only_bytes.load(Ordering::Relaxed);
    until("the controller counts it", || {
        nodes.nodes[1].housekeep();
        counted() >= held
    });
    let shrink = AdminRequest::Resize { size: MemorySize::Bytes(BLOCK) };
    nodes.nodes[1].admin(shrink, None, 0).unwrap();
    until("the node of the file wrote it back", || !is_stub(&nodes, "d/one"));
    assert_eq!((copies(&nodes, 1).held, copies(&nodes, 1).held_bytes), (0, 0));
    // Now there is no room for another.
    synced(&nodes, "d/two", &bytes);
    assert!(std::fs::read(nodes.pfs("d/two")).unwrap() == bytes);
    synced(&nodes, "d/three", b"small");
    assert!(is_stub(&nodes, "d/three") || copies(&nodes, 0).missing == 2);
    nodes.nodes[1].drain().unwrap();
    assert!(!is_stub(&nodes, "d/three") && copies(&nodes, 1).held == 0);
    assert_eq!(nodes.read(0, "d/three").0, b"small");
}

#[test]
fn a_copy_takes_owner_mode_and_attributes_along_and_refuses_a_file_of_two_names() {
    let nodes = nodes(2, 2);
    synced(&nodes, "d/file", b"bytes");
    let path = nodes.pfs("d/file");
    set_attribute(&nodes, "d/file", "user.of.mine", b"value");
    std::os::unix::fs::chown(&path, Some(1234), Some(5678)).unwrap();
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o604)).unwrap();
    std::fs::hard_link(&path, nodes.pfs("d/other")).unwrap();
    kill(&nodes, 0);
    until("the node is known to be gone", || nodes.cluster(1).members[0].state != "alive");
    let error = nodes.try_open(1, "d/file", Access::Read).err().expect("it has two names");
    assert_eq!(error.kind(), ErrorKind::Lost);
    assert!(error.to_string().contains("it has 2 names"), "{error}");
    std::fs::remove_file(&path).unwrap();
    assert_eq!(read(&nodes, 1, "d/other"), b"bytes");
    let there = std::fs::metadata(nodes.pfs("d/other")).unwrap();
    assert_eq!((there.uid(), there.gid(), there.mode() & 0o7777), (1234, 5678, 0o604));
    let mut value = [0; 64];
    let file = File::open(nodes.pfs("d/other")).unwrap();
    let length = rustix::fs::fgetxattr(&file, "user.of.mine", &mut value).unwrap();
    assert_eq!(&value[..length], b"value");
}

#[test]
fn whenever_the_node_dies_a_reader_finds_what_was_synced_last_or_later() {
    for round in 0..6u64 {
        let nodes = nodes(2, 2);
        let file = nodes.create_in_memory(0, "d/file");
        let (synced, stop) = (AtomicU64::new(0), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let writer = scope.spawn(|| {
                // Each record is its number; the file is begun anew now and then.
                for number in 1..=u64::MAX {
                    let done = match number % 50 {
                        0 => file.set_size(0),
                        _ => file.write_at(number % 50 * 300_000, &number.to_le_bytes()).map(drop),
                    };
                    if stop.load(Ordering::Acquire) || done.is_err() || file.sync(false).is_err() {
                        return;
                    }
                    synced.store(number, Ordering::Release);
                }
            });
            std::thread::sleep(std::time::Duration::from_millis(40 + 37 * round));
            kill(&nodes, 0);
            // It goes on for a while, and nobody hears of it.
            std::thread::sleep(std::time::Duration::from_millis(5 * round));
            stop.store(true, Ordering::Release);
            writer.join().unwrap();
            let acknowledged = synced.load(Ordering::Acquire);
            assert!(acknowledged > 0, "the writer came nowhere");
            let bytes = read(&nodes, 1, "d/file");
            let record = |place: u64| {
                let at = place as usize * 300_000;
                bytes.get(at..at + 8).map_or(0, |it| u64::from_le_bytes(it.try_into().unwrap()))
            };
            let newest = (1..50).map(record).max().unwrap();
            // The next change, which nobody promised, may be the one that begins anew.
            let is_empty = acknowledged % 50 == 0 || acknowledged % 50 == 49;
            let wanted = if is_empty { 0 } else { acknowledged };
            assert!(newest >= wanted, "{newest} of {acknowledged} in round {round}");
        });
    }
}

#[test]
fn a_file_of_which_nothing_was_synced_is_empty_to_others() {
    let nodes = nodes(2, 2);
    // Written through first, and begun anew in memory by a truncation: the holder was told nothing.
    synced(&nodes, "d/file", b"old").set_size(0).unwrap();
    assert_eq!(nodes.read(1, "d/file").0, b"", "while its node is there");
    let file = nodes.try_open(0, "d/file", Access::ReadWrite).unwrap();
    file.set_size(0).unwrap();
    assert!(!marked(&nodes, "d/file").is_promised);
    kill(&nodes, 0);
    until("the node is known to be gone", || nodes.cluster(1).members[0].state != "alive");
    assert_eq!(read(&nodes, 1, "d/file"), b"");
    assert_eq!(std::fs::metadata(nodes.pfs("d/file")).unwrap().len(), 0);
    let writer = nodes.try_open(1, "d/file", Access::ReadWrite).unwrap();
    writer.write_at(0, b"new").unwrap();
    writer.sync(false).unwrap();
    // What its node wrote last is not the file any more.
    assert!(file.write_at(0, b"late").and_then(|_| file.sync(false)).is_err());
    assert_eq!(read(&nodes, 1, "d/file"), b"new");
}

/// A holder that did not hear yet that a file was written back leaves it alone when its node goes:
/// its readers are not told that it changed.
#[test]
fn a_copy_of_a_time_that_is_over_does_not_touch_the_file() {
    let nodes = nodes(3, 2);
    let names: Vec<String> = (0..4).map(|number| format!("d/{number}")).collect();
    names.iter().for_each(|name| drop(synced(&nodes, name, b"bytes")));
    names.iter().for_each(|name| assert_eq!(read(&nodes, 1, name), b"bytes"));
    kill(&nodes, 0);
    let changed = |name: &String| {
        let facts = std::fs::metadata(nodes.pfs(name)).unwrap();
        (facts.ctime(), facts.ctime_nsec(), facts.ino())
    };
    let before: Vec<_> = names.iter().map(changed).collect();
    until("copies are freed", || (1..3).all(|node| copies(&nodes, node).held == 0));
    let after: Vec<_> = names.iter().map(changed).collect();
    assert_eq!(before, after);
}
