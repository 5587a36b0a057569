//! Tests of the log of decisions on a real disk: replayed, rotated, full, missing.

use std::fs;
use std::path::Path;
use std::time::Duration;

use tidepool_control::{JournalFile, JournalOptions, Record};
use tidepool_control_policy::{
    ControlPolicy, Decision, Journal, Level, Parameters, Reason, Snapshot, policy,
};

use crate::fakes::{GIB, wait_until};
use crate::skip::skip;

fn options(directory: &Path, part_bytes: usize) -> JournalOptions {
    let retry = Duration::from_millis(1);
    JournalOptions { part_bytes, retry, ..JournalOptions::at(directory.join("decisions")) }
}

/// A few hundred decisions of a policy over a demand that moves.
fn decide(journal: &mut JournalFile, decisions: u64) {
    let mut parameters = Parameters::default();
    let mut law = policy(parameters.policy);
    for number in 0..decisions {
        if number == 30 {
            parameters.policy = ControlPolicy::Dynims;
            law = policy(parameters.policy);
        }
        let snapshot = Snapshot {
            at_ns: number * 10_000_000,
            memory_total_bytes: 64 * GIB,
            available_bytes: Some(20 * GIB + (number * number * 77_777_777) % (8 * GIB)),
            ..Snapshot::default()
        };
        let decision = law.decide(&snapshot, &parameters);
        journal.record(&snapshot, &parameters, &decision);
        // As the loop does: never so fast that the thread cannot follow.
        if number % 100 == 99 {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn read(path: &Path) -> Journal {
    Journal::read(&fs::read(path).unwrap()).unwrap()
}

#[test]
fn a_log_replays_bit_for_bit() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(directory.path(), 1 << 20);
    let mut file = JournalFile::start(options.clone()).unwrap();
    decide(&mut file, 200);
    drop(file);
    let journal = read(&options.path);
    assert!(journal.from_start);
    assert_eq!((journal.entries.len(), journal.cut_bytes), (200, 0));
    let replay = journal.replay();
    assert_eq!((replay.decisions, replay.mismatches.len()), (200, 0));

    // The next controller leaves the log of the one before as the older part.
    let mut file = JournalFile::start(options.clone()).unwrap();
    decide(&mut file, 5);
    drop(file);
    assert_eq!(read(&options.older()).entries.len(), 200);
    assert_eq!(read(&options.path).entries.len(), 5);
}

#[test]
fn two_parts_of_bounded_size_are_kept() {
    let directory = tempfile::tempdir().unwrap();
    let options = options(directory.path(), 4096);
    let mut file = JournalFile::start(options.clone()).unwrap();
    decide(&mut file, 1000);
    drop(file);
    let parts = [read(&options.older()), read(&options.path)];
    assert!(parts.iter().all(|part| !part.from_start && part.cut_bytes == 0));
    assert!(parts[0].entries.last().unwrap().snapshot.at_ns < parts[1].entries[0].snapshot.at_ns);
    assert_eq!(parts[1].entries.last().unwrap().snapshot.at_ns, 999 * 10_000_000);
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 2);
    for part in [options.older(), options.path] {
        assert!(fs::metadata(part).unwrap().len() < 8192);
    }
}

#[test]
fn a_disk_that_fails_is_said_once_and_used_again_later() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("later");
    let options = options(&missing, 1 << 20);
    let mut file = JournalFile::start(options.clone()).unwrap();
    let mut notices = Vec::new();
    let snapshot = Snapshot::default();
    let parameters = Parameters::default();
    let decision = Decision {
        target_bytes: 1,
        demand_bytes: 0,
        slope_bytes_per_s: 0,
        reason: Reason::Steady,
        level: Level::Normal,
        alarms: Vec::new(),
        next_ms: 10,
    };
    for _ in 0..600 {
        file.record(&snapshot, &parameters, &decision);
        notices.extend(file.notice());
        std::thread::sleep(Duration::from_millis(2));
    }
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains("No such file"), "{notices:?}");
    fs::create_dir(&missing).unwrap();
    for _ in 0..200 {
        file.record(&snapshot, &parameters, &decision);
    }
    wait_until("the log", || options.path.exists());
    drop(file);
    assert!(!read(&options.path).entries.is_empty());
}

/// A file system of 64 KiB; `None` where the test may not mount one.
struct SmallDisk(tempfile::TempDir);

impl SmallDisk {
    fn mount() -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let flags = rustix::mount::MountFlags::empty();
        let size = c"size=64k";
        rustix::mount::mount("tidepool-test", directory.path(), "tmpfs", flags, size).ok()?;
        Some(SmallDisk(directory))
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        let _ = rustix::mount::unmount(self.0.path(), rustix::mount::UnmountFlags::DETACH);
    }
}

#[test]
fn a_full_disk_leaves_whole_entries() {
    let Some(disk) = SmallDisk::mount() else {
        skip("a_full_disk_leaves_whole_entries", "needs the right to mount");
        return;
    };
    let options = options(disk.0.path(), 1 << 20);
    let filler = disk.0.path().join("filler");
    fs::write(&filler, vec![1; 48 << 10]).unwrap();
    let mut file = JournalFile::start(options.clone()).unwrap();
    let mut notices = Vec::new();
    for _ in 0..20 {
        decide(&mut file, 200);
        notices.extend(file.notice());
    }
    assert_eq!(notices.len(), 1, "{notices:?}");
    assert!(notices[0].contains("No space left"), "{notices:?}");
    for part in [options.path.clone(), options.older()] {
        match fs::read(part) {
            Ok(bytes) if !bytes.is_empty() => {
                assert_eq!(Journal::read(&bytes).unwrap().cut_bytes, 0)
            }
            _ => {}
        }
    }
    fs::remove_file(&filler).unwrap();
    decide(&mut file, 100);
    drop(file);
    assert!(!read(&options.path).entries.is_empty());
}
