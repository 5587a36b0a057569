//! Tests of the fault store: each effect, the bytes that a power failure takes, and the files that
//! a killed process leaves.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use tidepool_pfs::fault::{PowerLoss, roll_back};
use tidepool_pfs::{FaultStore, LowerFile, LowerStore};

use crate::support::{AlignedBuffer, on_every_file_system, open_store, pattern};

fn faulty(root: &Path, rules: &str) -> Arc<FaultStore> {
    FaultStore::new(open_store(root), rules.parse().unwrap()).unwrap()
}

fn open(store: &dyn LowerStore, path: &str) -> Arc<dyn LowerFile> {
    let path = store.root().join(path);
    store.file(File::options().read(true).write(true).open(path).unwrap().into()).unwrap()
}

fn create(store: &dyn LowerStore, path: &str) -> Arc<dyn LowerFile> {
    File::create_new(store.root().join(path)).unwrap();
    open(store, path)
}

#[test]
fn effects_reach_the_caller() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    std::fs::write(root.join("f"), pattern(10_000, 1)).unwrap();
    let rules = "read:errno=EIO@2;read:short@3;write:enospc-after=150;version:errno=ESTALE@2;\
                 sync:errno=EDQUOT;sync-directory:errno=EROFS;xattr:errno=EPERM;set-size:errno=EIO";
    let store = faulty(root, rules);
    let file = open(&*store, "f");
    let mut buffer = AlignedBuffer::new(8192);
    assert_eq!(file.read_block(0, buffer.bytes()).unwrap(), 8192);
    assert_eq!(file.read_at(0, buffer.bytes()).unwrap_err().errno(), libc::EIO);
    assert_eq!(file.read_block(0, buffer.bytes()).unwrap(), 4096, "short");
    assert_eq!(file.read_at(0, buffer.bytes()).unwrap(), 8192);
    file.write_at(0, &[9; 100]).unwrap();
    assert_eq!(file.write_at(100, &[8; 100]).unwrap_err().errno(), libc::ENOSPC);
    assert_eq!(file.append(&[7]).unwrap_err().errno(), libc::ENOSPC);
    let now = std::fs::read(root.join("f")).unwrap();
    assert_eq!((now[149], now[150], now.len()), (8, pattern(10_000, 1)[150], 10_000));
    file.version().unwrap();
    assert_eq!(file.version().unwrap_err().errno(), libc::ESTALE);
    assert_eq!(file.sync(true).unwrap_err().errno(), libc::EDQUOT);
    assert_eq!(file.sync_directory_entry().unwrap_err().errno(), libc::EROFS);
    assert_eq!(file.set_xattr("user.a", b"b").unwrap_err().errno(), libc::EPERM);
    assert_eq!(file.set_size(1).unwrap_err().errno(), libc::EIO);
    store.set_rules(&"".parse().unwrap());
    file.set_size(1).unwrap();
    assert!(store.lose_power().is_err(), "nothing was remembered");
}

#[test]
fn slow_and_rated_calls_take_at_least_their_time() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    std::fs::write(root.join("f"), pattern(1 << 20, 1)).unwrap();
    let store = faulty(root, "sync:slow=20ms;rate=10MB/s");
    let file = open(&*store, "f");
    let began = Instant::now();
    file.sync(false).unwrap();
    assert!(began.elapsed() >= Duration::from_millis(20));
    // Reads and writes of two threads share 10 MB/s: 1.5 MB in all.
    let began = Instant::now();
    std::thread::scope(|scope| {
        scope.spawn(|| file.read_at(0, &mut vec![0; 1_000_000]).unwrap());
        scope.spawn(|| file.write_at(0, &vec![0; 500_000]).unwrap());
    });
    assert!(began.elapsed() >= Duration::from_millis(140), "{:?}", began.elapsed());
}

#[test]
fn power_takes_what_was_not_synced() {
    on_every_file_system(|root, fs_type| {
        let old = pattern(300_000, 1);
        std::fs::write(root.join("old"), &old).unwrap();
        std::fs::write(root.join("kept"), &old).unwrap();
        let store = faulty(root, "lose-unsynced");
        let file = open(&*store, "old");
        file.write_at(1000, &pattern(5000, 2)).unwrap();
        file.sync(true).unwrap();
        let synced = std::fs::read(root.join("old")).unwrap();
        // Overwrites, overlapping; an append; a shrink, a growth and a write into what was cut.
        file.write_at(2000, &pattern(5000, 3)).unwrap();
        file.write_at(4000, &pattern(5000, 4)).unwrap();
        file.append(&pattern(5000, 5)).unwrap();
        file.set_size(100_000).unwrap();
        file.set_size(290_000).unwrap();
        file.write_at(200_000, &pattern(50_000, 6)).unwrap();
        let punch = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        match file.allocate(punch, 0, 8192) {
            Err(error) if fs_type == "pfs" => assert_eq!(error.errno(), libc::ENOTSUP),
            other => other.unwrap(),
        }
        let kept = open(&*store, "kept");
        kept.write_at(0, b"synced").unwrap();
        kept.sync(false).unwrap();

        let loss = store.lose_power().unwrap();
        assert_eq!(loss.files_rolled_back, 1, "{fs_type}");
        assert_eq!(loss.names_lost, 0, "{fs_type}");
        assert!(std::fs::read(root.join("old")).unwrap() == synced, "{fs_type}");
        assert_eq!(&std::fs::read(root.join("kept")).unwrap()[..6], b"synced");
        let dead = file.read_at(0, &mut [0; 10]).unwrap_err();
        assert_eq!(dead.errno(), libc::EIO, "a file of before the failure is dead");
        open(&*store, "old").write_at(0, b"new life").unwrap();
        assert_eq!(store.lose_power().unwrap().files_rolled_back, 1);
        assert!(std::fs::read(root.join("old")).unwrap() == synced, "{fs_type}");
    });
}

#[test]
fn power_takes_names_whose_directory_was_not_synced() {
    on_every_file_system(|root, fs_type| {
        std::fs::write(root.join("before"), b"x").unwrap();
        let store = faulty(root, "lose-unsynced");
        std::fs::create_dir_all(root.join("a/b")).unwrap();
        std::fs::create_dir_all(root.join("lost/dir")).unwrap();
        for (path, sync_name) in [("a/b/durable", true), ("lost/dir/content-only", false)] {
            let file = create(&*store, path);
            file.write_at(0, b"content").unwrap();
            file.sync(false).unwrap();
            if sync_name {
                file.sync_directory_entry().unwrap();
            }
        }
        let neither = create(&*store, "a/b/neither");
        neither.write_at(0, b"content").unwrap();
        std::fs::rename(root.join("before"), root.join("moved")).unwrap();

        let loss = store.lose_power().unwrap();
        assert_eq!(loss.names_lost, 3, "{fs_type}");
        let names = |path: &str| -> Vec<String> {
            let entries = std::fs::read_dir(root.join(path)).unwrap();
            let mut names: Vec<_> =
                entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
            names.sort();
            names
        };
        assert_eq!(names(""), ["a", "before"], "{fs_type}");
        assert_eq!(names("a/b"), ["durable"], "{fs_type}");
        assert_eq!(std::fs::read(root.join("a/b/durable")).unwrap(), b"content");
    });
}

#[test]
fn a_replacing_rename_leaves_one_of_both() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    std::fs::write(root.join("target"), b"old").unwrap();
    let store = faulty(root, "lose-unsynced");
    let file = create(&*store, "new");
    file.write_at(0, b"new").unwrap();
    file.sync(false).unwrap();
    std::fs::rename(root.join("new"), root.join("target")).unwrap();
    store.lose_power().unwrap();
    assert_eq!(std::fs::read(root.join("target")).unwrap(), b"new");
}

#[test]
fn a_journal_outlives_its_process() {
    let directory = tempfile::tempdir().unwrap();
    let journal = tempfile::tempdir().unwrap();
    let root = directory.path();
    std::fs::write(root.join("old"), pattern(10_000, 1)).unwrap();
    let store = faulty(root, &format!("lose-unsynced={}", journal.path().display()));
    let file = open(&*store, "old");
    file.write_at(0, &[0; 100]).unwrap();
    file.append(b"tail").unwrap();
    let durable = create(&*store, "durable");
    durable.append(b"all of it").unwrap();
    durable.sync(false).unwrap();
    durable.sync_directory_entry().unwrap();
    create(&*store, "lost");
    // As if killed: nothing of the store runs any more.
    std::mem::forget((store, file, durable));
    let loss = roll_back(root, journal.path()).unwrap();
    let expected = PowerLoss { files_rolled_back: 1, bytes_restored: 100, names_lost: 1 };
    assert_eq!(loss, expected);
    assert!(std::fs::read(root.join("old")).unwrap() == pattern(10_000, 1));
    assert_eq!(std::fs::read(root.join("durable")).unwrap(), b"all of it");
    assert_eq!(roll_back(root, journal.path()).unwrap(), PowerLoss::default(), "used up");
}

#[test]
fn a_huge_sparse_file_is_cut_without_reading_its_holes() {
    let directory = tempfile::tempdir().unwrap();
    let root = directory.path();
    let sparse = File::create_new(root.join("sparse")).unwrap();
    sparse.set_len(1 << 40).unwrap();
    sparse.write_all_at(b"needle", 1 << 39).unwrap();
    let store = faulty(root, "lose-unsynced");
    open(&*store, "sparse").set_size(0).unwrap();
    let loss = store.lose_power().unwrap();
    assert_eq!(loss.files_rolled_back, 1);
    assert!(loss.bytes_restored < 1 << 20);
    let mut needle = [0; 6];
    sparse.read_exact_at(&mut needle, 1 << 39).unwrap();
    assert_eq!(&needle, b"needle");
    assert_eq!(sparse.metadata().unwrap().len(), 1 << 40);
}
