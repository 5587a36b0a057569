//! What a front end says of an open is followed, and changes no byte.

mod support;

use std::os::unix::fs::FileExt;

use support::*;
use tidepool_proto::{Advice, FileService, Level, OpenRequest};

/// Longer than any tick of the time stamps of a local file system.
const SETTLING: std::time::Duration = std::time::Duration::from_millis(100);

const UNWANTED: Advice = Advice { read_ahead_bytes_max: None, keep: false };

fn kept_bytes(fixture: &Fixture) -> u64 {
    fixture.node.status().store.resident_bytes
}

#[test]
fn what_is_read_and_not_worth_keeping_passes_through() {
    for size in [3000, 300 << 10, (9 << 20) + 5] {
        let fixture = Fixture::new();
        let bytes = content(1, size);
        fixture.put("f", &bytes);
        let reader = fixture.open("f");
        reader.advise(UNWANTED);
        let (read, outcome) = read_all(&*reader).unwrap();
        assert!(read == bytes && outcome.levels.get(Level::Pfs) == size as u64);
        assert_eq!(kept_bytes(&fixture), 0, "size {size}");
        assert_eq!(fixture.pfs_read_bytes(), size as u64, "each byte is fetched once");
        reader.advise(Advice::default());
        assert!(read_all(&*reader).unwrap().0 == bytes);
        assert!(kept_bytes(&fixture) >= size as u64, "size {size}");
        reader.advise(UNWANTED);
        let (read, outcome) = read_all(&*reader).unwrap();
        assert!(read == bytes && outcome.levels.get(Level::Pfs) == 0, "what is there serves");
    }
}

#[test]
fn what_is_written_and_not_worth_keeping_goes_to_the_pfs_alone() {
    for size in [3000, 300 << 10, 9 << 20] {
        let fixture = Fixture::new();
        let bytes = content(2, size);
        let writer = fixture.writer("f", Wish::default());
        writer.advise(UNWANTED);
        for (number, piece) in bytes.chunks(1 << 20).enumerate() {
            writer.write_at((number as u64) << 20, piece).unwrap();
        }
        writer.flush().unwrap();
        assert!(std::fs::read(fixture.path("f")).unwrap() == bytes);
        assert_eq!(kept_bytes(&fixture), 0, "size {size}");
    }
}

#[test]
fn a_writer_past_the_node_is_heard_too() {
    let fixture = Fixture::new();
    // In this order: small files share their memory, so only the first of them shows.
    for (name, advice) in [("dropped", UNWANTED), ("kept", Advice::default())] {
        let writer = fixture.writer(name, Wish::default());
        let direct = writer.write_directly().expect("the file is new");
        let lower = direct.descriptor().try_clone_to_owned().unwrap();
        std::fs::File::from(lower).write_all_at(&content(3, 3000), 0).unwrap();
        std::thread::sleep(SETTLING);
        writer.advise(advice);
        drop(direct);
        assert_eq!(kept_bytes(&fixture) > 0, advice.keep, "{name}");
    }
}

#[test]
fn nobody_is_read_ahead_of_who_does_not_want_it() {
    let fixture = Fixture::new();
    fixture.put("f", &content(4, 24 << 20));
    let reader = fixture.open("f");
    reader.advise(Advice { read_ahead_bytes_max: Some(0), ..Advice::default() });
    let mut buffer = vec![0; 1 << 20];
    let mut read = |offset: u64| reader.read_at(offset, &mut buffer).unwrap();
    for step in 0..4 {
        read(step << 20);
    }
    assert_eq!(fixture.node.status().transfers.read_ahead_blocks, 0);
    assert_eq!(fixture.pfs_read_bytes(), BLOCK);
    reader.advise(Advice::default());
    for step in 4..8 {
        read(step << 20);
    }
    assert!(fixture.node.status().transfers.read_ahead_blocks > 0);
}

#[test]
fn one_users_habit_takes_read_ahead_from_nobody_else() {
    let fixture = Fixture::new();
    fixture.put("heads", &content(1, 24 << 20));
    fixture.put("whole", &content(2, 24 << 20));
    let open = |name: &str, user_id| {
        let lower = std::fs::File::open(fixture.path(name)).unwrap().into();
        fixture.node.open(OpenRequest::to_read(lower, user_id)).unwrap()
    };
    let mut buffer = vec![0; BLOCK as usize];
    for _ in 0..20 {
        open("heads", 1).read_at(0, &mut buffer).unwrap();
    }
    let read_ahead = || fixture.node.status().transfers.read_ahead_blocks;
    let before = read_ahead();
    open("whole", 1).read_at(0, &mut buffer[..1 << 20]).unwrap();
    assert_eq!(read_ahead(), before, "he reads heads alone");
    open("whole", 2).read_at(0, &mut buffer[..1 << 20]).unwrap();
    assert!(read_ahead() > before, "nobody knows what he does");
}
