//! A PFS on which writes move no time stamps is not served as if they did: the node refuses it, or
//! caches nothing, or was told that no other program writes. A PFS that makes up its inode numbers
//! loses what is cached whenever the kernel drops a name, and `doctor --pfs` says so.

use std::fs;
use std::os::unix::fs::FileExt;
use std::time::Duration;

use tidepool_client::{Client, ClientOptions, OpenOptions};
use tidepool_proto::ErrorKind;
use tidepool_testkit::product::{self, Node, NodeSpec};
use tidepool_testkit::weak_pfs::{WeakPfs, Weakness};
use tidepool_testkit::{machine, needs_mount};

const LENGTH: usize = 300_000;

fn weak(weakness: Weakness) -> WeakPfs {
    WeakPfs::mount(weakness).expect("root can mount")
}

fn node(pfs: &WeakPfs, arguments: &[&str]) -> std::io::Result<Node> {
    Node::start(NodeSpec {
        pfs: Some(pfs.root().to_owned()),
        arguments: arguments.iter().map(|argument| (*argument).to_owned()).collect(),
        ..NodeSpec::default()
    })
}

fn still() -> WeakPfs {
    weak(Weakness { writes_move_no_stamps: true, ..Weakness::default() })
}

/// Another program on the PFS writes over all of a file.
fn overwrite(pfs: &WeakPfs, byte: u8) {
    let file = fs::File::options().write(true).open(pfs.root().join("f")).unwrap();
    file.write_all_at(&vec![byte; LENGTH], 0).unwrap();
}

#[test]
fn a_pfs_whose_stamps_stand_still_is_refused() {
    needs_mount!();
    let pfs = still();
    let error = node(&pfs, &[]).expect_err("its changes cannot be seen").to_string();
    for part in ["writes move no time stamps", "--read-mode bypass", "--pfs-has-no-other-writers"] {
        assert!(error.contains(part), "{part}: {error}");
    }
}

#[test]
fn in_mode_bypass_each_read_is_of_the_pfs() {
    needs_mount!();
    let pfs = still();
    fs::write(pfs.root().join("f"), vec![0; LENGTH]).unwrap();
    let node = node(&pfs, &["--read-mode", "bypass"]).unwrap();
    let degraded = node.status().unwrap().degraded.join("\n");
    assert!(degraded.contains("writes move no time stamps"), "{degraded}");
    for byte in 1..4 {
        overwrite(&pfs, byte);
        // Neither a load nor a write of our own leaves anything behind.
        let loaded = node.run(&["load", node.mount().join("f").to_str().unwrap()]).unwrap();
        assert!(!loaded.status.success(), "it says that nothing became resident");
        fs::write(node.mount().join("g"), vec![byte; LENGTH]).unwrap();
        assert!(fs::read(node.mount().join("f")).unwrap() == vec![byte; LENGTH], "{byte}");
    }
    assert_eq!(node.status().unwrap().store.resident_bytes, 0);
}

#[test]
fn who_says_that_nobody_else_writes_is_served_from_memory() {
    needs_mount!();
    let pfs = still();
    fs::write(pfs.root().join("f"), vec![7; LENGTH]).unwrap();
    let node = node(&pfs, &["--pfs-has-no-other-writers"]).unwrap();
    let degraded = node.status().unwrap().degraded.join("\n");
    assert!(degraded.contains("pfs_has_no_other_writers"), "{degraded}");
    assert!(fs::read(node.mount().join("f")).unwrap() == vec![7; LENGTH]);
    fs::write(node.mount().join("f"), vec![8; LENGTH]).unwrap();
    assert!(fs::read(node.mount().join("f")).unwrap() == vec![8; LENGTH]);
}

#[test]
fn stamps_of_whole_seconds_do_move() {
    needs_mount!();
    let pfs = weak(Weakness { whole_second_stamps: true, ..Weakness::default() });
    let node = node(&pfs, &[]).unwrap();
    let degraded = node.status().unwrap().degraded.join("\n");
    assert!(!degraded.contains("writes move no time stamps"), "{degraded}");
}

#[test]
fn the_library_asks_the_servers_what_an_open_file_is_now() {
    needs_mount!();
    let pfs = weak(Weakness { attributes_last: Duration::from_secs(3600), ..Weakness::default() });
    let path = pfs.root().join("f");
    fs::write(&path, b"old").unwrap();
    let socket = Some(pfs.behind().join("no-node"));
    let client = Client::connect(ClientOptions { socket, ..ClientOptions::default() });
    let create = OpenOptions { create: false, ..OpenOptions::read_write() };
    let writer = client.open(&path, create).unwrap();
    let reader = client.open(&path, OpenOptions::read()).unwrap();
    // So that the kernel has attributes to keep.
    assert_eq!(fs::File::open(&path).unwrap().metadata().unwrap().len(), 3);
    assert_eq!(writer.size().unwrap(), 3);
    fs::write(pfs.behind().join("f"), b"by another client").unwrap();
    assert_eq!(writer.size().unwrap(), 17);
    let error = reader.read_at(0, &mut [0; 2]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed, "{error}");
}

#[test]
fn doctor_tells_of_inode_numbers_that_the_mount_makes_up() {
    needs_mount!();
    let told = |weakness| {
        let pfs = weak(weakness);
        let mut doctor = product::program(&machine::binary());
        doctor.args(["doctor", "--json", "--speed-bytes", "1MiB", "--pfs"]).arg(pfs.root());
        let output = product::run_within(&mut doctor, Duration::from_secs(300)).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
        let checks = report["checks"].as_array().expect("checks of the PFS");
        let check = checks.iter().find(|check| check["name"] == "inode-stable").unwrap();
        check["outcome"].as_str().unwrap().to_owned()
    };
    assert_eq!(told(Weakness::default()), "ok");
    assert_eq!(told(Weakness { unstable_inodes: true, ..Weakness::default() }), "degraded");
}
