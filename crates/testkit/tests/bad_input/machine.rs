//! Machines that lack something: memory, descriptors, FUSE.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::Output;
use std::time::Duration;

use tidepool_testkit::machine::print_skip;
use tidepool_testkit::memory_group::MemoryGroup;
use tidepool_testkit::needs_mount;
use tidepool_testkit::product::{Node, NodeSpec, program, run_within, said};

use super::{assert_refused, node_with, spec};

/// Runs the start of a node after a line of shell, which may change limits or the mount table.
fn start_after(node: &Node, line: &str, wrapper: &[&str]) -> Output {
    let start = node.start_command();
    let mut command = match wrapper {
        [] => program(Path::new("sh")),
        [first, arguments @ ..] => {
            let mut command = program(Path::new(first));
            command.args(arguments).arg("sh");
            command
        }
    };
    command.args(["-c", &format!("{line} && exec \"$@\""), "sh"]);
    command.arg(start.get_program()).args(start.get_args());
    run_within(&mut command, Duration::from_secs(60)).unwrap()
}

#[test]
fn more_memory_than_the_machine_has() {
    needs_mount!();
    let node = Node::prepare(NodeSpec { memory: "100TiB".into(), ..NodeSpec::default() }).unwrap();
    let output = node.try_start().unwrap();
    assert_refused(&node, &output, 2, &["memory", "100TiB"]);
    let node = node_with(&[]);
    let output = node.run(&["resize", "100TiB"]).unwrap();
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    assert_eq!(node.status().unwrap().store.capacity_bytes, 64 << 20, "nothing changed");
}

#[test]
fn the_limit_of_the_control_group_is_the_machine() {
    needs_mount!();
    const LIMIT: u64 = 512 << 20;
    let group = match MemoryGroup::create(LIMIT) {
        Ok(group) => group,
        Err(missing) => return print_skip("the_limit_of_the_control_group", &missing),
    };
    let enter = format!("echo $$ > {}/cgroup.procs", group.path().display());
    let node = Node::prepare(NodeSpec { memory: "50%".into(), ..NodeSpec::default() }).unwrap();
    let output = start_after(&node, &enter, &[]);
    assert!(output.status.success(), "{}", said(&output));
    assert_eq!(node.status().unwrap().store.capacity_bytes, LIMIT / 2);
    // The store fills to its capacity without the kernel having to kill anybody.
    for number in 0..12 {
        let name = format!("file{number}");
        fs::write(node.pfs().join(&name), vec![number; 32 << 20]).unwrap();
        let seen = fs::read(node.mount().join(&name)).unwrap();
        assert!(seen.iter().all(|byte| *byte == number));
    }
    let status = node.status().unwrap();
    assert!(status.store.resident_bytes <= LIMIT / 2, "{:?}", status.store);
    node.stop().unwrap();
    let node = Node::prepare(NodeSpec { memory: "1GiB".into(), ..NodeSpec::default() }).unwrap();
    let output = start_after(&node, &enter, &[]);
    assert_refused(&node, &output, 2, &["memory", group.limit_file()]);
}

#[test]
fn few_descriptors() {
    needs_mount!();
    let node = Node::prepare(spec(&[])).unwrap();
    for number in 0..600 {
        let length = if number % 10 == 0 { 300_000 } else { 100 };
        fs::write(node.pfs().join(format!("file{number}")), vec![number as u8; length]).unwrap();
    }
    let output = start_after(&node, "ulimit -n 256", &[]);
    assert!(output.status.success(), "{}", said(&output));
    let mut open = Vec::new();
    let mut refused = 0;
    for number in 0..600 {
        match fs::File::open(node.mount().join(format!("file{number}"))) {
            Ok(file) => open.push((number, file)),
            Err(error) => {
                let errno = error.raw_os_error();
                let expected = [libc::EMFILE, libc::ENFILE, libc::EAGAIN].map(Some);
                assert!(expected.contains(&errno), "{error}");
                refused += 1;
            }
        }
    }
    assert!(open.len() > 50, "{} opens, {refused} refused", open.len());
    for (number, file) in &mut open {
        let mut bytes = Vec::new();
        match file.read_to_end(&mut bytes) {
            Ok(_) => assert!(bytes.iter().all(|byte| *byte == *number as u8)),
            Err(error) => assert!(error.raw_os_error().is_some(), "{error}"),
        }
    }
    drop(open);
    for number in 0..600 {
        let bytes = fs::read(node.mount().join(format!("file{number}"))).unwrap();
        assert!(bytes.iter().all(|byte| *byte == number as u8), "room again after the closes");
    }
    assert!(node.is_alive());
}

const HIDE_FUSE: &str = "mount -t tmpfs none /dev && mknod -m 666 /dev/null c 1 3 && \
                         mknod -m 666 /dev/zero c 1 5 && mknod -m 666 /dev/urandom c 1 9";

#[test]
fn no_fuse_device() {
    needs_mount!();
    let node = Node::prepare(spec(&[])).unwrap();
    let wrapper = ["unshare", "--mount", "--propagation", "private"];
    let output = start_after(&node, HIDE_FUSE, &wrapper);
    let code = output.status.code().unwrap_or(-1);
    assert!((1..=5).contains(&code), "{}", said(&output));
    assert_refused(&node, &output, code, &["/dev/fuse"]);
}
