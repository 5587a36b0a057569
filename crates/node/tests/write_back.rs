//! Memory-only files are written back when memory is needed: the largest first, several at a time,
//! and whatever the PFS does with one of them, the others go.

mod support;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use support::hooked::{Call, Hooks};
use support::*;
use tidepool_proto::admin::{AdminReply, AdminRequest, AdminService};
use tidepool_proto::config::WriteBackCheck;
use tidepool_proto::control::Govern;
use tidepool_proto::{Error, MemorySize, WriteMode};

const PATIENCE: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;

fn put_in_memory(fixture: &Fixture, name: &str, bytes: &[u8]) {
    let wish = Wish { write: Some(WriteMode::Memory), ..Wish::default() };
    let writer = fixture.writer(name, wish);
    writer.write_at(0, bytes).unwrap();
    writer.flush().unwrap();
}

/// A node of which a controller may take all, with this many transfers.
fn node(transfers: u32) -> (Fixture, Arc<Hooks>) {
    Fixture::hooked(move |config| {
        config.transfers = transfers;
        config.control.memory_min_bytes = 0;
    })
}

/// Files of the same length, and their bytes.
fn put_many(fixture: &Fixture, count: u64, bytes: usize) -> Vec<(String, Vec<u8>)> {
    let files = (0..count).map(|number| (format!("f{number}"), content(number, bytes)));
    files.inspect(|(name, bytes)| put_in_memory(fixture, name, bytes)).collect()
}

fn assert_on_pfs(fixture: &Fixture, files: &[(String, Vec<u8>)]) {
    for (name, bytes) in files {
        assert!(std::fs::read(fixture.path(name)).unwrap() == *bytes, "{name}");
    }
}

fn shrink_to(fixture: &Fixture, capacity_bytes: u64) {
    fixture
        .node
        .admin(AdminRequest::Resize { size: MemorySize::Bytes(capacity_bytes) }, None, 0)
        .unwrap();
}

/// As a controller does it.
fn govern(fixture: &Fixture, capacity_bytes: u64) {
    let request = Govern { capacity_bytes: Some(capacity_bytes), ..Govern::default() };
    fixture.node.admin(AdminRequest::Govern(request), None, 0).unwrap();
}

fn left(fixture: &Fixture) -> u64 {
    fixture.node.status().memory_only_files
}

fn rate(fixture: &Fixture) -> u64 {
    match fixture.node.admin(AdminRequest::ControlStatus, None, 0).unwrap() {
        AdminReply::Control(status) => status.write_back_bytes_per_s,
        other => panic!("{other:?}"),
    }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// The first writes hang until the test, or its end, lets them go.
struct Hanging(Arc<(Mutex<(usize, usize)>, Condvar)>);

impl Hanging {
    fn hold_first(hooks: &Hooks, count: usize) -> Hanging {
        let hanging = Arc::new((Mutex::new((0, count)), Condvar::new()));
        let held = hanging.clone();
        hooks.set(move |call, make| {
            if call == Call::Write {
                let (state, changed) = &*held;
                let mut state = state.lock().unwrap();
                if state.0 < state.1 {
                    state.0 += 1;
                    let _free = changed.wait_while(state, |(_, count)| *count > 0).unwrap();
                }
            }
            make()
        });
        Hanging(hanging)
    }

    fn waiting(&self) -> usize {
        self.0.0.lock().unwrap().0
    }

    fn release(&self) {
        self.0.0.lock().unwrap().1 = 0;
        self.0.1.notify_all();
    }
}

impl Drop for Hanging {
    fn drop(&mut self) {
        self.release();
    }
}

#[test]
fn the_largest_files_go_first_and_no_more_than_are_needed() {
    let (fixture, _hooks) = node(8);
    for number in 0..200 {
        put_in_memory(&fixture, &format!("small{number}"), &content(number, 3000));
    }
    let large = put_many(&fixture, 2, 8 * MIB);
    let resident_bytes = fixture.node.status().store.resident_bytes;
    shrink_to(&fixture, resident_bytes - 2 * MIB as u64);
    assert_eq!(left(&fixture), 201, "one large file is enough");
    assert_on_pfs(&fixture, &large[..1]);
    shrink_to(&fixture, resident_bytes - 10 * MIB as u64);
    assert_eq!(left(&fixture), 200, "the other is next");
    assert_on_pfs(&fixture, &large);
}

#[test]
fn several_files_are_written_down_at_a_time() {
    let (fixture, hooks) = node(8);
    let files = put_many(&fixture, 30, 3000);
    let (now, most) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (beside, seen) = (now.clone(), most.clone());
    hooks.set(move |call, make| {
        if call != Call::Write {
            return make();
        }
        seen.fetch_max(beside.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        // Long enough for others to begin, and too short to leave its place to them.
        std::thread::sleep(Duration::from_millis(30));
        let made = make();
        beside.fetch_sub(1, Ordering::SeqCst);
        made
    });
    shrink_to(&fixture, 0);
    assert!(most.load(Ordering::SeqCst) > 1, "one after the other");
    assert_eq!((left(&fixture), now.load(Ordering::SeqCst)), (0, 0));
    assert_on_pfs(&fixture, &files);
}

#[test]
fn a_file_that_hangs_keeps_no_others_in_memory() {
    for transfers in [1, 8] {
        let (fixture, hooks) = node(transfers);
        let files = put_many(&fixture, 12, 3000);
        let hanging = Hanging::hold_first(&hooks, 1);
        // As a controller, which asks again and again.
        until("all others are written back", || {
            govern(&fixture, 0);
            left(&fixture) == 1
        });
        assert_eq!(hanging.waiting(), 1);
        // By hand: it waits no longer than there is hope.
        shrink_to(&fixture, 0);
        assert_eq!(left(&fixture), 1);
        let whole = files.iter().filter(|(name, bytes)| {
            std::fs::read(fixture.path(name)).is_ok_and(|read| read == *bytes)
        });
        assert_eq!(whole.count(), 11);
        hanging.release();
        until("it ends well", || left(&fixture) == 0);
        assert_on_pfs(&fixture, &files);
    }
}

#[test]
fn a_drain_writes_all_others_down_while_one_hangs_and_waits_for_it() {
    for transfers in [1, 8] {
        let (fixture, hooks) = node(transfers);
        let files = put_many(&fixture, 12, 3000);
        std::thread::scope(|scope| {
            // Let go also where this panics, so that no thread is left waiting.
            let hanging = Hanging::hold_first(&hooks, 1);
            let node = fixture.node.clone();
            let drain = scope.spawn(move || node.drain());
            until("all others are written back", || left(&fixture) == 1);
            assert!(!drain.is_finished(), "it waits for the last");
            hanging.release();
            drain.join().unwrap().unwrap();
        });
        assert_on_pfs(&fixture, &files);
    }
}

#[test]
fn a_drain_that_is_undone_waits_for_no_file_that_hangs() {
    let (fixture, hooks) = node(8);
    let files = put_many(&fixture, 3, 3000);
    let hanging = Hanging::hold_first(&hooks, 1);
    let node = fixture.node.clone();
    let drain = std::thread::spawn(move || node.drain());
    until("one hangs", || hanging.waiting() == 1);
    fixture.node.resume();
    let said = drain.join().unwrap().unwrap_err().to_string();
    assert!(said.contains("the drain was undone"), "{said}");
    hanging.release();
    fixture.node.drain().unwrap();
    assert_on_pfs(&fixture, &files);
}

#[test]
fn the_rate_is_known_to_be_low_before_the_first_file_is_written_down() {
    let (fixture, hooks) = node(8);
    put_many(&fixture, 4, MIB);
    let hanging = Hanging::hold_first(&hooks, 4);
    assert_eq!(rate(&fixture), 0);
    until("the rate is told", || {
        govern(&fixture, 0);
        rate(&fixture) > 0
    });
    assert_eq!(left(&fixture), 4, "nothing came yet");
    // 4 MiB in a quarter of a second and more.
    assert!(rate(&fixture) <= 4 * 4 * MIB as u64, "{}", rate(&fixture));
    hanging.release();
    until("all is written back", || left(&fixture) == 0);
}

#[test]
fn a_pfs_that_fails_is_asked_a_few_times_and_again_after_a_pause() {
    const FILES: u64 = 100;
    for errno in [libc::EIO, libc::EROFS, libc::ESTALE] {
        let (fixture, hooks) = node(8);
        let files = put_many(&fixture, FILES, 2000);
        let tried = Arc::new(AtomicU64::new(0));
        let seen = tried.clone();
        hooks.set(move |call, make| {
            if call != Call::Write {
                return make();
            }
            seen.fetch_add(1, Ordering::Relaxed);
            Err(Error::pfs("writing", std::io::Error::from_raw_os_error(errno)))
        });
        shrink_to(&fixture, 0);
        let tries = tried.load(Ordering::Relaxed);
        assert!((1..FILES / 2).contains(&tries), "the others fail alike: {tries}");
        assert_eq!(left(&fixture), FILES, "no byte is lost");
        hooks.clear();
        until("the PFS takes them again", || {
            shrink_to(&fixture, 0);
            left(&fixture) == 0
        });
        assert_on_pfs(&fixture, &files);
    }
}

#[test]
fn what_the_pfs_does_not_give_back_stays_in_memory() {
    let (fixture, hooks) = Fixture::hooked(|config| config.write_back_check = WriteBackCheck::All);
    let bytes = content(3, 3 * MIB);
    put_in_memory(&fixture, "file", &bytes);
    let path = fixture.path("file");
    hooks.set(move |call, make| {
        make()?;
        if call == Call::Write {
            overwrite(&path, 2 * MIB as u64 + 5, b"lost");
        }
        Ok(())
    });
    let told = fixture.node.drain().unwrap_err();
    assert!(told.to_string().contains("not the same"), "{told}");
    hooks.clear();
    assert_eq!(fixture.node.status().memory_only_files, 1);
    assert!(fixture.read("file").0 == bytes);
    fixture.node.drain().unwrap();
    assert!(std::fs::read(fixture.path("file")).unwrap() == bytes);
}
