//! New files, which this process writes by itself while the node keeps out of the way.

use std::os::unix::fs::PermissionsExt;

use tidepool_client::{File, OpenOptions};
use tidepool_proto::{Access, WriteMode};

use crate::scene::{eventually, pattern};
use crate::whole::{BLOCK, Whole};

fn write_in_steps(file: &File, bytes: &[u8]) {
    for (step, part) in bytes.chunks(1 << 20).enumerate() {
        file.write_at((step << 20) as u64, part).unwrap();
    }
}

#[test]
fn a_new_file_is_written_without_messages_and_kept_afterwards() {
    let whole = Whole::new();
    let client = whole.client();
    let bytes = pattern(2 * BLOCK + 777, 3);
    for (name, old) in [("new", false), ("emptied", true)] {
        if old {
            std::fs::write(whole.path(name), b"earlier bytes").unwrap();
        }
        let file = client.open(whole.path(name), OpenOptions::write()).unwrap();
        let asked = whole.server().counts().requests;
        write_in_steps(&file, &bytes);
        assert_eq!(file.size().unwrap(), bytes.len() as u64);
        file.sync().unwrap();
        assert_eq!(whole.server().counts().requests, asked, "{name}: no message while writing");
        assert!(std::fs::read(whole.path(name)).unwrap() == bytes, "the PFS has it");
        file.close().unwrap();
        eventually("its blocks come in", || {
            let file = client.open(whole.path(name), OpenOptions::read()).unwrap();
            let mut buffer = vec![0; bytes.len()];
            let outcome = file.read_at(0, &mut buffer).unwrap();
            assert!(buffer == bytes);
            outcome.levels.pfs == 0
        });
    }
    assert_eq!(whole.node().status().written_bytes, 2 * bytes.len() as u64);
}

#[test]
fn what_others_have_open_is_written_through_the_node() {
    let whole = Whole::new();
    let client = whole.client();
    let first = client.open(whole.path("f"), OpenOptions::read_write()).unwrap();
    let second = client.open(whole.path("f"), OpenOptions::read_write()).unwrap();
    first.write_at(0, b"by the first").unwrap();
    second.write_at(3, b"two").unwrap();
    let mut buffer = [0; 12];
    assert_eq!(first.read_at(0, &mut buffer).unwrap().bytes, 12);
    assert_eq!(&buffer, b"by two first");
    assert_eq!(second.read_at(0, &mut buffer).unwrap().bytes, 12);
    assert_eq!(&buffer, b"by two first");
    first.set_size(4).unwrap();
    assert_eq!(second.size().unwrap(), 4);
    first.close().unwrap();
    second.close().unwrap();
    let asked = whole.server().counts().requests;
    let appender = OpenOptions { append: true, truncate: false, ..OpenOptions::write() };
    let log = client.open(whole.path("log"), appender).unwrap();
    log.append(b"a line").unwrap();
    assert!(whole.server().counts().requests > asked + 1, "appenders take turns at the node");
}

#[test]
fn a_node_that_ends_meanwhile_loses_nothing() {
    let mut whole = Whole::new();
    let client = whole.client();
    let file = client.open(whole.path("f"), OpenOptions::write()).unwrap();
    let bytes = pattern(BLOCK + 99, 5);
    let (before, after) = bytes.split_at(BLOCK / 2);
    file.write_at(0, before).unwrap();
    whole.restart();
    file.write_at(before.len() as u64, after).unwrap();
    file.close().unwrap();
    assert!(std::fs::read(whole.path("f")).unwrap() == bytes);
    let reader = whole.client().open(whole.path("f"), OpenOptions::read()).unwrap();
    let mut buffer = vec![0; bytes.len()];
    reader.read_at(0, &mut buffer).unwrap();
    assert!(buffer == bytes);
}

#[test]
fn an_abandoned_file_is_an_ordinary_one_again() {
    let whole = Whole::new();
    let client = whole.client();
    let file = client.open(whole.path("f"), OpenOptions::write()).unwrap();
    file.write_at(0, b"half of it").unwrap();
    drop((file, client));
    let client = whole.client();
    eventually("the node notices", || {
        // An overwrite is the node's again.
        let options = OpenOptions { create: false, ..OpenOptions::read_write() };
        let file = client.open(whole.path("f"), options).unwrap();
        let asked = whole.server().counts().requests;
        file.write_at(0, b"HALF").unwrap();
        whole.server().counts().requests > asked
    });
    assert_eq!(std::fs::read(whole.path("f")).unwrap(), b"HALF of it");
}

#[test]
fn what_is_written_to_pass_by_is_not_kept() {
    let whole = Whole::new();
    let client = whole.client();
    let options = OpenOptions { write_mode: Some(WriteMode::Bypass), ..OpenOptions::write() };
    let file = client.open(whole.path("f"), options).unwrap();
    let bytes = pattern(BLOCK, 7);
    write_in_steps(&file, &bytes);
    file.close().unwrap();
    assert!(std::fs::read(whole.path("f")).unwrap() == bytes);
    assert_eq!(whole.node().status().store.resident_bytes, 0);
}

#[test]
fn a_file_that_must_not_be_read_can_be_emptied_and_written() {
    let whole = Whole::new();
    let path = whole.path("f");
    std::fs::write(&path, b"old").unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o200)).unwrap();
    let file = whole.client().open(&path, OpenOptions::write()).unwrap();
    file.write_at(0, b"n").unwrap();
    assert!(file.read_at(0, &mut [0]).is_err(), "not open for reading");
    file.close().unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"n");
    let both = OpenOptions { access: Access::ReadWrite, ..OpenOptions::write() };
    assert_eq!(whole.client().open(&path, both).unwrap().size().unwrap(), 0);
}
