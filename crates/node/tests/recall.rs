//! Tests of files of write mode `memory` that are opened on another node than the one that holds
//! their bytes.

mod support;

use std::fs::File;
use std::sync::Arc;
use std::time::{Duration, Instant};

use support::hooked::{Call, Hooks};
use support::nodes::*;
use support::{content, read_all, scratch_rule};
use tidepool_proto::config::NodeConfig;
use tidepool_proto::stub::STUB_ATTRIBUTE;
use tidepool_proto::{Access, ErrorKind, OpenFile};

/// Creates a file in the memory of a node alone; the open that writes it.
fn create(nodes: &Nodes, node: usize, name: &str, bytes: &[u8]) -> Arc<dyn OpenFile> {
    let file = nodes.create_in_memory(node, name);
    file.write_at(0, bytes).unwrap();
    file.sync(false).unwrap();
    assert_eq!(std::fs::metadata(nodes.pfs(name)).unwrap().len(), 0, "it is a stub");
    file
}

fn memory_only_files(nodes: &Nodes, node: usize) -> u64 {
    nodes.nodes[node].status().memory_only_files
}

fn error_of(nodes: &Nodes, node: usize, name: &str) -> String {
    let error = nodes.try_open(node, name, Access::Read).err().expect("it is refused");
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    error.to_string()
}

#[test]
fn a_file_in_the_memory_of_one_node_is_read_on_another() {
    let nodes = Nodes::joined(3);
    let bytes = content(4, 5 * BLOCK as usize + 7);
    let writer = create(&nodes, 0, "file", &bytes);
    // What is held is compared with what was announced once a second.
    std::thread::sleep(Duration::from_millis(1500));
    assert_eq!((memory_only_files(&nodes, 0), nodes.announced()), (1, 0), "none of it is told");
    // Many at a time, as the tasks of a job begin.
    let opens: Vec<_> = std::thread::scope(|scope| {
        let open = |number: usize| {
            let nodes = &nodes;
            scope.spawn(move || nodes.open(1 + number % 2, "file"))
        };
        let opening: Vec<_> = (0..8).map(open).collect();
        opening.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for open in &opens {
        assert!(read_all(&**open).unwrap().0 == bytes);
    }
    assert_eq!(std::fs::read(nodes.pfs("file")).unwrap(), bytes, "the PFS has it");
    assert_eq!(memory_only_files(&nodes, 0), 0);
    // The writer goes on, durably from now on, and is seen elsewhere.
    writer.write_at(3, b"later").unwrap();
    writer.sync(false).unwrap();
    let now = nodes.read(1, "file").0;
    assert!(now[3..8] == *b"later" && now[8..] == bytes[8..]);
}

#[test]
fn a_writer_on_another_node_goes_on_with_the_bytes_that_are_there() {
    let nodes = Nodes::joined(2);
    create(&nodes, 0, "file", &content(1, 10_000));
    let writer = nodes.try_open(1, "file", Access::ReadWrite).unwrap();
    writer.write_at(10_000, b"more").unwrap();
    writer.sync(false).unwrap();
    let expected = [content(1, 10_000), b"more".to_vec()].concat();
    assert!(std::fs::read(nodes.pfs("file")).unwrap() == expected);
    assert!(nodes.read(0, "file").0 == expected, "also where it was in memory");
}

#[test]
fn an_expendable_file_stays_and_says_so() {
    let scratch = |_: usize, config: &mut NodeConfig| {
        config.rules.push(scratch_rule("scratch"));
    };
    let nodes = Nodes::with(2, scratch);
    nodes.wait_joined();
    std::fs::create_dir(nodes.pfs("scratch")).unwrap();
    create(&nodes, 0, "scratch/file", &content(1, 10_000));
    let error = error_of(&nodes, 1, "scratch/file");
    assert!(error.contains("expendable"), "{error}");
    assert!(nodes.read(0, "scratch/file").0 == content(1, 10_000), "nothing of it is lost");
}

#[test]
fn what_the_pfs_does_not_take_stays_in_memory_and_the_reason_is_told() {
    let full = |node: usize, config: &mut NodeConfig| {
        config.fault = (node == 0).then(|| "write:errno=ENOSPC".into());
    };
    let nodes = Nodes::with(2, full);
    nodes.wait_joined();
    create(&nodes, 0, "file", &content(1, 10_000));
    let error = error_of(&nodes, 1, "file");
    assert!(error.contains("No space left"), "{error}");
    assert!(nodes.read(0, "file").0 == content(1, 10_000), "nothing of it is lost");
}

#[test]
fn a_client_of_the_pfs_that_shows_changes_late_makes_no_file_empty() {
    for (shows_after, is_read) in [("1s", true), ("1000s", false)] {
        let nodes = Nodes::with(2, |node: usize, config: &mut NodeConfig| {
            config.fault = (node == 1).then(|| format!("version:stale={shows_after}"));
        });
        nodes.wait_joined();
        create(&nodes, 0, "file", &content(1, 10_000));
        match nodes.try_open(1, "file", Access::Read) {
            Ok(open) => assert!(is_read && read_all(&*open).unwrap().0 == content(1, 10_000)),
            Err(error) => assert!(!is_read && error.kind() == ErrorKind::Changed, "{error}"),
        }
    }
}

#[test]
fn a_stub_whose_holder_is_gone_is_lost_at_once() {
    let nodes = Nodes::joined(3);
    create(&nodes, 0, "file", &content(1, 10_000));
    // Later than the moments in which members are met.
    std::thread::sleep(Duration::from_secs(3));
    // The mark of a start that is over, by each name that it may have.
    for (member, node) in [("n2", "0123"), ("n1", "0123"), ("nobody", "0123")] {
        let text = format!("TIDEPOOL MEMORY-ONLY STUB 2 length=9 state=held node={node} pid=1");
        let text = format!("{text} member={member} holder=h");
        let file = File::create(nodes.pfs(member)).unwrap();
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::fsetxattr(&file, "user.tidepool.memory", text.as_bytes(), flags).unwrap();
        let began = Instant::now();
        error_of(&nodes, 1, member);
        assert!(began.elapsed() < Duration::from_secs(2), "nobody is waited for: {member}");
    }
    nodes.nodes[0].stop();
    let error = error_of(&nodes, 1, "file");
    assert!(error.contains("`n0` is not there"), "{error}");
}

/// Its mark is on the PFS a moment before the node knows that the bytes are in its memory.
#[test]
fn a_file_that_is_opened_elsewhere_in_the_moment_it_begins_is_read() {
    let hooks = Arc::<Hooks>::default();
    let nodes = Nodes::hooked(2, &hooks, |config: &mut NodeConfig| {
        let mut rule = scratch_rule("d");
        rule.expendable = false;
        config.rules.push(rule);
    });
    nodes.wait_joined();
    std::fs::create_dir(nodes.pfs("d")).unwrap();
    hooks.set(|call, make| {
        make()?;
        if call == Call::SetAttribute {
            std::thread::sleep(Duration::from_millis(300));
        }
        Ok(())
    });
    let is_marked = || {
        let mut mark = [0; 4096];
        rustix::fs::getxattr(nodes.pfs("d/file"), STUB_ATTRIBUTE, &mut mark[..]).is_ok()
    };
    std::thread::scope(|scope| {
        let reads = scope.spawn(|| {
            until("it is marked", is_marked);
            nodes.read(0, "d/file").0
        });
        let file = nodes.create_in_memory(1, "d/file");
        file.write_at(0, b"bytes").unwrap();
        let read = reads.join().unwrap();
        assert!(read.is_empty() || read == b"bytes", "{read:?}");
        hooks.clear();
        file.sync(false).unwrap();
    });
    assert_eq!(nodes.read(0, "d/file").0, b"bytes");
}

#[test]
fn memory_of_a_file_that_was_removed_elsewhere_is_freed_once_nobody_has_it_open() {
    let nodes = Nodes::joined(2);
    drop(create(&nodes, 0, "closed", b"bytes"));
    let open = create(&nodes, 0, "open", b"its writer goes on");
    drop(create(&nodes, 0, "kept", b"kept"));
    ["closed", "open"].iter().for_each(|name| std::fs::remove_file(nodes.pfs(name)).unwrap());
    until("it is freed", || memory_only_files(&nodes, 0) == 2);
    assert!(read_all(&*open).unwrap().0 == b"its writer goes on");
    drop(open);
    until("that one as well", || memory_only_files(&nodes, 0) == 1);
    assert_eq!(nodes.read(1, "kept").0, b"kept");
}
