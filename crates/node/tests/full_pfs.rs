//! A PFS, or a quota on it, without room for what is in memory alone: nothing is lost, not every
//! file is tried, operators are told, and it ends by itself when there is room.

mod support;

use std::os::unix::fs::chown;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use support::hooked::{Call, Hooks};
use support::*;
use tidepool_proto::admin::{AdminReply, AdminRequest, AdminService};
use tidepool_proto::control::{ControlStatus, PFS_FULL};
use tidepool_proto::{Error, MemorySize, OpenFile, WriteMode};

const PATIENCE: Duration = Duration::from_secs(60);
const FILES: u64 = 60;

fn name(number: u64) -> String {
    format!("f{number}")
}

/// Bytes of a file; later ones are longer.
fn bytes_of(number: u64) -> Vec<u8> {
    content(number, 1000 + 10 * number as usize)
}

fn put_in_memory(fixture: &Fixture, numbers: impl Iterator<Item = u64>) {
    let wish = Wish { write: Some(WriteMode::Memory), ..Wish::default() };
    for number in numbers {
        let writer = fixture.writer(&name(number), wish);
        writer.write_at(0, &bytes_of(number)).unwrap();
        writer.flush().unwrap();
    }
}

/// From now on writes and syncs of the kind `held` find no room. Counts them.
fn fill_up(hooks: &Hooks, held: Call, errno: i32) -> Arc<AtomicU64> {
    let tried = Arc::new(AtomicU64::new(0));
    let seen = tried.clone();
    hooks.set(move |call, make| {
        if call != held {
            return make();
        }
        seen.fetch_add(1, Ordering::Relaxed);
        Err(Error::pfs("writing", std::io::Error::from_raw_os_error(errno)))
    });
    tried
}

fn control(fixture: &Fixture) -> ControlStatus {
    match fixture.node.admin(AdminRequest::ControlStatus, None, 0).unwrap() {
        AdminReply::Control(status) => *status,
        other => panic!("{other:?}"),
    }
}

fn metric(fixture: &Fixture) -> String {
    let AdminReply::Metrics(text) = fixture.node.admin(AdminRequest::Metrics, None, 0).unwrap()
    else {
        panic!("no metrics")
    };
    let alarm = format!("tidepool_control_alarm{{alarm=\"{PFS_FULL}\"}} ");
    text.lines().find_map(|line| line.strip_prefix(&alarm)).unwrap().to_owned()
}

fn shrink(fixture: &Fixture) {
    fixture.node.admin(AdminRequest::Resize { size: MemorySize::Bytes(0) }, None, 0).unwrap();
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn assert_on_pfs(fixture: &Fixture, numbers: impl Iterator<Item = u64>) {
    for number in numbers {
        let read = std::fs::read(fixture.path(&name(number))).unwrap();
        assert!(read == bytes_of(number), "file {number}");
    }
}

#[test]
fn a_full_pfs_is_asked_once_and_again_after_a_pause() {
    let (fixture, hooks) = Fixture::hooked(|_| ());
    put_in_memory(&fixture, 0..FILES);
    let tried = fill_up(&hooks, Call::Write, libc::ENOSPC);
    shrink(&fixture);
    let tries = tried.load(Ordering::Relaxed);
    assert!((1..FILES / 4).contains(&tries), "the next would find no room either: {tries}");
    assert_eq!(fixture.node.status().memory_only_files, FILES, "no byte is lost");
    hooks.clear();
    until("there is room again", || {
        shrink(&fixture);
        fixture.node.status().memory_only_files == 0
    });
    assert_on_pfs(&fixture, 0..FILES);
}

#[test]
fn the_alarm_of_a_full_pfs_is_up_as_long_as_it_is() {
    let (fixture, hooks) = Fixture::hooked(|_| ());
    put_in_memory(&fixture, 0..FILES);
    assert!(!control(&fixture).has_alarm(PFS_FULL) && metric(&fixture) == "0");
    let tried = fill_up(&hooks, Call::Write, libc::ENOSPC);
    shrink(&fixture);
    let full = control(&fixture).pfs_full.unwrap();
    assert!(full.why.contains("No space left") && full.users.is_empty(), "{full:?}");
    assert_eq!(metric(&fixture), "1");
    // Nobody needs memory any more, and the node tries again all the same.
    let before = tried.load(Ordering::Relaxed);
    until("it is tried again", || tried.load(Ordering::Relaxed) > before);
    assert!(control(&fixture).has_alarm(PFS_FULL), "it is still full");
    hooks.clear();
    until("the alarm ends", || !control(&fixture).has_alarm(PFS_FULL));
    assert_eq!(metric(&fixture), "0");
    let left = fixture.node.status().memory_only_files;
    assert_eq!(left, FILES - 1, "one file showed that there is room; nobody asked for the others");
}

#[test]
fn the_alarm_ends_with_the_last_file_that_needs_room() {
    let (fixture, hooks) = Fixture::hooked(|_| ());
    put_in_memory(&fixture, 0..1);
    fill_up(&hooks, Call::Write, libc::ENOSPC);
    shrink(&fixture);
    assert!(control(&fixture).has_alarm(PFS_FULL));
    let id = fixture.open(&name(0)).version().id;
    std::fs::remove_file(fixture.path(&name(0))).unwrap();
    tidepool_proto::FileService::removed(&*fixture.node, id);
    assert!(!control(&fixture).has_alarm(PFS_FULL));
}

#[test]
fn a_drain_of_a_full_pfs_tries_a_few_files_and_says_what_is_left() {
    let (fixture, hooks) = Fixture::hooked(|_| ());
    put_in_memory(&fixture, 0..FILES);
    let tried = fill_up(&hooks, Call::Write, libc::ENOSPC);
    let error = fixture.node.drain().unwrap_err();
    let tries = tried.load(Ordering::Relaxed);
    assert!((2..FILES / 4).contains(&tries), "{tries} of {FILES}");
    assert_eq!(error.errno(), libc::ENOSPC);
    let said = error.to_string();
    for word in ["the PFS is full", "60 files", "make room on the PFS", "nothing is lost"] {
        assert!(said.contains(word), "{word} is missing in: {said}");
    }
    let status = fixture.node.status();
    assert_eq!((status.memory_only_files, status.draining), (FILES, false), "it serves on");
    assert!(control(&fixture).has_alarm(PFS_FULL));
    let before = tried.load(Ordering::Relaxed);
    fixture.node.drain_to_end().unwrap_err();
    let tries = tried.load(Ordering::Relaxed) - before;
    assert!(tries >= FILES, "what ends with the node is tried each: {tries}");
    for number in 0..FILES {
        assert!(fixture.read(&name(number)).0 == bytes_of(number), "file {number} by the node");
    }
    hooks.clear();
    fixture.node.drain().unwrap();
    assert_on_pfs(&fixture, 0..FILES);
}

#[test]
fn a_user_over_quota_keeps_nobody_elses_files_in_memory() {
    let (fixture, hooks) = Fixture::hooked(|_| ());
    put_in_memory(&fixture, 0..FILES);
    let (over, others) = (FILES / 2, FILES / 2..FILES);
    for number in 0..over {
        if chown(fixture.path(&name(number)), Some(12345), None).is_err() {
            println!("SKIPPED a_user_over_quota_keeps_nobody_elses_files_in_memory: not root");
            return;
        }
    }
    hooks.use_up_quota_of(Some(12345));
    shrink(&fixture);
    assert_eq!(fixture.node.status().memory_only_files, over, "the others are on the PFS");
    assert_on_pfs(&fixture, others.clone());
    assert_eq!(control(&fixture).pfs_full.unwrap().users, [12345]);
    put_in_memory(&fixture, FILES..FILES + 1);
    let said = fixture.node.drain().unwrap_err().to_string();
    assert!(said.contains("a quota on the PFS is full") && said.contains("30 files"), "{said}");
    assert_on_pfs(&fixture, FILES..FILES + 1);
    hooks.use_up_quota_of(None);
    fixture.node.drain().unwrap();
    assert!(!control(&fixture).has_alarm(PFS_FULL));
    assert_on_pfs(&fixture, 0..FILES);
}

#[test]
fn a_sync_without_room_is_an_alarm_until_one_finds_some() {
    let (fixture, hooks) = Fixture::hooked(|_| ());
    let writer: Arc<dyn OpenFile> = fixture.writer("through", Wish::default());
    writer.write_at(0, &content(1, 5000)).unwrap();
    fill_up(&hooks, Call::Sync, libc::EDQUOT);
    assert_eq!(writer.sync(false).unwrap_err().errno(), libc::EDQUOT);
    let full = control(&fixture).pfs_full.unwrap();
    assert_eq!((full.dirty_bytes, full.again_s), (5000, None));
    hooks.clear();
    writer.sync(false).unwrap();
    assert!(!control(&fixture).has_alarm(PFS_FULL));
    fill_up(&hooks, Call::Sync, libc::ENOSPC);
    writer.write_at(0, &content(2, 5000)).unwrap();
    writer.flush().unwrap_err();
    assert!(control(&fixture).has_alarm(PFS_FULL));
    drop(writer);
    assert!(!control(&fixture).has_alarm(PFS_FULL), "who wrote it was told");
}
