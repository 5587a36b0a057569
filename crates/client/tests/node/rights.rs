//! Changes by the socket are weighed as the user's own: set-id bits go, reserved space stays.

use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;

use tidepool_client::{Client, File, OpenOptions};

use crate::place::{NOBODY, OTHER, Place, as_user, is_root, writable};

const BYTES: usize = 300_000;

fn mode_of(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn read_write() -> OpenOptions {
    OpenOptions { create: false, ..OpenOptions::read_write() }
}

fn open(client: &Client, path: &Path) -> File {
    client.open(path, read_write()).unwrap()
}

type Change = (&'static str, fn(&Client, &Path));

/// The ways to change content or length by the library.
const CHANGES: [Change; 6] = [
    ("plain PFS write", |_, path| writable(path).write_all_at(b"x", 0).unwrap()),
    ("write", |client, path| open(client, path).write_at(0, b"x").unwrap()),
    ("append", |client, path| {
        let options = OpenOptions { append: true, ..read_write() };
        client.open(path, options).unwrap().append(b"x").unwrap();
    }),
    ("length", |client, path| open(client, path).set_size(5).unwrap()),
    ("allocation", |client, path| open(client, path).allocate(0, 0, 1 << 20).unwrap()),
    ("truncating open", |client, path| {
        let file = client.open(path, OpenOptions::write()).unwrap();
        file.write_at(0, b"x").unwrap();
        file.close().unwrap();
    }),
];

#[test]
fn set_id_bits_go_with_a_change_by_another_user() {
    if !is_root() {
        return;
    }
    let place = Place::new();
    for (what, change) in CHANGES {
        let path = place.file(what, &vec![b'-'; BYTES], OTHER, 0o6777);
        // Somebody reads it too, so that the node does the writing.
        let _reader = place.client().open(&path, OpenOptions::read()).unwrap();
        as_user(NOBODY, || change(&place.client(), &path));
        assert_eq!(mode_of(&path), 0o777, "{what}");
    }
    for (what, change) in CHANGES {
        let path = place.file(what, &vec![b'-'; BYTES], OTHER, 0o6777);
        let _reader = place.client().open(&path, OpenOptions::read()).unwrap();
        change(&place.client(), &path);
        assert_eq!(mode_of(&path), 0o6777, "{what} by root, who may keep them");
    }
}

#[test]
fn a_user_does_not_get_at_what_is_reserved_for_root() {
    if !is_root() {
        return;
    }
    let place = Place::with_reserve();
    let path = place.file("file", &vec![b'-'; BYTES], NOBODY, 0o600);
    let full = place.file("full", b"", NOBODY, 0o600);
    let _reader = place.client().open(&path, OpenOptions::read()).unwrap();
    as_user(NOBODY, || {
        // As much as he may write himself, to the last block.
        let file = writable(&full);
        let (mut at, mut step) = (0, 1 << 20);
        let bytes = vec![b'f'; step];
        while step >= 4096 {
            match file.write_at(&bytes[..step], at) {
                Ok(written) => at += written as u64,
                Err(error) if error.raw_os_error() == Some(libc::ENOSPC) => step /= 2,
                Err(error) => panic!("{error}"),
            }
        }
        file.sync_all().unwrap();
        let more = vec![b'm'; 1 << 20];
        let library = open(&place.client(), &path);
        let error = library.write_at(BYTES as u64, &more).unwrap_err();
        assert_eq!(error.errno(), libc::ENOSPC, "{error}");
        assert!(library.allocate(0, 1 << 20, 8 << 20).is_err());
    });
    let file = open(&place.client(), &path);
    file.write_at(BYTES as u64, &vec![b'r'; 1 << 20]).expect("root may");
}
