//! Names, sizes and times at the edge of what file systems allow.

use std::ffi::OsString;
use std::fs::{self, File, FileTimes};
use std::io::Write;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use tidepool_client::{Client, ClientOptions, OpenOptions};
use tidepool_testkit::needs_mount;
use tidepool_testkit::product::Node;

use super::node_with;

fn library(node: &Node) -> Client {
    Client::connect(ClientOptions {
        socket: Some(node.socket().to_owned()),
        pfs_root: Some(node.pfs().to_owned()),
        notice: Arc::new(|_| ()),
        ..ClientOptions::default()
    })
}

fn read_by_library(client: &Client, path: &Path, length: usize) -> Vec<u8> {
    let file = client.open(path, OpenOptions::read()).unwrap();
    let mut bytes = vec![0; length];
    let read = file.read_at(0, &mut bytes).unwrap().bytes;
    bytes.truncate(read);
    bytes
}

#[test]
fn strange_names() {
    needs_mount!();
    let node = node_with(&[]);
    let client = library(&node);
    let names: Vec<OsString> = vec![
        "n".repeat(255).into(),
        "é".repeat(127).into(),
        OsString::from_vec(vec![0xff, 0xfe, 0x80, b'x']),
        OsString::from_vec((1..=255).filter(|byte| *byte != b'/').collect()),
        " ".into(),
        "-rf".into(),
        "new\nline".into(),
        "tide:".into(),
        "(deleted)".into(),
        "file (deleted)".into(),
        "%s%n".into(),
        "..data".into(),
    ];
    for (number, name) in names.iter().enumerate() {
        let content = vec![number as u8; 1000 + number];
        let (here, there) = (node.mount().join(name), node.pfs().join(name));
        fs::write(&here, &content).unwrap();
        assert_eq!(fs::read(&there).unwrap(), content, "{name:?}");
        assert_eq!(fs::read(&here).unwrap(), content, "{name:?}");
        assert_eq!(read_by_library(&client, &there, 2000), content, "{name:?}");
        let explained = node.command(&["explain", "--json"]).arg(&there).output().unwrap();
        assert!(explained.status.success(), "{name:?}: {explained:?}");
        let loaded = node.command(&["load"]).arg(&there).output().unwrap();
        assert!(loaded.status.success(), "{name:?}: {loaded:?}");
    }
    let mut listed: Vec<_> =
        fs::read_dir(node.mount()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    let mut expected = names.clone();
    listed.sort();
    expected.sort();
    assert_eq!(listed, expected);
    for name in &names {
        let other = node.mount().join("other");
        fs::rename(node.mount().join(name), &other).unwrap();
        fs::rename(&other, node.mount().join(name)).unwrap();
        fs::remove_file(node.mount().join(name)).unwrap();
    }
    let long = fs::write(node.mount().join("n".repeat(256)), b"x").unwrap_err();
    assert_eq!(long.raw_os_error(), Some(libc::ENAMETOOLONG));
    assert_eq!(fs::read_dir(node.pfs()).unwrap().count(), 0);
}

#[test]
fn deep_paths() {
    needs_mount!();
    let node = node_with(&[]);
    let mut path = std::path::PathBuf::new();
    for level in 0..15 {
        path.push(format!("{level}").repeat(100));
    }
    fs::create_dir_all(node.mount().join(&path)).unwrap();
    path.push("file");
    fs::write(node.mount().join(&path), b"deep").unwrap();
    assert_eq!(fs::read(node.pfs().join(&path)).unwrap(), b"deep");
    assert_eq!(fs::read(node.mount().join(&path)).unwrap(), b"deep");
    let client = library(&node);
    assert_eq!(read_by_library(&client, &node.pfs().join(&path), 9), b"deep");
}

#[test]
fn empty_files() {
    needs_mount!();
    let node = node_with(&[]);
    let client = library(&node);
    for (number, root) in [node.pfs(), node.mount()].iter().enumerate() {
        let name = format!("empty{number}");
        File::create(root.join(&name)).unwrap();
        assert_eq!(fs::read(node.mount().join(&name)).unwrap(), b"");
        assert_eq!(read_by_library(&client, &node.pfs().join(&name), 10), b"");
        for command in ["load", "explain", "evict", "load"] {
            let output = node.command(&[command]).arg(node.pfs().join(&name)).output().unwrap();
            assert!(output.status.success(), "{command}: {output:?}");
        }
        fs::write(node.mount().join(&name), b"no more").unwrap();
        assert_eq!(fs::read(node.pfs().join(&name)).unwrap(), b"no more");
        assert_eq!(read_by_library(&client, &node.pfs().join(&name), 10), b"no more");
    }
}

/// Memory that the process of the node holds, in bytes.
fn memory_of(node: &Node) -> u64 {
    let path = format!("/proc/{}/status", node.process_id().unwrap());
    let text = fs::read_to_string(path).unwrap();
    let line = text.lines().find(|line| line.starts_with("RssAnon:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() << 10
}

#[test]
fn a_sparse_file_of_a_tebibyte() {
    needs_mount!();
    const SIZE: u64 = 1 << 40;
    let node = node_with(&[]);
    let path = node.pfs().join("sparse");
    if let Err(error) = File::create(&path).unwrap().set_len(SIZE) {
        let reason = format!("the file system takes no file of 1 TiB: {error}");
        let missing = tidepool_testkit::machine::Missing(reason);
        return tidepool_testkit::machine::print_skip("a_sparse_file_of_a_tebibyte", &missing);
    }
    let before = memory_of(&node);
    let marks = [0, 4 << 20, SIZE / 2 - 2, SIZE / 3, SIZE - 4];
    let outside = File::options().write(true).open(&path).unwrap();
    for mark in marks {
        outside.write_all_at(b"mark", mark).unwrap();
    }
    assert_eq!(fs::metadata(node.mount().join("sparse")).unwrap().len(), SIZE);
    let here = File::options().read(true).write(true).open(node.mount().join("sparse")).unwrap();
    let client = library(&node);
    let mut by_library = [0; 16];
    let file = client.open(&path, OpenOptions::read()).unwrap();
    for mark in marks {
        let mut bytes = [0; 4];
        here.read_exact_at(&mut bytes, mark).unwrap();
        assert_eq!(&bytes, b"mark", "at {mark}");
        let read = file.read_at(mark, &mut by_library).unwrap().bytes;
        assert_eq!(&by_library[..4], b"mark", "at {mark}");
        assert_eq!(read as u64, 16.min(SIZE - mark), "at {mark}");
    }
    assert_eq!(here.read_at(&mut [0; 8], SIZE).unwrap(), 0);
    assert_eq!(here.read_at(&mut [0; 8], SIZE + (1 << 50)).unwrap(), 0);
    here.write_all_at(b"written", SIZE / 4).unwrap();
    here.sync_all().unwrap();
    let mut bytes = [0; 7];
    File::open(&path).unwrap().read_exact_at(&mut bytes, SIZE / 4).unwrap();
    assert_eq!(&bytes, b"written");
    let status = node.status().unwrap();
    assert!(status.store.resident_bytes <= 64 << 20, "{:?}", status.store);
    assert!(status.store.bookkeeping_bytes <= 32 << 20, "{:?}", status.store);
    let grown = memory_of(&node).saturating_sub(before);
    assert!(grown < 150 << 20, "the node grew by {} MiB", grown >> 20);
    let explained = node.command(&["explain"]).arg(&path).output().unwrap();
    assert!(explained.status.success() && explained.stdout.len() < 64 << 10);
}

#[test]
fn times_far_away_and_times_that_jump() {
    needs_mount!();
    let node = node_with(&[]);
    let client = library(&node);
    let epoch = SystemTime::UNIX_EPOCH;
    let day = Duration::from_secs(86_400);
    let times = [
        epoch,
        epoch - Duration::from_nanos(1),
        epoch - day * 365 * 60,
        epoch + day * 365 * 300,
        epoch + Duration::from_secs((1 << 34) - 10),
        SystemTime::now() + day,
        SystemTime::now() - day,
    ];
    for length in [3000_usize, 300_000, 5 << 20] {
        let path = node.pfs().join(format!("file{length}"));
        let here = node.mount().join(format!("file{length}"));
        for (number, time) in times.iter().chain(&times).enumerate() {
            // Equal length, in place, and the clock says whatever it likes.
            let content = vec![number as u8; length];
            let mut file =
                File::options().write(true).create(true).truncate(false).open(&path).unwrap();
            file.write_all(&content).unwrap();
            let set = FileTimes::new().set_modified(*time).set_accessed(*time);
            file.set_times(set).unwrap();
            drop(file);
            assert!(fs::read(&here).unwrap() == content, "{length} {number} {time:?}");
            assert!(read_by_library(&client, &path, length) == content, "{length} {number}");
            assert!(fs::read(&here).unwrap() == content, "again {length} {number} {time:?}");
        }
        // By the mount: the time that was set stays, and the bytes too.
        let file = File::options().write(true).open(&here).unwrap();
        file.set_times(FileTimes::new().set_modified(times[3])).unwrap();
        assert_eq!(
            fs::metadata(&path).unwrap().modified().unwrap(),
            fs::metadata(&here).unwrap().modified().unwrap()
        );
        assert!(fs::read(&here).unwrap() == fs::read(&path).unwrap());
    }
}
