//! A PFS that does not answer holds up whoever asked it, and nobody else.

mod support;

use std::os::unix::fs::MetadataExt;
use std::sync::mpsc;
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use support::hooked::{Call, Hooks};
use support::*;
use tidepool_proto::admin::{AdminReply, AdminRequest, AdminService};
use tidepool_proto::config::DirectoryRule;
use tidepool_proto::control::Govern;
use tidepool_proto::{Access, FileId, FileService, MemorySize, OpenFile, WriteMode};

const PATIENCE: Duration = Duration::from_secs(30);

/// Calls that wait until the test lets them go.
#[derive(Default)]
struct Stall {
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Stall {
    fn hold(self: &Arc<Self>, hooks: &Hooks, held: Call) {
        let stall = self.clone();
        hooks.set(move |call, make| {
            if call == held {
                let mut state = stall.state.lock().unwrap();
                state.0 += 1;
                stall.changed.notify_all();
                let _free = stall.changed.wait_while(state, |(_, free)| !*free).unwrap();
            }
            make()
        });
    }

    fn wait_for(&self, waiting: usize) {
        let state = self.state.lock().unwrap();
        let few = |(now, _): &mut (usize, bool)| *now < waiting;
        let (_state, timeout) = self.changed.wait_timeout_while(state, PATIENCE, few).unwrap();
        assert!(!timeout.timed_out(), "the PFS was not asked");
    }

    fn release(&self) {
        self.state.lock().unwrap().1 = true;
        self.changed.notify_all();
    }
}

/// Lets everything go when a test ends, also by a panic: no thread is left waiting.
struct Relief(Arc<Stall>);

impl Drop for Relief {
    fn drop(&mut self) {
        self.0.release();
    }
}

fn memory_writer(fixture: &Fixture, name: &str) -> Arc<dyn OpenFile> {
    let wish = Wish { write: Some(WriteMode::Memory), ..Wish::default() };
    let writer = fixture.writer(name, wish);
    writer.write_at(0, &content(1, 5 << 20)).unwrap();
    writer.flush().unwrap();
    writer
}

/// Asks what operators and the controller ask, from another thread; fails where that waits.
fn assert_answers(fixture: &Fixture) {
    let node = fixture.node.clone();
    let (answered, answers) = mpsc::channel();
    std::thread::spawn(move || {
        let status = node.status();
        assert_eq!((status.memory_only_files, status.memory_only_bytes), (1, 5 << 20));
        answered.send("status").unwrap();
        let reply = node.admin(AdminRequest::Govern(Govern::default()), None, 0).unwrap();
        let AdminReply::Governed(governed) = reply else { panic!("{reply:?}") };
        assert!(governed.resident_bytes >= 5 << 20);
        answered.send("govern").unwrap();
        node.admin(AdminRequest::ControlStatus, None, 0).unwrap();
        answered.send("control status").unwrap();
        node.housekeep();
        answered.send("housekeeping").unwrap();
    });
    for question in ["status", "govern", "control status", "housekeeping"] {
        assert_eq!(answers.recv_timeout(PATIENCE), Ok(question), "waits for the PFS");
    }
}

#[test]
fn opens_that_wait_for_the_pfs_stop_neither_status_nor_controller_nor_upkeep() {
    let (fixture, hooks) = Fixture::hooked(|_| ());
    let _writer = memory_writer(&fixture, "memory");
    let names = ["a", "b", "c"];
    for name in names {
        fixture.put(name, &content(2, 3000));
        fixture.read(name);
    }
    let stall = Arc::<Stall>::default();
    // The first question of an open tells which file it is; what holds locks is the next.
    stall.hold(&hooks, Call::GetAttribute);
    for name in names {
        overwrite(&fixture.path(name), 0, b"changed");
    }
    std::thread::scope(|scope| {
        let _relief = Relief(stall.clone());
        let opens = names.map(|name| scope.spawn(|| fixture.read(name).0));
        stall.wait_for(names.len());
        assert_answers(&fixture);
        stall.release();
        for open in opens {
            assert_eq!(open.join().unwrap()[..7], *b"changed");
        }
    });
}

/// A directory rule has the node ask for the name of each file that it begins to cache.
#[test]
fn a_name_that_is_waited_for_stops_neither_status_nor_controller_nor_housekeeping() {
    let (fixture, hooks) = Fixture::hooked(|config| {
        config.rules.push(DirectoryRule {
            path: "elsewhere".into(),
            read_mode: None,
            write_mode: None,
            time_to_live: None,
            quota_bytes: None,
            admit: true,
            expendable: false,
            copies: 1,
            stripe: Default::default(),
        });
    });
    let _memory = memory_writer(&fixture, "memory");
    fixture.put("f", &content(2, 3000));
    let writer = fixture.try_open("f", Access::ReadWrite, Wish::default()).unwrap();
    overwrite(&fixture.path("f"), 0, b"changed");
    let stall = Arc::<Stall>::default();
    stall.hold(&hooks, Call::Name);
    std::thread::scope(|scope| {
        let _relief = Relief(stall.clone());
        let look = scope.spawn(|| writer.follow());
        stall.wait_for(1);
        assert_answers(&fixture);
        stall.release();
        look.join().unwrap();
    });
    let mut now = vec![0; 7];
    writer.read_at(0, &mut now).unwrap();
    assert_eq!(now, b"changed");
}

#[test]
fn changes_that_wait_for_the_pfs_stop_neither_status_nor_controller_nor_upkeep() {
    for (held, truncates) in [(Call::Version, false), (Call::Write, false), (Call::SetSize, true)] {
        let (fixture, hooks) = Fixture::hooked(|_| ());
        let _memory = memory_writer(&fixture, "memory");
        fixture.put("f", &content(2, 3000));
        let writer = fixture.try_open("f", Access::ReadWrite, Wish::default()).unwrap();
        let stall = Arc::<Stall>::default();
        stall.hold(&hooks, held);
        std::thread::scope(|scope| {
            let _relief = Relief(stall.clone());
            let change = scope.spawn(|| match truncates {
                true => writer.set_size(10),
                false => writer.write_at(0, b"new").map(drop),
            });
            stall.wait_for(1);
            assert_answers(&fixture);
            stall.release();
            change.join().unwrap().unwrap();
        });
    }
}

#[test]
fn a_resize_by_hand_does_not_end_while_a_controller_writes_down() {
    let (fixture, hooks) = Fixture::hooked(|_| ());
    for number in 0..6 {
        drop(memory_writer(&fixture, &format!("f{number}")));
    }
    let stall = Arc::<Stall>::default();
    stall.hold(&hooks, Call::Write);
    std::thread::scope(|scope| {
        let _relief = Relief(stall.clone());
        // Of the controller: one file is enough.
        let resident_bytes = fixture.node.status().store.resident_bytes;
        let request = Govern { capacity_bytes: Some(resident_bytes - 1), ..Govern::default() };
        let node = fixture.node.clone();
        let governed = scope.spawn(move || node.admin(AdminRequest::Govern(request), None, 0));
        stall.wait_for(1);
        let node = fixture.node.clone();
        let (answered, answers) = mpsc::channel();
        scope.spawn(move || {
            let shrink = AdminRequest::Resize { size: MemorySize::Bytes(0) };
            answered.send(node.admin(shrink, None, 0).unwrap()).unwrap();
        });
        // Without waiting it would answer here; a moment is enough for that to be seen often.
        assert!(answers.recv_timeout(Duration::from_millis(300)).is_err(), "it does not wait");
        stall.release();
        let AdminReply::Resized(report) = answers.recv_timeout(PATIENCE).unwrap() else { panic!() };
        assert_eq!((report.resident_bytes, report.freed_bytes), (0, resident_bytes));
        governed.join().unwrap().unwrap();
    });
    assert_eq!(fixture.node.status().memory_only_files, 0);
}

#[test]
fn a_file_that_goes_while_it_is_written_down_holds_up_nobody_else() {
    let (fixture, hooks) = Fixture::hooked(|_| ());
    drop(memory_writer(&fixture, "memory"));
    let path = fixture.path("memory");
    let opened = std::fs::File::open(&path).unwrap();
    let stat = opened.metadata().unwrap();
    let stall = Arc::<Stall>::default();
    stall.hold(&hooks, Call::Write);
    std::thread::scope(|scope| {
        let _relief = Relief(stall.clone());
        let shrink = AdminRequest::Resize { size: MemorySize::Bytes(0) };
        let resize = scope.spawn(|| fixture.node.admin(shrink, None, 0).unwrap());
        stall.wait_for(1);
        std::fs::remove_file(&path).unwrap();
        let id = FileId { device: stat.dev(), inode: stat.ino() };
        let removal = scope.spawn({
            let node = fixture.node.clone();
            move || node.removed(id)
        });
        let begun = Instant::now();
        while fixture.node.status().memory_only_files > 0 {
            assert!(begun.elapsed() < PATIENCE, "the file is not given up");
            std::thread::yield_now();
        }
        let node = fixture.node.clone();
        let (answered, answers) = mpsc::channel();
        std::thread::spawn(move || {
            node.housekeep();
            answered.send("housekeeping").unwrap();
            node.admin(AdminRequest::Explain, Some(opened.into()), 0).unwrap();
            answered.send("explain").unwrap();
        });
        for question in ["housekeeping", "explain"] {
            assert_eq!(answers.recv_timeout(PATIENCE), Ok(question), "waits for the PFS");
        }
        stall.release();
        removal.join().unwrap();
        resize.join().unwrap();
    });
    assert_eq!(fixture.node.status().store.resident_bytes, 0);
}
