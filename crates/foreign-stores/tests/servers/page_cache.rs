//! Tests of the page cache of a directory: what is dropped, in which order, and what must stay.

use std::fs::{File, FileTimes};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;
use tidepool_control::actuator::Actuator;
use tidepool_proto::ErrorKind;
use tidepool_proto::mapping::{Access, Mapping};

use crate::support::{DEADLINE, MIB, figure, open_store, refusal, skip};

/// A directory on a disk, or a printed reason to skip: elsewhere pages cannot be dropped.
fn directory(test: &str) -> Option<TempDir> {
    const TMPFS: i64 = 0x0102_1994;
    const OVERLAY: i64 = 0x794c_7630;
    let directory = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let kind = rustix::fs::statfs(directory.path()).unwrap().f_type as i64;
    if [TMPFS, OVERLAY].contains(&kind) {
        skip(test, "the target directory is on tmpfs or an overlay, which has no pages to drop");
        return None;
    }
    Some(directory)
}

/// A resident file that was used `hours` ago.
fn file(directory: &Path, name: &str, bytes: u64, hours: u64) -> PathBuf {
    let path = directory.join(name);
    let mut file = File::create(&path).unwrap();
    file.write_all(&vec![7; bytes as usize]).unwrap();
    file.sync_all().unwrap();
    let used = SystemTime::now() - Duration::from_secs(3600 * hours);
    file.set_times(FileTimes::new().set_accessed(used).set_modified(used)).unwrap();
    path
}

/// Resident bytes of a file, counted by another way than the product's first one.
fn resident_bytes(path: &Path) -> u64 {
    let file = File::open(path).unwrap();
    let length = file.metadata().unwrap().len() as usize;
    let mapping = Mapping::shared(&file, 0, length, Access::Nothing).unwrap();
    mapping.cached_bytes().unwrap() as u64
}

fn store(directory: &Path, more: &str) -> Box<dyn Actuator> {
    open_store(&entry(directory, more)).unwrap()
}

fn entry(directory: &Path, more: &str) -> String {
    format!(
        "kind = 'page-cache'\nname = 'pages'\npath = '{}'\n\
         capacity_min_bytes = 0\ncapacity_max_bytes = '1GiB'\n{more}",
        directory.display()
    )
}

#[test]
fn the_files_used_longest_ago_go_first_and_no_more_than_needed() {
    let Some(directory) = directory("page cache") else { return };
    let old = file(directory.path(), "old", 48 * MIB, 30);
    std::fs::create_dir(directory.path().join("below")).unwrap();
    let middle = file(directory.path(), "below/middle", 48 * MIB, 20);
    let new = file(directory.path(), "new", 48 * MIB, 10);
    let store = store(directory.path(), "");
    assert_eq!(store.state().unwrap().resident_bytes, 144 * MIB);

    let done = store.resize(80 * MIB, DEADLINE).unwrap();
    let left = [&old, &middle, &new].map(|path| resident_bytes(path));
    assert_eq!(left[0], 0);
    assert!((16 * MIB..=32 * MIB).contains(&left[1]), "{left:?}");
    assert_eq!(left[2], 48 * MIB);
    let gone = 144 * MIB - left.iter().sum::<u64>();
    assert_eq!(done.freed_bytes, gone);
    assert_eq!(store.state().unwrap().resident_bytes, 144 * MIB - gone);
    assert_eq!(store.resize(1 << 30, DEADLINE).unwrap().freed_bytes, 0);
    store.resize(0, DEADLINE).unwrap();
    assert_eq!([&old, &middle, &new].map(|path| resident_bytes(path)), [0; 3]);
}

#[test]
fn dirty_pages_stay_dirty_and_are_told_as_held() {
    let Some(directory) = directory("page cache") else { return };
    let path = file(directory.path(), "file", 32 * MIB, 1);
    let file = File::options().write(true).open(&path).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, &[9; 4096], 5 * MIB).unwrap();
    let store = store(directory.path(), "");
    let done = store.resize(0, DEADLINE).unwrap();
    let left = resident_bytes(&path);
    assert_eq!(done.freed_bytes, 32 * MIB - left);
    // The unit that holds the page, or nothing if the system happened to write it first.
    assert!(left <= 4 * MIB, "{left}");
    assert_eq!(store.state().unwrap().held_bytes, left);
}

#[test]
fn nothing_outside_of_the_directory_is_touched() {
    let Some(directory) = directory("page cache") else { return };
    let inside = directory.path().join("inside");
    std::fs::create_dir(&inside).unwrap();
    let outside = file(directory.path(), "outside", 8 * MIB, 50);
    std::os::unix::fs::symlink(&outside, inside.join("link")).unwrap();
    std::os::unix::fs::symlink(directory.path(), inside.join("loop")).unwrap();
    rustix::fs::mknodat(
        rustix::fs::CWD,
        inside.join("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::from_raw_mode(0o600),
        0,
    )
    .unwrap();
    file(&inside, "file", MIB, 1);
    let store = store(&inside, "");
    assert_eq!(store.state().unwrap().resident_bytes, MIB);
    assert_eq!(store.resize(0, DEADLINE).unwrap().freed_bytes, MIB);
    assert_eq!(resident_bytes(&outside), 8 * MIB);
}

#[test]
fn files_that_come_and_go_and_a_passed_deadline_are_no_errors() {
    let Some(directory) = directory("page cache") else { return };
    let paths: Vec<PathBuf> =
        (0..20).map(|n| file(directory.path(), &format!("f{n}"), MIB, n)).collect();
    let store = store(directory.path(), "files_max = 15\n");
    assert_eq!(store.state().unwrap().resident_bytes, 15 * MIB);
    let late = store.resize(0, Duration::ZERO).unwrap();
    assert_eq!((late.freed_bytes, late.resident_bytes), (0, 15 * MIB));
    for path in &paths[..10] {
        std::fs::remove_file(path).unwrap();
    }
    assert_eq!(store.resize(0, DEADLINE).unwrap().freed_bytes, 10 * MIB);
}

#[test]
fn what_is_no_directory_is_refused() {
    let error = refusal(&entry(Path::new("/proc/self/no-such"), ""));
    assert_eq!(error.kind(), ErrorKind::InvalidInput, "{error}");
    assert!(error.remedy_text().is_some());
    assert_eq!(refusal(&entry(Path::new("/dev/null"), "")).kind(), ErrorKind::InvalidInput);
}

/// Figures for the guide: `cargo test -p tidepool-control page_cache -- --ignored`.
#[test]
#[ignore = "long: measures; prints seconds a GiB"]
fn release_rate() {
    let Some(directory) = directory("page cache") else { return };
    for n in 0..8 {
        file(directory.path(), &format!("f{n}"), 128 * MIB, n);
    }
    let store = store(directory.path(), "");
    let done = store.resize(0, DEADLINE).unwrap();
    figure("page cache", &format!("{done:?}"));
}
