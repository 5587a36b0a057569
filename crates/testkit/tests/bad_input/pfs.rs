//! A PFS that is full, fails, reads short, or goes away.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::Path;
use std::sync::Arc;

use tidepool_client::{Client, ClientOptions, OpenOptions};
use tidepool_testkit::needs_mount;
use tidepool_testkit::product::{Node, NodeSpec, adds_up, is_mounted, unmount};

use super::{node_with, spec};

/// A small file system of its own as PFS.
struct SmallPfs {
    directory: tempfile::TempDir,
}

impl SmallPfs {
    fn create(bytes: u64) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let options = std::ffi::CString::new(format!("size={bytes},mode=755")).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount(c"none", directory.path(), c"tmpfs", flags, options.as_c_str())
            .unwrap();
        SmallPfs { directory }
    }

    fn path(&self) -> &Path {
        self.directory.path()
    }

    fn node(&self) -> Node {
        let spec = NodeSpec { pfs: Some(self.path().to_owned()), ..NodeSpec::default() };
        Node::start(spec).expect("a node starts")
    }
}

impl Drop for SmallPfs {
    fn drop(&mut self) {
        unmount(self.directory.path());
    }
}

fn library(node: &Node) -> Client {
    Client::connect(ClientOptions {
        socket: Some(node.socket().to_owned()),
        pfs_root: Some(node.pfs().to_owned()),
        notice: Arc::new(|_| ()),
        ..ClientOptions::default()
    })
}

/// What the mount and the library serve is what the PFS has, and nothing beyond.
fn assert_same_everywhere(node: &Node, client: &Client, name: &str) {
    let there = fs::read(node.pfs().join(name)).unwrap();
    for _ in 0..2 {
        assert!(fs::read(node.mount().join(name)).unwrap() == there, "{name} by the mount");
        let file = client.open(node.pfs().join(name), OpenOptions::read()).unwrap();
        let mut bytes = vec![0; there.len() + 1];
        let read = file.read_at(0, &mut bytes).unwrap().bytes;
        assert!(bytes[..read] == there, "{name} by the library: {read} of {}", there.len());
    }
}

#[test]
fn a_full_pfs_reaches_the_writer_by_the_mount() {
    needs_mount!();
    let pfs = SmallPfs::create(12 << 20);
    let node = pfs.node();
    let client = library(&node);
    for (number, piece) in [4096, 100_000, 1 << 20, 5 << 20].into_iter().enumerate() {
        let name = format!("file{number}");
        let mut file = File::create(node.mount().join(&name)).unwrap();
        let mut written = 0;
        let error = loop {
            match file.write(&vec![number as u8 + 1; piece]) {
                Ok(count) => written += count,
                Err(error) => break error,
            }
            assert!(written < 16 << 20, "the writer was never told");
        };
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
        drop(file);
        let there = fs::metadata(node.pfs().join(&name)).unwrap().len();
        assert!(there >= written as u64, "{written} bytes are said to be written, {there} are");
        assert_same_everywhere(&node, &client, &name);
        fs::remove_file(node.mount().join(&name)).unwrap();
    }
    // The space of a removed file is free when the node has let go of it.
    let after = node.mount().join("after");
    let begun = std::time::Instant::now();
    while let Err(error) = fs::write(&after, vec![9; 1 << 20]) {
        assert!(begun.elapsed() < std::time::Duration::from_secs(20), "no room again: {error}");
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_same_everywhere(&node, &client, "after");
}

#[test]
fn a_full_pfs_reaches_the_writer_by_the_library() {
    needs_mount!();
    let pfs = SmallPfs::create(12 << 20);
    let node = pfs.node();
    let client = library(&node);
    for (number, piece) in [4096_usize, 300_000, 5 << 20].into_iter().enumerate() {
        let path = node.pfs().join(format!("file{number}"));
        let file = client.open(&path, OpenOptions::write()).unwrap();
        let mut written = 0;
        let error = loop {
            match file.write_at(written, &vec![number as u8 + 1; piece]) {
                Ok(()) => written += piece as u64,
                Err(error) => break error,
            }
            assert!(written < 16 << 20, "the writer was never told");
        };
        assert_eq!(error.errno(), libc::ENOSPC, "{error}");
        drop(file);
        assert!(fs::metadata(&path).unwrap().len() >= written);
        assert_same_everywhere(&node, &client, &format!("file{number}"));
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn memory_only_files_that_cannot_be_written_down_stay_in_memory() {
    needs_mount!();
    let pfs = SmallPfs::create(4 << 20);
    let spec = NodeSpec {
        pfs: Some(pfs.path().to_owned()),
        configuration: "[[rule]]\npath = \"memory\"\nwrite_mode = \"memory\"\n".into(),
        ..NodeSpec::default()
    };
    fs::create_dir(pfs.path().join("memory")).unwrap();
    let node = Node::start(spec).unwrap();
    let content: Vec<u8> = (0..20 << 20).map(|at: u32| (at / 7 % 253) as u8).collect();
    fs::write(node.mount().join("memory/file"), &content).unwrap();
    assert!(node.status().unwrap().memory_only_bytes >= content.len() as u64);
    // The PFS has no room for it, so draining cannot be done, and must not lose it.
    let output = node.run(&["node", "drain"]).unwrap();
    assert!(!output.status.success(), "{output:?}");
    assert!(fs::read(node.mount().join("memory/file")).unwrap() == content);
    let options = c"size=64m,mode=755";
    let flags = rustix::mount::MountFlags::empty();
    rustix::mount::mount_remount(pfs.path(), flags, options).unwrap();
    node.stop().unwrap();
    assert!(fs::read(node.pfs().join("memory/file")).unwrap() == content, "stopping saved it");
}

#[test]
fn failing_reads_reach_the_reader_and_are_forgotten_when_they_end() {
    needs_mount!();
    let node = node_with(&["--fault", "read:errno=EIO@2"]);
    let content: Vec<u8> = (0..9 << 20).map(|at: u32| (at / 5 % 251) as u8).collect();
    fs::write(node.pfs().join("file"), &content).unwrap();
    let mut errors = 0;
    for _ in 0..4 {
        match fs::read(node.mount().join("file")) {
            Ok(bytes) => assert!(bytes == content, "wrong bytes instead of an error"),
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
                errors += 1;
            }
        }
    }
    assert!(errors <= 1, "one failing read failed {errors} passes");
    let status = node.status_when(adds_up).unwrap();
    assert!(adds_up(&status), "{status:?}");
}

#[test]
fn failing_and_short_reads_at_random_never_give_wrong_bytes() {
    needs_mount!();
    for fault in ["read:errno=EIO@20%;seed=3", "read:short@30%;seed=4"] {
        let node = node_with(&["--fault", fault]);
        let (mut right, mut failed) = (0, 0);
        for number in 0..40_u32 {
            let length = [0, 1, 5000, 300_000, 4 << 20, 6_000_001][number as usize % 6];
            let content: Vec<u8> = (0..length).map(|at: u32| (at / 3 + number) as u8).collect();
            let name = format!("file{number}");
            fs::write(node.pfs().join(&name), &content).unwrap();
            for _ in 0..3 {
                match fs::read(node.mount().join(&name)) {
                    Ok(bytes) => {
                        assert!(bytes == content, "{fault}: {name}: {} bytes", bytes.len());
                        right += 1;
                    }
                    Err(error) => {
                        let errno = error.raw_os_error();
                        assert!(matches!(errno, Some(libc::EIO | libc::ESTALE)), "{error}");
                        failed += 1;
                    }
                }
            }
        }
        assert!(right > 30, "{fault}: {right} right, {failed} failed");
        assert!(node.is_alive());
    }
}

#[test]
fn failing_writes_and_syncs_are_never_called_done() {
    needs_mount!();
    for fault in ["write:errno=EIO@25%;seed=5", "sync:errno=EIO@40%;seed=6"] {
        let node = node_with(&["--fault", fault]);
        let (mut right, mut failed) = (0, 0);
        for number in 0..40_u32 {
            let length = [1, 5000, 300_000, 4 << 20, 6_000_001][number as usize % 5];
            let content: Vec<u8> = (0..length).map(|at: u32| (at / 3 + number) as u8).collect();
            let name = format!("file{number}");
            let written = (|| {
                let mut file = File::create(node.mount().join(&name))?;
                file.write_all(&content)?;
                file.sync_all()
            })();
            let there = fs::read(node.pfs().join(&name)).unwrap();
            match written {
                Ok(()) => {
                    assert!(there == content, "{fault}: {name} is said to be written");
                    right += 1;
                }
                Err(_) => failed += 1,
            }
            assert!(fs::read(node.mount().join(&name)).unwrap() == there, "{fault}: {name}");
        }
        assert!(right > 0 && failed > 0, "{fault}: {right} right, {failed} failed");
    }
}

#[test]
fn the_pfs_directory_is_removed_under_a_running_node() {
    needs_mount!();
    let node = node_with(&[]);
    fs::create_dir(node.pfs().join("directory")).unwrap();
    fs::write(node.pfs().join("directory/file"), vec![5; 5 << 20]).unwrap();
    let mut open = File::open(node.mount().join("directory/file")).unwrap();
    let mut bytes = vec![0; 1 << 20];
    open.read_exact(&mut bytes).unwrap();
    fs::remove_dir_all(node.pfs()).unwrap();
    let gone = fs::read(node.mount().join("directory/file")).unwrap_err();
    assert!(matches!(gone.raw_os_error(), Some(libc::ENOENT | libc::ESTALE)), "{gone}");
    assert!(fs::write(node.mount().join("new"), b"x").is_err(), "nowhere to write");
    // An open file lives on, as on every file system.
    open.read_exact(&mut bytes).unwrap();
    assert!(bytes.iter().all(|byte| *byte == 5));
    drop(open);
    assert!(node.is_alive());
    node.stop().unwrap();
    assert!(!is_mounted(node.mount()) && !node.socket().exists());
}

#[test]
fn another_directory_in_the_place_of_the_pfs_is_not_served() {
    needs_mount!();
    let node = Node::start(spec(&[])).unwrap();
    fs::write(node.pfs().join("file"), b"old").unwrap();
    assert_eq!(fs::read(node.mount().join("file")).unwrap(), b"old");
    let aside = node.directory().join("aside");
    fs::rename(node.pfs(), &aside).unwrap();
    fs::create_dir(node.pfs()).unwrap();
    fs::write(node.pfs().join("file"), b"new").unwrap();
    // The node holds its directory, not a name: it goes on serving that one, consistently.
    assert_eq!(fs::read(node.mount().join("file")).unwrap(), b"old");
    fs::write(node.mount().join("more"), b"x").unwrap();
    assert!(aside.join("more").exists());
}
