//! Arguments, sockets, mount points and configuration that cannot be used.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;

use tidepool_testkit::needs_mount;
use tidepool_testkit::product::{Node, NodeSpec, is_mounted, program, run_within, said, unmount};

use super::{assert_refused, node_with, refuse, spec};

#[test]
fn the_pfs_directory_is_missing_or_no_directory() {
    needs_mount!();
    let remove = |node: &Node| fs::remove_dir(node.pfs()).unwrap();
    refuse(spec(&[]), remove, 4, &["/pfs", "No such file"]);
    let replace = |node: &Node| {
        fs::remove_dir(node.pfs()).unwrap();
        fs::write(node.pfs(), b"a file").unwrap();
    };
    let node = Node::prepare(spec(&[])).unwrap();
    replace(&node);
    let output = node.try_start().unwrap();
    assert!(matches!(output.status.code(), Some(1 | 2)), "{}", said(&output));
    let code = output.status.code().unwrap();
    assert_refused(&node, &output, code, &["/pfs", "directory"]);
}

#[test]
fn the_pfs_directory_cannot_be_read() {
    needs_mount!();
    let node = Node::prepare(spec(&[])).unwrap();
    fs::set_permissions(node.pfs(), fs::Permissions::from_mode(0o700)).unwrap();
    // The socket may only be where nobody else writes.
    std::os::unix::fs::chown(node.directory(), Some(65_534), Some(65_534)).unwrap();
    fs::set_permissions(node.directory(), fs::Permissions::from_mode(0o755)).unwrap();
    let binary = node.directory().join("pfs-binary");
    fs::copy(node.binary(), &binary).unwrap();
    let mut start = program(&binary);
    start.args(["node", "start", "--memory", "64MiB", "--pfs"]).arg(node.pfs());
    start.arg("--socket").arg(node.socket());
    start.uid(65_534).gid(65_534);
    let output = run_within(&mut start, std::time::Duration::from_secs(60)).unwrap();
    fs::remove_file(binary).unwrap();
    assert_refused(&node, &output, 5, &["/pfs", "ermission denied"]);
}

#[test]
fn the_socket_is_taken() {
    needs_mount!();
    let first = node_with(&[]);
    fs::write(first.pfs().join("file"), b"served").unwrap();
    let process_id = first.process_id().unwrap().to_string();
    let other_mount = first.directory().join("cgroup");
    fs::create_dir(&other_mount).unwrap();
    let mut second = program(first.binary());
    second.args(["node", "start", "--memory", "64MiB", "--pfs"]).arg(first.pfs());
    second.arg("--socket").arg(first.socket()).arg("--mount").arg(&other_mount);
    let output = run_within(&mut second, std::time::Duration::from_secs(60)).unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(6), "{text}");
    for word in ["node.sock", &process_id, "tidepool node stop"] {
        assert!(text.contains(word), "no `{word}` in: {text}");
    }
    assert!(!is_mounted(&other_mount));
    assert_eq!(fs::read(first.mount().join("file")).unwrap(), b"served", "the first goes on");
    assert!(first.is_alive());
}

#[test]
fn something_else_lies_where_the_socket_should_be() {
    needs_mount!();
    let node = Node::prepare(spec(&[])).unwrap();
    fs::write(node.socket(), b"precious").unwrap();
    let output = node.try_start().unwrap();
    assert_eq!(fs::read(node.socket()).unwrap(), b"precious", "it was not removed");
    fs::remove_file(node.socket()).unwrap();
    assert_refused(&node, &output, 6, &["node.sock"]);
}

#[test]
fn what_a_killed_node_left_is_cleared_away() {
    needs_mount!();
    let node = node_with(&[]);
    fs::write(node.pfs().join("file"), b"served").unwrap();
    for _ in 0..3 {
        node.kill().unwrap();
        assert!(node.socket().exists() && is_mounted(node.mount()), "both are left by a kill");
        let dead = fs::read(node.mount().join("file")).unwrap_err();
        // A request that is under way when the kernel notices the death is aborted.
        let at_once = [Some(libc::ENOTCONN), Some(libc::ECONNABORTED)];
        assert!(at_once.contains(&dead.raw_os_error()), "an error, not a hang: {dead}");
        let output = node.try_start().unwrap();
        assert!(output.status.success(), "{}", said(&output));
        assert_eq!(fs::read(node.mount().join("file")).unwrap(), b"served");
    }
    node.stop().unwrap();
    assert!(!node.socket().exists() && !is_mounted(node.mount()));
}

#[test]
fn the_mount_point_is_taken() {
    needs_mount!();
    let first = node_with(&[]);
    fs::write(first.pfs().join("file"), b"served").unwrap();
    let socket = first.directory().join("cgroup");
    let mut second = program(first.binary());
    second.args(["node", "start", "--memory", "64MiB", "--pfs"]).arg(first.pfs());
    second.arg("--socket").arg(&socket).arg("--mount").arg(first.mount());
    let output = run_within(&mut second, std::time::Duration::from_secs(60)).unwrap();
    let text = said(&output);
    assert_eq!(output.status.code(), Some(6), "{text}");
    assert!(text.contains("/mount") && text.trim_end().ends_with(')'), "{text}");
    assert!(!socket.exists());
    assert_eq!(fs::read(first.mount().join("file")).unwrap(), b"served", "the first goes on");
}

#[test]
fn the_mount_point_is_no_directory() {
    needs_mount!();
    let replace = |node: &Node| {
        fs::remove_dir(node.mount()).unwrap();
        fs::write(node.mount(), b"a file").unwrap();
    };
    refuse(spec(&[]), replace, 2, &["/mount", "directory"]);
}

#[test]
fn another_file_system_on_the_mount_point_is_left_alone() {
    needs_mount!();
    let node = Node::prepare(spec(&[])).unwrap();
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount(c"none", node.mount(), c"tmpfs", flags, None).unwrap();
    fs::write(node.mount().join("precious"), b"x").unwrap();
    let output = node.try_start().unwrap();
    let kept = fs::read(node.mount().join("precious"));
    unmount(node.mount());
    assert_eq!(kept.unwrap(), b"x");
    assert_refused(&node, &output, 6, &["/mount", "tmpfs"]);
}

#[test]
fn a_mount_point_with_files_in_it_works_and_keeps_them() {
    needs_mount!();
    let node = Node::prepare(spec(&[])).unwrap();
    fs::write(node.mount().join("below"), b"x").unwrap();
    fs::write(node.pfs().join("file"), b"served").unwrap();
    let output = node.try_start().unwrap();
    if output.status.success() {
        assert_eq!(fs::read(node.mount().join("file")).unwrap(), b"served");
        node.stop().unwrap();
    } else {
        assert_refused(&node, &output, 6, &["/mount"]);
    }
    assert_eq!(fs::read(node.mount().join("below")).unwrap(), b"x");
}

#[test]
fn a_corrupted_configuration_names_its_line() {
    needs_mount!();
    let cases: [(&str, &str, &str); 8] = [
        ("policy = \"lru\"\n\ntransfers = many\n", "line 3", ""),
        ("policy = \"lru\"\ntransfers = 0\n", "line 2", "transfers"),
        ("# comment\nno_such_option = 1\n", "line 2", "no_such_option"),
        ("block_bytes = \"3MiB\"\n", "line 1", "2MiB"),
        ("[[rule]]\npath = \"a\"\nwrite_mode = \"thorough\"\n", "line 3", "through"),
        ("[[rule]]\nwrite_mode = \"through\"\n", "line", "path"),
        ("[[rule]]\npath = \"../up\"\n", "line 2", "path"),
        ("log_level = \"info\n", "line 1", ""),
    ];
    for (configuration, line, word) in cases {
        let spec = NodeSpec { configuration: configuration.into(), ..NodeSpec::default() };
        let node = Node::prepare(spec).unwrap();
        let output = node.try_start().unwrap();
        assert_refused(&node, &output, 2, &["node.toml", line, word]);
    }
    let node = Node::prepare(NodeSpec::default()).unwrap();
    fs::write(node.directory().join("node.toml"), [0xff, 0xfe, 0, 1]).unwrap();
    let output = node.try_start().unwrap();
    assert_refused(&node, &output, 2, &["node.toml"]);
}

#[test]
fn sizes_that_make_no_sense() {
    needs_mount!();
    let cases: [(&[&str], &str); 6] = [
        (&["--memory", "lots"], "60%"),
        (&["--memory", "120%"], "%"),
        (&["--memory", "100TiB"], "memory"),
        (&["--block-bytes", "5MiB"], "2MiB"),
        (&["--small-file-bytes-max", "1GiB"], "block"),
        (&["--pinned-share-max", "1.5"], "0 to 1"),
    ];
    for (arguments, word) in cases {
        let node = Node::prepare(NodeSpec::default()).unwrap();
        let mut start = program(node.binary());
        start.args(["node", "start", "--pfs"]).arg(node.pfs());
        start.arg("--socket").arg(node.socket()).args(arguments);
        let output = run_within(&mut start, std::time::Duration::from_secs(60)).unwrap();
        let option = arguments[0].trim_start_matches("--").replace('-', "_");
        assert_refused(&node, &output, 2, &[&option, word]);
    }
}
