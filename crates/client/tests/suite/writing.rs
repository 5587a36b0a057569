//! Writing with and without a node.

use tidepool_client::OpenOptions;
use tidepool_proto::{Access, ErrorKind, WriteMode};

use crate::fake::BLOCK_BYTES;
use crate::scene::{Scene, pattern};

#[test]
fn what_is_written_is_read_by_everybody() {
    let scene = Scene::new();
    let client = scene.client();
    let path = scene.path("new");
    let options = OpenOptions { access: Access::ReadWrite, ..OpenOptions::write() };
    let file = client.open(&path, options).unwrap();
    let bytes = pattern(3 << 20, 1);
    file.write_at(0, &bytes).unwrap();
    let mut buffer = vec![0; bytes.len()];
    file.read_at(0, &mut buffer).unwrap();
    assert!(buffer == bytes);
    let reader = client.open(&path, OpenOptions::read()).unwrap();
    reader.read_at(0, &mut buffer).unwrap();
    assert!(buffer == bytes);
    file.write_at(BLOCK_BYTES - 2, b"over").unwrap();
    let mut four = [0; 4];
    reader.read_at(BLOCK_BYTES - 2, &mut four).unwrap();
    assert_eq!(&four, b"over", "an open file sees what is written through the node");
    file.set_size(BLOCK_BYTES).unwrap();
    assert_eq!(reader.read_at(BLOCK_BYTES - 2, &mut four).unwrap().bytes, 2);
    file.sync().unwrap();
    file.close().unwrap();
    let expected = [&bytes[..BLOCK_BYTES as usize - 2], b"ov"].concat();
    assert_eq!(std::fs::read(&path).unwrap(), expected);
    assert!(scene.notices.lock().unwrap().is_empty());
}

#[test]
fn options_of_creation_are_those_of_open() {
    for with_node in [true, false] {
        let mut scene = Scene::without_node();
        if with_node {
            scene.start();
        }
        let client = scene.client();
        let path = scene.path("file");
        let read_write = OpenOptions { create: false, ..OpenOptions::read_write() };
        assert_eq!(client.open(&path, read_write).unwrap_err().errno(), libc::ENOENT);
        let new = OpenOptions { create_new: true, ..OpenOptions::read_write() };
        client.open(&path, new).unwrap().write_at(0, b"0123456789").unwrap();
        assert_eq!(client.open(&path, new).unwrap_err().errno(), libc::EEXIST);
        let file = client.open(&path, OpenOptions::read_write()).unwrap();
        assert_eq!(file.size().unwrap(), 10);
        let file = client.open(&path, OpenOptions::write()).unwrap();
        assert_eq!(file.size().unwrap(), 0, "emptied");
        file.close().unwrap();
        let reader = client.open(&path, OpenOptions::read()).unwrap();
        let error = reader.write_at(0, b"x").unwrap_err();
        assert_eq!((error.kind(), error.errno()), (ErrorKind::PermissionDenied, libc::EBADF));
        assert!(reader.append(b"x").is_err() && reader.set_size(1).is_err());
    }
}

#[test]
fn appenders_do_not_overwrite_each_other() {
    for with_node in [true, false] {
        let mut scene = Scene::without_node();
        if with_node {
            scene.start();
        }
        let client = scene.client();
        let path = scene.path("log");
        let options =
            OpenOptions { append: true, access: Access::Write, ..OpenOptions::read_write() };
        std::thread::scope(|scope| {
            for writer in 0..4u8 {
                let (client, path) = (&client, &path);
                scope.spawn(move || {
                    let file = client.open(path, options).unwrap();
                    for round in 0..50u8 {
                        let at = file.append(&[writer, round, !writer]).unwrap();
                        assert_eq!(at % 3, 0);
                    }
                    file.close().unwrap();
                });
            }
        });
        let log = std::fs::read(&path).unwrap();
        assert_eq!(log.len(), 4 * 50 * 3);
        for writer in 0..4u8 {
            let rounds: Vec<u8> =
                log.chunks(3).filter(|entry| entry[0] == writer).map(|entry| entry[1]).collect();
            assert_eq!(rounds, (0..50).collect::<Vec<u8>>());
        }
    }
}

#[test]
fn errors_of_writes_reach_the_writer() {
    let mut scene = Scene::new();
    let client = scene.client();
    let path = scene.path("file");
    let file = client.open(&path, OpenOptions::write()).unwrap();
    let error = file.write_at(u64::MAX - 1, b"xx").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::InvalidInput);
    let memory = OpenOptions { write_mode: Some(WriteMode::Memory), ..OpenOptions::write() };
    let file = client.open(scene.path("memory"), memory).unwrap();
    file.write_at(0, b"taken by the node").unwrap();
    // What the node alone had when it ended is lost, and that is not hidden.
    scene.stop();
    let error = file.close().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Lost);
    scene.start();
    // What it had written to the parallel file system is not.
    let file = client.open(&path, OpenOptions::write()).unwrap();
    file.write_at(0, b"taken by the node").unwrap();
    scene.stop();
    file.write_at(17, b", then without it").unwrap();
    scene.start();
    file.write_at(34, b", then by the next").unwrap();
    file.close().unwrap();
    assert_eq!(
        std::fs::read(&path).unwrap(),
        b"taken by the node, then without it, then by the next"
    );
    let file = client.open(&path, OpenOptions::write()).unwrap();
    file.write_at(0, b"synced").unwrap();
    file.sync().unwrap();
    scene.stop();
    file.write_at(6, b", then without a node").unwrap();
    file.close().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"synced, then without a node");
    let file = client.open(&path, OpenOptions::write()).unwrap();
    file.write_at(0, b"a").unwrap();
    scene.start();
    file.write_at(1, b"b").unwrap();
    file.close().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"ab");
    assert!(client.is_connected());
}
