//! Reading with a node that is there.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use tidepool_client::{ClientOptions, OpenOptions};
use tidepool_proto::{Access, BytesByLevel, Error, ErrorKind, Level, ReadMode, Result, Version};

use crate::fake::{BLOCK_BYTES, FakeNode, Hooks};
use crate::scene::{Scene, eventually, pattern};

const BLOCK: usize = BLOCK_BYTES as usize;

#[test]
fn the_second_read_sends_no_message() {
    let scene = Scene::new();
    let (path, bytes) = scene.file("file", 5 * BLOCK + 77);
    let file = scene.client().open(&path, OpenOptions::read()).unwrap();
    let mut buffer = vec![0; bytes.len() + 10];
    let cold = file.read_at(0, &mut buffer).unwrap();
    assert_eq!((cold.bytes, cold.levels.total()), (bytes.len(), bytes.len() as u64));
    assert!(cold.levels.pfs > 0 && buffer[..bytes.len()] == bytes);

    let asked = scene.server.as_ref().unwrap().counts().requests;
    buffer.fill(0);
    let length = bytes.len();
    let warm = file.read_at(0, &mut buffer[..length]).unwrap();
    assert_eq!(warm.levels, BytesByLevel::of(Level::Mapped, length as u64));
    assert!(buffer[..length] == bytes);
    for offset in [0, 1, BLOCK - 1, BLOCK, 5 * BLOCK + 76] {
        let mut byte = [0];
        assert_eq!(file.read_at(offset as u64, &mut byte).unwrap().levels.mapped, 1);
        assert_eq!(byte[0], bytes[offset]);
    }
    assert_eq!(scene.server.as_ref().unwrap().counts().requests, asked);
    assert!(scene.node.take_touches() >= 6, "the node hears of the hits all the same");
    drop(file);
    eventually("the node learns how much was read", || {
        scene.node.mapped_bytes.load(Ordering::SeqCst) >= length as u64 + 5
    });
    // It counts the bytes before the file is closed there.
    eventually("the node closes the file", || scene.handles() == 0);
}

/// Bytes of a file in whose place another one comes while it is opened.
const REPLACED: u64 = 4321;

/// A node that puts another file there, or says of a file that stays that it changed.
fn replacing(stays: bool) -> Hooks {
    let replace: fn(&FakeNode, &Version) -> Result<()> = |node, version| {
        let at = |name: &str| std::path::Path::new(&node.pfs).join(name);
        if version.size != REPLACED {
            return Ok(());
        }
        std::fs::rename(at("other"), at("file")).unwrap();
        Err(Error::new(ErrorKind::Changed, "opening a file", "another one is in its place"))
    };
    let refuse: fn(&FakeNode, &Version) -> Result<()> =
        |_, _| Err(Error::new(ErrorKind::Changed, "opening a file", "it changed"));
    Hooks { opened: if stays { refuse } else { replace }, ..Hooks::default() }
}

#[test]
fn where_another_file_takes_the_place_of_one_that_is_opened_that_one_is_opened() {
    for access in [OpenOptions::read(), OpenOptions { create: true, ..OpenOptions::read_write() }] {
        let mut scene = Scene::without_node();
        scene.start_with(replacing(false));
        let (path, _) = scene.file("file", REPLACED as usize);
        let (_, bytes) = scene.file("other", 777);
        let file = scene.client().open(&path, access).unwrap();
        let mut buffer = vec![0; 1000];
        assert_eq!(file.read_at(0, &mut buffer).unwrap().bytes, 777);
        assert!(buffer[..777] == bytes);
    }
    let mut scene = Scene::without_node();
    scene.start_with(replacing(true));
    let (path, _) = scene.file("file", 100);
    let error = scene.client().open(&path, OpenOptions::read()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Changed, "the same file is not asked for again");
}

#[test]
fn where_the_node_ends_as_another_file_takes_the_place_that_one_is_opened() {
    let replace: fn(&FakeNode, &Version) -> Result<()> = |node, version| {
        let at = |name: &str| std::path::Path::new(&node.pfs).join(name);
        if version.size == REPLACED {
            std::fs::rename(at("other"), at("file")).unwrap();
        }
        Err(Error::new(ErrorKind::NodeUnavailable, "opening a file", "the node ends"))
    };
    let mut scene = Scene::without_node();
    scene.start_with(Hooks { opened: replace, ..Hooks::default() });
    let (path, _) = scene.file("file", REPLACED as usize);
    let (_, bytes) = scene.file("other", 777);
    let file = scene.client().open(&path, OpenOptions::read()).unwrap();
    let mut buffer = vec![0; 1000];
    assert_eq!(file.read_at(0, &mut buffer).unwrap().bytes, 777);
    assert!(buffer[..777] == bytes);
    scene.file("file", REPLACED as usize);
    scene.file("other", 0);
    let file = scene.client().open(&path, OpenOptions::write()).unwrap();
    file.write_at(0, b"written").unwrap();
    file.close().unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), b"written");
}

#[test]
fn the_end_of_a_file_is_found_on_every_level() {
    let scene = Scene::new();
    for length in [0, 1, 100, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK] {
        let (path, bytes) = scene.file("file", length);
        for map_segments in [true, false] {
            let options = ClientOptions { map_segments, ..scene.options() };
            let client = tidepool_client::Client::connect(options);
            let file = client.open(&path, OpenOptions::read()).unwrap();
            for _ in 0..2 {
                for (offset, wanted) in [
                    (0, length),
                    (0, length + 5),
                    (length / 2, length),
                    (length, 5),
                    (length + 9, 5),
                ] {
                    let mut buffer = vec![0xee; wanted];
                    let outcome = file.read_at(offset as u64, &mut buffer).unwrap();
                    let expected = &bytes[offset.min(length)..(offset + wanted).min(length)];
                    assert_eq!(outcome.bytes, expected.len(), "{length} {offset} {wanted}");
                    assert_eq!(outcome.levels.total(), expected.len() as u64);
                    assert_eq!(&buffer[..outcome.bytes], expected);
                }
            }
            assert_eq!(file.size().unwrap(), length as u64);
        }
        std::fs::remove_file(&path).unwrap();
    }
}

#[test]
fn blocks_that_go_away_are_asked_for_again() {
    let scene = Scene::new();
    let (path, bytes) = scene.file("file", 8 * BLOCK);
    let file = scene.client().open(&path, OpenOptions::read()).unwrap();
    let mut buffer = vec![0; bytes.len()];
    for _ in 0..20 {
        scene.node.evict_all();
        let outcome = file.read_at(0, &mut buffer).unwrap();
        assert!(buffer == bytes);
        assert_eq!(outcome.levels.total(), bytes.len() as u64);
        assert!(outcome.levels.mapped < bytes.len() as u64, "they were not there");
    }
}

#[test]
fn the_cursor_and_vectors_read_the_same_bytes() {
    let scene = Scene::new();
    let (path, bytes) = scene.file("file", 4 * BLOCK + 5);
    let file = scene.client().open(&path, OpenOptions::read()).unwrap();
    let mut all = Vec::new();
    let mut buffer = vec![0; 10_007];
    loop {
        let outcome = file.read(&mut buffer).unwrap();
        if outcome.bytes == 0 {
            break;
        }
        all.extend_from_slice(&buffer[..outcome.bytes]);
    }
    assert!(all == bytes);
    assert_eq!(file.position(), bytes.len() as u64);
    let (mut one, mut two) = (vec![0; 100], vec![0; BLOCK]);
    let mut ranges = [(3, &mut one[..]), (3 * BLOCK as u64, &mut two[..])];
    let outcomes = file.read_vectored_at(&mut ranges).unwrap();
    assert_eq!(outcomes.len(), 2);
    assert_eq!((&one[..], &two[..]), (&bytes[3..103], &bytes[3 * BLOCK..4 * BLOCK]));
}

#[test]
fn sequential_readers_are_read_ahead_for() {
    let scene = Scene::new();
    let (path, bytes) = scene.file("file", 60 * BLOCK);
    let file = scene.client().open(&path, OpenOptions::read()).unwrap();
    let mut buffer = vec![0; BLOCK];
    for at in 0..60 {
        file.read_at((at * BLOCK) as u64, &mut buffer).unwrap();
        assert!(buffer == bytes[at * BLOCK..(at + 1) * BLOCK]);
    }
    assert!(scene.node.prefetches.load(Ordering::SeqCst) > 0);
    let asked = scene.node.prefetches.load(Ordering::SeqCst);
    for at in 0..60 {
        file.read_at((at * BLOCK) as u64, &mut buffer).unwrap();
    }
    // A marker behind the messages that may be under way.
    file.size().unwrap();
    let again = scene.node.prefetches.load(Ordering::SeqCst);
    assert_eq!(again, asked, "what is resident is not asked for");
}

#[test]
fn borrowed_bytes_are_the_node_s_own_and_stay() {
    let scene = Scene::new();
    let (path, bytes) = scene.file("file", 4 * BLOCK + 9);
    let (small_path, small_bytes) = scene.file("small", 1000);
    let client = scene.client();
    let file = client.open(&path, OpenOptions::read()).unwrap();
    let borrowed = file.borrow(5000, 2 * BLOCK).unwrap();
    assert!(borrowed.is_zero_copy());
    scene.node.evict_all();
    assert!(borrowed[..] == bytes[5000..5000 + 2 * BLOCK]);
    let tail = file.borrow(4 * BLOCK as u64, 100).unwrap();
    assert_eq!((&tail[..], tail.outcome().bytes), (&bytes[4 * BLOCK..], 9));
    assert!(file.borrow(1 << 40, 100).unwrap().is_empty());
    assert!(file.borrow(0, 0).unwrap().is_empty());
    let small = client.open(small_path, OpenOptions::read()).unwrap();
    let copied = small.borrow(10, 5000).unwrap();
    assert!(!copied.is_zero_copy());
    assert!(copied[..] == small_bytes[10..]);
    let counts = scene.server.as_ref().unwrap().counts();
    assert_eq!(counts.borrows, 2);
    drop(file);
    assert!(borrowed[..] == bytes[5000..5000 + 2 * BLOCK], "a loan outlives its file");
    drop((borrowed, tail));
    eventually("loans are given back", || {
        scene.server.as_ref().unwrap().counts().borrowed_bytes == 0
    });
}

#[test]
fn one_open_reads_one_version() {
    let scene = Scene::new();
    let (path, old) = scene.file("file", 3 * BLOCK);
    let client = scene.client();
    let file = client.open(&path, OpenOptions::read()).unwrap();
    let mut buffer = vec![0; BLOCK];
    file.read_at(0, &mut buffer).unwrap();
    let new = pattern(3 * BLOCK, 7);
    std::fs::write(&path, &new).unwrap();
    file.read_at(0, &mut buffer).unwrap();
    assert!(buffer == old[..BLOCK], "what is resident is of the version of the open");
    let error = file.read_at(2 * BLOCK as u64, &mut buffer).unwrap_err();
    assert_eq!((error.kind(), error.errno()), (ErrorKind::Changed, libc::ESTALE));
    let again = client.open(&path, OpenOptions::read()).unwrap();
    again.read_at(0, &mut buffer).unwrap();
    assert!(buffer == new[..BLOCK], "a new open reads the new version");
    assert_ne!(again.version().unwrap(), file.version().unwrap());
    file.read_at(0, &mut buffer).unwrap();
    assert!(buffer == old[..BLOCK]);
}

#[test]
fn names_descriptors_and_modes() {
    let scene = Scene::new();
    let (path, bytes) = scene.file("file", 2 * BLOCK);
    let client = scene.client();
    let file = client.open("tide:///file", OpenOptions::read()).unwrap();
    let mut buffer = vec![0; 100];
    file.read_at(0, &mut buffer).unwrap();
    assert!(buffer == bytes[..100]);

    let descriptor = OwnedFd::from(std::fs::File::open(&path).unwrap());
    let file = client.open_descriptor(descriptor, OpenOptions::read()).unwrap();
    file.read_at(5, &mut buffer).unwrap();
    assert!(buffer == bytes[5..105]);
    let descriptor = OwnedFd::from(std::fs::File::open(scene.directory.path()).unwrap());
    assert!(client.open_descriptor(descriptor, OpenOptions::read()).is_err());

    scene.node.evict_all();
    let memory = OpenOptions { read_mode: Some(ReadMode::Memory), ..OpenOptions::read() };
    let file = client.open(&path, memory).unwrap();
    let error = file.read_at(0, &mut buffer).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotResident);
    let bypass = OpenOptions { read_mode: Some(ReadMode::Bypass), ..OpenOptions::read() };
    let file = client.open(&path, bypass).unwrap();
    let mut all = vec![0; 2 * BLOCK];
    let outcome = file.read_at(0, &mut all).unwrap();
    assert_eq!((all, outcome.levels.mapped), (bytes, 0));

    let error = client.open("/nonexistent/file", OpenOptions::read()).unwrap_err();
    assert_eq!(error.errno(), libc::ENOENT);
    let error = client.open(scene.directory.path(), OpenOptions::read()).unwrap_err();
    assert_eq!(error.errno(), libc::EISDIR);
    let write = OpenOptions { access: Access::Write, ..OpenOptions::read() };
    let error = client.open(&path, write).unwrap().read_at(0, &mut buffer).unwrap_err();
    assert_eq!(error.errno(), libc::EBADF);
}

#[test]
fn many_threads_share_a_client_and_a_file() {
    let scene = Scene::new();
    let (path, bytes) = scene.file("file", 20 * BLOCK);
    let file = scene.client().open(&path, OpenOptions::read()).unwrap();
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (file, bytes, node) = (&file, &bytes, &scene.node);
            scope.spawn(move || {
                let mut buffer = vec![0; 30_000];
                for step in 0..400u64 {
                    let seed = (thread * 7_368_787 + step * 1_299_709) % (20 * BLOCK_BYTES);
                    let outcome = file.read_at(seed, &mut buffer).unwrap();
                    let at = seed as usize;
                    assert_eq!(buffer[..outcome.bytes], bytes[at..at + outcome.bytes]);
                    if step % 5 == 0 {
                        node.evict_some(seed);
                    }
                }
            });
        }
    });
}
